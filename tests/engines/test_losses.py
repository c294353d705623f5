"""Cross-entropies of many clients with their gradients, against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from histfl.engines.kernels.losses import FEW_OUTPUTS, cross_entropies


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("classes_first", [True, False])
@pytest.mark.parametrize(("batch", "classes"), [(1, 1), (50, 10), (7, 3), (2, FEW_OUTPUTS)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str)
def test_losses_and_gradients_are_each_clients(
    dtype: torch.dtype,
    tolerance: float,
    batch: int,
    classes: int,
    classes_first: bool,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if installed:
        pytest.importorskip("numba", reason="the extra fast is not installed")
    monkeypatch.setattr("histfl.engines.kernels.losses.numba_installed", lambda: installed)
    generator = torch.Generator().manual_seed(batch * classes)
    outputs = 20 * torch.randn(3, classes, batch, dtype=dtype, generator=generator).transpose(1, 2)
    outputs = outputs if classes_first else outputs.contiguous()
    targets = torch.randint(classes, (3, batch), generator=generator)
    leaf = outputs.clone().requires_grad_()
    right = torch.stack([F.cross_entropy(*pair) for pair in zip(leaf, targets, strict=True)])
    right.sum().backward()
    losses, grad = cross_entropies(outputs, targets)
    torch.testing.assert_close(losses, right.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad, leaf.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", [-1, 4])
def test_a_target_that_is_no_class_is_an_error(target: int) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropies(torch.zeros(1, 2, 4), torch.tensor([[0, target]]))


def test_what_is_not_a_number_is_seen() -> None:
    outputs = torch.zeros(2, 3, 4)
    outputs[0, 1, 2] = torch.nan
    losses, grad = cross_entropies(outputs, torch.zeros(2, 3, dtype=torch.int64))
    assert losses.isnan().tolist() == [True, False]
    assert grad.isnan().any(dim=2).tolist() == [[False, True, False], [False] * 3]
