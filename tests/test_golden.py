"""Runs write the same bits as ever, on the kind of machine that the stored checksums are of."""

import json
from pathlib import Path

import pytest
from golden import all_names, golden, machine

STORED = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))


def test_every_run_is_stored() -> None:
    assert set(STORED["runs"]) == set(all_names())


@pytest.mark.skipif(machine() != STORED["machine"], reason=f"the stored bits are of {STORED['machine']}")
@pytest.mark.parametrize("name", STORED["runs"])
def test_bits_are_as_stored(name: str) -> None:
    assert golden([name]) == {name: STORED["runs"][name]}
