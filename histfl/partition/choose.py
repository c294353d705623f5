"""Choosing which unit groups to cut (HIST Sec. II-B).

The paper cuts every other layer, so that no parameter is cut along two axes and none is lost. For any
model: of the groups that were found, take those that cover the most trainable parameters such that
no two of them meet in a parameter. This is a maximum-weight independent set, tiny, solved exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from histfl.errors import PartitionError
from histfl.partition.units import CutAxis, UnitGroup

Scheme = Literal["alternating", "every", "none"]


def choose(
    groups: Sequence[UnitGroup], weights: Sequence[int], *, scheme: Scheme = "alternating"
) -> tuple[UnitGroup, ...]:
    """The groups to cut, in the order given; `weights` are the parameters each of them covers.

    `alternating` cuts each parameter along one axis at most. `every` (IST) lets different groups cut
    a parameter along different axes; links between units of different cells are then held by nobody.
    """
    if not groups:
        return ()
    pairs = [(i, j) for i, j in _meeting(groups) if conflict(groups[i], groups[j], scheme)]
    rows = np.repeat(np.arange(len(pairs)), 2)
    columns = np.array(pairs, dtype=np.int64).reshape(-1)
    edges = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(pairs), len(groups)))
    solution = milp(
        -np.asarray(weights, dtype=np.float64),
        integrality=np.ones(len(groups)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(edges, ub=1.0) if pairs else (),
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        raise PartitionError(f"choosing among {len(groups)} layers to cut failed: {solution.message}")
    return tuple(group for group, taken in zip(groups, solution.x, strict=True) if taken > 0.5)


def conflict(first: UnitGroup, second: UnitGroup, scheme: Scheme = "alternating") -> str | None:
    """A parameter in which the two groups cannot both be cut, if there is one.

    They may share an axis when they own different positions of it, as the branches of a concatenation do.
    """
    by_parameter: dict[str, list[CutAxis]] = {}
    for cut in first.axes:
        by_parameter.setdefault(cut.parameter, []).append(cut)
    for cut in second.axes:
        for other in by_parameter.get(cut.parameter, ()):
            if other.axis != cut.axis:
                if scheme == "alternating":
                    return cut.parameter
            elif bool(((cut.unit >= 0) & (other.unit >= 0)).any()):
                return cut.parameter
    return None


def matching(groups: Sequence[UnitGroup], patterns: Iterable[str]) -> set[str]:
    """The names of the groups of which the name or a layer matches one of the glob patterns."""
    found: set[str] = set()
    for pattern in patterns:
        names = {
            group.name
            for group in groups
            if any(fnmatchcase(name, pattern) for name in (group.name, *group.layers))
        }
        if not names:
            known = ", ".join(repr(group.name) for group in groups)
            raise PartitionError(f"the pattern {pattern!r} matches no layer; the layers found are {known}")
        found |= names
    return found


def _meeting(groups: Sequence[UnitGroup]) -> list[tuple[int, int]]:
    """Pairs of groups that have a parameter in common."""
    holders: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for cut in group.axes:
            holders.setdefault(cut.parameter, set()).add(number)
    return sorted({(i, j) for numbers in holders.values() for i in numbers for j in numbers if i < j})
