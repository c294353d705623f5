from pathlib import Path

import pytest
import torch
from torch import nn

from histfl.errors import UsageError
from histfl.models import build_model
from histfl.partition import even_counts, plan


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [("mlp", (1, 28, 28), 238_510), ("lenet5", (1, 28, 28), 61_706), ("resnet18", (3, 32, 32), 11_173_962)],
)
def test_the_papers_models_have_their_sizes(name: str, shape: tuple[int, ...], parameters: int) -> None:
    model = build_model(name, {}, shape, 10, seed=1)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "options", "shape", "include", "cut", "largest_share"),
    [
        ("mlp", {}, (1, 28, 28), (), 1, 0.251),
        (
            "lenet5",
            {},
            (1, 28, 28),
            ("fc*",),
            1,
            0.293,
        ),  # convolutions and the last layer whole in every cell
        ("resnet18", {}, (3, 32, 32), (), 8, 0.3),  # the inner channels of every block
        ("resnet18", {"norm": "group"}, (3, 32, 32), (), 8, 0.3),  # the same in 32 groups each
    ],
)
def test_the_papers_models_are_cut_in_four(
    name: str,
    options: dict[str, str],
    shape: tuple[int, ...],
    include: tuple[str, ...],
    cut: int,
    largest_share: float,
) -> None:
    model = build_model(name, options, shape, 10, seed=1)
    planned = plan(model, torch.zeros(2, *shape), include=include)
    assert len(planned.groups) == cut
    sizes = planned.sizes(even_counts(planned, 4))
    assert sizes.max() < largest_share * planned.num_parameters


def test_group_normalisation_has_as_many_parameters_and_is_cut_by_groups() -> None:
    model = build_model("resnet18", {"norm": "group"}, (3, 32, 32), 10, seed=1)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert {layer.num_groups for layer in model.modules() if isinstance(layer, nn.GroupNorm)} == {32}
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert set(plan(model, torch.zeros(2, 3, 32, 32)).units.tolist()) == {32}
    for width in (1, 2, 3, 5, 6, 9, 20):
        odd = build_model("resnet18", {"norm": "group", "width": width}, (3, 8, 8), 10, seed=1)
        assert odd(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    with pytest.raises(UsageError, match="width = 0; every layer needs at least one channel"):
        build_model("resnet18", {"width": 0}, (3, 8, 8), 10, seed=1)
    with pytest.raises(UsageError, match=r"model\.norm = 'layer': Input should be 'batch' or 'group'"):
        build_model("resnet18", {"norm": "layer"}, (3, 32, 32), 10, seed=1)


@pytest.mark.parametrize(("name", "places"), [("mlp", 1), ("lenet5", 2)])
def test_dropout_is_an_option(name: str, places: int) -> None:
    plain, dropping = (
        build_model(name, options, (1, 28, 28), 10, seed=1) for options in ({}, {"dropout": 0.3})
    )
    assert [layer.p for layer in dropping.modules() if isinstance(layer, nn.Dropout)] == [0.3] * places
    assert not any(isinstance(layer, nn.Dropout) for layer in plain.modules())
    for (name, left), (other, right) in zip(
        plain.named_parameters(), dropping.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(left, right)
    with pytest.raises(UsageError, match="between 0 and 1"):
        build_model("mlp", {"dropout": 1.3}, (12,), 3, seed=1)


def test_weights_come_from_the_seed_and_the_global_generator_stays() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_model("mlp", {"hidden": [8, 4]}, (5,), 3, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [next(iter(model.parameters())) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def net(input_shape: tuple[int, ...], num_classes: int, width: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(*input_shape, width), torch.nn.Linear(width, num_classes))


def test_a_users_factory_gets_what_it_asks_for() -> None:
    model = build_model("test_models:net", {"width": 3}, (4,), 2, seed=1)
    assert [tuple(each.shape) for each in model.parameters()] == [(3, 4), (3,), (2, 3), (2,)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("mpl", {}, "did you mean 'mlp'"),
        ("no.such.module:f", {}, "cannot be imported"),
        ("test_models:__name__", {}, "not callable"),
        ("math:floor", {"x": 1.0}, "would call Python's own math"),
        ("mlp", {"hiden": 3}, "its options are: hidden"),
        ("mlp", {"hidden": -3}, "at least one neuron"),
        ("lenet5", {}, "images"),
        ("mlp", {"num_classes": 20}, "num_classes = 20: histfl gives it; leave it out"),
        ("..:x", {}, "cannot be imported: TypeError"),
    ],
)
def test_bad_models_are_explained(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_model(name, options, (7,), 2, seed=1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def model(:", "cannot be imported: SyntaxError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("def model(): return {}['width']", "failed: KeyError: 'width'"),
        ("def model(): open('no such file')", "failed: FileNotFoundError"),
        ("def model(): assert False", "failed: AssertionError"),
    ],
)
def test_a_users_module_that_fails_is_said_in_one_line(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"a_users_module_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=said) as raised:
        build_model(f"{name}:model", {}, (7,), 2, seed=1)
    assert "\n" not in str(raised.value)
