"""FedRolex, HeteroFL and scaled submodels against loops written independently of ours, on both engines."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from batches_for_tests import client_batches
from small_training import train
from torch import nn

from histfl.data import TensorData
from histfl.errors import PartitionError, UsageError
from histfl.network import Network
from histfl.partition import Plan, width_counts, windows
from histfl.partition.plan import UnitGroup
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.seeds import Seeds
from histfl.settings import checked
from histfl.training import hist
from histfl.training.dealers import Method, NestedDealer, RollingDealer
from histfl.training.methods import METHODS

TRAINING = {"rounds": 3, "edge_rounds": 2, "local_steps": 2, "batch_size": 4, "learning_rate": 0.2}
LAYERS = (5, 8, 6, 3)  # inputs, two hidden layers, classes
NETWORK = Network.uniform(cells=3, clients=6)
State = dict[str, torch.Tensor]
Widths = list[list[int]]  # of a cell, of its hidden layers


def make_model() -> nn.Module:
    torch.manual_seed(4)
    first, second, third = (nn.Linear(inputs, outputs) for inputs, outputs in pairwise(LAYERS))
    return nn.Sequential(first, nn.ReLU(), second, nn.Tanh(), third).double()


def experiment(engine: str = "reference", **method: Any) -> Experiment:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, LAYERS[0], dtype=torch.float64, generator=generator)
    data = TensorData(inputs, torch.arange(60) % 3, ("a", "b", "c"))
    tables = {"training": TRAINING, "uplink": {"name": "ideal"}, "data": {"split": "iid"}, "method": method}
    config = checked(Config, tables, "test")
    return build(config, Ingredients(make_model(), data, data, NETWORK), device="cpu", engine=engine)


def trained(made: Experiment) -> State:
    start = {name: value.detach().clone() for name, value in made.model.named_parameters()}
    *_, last = hist(made.hist, start, made.engine, first_round=0, rounds=TRAINING["rounds"])
    return last.state


def forward(weights: State, inputs: torch.Tensor, scales: list[float]) -> torch.Tensor:
    """The model of `make_model` written out, what hidden layer i gives times scales[i]."""
    first = scales[0] * torch.relu(inputs @ weights["0.weight"].T + weights["0.bias"])
    second = scales[1] * torch.tanh(first @ weights["2.weight"].T + weights["2.bias"])
    return second @ weights["4.weight"].T + weights["4.bias"]


def loop(made: Experiment, kept: Callable[[int, int], list[list[int]]], power: float = 0.0) -> State:
    """Clients of cell j hold the units kept(j, round) of both hidden layers; an entry becomes the mean over the cells
    that hold it, else stays. Shares only the data and the batches with the product."""
    task = made.hist.task
    cloud = {name: value.detach().clone() for name, value in make_model().named_parameters()}
    for t in range(TRAINING["rounds"]):
        sums = {name: torch.zeros_like(value) for name, value in cloud.items()}
        holders = {name: torch.zeros_like(value) for name, value in cloud.items()}
        for cell in range(3):
            axes = [list(range(LAYERS[0])), *kept(cell, t), list(range(LAYERS[-1]))]
            scales = [(full / len(own)) ** power for full, own in zip(LAYERS[1:], axes[1:], strict=True)]
            places = {}
            for number, layer in enumerate(("0", "2", "4")):
                places[f"{layer}.weight"] = np.ix_(axes[number + 1], axes[number])
                places[f"{layer}.bias"] = (axes[number + 1],)
            edge = {name: cloud[name][place] for name, place in places.items()}
            for e in range(TRAINING["edge_rounds"]):
                ends = []
                for client in (2 * cell, 2 * cell + 1):
                    local = {name: value.clone().requires_grad_() for name, value in edge.items()}
                    mine = torch.from_numpy(task.split.client(client))
                    steps = TRAINING["local_steps"]
                    stream = client_batches(
                        Seeds(1).key("batches", t),
                        client,
                        len(mine),
                        first_step=e * steps,
                        steps=steps,
                        batch_size=4,
                    )
                    for batch in mine[stream]:
                        outputs = forward(local, task.data.inputs[batch], scales)
                        loss = nn.functional.cross_entropy(outputs, task.data.targets[batch])
                        gradients = torch.autograd.grad(loss, list(local.values()))
                        with torch.no_grad():
                            for value, gradient in zip(local.values(), gradients, strict=True):
                                value -= TRAINING["learning_rate"] * gradient
                    ends.append(local)
                edge = {name: (ends[0][name] + ends[1][name]).detach() / 2 for name in edge}
            for name, place in places.items():
                sums[name][place] += edge[name]
                holders[name][place] += 1
        cloud = {
            name: torch.where(holders[name] > 0, sums[name] / holders[name].clamp(min=1), old)
            for name, old in cloud.items()
        }
    return cloud


def fedrolex(shares: list[float], roll: int = 1) -> Callable[[int, int], list[list[int]]]:
    """From unit j mod K on, in round j, wrapping around: equation (1) of the FedRolex paper."""

    def kept(cell: int, t: int) -> list[list[int]]:
        units = []
        for full in LAYERS[1:-1]:
            first, width = roll * t % full, round(shares[cell] * full)
            end = first + width
            units.append(list(range(first, min(end, full))) + list(range(max(end - full, 0))))
        return units

    return kept


def heterofl(shares: list[float]) -> Callable[[int, int], list[list[int]]]:
    return lambda cell, t: [list(range(round(shares[cell] * full))) for full in LAYERS[1:-1]]


def assert_same(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-11, msg=name)


SHARES = [1.0, 0.5, 0.5]
# A Ray worker trains by the vectorised engine; test_ray.py has that its bits are the same.
HERE = ["reference", "vectorised"]


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("power", [0.0, 0.7])
def test_nested_is_heterofl(engine: str, power: float) -> None:
    made = experiment(engine, name="nested", sizes=SHARES, scale=power)
    assert_same(trained(made), loop(made, heterofl(SHARES), power))


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize(("roll", "power"), [(1, 0.0), (5, 1.0)])
def test_rolling_is_fedrolex(engine: str, roll: int, power: float) -> None:
    made = experiment(engine, name="rolling", sizes=[0.5, 0.5, 0.5], roll=roll, scale=power)
    assert_same(trained(made), loop(made, fedrolex([0.5] * 3, roll), power))


@pytest.mark.parametrize("engine", HERE)
def test_scaled_hist_is_a_loop_that_multiplies_activations(engine: str) -> None:
    made = experiment(engine, name="hist", sizes=[0.5, 0.25, 0.25], scale=0.5)
    (group,) = made.hist.plan.groups
    layer = 1 if group.name == "0" else 2

    def kept(cell: int, t: int) -> list[list[int]]:
        counts = np.array([[group.num_units // 2], [group.num_units // 4], [group.num_units // 4]])
        own = made.hist.dealer.deal(made.hist.plan, counts, range(3), t, Seeds(1))[cell].kept[0].tolist()
        return [own if number == layer else list(range(LAYERS[number])) for number in (1, 2)]

    assert_same(trained(made), loop(made, kept, 0.5))


def a_plan(*units: int) -> Plan:
    groups = tuple(UnitGroup(f"layer {place}", number, ()) for place, number in enumerate(units))
    return Plan(groups, {}, {}, frozenset())


def held(submodels: Any) -> list[list[list[int]]]:
    return [[units.tolist() for units in submodel.kept] for submodel in submodels]


def test_windows_move_by_roll_and_come_round() -> None:
    counts = np.array([[3, 1], [5, 4]])
    rounds = [held(RollingDealer(roll=2).deal(a_plan(5, 4), counts, (0, 1), t, Seeds(1))) for t in range(3)]
    assert rounds[0] == [[[0, 1, 2], [0]], [[0, 1, 2, 3, 4], [0, 1, 2, 3]]]
    assert rounds[1][0] == [[2, 3, 4], [2]]
    assert rounds[2][0] == [[0, 1, 4], [0]]


def test_windows_apart_follow_one_another() -> None:
    plan, counts = a_plan(10), np.array([[4], [3], [3]])
    for t in range(12):
        cells = held(RollingDealer(apart=True).deal(plan, counts, (0, 1, 2), t, Seeds(1)))
        assert sorted(unit for (own,) in cells for unit in own) == list(range(10))
        assert set(cells[1][0]) == {(t + 4 + k) % 10 for k in range(3)}


def test_nested_submodels_are_parts_of_larger_ones() -> None:
    plan = a_plan(7, 30)
    counts = width_counts(plan, np.array([0.1, 0.5, 1.0]))
    assert counts.tolist() == [[1, 3], [4, 15], [7, 30]]
    small, middle, large = held(NestedDealer().deal(plan, counts, (0, 1, 2), 9, Seeds(1)))
    assert small == [[0], [0, 1, 2]]
    assert set(middle[1]) < set(large[1])


def test_wrong_windows_are_refused() -> None:
    with pytest.raises(PartitionError, match=r"share of cell 1 is 1\.5"):
        width_counts(a_plan(4), np.array([0.5, 1.5]))
    for count in (0, 5):
        with pytest.raises(PartitionError, match=f"cell 0 gets {count} units of layer 'layer 0'"):
            windows(a_plan(4), np.array([[count]]), np.array([[0]]))


@pytest.mark.parametrize("name", ["rolling", "nested"])
def test_a_share_above_one_is_refused_before_anything_is_read(name: str) -> None:
    with pytest.raises(UsageError, match=f"method.name = '{name}'.*at most 1"):
        experiment(name=name, sizes=[2.0, 1.0, 1.0])


def test_python_takes_a_name_a_table_or_an_object() -> None:
    named = train(method="rolling", roll=2, rounds=2)
    table = train(method={"name": "rolling", "roll": 2}, rounds=2)
    assert table.config == named.config
    own = Method("every", lambda: RollingDealer(roll=2))
    given = train(method=own, rounds=2)
    assert given.config.method.name == "given"
    assert given.loss.tolist() == table.loss.tolist() == named.loss.tolist()
    assert named.loss[-1] != train(method="rolling", rounds=2).loss[-1]
    known = train(method=METHODS["rolling"], rounds=2, roll=2)
    assert known.config == named.config


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": 3}, "give a name, a table of the section [method], or a Method"),
        ({"method": "given"}, "method.name = 'given' is for Python, histfl.train(method=...); use hist or"),
        ({"method": {"name": "rolling", "roll": 0}}, "method.roll = 0"),
        ({"method": {"name": "rolling", "roll": 2}, "roll": 2}, "the method has roll = 2; leave out one"),
        ({"method": Method("every"), "sizes": "optimised"}, "where every layer is cut, sizes do not add up"),
        (
            {"method": Method("every", lambda keep: NestedDealer())},
            "method 'given': missing a required argument: 'keep'",
        ),
        ({"method": Method("every", NestedDealer), "sizes": (1.5, 0.5)}, "give shares of at most 1"),
    ],
)
def test_a_bad_method_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        train(**settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
