"""What to believe, in the end: the claims counted by topic, and what matters most to a user, from the kept numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from pathlib import Path

from histfl.reproduce import TITLES
from histfl.reproduce.artefact import LOAD, METHODS, MLP, VERDICTS, Artefact, Row, of
from histfl.reproduce.claims import AS_MUCH, TOPICS
from histfl.reproduce.cost_table import HFEDAVG, HIST, scaled
from histfl.reproduce.fig9 import AIR_HIST, CLOSE, LAST_ROUNDS, OMA_HIST, SCHEMES
from histfl.reproduce.files import Trials, kept_findings, kept_trials
from histfl.reproduce.results import Results, Spread, seed_by_seed

COLUMNS = ("hold", "of the means alone", "in part", "do not, but seeds differ", "do not", "not yet run")
SCALED = "scaled-activations"  # the name of its finding
TARGET, SETTING = 0.8, ("shards", 4)  # where rounds are compared
RATE = MLP["training.learning_rate"]
# The models whose rounds are compared: where they were run at the paper's rate, and where at others.
MODELS = {"MLP": ("fig5", "learning-rates"), "LeNet-5": ("table1", "learning-rates-lenet5")}
SCALES = {"table1-scale-mlp": "the MLP", "table1-scale": "LeNet-5"}  # artefacts


@dataclass(frozen=True)
class Answered:
    """An artefact with its kept results and what they answer."""

    artefact: Artefact
    results: Results
    rows: Sequence[Row]

    @property
    def claims(self) -> list[Row]:
        """The rows that judge what the paper says."""
        return [row for row in self.rows if row.verdict and not row.beside]


def summary(answers: Sequence[Answered], folder: Path) -> str:
    """The summary in Markdown; `folder` has the kept results."""
    claims = [row for answer in answers if not answer.artefact.again for row in answer.claims]
    again = [
        f" {answer.artefact.title} puts {len(answer.claims)} of them to the test again: "
        f"{counts(answer.claims)[0]} hold."
        for answer in answers
        if answer.artefact.again
    ]
    found = {answer.artefact.name: answer.results for answer in answers}
    both = [each for each in compared(found, folder) if each.known]
    findings = {
        "Rounds": rounds_in_words(both),
        "Scaling the activations": ". ".join(
            f"{said[0].upper()}{said[1:]}" if place else said
            for place, said in enumerate(
                filter(
                    None,
                    (
                        kept_findings(folder).get(SCALED, ""),
                        scaling_in_words(found),
                        *ratios_in_words(answers),
                    ),
                )
            )
        ),
        "Over the air": air_in_words(found["fig9"]) if "fig9" in found else "",
    }
    sections = [
        "## What to believe { #summary }\n",
        f"{in_total(claims)}{''.join(again)}\n",
        markdown(
            ("claims", *COLUMNS),
            [
                (topic, *counts(row for row in claims if row.point in points))
                for topic, points in TOPICS.items()
            ],
        ),
        *(f"- **{topic}**: {_sentence(points, claims)}." for topic, points in TOPICS.items()),
        "\nWhat matters most to a user:\n",
        *(f"- **{name}**: {text}." for name, text in findings.items() if text),
        "",
        markdown(COMPARED, [each.cells for each in both]) if both else "",
    ]
    return "\n".join(sections)


def counts(claims: Iterable[Row]) -> list[int]:
    """How many claims have each of VERDICTS."""
    found = Counter(row.verdict for row in claims)
    return [found[verdict] for verdict in VERDICTS]


def in_total(claims: Sequence[Row]) -> str:
    """How many of the paper's claims hold, and how far."""
    hold, means, part, differ, no, waiting = counts(claims)
    single = sum(row.note == "one seed" for row in claims)
    groups = (
        ((hold, "hold"), (means, "of the means alone"), (part, "in part")),
        ((no, "does not hold" if no == 1 else "do not hold"), (differ, "not of the means but of some seed")),
        ((waiting, "not yet run"),),
    )
    said = [", ".join(f"{number} {words}" for number, words in group if number) for group in groups]
    if not hold:  # what all this is about
        said[0] = ", ".join(filter(None, ("0 hold", said[0])))
    return (
        f"Of {len(claims)} claim{'s' * (len(claims) > 1)} of the paper {'; '.join(filter(None, said))}."
        + (f" Of the verdicts {single} rest on one seed." if single else "")
    )


