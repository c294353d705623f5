"""LoRA classifiers: what they compute, what is trained, and HIST's cut of the rank."""

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches_for_tests import client_batches
from tiny_transformers import KINDS, LONGEST, VOCABULARY, classifier, save, tokens, transformer
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from histfl.data import TensorData
from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.engines.steps.choose import _agrees
from histfl.engines.steps.stacked import VmappedSteps
from histfl.errors import UsageError
from histfl.models import build_model
from histfl.models.lora import LoraClassifier, add_lora
from histfl.network import Network
from histfl.partition import draw, even_counts, extract, plan, training_copy
from histfl.partition.submodel import masks
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training import State, client_steps, hist
from histfl.training.operations import count_operations
from histfl.training.scaling import scale_inputs


def trained(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_heads_of_standardised_states(kind: str, pooling: Any) -> None:
    """The library's own masks of padding, and tokens read one text after another."""
    model, ids = classifier(kind, pooling=pooling), tokens(9)
    present = ids >= 0
    states = model.base(input_ids=ids.clamp(min=0), attention_mask=present.long()).last_hidden_state
    read = torch.stack(
        [
            own[seen].mean(dim=0) if pooling == "mean" else own[seen][-1]
            for own, seen in zip(states, present, strict=True)
        ]
    )
    torch.testing.assert_close(model(ids), model.head(4 * read / read.norm(dim=1, keepdim=True)))
    model.standardise(ids[:5])
    standard = (read - read[:5].mean(dim=0)) / read[:5].std(dim=0)
    torch.testing.assert_close(model(ids), model.head(4 * standard / standard.norm(dim=1, keepdim=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_changes_nothing(kind: str) -> None:
    model, ids = classifier(kind), tokens(6)
    longer = nn.functional.pad(ids, (0, 5), value=-1)
    torch.testing.assert_close(model(longer), model(ids))
    assert model(torch.full((2, 4), -1)).isfinite().all(), "an empty text has scores too"


@pytest.mark.parametrize("kind", KINDS)
def test_only_pairs_and_head_are_trained_and_training_draws_nothing(kind: str) -> None:
    model = classifier(kind).train()
    names = set(trained(model))
    assert {name for name in names if ".lora_" not in name} == {"head.weight", "head.bias"}
    assert any(isinstance(module, nn.Dropout) and module.p for module in model.modules()) == (kind != "llama")
    ids = tokens(5)
    torch.testing.assert_close(model(ids), model(ids), rtol=0, atol=0)
    assert not {"head.weight", "head.bias"} & set(trained(classifier(kind, head="frozen")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_pair_is_added_at_its_scale(kind: str) -> None:
    """y = W z + (alpha / rank) B A z, with weights that hold the sum."""
    model, ids = classifier(kind), tokens(5)
    merged = {}
    for layer in model.unit_axes():
        module = model.get_submodule(layer)
        change = 8.0 / 4 * module.lora_B["default"].weight @ module.lora_A["default"].weight
        weight = module.base_layer.weight
        merged[f"{layer}.base_layer.weight"] = weight + (change.T if kind == "gpt2" else change)
        merged[f"{layer}.lora_B.default.weight"] = torch.zeros_like(module.lora_B["default"].weight)
    torch.testing.assert_close(functional_call(model, merged, (ids,)), model(ids))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cells_pair_has_the_scale_of_its_own_rank(kind: str) -> None:
    """A cell that holds 2 of 4 adds alpha / 2 B A: the mean over two cells is what the full model adds."""
    model, ids = classifier(kind), tokens(5)
    planned = plan(model, ids)
    parameters, ours = trained(model), training_copy(model)
    scaling = scale_inputs(ours, planned, model.scale_of_submodels)
    cells = draw(planned, even_counts(planned, 2), np.random.default_rng(1))
    changes: dict[str, list[torch.Tensor]] = {}
    for cell in cells:
        compact, merged = extract(parameters, cell), {}
        for layer, ((down, _), (up, _)) in model.unit_axes().items():
            change = 8.0 / 2 * compact[up] @ compact[down]
            changes.setdefault(layer, []).append(change)
            weight = model.get_submodule(layer).base_layer.weight
            merged[f"{layer}.base_layer.weight"] = weight + (change.T if kind == "gpt2" else change)
            merged[up] = torch.zeros_like(parameters[up])
        torch.testing.assert_close(
            functional_call(ours, compact | scaling.constants(cell, ids.device), (ids,)),
            functional_call(model, merged, (ids,)),
        )
    for layer, ((down, _), (up, _)) in model.unit_axes().items():
        full = 8.0 / 4 * parameters[up] @ parameters[down]
        torch.testing.assert_close(torch.stack(changes[layer]).mean(dim=0), full)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_is_cut_and_compact_equals_masked(kind: str) -> None:
    model, ids = classifier(kind), tokens(8)
    planned = plan(model, ids)
    assert [group.name for group in planned.groups] == list(model.unit_axes())
    assert planned.uncut == {}
    assert planned.units.tolist() == [4] * len(planned.groups)
    parameters, targets = trained(model), torch.arange(8) % 3
    pairs = sum(value.numel() for name, value in parameters.items() if ".lora_" in name)
    whole = model.head.weight.numel() + model.head.bias.numel()
    assert planned.sizes(even_counts(planned, 2)).tolist() == [pairs // 2 + whole] * 2
    for cell, submodel in enumerate(draw(planned, even_counts(planned, 2), np.random.default_rng(1))):
        compact = extract(parameters, submodel)
        masked = {name: value * masks(submodel)[name] for name, value in parameters.items()}
        (value, found), (full_value, full) = (
            _gradients(model, state, ids, targets) for state in (compact, masked)
        )
        torch.testing.assert_close(value, full_value)
        kept = extract(full, submodel)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, kept[name], msg=f"{name} in cell {cell}")


@pytest.mark.parametrize("kind", KINDS)
def test_many_clients_pass_as_one(kind: str) -> None:
    """vmap over clients, with no operation that it would have to loop over (warnings are errors here)."""
    model = classifier(kind).train()
    starts = {name: torch.stack([value, 0.5 * value, value + 0.1]) for name, value in trained(model).items()}
    ids, targets = torch.stack([tokens(4, seed=seed) for seed in range(3)]), torch.arange(12).view(3, 4) % 3

    def loss(state: State, inputs: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, state, (inputs,)), own)

    gradients, values = vmap(grad_and_value(loss))(starts, ids, targets)
    for client in range(3):
        state = {name: value[client] for name, value in starts.items()}
        value, own = _gradients(model, state, ids[client], targets[client])
        torch.testing.assert_close(values[client], value)
        for name, gradient in own.items():
            torch.testing.assert_close(gradients[name][client], gradient, msg=name)


@pytest.mark.parametrize("half", [False, True], ids=["float64", "bfloat16 base"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_way_of_a_gpu_is_taken(kind: str, half: bool) -> None:
    """All clients by vmap step as the reference does, in the trial before a run on a GPU."""
    task = experiment(kind, clients=4, cells=2).hist.task
    if half:
        task.model.float()
        for parameter in task.model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    assert _agrees(VmappedSteps, task)


@pytest.mark.parametrize(
    ("kind", "scale"), [*((kind, None) for kind in KINDS), ("gpt2", 0.0), ("gpt2", 0.5)], ids=str
)
def test_a_round_of_hist_is_the_one_written_out(kind: str, scale: float | None) -> None:
    """Two cells of two clients: own rank indices each, the head averaged; both engines. A pair of rank 2 has the scale
    alpha / 2, or what `method.scale` makes of alpha / 4."""
    made = experiment(kind, clients=4, cells=2, scale=scale)
    factor = 2.0 ** (1.0 if scale is None else scale)
    start = {name: value.detach().clone() for name, value in made.model.named_parameters()}
    (outcome,) = hist(made.hist, start, ReferenceEngine(), first_round=0, rounds=1)
    (fast,) = hist(made.hist, start, VectorisedEngine(), first_round=0, rounds=1)
    expected = dict(start)
    cells = [_cell(made, submodel, start, cell, factor) for cell, submodel in enumerate(outcome.submodels)]
    for name in ("head.weight", "head.bias"):
        expected[name] = (cells[0][name] + cells[1][name]) / 2
    for group, (layer, axes) in enumerate(made.model.unit_axes().items()):  # type: ignore[operator]
        owned = torch.cat([submodel.kept[group] for submodel in outcome.submodels])
        assert sorted(owned.tolist()) == [0, 1, 2, 3], layer
        for name, axis in axes:
            together = torch.cat([cell[name] for cell in cells], dim=axis)
            expected[name] = together.index_select(axis, owned.argsort())
    for name, value in expected.items():
        torch.testing.assert_close(outcome.state[name], value, msg=name)
        torch.testing.assert_close(fast.state[name], value, msg=name)
        changed = not torch.equal(value, start[name])
        assert changed == made.model.get_parameter(name).requires_grad, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
@pytest.mark.parametrize("method", ["hist", "hfedavg"])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_on_a_gpu_agree_with_the_cpu(kind: str, method: str) -> None:
    # Llama computes its norms and its rotary embedding in single precision whatever the weights have, and what that
    # rounds off grows with HIST: on a CPU a start changed by 1e-7 of itself ends a round 1e-6 apart, the third one 3e-4.
    rounds, rtol, atol = (1, 1e-3, 1e-5) if kind == "llama" else (3, 1e-8, 1e-9)
    ends = {}
    for device, engine in (("cpu", ReferenceEngine()), ("cuda", VectorisedEngine())):
        made = experiment(kind, clients=5, cells=2, method=method, device=device)
        start = {name: value.detach().clone() for name, value in made.model.named_parameters()}
        *_, last = hist(made.hist, start, engine, first_round=0, rounds=rounds)
        ends[device] = last.state
    for name, value in ends["cpu"].items():
        torch.testing.assert_close(ends["cuda"][name].cpu(), value, rtol=rtol, atol=atol)


def test_a_local_folder_becomes_the_papers_model(tmp_path: Path) -> None:
    save("gpt2", tmp_path, ["a", "b"])
    models = [build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=seed) for seed in (1, 1, 2)]
    assert trained(models[0]).keys() == trained(models[1]).keys()
    first, again, other = (trained(model) for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert list(models[0].unit_axes()) == ["base.h.0.attn.c_attn", "base.h.1.attn.c_attn"]  # type: ignore[operator]
    beside = build_model("lora", {"base": tmp_path.name}, (6,), 5, seed=1, data_dir=tmp_path.parent)
    assert all(torch.equal(first[name], value) for name, value in trained(beside).items())
    rank, width = 16, 12
    assert sum(value.numel() for value in first.values()) == 2 * rank * (width + 3 * width) + 5 * width + 5
    both = build_model("lora", {"base": str(tmp_path), "target_modules": ["c_attn", "c_fc"]}, (6,), 5, seed=1)
    assert len(both.unit_axes()) == 4  # type: ignore[operator]


def test_a_model_by_name_is_standardised_by_the_texts_it_is_shown(tmp_path: Path) -> None:
    save("bert", tmp_path, ["a"])
    ids = tokens(20, 6)
    shown = build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=1, sample_inputs=ids)
    states = shown._states(ids)  # type: ignore[operator]
    torch.testing.assert_close(shown.get_buffer("mean"), states.mean(dim=0))
    torch.testing.assert_close(shown.get_buffer("spread"), states.std(dim=0))
    one = build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=1, sample_inputs=ids[:1])
    assert one(ids).isfinite().all()


def test_a_half_precision_base_keeps_single_precision_pairs(tmp_path: Path) -> None:
    save("llama", tmp_path, ["a"])
    model = build_model("lora", {"base": str(tmp_path), "base_dtype": "bfloat16"}, (6,), 5, seed=1)
    for name, value in model.named_parameters():
        assert value.dtype == (torch.float32 if value.requires_grad else torch.bfloat16), name
    scores = model(tokens(3, 6))
    assert scores.dtype == torch.float32
    full = build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=1)
    torch.testing.assert_close(scores, full(tokens(3, 6)), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "shape", "said"),
    [
        ({"head": "none"}, (6,), "model.head = 'none': Input should be 'trained' or 'frozen'"),
        ({"rank": 0}, (6,), "model.rank = 0"),
        ({"target_modules": ["nothing"]}, (6,), "no layer to adapt.*nothing"),
        ({}, (LONGEST + 1,), f"reads {LONGEST} tokens at most"),
        ({}, (3, 8, 8), "takes token ids"),
        ({"ranks": 3}, (6,), "its options are: base, rank"),
    ],
)
def test_misuse_is_said(options: dict[str, Any], shape: tuple[int, ...], said: str, tmp_path: Path) -> None:
    save("gpt2", tmp_path, ["a"])
    with pytest.raises(UsageError, match=said):
        build_model("lora", {"base": str(tmp_path), **options}, shape, 5, seed=1)


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot load .*; name a model of the hub"):
        build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=1)
    for name in ("one.gguf", "two.gguf"):  # two sizes of one model, say
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"holds 2 GGUF files, one\.gguf, two\.gguf"):
        build_model("lora", {"base": str(tmp_path)}, (6,), 5, seed=1)


def test_models_with_encoder_and_decoder_are_refused() -> None:
    import transformers

    config = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    model = add_lora(transformers.T5Model(config), rank=2, alpha=1.0)
    with pytest.raises(UsageError, match="T5Model has an encoder and a decoder"):
        LoraClassifier(model, 3, None)


def test_texts_standardise_what_the_head_reads() -> None:
    base, ids = transformer("gpt2"), tokens(5)
    given, later = LoraClassifier(base, 3, ids), LoraClassifier(base, 3, None)
    assert (later.mean == 0).all()
    later.standardise(ids)
    for name in ("mean", "spread"):
        torch.testing.assert_close(getattr(given, name), getattr(later, name), rtol=0, atol=0)
    assert (given.mean != 0).all()


SMALL_BASE = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_BASE |= {"hidden_size": 12, "intermediate_size": 20, "max_position_embeddings": 256}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # of transformers' DeBERTa
@pytest.mark.parametrize(
    ("kind", "options", "length", "works"),
    [
        ("deberta-v2", {}, 8, False),  # has masks of another kind
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 4}, 12, False),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 4}, 4, True),
        ("modernbert", {"pad_token_id": 0}, 128, False),
        ("modernbert", {"pad_token_id": 0}, 64, True),
        ("roberta", {"pad_token_id": 1}, 8, True),
        ("bloom", {}, 8, False),  # takes no masks but its own
    ],
)
def test_a_base_that_has_its_own_idea_of_masks_is_refused(
    kind: str, options: dict[str, Any], length: int, works: bool
) -> None:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(SMALL_BASE | options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = transformers.AutoModel.from_config(config, attn_implementation="eager")
        for parameter in base.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    expected = nullcontext() if works else pytest.raises(UsageError, match="cannot be used as a base")
    with expected:
        LoraClassifier(base, 3, tokens(3, length))


def experiment(
    kind: str,
    *,
    clients: int,
    cells: int,
    method: str = "hist",
    scale: float | None = None,
    device: str = "cpu",
) -> Experiment:
    tables: dict[str, Any] = {
        "training": {"local_steps": 2, "edge_rounds": 2, "batch_size": 3, "learning_rate": 0.2, "rounds": 1},
        "uplink": {"name": "ideal"},
        "data": {"split": "iid"},
        "method": {"name": method, "scale": scale},
    }
    train, test = (
        TensorData(tokens(samples, seed=samples), torch.arange(samples) % 3, ("a", "b", "c"))
        for samples in (26, 6)
    )
    network = Network.uniform(cells=cells, clients=clients)
    config = checked(Config, tables, "test")
    return build(config, Ingredients(classifier(kind), train, test, network), device=device)


def _cell(made: Experiment, submodel: Any, start: State, cell: int, factor: float) -> State:
    """Two edge rounds of a cell's clients, one client after another, with pairs at `factor` times the whole model's scale."""
    task, model = made.hist.task, copy.deepcopy(made.model)
    for layer in model.unit_axes():  # type: ignore[operator]
        model.get_submodule(layer).scaling["default"] *= factor
    state = extract({name: start[name] for name in trained(made.model)}, submodel)
    for edge_round in range(2):
        ends = []
        for client in (2 * cell, 2 * cell + 1):
            own = torch.from_numpy(task.split.client(client))
            places = client_batches(
                task.seeds.key("batches", 0),
                client,
                len(own),
                first_step=2 * edge_round,
                steps=2,
                batch_size=3,
            )
            batches = [(task.data.inputs[own[p]], task.data.targets[own[p]]) for p in places]
            end, _ = client_steps(model, state, {}, batches, loss=task.loss, training=task.local)
            ends.append(end)
        state = {name: (ends[0][name] + ends[1][name]) / 2 for name in state}
    return state


def _gradients(
    model: nn.Module, state: State, ids: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, State]:
    leaves = {name: value.detach().requires_grad_() for name, value in state.items()}
    value = nn.functional.cross_entropy(functional_call(model, leaves, (ids,)), targets)
    found = torch.autograd.grad(value, tuple(leaves.values()))
    return value.detach(), dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_operations_of_a_step_are_counted(kind: str) -> None:
    model = classifier(kind)
    cut, ours = plan(model, tokens(4)), training_copy(model)
    found = count_operations(ours, cut, tokens(4), 50)
    layers = [layer for layer in model.modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    products = sum(layer.weight.numel() for layer in layers if not layer.weight.requires_grad)
    forward = 2 * 50 * 7 * products
    assert forward < found.operations[0] < found.operations[-1] < 5 * forward
    assert found.parameters[-1] == cut.num_parameters


def test_a_base_that_brings_code_is_refused_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    save("gpt2", base, ["a"])
    about = json.loads((base / "config.json").read_text())
    own = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
    (base / "config.json").write_text(json.dumps(about | {"model_type": "theirs", "auto_map": own}))
    (base / "theirs.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("builtins.input", lambda *said: pytest.fail(f"asked {said}"))
    with pytest.raises(UsageError, match="cannot load"):
        build_model("lora", {"base": str(base)}, (6,), 5, seed=1)
    assert not (tmp_path / "imported").exists()
