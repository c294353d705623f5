"""Uplinks, channels and size policies given to `histfl.train` as objects: the run by name where they are the same, told
as given where no name says them, gone on with bit by bit, and refused in one line where they are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import train
from torch import nn

import histfl
from histfl.arrays import Floats, Ints
from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.errors import CheckpointError, UsageError
from histfl.network import Network
from histfl.reports import gather
from histfl.reports.bound import bound_in
from histfl.seeds import Seeds
from histfl.sizing import POLICIES, SizingProblem, optimised, uniform
from histfl.training import CellSchedule, State, mean_of_clients
from histfl.wireless.aircomp import OverTheAir
from histfl.wireless.channels import CHANNELS, Channel, PathLoss, Rayleigh, Rician
from histfl.wireless.clock import Latency, Radio, Transmissions
from histfl.wireless.uplinks import UPLINKS, Ideal, Orthogonal, UplinkKind

NAME = __name__


@dataclass(frozen=True)
class Wired:
    """A wire for each client, of `rate` bits a second; of every edge round the first client's model is lost."""

    rate: float = 1e5
    bits_per_parameter: float = 16.0

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[float]:
        return [float(seeds.numpy("wires", round, schedule.cell).uniform()) for schedule in schedules]

    def latency(self, network: Network, sent: Transmissions, links: Sequence[float]) -> Latency:
        slower = 1 + 9 * (sent.place == 0)  # the first cell's, as its sizes show
        return Latency(self.rate / slower, self.bits_per_parameter)

    def aggregate(
        self, start: State, finals: Iterable[State], link: float, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        chunks = [*finals]
        models = {name: torch.cat([chunk[name] for chunk in chunks])[1:] for name in start}
        moved = {name: mean - start[name] for name, mean in mean_of_clients([models]).items()}
        return {name: start[name] + (1 - 0.1 * link) * moved[name] for name in start}, torch.zeros(())


@dataclass(frozen=True)
class Calm:
    """Rayleigh's, of `power` an antenna."""

    power: float = 1.0

    def draw(
        self,
        clients: int | tuple[int, ...],
        antennas: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.complex128,
    ) -> torch.Tensor:
        return self.power * Rayleigh().draw(clients, antennas, generator, dtype)


def first_larger(problem: SizingProblem) -> Ints:
    counts = uniform(problem)
    counts[0] += 1
    counts[1] -= 1
    return counts


def table(**settings: Any) -> dict[str, Any]:
    return {"bits_per_parameter": 32.0} | settings


SAME: dict[str, tuple[Radio, Any]] = {
    "fdma": (Orthogonal(), table(name="fdma")),
    "fdma of all fields": (
        Orthogonal("fdma", 2e6, 3, 16.0, Rician(2.0), True, True),
        {
            "name": "fdma",
            "bandwidth_hz": 2e6,
            "antennas": 3,
            "bits_per_parameter": 16.0,
            "channel": "rician",
            "k_factor_db": 2.0,
            "double_count_clients": True,
            "noise_scales_with_band": True,
        },
    ),
    "tdma": (Orthogonal("tdma", channel=PathLoss()), table(name="tdma", channel="path-loss")),
    "aircomp": (
        OverTheAir(antennas=4, simulated=True),
        {"name": "aircomp", "antennas": 4, "signal": "simulated"},
    ),
    "ideal": (Ideal(), "ideal"),
}


@pytest.mark.parametrize(("own", "chosen"), SAME.values(), ids=SAME)
def test_an_uplink_of_histfls_own_is_the_run_by_name(own: Radio, chosen: Any) -> None:
    given, named = train(uplink=own, rounds=2), train(uplink=chosen, rounds=2)
    assert given.config == named.config
    assert given.records == named.records
    assert given.records != train(rounds=2, uplink={"name": "tdma", "bandwidth_hz": 1e5}).records


def test_a_registered_uplink_is_known_as_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    own = train(uplink=Wired(5e4), rounds=2)
    assert own.config.uplink.name == "given"
    assert own.config.uplink.model_extra == {"rate": 5e4, "of": f"{NAME}.Wired"}
    assert own.config.uplink.bits_per_parameter == 16.0  # by which megabytes are counted, too
    assert own.megabytes_per_client[-1] == pytest.approx(train(rounds=2).megabytes_per_client[-1] / 2)
    monkeypatch.setitem(UPLINKS, "wired", UplinkKind(Wired, "a wire a client", network=()))
    known = train(uplink=Wired(np.float64(5e4)), rounds=2)
    named = train(uplink={"name": "wired", "rate": 5e4, "bits_per_parameter": 16.0}, rounds=2)
    assert known.config == named.config
    assert known.records == named.records == own.records
    assert own.records != train(uplink=Wired(4e4), rounds=2).records
    assert own.config.fingerprint() != train(uplink=Wired(4e4), rounds=2).config.fingerprint()


@pytest.mark.parametrize(
    "other",
    [Orthogonal("tdma", noise_scales_with_band=True), OverTheAir(noiseless=True)],  # which no setting says
    ids=["orthogonal", "over the air"],
)
def test_what_no_setting_says_is_told_as_given(other: Any) -> None:
    run = train(uplink=other)
    assert run.config.uplink.name == "given"
    assert run.config.uplink.model_extra is not None
    assert run.config.uplink.model_extra["of"].endswith(type(other).__name__)


CHANNEL_OBJECTS: dict[str, tuple[Channel, dict[str, Any]]] = {
    "rayleigh": (Rayleigh(), {"channel": "rayleigh"}),
    "rician": (Rician(3.0), {"channel": "rician", "k_factor_db": 3.0}),
    "path loss": (PathLoss(), {"channel": "path-loss"}),
}


@pytest.mark.parametrize("name", ["fdma", "aircomp"])
@pytest.mark.parametrize(("own", "chosen"), CHANNEL_OBJECTS.values(), ids=CHANNEL_OBJECTS)
def test_a_channel_of_histfls_own_is_the_run_by_name(name: str, own: Channel, chosen: dict[str, Any]) -> None:
    given, named = train(uplink={"name": name, "channel": own}), train(uplink={"name": name} | chosen)
    assert given.config == named.config
    assert given.records == named.records


def test_a_channel_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = train(uplink={"name": "tdma", "channel": Calm()}, rounds=2)
    assert own.config.uplink.channel == "given"
    assert own.records == train(uplink="tdma", rounds=2).records
    assert own.records != train(uplink={"name": "tdma", "channel": Calm(0.1)}, rounds=2).records
    inside = train(uplink=Orthogonal("tdma", channel=Calm()), rounds=2)
    assert (inside.config.uplink.name, inside.config.uplink.channel) == ("tdma", "given")
    assert inside.records == own.records
    other = train(uplink={"name": "tdma", "channel": PathLoss(exponent=2.0)})
    assert other.config.uplink.channel == "given"
    monkeypatch.setitem(CHANNELS, "calm", Calm)
    assert train(uplink={"channel": Calm()}).config.uplink.channel == "calm"


@pytest.mark.parametrize("name", POLICIES)
def test_a_size_policy_of_histfls_own_is_the_run_by_name(name: str) -> None:
    given, named = train(sizes=POLICIES[name], rounds=2), train(sizes=name, rounds=2)
    assert given.config == named.config
    assert given.records == named.records


def test_a_size_policy_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = train(sizes=first_larger, rounds=2)
    assert own.config.method.sizes == "given"
    assert own.summary["sizes"] == "given"
    assert [record["units"] for record in own.records] == [[[4], [2]]] * 2
    in_its_table = train(method={"name": "hist", "sizes": first_larger}, rounds=2)
    as_lists = train(sizes=lambda problem: first_larger(problem).tolist(), rounds=2)
    assert own.records == in_its_table.records == as_lists.records
    monkeypatch.setitem(POLICIES, "larger", first_larger)
    named = train(sizes="larger", rounds=2)
    assert own.records == named.records
    assert train(sizes=first_larger, rounds=2).config == named.config
    seen: list[float] = []

    def by_cost(problem: SizingProblem) -> Ints:
        seen.append(problem.cap_ratio)
        return optimised(problem)

    assert train(sizes=by_cost, cap=1.2).records == train(sizes="optimised", cap=1.2).records
    assert set(seen) == {1.2}


def test_optimised_sizes_follow_an_uplink_of_ones_own() -> None:
    """The first cell's wires are ten times as slow, so it gets fewer units, and the promise is what the clock says."""
    settings = {"sizes": "optimised", "rounds": 2, "cycles_per_step": 1.0}
    run = train(uplink=Wired(), **settings)
    assert [record["units"] for record in run.records] == [[[2], [4]]] * 2
    promised, taken = (
        [record["latency"][key] for record in run.records] for key in ("predicted_seconds", "seconds")
    )
    assert promised == pytest.approx(taken, rel=1e-9)
    largest = [record["submodel_parameters"][0] for record in run.records]
    assert taken == pytest.approx([16 * size * 10 / 1e5 for size in largest], rel=1e-3)
    assert train(uplink="ideal", **settings).records[0]["units"] == [[3], [3]]


@dataclass(frozen=True)
class Hasty(Wired):
    """Looks at the first chunk alone."""

    def aggregate(
        self, start: State, finals: Iterable[State], link: float, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        first = next(iter(finals))
        return {name: tensor[0] for name, tensor in first.items()}, torch.ones(())


@pytest.mark.parametrize("own", [Wired(), Hasty()], ids=["wired", "hasty"])
def test_engines_agree(own: Radio) -> None:
    slow, fast = (
        train(uplink=own, engine=engine, rounds=2, edge_rounds=2, sizes="optimised", codec={"name": "top-k"})
        for engine in (ReferenceEngine(), VectorisedEngine())
    )
    for mine, theirs in zip(slow.records, fast.records, strict=True):
        assert mine["client_steps"] == theirs["client_steps"] == 16 * mine["round"]
        assert mine["training_loss"] == pytest.approx(theirs["training_loss"], rel=1e-5)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        for key in ("units", "simulated_seconds", "edge_error"):
            assert mine[key] == theirs[key]


def own_radio() -> dict[str, Any]:
    return {"uplink": Wired(), "sizes": first_larger}


def own_channel() -> dict[str, Any]:
    return {"uplink": {"name": "aircomp", "channel": Calm()}}


@pytest.mark.parametrize("own", [own_radio, own_channel])
def test_runs_go_on_bit_by_bit(own: Any, tmp_path: Path) -> None:
    whole = train(rounds=3, **own())
    train(rounds=1, out=tmp_path, **own())
    resumed = train(rounds=3, out=tmp_path, resume=True, **own())
    assert resumed.records == whole.records
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))
    (read,) = gather([tmp_path]).runs
    assert read.config == whole.config
    assert histfl.Run.load(tmp_path).summary["uplink"] == whole.config.uplink.name


