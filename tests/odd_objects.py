"""Models, data sets, losses, followers and tensors that are odd in their own ways, each in a call that uses it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from odd_arguments import ODD, Call, Opaque, Unshowable, train
from small_training import INPUTS, TARGETS, mlp
from torch import nn
from torch.utils.data import Dataset

import histfl
from histfl.training import mean_of_clients
from histfl.training.objective import Objective
from histfl.wireless.clock import Latency


class Items(Dataset[Any]):
    """A data set of whatever `item` makes of a sample's number."""

    def __init__(self, item: Callable[[int], object], length: object = 40) -> None:
        self.item, self.length = item, length

    def __len__(self) -> int:
        return self.length  # type: ignore[return-value]

    def __getitem__(self, index: int) -> object:
        return self.item(index)


def pair(index: int) -> tuple[torch.Tensor, int]:
    return INPUTS[index], int(TARGETS[index])


class Named(Items):
    def __init__(self, classes: object) -> None:
        super().__init__(pair)
        self.classes = classes


class Uncopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.numbers = mlp(), (number for number in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


class CopyFails(Uncopied):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = None

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise RuntimeError("one of a kind")


class CopyIsNone(CopyFails):
    def __deepcopy__(self, memo: object) -> Any:
        return None


def _run() -> Any:
    return train()


def tensors() -> Iterator[tuple[str, Call]]:
    """Tensors that are no plain numbers in memory, as inputs and as targets."""
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "meta": lambda x: x.to("meta"),
        "sparse": lambda x: x.to_sparse(),
        "float16": lambda x: x.half(),
        "bfloat16": lambda x: x.bfloat16(),
        "float64": lambda x: x.double(),
        "float8": lambda x: x.to(torch.float8_e4m3fn),
        "float8 e5": lambda x: x.to(torch.float8_e5m2),
        "complex": lambda x: x.to(torch.complex64),
        "bool": lambda x: x > 0,
        "uint16": lambda x: x.abs().to(torch.uint16),
        "uint64": lambda x: x.abs().to(torch.uint64),
        "int8": lambda x: x.to(torch.int8),
        "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        "nested": lambda x: torch.nested.nested_tensor(list(x.reshape(40, -1).float())),
        "jagged": lambda x: torch.nested.nested_tensor(list(x.reshape(40, -1).float()), layout=torch.jagged),
        "mkldnn": lambda x: x.float().to_mkldnn(),
        "empty": lambda x: x[:0],
        "of no width": lambda x: x.reshape(40, -1)[:, :0],
        "expanded": lambda x: x[:1].expand(40, *x.shape[1:]),
        "parameter": lambda x: nn.Parameter(x.float()),
        "of one number": lambda x: x.reshape(-1)[0],
        "named": lambda x: x.refine_names(*"NCHW"[: x.dim()]),
        "conjugated": lambda x: x.to(torch.complex64).conj(),
        "row sparse": lambda x: x.reshape(40, -1).to_sparse_csr(),
        "infinite": lambda x: x.float() * float("inf"),
        "huge": lambda x: x.long() + 2**62,
        "inference": _inferred,
    }
    for name, make in makers.items():
        for part in ("inputs", "targets"):
            yield f"{part} {name}", _tensor_call(part, make)


