"""Draws the figures of docs/wireless.md and prints the numbers that the page quotes.

    python docs/figures/wireless.py [--format svg]

Needs matplotlib. Seconds come from the uplinks themselves, accuracies from results/aircomp-snr.json, shares of
the bound from benchmarks/results/beamforming-cpu.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from histfl.network import Network
from histfl.seeds import Seeds
from histfl.training import Participation
from histfl.wireless import Rayleigh, max_min
from histfl.wireless.aircomp import OverTheAir
from histfl.wireless.clock import Clock, Computing
from histfl.wireless.uplinks import Orthogonal

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PARAMETERS, UNIT, CELLS, EDGE_ROUNDS, DRAWS = 238_510, 795, 4, 5, 40
SUBMODEL = 300 // CELLS * UNIT + 10
COMPUTING = Computing(local_steps=20, full_parameters=PARAMETERS)
SEEDS = Seeds(3)
LINES = {  # label: (uplink, parameters, colour, style)
    "FDMA, HFedAvg": ("fdma", PARAMETERS, "#b2182b", "s--"),
    "FDMA, HIST": ("fdma", SUBMODEL, "#b2182b", "o-"),
    "AirComp, HFedAvg": ("aircomp", PARAMETERS, "#2166ac", "s--"),
    "AirComp, HIST": ("aircomp", SUBMODEL, "#2166ac", "o-"),
}


def seconds_a_round(uplink: str, parameters: int, clients_a_cell: int, bandwidth_hz: float) -> float:
    """Mean of a global round in the setting of HIST Sec. VI-C, four cells."""
    found = []
    for draw in range(DRAWS):
        network = Network.paper(CELLS, CELLS * clients_a_cell, SEEDS.numpy("network", draw))
        cells = [network.cell(index) for index in range(CELLS)]
        schedules = [Participation().schedule(cell, EDGE_ROUNDS, draw, SEEDS) for cell in cells]
        sizes = np.full(CELLS, parameters)
        if uplink == "aircomp":  # its time depends on no channel, so no beam needs to be optimised
            air = OverTheAir(bandwidth_hz=bandwidth_hz)
            found.append(Clock(COMPUTING, air).cost(network, schedules, (), sizes).seconds)
        else:
            fdma = Orthogonal(bandwidth_hz=bandwidth_hz)
            links = fdma.draw(network, schedules, draw, SEEDS)
            found.append(Clock(COMPUTING, fdma).cost(network, schedules, links, sizes).seconds)
    return float(np.mean(found))


def latency() -> plt.Figure:
    figure, (by_clients, by_band) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    clients, bands = [10, 15, 20, 25, 30], [1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6]
    print("seconds a global round, 4 cells, B = 10 MHz; clients a cell:", *clients)
    for label, (uplink, parameters, colour, style) in LINES.items():
        seconds = [seconds_a_round(uplink, parameters, count, 10e6) for count in clients]
        by_clients.plot(clients, seconds, style, color=colour, label=label, markersize=4)
        print(f"  {label:17s}", *(f"{value:.4f}" for value in seconds))
    print("seconds a global round, 15 clients a cell; bandwidth in MHz:", *(band / 1e6 for band in bands))
    for label, (uplink, parameters, colour, style) in LINES.items():
        seconds = [seconds_a_round(uplink, parameters, 15, band) for band in bands]
        by_band.plot(np.array(bands) / 1e6, seconds, style, color=colour, label=label, markersize=4)
        print(f"  {label:17s}", *(f"{value:.4f}" for value in seconds))
    by_clients.set(xlabel="clients a cell", ylabel="seconds a global round", yscale="log", xticks=clients)
    by_clients.set_title("B = 10 MHz", fontsize=10)
    by_band.set(xlabel="bandwidth B, MHz", xscale="log", xticks=[1, 10, 100], xticklabels=["1", "10", "100"])
    by_band.set_title("15 clients a cell", fontsize=10)
    by_band.legend(fontsize=8)
    return figure


def accuracy() -> plt.Figure:
    runs = json.loads((ROOT / "results" / "aircomp-snr.json").read_text(encoding="utf-8"))["runs"]
    orthogonal = next(run for run in runs if run["snr_db"] is None)
    air = sorted((run for run in runs if run["snr_db"] is not None), key=lambda run: run["snr_db"])
    figure, (final, curves) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    reference = 100 * np.mean(orthogonal["accuracy"][-5:])
    noise = noise_of_an_entry()
    print(
        "SNR dB: accuracy, mean of the last 5 of 40 rounds, less FDMA's; test loss; noise of an entry a round"
    )
    print(f"  FDMA {reference:.2f} %, test loss {orthogonal['loss'][-1]:.2f}")
    means = [100 * np.mean(run["accuracy"][-5:]) for run in air]
    for run, mean in zip(air, means, strict=True):
        step = 0.01 * noise / 10 ** (run["snr_db"] / 20)
        print(
            f"  {run['snr_db']:5.0f}: {mean:.2f} % ({mean - reference:+.2f}); {run['loss'][-1]:.2f}; {step:.4f}"
        )
    final.axhline(reference, color="black", linestyle=":", label="FDMA, no error")
    final.plot([run["snr_db"] for run in air], means, "o-", color="#2166ac", label="AirComp")
    final.set(xlabel="SNR, dB", ylabel="accuracy, %", ylim=(10, 85))
    final.set_title("mean of rounds 36 to 40", fontsize=10)
    final.legend(fontsize=8, loc="lower right")
    shown = [run for run in air if run["snr_db"] in (-30, -20, -10, 0, 20)]
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(shown)))
    for run, colour in zip(shown, colours, strict=True):
        rounds = np.arange(1, len(run["accuracy"]) + 1)
        curves.plot(
            rounds,
            100 * np.array(run["accuracy"]),
            color=colour,
            label=f"{run['snr_db']:.0f} dB",
            linewidth=1.2,
        )
    curves.plot(rounds, 100 * np.array(orthogonal["accuracy"]), "k:", label="FDMA", linewidth=1.2)
    curves.set(xlabel="global round")
    curves.set_title("round by round", fontsize=10)
    curves.legend(fontsize=8, ncols=2, loc="lower right")
    return figure


def noise_of_an_entry() -> float:
    """Standard deviation of the estimate at 0 dB: 15 clients, 10 antennas, `paper_power`, not normalised."""
    channels = Rayleigh().draw((1000, 15), 10, SEEDS.torch("noise"))
    value = float((1 / (2 * max_min(channels)[1])).mean().sqrt())
    print(f"noise of the estimated mean update at 0 dB, an entry: {value:.3f}")
    return value


def shares() -> plt.Figure:
    report = json.loads((ROOT / "benchmarks/results/beamforming-cpu.json").read_text(encoding="utf-8"))
    rows = report["rows"]
    figure, (ours, others) = plt.subplots(1, 2, figsize=(9, 4.3), sharey=True)
    for antennas, colour in zip((4, 10, 20), ("#b2182b", "#2166ac", "#1b7837"), strict=True):
        some = _rows(rows, antennas)
        clients = [row["clients"] for row in some]
        ours.plot(clients, [row["share_mean"] for row in some], "o-", color=colour, label=f"M = {antennas}")
        ours.plot(clients, [row["share_worst"] for row in some], "--", color=colour, linewidth=1)
    ours.plot([], [], "k--", linewidth=1, label="worst of 1000")
    ours.set(xlabel="clients n", ylabel="share of the bound", ylim=(0, 1.03))
    ours.set_title("max_min, M antennas", fontsize=10)
    ours.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    some = _rows(rows, 10)
    for name, label, colour, style in (
        ("share_mean", "max_min", "#2166ac", "o-"),
        ("sca_share", "SCA, from the eigenvector", "#762a83", "s-"),
        ("sca_elsewhere_share", "SCA, from a random beam", "#762a83", "s:"),
        ("sdr_share", "SDR + 200 draws", "#e08214", "^-"),
        ("eigenvector_share", "principal eigenvector", "#7f7f7f", "v-"),
    ):
        others.plot(
            [row["clients"] for row in some], [row[name] for row in some], style, color=colour, label=label
        )
    others.set(xlabel="clients n")
    others.set_title("methods, M = 10, means", fontsize=10)
    others.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    print(
        "clients antennas: share of the bound mean, worst; ms a problem; SCA, SCA elsewhere, SDR, eigenvector"
    )
    for row in rows:
        print(
            f"  {row['clients']:3d} {row['antennas']:3d}: {row['share_mean']:.4f} {row['share_worst']:.3f}; "
            f"{row['cpu_ms_batched']:.2f}; {row['sca_share']:.3f} {row['sca_elsewhere_share']:.3f} "
            f"{row['sdr_share']:.3f} {row['eigenvector_share']:.3f}"
        )
    return figure


def growing_arrays() -> None:
    """How often a search on one antenna more ends below the search without it."""
    lower, worst, compared = 0, 0.0, 0
    for clients in (5, 15):
        channels = Rayleigh().draw((400, clients), 12, SEEDS.torch("growing", clients))
        values = torch.stack([max_min(channels[..., :antennas])[1] for antennas in range(1, 13)])
        losses = 1 - values[1:] / values[:-1]
        lower += int((losses > 1e-9).sum())
        worst = max(worst, losses.max().item())
        compared += losses.numel()
    print(f"one antenna more: {lower} of {compared} values are lower, by {100 * worst:.2f} % at most")


def _rows(rows: Sequence[dict[str, float]], antennas: int) -> list[dict[str, float]]:
    return sorted((row for row in rows if row["antennas"] == antennas), key=lambda row: row["clients"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plt.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "histfl"})
    for draw in (latency, accuracy, shares):
        figure = draw()
        figure.tight_layout()
        path = options.out / f"wireless-{draw.__name__}.{options.format}"
        figure.savefig(path, dpi=110, metadata={"Date": None} if options.format == "svg" else None)
    growing_arrays()


if __name__ == "__main__":
    main()
