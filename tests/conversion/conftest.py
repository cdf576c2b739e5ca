"""Conversions in place wait for writers that saw a branch a moment ago; here only the tests that have some do."""

from __future__ import annotations

import pytest

from icefloe.ledger import switch_generation as retirement


@pytest.fixture(autouse=True)
def _no_writers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] != "test_open_repositories":
        monkeypatch.setattr(retirement, "FRESH_SECONDS", -0.1)
