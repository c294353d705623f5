"""Draws docs/sizing.svg from what `histfl plan` prints: python docs/draw_sizing.py (needs matplotlib)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt

COMMAND = "histfl plan paper --vary cells=2,4,6,8 --json"
COLOURS = {"uniform": ("#56B4E9", "#0072B2"), "optimised": ("#E69F00", "#D55E00"), "hfedavg": ("", "#009E73")}


def main() -> None:
    answer = json.loads(subprocess.run(COMMAND.split(), check=True, capture_output=True, text=True).stdout)
    plt.rcParams |= {
        "svg.hashsalt": "sizing",
        "svg.fonttype": "none",
    }  # the same picture, the same small file
    figure, (bars, curves) = plt.subplots(1, 2, figsize=(9, 4))
    for offset, (name, parts) in zip((-0.2, 0.2), answer["seconds_by_part"].items(), strict=True):
        places = [cell + offset for cell in range(len(parts["compute"]))]
        light, dark = COLOURS[name]
        bars.bar(places, parts["compute"], 0.4, color=light, label=f"{name}: compute")
        bars.bar(places, parts["uplink"], 0.4, bottom=parts["compute"], color=dark, label=f"{name}: uplink")
        bars.axhline(max(cell["seconds"] for cell in answer["cells"][name]), color=dark, linestyle=":")
    bars.set(xlabel="cell", ylabel="seconds a round", title="FDMA, 4 cells", xticks=range(len(places)))
    bars.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    points = answer["vary"]["points"]
    for uplink, style in (("oma", "-"), ("aircomp", "--")):
        for arm in ("hfedavg", "uniform", "optimised"):
            seconds = [point["seconds_per_round"][f"{uplink}.{arm}"] for point in points]
            cells = [point["value"] for point in points]
            curves.plot(cells, seconds, style, marker="o", color=COLOURS[arm][1], label=f"{uplink}, {arm}")
    curves.set(xlabel="cells", title="60 clients in more and more cells", yscale="log", xticks=cells)
    curves.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("sizing.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
