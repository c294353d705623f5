"""The smoothness constant L at one model: the largest curvature of a loss (HIST Assumption 2)."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from histfl.errors import UsageError
from histfl.theory.estimators_gradients import Batch, Objective

# Top curvatures of a network's loss lie close together; ||H v|| is within per cents long before v settles.
ITERATIONS = 50
TOLERANCE = 1e-3


def largest_curvature(objective: Objective, batch: Batch) -> float:
    """The spectral norm of the Hessian of the batch loss, by power iteration on Hessian-vector products.

    ||H v|| of a unit vector v never exceeds the norm and never falls from one iteration to the next, so
    this is a lower estimate, at curvatures of either sign. It says nothing of other points x.
    """
    parameters = tuple(objective.trained.values())
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels cannot be differentiated twice
            value = objective.loss(batch)
            gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
            return _power_iteration(gradients, parameters, batch.layers_seed)
    except RuntimeError as error:
        if "twice" not in str(error) and "not implemented" not in str(error):
            raise
        raise UsageError(
            f"the smoothness constant needs second derivatives, which the model does not have ({error}); "
            "set theory.every = 0"
        ) from None


def _power_iteration(
    gradients: tuple[torch.Tensor, ...], parameters: tuple[torch.Tensor, ...], seed: int
) -> float:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if not flat.requires_grad:  # a loss that is linear in the parameters
        return 0.0
    generator = torch.Generator(device="cpu").manual_seed(seed)
    vector = torch.randn(len(flat), dtype=torch.float64, generator=generator).to(flat)
    largest = 0.0
    for _ in range(ITERATIONS):
        norm = torch.linalg.vector_norm(vector)
        if norm == 0:
            break
        products = torch.autograd.grad(
            flat, parameters, vector / norm, retain_graph=True, materialize_grads=True
        )
        vector = torch.cat([product.reshape(-1) for product in products])
        before, largest = largest, torch.linalg.vector_norm(vector.double()).item()
        if largest - before <= TOLERANCE * largest:
            break
    return largest
