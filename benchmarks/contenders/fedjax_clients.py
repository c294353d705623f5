"""FedJAX's for_each_client in every cell, with its jit backend: one compiled step, one client after another.

XLA uses the cores within a step. The pmap backend, a client a core, does not run on a JAX as new as this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import fedjax
import jax
import numpy as np
import torch
from turns import State, contender_options, load_job, take_turns

Arrays = dict[str, jax.Array]


def linear(parameters: Arrays, name: str, values: jax.Array) -> jax.Array:
    return values @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def convolution(parameters: Arrays, name: str, images: jax.Array, padding: int) -> jax.Array:
    """Followed by ReLU and max-pooling, of which this form is faster than `lax.reduce_window`."""
    sides = [(padding, padding)] * 2
    found = jax.lax.conv_general_dilated(images, parameters[f"{name}.weight"], (1, 1), sides)
    active = jax.nn.relu(found + parameters[f"{name}.bias"][:, None, None])
    count, channels, height, width = active.shape
    return active.reshape(count, channels, height // 2, 2, width // 2, 2).max((3, 5))


def mlp(parameters: Arrays, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(linear(parameters, "fc1", images.reshape(len(images), -1)))
    return linear(parameters, "output", hidden)


def lenet5(parameters: Arrays, images: jax.Array) -> jax.Array:
    values = convolution(parameters, "conv1", images, padding=2)
    values = convolution(parameters, "conv2", values, padding=0)
    values = values.reshape(len(values), -1)
    for name in ("fc1", "fc2"):
        values = jax.nn.relu(linear(parameters, name, values))
    return linear(parameters, "output", values)


MODELS: dict[str, Callable[[Arrays, jax.Array], jax.Array]] = {"mlp": mlp, "lenet5": lenet5}


def main() -> None:
    options = contender_options()
    torch.set_num_threads(1)
    job = load_job(options.job / "job.pt")
    name = json.loads((options.job / "settings.json").read_text("utf-8"))["model"]
    if name not in MODELS:
        raise SystemExit(f"{name} is not written in JAX here, only {' and '.join(MODELS)}")
    model = MODELS[name]
    inputs, targets, chosen = (tensor.numpy() for tensor in (job.inputs, job.targets, job.batches))
    starts = [{name: jax.numpy.asarray(value.numpy()) for name, value in s.items()} for s in job.starts]

    def loss(parameters: Arrays, batch: dict[str, jax.Array]) -> jax.Array:
        outputs = model(parameters, batch["x"])
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs).mean()

    def client_step(parameters: Arrays, batch: dict[str, jax.Array]) -> Arrays:
        gradients = jax.grad(loss)(parameters, batch)
        return jax.tree_util.tree_map(
            lambda value, gradient: value - job.learning_rate * gradient, parameters, gradients
        )

    def batches(edge_round: int, client: int) -> Iterator[dict[str, np.ndarray]]:
        for batch in chosen[edge_round, client]:
            yield {"x": inputs[batch], "y": targets[batch]}

    with fedjax.for_each_client_backend("jit"):
        train = fedjax.for_each_client(lambda shared, _: shared, client_step, lambda _, final: final)

    def cell(number: int, parameters: Arrays, edge_round: int) -> Arrays:
        clients = [(client, batches(edge_round, client), ()) for client in job.clients_of(number)]
        finals = [final for _, final in train(parameters, clients)]
        # FedJAX's own mean calls a function that JAX 0.6 removed, and JAX 0.5 is slower by a quarter.
        return jax.tree_util.tree_map(lambda *values: sum(values) / len(values), *finals)

    def global_round(edge_rounds: int) -> list[State]:
        states = starts
        for edge_round in range(edge_rounds):
            states = [cell(number, parameters, edge_round) for number, parameters in enumerate(states)]
        return [{name: torch.from_numpy(np.array(value)) for name, value in s.items()} for s in states]

    take_turns(options.socket, global_round)


if __name__ == "__main__":
    main()
