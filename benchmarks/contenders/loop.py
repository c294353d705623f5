"""A plain loop over clients, one after another."""

from __future__ import annotations

from functools import partial

import torch
from turns import PeerJob, State, contender_options, load_job, set_arithmetic, take_turns, train_client


def global_round(job: PeerJob, edge_rounds: int) -> list[State]:
    """Edge rounds of all cells; the edge takes the mean of its clients."""
    states = list(job.starts)
    for edge_round in range(edge_rounds):
        for cell, state in enumerate(states):
            clients = job.clients_of(cell)
            total = {name: torch.zeros_like(value) for name, value in state.items()}
            for client in clients:
                for name, value in train_client(job, state, client, edge_round).items():
                    total[name] += value
            states[cell] = {name: value / len(clients) for name, value in total.items()}
    return states


def main() -> None:
    options = contender_options()
    torch.set_num_threads(options.threads)
    job = load_job(options.job / "job.pt")
    set_arithmetic(job.precision)
    take_turns(options.socket, partial(global_round, job))


if __name__ == "__main__":
    main()