def _sentence(points: Sequence[str], claims: Sequence[Row]) -> str:
    """In how many cases each point of a topic holds."""
    return "; ".join(f"{point} {_cases(row for row in claims if row.point == point)}" for point in points)


def _cases(claims: Iterable[Row]) -> str:
    """`in 2 of 5, in part in 3`"""
    hold, means, part, differ, no, waiting = counts(claims)
    run = hold + means + part + differ + no
    words = [f"in {hold} of {run}"] if run else []
    words += [f"of the means alone in {means}"] if means else []
    words += [f"in part in {part}"] if part else []
    return ", ".join(words) + (f" ({waiting} not yet run)" if waiting else "")


@dataclass(frozen=True)
class Compared:
    """What both methods took to the target with a model, by method, and at which learning rates."""

    model: str
    rates: Mapping[str, float]
    rounds: Mapping[str, Spread]
    megabytes: Mapping[str, Spread]
    source: str
    best: bool = False  # at the best rate of each

    @property
    def known(self) -> bool:
        return all(spread.number is not None for spread in self.rounds.values())

    @property
    def times(self) -> tuple[Spread, ...]:
        """HIST's rounds over HFedAvg's, and its megabytes."""
        both = self.rounds, self.megabytes
        return tuple(seed_by_seed(truediv, costs["hist"], costs["hfedavg"]) for costs in both)

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line under COMPARED."""
        rates = ", ".join(f"{self.rates[method]:g}" for method in METHODS)
        costs = (*(self.rounds[method] for method in METHODS), *self.times)
        return self.model, rates, *(spread.text() for spread in costs), self.source


COMPARED = (
    "model",
    f"learning rates ({', '.join(METHODS.values())})",
    *(f"rounds to {TARGET:.0%}, {name}" for name in METHODS.values()),
    "rounds, HIST over HFedAvg",
    "megabytes, HIST over HFedAvg",
    "from",
)


def compared(found: Mapping[str, Results], folder: Path) -> Iterator[Compared]:
    """Both methods by model: at the paper's learning rate, and at the best one of each."""
    for model, (name, file) in MODELS.items():
        if name in found:
            runs = {method: of(found[name], method, SETTING) for method in METHODS}
            rounds, megabytes = (
                {method: each.to_target(TARGET, key) for method, each in runs.items()}
                for key in ("round", LOAD)
            )
            source = f"[{TITLES[name].partition(':')[0]}](#{name})"
            yield Compared(model, dict.fromkeys(METHODS, RATE), rounds, megabytes, source)
        trials = kept_trials(folder, file)
        if trials is not None and all(map(trials.rates, METHODS)):
            rates = {method: _best(trials, method) for method in METHODS}
            rounds, megabytes = (
                {method: trials.to_target(method, rate, TARGET, key) for method, rate in rates.items()}
                for key in ("round", "megabytes_per_client")
            )
            tried = ", ".join(f"{rate:g}" for rate in trials.rates("hist"))
            seeds = ", ".join(map(str, sorted(rounds["hist"].by_seed)))
            source = f"the best of {tried}: `{folder.parent.name}/{file}.json`, seeds {seeds}, commit {trials.commit}, "
            yield Compared(model, rates, rounds, megabytes, source + trials.machine, best=True)


def _best(trials: Trials, method: str) -> float:
    """The learning rate with the fewest rounds."""
    return min(trials.rates(method), key=lambda rate: trials.to_target(method, rate, TARGET).mean)