def test_a_folder_says_what_it_lacks_and_takes_no_other(tmp_path: Path) -> None:
    train(out=tmp_path / "wired", **own_radio())
    said = " ".join((tmp_path / "wired" / "config.toml").read_text("utf-8").replace("#", "").split())
    assert f"the uplink ({NAME}.Wired)" in said
    assert "the sizes," in said
    with pytest.raises(CheckpointError, match=r"uplink.rate = 100000.0, not 50000.0"):
        train(rounds=2, out=tmp_path / "wired", resume=True, **own_radio() | {"uplink": Wired(5e4)})
    with pytest.raises(CheckpointError, match=r"a run with method.sizes = 'given', not 'uniform'"):
        train(rounds=2, out=tmp_path / "wired", resume=True, uplink=Wired())
    train(out=tmp_path / "calm", **own_channel())
    assert "the channel," in (tmp_path / "calm" / "config.toml").read_text("utf-8").replace("\n# ", " ")


def test_a_folder_is_no_configuration_to_run(tmp_path: Path) -> None:
    from histfl.runs.build import prepare
    from histfl.runs.loading import load_config

    for own, said in ((own_radio, "uplink.name"), (own_channel, "uplink.channel")):
        out = tmp_path / own.__name__
        train(out=out, **own())
        with pytest.raises(UsageError, match=rf"{said} = 'given' is for Python, histfl.train\(uplink=...\)"):
            prepare(load_config(str(out / "config.toml"), ("data.name=fashion-mnist-mini", "model.name=mlp")))


