"""Extract and merge are inverses, and the merge is the one rule of all methods."""

from __future__ import annotations

from itertools import pairwise

import models_for_tests as models
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from histfl.partition import (
    Plan,
    State,
    Submodel,
    draw,
    even_counts,
    extract,
    merge,
    num_parameters,
    plan,
    share_counts,
    shared_units,
)
from histfl.partition.submodel import masks


def state_of(model: nn.Module) -> State:
    return {name: value.detach() for name, value in model.named_parameters()}


def draw_evenly(cut: Plan, num_cells: int, seed: int = 0, shared: float = 0.0) -> tuple[Submodel, ...]:
    return draw(cut, even_counts(cut, num_cells, shared), np.random.default_rng(seed), shared=shared)


def same(first: State, second: State) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("scheme", ["alternating", "every", "none"])
def test_extract_then_merge_gives_back_the_model(kind, scheme) -> None:
    model, inputs = kind
    state = state_of(model)
    cut = plan(model, inputs, scheme=scheme)
    num_cells = min([3, *cut.units.tolist()])
    for shared in (0.0, 0.5):
        submodels = draw_evenly(cut, num_cells, shared=shared)
        same(merge(state, ((part, extract(state, part)) for part in submodels)), state)


def test_masks_are_disjoint_and_complete_where_a_parameter_is_cut(kind) -> None:
    model, inputs = kind
    cut = plan(model, inputs)
    num_cells = min(3, int(cut.units.min()))
    held = [masks(part) for part in draw_evenly(cut, num_cells)]
    cut_names = {parameter for parameter, _ in cut.cuts}
    for name, shape in cut.shapes.items():
        total = sum(mask[name] for mask in held)
        assert total.shape == shape
        if name not in cut_names:
            assert (total == num_cells).all(), name
        elif all(
            (cut_axis.unit >= 0).all()
            for g in cut.groups
            for cut_axis in g.axes
            if cut_axis.parameter == name
        ):
            assert (total == 1).all(), name
        else:  # the other branches of a concatenation are held by all
            assert ((total == 1) | (total == num_cells)).all(), name
            assert (total == 1).any(), name


def test_a_submodel_has_the_size_of_its_mask(kind) -> None:
    model, inputs = kind
    for scheme in ("alternating", "every"):
        cut = plan(model, inputs, scheme=scheme)
        counts = even_counts(cut, 2)
        submodels = draw(cut, counts, np.random.default_rng(0))
        expected = [sum(int(masks(part)[name].sum()) for name in cut.trainable) for part in submodels]
        assert [num_parameters(part) for part in submodels] == expected
        assert cut.sizes(counts).tolist() == expected
        if scheme == "alternating":
            additive = cut.replicated_parameters + counts @ cut.unit_parameters
            assert additive.tolist() == expected


widths = st.lists(st.integers(4, 12), min_size=3, max_size=6)


@st.composite
def networks(draw_from: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """A random MLP, or a random chain of convolutions with or without norms and a residual sum."""
    sizes = draw_from(widths)
    torch.manual_seed(draw_from(st.integers(0, 1000)))
    if draw_from(st.booleans()):
        return models.mlp(*sizes), torch.randn(3, sizes[0])
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        if draw_from(st.booleans()):
            layers += [models.BasicBlock(before, after, draw_from(st.integers(1, 2)))]
        else:
            layers += [nn.Conv2d(before, after, draw_from(st.sampled_from([1, 3])), padding=1)]
            layers += [nn.BatchNorm2d(after)] if draw_from(st.booleans()) else []
            layers += [nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * sizes[-1], 5)]
    return nn.Sequential(*layers), torch.randn(3, sizes[0], 6, 6)


@given(networks(), st.sampled_from(["alternating", "every"]), st.data())
@settings(deadline=None, max_examples=25)
def test_random_networks_extract_and_merge_to_themselves(network, scheme, data) -> None:
    model, inputs = network
    state = state_of(model)
    cut = plan(model, inputs, scheme=scheme)
    num_cells = data.draw(st.integers(1, 4))
    shared = data.draw(st.sampled_from([0.0, 0.4]))
    shares = np.array(data.draw(st.lists(st.floats(0.1, 1), min_size=num_cells, max_size=num_cells)))
    counts = share_counts(cut, shares, shared)
    submodels = draw(cut, counts, np.random.default_rng(0), shared=shared)
    parts = [(part, extract(state, part)) for part in submodels]
    same(merge(state, parts), state)
    assert cut.sizes(counts + shared_units(cut, shared)).tolist() == [num_parameters(p) for p in submodels]
    for part, compact in parts:
        mask = masks(part)
        for name, value in compact.items():
            assert value.numel() == mask[name].sum()
            assert torch.equal(value.flatten(), state[name][mask[name].bool()])


