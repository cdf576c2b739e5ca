"""A repository with a bit of everything, in any generation, and what two repositories have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe.conversion.translate import ROOT_MARKS
from icefloe.storage.contract import Storage


def make_repository(storage: Storage | Path, version: str, virtual: Path | None = None) -> icefloe.Repository:
    """Branches, tags, history, resized, moved and deleted nodes, inline, packed and virtual chunks."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=16)
    authorized: dict[str, Any] = {}
    if virtual is not None:
        prefix = f"{virtual.resolve().as_uri()}/"
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(virtual)))
        )
        authorized = {prefix: None}
    repo = icefloe.Repository.create(storage, config, authorized, spec_version=version)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a", attributes={"title": "é", "none": None})
    a = root.create_array("a", shape=(6, 4), chunks=(2, 2), dtype="f8", dimension_names=["y", None], fill_value=np.nan)
    a[:4] = np.arange(16).reshape(4, 4)
    root.create_array("deep/scalar", shape=(), dtype="i4")[...] = 7
    root.create_array("deep/empty", shape=(0, 3), chunks=(1, 3), dtype="i2")
    root.create_array("words", shape=(4,), chunks=(2,), dtype=str)[:] = ["a", "", "ü", "d"]
    root.create_group("big", attributes={"text": "x" * 40_000})
    first = session.commit("first", {"n": 1, "nested": {"list": [1, None, "x"]}})
    repo.create_tag("v1", first)
    repo.create_branch("dev", first)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root["a"].resize((8, 4))
    root["a"][7] = 5
    root["a"].attrs["units"] = "K"
    root.create_array("gone", shape=(2,), dtype="u1")[:] = 1
    if virtual is not None:
        (virtual / "source.bin").write_bytes(bytes(range(64)))
        root.create_array("virtual", shape=(4, 4), chunks=(1, 4), dtype="u1", compressors=None)
        specs = [
            icefloe.VirtualChunkSpec([i, 0], f"{virtual.resolve().as_uri()}/source.bin", 4 * i, 4) for i in range(3)
        ]
        session.store.set_virtual_refs("/virtual", specs)
    session.commit("second")
    session = repo.writable_session("main")
    session.move("/deep", "/moved")
    del zarr.open_group(session.store, mode="a")["gone"]
    session.commit("third")
    session = repo.writable_session("dev")
    zarr.open_group(session.store, mode="a").create_array("dev", shape=(600,), chunks=(50,), dtype="i8")[:] = 3
    repo.create_tag("on dev", session.commit("dev work"))
    return repo


def contents(repo: icefloe.Repository, **ref: str) -> dict[str, bytes]:
    """Every key of a snapshot and its bytes."""
    store = repo.readonly_session(**ref).store  # type: ignore[arg-type]

    async def collect() -> dict[str, bytes]:
        found = {}
        async for key in store.list():
            data = await store.get(key, default_buffer_prototype())
            found[key] = data.to_bytes()
        return found

    return sync(collect())


def plain_diff(diff: icefloe.Diff) -> dict[str, Any]:
    """What a diff says, without what depends on the order of node ids."""
    fields = (
        "new_groups",
        "new_arrays",
        "deleted_groups",
        "deleted_arrays",
        "updated_groups",
        "updated_arrays",
        "moved_nodes",
        "updated_chunks",
    )
    return {field: getattr(diff, field) for field in fields}


def assert_same(ours: icefloe.Repository, theirs: icefloe.Repository) -> None:
    """Both repositories hold the same refs, history, documents, bytes and changes."""
    assert ours.list_branches() == theirs.list_branches()
    assert ours.list_tags() == theirs.list_tags()
    refs = [{"branch": name} for name in ours.list_branches()] + [{"tag": name} for name in ours.list_tags()]
    for ref in refs:
        mine, other = list(ours.ancestry(**ref)), list(theirs.ancestry(**ref))
        assert [describe(info) for info in mine] == [describe(info) for info in other]
        assert [info.parent_id for info in other] == [*(info.id for info in other[1:]), None]
        for a, b in zip(mine[:-1], other[:-1], strict=True):
            assert contents(ours, snapshot_id=a.id) == contents(theirs, snapshot_id=b.id)
        for newer, older in zip(range(len(mine) - 2), range(1, len(mine) - 1), strict=False):
            changes = [
                plain_diff(repo.diff(from_snapshot_id=infos[older].id, to_snapshot_id=infos[newer].id))
                for repo, infos in ((ours, mine), (theirs, other))
            ]
            assert changes[0] == changes[1]


def describe(info: icefloe.SnapshotInfo) -> tuple[Any, ...]:
    metadata = {key: value for key, value in info.metadata.items() if key not in ROOT_MARKS}
    return info.message, info.written_at, metadata


def go_on(repo: icefloe.Repository) -> None:
    """A further commit, read back by a fresh reader."""
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root["a"][0] = 99
    root.create_array("later", shape=(3,), dtype="i4")[:] = [1, 2, 3]
    tip = session.commit("later")
    again = zarr.open_group(icefloe.Repository.open(repo.storage).readonly_session("main").store, mode="r")
    assert (again["a"][0] == 99).all() and again["later"][:].tolist() == [1, 2, 3]
    assert next(repo.ancestry(branch="main")).id == tip
