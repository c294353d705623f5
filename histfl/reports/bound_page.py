"""A run's bound in words, tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from histfl.reports import tables as shown
from histfl.reports.bound import Bound
from histfl.reports.html import plots_html, sentences_html, table_html, write_page
from histfl.reports.plots import Axis, Line, Plot
from histfl.reports.style import BLACK, TERM_COLOURS
from histfl.runs.arms import settings_in_words

CONSTANTS = (
    "The constants, as estimated in the run: L is the smoothness, sigma^2 the variance of a batch's gradient, delta1^2 and "
    "delta2^2 how far cells' and clients' gradients are apart, x the model, f its loss. N is the number of cells, T that "
    "of global rounds, E of edge rounds, H of local steps; N~ sums 1 / clients over the cells; gamma is the learning rate."
)


def tables(bound: Bound) -> list[Table]:
    """The terms, the constants they were computed from, and the conditions on the learning rate."""
    return [shown.in_terminal(make(bound)) for make in (terms_table, constants_table, conditions_table)]


def constants_table(bound: Bound) -> shown.Table:
    """The constants that the terms were computed from."""
    final = bound.final
    c = final.constants
    lines = [
        ("L", c.smoothness, "largest"),
        ("sigma^2", c.gradient_variance, "mean, of the cell where it is largest"),
        ("delta1^2", c.cell_divergence, "mean"),
        ("delta2^2", c.client_divergence, "mean, of the cell where it is largest"),
        ("||x||^2", c.model_norm, "mean"),
        ("f(x0) - f*", c.initial_gap, "loss of the first model"),
        ("N d_max / d", final.imbalance, "mean, of the layer cut most unevenly"),
    ]
    if bound.setting.over_the_air:
        lines.append(("MSE, summed over cells", final.aggregation_error, "mean"))
    titles = ("constant", "estimate", "over the recorded rounds")
    rows = (
        (shown.Cell(name, name), shown.Cell(f"{value:.4g}", value), shown.Cell(how, how))
        for name, value, how in lines
    )
    return shown.Table(tuple(shown.Column(title, title) for title in titles), tuple(rows))


def conditions_table(bound: Bound) -> shown.Table:
    """The conditions on the learning rate; the tightest is binding."""
    rows = []
    for condition in bound.conditions:
        binding = "binding" if condition == bound.binding else ""
        limit = shown.Cell(f"{condition.limit:.3g}", condition.limit)
        rows.append((shown.Cell(condition.formula, condition.formula), limit, shown.Cell(binding, binding)))
    titles = ("learning rate at most", "limit", "tightest")
    return shown.Table(tuple(shown.Column(title, title) for title in titles), tuple(rows))


def terms_table(bound: Bound) -> shown.Table:
    """The terms after the last recorded round, beside the bound and what was measured."""
    final = bound.final
    lines = [(t.name, t.formula, t.value, _percent(t.value, final.bound)) for t in final.terms]
    lines += [
        ("the bound", "", final.bound, ""),
        ("measured", "mean ||grad f||^2", final.measured, ""),
    ]
    titles = (f"term of Theorem {bound.setting.theorem}", "formula", "value", "share")
    rows = (
        (
            shown.Cell(name, name),
            shown.Cell(formula, formula),
            shown.Cell(f"{value:.3g}", value),
            shown.Cell(share, value / final.bound if share and final.bound else None),
        )
        for name, formula, value, share in lines
    )
    return shown.Table(tuple(shown.Column(title, title) for title in titles), tuple(rows))


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
    """What the bound is worth, the measured gradient and every term over the rounds, as one self-contained page."""
    about = "The bound of a run that ended after each recorded round, term by term."
    body = (
        plots_html([bound_plot(bound, "The bound and the measured gradient", about)], "bound")
        + sentences_html([sentence for sentence in sentences(bound) if sentence != _worth(bound)])
        + table_html(terms_table(bound), "The terms after the last recorded round.", "terms")
        + table_html(constants_table(bound), CONSTANTS, "constants")
        + table_html(conditions_table(bound), "The conditions on the learning rate.", "conditions")
    )
    write_page(
        path, f"Theorem {bound.setting.theorem} on {settings_in_words(bound.run.name)}", _worth(bound), body
    )


def bound_plot(bound: Bound, title: str = "", about: str = "") -> Plot:
    """The bound of a run that ended after each recorded round, term by term; a logarithmic scale."""
    history = bound.history
    rounds = np.array([point.rounds for point in history], dtype=np.float64)

    def line(name: str, values: Sequence[float], colour: str, width: float, dash: str = "solid") -> Line:
        # A logarithmic axis has no place for the zeros and the negative values of unbiased estimates.
        shown = np.array([value if value > 0 else np.nan for value in values])
        return Line(name, rounds, shown, colour, dash, width, markers=True)

    lines = [
        line("measured ||grad f||^2", [p.gradient_norm for p in history], BLACK, 1),
        line("its mean so far", [p.measured for p in history], BLACK, 3),
        line("the bound", [p.bound for p in history], "#999999", 3, "dash"),
    ]
    for index, term in enumerate(bound.final.terms):
        values = [point.terms[index].value for point in history]
        lines.append(line(term.name, values, TERM_COLOURS[index % len(TERM_COLOURS)], 1.5))
    y = Axis("squared gradient norm", scale="powers")
    return Plot(title, about, Axis("global rounds", from_zero=True), y, tuple(lines))
