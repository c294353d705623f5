"""What objects of a user's own answer is refused in one line where it is none, by every engine alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from small_training import train

from histfl.errors import DivergedError, UsageError
from histfl.training.cloud import FedAdam, FedAvgM
from histfl.training.codecs import Quantise, TopK
from histfl.training.dealers import Method, RandomDealer, RollingDealer
from histfl.training.optimisers import SGD, Adam

Change = Callable[[Any], Any]


def _halved(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor[..., :1] for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Codec:
    change: Change
    keeps: bool = False
    bits: Any = 32.0

    def update_bits(self, sizes: Any, plain: float) -> Any:
        return self.bits

    def decoded(self, start: Any, finals: Any, clients: Any, key: int, kept: Any) -> Any:
        return self.change((finals, kept))


@dataclass(frozen=True)
class Cloud:
    change: Change

    def step(self, old: Any, merged: Any, memory: Any) -> Any:
        return self.change((merged, memory))


class Correction:
    change: ClassVar[Change]

    def __init__(self, start: Any, memory: Any, path: float) -> None:
        self.start = start

    def of_clients(self, clients: Any) -> Any:
        zeros = {name: x.new_zeros(len(clients), *x.shape) for name, x in self.start.items()}
        return type(self).change(zeros)

    def trained(self, clients: Any, start: Any, finals: Any) -> None: ...

    def averaged(self, clients: Any, start: Any, new: Any) -> None: ...

    def merged(self, final: Any, merged: Any, edge_rounds: int) -> None: ...


def correction(change: Change) -> type[Correction]:
    return type("Own", (Correction,), {"change": staticmethod(change)})


@dataclass(frozen=True)
class Optimiser:
    found: Any

    def slots(self, start: Any) -> Any:
        return self.found

    def step(self, tensors: Any, gradients: Any, slots: Any) -> None: ...

    def fused(self) -> None: ...


@dataclass(frozen=True)
class Schedule:
    found: Any

    def factor(self, rounds: int, *, warmup_rounds: int) -> Any:
        return self.found


@dataclass(frozen=True)
class Dealer(RandomDealer):
    change: Change = tuple

    def deal(self, *given: Any) -> Any:
        return self.change(super().deal(*given))


def method(change: Change) -> Method:
    return Method("alternating", lambda: Dealer(change=change))


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "a codec that returns nothing": (
        {"codec": Codec(lambda found: None)},
        "codec Codec returns None; it must",
    ),
    "a codec without what is kept": ({"codec": Codec(lambda found: found[0])}, "it must return two tables"),
    "a codec of parts": ({"codec": Codec(lambda found: (_halved(found[0]), {}))}, "of shape"),
    "a codec of no tensors": ({"codec": Codec(lambda found: ({}, {}))}, "leaves out a tensor, '0.bias'"),
    "a codec that keeps parts": (
        {"codec": Codec(lambda found: (found[0], _halved(found[1])), keeps=True)},
        "what is kept by the codec Codec returns",
    ),
    "a codec of no bits": ({"codec": Codec(tuple, bits=None)}, "update_bits of Codec = None; it must be"),
    "a codec of negative bits": ({"codec": Codec(tuple, bits=-1.0)}, "must be at least 0 and finite"),
    "a cloud step that returns nothing": (
        {"cloud": Cloud(lambda found: None)},
        "cloud step Cloud returns None",
    ),
    "a cloud step of one": ({"cloud": Cloud(lambda found: found[0])}, "it must return two tables"),
    "a cloud step of whole numbers": (
        {"cloud": Cloud(lambda found: ({name: x.long() for name, x in found[0].items()}, {}))},
        "returns torch.int64",
    ),
    "a cloud step that adds": (
        {"cloud": Cloud(lambda found: ({**found[0], "odd": torch.zeros(1)}, {}))},
        "returns one more tensor, 'odd'",
    ),
    "a cloud step that keeps text": (
        {"cloud": Cloud(lambda found: (found[0], {"a": "x"}))},
        "memory of the cloud step Cloud returns 'x' as 'a'",
    ),
    "a correction of nothing": (
        {"correction": correction(lambda found: None)},
        "correction Own returns None",
    ),
    "a correction of parts": ({"correction": correction(_halved)}, "it must be torch.float32 of shape"),
    "slots of nothing": ({"optimiser": Optimiser(None)}, "slots of the optimiser Optimiser returns None"),
    "slots of too few": ({"optimiser": Optimiser(([],))}, "a tensor for every one of `start`"),
    "a factor of text": ({"schedule": Schedule("x")}, "factor of Schedule in round 1 = 'x'; it must be a"),
    "a factor of nothing": ({"schedule": Schedule(None)}, "it must be a number"),
    "no factor": ({"schedule": Schedule(math.nan)}, "factor of Schedule in round 1 = nan; it must be from"),
    "a huge factor": ({"schedule": Schedule(1e300)}, "= 1e+300; it must be from"),
    "a dealer of nothing": ({"method": method(lambda found: None)}, "the dealer Dealer returns None"),
    "a dealer of too few": ({"method": method(lambda found: found[:1])}, "returns 1 submodels for 2 cells"),
    "no dealer": ({"method": Method("alternating", lambda: None)}, "has no shared"),  # type: ignore[arg-type,return-value]
}


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize(("given", "said"), ODD.values(), ids=ODD)
def test_an_odd_answer_is_one_line(given: dict[str, Any], said: str, engine: str) -> None:
    with pytest.raises(UsageError) as error:
        train(engine=engine, **given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"codec": Codec(tuple, keeps=True)},
        {"cloud": Cloud(tuple)},
        {"correction": correction(dict)},
        {"optimiser": Optimiser(())},
        {"schedule": Schedule(torch.tensor(0.5))},
        {"method": method(list)},
    ],
)
def test_what_is_right_runs(given: dict[str, Any]) -> None:
    assert len(train(**given).records) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SGD("x"), "learning_rate = 'x'; it must be a number"),
        (lambda: SGD(momentum=1.5), "momentum = 1.5; it must be at least 0 and below 1"),
        (lambda: SGD(weight_decay=-1), "weight_decay = -1; it must be at least 0 and finite"),
        (lambda: Adam(eps="x"), "optimiser.eps = 'x'; it must be a number"),
        (lambda: Adam(eps=1e-300), "optimiser.eps = 1e-300; it must be positive, at least 1e-30"),
        (lambda: Quantise(8.5), "codec.bits = 8.5; it must be a whole number"),
        (lambda: Quantise(True), "codec.bits = True; it must be a whole number"),
        (lambda: TopK("x"), "codec.share = 'x'; it must be a number"),
        (lambda: FedAdam(tau="x"), "cloud.tau = 'x'; it must be a number"),
        (lambda: FedAvgM(momentum=None), "cloud.momentum = None; it must be a number"),
        (lambda: RollingDealer(0), "method.roll = 0; it must be a whole number"),
    ],
)
def test_fields_are_checked(make: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        make()
    assert said in str(error.value)


def test_a_step_that_diverges_is_named() -> None:
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    with pytest.raises(DivergedError, match=r"the test loss is nan; lower cloud.learning_rate or training"):
        train(cloud={"name": "fedadam", "learning_rate": 1e38})
    with pytest.raises(DivergedError, match=r"lower training.proximal or training.learning_rate"):
        train(proximal=1e30, local_steps=4)
    with pytest.raises(DivergedError, match=r"lower privacy.noise_multiplier or training.proximal or train"):
        train(privacy={"clip": 1.0, "noise_multiplier": 1e30}, proximal=0.1)
