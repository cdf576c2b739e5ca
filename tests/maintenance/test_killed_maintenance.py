"""Maintenance that dies at any storage operation leaves a whole repository, and a second run finishes the work."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, LARGE, Past, count, now
from tests.session.forked import run_child

import icefloe
from icefloe.storage.build import local_filesystem_storage
from icefloe.storage.wrappers import METHODS, WRITES
from icefloe.testing.storages import KILLED, Fault, FaultKind, FaultPlan, FaultyStorage

LOOSE = icefloe.RepositoryConfig(chunk_packing=icefloe.ChunkPackingConfig(enabled=False))


def _expire(repo: icefloe.Repository) -> None:
    repo.expire_snapshots(retain_last=2, delete_expired_branches=False)


def _collect(repo: icefloe.Repository) -> None:
    repo.garbage_collect(now())


def _collect_what_is_new(repo: icefloe.Repository) -> None:
    repo.garbage_collect(now(), incremental=True)


def _compact(repo: icefloe.Repository) -> None:
    repo.compact(batch_bytes=8000)


def _merge(repo: icefloe.Repository) -> None:
    repo.merge("dev", "main", fast_forward=False)


VERBS: dict[str, Callable[[icefloe.Repository], None]] = {
    "expire": _expire,
    "collect": _collect,
    "collect what is new": _collect_what_is_new,
    "compact": _compact,
    "merge": _merge,
}
BOTH = [
    pytest.param(version, verb, marks=[] if version == "repository" else [pytest.mark.slow])
    for version in GENERATIONS
    for verb in VERBS
]


def make(path: Path, version: str, verb: str) -> Past:
    """A repository on which the verb has something to do."""
    past = Past(icefloe.Repository.create(local_filesystem_storage(path), LOOSE, spec_version=version))
    for number in range(4):
        past.commit(seed=number, size=500, name="ab"[number % 2])
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    past.commit("dev", seed=10, size=500, name="d")
    past.commit("main", seed=11, size=LARGE, name="e")
    if verb.startswith("collect"):
        if verb != "collect":
            _collect_what_is_new(past.repo)
        past.repo.expire_snapshots(retain_last=1)
        session = past.repo.writable_session("main")
        zarr.open_array(session.store, path="e", mode="r+")[:] = 3
        session.commit("replaced")
        past.values[past.repo.lookup_branch("main")] = {**list(past.values.values())[-1], "e": np.full(3 * LARGE, 3)}
        past.repo.expire_snapshots(retain_last=1)
    return past


class OneByOne(FaultyStorage):
    """Deletes key by key, so that a process can die between any two of them."""

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await super().delete([key])


def _act(path: Path, verb: str, fault: Fault) -> None:
    plan = FaultPlan((fault,), enabled=False)
    repo = icefloe.Repository.open(OneByOne(local_filesystem_storage(path), plan))
    plan.enabled = True
    VERBS[verb](repo)
    os._exit(0)


def _state(repo: icefloe.Repository) -> tuple[object, ...]:
    return (len(list(repo.ancestry(branch="main"))), len(list(repo.ancestry(branch="dev"))))


@pytest.mark.long
@pytest.mark.parametrize(("version", "verb"), BOTH)
def test_a_death_at_every_write_is_survived(version: str, verb: str, tmp_path: Path) -> None:
    _die_at_every(WRITES, version, verb, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "verb"), list(itertools.product(GENERATIONS, VERBS)))
def test_a_death_at_every_read_or_write_is_survived(version: str, verb: str, tmp_path: Path) -> None:
    # Most of these deaths leave the files that a death after the last write leaves. Others stop writes under way.
    _die_at_every(METHODS, version, verb, tmp_path)


def _die_at_every(methods: tuple[str, ...], version: str, verb: str, tmp_path: Path) -> None:
    template = tmp_path / "template"
    past = make(template, version, verb)
    finished = tmp_path / "finished"
    shutil.copytree(template, finished)
    VERBS[verb](icefloe.Repository.open(finished))
    done = icefloe.Repository.open(finished)
    deaths = {}
    # Whoever dies after a read dies before whatever comes next.
    for kind, where in ((FaultKind.KILL_BEFORE, methods), (FaultKind.KILL_AFTER, WRITES)):
        for number in itertools.count(1):
            copy = tmp_path / f"{kind.name}-{number}"
            shutil.copytree(template, copy)
            code = run_child(_act, copy, verb, Fault(kind, at=number, methods=where))
            assert code in (0, KILLED)
            if code == KILLED:
                _check(past, copy, verb, done, f"operation {number}: {kind.value}")
            shutil.rmtree(copy)
            if code == 0:
                deaths[kind] = number - 1
                break
    # An expiry of `repository` writes a single file.
    fewest = 1 if verb == "expire" and past.repo.context.ledger.records_expiries else 2
    assert deaths[FaultKind.KILL_BEFORE] >= deaths[FaultKind.KILL_AFTER] >= fewest


def _check(past: Past, path: Path, verb: str, done: icefloe.Repository, what: str) -> None:
    repo = icefloe.Repository.open(path)
    report = repo.verify()
    assert report.is_clean, f"{what}: {report}"
    past.check(repo)
    VERBS[verb](icefloe.Repository.open(path))
    again = icefloe.Repository.open(path)
    assert again.verify().is_clean, what
    past.check(again)
    if verb in ("expire", "merge"):
        messages = [info.message for info in again.ancestry(branch="main")]
        assert messages == [info.message for info in done.ancestry(branch="main")], what
    if verb.startswith("collect"):
        assert count(again) == count(done), what
        assert again.garbage_collect(now()) == icefloe.GCSummary(), what
    if verb == "compact":
        assert again.plan_compaction().chunks == done.plan_compaction().chunks, what
