"""Repositories with a past, for tests of what is done to it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import numpy as np
import zarr

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.inventory import Listed, open_uncached
from icefloe.storage.contract import Storage

GENERATIONS = [version.value for version in icefloe.SpecVersion]
LARGE, PACKED, INLINE = 40_000, 500, 8
"""Elements of eight bytes: a chunk object of its own, a place in a pack, bytes in a manifest."""


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(slots=True)
class Past:
    """A repository, and what its commits must read as."""

    repo: icefloe.Repository
    values: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """Arrays by path, by snapshot id."""

    def commit(self, branch: str = "main", seed: int = 0, size: int = PACKED, name: str = "a") -> str:
        """One more commit, which replaces an array."""
        before = self.repo.lookup_branch(branch)
        session = self.repo.writable_session(branch)
        root = zarr.open_group(session.store, mode="a")
        values = np.random.default_rng(seed).integers(0, 1 << 40, 3 * size)
        array = root.create_array(name, shape=(3 * size,), chunks=(size,), dtype="i8", compressors=None, overwrite=True)
        array[:] = values
        snapshot_id = session.commit(f"{name} {seed} on {branch}")
        self.values[snapshot_id] = {**self.values.get(before, {}), name: values}
        return snapshot_id

    def check(self, repo: icefloe.Repository | None = None) -> None:
        """Everything that refs lead to reads as it was written."""
        repo = repo or icefloe.Repository.open(self.repo.storage)
        starts = {repo.lookup_branch(name) for name in repo.list_branches()}
        starts |= {repo.lookup_tag(name) for name in repo.list_tags()}
        met: set[str] = set()
        for start in starts:
            for info in repo.ancestry(snapshot_id=start):
                if info.id not in met:
                    met.add(info.id)
                    self.check_snapshot(repo, info.id)

    def check_snapshot(self, repo: icefloe.Repository, snapshot_id: str) -> None:
        expected = self.values.get(snapshot_id)
        if not expected:
            return
        root = zarr.open_group(repo.readonly_session(snapshot_id=snapshot_id).store, mode="r")
        for path, values in expected.items():
            np.testing.assert_array_equal(root[path][:], values)  # type: ignore[index]


def make_past(storage: Storage, spec_version: str, commits: int = 6) -> Past:
    """Commits on main that replace arrays of every kind of chunk."""
    past = Past(icefloe.Repository.create(storage, spec_version=spec_version))
    for number in range(commits):
        past.commit(seed=number, size=(LARGE, PACKED, INLINE)[number % 3], name="abc"[number % 3])
    return past


def objects(repo: icefloe.Repository) -> dict[str, Listed]:
    """Every object of a repository, by kind."""
    return run_blocking(list_all(open_uncached(repo.context)))


def count(repo: icefloe.Repository) -> dict[str, int]:
    return {kind: len(listed) for kind, listed in objects(repo).items()}


def messages(repo: icefloe.Repository, branch: str = "main") -> list[str]:
    return [info.message for info in repo.ancestry(branch=branch)]
