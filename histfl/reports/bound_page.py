"""A run's bound in words, tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from rich.table import Table

from histfl.reports import COLOURS
from histfl.reports.bound import Bound
from histfl.reports.html import write_figure

TERM_COLOURS = tuple(colour for colour in COLOURS if colour != "#000000")  # black is what was measured


def tables(bound: Bound) -> list[Table]:
    """The terms, the constants they were computed from, and the conditions on the learning rate."""
    final = bound.final
    terms = Table(f"term of Theorem {bound.run.theorem}", "formula", "value", "share", box=None)
    for term in final.terms:
        terms.add_row(term.name, term.formula, f"{term.value:.3g}", _percent(term.value, final.bound))
    terms.add_row("the bound", "", f"{final.bound:.3g}", "")
    terms.add_row("measured", "mean ||grad f||^2", f"{final.measured:.3g}", "")
    c = final.constants
    constants = Table("constant", "estimate", "over the recorded rounds", box=None)
    for name, value, how in (
        ("L", c.smoothness, "largest"),
        ("sigma^2", c.gradient_variance, "mean, of the cell where it is largest"),
        ("delta1^2", c.cell_divergence, "mean"),
        ("delta2^2", c.client_divergence, "mean, of the cell where it is largest"),
        ("||x||^2", c.model_norm, "mean"),
        ("f(x0) - f*", c.initial_gap, "loss of the first model"),
        ("N d_max / d", final.imbalance, "mean, of the layer cut most unevenly"),
    ):
        constants.add_row(name, f"{value:.4g}", how)
    if bound.run.over_the_air:
        constants.add_row("MSE, summed over cells", f"{final.aggregation_error:.4g}", "mean")
    conditions = Table("learning rate at most", "limit", "", box=None)
    for condition in bound.conditions:
        binding = "binding" if condition == bound.binding else ""
        conditions.add_row(condition.formula, f"{condition.limit:.3g}", binding)
    return [terms, constants, conditions]


def sentences(bound: Bound) -> list[str]:
    """What the tables say: which term rules, what the bound is worth, what the step sizes allow."""
    final, run = bound.final, bound.run
    steps, rounds = bound.largest_local_steps, bound.largest_edge_rounds
    limits = " and ".join(sorted({steps.binding, rounds.binding}))
    largest = max(final.terms, key=lambda term: term.value)
    return [
        f"The term '{largest.name}' dominates: {_percent(largest.value, final.bound)} of the bound.",
        _worth(bound),
        _step_sizes(bound),
        f"Learning rate {run.learning_rate:g} leaves at most {steps.value} local steps with {run.edge_rounds} edge "
        f"rounds, and at most {rounds.value} edge rounds with {run.local_steps} local steps ({limits}).",
        "L is the largest curvature met at the recorded models, a lower estimate: the true bound is larger and "
        "the true limits are lower.",
        *bound.caveats,
    ]


def _percent(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return f"{share:.2%}" if share >= 1e-4 or share == 0 else "<0.01%"


def _worth(bound: Bound) -> str:
    ratio = bound.final.ratio
    if ratio is None:
        return "The bound is vacuous here: the measured gradient cannot be told from zero."
    if bound.vacuous:
        return (
            f"The bound is vacuous here: {ratio:.3g} times the measured gradient. Compare its terms, and do not "
            "predict or tune training with it."
        )
    if ratio >= 1:
        return f"The bound is {ratio:.3g} times the measured gradient."
    return (
        f"The measured gradient is {1 / ratio:.3g} times the bound: the estimated constants, or the conditions, "
        "do not hold along this run."
    )


def _step_sizes(bound: Bound) -> str:
    rate, limit = bound.run.learning_rate, bound.binding.limit
    if bound.holds:
        return f"The learning rate {rate:g} meets all conditions; the tightest allows {limit:.3g}."
    return (
        f"The learning rate {rate:g} is {rate / limit:.3g} times the largest one for which the theorem holds, "
        f"{limit:.3g} ({bound.binding.formula}): nothing is proven for this run."
    )


def draw_bound(bound: Bound, path: Path) -> None:
    """The measured gradient and every term over the rounds, as one self-contained page."""
    write_figure(path, bound_figure(bound))


def bound_figure(bound: Bound) -> go.Figure:
    """The bound of a run that ended after each recorded round, term by term; a logarithmic scale."""
    figure = go.Figure()
    history = bound.history

    def line(name: str, values: Sequence[float], style: dict[str, object]) -> None:
        # A logarithmic axis has no place for the zeros and the negative values of unbiased estimates.
        shown = [value if value > 0 else None for value in values]
        rounds = [point.rounds for point in history]
        figure.add_scatter(x=rounds, y=shown, name=name, mode="lines+markers", line=style)

    line("measured ||grad f||^2", [p.gradient_norm for p in history], {"color": "#000000", "width": 1})
    line("its mean so far", [p.measured for p in history], {"color": "#000000", "width": 3})
    line("the bound", [p.bound for p in history], {"color": "#999999", "width": 3, "dash": "dash"})
    for index, term in enumerate(bound.final.terms):
        values = [point.terms[index].value for point in history]
        line(term.name, values, {"color": TERM_COLOURS[index % len(TERM_COLOURS)], "width": 1.5})
    figure.update_layout(
        template="plotly_white",
        height=650,
        title={
            "text": f"Theorem {bound.run.theorem} on {bound.run.folder.name}",
            "subtitle": {"text": _worth(bound)},
        },
        xaxis={"title": "global rounds", "rangemode": "tozero"},
        yaxis={"title": "squared gradient norm", "type": "log", "exponentformat": "power"},
    )
    return figure
