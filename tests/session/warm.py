"""What the process loads that children are forked from; it does not inherit the test run's import path."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]
for _name in (
    "pytest",
    "numpy",
    "zarr",
    "icefloe.repository",
    "icefloe.testing.storages",
    "tests.session.scenarios",
):
    import_module(_name)
