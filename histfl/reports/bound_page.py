"""A run's bound in words, tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from histfl.reports.bound import Bound
from histfl.reports.html import write_plots
from histfl.reports.plots import Axis, Line, Plot
from histfl.reports.style import COLOURS

TERM_COLOURS = tuple(colour for colour in COLOURS if colour != "#000000")  # black is what was measured


def tables(bound: Bound) -> list[Table]:
    """The terms, the constants they were computed from, and the conditions on the learning rate."""
    final = bound.final
    terms = Table(f"term of Theorem {bound.setting.theorem}", "formula", "value", "share", box=None)
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
    if bound.setting.over_the_air:
        constants.add_row("MSE, summed over cells", f"{final.aggregation_error:.4g}", "mean")
    conditions = Table("learning rate at most", "limit", "", box=None)
    for condition in bound.conditions:
        binding = "binding" if condition == bound.binding else ""
        conditions.add_row(condition.formula, f"{condition.limit:.3g}", binding)
    return [terms, constants, conditions]


def sentences(bound: Bound) -> list[str]:
    """What the tables say: which term rules, what the bound is worth, what the step sizes allow."""
    final, setting = bound.final, bound.setting
    steps, rounds = bound.largest_local_steps, bound.largest_edge_rounds
    limits = " and ".join(sorted({steps.binding, rounds.binding}))
    largest = max(final.terms, key=lambda term: term.value)
    return [
        f"The term '{largest.name}' dominates: {_percent(largest.value, final.bound)} of the bound.",
        _worth(bound),
        _step_sizes(bound),
        f"Learning rate {setting.learning_rate:g} leaves at most {steps.value} local steps with {setting.edge_rounds} edge "
        f"rounds, and at most {rounds.value} edge rounds with {setting.local_steps} local steps ({limits}).",
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
    rate, limit = bound.setting.learning_rate, bound.binding.limit
    if bound.holds:
        return f"The learning rate {rate:g} meets all conditions; the tightest allows {limit:.3g}."
    return (
        f"The learning rate {rate:g} is {rate / limit:.3g} times the largest one for which the theorem holds, "
        f"{limit:.3g} ({bound.binding.formula}): nothing is proven for this run."
    )


def draw_bound(bound: Bound, path: Path) -> None:
    """The measured gradient and every term over the rounds, as one self-contained page."""
    title = f"Theorem {bound.setting.theorem} on {bound.run.name}"
    write_plots(path, title, [bound_plot(bound)], 650, subtitle=_worth(bound))


def bound_plot(bound: Bound, title: str = "", about: str = "") -> Plot:
    """The bound of a run that ended after each recorded round, term by term; a logarithmic scale."""
    history = bound.history
    rounds = np.array([point.rounds for point in history], dtype=np.float64)

    def line(name: str, values: Sequence[float], colour: str, width: float, dash: str = "solid") -> Line:
        # A logarithmic axis has no place for the zeros and the negative values of unbiased estimates.
        shown = np.array([value if value > 0 else np.nan for value in values])
        return Line(name, rounds, shown, colour, dash, width, markers=True)

    lines = [
        line("measured ||grad f||^2", [p.gradient_norm for p in history], "#000000", 1),
        line("its mean so far", [p.measured for p in history], "#000000", 3),
        line("the bound", [p.bound for p in history], "#999999", 3, "dash"),
    ]
    for index, term in enumerate(bound.final.terms):
        values = [point.terms[index].value for point in history]
        lines.append(line(term.name, values, TERM_COLOURS[index % len(TERM_COLOURS)], 1.5))
    y = Axis("squared gradient norm", scale="powers")
    return Plot(title, about, Axis("global rounds", from_zero=True), y, tuple(lines))
