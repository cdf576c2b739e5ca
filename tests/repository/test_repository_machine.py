"""The engine and a plain dict model agree after any sequence of operations, with storage faults on."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from tests.session.machine import RepositoryMachine

EFFORT = int(os.environ.get("ICEFLOE_MACHINE_EFFORT", "1"))
"""How many times more examples than a usual run; for long searches."""


def _machine(version: str, examples: int) -> type:
    machine = type(f"Machine_{version}", (RepositoryMachine,), {"spec_version": version})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(
        max_examples=examples * EFFORT,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case  # type: ignore[no-any-return]


TestRepository = _machine("repository", 60)
TestIcechunk2 = pytest.mark.slow(_machine("icechunk2", 20))
TestIcechunk1 = pytest.mark.slow(_machine("icechunk1", 20))
TestStore = pytest.mark.slow(_machine("store", 15))
TestDataset = pytest.mark.slow(_machine("dataset", 15))
