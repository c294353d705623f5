"""What to type to run an arm again, or those that are not yet run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from histfl.reproduce.artefact import LABELS, Artefact
from histfl.reproduce.results import Results
from histfl.runs.arms import Arm


def command(
    artefact: Artefact, only: str, seeds: Iterable[int], precision: str, about: Mapping[str, Any]
) -> str:
    """What to type to run the arms that `only` names, as the run `about` which this is was done."""
    quick = ["--quick"] if artefact.smaller else []
    words = ["histfl", "reproduce", artefact.name, *quick, *(["--only", only] if only != "*" else [])]
    words += ["--seeds", ",".join(map(str, seeds))]
    for option in ("device", "engine"):
        words += [f"--{option}", str(about[option])] if about.get(option) else []
    words += ["--precision", precision] if precision != "float32" else []
    return shlex.join(words)


def left(artefact: Artefact, results: Results) -> tuple[int, list[str]]:
    """How many arms have no finished result, and the commands that run them as the others were."""
    done = {result.arm for result in results.all if result.finished}
    asked: dict[str, list[int]] = {}  # the seeds by pattern
    for seed in dict.fromkeys(arm.config.training.seed for arm in artefact.arms):
        for pattern in _patterns([arm for arm in artefact.arms if arm.config.training.seed == seed], done):
            asked.setdefault(pattern, []).append(seed)
    known = [result.about for result in results.all if result.about.get("device")]
    about = known[0] if known else {}
    precision = about["config"]["training"]["precision"] if about else "float32"
    commands = [command(artefact, pattern, seeds, precision, about) for pattern, seeds in asked.items()]
    return sum(arm.name not in done for arm in artefact.arms), commands


def _patterns(arms: Sequence[Arm], done: Collection[str]) -> Iterator[str]:
    """Few patterns of names that match the arms which are not done, and none that is."""
    names = [arm.name for arm in arms]
    parts = {f"*{LABELS[label][1].format(value)}*" for arm in arms for label, value in arm.labels.items()}
    choices = ["*", *sorted(parts), *names]
    missing = {name for name in names if name not in done}
    while missing:
        matches = {choice: {name for name in names if fnmatchcase(name, choice)} for choice in choices}
        best = max(
            (c for c in choices if not matches[c] & set(done)), key=lambda c: len(matches[c] & missing)
        )
        missing -= matches[best]
        yield best