def test_the_theorems_say_nothing_of_an_uplink_of_ones_own(tmp_path: Path) -> None:
    train(out=tmp_path, uplink=Wired(), theory_every=1)
    with pytest.raises(UsageError, match=r"uplink.name = 'given'; .* so give a run over fdma, tdma, aircomp"):
        bound_in(tmp_path)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            {"uplink": {"name": "ideal", "channel": Calm()}},
            ["uplink.channel = 'given' is not read with uplink.name"],
        ),
        ({"uplink": Wired(), "cap": 1.2}, ["method.cap = 1.2 is not read"]),
        ({"uplink": Wired(), "cap": 1.2, "sizes": first_larger}, []),
        ({"uplink": Orthogonal("tdma", 1e6, noise_scales_with_band=True)}, []),
    ],
)
def test_what_is_not_read_is_told(
    own: dict[str, Any], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(**own)
    found = [each.getMessage() for each in caplog.records if "is not read" in each.getMessage()]
    assert len(found) == len(told)
    assert all(say in each for say, each in zip(told, found, strict=True))


def without(part: str) -> Any:
    parts = {name: lambda *given: None for name in ("draw", "latency", "aggregate") if name != part}
    return type("Part", (), {name: staticmethod(each) for name, each in parts.items()})()


def with_part(**parts: Any) -> Any:
    return type("Part", (Wired,), {name: staticmethod(each) for name, each in parts.items()})()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an uplink of 3": ({"uplink": 3}, "train(uplink=3) has no method draw"),
    "no uplink": ({"uplink": None}, "train(uplink=None) has no method draw"),
    "a class": ({"uplink": Wired}, "train(uplink=Wired): give an object, such as Wired()"),
    "a function": (
        {"uplink": first_larger},
        "has no method draw; give a name, a table, or an object with draw, latency, aggregate",
    ),
    "no latency": ({"uplink": without("latency")}, "has no method latency"),
    "no aggregate": ({"uplink": without("aggregate")}, "has no method aggregate"),
    "a draw of one": (
        {"uplink": with_part(draw=lambda network: [])},
        "draw: too many positional arguments; it is called with (network, schedules, round, seeds)",
    ),
    "a latency of four": (
        {"uplink": with_part(latency=lambda network, sent, links, more: Latency())},
        "latency: missing a required argument: 'more'; it is called with (network, sent, links)",
    ),
    "an aggregate of none": ({"uplink": with_part(aggregate=lambda: None)}, "aggregate: too many positional"),
    "given by name": ({"uplink": "given"}, "uplink.name = 'given' is for Python, histfl.train(uplink=...)"),
    "an odd field": ({"uplink": Orthogonal("fdma", antennas="two")}, "uplink.antennas = 'two': Input should"),  # type: ignore[arg-type]
    "an odd field of one's own": (
        {"uplink": Wired(bits_per_parameter=-1.0)},
        "bits_per_parameter = -1.0: Input",
    ),
    "with privacy": (
        {"uplink": Wired(), "privacy": {"clip": 1.0}},
        "privacy.clip = 1 with uplink.name = 'given': how much one client changes what an uplink of one's own gives",
    ),
    "a channel of 3": ({"uplink": {"channel": 3}}, "train(uplink.channel=3) has no draw method"),
    "no channel": ({"uplink": {"channel": None}}, "uplink.channel = None: Input should be 'rayleigh'"),
    "a channel said twice": (
        {"uplink": {"channel": Rician(3.0), "k_factor_db": 5.0}},
        "k_factor_db=5.0): the channel has k_factor_db = 3.0; leave out one",
    ),
    "a class of a channel": (
        {"uplink": {"channel": Calm}},
        "train(uplink.channel=Calm): give an object, such as",
    ),
    "a channel by name": ({"uplink": {"channel": "given"}}, "uplink.channel = 'given' is for Python"),
    "a channel of no argument": (
        {"uplink": {"channel": with_part(draw=lambda: None)}},
        "draw: too many positional arguments; it is called with (clients, antennas, generator, dtype)",
    ),
    "a channel that draws nothing": (
        {"uplink": {"channel": with_part(draw=lambda *given: None)}},
        "the channel Part drew NoneType; it must be a tensor [client, antenna]",
    ),
    "a channel of real numbers": (
        {
            "uplink": {
                "channel": with_part(draw=lambda clients, antennas, *given: torch.ones(clients, antennas))
            }
        },
        "the channel Part: channels are torch.float32; they must be complex",
    ),
    "a channel without power": (
        {"uplink": {"channel": Calm(0.0)}},
        "latency of the uplink Orthogonal: rates = array([0., 0., 0., 0.]); they must be positive",
    ),
    "sizes by name": ({"sizes": "given"}, "method.sizes = 'given' is for Python, histfl.train(sizes=...)"),
    "a class of sizes": ({"sizes": SizingProblem}, "train(sizes=SizingProblem): give an object"),
    "sizes of no argument": (
        {"sizes": lambda: None},
        "too many positional arguments; it is called with (problem)",
    ),
    "sizes of two": ({"sizes": lambda problem, more: None}, "missing a required argument: 'more'"),
    "sizes of nothing": (
        {"sizes": lambda problem: None},
        "sizes by <lambda> = None; give an array of numbers",
    ),
    "sizes of text": ({"sizes": lambda problem: "uniform"}, "sizes by <lambda> = 'uniform'; give an array"),
    "sizes of halves": ({"sizes": lambda problem: np.full((2, 1), 2.5)}, "are float64 of shape (2, 1)"),
    "sizes of nan": (
        {"sizes": lambda problem: np.full((2, 1), np.nan)},
        "they must be whole numbers of units",
    ),
    "sizes of one cell": ({"sizes": lambda problem: [[6]]}, "are int64 of shape (1, 1); they must be whole"),
    "sizes of no layer": ({"sizes": lambda problem: [3, 3]}, "here of shape (2, 1)"),
    "sizes that do not add up": ({"sizes": lambda problem: [[3], [4]]}, "they must add up to 6"),
    "sizes below one": (
        {"sizes": lambda problem: [[7], [-1]]},
        "give cell 0 7 of the 6 units of layer '0'; deal out",
    ),
    "no units": ({"sizes": lambda problem: [[6], [0]]}, "every cell needs at least one"),
    "sizes that fail": (
        {"sizes": lambda problem: 1 / 0},
        "sizes by <lambda> fail: ZeroDivisionError: division",
    ),
    "sizes twice": (
        {"sizes": first_larger, "method": {"name": "hist", "sizes": "uniform"}},
        "the method has sizes",
    ),
    "sizes where they do not add up": (
        {
            "sizes": first_larger,
            "method": "ist",
            "model": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)),
        },
        "method.sizes = 'given' with method.name = 'ist': where every layer is cut",
    ),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_none_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        train(**given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_it_raises_is_its_owners() -> None:
    def failing(*given: Any) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(uplink=with_part(draw=failing))


def test_links_may_be_an_array_and_rates_those_of_each() -> None:
    def of_each(network: Network, sent: Transmissions, links: Floats) -> Latency:
        return Latency(np.where(sent.client % 2, 1e4, 1e5), 16.0)

    run = train(uplink=with_part(draw=lambda *given: np.array([0.0, 0.5]), latency=of_each))
    assert run.records[0]["latency"]["uplink_seconds"] == pytest.approx(
        16 * max(run.records[0]["submodel_parameters"]) / 1e4
    )
