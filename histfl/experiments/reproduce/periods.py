"""Figures 6 and 7: the periods H and E, and how many clients take part (HIST Sec. VI-B)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from histfl.experiments.reproduce.artefact import Artefact, Choice, Panel, Row, Scale, arm
from histfl.experiments.reproduce.bases import MLP, OPTIMISER, SPLITS, quick_mlp, quick_words
from histfl.experiments.reproduce.claims import Direction, judged, told, trend
from histfl.experiments.reproduce.drawing import learning_curve
from histfl.experiments.reproduce.results import Results, Spread

SPEED = Choice(
    "speed is judged by the mean test accuracy over all rounds, the area below the learning curve",
    "the paper speaks of convergence speed and shows curves; the first round to a target depends more on chance",
)
NO_AXIS = "the figure's axis cannot be read from the paper's source; the curves have flattened by then"


def fig6(scale: Scale) -> Artefact:
    """Test accuracy over global rounds: E in {5, 10, 15} at H = 20, H in {20, 40, 60} at E = 5; N = 3."""
    base, splits, rounds = MLP, list(SPLITS), 100
    if scale.quick:
        base, splits, rounds = quick_mlp(scale), ["shards"], 5
    target = 0.8 if not scale.quick else 0.7
    by_edge = [{"edge_rounds": edge_rounds, "local_steps": 20} for edge_rounds in (5, 10, 15)]
    by_local = [{"edge_rounds": 5, "local_steps": local_steps} for local_steps in (20, 40, 60)]
    periods = [*by_edge, *by_local[1:]]

    def rows(results: Results) -> Iterator[Row]:
        def speeds(split: str, some: list[dict[str, int]], letter: str, key: str) -> dict[str, Spread]:
            return {
                f"{letter}={period[key]}": results.of(split=split, **period).mean_accuracy(rounds)
                for period in some
            }

        for split in splits:
            words = f"{SPLITS[split]}: mean accuracy over {rounds} rounds"
            why = "More edge rounds in a global round do not pay here."
            points = speeds(split, by_edge, "E", "edge_rounds")
            yield trend(f"{words} as E grows (H = 20)", points, "rises", digits=".4f", why=why)
            points = speeds(split, by_local[:2], "H", "local_steps")
            why = "Longer local training already hurts at H = 40 with this step size."
            yield trend(f"{words} from H = 20 to 40 (E = 5)", points, "rises", digits=".4f", why=why)
            points = speeds(split, by_local[1:], "H", "local_steps")
            fully = split == "shards"
            why = "No loss is seen at H = 60." if fully else "H = 60 is past its best here too."
            direction: Direction = "falls" if fully else "rises"
            yield trend(f"{words} from H = 40 to 60 (E = 5)", points, direction, digits=".4f", why=why)
            reached = {
                _period(period): results.of(split=split, **period).to_target(target) for period in periods
            }
            yield told(f"{SPLITS[split]}: rounds to {target:.0%}", reached)

    def panels(results: Results) -> list[Panel]:
        return [
            Panel(
                SPLITS[split],
                "global rounds",
                "test accuracy",
                tuple(
                    curve
                    for colour, period in enumerate(periods)
                    for curve in learning_curve(
                        results.of(split=split, **period),
                        _period(period),
                        "round",
                        colour=colour,
                        dashed=period["local_steps"] > 20,
                    )
                ),
            )
            for split in splits
        ]

    return Artefact(
        name="fig6",
        paper="At N = 3 a larger E converges in fewer global rounds under both splits. As H grows from 20 to 60, "
        "convergence gains and then loses when the data are fully non-i.i.d., and goes on gaining when cells are i.i.d.",
        choices=(OPTIMISER, SPEED, Choice(f"{rounds} global rounds", NO_AXIS)),
        arms=tuple(
            arm(
                base | {"network.cells": 3, "training.rounds": rounds, "training.targets": (target,)},
                **period,
                split=split,
                seed=seed,
            )
            for seed in scale.seeds
            for split in splits
            for period in periods
        ),
        rows=lambda results: list(rows(results)),
        panels=panels,
        smaller=quick_words(scale, "fully non-i.i.d. alone", f"{rounds} rounds") if scale.quick else "",
    )


def _period(period: Mapping[str, Any]) -> str:
    return f"H={period['local_steps']}, E={period['edge_rounds']}"


def fig7(scale: Scale) -> Artefact:
    """Test accuracy over global rounds with 5, 10, 15 or all 20 clients of a cell taking part; N = 3."""
    base, splits, rounds, edge_rounds = MLP, list(SPLITS), 100, 15
    numbers: dict[str, int | str] = {"5": 5, "10": 10, "15": 15, "20": "all"}
    if scale.quick:
        base, rounds, edge_rounds = quick_mlp(scale) | {"network.clients": 24}, 8, 5
        numbers = {"2": 2, "4": 4, "8": "all"}

    def rows(results: Results) -> Iterator[Row]:
        gains = {}
        for split in splits:
            speeds = {
                f"{count} of {list(numbers)[-1]}": results.of(split=split, participants=value).mean_accuracy(
                    rounds
                )
                for count, value in numbers.items()
            }
            what = f"{SPLITS[split]}: mean accuracy over {rounds} rounds as more clients of a cell take part"
            yield trend(what, speeds, "rises", digits=".4f")
            few, *_, many = speeds.values()
            gains[split] = (many.mean - few.mean, few, many)
        (fully, *some), (cell_iid, *others) = gains["shards"], gains["cell-iid"]
        verdict = judged(fully > cell_iid, *some, *others)
        known = verdict != "not yet run"
        yield Row(
            "what full participation gains over the fewest",
            "more when fully non-i.i.d.",
            f"fully non-i.i.d. {fully:+.4f}, cell i.i.d. {cell_iid:+.4f}" if known else "not yet run",
            verdict,
            "Data that are i.i.d. across cells gain no less." if verdict == "no" else "",
            {"shards": fully, "cell-iid": cell_iid} if known else {},
        )

    def panels(results: Results) -> list[Panel]:
        return [
            Panel(
                SPLITS[split],
                "global rounds",
                "test accuracy",
                tuple(
                    curve
                    for colour, (count, value) in enumerate(numbers.items())
                    for curve in learning_curve(
                        results.of(split=split, participants=value),
                        f"{count} of {list(numbers)[-1]} clients",
                        "round",
                        colour=colour,
                    )
                ),
            )
            for split in splits
        ]

    return Artefact(
        name="fig7",
        paper="At N = 3, H = 20, E = 15 and 20 clients a cell, more participating clients train faster, and it matters "
        "more when the data are fully non-i.i.d.",
        choices=(
            OPTIMISER,
            SPEED,
            Choice("participants are drawn anew in every edge round", "as in HIST Sec. III-C, Theorem 2"),
            Choice(f"{rounds} global rounds", NO_AXIS),
        ),
        arms=tuple(
            arm(
                base
                | {"network.cells": 3, "training.edge_rounds": edge_rounds, "training.rounds": rounds}
                | {"training.targets": (0.8,)},
                participants=value,
                split=split,
                seed=seed,
            )
            for seed in scale.seeds
            for split in splits
            for value in numbers.values()
        ),
        rows=lambda results: list(rows(results)),
        panels=panels,
        smaller=quick_words(scale, "8 clients a cell", "E = 5", f"{rounds} rounds").replace(
            "20 clients", "24 clients"
        )
        if scale.quick
        else "",
    )
