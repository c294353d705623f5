"""What objects of a user's own answer is refused in one line where it is none, by every engine alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_training import train

from histfl.errors import DivergedError, UsageError
from histfl.training import mean_of_clients
from histfl.training.cloud import FedAdam, FedAvgM
from histfl.training.codecs import Quantise, TopK
from histfl.training.dealers import Method, RandomDealer, RollingDealer
from histfl.training.optimisers import SGD, Adam
from histfl.wireless.clock import Latency

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


@dataclass(frozen=True)
class Uplink:
    """Of its answers one, `of`, is changed."""

    of: str
    change: Change

    def _said(self, part: str, found: Any) -> Any:
        return self.change(found) if part == self.of else found

    def draw(self, network: Any, schedules: Any, round: int, seeds: Any) -> Any:
        return self._said("draw", [None] * len(schedules))

    def latency(self, network: Any, sent: Any, links: Any) -> Any:
        return self._said("latency", Latency(1e6))

    def aggregate(self, start: Any, finals: Any, link: None, edge_round: int, learning_rate: float) -> Any:
        return self._said("aggregate", (mean_of_clients(finals), torch.zeros(())))


def uplink(of: str, change: Change) -> dict[str, Any]:
    return {"uplink": Uplink(of, change)}


def with_error(error: Any) -> dict[str, Any]:
    return uplink("aggregate", lambda found: (found[0], error))


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
    "an uplink without links": (
        uplink("draw", lambda found: None),
        "draw of the uplink Uplink returns None; it",
    ),
    "links as text": (
        uplink("draw", lambda found: "ab"),
        "returns 'ab'; it must return a list with a link for each",
    ),
    "links of too few": (
        uplink("draw", lambda found: found[:1]),
        "returns 1 links for 2 cells; give one for each",
    ),
    "links of none": (
        uplink("draw", lambda found: np.array(2.0)),
        "returns array(2.); it must return a list",
    ),
    "an uplink of no seconds": (
        uplink("latency", lambda found: None),
        "latency of the uplink Uplink returns None",
    ),
    "an uplink of seconds": (
        uplink("latency", lambda found: 3.0),
        "returns 3.0; it must return a histfl.wireless",
    ),
    "rates of nothing": (
        uplink("latency", lambda found: Latency(None)),
        "latency of the uplink Uplink: rates = None",
    ),  # type: ignore[arg-type]
    "rates of nan": (
        uplink("latency", lambda found: Latency(math.nan)),
        "rates = nan; they must be positive",
    ),
    "rates below zero": (
        uplink("latency", lambda found: Latency(-1.0)),
        "rates = -1.0; they must be positive",
    ),
    "rates of too few": (
        uplink("latency", lambda found: Latency(np.ones(3))),
        "has rates of shape (3,) for 4 transmissions; give one number, or one for each",
    ),
    "all the time and more": (
        uplink("latency", lambda found: Latency(on_air=1.5)),
        "on_air = 1.5; a share of the",
    ),
    "endless waiting": (
        uplink("latency", lambda found: Latency(fixed_s=math.inf)),
        "fixed_s = inf; it must be from 0 to",
    ),
    "slots as text": (
        uplink("latency", lambda found: Latency(slot_s="x")),
        "slot_s = 'x'; it must be a number",
    ),  # type: ignore[arg-type]
    "slots of a half": (
        uplink("latency", lambda found: Latency(parameters_per_slot=0.5)),  # type: ignore[arg-type]
        "parameters_per_slot = 0.5; it must be a whole number",
    ),
    "no bits": (
        uplink("latency", lambda found: Latency(bits_per_parameter=0.0)),
        "bits_per_parameter = 0.0; it",
    ),
    "an edge without a model": (
        uplink("aggregate", lambda found: None),
        "the uplink Uplink returns None; it must",
    ),
    "an edge without an error": (
        uplink("aggregate", lambda found: found[0]),
        "it must return the edge's new model and the error of its mean",
    ),
    "an edge of all clients": (
        uplink(
            "aggregate",
            lambda found: ({name: x.expand(2, *x.shape) for name, x in found[0].items()}, found[1]),
        ),
        "it must be torch.float32 of shape",
    ),
    "an edge of parts": (uplink("aggregate", lambda found: ({}, found[1])), "leaves out a tensor, '0.bias'"),
    "an error of nothing": (
        with_error(None),
        "the error that the uplink Uplink returns is None; it must be a tensor",
    ),
    "an error of a number": (with_error(0.0), "returns is 0.0; it must be a tensor of one number"),
    "errors of entries": (
        with_error(torch.zeros(2)),
        "is torch.float32 of shape (2,); it must be a tensor of one",
    ),
    "a whole error": (
        with_error(torch.tensor(0)),
        "is torch.int64 of shape (); it must be a tensor of one number",
    ),
    "an error below zero": (
        with_error(torch.tensor(-1.0)),
        "in round 1 = -1.0; it must be at least 0 and finite",
    ),
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
        uplink("draw", tuple),
        with_error(torch.tensor(0.5, dtype=torch.float64)),
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
    nowhere = uplink(
        "aggregate", lambda found: ({name: x * math.nan for name, x in found[0].items()}, found[1])
    )
    with pytest.raises(DivergedError, match=r"round 1: the test loss is nan"):
        train(**nowhere)
    for error in (math.nan, math.inf):  # also of histfl's own, where an update is too large to be squared
        with pytest.raises(
            DivergedError, match=rf"round 1, cell 0: the error of the uplink Uplink is {error}"
        ):
            train(**with_error(torch.tensor(error)))
    with pytest.raises(DivergedError, match=r"lower training.proximal or training.learning_rate"):
        train(proximal=1e30, local_steps=4)
    with pytest.raises(DivergedError, match=r"lower privacy.noise_multiplier or training.proximal or train"):
        train(privacy={"clip": 1.0, "noise_multiplier": 1e30}, proximal=0.1)
