"""Whoever still has a repository open that another process converts in place is told so, and does no harm."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.blocking import run_blocking
from icefloe.conversion.survey import LossKind

GENERATIONS = ("dataset", "store", "repository", "icechunk1", "icechunk2")
PAIRS = [f"{one} to {two}" for one, two in itertools.permutations(GENERATIONS, 2)]
CONFIG = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


def write(repo: icefloe.Repository, value: int) -> icefloe.Session:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = value
    return session


@pytest.mark.parametrize("pair", PAIRS)
def test_nothing_that_was_open_before_a_conversion_in_place_loses_data_after_it(pair: str) -> None:
    old, new = pair.split(" to ")
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=old, config=CONFIG)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4", compressors=None)[:] = 1
    tip = repo.lookup_branch("main")
    late = write(repo, 9)
    icefloe.upgrade(storage, new, drop=list(LossKind))
    write(icefloe.Repository.open(storage, config=CONFIG), 2).commit("after")

    refused: dict[str, Callable[[], object]] = {
        "commit": lambda: late.commit("late"),
        "expire": lambda: repo.expire_snapshots(dt.timedelta(0)),
        "collect": lambda: repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True),
        "compact": lambda: repo.compact("main"),
        "rewrite": lambda: repo.rewrite_manifests("rewrite", branch="main"),
        "tag": lambda: repo.create_tag("late", tip),
        "branch": lambda: repo.create_branch("late", tip),
        "reset": lambda: repo.reset_branch("main", tip),
        "settings": repo.save_config,
    }
    for call in refused.values():
        with pytest.raises((icefloe.NotFoundError, icefloe.ConflictError)):
            call()

    found = icefloe.Repository.open(storage)
    assert found.spec_version.value == new
    assert found.verify().is_clean
    found.garbage_collect(dt.timedelta(days=1))
    found.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
    fresh = icefloe.Repository.open(storage)
    values = zarr.open_array(fresh.readonly_session("main").store, path="a", mode="r")[:]
    np.testing.assert_array_equal(values, np.full(8, 2))
    assert fresh.verify(repair=True).is_clean
    assert icefloe.Repository.open(storage).spec_version.value == new
    assert icefloe.Repository.recover(storage) == ()


def test_a_collection_judges_nothing_by_refs_without_main() -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config=CONFIG)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")[:] = 1
    repo.create_branch("dev", repo.lookup_branch("main"))

    async def lose() -> None:
        keys = [item.key async for page in storage.list("refs/branch.main/") for item in page]
        await storage.delete(keys)

    run_blocking(lose())
    with pytest.raises(icefloe.RefNotFoundError, match="nothing was deleted"):
        repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