def rounds_in_words(both: Sequence[Compared]) -> str:
    """How many times HFedAvg's rounds HIST takes, at one learning rate and at the best."""

    def told(best: bool) -> str:
        at = [each for each in both if each.best == best]
        return " and ".join(f"{each.times[0].mean:.3g} times ({each.model})" for each in at)

    if not told(False) or not told(True):
        return ""
    shares = [each.times[1].mean for each in both]
    return (
        f"to {TARGET:.0%}, with four cells and all non-i.i.d., HIST takes {told(False)} HFedAvg's rounds at learning rate "
        f"{RATE:g} for both, and {told(True)} at the best rate of each; its clients send {min(shares):.2f} to "
        f"{max(shares):.2f} times the megabytes"
    )


def scaling_in_words(found: Mapping[str, Results]) -> str:
    """HIST's rounds by the power of its activations, of the models and powers whose runs are all there."""
    texts = []
    for name, model in SCALES.items():
        if name not in found:
            continue
        labels = found[name].asked
        powers = sorted({each["scale"] for each in labels if "scale" in each})
        runs = {
            "unscaled": HIST,
            **{f"at power {power:g}": scaled(power) for power in powers},
            "with HFedAvg": HFEDAVG,
        }
        rounds = {words: each.of(found[name], SETTING).to_target(TARGET) for words, each in runs.items()}
        there = {words: spread for words, spread in rounds.items() if spread.number is not None}
        whole = {words: spread for words, spread in there.items() if not spread.waiting}
        if {"unscaled", "with HFedAvg"} < whole.keys():
            said = ", ".join(f"{spread.text()} {words}" for words, spread in whole.items())
            texts.append(f"{model} takes {said} ([rounds to {TARGET:.0%}, learning rate {RATE:g}](#{name}))")
    return "; ".join(texts)


def ratios_in_words(answers: Sequence[Answered]) -> Iterator[str]:
    """How close HIST with scaled activations comes to the paper's savings, with the paper's own model."""
    table = next((each for each in answers if each.artefact.name == "table1-scale"), None)
    by_power: dict[str, list[Row]] = {}
    for row in table.rows if table else ():
        if row.point == AS_MUCH and " at power " in row.what:
            by_power.setdefault(row.what.partition(": ")[2], []).append(row)
    for what, rows in by_power.items():
        if any(row.verdict == "not yet run" for row in rows):
            continue
        near = sum(row.verdict == "yes" for row in rows)
        means = sum(row.verdict == "of the means alone" for row in rows)
        values = ", ".join(f"{row.ours.split()[0]} (paper {row.paper})" for row in rows)
        yield (
            f"LeNet-5's {what} is {values}: within 25 % of the paper's in {near} of {len(rows)}"
            + (f", of the means alone in {means}" if means else "")
        )


def air_in_words(results: Results) -> str:
    """By how much noise lowers HIST's accuracy, and from where on it does not."""
    ratios = sorted({labels["snr_db"] for labels in results.asked if "snr_db" in labels})
    exact = results.of(snr_db=ratios[-1], **SCHEMES[OMA_HIST]).last_accuracies(LAST_ROUNDS)
    noisy = {
        ratio: results.of(snr_db=ratio, **SCHEMES[AIR_HIST]).last_accuracies(LAST_ROUNDS) for ratio in ratios
    }
    if any(spread.number is None for spread in (exact, *noisy.values())):
        return ""
    gaps = {ratio: exact.mean - spread.mean for ratio, spread in noisy.items()}
    broken = [ratio for ratio in ratios if gaps[ratio] > CLOSE]
    lost = " and ".join(f"{100 * gaps[ratio]:.1f} points at {ratio:g} dB" for ratio in reversed(broken))
    fine = min((ratio for ratio in ratios if ratio > max(broken, default=-math.inf)), default=None)
    return (
        f"with the paper's power scaling HIST ends within {100 * CLOSE:g} points of error-free aggregation's "
        f"{exact.mean:.1%}"
        + ("" if fine is None else f" from {fine:g} dB on")
        + (f" and loses {lost}" if lost else "")
        + " ([Figure 9](#fig9)); with the whole power and normalised updates, the defaults, "
        "[noise is smaller](wireless.md#accuracy-against-snr)"
    )


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