def _inferred(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values * 1


def _tensor_call(part: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    def call() -> object:
        try:
            data = (make(INPUTS), TARGETS) if part == "inputs" else (INPUTS, make(TARGETS))
        except (RuntimeError, NotImplementedError, TypeError, AttributeError):
            return None  # this torch cannot make one
        return train(train_set=data, test_set=data)

    return call


def objects() -> Iterator[tuple[str, Call]]:
    """Models, data sets, functions and records that are odd in their own ways."""
    yield from tensors()
    sets: dict[str, Callable[[], object]] = {
        "of negative length": lambda: Items(pair, -3),
        "of no whole length": lambda: Items(pair, 2.5),
        "of text length": lambda: Items(pair, "40"),
        "of length beyond 64 bits": lambda: Items(pair, 10**30),
        "of a billion items that fail": lambda: Items(lambda index: 1 / 0, 10**9),
        "longer than it is": lambda: Items(pair, 41),
        "shorter than it is": lambda: Items(pair, 1),
        "of targets beyond 64 bits": lambda: Items(lambda index: (INPUTS[index], 2**70)),
        "of targets below 64 bits": lambda: Items(lambda index: (INPUTS[index], -(2**70))),
        "of targets of text": lambda: Items(lambda index: (INPUTS[index], "1")),
        "of numpy text": lambda: Items(lambda index: (np.str_("odd"), 1)),
        "of arrays of text": lambda: Items(lambda index: (np.array(["odd"]), 1)),
        "of arrays of objects": lambda: Items(lambda index: (np.array([None, {}], dtype=object), 1)),
        "of dates": lambda: Items(lambda index: (np.datetime64("2026-01-01"), 1)),
        "of numbers beyond 64 bits": lambda: Items(lambda index: (10**30, 1)),
        "of big endian arrays": lambda: Items(lambda index: (INPUTS[index].numpy().astype(">f4"), 1)),
        "of backward arrays": lambda: Items(lambda index: (INPUTS[index].numpy()[::-1], 1)),
        "of records": lambda: Items(lambda index: (np.zeros(2, dtype=[("a", "f4")]), 1)),
        "of truth targets": lambda: Items(lambda index: (INPUTS[index], True)),
        "of one-hot targets": lambda: Items(lambda index: (INPUTS[index], np.eye(3)[index % 3])),
        "of changing types": lambda: Items(
            lambda index: (INPUTS[index].double() if index else INPUTS[index], index % 3)
        ),
        "of changing kinds": lambda: Items(
            lambda index: (INPUTS[index].long() if index else INPUTS[index], index % 3)
        ),
        "of changing devices": lambda: Items(
            lambda index: (INPUTS[index].to("meta") if index else INPUTS[index], index % 3)
        ),
        "of sparse items": lambda: Items(lambda index: (INPUTS[index].to_sparse(), index % 3)),
        "of meta items": lambda: Items(lambda index: (INPUTS[index].to("meta"), index % 3)),
        "of meta targets": lambda: Items(lambda index: (INPUTS[index], torch.tensor(1, device="meta"))),
        "of float8 items": lambda: Items(lambda index: (INPUTS[index].to(torch.float8_e4m3fn), index % 3)),
        "of three": lambda: Items(lambda index: (INPUTS[index], 1, 2)),
        "of classes = 3": lambda: Named(3),
        "of classes = text": lambda: Named("abc"),
        "of classes = few": lambda: Named(["a"]),
        "of classes = none": lambda: Named(None),
        "of classes = endless": lambda: Named(iter(int, 1)),
        "of classes = unshowable": lambda: Named([Unshowable()] * 3),
        "of classes = opaque": lambda: Named([Opaque()] * 3),
        "of classes = a tensor": lambda: Named(torch.arange(3)),
        "of classes = a dict": lambda: Named({"a": 0, "b": 1, "c": 2}),
        "of classes = a function": lambda: Named(lambda: 3),
        "of classes = billions": lambda: Named(range(10**9)),
        "of classes = surrogates": lambda: Named(["\ud800", "b", "c"]),
        "of lists": lambda: (INPUTS.tolist(), TARGETS.tolist()),
        "of arrays": lambda: (INPUTS.numpy(), TARGETS.numpy()),
        "of another length": lambda: (INPUTS, TARGETS[:7]),
    }
    for name, make in sets.items():
        yield f"train set {name}", lambda make=make: train(train_set=make())
        yield f"test set {name}", lambda make=make: train(test_set=make())
    models: dict[str, Callable[[], object]] = {
        "on the meta device": lambda: mlp().to("meta"),
        "half on the meta device": _half_meta,
        "with a meta buffer": lambda: _with_buffer(torch.zeros(3, device="meta")),
        "with a sparse buffer": lambda: _with_buffer(torch.eye(3).to_sparse()),
        "with a complex buffer": lambda: _with_buffer(torch.zeros(3, dtype=torch.complex64)),
        "with a float8 buffer": lambda: _with_buffer(torch.zeros(3, dtype=torch.float8_e4m3fn)),
        "with a quantised buffer": lambda: _with_buffer(
            torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)
        ),
        "of float8": lambda: mlp().to(torch.float8_e4m3fn),
        "of float16": lambda: mlp().half(),
        "of complex numbers": lambda: mlp().to(torch.complex64),
        "of float64": lambda: mlp().double(),
        "of two formats": lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3).double()),
        "of nan": lambda: _filled(float("nan")),
        "of infinity": lambda: _filled(float("inf")),
        "that cannot be copied": Uncopied,
        "whose copy fails": CopyFails,
        "whose copy is none": CopyIsNone,
        "without a forward": nn.Module,
        "of a class": lambda: nn.Linear,
        "of nothing": nn.Sequential,
        "of a parameter of no size": lambda: nn.Sequential(nn.Linear(8, 0), nn.Linear(0, 3)),
        "of one unit": lambda: nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 3)),
        "that is quantised": _quantised,
        "of inference tensors": _inference_model,
        "that returns itself": lambda: Odd(lambda inputs: inputs),
        "that returns nothing": lambda: Odd(lambda inputs: None),
        "that returns text": lambda: Odd(lambda inputs: "scores"),
        "that returns whole numbers": lambda: Odd(lambda inputs: torch.ones(len(inputs), 3).long()),
        "that returns a nested tensor": lambda: Odd(
            lambda inputs: torch.nested.nested_tensor([torch.ones(3)] * len(inputs))
        ),
        "that returns sparse scores": lambda: Odd(lambda inputs: inputs[:, :3].to_sparse()),
        "that returns meta scores": lambda: Odd(lambda inputs: inputs[:, :3].to("meta")),
        "that returns complex scores": lambda: Odd(lambda inputs: inputs[:, :3].to(torch.complex64)),
        "that grows": lambda: Odd(lambda inputs: inputs[:, :3], grows=True),
        "with hooks that raise": _hooked,
        "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        "spectral": lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 3)
        ),
        "compiled": lambda: torch.compile(mlp(), backend="eager"),
    }
    for name, make in models.items():
        for method in ("hist", "hfedavg"):
            yield (
                f"model {name}, {method}",
                lambda make=make, method=method: train(model=make(), method=method),
            )
    for name in (name for name in models if "buffer" in name):
        yield f"model {name}, with out", lambda name=name: train(model=models[name](), out=tempfile.mkdtemp())
    losses: dict[str, Callable[..., object]] = {
        "of text": lambda outputs, targets: "loss",
        "of a number": lambda outputs, targets: 0.5,
        "of none": lambda outputs, targets: None,
        "of nan": lambda outputs, targets: outputs.sum() * float("nan"),
        "of infinity": lambda outputs, targets: outputs.sum() * float("inf"),
        "that raises": lambda outputs, targets: 1 / 0,
        "of meta": lambda outputs, targets: outputs.sum().to("meta"),
        "complex": lambda outputs, targets: outputs.sum().to(torch.complex64),
        "of one argument": lambda outputs: outputs.sum(),
        "for few alone": lambda outputs, targets: outputs.mean() if len(outputs) < 3 else 1 / 0,
        "for many alone": lambda outputs, targets: outputs.mean() if len(outputs) > 3 else 1 / 0,
        "that clears its inputs": _clearing,
        "without a way back": _no_way_back,
        "that sums": nn.CrossEntropyLoss(reduction="sum"),
    }
    for name, loss in losses.items():
        yield f"loss {name}", lambda loss=loss: train(loss=loss)
    yield from _metrics()
    yield from _radios()
    followers: dict[str, Callable[[Any], object]] = {
        "empties its record": lambda record: record.clear(),
        "changes its record": lambda record: record.update(accuracy="x", round=-5, extra={1}),
        "changes inside its record": lambda record: record["latency"].clear(),
        "adds an object": lambda record: record.update({3: object()}),
        "raises": lambda record: 1 / 0,
        "stops an iteration": lambda record: next(iter([])),
    }
    for name, follower in followers.items():
        yield f"on_round that {name}", lambda follower=follower: train(rounds=2, on_round=follower)
        yield (
            f"on_round with out that {name}",
            lambda follower=follower: train(rounds=2, on_round=follower, out=tempfile.mkdtemp()),
        )
    yield "on_round of no argument", lambda: train(on_round=lambda: None)
    for name, value in ODD.items():
        yield f"compare({name})", lambda value=value: histfl.compare(value)
        yield f"compare(a={name})", lambda value=value: histfl.compare(a=value)
        yield f"column({name})", lambda value=value: _run().column(value)
        yield f"plot({name})", lambda value=value: _run().plot(value)
        yield f"write_report({name})", lambda value=value: _run().write_report(value)
    yield "compare()", lambda: histfl.compare()
    yield "column(latency)", lambda: _run().column("latency")
    yield "column(active_cells)", lambda: _run().column("active_cells")
    yield "Network.uniform(clients_per_cell=text, cells=text)", lambda: histfl.Network.uniform("2", "3")


