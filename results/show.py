"""Print the tables of the stored results: `python results/show.py` from the repository's root."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent


def runs(name: str) -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = json.loads((HERE / f"{name}.json").read_text())["runs"]
    return stored


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A Markdown table."""
    columns = list(header)
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def reached(stored: list[dict[str, Any]], target: str = "0.8") -> dict[str, str]:
    """Mean cost to the target over seeds, and the spread of the rounds."""
    points = [run["summary"]["to_target"][target] for run in stored]
    if None in points:
        return {
            "rounds": f"not reached by {points.count(None)} of {len(points)}",
            "megabytes": "",
            "seconds": "",
        }
    rounds = [point["round"] for point in points]
    return {
        "rounds": f"{mean(rounds):.1f} ({min(rounds)}-{max(rounds)})",
        "megabytes": f"{mean(point['megabytes_per_client'] for point in points):.1f}",
        "seconds": f"{mean(point['simulated_seconds'] for point in points):.3g}",
    }


def methods() -> None:
    print("MLP on Fashion-MNIST to 80 %: mean of seeds 1-3 (range)\n")
    groups = {"hierarchical FedAvg": "hfedavg", "HIST": "hist"}
    by_method = {
        name: reached([run for run in runs("fashion-mnist-mlp") if run["summary"]["method"] == method])
        for name, method in groups.items()
    }
    rows = [(name, *costs.values()) for name, costs in by_method.items()]
    table(("method", "global rounds", "MB a client", "simulated seconds (FDMA)"), rows)


def rates(model: str, file: str) -> None:
    print(
        f"{model} on Fashion-MNIST to 80 % by learning rate: mean rounds of seeds 1-3 (range), MB a client\n"
    )
    rows = []
    stored = runs(file)
    for rate in sorted({run["learning_rate"] for run in stored}):
        cells = [f"{rate:g}"]
        for method in ("hfedavg", "hist"):
            of_method = [
                run for run in stored if (run["learning_rate"], run["summary"]["method"]) == (rate, method)
            ]
            costs = reached(of_method)
            cells += [costs["rounds"], costs["megabytes"]]
        rows.append(cells)
    table(("learning rate", "HFedAvg: rounds", "MB", "HIST: rounds", "MB"), rows)


def sizes() -> None:
    print("HIST on the paper's two-speed network to 80 %: mean of seeds 1-3 (range)\n")
    rows = []
    for uplink in ("fdma", "aircomp"):
        for policy in ("uniform", "optimised"):
            stored = [
                run
                for run in runs("sizing-fashion-mnist")
                if (run["summary"]["uplink"], run["summary"]["sizes"]) == (uplink, policy)
            ]
            costs = reached(stored)
            rows.append((uplink, policy, costs["rounds"], costs["seconds"]))
    table(("uplink", "sizes", "global rounds", "simulated seconds"), rows)


def noise() -> None:
    print("HIST over the air, the paper's power and no normalisation, 40 rounds of H = 40\n")
    stored = sorted(runs("aircomp-snr"), key=lambda run: (run["snr_db"] is not None, -(run["snr_db"] or 0)))
    rows = [
        (
            "error-free (FDMA)" if run["snr_db"] is None else f"{run['snr_db']:g} dB",
            f"{run['accuracy'][-1]:.3f}",
            f"{max(run['accuracy']):.3f}",
            f"{run['loss'][-1]:.2f}",
        )
        for run in stored
    ]
    table(("SNR", "final accuracy", "best accuracy", "final test loss"), rows)


def trials() -> None:
    print("ResNet-18 on CIFAR-10, four cells, all non-i.i.d., in other settings than Table II's, one seed\n")
    rows = [
        (
            run["method"],
            f"{run['norm']} normalisation",
            f"{run['learning_rate']:g}",
            f"{run.get('weight_decay', 0):g}",
            f"{run['clip_norm']:g}" if "clip_norm" in run else "none",
            f"{max(run['accuracy']):.3f} ({1 + run['accuracy'].index(max(run['accuracy']))})",
            f"{mean(run['accuracy'][-3:]):.3f} ({run['rounds']})",
        )
        for run in runs("resnet18-trials")
    ]
    header = (
        "method",
        "layers",
        "learning rate",
        "weight decay",
        "clip norm",
        "highest (round)",
        "end (round)",
    )
    table(header, rows)


