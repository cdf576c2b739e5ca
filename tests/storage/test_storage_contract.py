"""Every storage, and every wrapper of a storage, keeps the contract."""

from __future__ import annotations

import pytest

import icefloe
from icefloe.storage.build import in_memory_storage
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import ObservedStorage, SplitStorage
from icefloe.testing import CountingStorage, FaultPlan, FaultyStorage, SlowStorage, StorageContract
from icefloe.testing.storage import ODD_NAMES


class TestStorages(StorageContract):
    @pytest.fixture
    def odd_names(self, request: pytest.FixtureRequest) -> list[str]:
        # SeaweedFS takes a backslash for a slash.
        return [name for name in ODD_NAMES if "seaweedfs" not in request.node.name or "\\" not in name]


WRAPPERS = {
    "counting": CountingStorage,
    "observed": ObservedStorage,
    "slow": lambda inner: SlowStorage(inner, 0.0),
    "faulty": lambda inner: FaultyStorage(inner, FaultPlan()),
    "split": lambda inner: SplitStorage(inner, inner.child("rest")),
}


class TestWrappers(StorageContract):
    @pytest.fixture(params=WRAPPERS)
    def storage(self, request: pytest.FixtureRequest) -> Storage:
        # A pickled memory storage is found again only while it is in use.
        return WRAPPERS[request.param](in_memory_storage())


def test_every_name_of_the_test_kit_is_public() -> None:
    assert {name: getattr(icefloe.testing, name) for name in icefloe.testing.__all__}
    assert icefloe.testing.StorageContract is StorageContract