@pytest.mark.parametrize("scheme", ["alternating", "every", "none"])
@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_merge_is_the_masked_mean_and_keeps_what_nobody_trained(scheme, shared) -> None:
    model = models.mlp(6, 9, 8, 7, 3).double()
    state = state_of(model)
    cut = plan(model, torch.randn(4, 6).double(), scheme=scheme)
    submodels = draw_evenly(cut, 3, shared=shared)
    generator = torch.Generator().manual_seed(0)
    total = {name: torch.zeros_like(value) for name, value in state.items()}
    count = {name: torch.zeros_like(value) for name, value in state.items()}
    parts = []
    for part in submodels:
        mask = masks(part)
        full = {n: torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in state.items()}
        parts.append((part, extract(full, part)))
        for name, value in full.items():
            total[name] += mask[name] * value
            count[name] += mask[name]
    merged = merge(state, parts)
    for name, old in state.items():
        expected = torch.where(count[name] > 0, total[name] / count[name].clamp(min=1), old)
        assert torch.allclose(merged[name], expected, rtol=1e-12, atol=1e-14)
        alone = count[name] == 1
        assert torch.equal(merged[name][alone], expected[alone])
    untrained = sum(int((value == 0).sum()) for value in count.values())
    assert (untrained > 0) == (scheme == "every")


def test_ist_submodels_are_about_one_over_cells_squared() -> None:
    cut = plan(models.mlp(8, 400, 400, 8), torch.randn(4, 8), scheme="every")
    part = draw_evenly(cut, 4)[0]
    assert len(extract(state_of(models.mlp(8, 400, 400, 8)), part)["2.weight"]) == 100
    assert extract({"2.weight": torch.zeros(400, 400)}, part)["2.weight"].shape == (100, 100)


def test_parts_may_hold_some_names_only() -> None:
    model = models.lora()
    state = state_of(model)
    cut = plan(model, torch.randn(4, 12))
    trained = {name: value for name, value in state.items() if name in cut.trainable}
    parts = [(part, {n: v + 1 for n, v in extract(trained, part).items()}) for part in draw_evenly(cut, 2)]
    merged = merge(state, parts)
    assert merged.keys() == state.keys()
    for name, old in state.items():
        assert torch.equal(merged[name], old + 1 if name in cut.trainable else old), name


def test_a_frozen_parameter_that_is_cut_is_extracted_but_not_counted() -> None:
    model = models.mlp(5, 8, 3)
    model[2].weight.requires_grad_(False)
    cut = plan(model, torch.randn(4, 5))
    part = draw_evenly(cut, 2)[0]
    assert extract(state_of(model), part)["2.weight"].shape == (3, 4)
    assert num_parameters(part) == 4 * 5 + 4 + 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_comes_back_as_it_was(dtype) -> None:
    cut = plan(models.mlp(5, 8, 3), torch.randn(4, 5))
    state = {name: value.to(dtype) for name, value in state_of(models.mlp(5, 8, 3)).items()}
    same(merge(state, [(part, extract(state, part)) for part in draw_evenly(cut, 4)]), state)


def test_a_mean_over_many_cells_in_half_precision_is_not_lost_to_rounding() -> None:
    cut = plan(models.mlp(2, 3), torch.randn(4, 2), scheme="none")
    state = {"0.weight": torch.zeros(3, 2, dtype=torch.float16)}
    (part,) = draw(cut, np.zeros((1, 0), dtype=np.int64), np.random.default_rng(0))
    ones, zeros = ({"0.weight": torch.full((3, 2), value, dtype=torch.float16)} for value in (1.0, 0.0))
    merged = merge(state, [(part, ones)] * 10 + [(part, zeros)] * 9_990)
    assert torch.allclose(merged["0.weight"].float(), torch.tensor(1e-3), rtol=1e-2)


def test_merge_changes_neither_the_old_state_nor_the_parts() -> None:
    model = models.mlp(5, 8, 3)
    state = state_of(model)
    before = {name: value.clone() for name, value in state.items()}
    parts = [
        (part, {name: value + 1 for name, value in extract(state, part).items()})
        for part in draw_evenly(plan(model, torch.randn(4, 5)), 2)
    ]
    kept = [{name: value.clone() for name, value in part.items()} for _, part in parts]
    merged = merge(state, parts)
    merged["0.weight"].zero_()
    same(state, before)
    for (_, part), old in zip(parts, kept, strict=True):
        same(part, old)


def test_no_parts_is_the_old_model() -> None:
    state = state_of(models.mlp(5, 8, 3))
    same(merge(state, []), state)


def test_extracts_are_new_tensors() -> None:
    model = models.mlp(5, 8, 3)
    state = state_of(model)
    compact = extract(state, draw_evenly(plan(model, torch.randn(4, 5), scheme="none"), 2)[0])
    compact["0.weight"].zero_()
    assert state["0.weight"].abs().sum() > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_as_on_the_cpu() -> None:
    model = models.MobileNet()
    cut = plan(model, models.images(3, 16))
    assert [g.name for g in plan(model.cuda(), models.images(3, 16).cuda()).groups] == [
        g.name for g in cut.groups
    ]
    state = state_of(model)
    parts = [(part, extract(state, part)) for part in draw_evenly(cut, 3, shared=0.2)]
    assert all(value.is_cuda for _, part in parts for value in part.values())
    same(merge(state, parts), state)