def of_arm(file: str, arm: str) -> list[dict[str, Any]]:
    """The runs of an arm of methods.py, whose names end in their seeds."""
    return [run for run in runs(file) if run["name"].rpartition("-s")[0] == arm]


def windows() -> None:
    print(
        "MLP on Fashion-MNIST, four cells, equal bytes, scale 1, learning rate 0.01: mean of the seeds (range)\n"
    )
    rows = []
    for arm in dict.fromkeys(run["name"].rpartition("-s")[0] for run in runs("methods")):
        stored = of_arm("methods", arm)
        final = [run["accuracy"][-1] for run in stored]
        megabytes = mean(run["summary"]["megabytes_per_client"] for run in stored)
        spread = f"{mean(final):.3f} ({min(final):.3f}-{max(final):.3f})"
        goals = [reached(stored, target)["rounds"] for target in ("0.7", "0.75", "0.8")]
        rows.append((arm, len(stored), f"{megabytes:.1f}", spread, *goals))
    table(("arm", "seeds", "MB a client", "accuracy", "rounds to 70 %", "75 %", "80 %"), rows)


def scales() -> None:
    print("MLP on Fashion-MNIST by scale: mean rounds of the seeds (range), MB a client\n")
    plain = {
        method: [run for run in runs("learning-rates") if run["name"].startswith(f"{method}-lr0.01-")]
        for method in ("hfedavg", "hist")
    }
    arms = [
        ("HFedAvg", "0.01", "80 %", plain["hfedavg"], "0.8"),
        ("HIST", "0.01", "80 %", plain["hist"], "0.8"),
        ("HIST, scale 1", "0.01", "80 %", of_arm("methods", "hist"), "0.8"),
        ("HFedAvg", "0.16", "84 %", of_arm("scale", "hfedavg-lr0.16"), "0.84"),
        ("HIST", "0.08", "84 %", of_arm("scale", "hist-lr0.08"), "0.84"),
        ("HIST, scale 0.5", "0.04", "84 %", of_arm("scale", "hist-scale0.5-lr0.04"), "0.84"),
    ]
    rows = []
    for name, rate, goal, stored, target in arms:
        if stored:
            costs = reached(stored, target)
            rows.append((name, rate, goal, len(stored), costs["rounds"], costs["megabytes"]))
    table(("method", "learning rate", "to", "seeds", "rounds", "MB"), rows)


def compression() -> None:
    print("MLP on Fashion-MNIST, learning rate 0.08, 30 rounds: mean of seeds 1-3 (range)\n")
    rows = []
    for method in ("hfedavg", "hist"):
        for codec in ("plain", "quantise"):
            stored = [
                run["summary"]
                for run in runs("compression")
                if (run["codec"], run["summary"]["method"]) == (codec, method)
            ]
            final = [summary["final_accuracy"] for summary in stored]
            costs = reached([{"summary": summary} for summary in stored])
            rows.append(
                (
                    method,
                    codec,
                    f"{mean(final):.4f} ({min(final):.4f}-{max(final):.4f})",
                    f"{mean(summary['megabytes_per_client'] for summary in stored):.2f}",
                    f"{mean(summary['simulated_seconds'] for summary in stored):.1f}",
                    costs["rounds"],
                    costs["megabytes"],
                )
            )
    header = (
        "method",
        "codec",
        "final accuracy",
        "MB a client",
        "simulated s",
        "rounds to 80 %",
        "MB to 80 %",
    )
    table(header, rows)


def client_steps() -> None:
    print("MLP on Fashion-MNIST, 20 clients, learning rate 0.05, 40 rounds: mean of the seeds (range)\n")
    rows = []
    for arm in dict.fromkeys(run["name"].rpartition("-s")[0] for run in runs("client-steps")):
        stored = of_arm("client-steps", arm)
        final = [mean(run["accuracy"][-3:]) for run in stored]
        spread = f"{mean(final):.3f} ({min(final):.3f}-{max(final):.3f})"
        goals = [reached(stored, target)["rounds"] for target in ("0.75", "0.8")]
        rows.append((*arm.split("-"), len(stored), spread, *goals))
    header = ("method", "clients' steps", "seeds", "accuracy, last three rounds", "rounds to 75 %", "80 %")
    table(header, rows)


if __name__ == "__main__":
    methods()
    client_steps()
    windows()
    scales()
    rates("MLP", "learning-rates")
    rates("LeNet-5", "learning-rates-lenet5")
    sizes()
    noise()
    compression()
    trials()
