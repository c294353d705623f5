"""Runs write the same bits as ever, on the kinds of machine that the stored checksums are of."""

import json
from pathlib import Path

import pytest
from golden import all_names, golden, of_this_machine

STORED = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))
HERE = of_this_machine(STORED)


@pytest.mark.parametrize("record", STORED)
def test_every_run_is_stored(record: dict[str, dict[str, str]]) -> None:
    assert set(record["runs"]) == set(all_names())
    assert record["runs"]["resumed"] == record["runs"]["overlap-vectorised"]


@pytest.mark.skipif(
    HERE is None, reason=f"the stored bits are of {' and '.join(str(record['machine']) for record in STORED)}"
)
@pytest.mark.parametrize("name", all_names())
def test_bits_are_as_stored(name: str) -> None:
    assert HERE is not None
    assert golden([name]) == {name: HERE[name]}