class Odd(nn.Module):
    """Two layers, and something done to the scores."""

    def __init__(self, answer: Callable[[torch.Tensor], object], grows: bool = False) -> None:
        super().__init__()
        self.layers, self.answer, self.grows = mlp(), answer, grows

    def forward(self, inputs: torch.Tensor) -> object:
        if self.grows:
            self.register_parameter(f"more{len(list(self.parameters()))}", nn.Parameter(torch.zeros(2)))
        scores = self.layers(inputs)
        answer = self.answer(inputs)
        return scores + answer if isinstance(answer, torch.Tensor) and self.grows else answer


class Radio:
    """An uplink without errors, but for the parts given."""

    def __init__(self, error: object = torch.zeros(()), **parts: object) -> None:
        vars(self).update(
            {
                "draw": lambda network, schedules, round, seeds: [None] * len(schedules),
                "latency": lambda network, sent, links: Latency(),
                "aggregate": lambda start, finals, link, edge_round, rate: (mean_of_clients(finals), error),
            }
            | parts
        )


class Metric:
    """Its parts as given."""

    def __init__(self, **parts: object) -> None:
        vars(self).update({"title": "odd", "higher_is_better": True, "is_share": False} | parts)


def _radios() -> Iterator[tuple[str, Call]]:
    """Uplinks, channels and sizes whose parts, or the answers of these, are odd."""
    for name, value in ODD.items():
        answers = lambda *given, value=value: value  # noqa: E731
        for part in ("draw", "latency", "aggregate"):
            yield (
                f"uplink {part} of {name}",
                lambda part=part, odd=answers: train(uplink=Radio(**{part: odd})),
            )
            if not callable(value):  # what it raises is its own
                yield f"uplink {part} {name}", lambda part=part, odd=value: train(uplink=Radio(**{part: odd}))
        channel = Metric(draw=answers)
        yield f"channel of {name}", lambda channel=channel: train(uplink={"channel": channel})
        yield f"sizes of {name}", lambda answers=answers: train(sizes=answers)
        yield f"error of {name}", lambda value=value: train(uplink=Radio(error=value))
        for field in ("rates", "bits_per_parameter", "fixed_s", "slot_s", "parameters_per_slot", "on_air"):
            latency = lambda *given, field=field, value=value: Latency(**{field: value})  # noqa: E731
            yield f"latency of {field} {name}", lambda latency=latency: train(uplink=Radio(latency=latency))


