"""A table of costs to target accuracies with every method at the best of several learning rates, all of them run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from histfl.experiments.reproduce.artefact import Artefact, Row, Scale
from histfl.experiments.reproduce.bases import Setting
from histfl.experiments.reproduce.claims import told
from histfl.experiments.reproduce.cost_table import Contender, CostTable, cost_arms, cost_table, words
from histfl.experiments.reproduce.results import Results, Spread


def at_best_rates(table: CostTable, scale: Scale, rates: Sequence[float]) -> Artefact:
    """The artefact of a table in which each contender has the rate of its fewest rounds, setting by setting."""
    artefact = cost_table(table, scale)
    return replace(
        artefact,
        arms=cost_arms(
            table,
            scale,
            lambda cells: [_at(each, rate) for each in table.contenders(cells) for rate in rates],
        ),
        rows=lambda results: [
            *_rate_rows(table, results, rates),
            *artefact.rows(_best_alone(table, results, rates)),
        ],
        panels=lambda results: artefact.panels(_best_alone(table, results, rates)),
    )


def _at(contender: Contender, rate: float) -> Contender:
    return replace(contender, labels={**contender.labels, "learning_rate": rate})


def _rounds(
    table: CostTable, results: Results, contender: Contender, setting: Setting, rates: Sequence[float]
) -> dict[float, Spread]:
    """Those to the higher target, by learning rate."""
    target = table.target(-1, results, setting)
    return {rate: _at(contender, rate).of(results, setting).to_target(target) for rate in rates}


def _rate_rows(table: CostTable, results: Results, rates: Sequence[float]) -> Iterator[Row]:
    for setting in table.settings:
        for contender in table.contenders(setting[1]):
            rounds = _rounds(table, results, contender, setting, rates)
            yield told(
                f"{words(setting)}: {contender.name}, {table.unit} to {table.names[-1]} by learning rate",
                {f"{rate:g}": spread for rate, spread in rounds.items()},
            )


def _best_alone(table: CostTable, results: Results, rates: Sequence[float]) -> Results:
    """The runs at the best rates; none in a setting while runs at some rate are missing."""
    best: list[dict[str, object]] = []
    for setting in table.settings:
        for contender in table.contenders(setting[1]):
            rounds = _rounds(table, results, contender, setting, rates)
            if all(len(spread.values) == spread.seeds > 0 for spread in rounds.values()):
                rate = min(rounds, key=lambda rate: rounds[rate].mean)
                best.append({**_at(contender, rate).labels, "split": setting[0], "cells": setting[1]})
    return results.among(best)
