"""What this machine offers a run."""

from __future__ import annotations

import os
from typing import Any

import torch

from histfl.data import DATASETS, locate
from histfl.devices import numba_installed
from histfl.errors import DataError
from histfl.runs.records import versions


def examine() -> dict[str, Any]:
    """Versions, devices and data sets, by name."""
    findings: dict[str, Any] = dict(versions())
    findings["cpu cores"] = os.cpu_count()
    findings["cuda"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    missing = "not here; get them with: pip install 'histfl[fast]'"
    findings["compiled kernels"] = "numba" if numba_installed() else missing
    for name in DATASETS:
        try:
            findings[f"data: {name}"] = str(locate(name))
        except DataError:
            findings[f"data: {name}"] = f"not here; get it with: histfl data fetch {name}"
    return findings
