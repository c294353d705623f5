"""Plots of the benchmark's JSON files (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {
    "loop": "#999999",
    "reference": "#67a9cf",
    "vectorised": "#2166ac",
    "flower": "#ef8a62",
    "pfl": "#b2182b",
    "fedjax": "#b35806",
}
MODELS = {"mlp": "MLP", "lenet5": "LeNet-5", "resnet18": "ResNet-18"}


def title(row: dict[str, Any]) -> str:
    case = "full" if row["case"] == "full" else f"HIST, {row['cells']} cells"
    return f"{MODELS[row['model']]}, {case}"


def plot_comparison(report: dict[str, Any], path: Path) -> None:
    plt = _pyplot()
    rows = report["rows"]
    figure, panels = plt.subplots(
        1, len(rows), figsize=(3.2 * len(rows), 2.8), squeeze=False, layout="constrained"
    )
    for axes, row in zip(panels[0], rows, strict=True):
        speeds = {name: found.get("steps_per_second", 0) for name, found in row["contenders"].items()}
        bars = axes.barh(list(speeds), list(speeds.values()), color=[COLOURS[name] for name in speeds])
        labels = [f" {speed:,.0f}" if speed else " left out" for speed in speeds.values()]
        axes.bar_label(bars, labels=labels, fontsize=8)
        axes.set(
            title=title(row), xlabel="client steps a second", xlim=(0, 1.3 * max(speeds.values(), default=1))
        )
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def plot_scaling(report: dict[str, Any], path: Path) -> None:
    plt = _pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.0), layout="constrained")
    for axes, (curve, key, scale, label) in zip(
        panels,
        (
            ("participants", "best_seconds", 1.0, "seconds a round"),
            ("population", "best_seconds", 1.0, "seconds a round"),
            ("population", "memory_bytes", 1e-6, "memory, MB"),
        ),
        strict=True,
    ):
        clients = [point["clients"] for point in report[curve]]
        values = [scale * (point[key] or 0) for point in report[curve]]
        axes.plot(clients, values, "o-", color=COLOURS["vectorised"])
        axes.set(xscale="log", ylabel=label)
        if curve == "participants":
            axes.set(yscale="log", xlabel="participants")
        else:
            axes.set(
                ylim=(0, 1.3 * max(values)),
                xlabel=f"clients, of whom {report[curve][0]['participants']:,} take part",
            )
        axes.grid(alpha=0.3)
    figure.savefig(path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "histfl"  # the same file from the same numbers
    import matplotlib.pyplot as plt

    return plt