def _metrics() -> Iterator[tuple[str, Call]]:
    """Metrics and objectives."""
    values: dict[str, object] = dict(ODD)
    values |= {f"a pair of {name}": (lambda outputs, targets: 0.5, value) for name, value in ODD.items()}
    values |= {
        f"a function of {name}": lambda outputs, targets, value=value: value for name, value in ODD.items()
    }
    values |= {
        "of one argument": lambda outputs: 0.5,
        "that raises": lambda outputs, targets: 1 / 0,
        "that clears its inputs": lambda outputs, targets: targets.zero_().sum(),
        "an object without parts": Metric(title=3),
        "an object of numbers": Metric(sums=3, value=4),
        "an object of nothing": Metric(sums=lambda o, t: None, value=lambda sums, samples: sums),
        "an object of text": Metric(sums=lambda o, t: "1", value=lambda sums, samples: sums),
        "an object without a direction": Metric(
            sums=lambda o, t: t.sum(), value=lambda sums, samples: float(sums), higher_is_better=None
        ),
    }
    for name, value in values.items():
        yield f"metric {name}", lambda value=value: train(metrics={"odd": value}, goal="odd", targets=[1.0])
    for name, value in ODD.items():
        yield f"metrics named {name}", lambda value=value: train(metrics={_hashed(value): lambda o, t: 0.5})
        for part in ("loss", "metrics", "goal"):
            yield (
                f"objective with {part} {name}",
                lambda part=part, value=value: train(
                    objective=Objective(
                        **(
                            {"loss": nn.functional.cross_entropy, "metrics": {}, "goal": "loss"}
                            | {part: value}
                        )
                    )
                ),
            )


def _hashed(value: Any) -> Any:
    try:
        hash(value)
    except Exception:
        return "no key"
    return value


def _clearing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(outputs, targets)
    targets.zero_()  # which the backward pass needs
    return loss


class _NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        raise OSError("no way back")


def _no_way_back(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _NoWayBack.apply(nn.functional.cross_entropy(outputs, targets))
    return found


def _half_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3, device="meta"))


def _with_buffer(buffer: torch.Tensor) -> nn.Module:
    model = mlp()
    model.register_buffer("odd", buffer)
    return model


def _filled(value: float) -> nn.Module:
    model = mlp()
    with torch.no_grad():
        model[0].weight.fill_(value)  # type: ignore[index]
    return model


def _quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})


def _inference_model() -> nn.Module:
    with torch.inference_mode():
        return mlp()


def _hooked() -> nn.Module:
    model = mlp()
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    return model
