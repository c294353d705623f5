"""Client steps a second of the optimisers, on one core, and each as a share of plain SGD's.

    OMP_NUM_THREADS=1 python benchmarks/optimisers.py

The quickstart's MLP and images; every setting takes its turn in each pass, and the best turn counts. Seconds are
processor time, in which other programs' turns on the core do not count.
"""

from __future__ import annotations

import time

from histfl.runs.build import Experiment, prepare
from histfl.runs.loading import load_config
from histfl.training import hist

STEPS = {
    "SGD": (),
    "momentum": ("training.momentum=0.9",),
    "Adam": ("training.optimiser=adam",),
    "AdamW": ("training.optimiser=adamw", "training.weight_decay=0.01"),
    "FedProx": ("training.proximal=0.1",),
    "MTGC": ("training.correction=mtgc",),
    "clipped": ("training.clip_norm=1.0",),
}
PASSES = 6


def steps_a_second(experiment: Experiment) -> float:
    """Of one global round."""
    state = {name: parameter.detach().clone() for name, parameter in experiment.model.named_parameters()}
    start = time.process_time()
    outcomes = list(hist(experiment.hist, state, experiment.engine, first_round=0, rounds=1))
    took = time.process_time() - start
    return sum(result.client_steps for outcome in outcomes for result in outcome.results) / took


def main() -> None:
    small = ("network.clients=20", "training.edge_rounds=2")
    experiments = {
        name: prepare(load_config("quickstart", (*small, *settings)), device="cpu", engine="vectorised")
        for name, settings in STEPS.items()
    }
    best = dict.fromkeys(STEPS, 0.0)
    for _ in range(PASSES):
        for name, experiment in experiments.items():
            best[name] = max(best[name], steps_a_second(experiment))
    print("| steps | a second | of plain SGD's |\n|---|---|---|")
    for name, rate in best.items():
        print(f"| {name} | {rate:,.0f} | {rate / best['SGD']:.2f} |")


if __name__ == "__main__":
    main()
