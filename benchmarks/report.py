"""Tables from the benchmark's JSON files.

python benchmarks/report.py FILE.json     the table and the plot beside a file
python benchmarks/report.py --docs        docs/performance.md with what benchmarks/results holds
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plots import plot_comparison, plot_scaling, title

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- from here: python benchmarks/report.py --docs -->", "<!-- to here -->"


def write_report(path: Path) -> str:
    """The table (.md) and the plot (.svg) beside the JSON file; returns the table."""
    report = json.loads(path.read_text("utf-8"))
    comparison = "rows" in report
    text = _comparison(report) if comparison else _scaling(report)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    (plot_comparison if comparison else plot_scaling)(report, path.with_suffix(".svg"))
    return text


def update_docs() -> None:
    """The part of docs/performance.md between the marks, from all results there are."""
    parts = []
    for path in sorted(RESULTS.glob("bench-cpu*.json")) + sorted(RESULTS.glob("scaling-*.json")):
        report = json.loads(path.read_text("utf-8"))
        shutil.copy(path.with_suffix(".svg"), DOCS / "figures" / f"{path.stem}.svg")
        if "rows" in report:
            peak = max(row["gemm_operations_per_second"] for row in report["rows"])
            text, what = (
                [_machine(report), _job(report, peak), "\n".join(_summary(report, peak))],
                "Client steps a second",
            )
        else:
            text, what = (
                [_scaling(report).partition("\n")[2].strip().replace("## ", "### ")],
                "Seconds a round and memory",
            )
        parts += [*text, f"![{what}](figures/{path.stem}.svg)"]
    if on_gpu := [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("bench-cuda*.json"))]:
        parts.append("\n".join(_gpu(on_gpu)))
    page = DOCS / "performance.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page.name} has no lines {BEGIN} and {END}; put them where the figures go")
    page.write_text("\n\n".join([before + BEGIN, *parts, END]) + after, encoding="utf-8")


def _gpu(reports: Sequence[dict[str, Any]]) -> list[str]:
    """The vectorised engine on a GPU, one row a job of all files."""
    header = "job", "clients", "precision", "client steps/s", "images/s", "of the GPU's rate", "memory, MB"
    lines = ["### On a GPU", "", _table_row(header), "|---" * len(header) + "|"]
    jobs = [(report, row) for report in reports for row in report["rows"]]
    for report, row in sorted(jobs, key=lambda job: (title(job[1]), job[1]["clients"], job[1]["precision"])):
        found = row["contenders"]["vectorised"]
        peak = max(other["gemm_operations_per_second"] for other in report["rows"])
        cells = [
            title(row),
            f"{row['clients']:,}",
            row["precision"],
            f"{found['steps_per_second']:,.0f}",
            f"{found['images_per_second']:,.0f}",
            f"{found['operations_per_second'] / peak:.0%}",
            f"{found['cuda_bytes'] / 1e6:,.0f}",
        ]
        lines.append(_table_row(cells))
    rates = {row["precision"]: row["gemm_operations_per_second"] / 1e12 for _, row in jobs}
    shown = ", ".join(f"{rate:,.0f} TFLOP/s in {precision}" for precision, rate in sorted(rates.items()))
    first = jobs[0][1]
    lines += [
        "",
        f"{first['cells']} cells, batch {first['batch_size']}, {first['local_steps']} local steps, {first['edge_rounds']} "
        "edge rounds; whole global rounds, the best of a few, without the evaluation. The GPU's own rate is that of one "
        f"large product: {shown}.",
        "",
        *dict.fromkeys(f"- {_machine(report)}" for report in reports),
    ]
    return lines


def _machine(report: dict[str, Any]) -> str:
    where = report["gpu"] or f"{report['cores']} cores of {report['processor'] or report['machine']}"
    rows = report.get("rows", ())
    commands = dict.fromkeys([row.get("command", report["command"]) for row in rows] or [report["command"]])
    shown = ", ".join(f"`{command}`" for command in commands)
    return f"{where}, torch {report['torch']}, Python {report['python']}; {shown}."


def _comparison(report: dict[str, Any]) -> str:
    """A table a job: speed, ratio of the vectorised engine to it, share of the machine's product rate, memory."""
    peak = max(row["gemm_operations_per_second"] for row in report["rows"])
    lines = [
        "# The same job, side by side",
        "",
        _machine(report),
        "",
        _job(report, peak),
        "",
        *_summary(report, peak),
    ]
    for row in report["rows"]:
        ours = row["contenders"].get("vectorised", {}).get("steps_per_second")
        lines += [
            "",
            f"## {title(row)}",
            "",
            f"{row['parameters']:,} parameters a client, {row['operations_per_step'] / 1e6:,.1f} MFLOP a client step, "
            f"{row['data']}.",
            "",
            "| contender | client steps/s | images/s | vectorised is faster by | client steps/s of processor time | "
            "of the machine's rate | memory, MB | difference of the models |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, found in row["contenders"].items():
            if "left_out" in found:
                lines.append(f"| {name} | left out: {found['left_out']} | | | | | | |")
                continue
            speed = found["steps_per_second"]
            memory = found["cuda_bytes"] or found["memory_bytes"]
            cells = [
                name,
                f"{speed:,.0f}",
                f"{found['images_per_second']:,.0f}",
                f"{ours / speed:.2f}" if ours else "",
                f"{found['steps_per_cpu_second']:,.0f}" if found["steps_per_cpu_second"] else "",
                f"{found['operations_per_second'] / peak:.1%}",
                f"{memory / 1e6:,.0f}" if memory else "",
                f"{found['largest_difference']:.1g}",
            ]
            lines.append(_table_row(cells))
    return "\n".join(lines) + "\n"


def _job(report: dict[str, Any], peak: float) -> str:
    first = report["rows"][0]
    memory = "that of the whole process tree in one more edge round, pages that processes share counted once"
    if report["gpu"]:
        memory = "what tensors took on the GPU at the most"
    return (
        f"{first['clients']:,} clients in {first['cells']} cells, batch {first['batch_size']}, {first['local_steps']} "
        f"local steps, {first['edge_rounds']} edge rounds, {first['precision']}. Best turn of each. The machine's own "
        f"rate, of one large product: {peak / 1e9:,.0f} GFLOP/s. Memory is {memory}."
    )


def _summary(report: dict[str, Any], peak: float) -> list[str]:
    """One row a job: client steps a second of all, how many times theirs the vectorised engine does, and its
    images a second and share of the machine's rate (without it, the fastest one's)."""
    rows = report["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    others = [name for name in names if name != "vectorised"] if "vectorised" in names else []
    header = [
        "client steps/s",
        *names,
        *(f"vectorised / {name}" for name in others),
        "images/s",
        "of the machine's rate",
    ]
    lines = [_table_row(header), "|---" * len(header) + "|"]
    for row in rows:
        speeds = {name: row["contenders"].get(name, {}).get("steps_per_second") for name in names}
        ours = speeds.get("vectorised")
        best = ours or max(filter(None, speeds.values()), default=0)
        lines.append(
            _table_row(
                [
                    title(row),
                    *(f"{speed:,.0f}" if speed else "left out" for speed in speeds.values()),
                    *(f"{ours / speeds[name]:.2f}" if ours and speeds[name] else "" for name in others),
                    f"{best * row['batch_size']:,.0f}",
                    f"{best * row['operations_per_step'] / peak:.0%}",
                ]
            )
        )
    return lines


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _scaling(report: dict[str, Any]) -> str:
    lines = ["# Scaling", "", _machine(report)]
    intros = {
        "participants": "## Against the participants of a round\n\nAn MLP 784-300-10 in four cells (HIST); all clients "
        "take part, one edge round of {local_steps} local steps, batch {batch_size}.",
        "population": "## Against the population\n\n{participants:,} participants a round in {active_cells} cells, "
        "sampled from the population; an MLP {features}-{hidden}-10 (HIST), one edge round of {local_steps} local steps, "
        "batch {batch_size}. Memory at the most, after the first round.",
    }
    for curve, intro in intros.items():
        lines += ["", intro.format(**report[curve][0]), ""]
        lines += [
            "| clients | cells | participants | seconds a round | ms a participant | client steps/s | memory, MB | "
            "set-up, s |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for point in report[curve]:
            seconds, memory = point["best_seconds"], point["cuda_bytes"] or point["memory_bytes"]
            cells = [
                f"{point['clients']:,}",
                f"{point['cells']:,}",
                f"{point['participants']:,}",
                f"{seconds:.3f}",
                f"{1e3 * seconds / point['participants']:.2f}",
                f"{point['participants'] * point['local_steps'] / seconds:,.0f}",
                f"{memory / 1e6:,.0f}" if memory else "",
                f"{point['setup_seconds']:.1f}",
            ]
            lines.append(_table_row(cells))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="tables and plots from the benchmark's JSON files")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "file", nargs="?", type=Path, metavar="FILE.json", help="write its table and plot beside it"
    )
    what.add_argument("--docs", action="store_true", help="write docs/performance.md from benchmarks/results")
    given = parser.parse_args()
    if given.docs:
        update_docs()
    elif not given.file.is_file():
        parser.error(f"there is no file {given.file}; name a JSON file of benchmarks/results")
    else:
        print(write_report(given.file))


if __name__ == "__main__":
    main()
