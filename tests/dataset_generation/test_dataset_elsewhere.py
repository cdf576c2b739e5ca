"""A dataset whose state file is apart from its data works like any other."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.split import SplitStorage


def test_a_dataset_is_found_through_the_root_in_its_state(tmp_path: Path) -> None:
    state = icefloe.local_filesystem_storage(tmp_path / "catalog")
    data = icefloe.local_filesystem_storage(tmp_path / "data")
    repository = icefloe.Repository.create(SplitStorage(state, data), spec_version="dataset")
    session = repository.writable_session("main")
    zarr.create_array(session.store, shape=(10_000,), chunks=(5_000,), dtype="i4")[:] = np.arange(10_000)
    session.commit("numbers")
    assert [path.name for path in (tmp_path / "catalog").iterdir()] == ["state.json"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["c", "i", "s"]
    opened = icefloe.Repository.open(state)
    session = pickle.loads(pickle.dumps(opened)).writable_session("main")
    array = zarr.open_array(session.store)
    assert array[9_999] == 9_999
    array[0] = 7
    session.commit("on top")
    assert zarr.open_array(icefloe.Repository.open(state).readonly_session("main").store, mode="r")[0] == 7


async def test_a_split_storage_lists_one_object_from_one_place_and_the_rest_from_the_other() -> None:
    apart, rest = MemoryStorage(), MemoryStorage()
    split = SplitStorage(apart, rest, "m")
    for key in ("a", "m", "x/y", "z"):
        await split.create(key, key.encode())
    await rest.put("m", b"hidden")
    await apart.put("other", b"hidden")
    assert [item.key async for page in split.list("") for item in page] == ["a", "m", "x/y", "z"]
    assert [item.key async for page in split.list("", after="m") for item in page] == ["x/y", "z"]
    assert [item.key async for page in split.list("x/") for item in page] == ["x/y"]
    assert await split.list_names("") == ["a", "m", "x/", "z"]
    assert await split.get("m") == b"m"
    with pytest.raises(InvalidInputError):
        await split.copy("a", "m")
    await split.delete(["a", "m"])
    assert await split.list_names("") == ["x/", "z"]
    assert not await apart.exists("m")
