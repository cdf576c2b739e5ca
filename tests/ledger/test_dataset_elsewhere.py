"""A dataset whose state file is apart from its data works like any other."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.wrappers import SplitStorage
from icefloe.testing.storages import CountingStorage


def test_a_dataset_is_found_where_its_caller_says_that_it_is(tmp_path: Path) -> None:
    state = icefloe.local_filesystem_storage(tmp_path / "catalog")
    data = icefloe.local_filesystem_storage(tmp_path / "data")
    repository = icefloe.Repository.create(SplitStorage(state, data), spec_version="dataset")
    session = repository.writable_session("main")
    zarr.create_array(session.store, shape=(10_000,), chunks=(5_000,), dtype="i4")[:] = np.arange(10_000)
    session.commit("numbers")
    assert [path.name for path in (tmp_path / "catalog").iterdir()] == ["state.json"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["c", "i", "s"]
    opened = icefloe.Repository.open(SplitStorage(state, data))
    session = pickle.loads(pickle.dumps(opened)).writable_session("main")
    array = zarr.open_array(session.store)
    assert array[9_999] == 9_999
    array[0] = 7
    session.commit("on top")
    again = icefloe.Repository.open(SplitStorage(state, data)).readonly_session("main")
    assert zarr.open_array(again.store, mode="r")[0] == 7


def test_a_wrapped_split_storage_is_a_split_storage(tmp_path: Path) -> None:
    state = icefloe.local_filesystem_storage(tmp_path / "catalog")
    data = icefloe.local_filesystem_storage(tmp_path / "data")
    storage = CountingStorage(SplitStorage(state, data))
    assert storage.state_storage.url == state.url
    assert storage.data_storage.url == data.url
    created = icefloe.Repository.create(storage, spec_version="dataset")
    assert icefloe.Repository.open(storage).lookup_branch("main") == created.lookup_branch("main")
    assert [path.name for path in (tmp_path / "catalog").iterdir()] == ["state.json"]


def test_a_root_below_the_state_file_is_found_by_itself(tmp_path: Path) -> None:
    state = icefloe.local_filesystem_storage(tmp_path / "a b")
    split = SplitStorage(state, icefloe.local_filesystem_storage(tmp_path / "a b" / "deep" / "data"))
    repository = icefloe.Repository.create(split, spec_version="dataset")
    for root in (None, "deep/data", str(tmp_path / "a b" / "deep" / "data"), "./deep/data"):
        path = tmp_path / "a b" / "state.json"
        if root is not None:
            path.write_text(json.dumps({**json.loads(path.read_text()), "store_root": root}))
        if root == "./deep/data":
            with pytest.raises(InvalidInputError):
                icefloe.Repository.open(state)
            continue
        with icefloe.Repository.open(state).transaction("main", message=f"{root}") as store:
            zarr.create_array(store, name=f"n{len(str(root))}", shape=(4,), dtype="i4")[:] = 1
    assert sorted(path.name for path in (tmp_path / "a b").iterdir()) == ["deep", "state.json"]
    assert repository.lookup_branch("main")


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
