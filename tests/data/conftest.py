from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set is found on this machine but what the test puts there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HISTFL_DATA", raising=False)
    monkeypatch.setattr("histfl.data.store.DEBIAN_DATASETS", tmp_path / "system")
    return tmp_path / "cache" / "histfl"


@pytest.fixture
def full_data() -> Path:
    """The folder with the full data sets; tests on them run where $HISTFL_DATA names it."""
    if not os.environ.get("HISTFL_DATA"):
        pytest.skip("set HISTFL_DATA to a folder with the full data sets to run this test")
    return Path(os.environ["HISTFL_DATA"])
