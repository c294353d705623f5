"""What a cell holds of the model, in words: a plan or a run that promises much for little should say so."""

from __future__ import annotations

from collections.abc import Sequence

from histfl.arrays import Ints

FEW_UNITS = 8
"""Fewer units of a layer than this in a cell are told: a plan that left 1 to 7 hidden neurons to a cell promised
rounds 244 times as fast and trained to half of hierarchical FedAvg's accuracy. The presets leave 16 and more."""

HARDLY_CUT = (
    0.25  # of the parameters; below it even very many cells leave each more than three quarters of the model
)


def share_sentence(parameters: Ints, whole: int, *, varying: bool = False) -> str:
    """The share of the model's `whole` parameters that cells with `parameters` [cell] train; with `varying` sizes,
    which every round chooses anew, their mean."""
    shares = [f"{100 * float(value) / whole:.1f} %" for value in (parameters.min(), parameters.max())]
    of = f"of the model's {whole:,} parameters"
    if varying:
        return f"the cells train {100 * float(parameters.mean()) / whole:.1f} % {of} on average"
    if parameters.min() == whole:
        return f"each cell trains all {of}"
    if shares[0] == shares[1]:
        return f"each cell trains {shares[0]} {of}"
    return f"the cells train {shares[0]} to {shares[1]} {of}"


def misgivings(
    units: Ints, layer_units: Ints, names: Sequence[str], *, replicated: int, whole: int
) -> list[str]:
    """Why submodels may serve badly: cells hold few of the `layer_units` [layer] of layers `names`, `units`
    [cell, layer] with those that all hold, or nearly all parameters are among the `replicated` ones that none cuts."""
    found = []
    if units.size and (fewest := units.min(axis=0)).min() < FEW_UNITS:
        layer = int(fewest.argmin())
        most = int(units[:, layer].max())
        each = f"{fewest[layer]}" if most == fewest[layer] else f"{fewest[layer]} to {most}"
        found.append(
            f"a cell holds {each} of the {layer_units[layer]} units of layer {names[layer]!r}: submodels of fewer than "
            f"{FEW_UNITS} units of a layer may end far below the accuracy of hierarchical FedAvg, however fast their "
            "rounds are; use fewer cells a round or a wider layer, and compare with method.name = 'hfedavg'"
        )
    if names and whole - replicated < HARDLY_CUT * whole:
        found.append(
            f"hardly anything of the model can be cut: {replicated:,} of its {whole:,} parameters are in every cell, so "
            "that a round saves little over hierarchical FedAvg"
        )
    return found
