"""One self-contained page that compares runs: opens from disk, asks nothing of the network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
from plotly.subplots import make_subplots

from histfl.experiments.records import Record

# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
AXES = (
    ("megabytes_per_client", "megabytes sent by a client"),
    ("simulated_seconds", "simulated seconds"),
    ("round", "global rounds"),
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #ccc; }}
td {{ text-align: right; }} td:first-child, th:first-child {{ text-align: left; }}
</style></head><body>
<h1>{title}</h1>
<p>{answer}</p>
{table}
{figure}
</body></html>
"""


def comparison_rows(summaries: Mapping[str, Record]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the comparison table: what each run's accuracy cost."""
    targets = sorted({target for summary in summaries.values() for target in summary["to_target"]}, key=float)
    header = ["run", "accuracy", "MB a client"]
    for target in targets:
        percent = f"{float(target):.0%}"
        header += [f"rounds to {percent}", f"MB to {percent}", f"seconds to {percent}"]
    rows = []
    for name, summary in summaries.items():
        row = [name, f"{summary['final_accuracy']:.3f}", f"{summary['megabytes_per_client']:.1f}"]
        for target in targets:
            reached = summary["to_target"].get(target)
            row += (
                [
                    str(reached["round"]),
                    f"{reached['megabytes_per_client']:.1f}",
                    f"{reached['simulated_seconds']:.3g}",
                ]
                if reached
                else ["not reached"] * 3
            )
        rows.append(row)
    return header, rows


def answer_sentence(summaries: Mapping[str, Record]) -> str:
    """The comparison in a sentence: the cheapest run against hierarchical FedAvg at the highest target."""
    baseline = next((s for s in summaries.values() if s["method"] == "hfedavg"), None)
    others = {name: s for name, s in summaries.items() if s["method"] != "hfedavg"}
    if baseline is None or not others:
        return "Accuracy against what it cost."
    for target in sorted(baseline["to_target"], key=float, reverse=True):
        base = baseline["to_target"][target]
        reached = {name: s["to_target"].get(target) for name, s in others.items()}
        costs = {name: r["megabytes_per_client"] for name, r in reached.items() if r}
        if base and costs:
            best = min(costs, key=lambda name: costs[name])
            return (
                f"To {float(target):.0%} accuracy, {best} sends {costs[best]:.1f} MB a client where hierarchical "
                f"FedAvg sends {base['megabytes_per_client']:.1f} MB: "
                f"{base['megabytes_per_client'] / costs[best]:.1f} times less."
            )
    return "No target accuracy was reached by both hierarchical FedAvg and another run."


def write_report(
    path: Path, title: str, runs: Mapping[str, Sequence[Record]], summaries: Mapping[str, Record]
) -> None:
    """Write the page for `runs` (the records of each) to `path`."""
    header, rows = comparison_rows(summaries)
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    page = PAGE.format(
        title=html.escape(title),
        answer=html.escape(answer_sentence(summaries)),
        table=f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>",
        figure=plotly.io.to_html(accuracy_figure(runs), full_html=False, include_plotlyjs=True),
    )
    path.write_text(page, encoding="utf-8")


def accuracy_figure(runs: Mapping[str, Sequence[Record]]) -> go.Figure:
    """Test accuracy against megabytes, simulated seconds and rounds, a line a run."""
    figure = make_subplots(rows=len(AXES), cols=1, vertical_spacing=0.09)
    for index, (name, records) in enumerate(runs.items()):
        for row, (key, _) in enumerate(AXES, start=1):
            line = go.Scatter(
                x=[record[key] for record in records],
                y=[record["accuracy"] for record in records],
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                mode="lines",
                line={"color": COLOURS[index % len(COLOURS)]},
            )
            figure.add_trace(line, row=row, col=1)
    for row, (_, label) in enumerate(AXES, start=1):
        figure.update_xaxes(title_text=label, rangemode="tozero", row=row, col=1)
        figure.update_yaxes(title_text="test accuracy", row=row, col=1)
    figure.update_layout(height=1100, template="plotly_white", margin={"t": 30})
    return figure
