"""Repositories over a storage that keeps a journal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.session.journal import JournalStorage

import icefloe


@pytest.fixture
def storage() -> JournalStorage:
    return JournalStorage(icefloe.in_memory_storage())


@pytest.fixture
def reopen(storage: JournalStorage) -> Callable[..., icefloe.Repository]:
    """Opens the repository anew, with empty caches and an empty journal."""

    def fresh(config: icefloe.RepositoryConfig | None = None) -> icefloe.Repository:
        repo = icefloe.Repository.open(storage, config)
        storage.journal.reset()
        return repo

    return fresh
