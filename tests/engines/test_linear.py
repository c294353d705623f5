"""The products of linear layers: compiled ones equal torch's, whatever the sizes and the memory's order."""

from __future__ import annotations

import pytest
import torch
from engine_cases import make_experiment
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.engines import VectorisedEngine
from histfl.engines.kernels.linear import (
    FEW_INPUTS,
    LARGE_WEIGHT,
    MANY_INPUTS,
    NARROW,
    CompiledProducts,
    TorchProducts,
    linear_products,
)
from histfl.training import hist

pytest.importorskip("numba", reason="the extra fast is not installed")

KINDS = {torch.float64: 1e-12, torch.float32: 1e-4}
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 200), st.integers(0, 40))


def noise(*sizes: int, dtype: torch.dtype = torch.float64, turned: bool = False) -> torch.Tensor:
    """Numbers of those sizes; `turned`, with the last axis not innermost in memory."""
    if turned:
        return noise(*sizes[:-2], sizes[-1], sizes[-2], dtype=dtype).transpose(-1, -2)
    generator = torch.Generator().manual_seed(sum(size * 1000**place for place, size in enumerate(sizes)))
    return torch.randn(sizes, generator=generator, dtype=dtype)


def framed(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of them inside a frame of NaN, and the whole."""
    whole = matrices.new_full([size + 2 for size in matrices.shape], torch.nan)
    return whole[1:-1, 1:-1, 1:-1].copy_(matrices), whole


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@settings(deadline=None, max_examples=200)
@given(sizes=SIZES, turned=st.booleans(), keep=st.sampled_from([0.0, 0.9, 1.0]))
def test_products_are_added(
    sizes: tuple[int, int, int, int], turned: bool, keep: float, dtype: torch.dtype
) -> None:
    clients, m, n, k = sizes
    left = noise(clients, m, k, dtype=dtype, turned=turned)
    right, _ = framed(noise(clients, k, n, dtype=dtype))
    before = noise(clients, m, n, dtype=dtype)
    found, whole = framed(before if keep else torch.full_like(before, torch.nan))
    CompiledProducts(dtype).add_products(found.numpy(), left.numpy(), right.numpy(), keep, -0.3)
    torch.testing.assert_close(
        found, keep * before - 0.3 * left @ right, rtol=KINDS[dtype], atol=KINDS[dtype]
    )
    assert whole.isnan().sum() == whole.numel() - found.numel()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@settings(deadline=None, max_examples=200)
@given(sizes=SIZES, turned=st.booleans())
def test_rows_meet_rows(sizes: tuple[int, int, int, int], turned: bool, dtype: torch.dtype) -> None:
    clients, m, k, n = sizes
    left, _ = framed(noise(clients, m, k, dtype=dtype))
    right, _ = framed(noise(clients, n, k, dtype=dtype))
    bias = noise(clients, n, dtype=dtype)
    found, whole = framed(noise(clients, m, n, dtype=dtype))
    if turned:
        found, whole = framed(noise(clients, n, m, dtype=dtype))
        found = found.transpose(1, 2)
    CompiledProducts(dtype).affine(found.numpy(), left.numpy(), right.numpy(), bias.numpy())
    right_sums = left @ right.transpose(1, 2) + bias.unsqueeze(1)
    torch.testing.assert_close(found, right_sums, rtol=KINDS[dtype], atol=KINDS[dtype])
    assert whole.isnan().sum() == whole.numel() - found.numel()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("units", [NARROW - 1, NARROW, 75])
@pytest.mark.parametrize("width", [FEW_INPUTS - 1, FEW_INPUTS, MANY_INPUTS, 784])
def test_a_layer_has_the_same_products_either_way(
    width: int, units: int, turned: bool, with_bias: bool, dtype: torch.dtype
) -> None:
    inputs = noise(2, 50, width, dtype=dtype, turned=turned)
    gradient = noise(2, 50, units, dtype=dtype, turned=not turned)
    bias = noise(2, units, dtype=dtype) if with_bias else None
    results = []
    for products in (CompiledProducts(dtype), TorchProducts()):
        weight = noise(2, units, width, dtype=dtype)
        outputs = products.outputs(inputs, weight, bias)
        for_inputs = products.for_inputs(gradient, weight)
        products.add(weight, gradient, inputs, keep=0.9, scale=-0.1)
        results.append((outputs, for_inputs, weight))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right, rtol=KINDS[dtype], atol=KINDS[dtype])
    assert results[0][0].stride() == results[1][0].stride() or not with_bias


def test_large_weights_are_stepped_too() -> None:
    weight = torch.zeros(2, 300, LARGE_WEIGHT // 1200 + 1)
    inputs, gradient = noise(2, 3, weight.shape[2]).float(), noise(2, 3, 300).float()
    CompiledProducts(weight.dtype).add(weight, gradient, inputs, keep=1.0, scale=1.0)
    torch.testing.assert_close(weight, gradient.transpose(1, 2) @ inputs, rtol=0, atol=1e-5)


def test_autograd_follows_outputs_where_it_must() -> None:
    inputs = noise(2, 3, FEW_INPUTS).requires_grad_()
    weight = noise(2, 4, FEW_INPUTS)
    products = CompiledProducts(weight.dtype)
    (found,) = torch.autograd.grad(products.outputs(inputs, weight, None).sum(), inputs)
    torch.testing.assert_close(found, products.for_inputs(torch.ones(2, 3, 4).double(), weight))


def test_torch_does_what_the_kernels_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histfl.engines.kernels.linear.tiles_fit", lambda: True)
    assert isinstance(linear_products(torch.zeros(2, 3, 4)), CompiledProducts)
    assert isinstance(linear_products(torch.zeros(2, 3, 4, dtype=torch.bfloat16)), TorchProducts)
    assert isinstance(linear_products(torch.zeros(2, 4, 3).transpose(1, 2)), TorchProducts)


def test_training_is_the_same_without(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_experiment("mlp")
    start = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    states = []
    for fit in (True, False):
        for module in ("kernels.linear", "steps.stacked"):
            monkeypatch.setattr(f"histfl.engines.{module}.tiles_fit", lambda found=fit: found)
        (outcome,) = hist(experiment.hist, start, VectorisedEngine(), first_round=0, rounds=1)
        states.append(outcome.state)
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=1e-12, msg=name)
