"""The smoothness constant L at one model: the largest curvature of a loss (HIST Assumption 2)."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from histfl.errors import UsageError
from histfl.theory.estimators_gradients import Batch, Objective

# Top curvatures of a network's loss lie close together; ||H v|| is within per cents long before v settles.
ITERATIONS = 30
TOLERANCE = 2e-3


def largest_curvature(objective: Objective, batch: Batch) -> float:
    """The spectral norm of the Hessian of the batch loss, by power iteration on Hessian-vector products.

    ||H v|| of a unit vector v never exceeds the norm and never falls from one iteration to the next, so
    this is a lower estimate, at curvatures of either sign. It says nothing of other points x. The batch
    goes through the model in parts as large as a training batch, so that memory is bounded alike.
    """
    parts = [
        Batch(numbers, batch.layers_seed + place)
        for place, numbers in enumerate(batch.numbers.split(objective.task.local.batch_size))
    ]
    size = sum(x.numel() for x in objective.trained.values())
    generator = torch.Generator(device="cpu").manual_seed(batch.layers_seed)
    vector = torch.randn(size, dtype=torch.float64, generator=generator)
    vector = vector.to(objective.task.data.inputs.device)
    largest = 0.0
    for _ in range(ITERATIONS):
        norm = torch.linalg.vector_norm(vector)
        if norm == 0:
            break
        vector = _mean_product(objective, parts, vector / norm)
        before, largest = largest, torch.linalg.vector_norm(vector).item()
        if largest - before <= TOLERANCE * largest:
            break
    return largest


def _mean_product(objective: Objective, parts: list[Batch], vector: torch.Tensor) -> torch.Tensor:
    """H v, float64 [parameter], H the mean over all samples of the parts' Hessians."""
    total = torch.zeros_like(vector)
    for part in parts:
        total += _product(objective, part, vector) * len(part.numbers)
    return total / sum(len(part.numbers) for part in parts)


def _product(objective: Objective, batch: Batch, vector: torch.Tensor) -> torch.Tensor:
    parameters = tuple(objective.trained.values())

    def computed(value: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        if not flat.requires_grad:  # a loss that is linear in the parameters
            return None
        return torch.autograd.grad(flat, parameters, vector.to(flat), materialize_grads=True)

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels cannot be differentiated twice
            products = objective.of_loss(batch, computed)
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise UsageError(
            f"the smoothness constant needs second derivatives, which the model does not have ({error}); "
            "set theory.every = 0"
        ) from None
    if products is None:
        return torch.zeros_like(vector)
    return torch.cat([product.reshape(-1) for product in products]).double()
