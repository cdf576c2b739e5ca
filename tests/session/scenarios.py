"""Things done to a repository that tests repeat under faults, each with what must be true before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

import icefloe
from icefloe.storage.contract import Storage

INLINE, PACKED, LARGE = 100, 4_000, 40_000
"""Elements of eight bytes per chunk, so that chunks land in manifests, in packs and in objects of their own."""
CHUNKS = {"inline": 8, "packed": 500, "large": 40_000}


def make_repository(storage: Storage | Path, spec_version: str) -> icefloe.Repository:
    """A repository with arrays of every kind of chunk, a second commit, a branch and a tag."""
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for name, size in CHUNKS.items():
        array = root.create_array(name, shape=(3 * size,), chunks=(size,), dtype="i8", compressors=None)
        array[:] = np.arange(3 * size)
    root.create_group("group", attributes={"text": "x" * 20_000})
    first = session.commit("first")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="packed", mode="r+")[0] = -1
    second = session.commit("second")
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    repo.create_tag("v2", second)
    return repo


def read_all(session: icefloe.Session) -> dict[str, object]:
    """Every node by path: attributes, and the values of arrays as bytes."""
    found: dict[str, object] = {}
    root = zarr.open_group(session.store, mode="r")
    for path, node in root.members(max_depth=None):
        values = node[:].tobytes() if isinstance(node, zarr.Array) else None
        found[path] = (dict(node.attrs), values)
    return found


@dataclass(frozen=True, slots=True)
class Scenario:
    """One change that a user makes by one call."""

    act: Callable[[icefloe.Repository], None]
    landed: Callable[[icefloe.Repository, icefloe.Repository], bool]
    """Whether the first repository shows the change; the second is one that was not touched."""


def _edit(session: icefloe.Session) -> None:
    root = zarr.open_group(session.store, mode="r+")
    for name, size in CHUNKS.items():
        root[name][size : 2 * size] = 7  # type: ignore[index]
    root["group"].attrs.update({"text": "y" * 20_000})
    root.create_array("fresh", shape=(4,), chunks=(2,), dtype="f4")[:] = 1.5
    session.move("/inline", "/group/inline")


def _commit(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    _edit(session)
    session.commit("third")


def _rebase(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    _edit(session)
    other = repo.writable_session("main")
    zarr.open_array(other.store, path="packed", mode="r+")[1500 - 1] = -2
    other.commit("in between")
    session.commit("third", rebase_with=icefloe.ConflictDetector())


def _amend(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    _edit(session)
    session.amend("second, amended")


def _flush(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    _edit(session)
    session.flush("aside")


def _moved(now: icefloe.Repository, before: icefloe.Repository) -> bool:
    return now.lookup_branch("main") != before.lookup_branch("main")


SCENARIOS = {
    "commit": Scenario(_commit, _moved),
    "rebase": Scenario(_rebase, _moved),
    "amend": Scenario(_amend, _moved),
    "flush": Scenario(_flush, _moved),
    "reset": Scenario(lambda repo: repo.reset_branch("main", repo.lookup_tag("v1")), _moved),
    "create branch": Scenario(
        lambda repo: repo.create_branch("new", repo.lookup_tag("v1")), lambda now, _: "new" in now.list_branches()
    ),
    "delete branch": Scenario(lambda repo: repo.delete_branch("dev"), lambda now, _: "dev" not in now.list_branches()),
    "create tag": Scenario(
        lambda repo: repo.create_tag("v3", repo.lookup_branch("dev")), lambda now, _: "v3" in now.list_tags()
    ),
    "save config": Scenario(
        lambda repo: repo.reopen(config=icefloe.RepositoryConfig(inline_chunk_threshold_bytes=77)).save_config(),
        lambda now, _: now.config.inline_chunk_threshold_bytes == 77,
    ),
}
