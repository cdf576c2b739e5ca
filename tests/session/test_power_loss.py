"""What is on the disk after a power loss: every commit that was reported, whole, whatever the system had not written.

The calls of the operating system are recorded while real files are written. A file's bytes are on the disk once it was
synced, the names in a folder once the folder was synced. Of everything else a power loss leaves any part.
"""

from __future__ import annotations

import copy
import datetime as dt
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.storage import durability
from icefloe.storage import local as local_files
from icefloe.storage.local import LocalStorage

GENERATIONS = ("repository", "icechunk2", "icechunk1", "store", "dataset")


@dataclass
class Disk:
    """Files by number, names by folder: as programs see them, and as they are on the disk."""

    content: dict[int, bytes] = field(default_factory=dict)
    synced: set[int] = field(default_factory=set)
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """The files of each folder; folders themselves are made in `folders`."""
    names_on_disk: dict[str, dict[str, int]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    folders_on_disk: set[str] = field(default_factory=set)

    def sync_folder(self, folder: str) -> None:
        self.names_on_disk[folder] = dict(self.names.get(folder, {}))
        self.folders_on_disk |= {each for each in self.folders if os.path.dirname(each) == folder}

    def sync_all(self) -> None:
        self.synced |= self.content.keys()
        for folder in {*self.folders, *self.names}:
            self.sync_folder(folder)
        self.folders_on_disk = set(self.folders)

    def lose_power(self, root: str, target: Path, rng: random.Random) -> None:
        """Make a folder as it might be found afterwards."""
        lost = {folder for folder in self.folders - self.folders_on_disk if rng.random() < 0.5}
        for folder in sorted({*self.names, *self.names_on_disk}):
            if any(folder == each or folder.startswith(each + "/") for each in lost):
                continue
            now, before = self.names.get(folder, {}), self.names_on_disk.get(folder, {})
            for name in sorted({*now, *before}):
                number = rng.choice((now.get(name), before.get(name)))
                if number is None:
                    continue
                data = self.content[number]
                if number not in self.synced:
                    data = data[: rng.choice((0, 0, len(data) // 2, len(data)))]
                path = target / os.path.relpath(f"{folder}/{name}", root)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


class RecordedCalls:
    """The operating system, with a record of what it was asked to write and to sync."""

    def __init__(self, seed: int) -> None:
        self.disk = Disk()
        self.moments: list[tuple[int, Disk]] = []
        """The disk at some moments, with the number of steps that were reported until then."""
        self.reported = 0
        self.whole_syncs: list[str] = []
        """The folders whose file systems were synced as a whole."""
        self._rng = random.Random(seed)
        self._open: dict[int, int | str] = {}
        self._opened: dict[int, int] = {}
        """For each open file: how often something was written before it was opened."""
        self._writes = 0
        self._written: dict[int, int] = {}
        """For each file: how often something was written before it."""
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _happened(self) -> None:
        if self._rng.random() < 0.25:
            self.moments.append((self.reported, copy.deepcopy(self.disk)))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            fd = os.open(path, flags, mode)
            self._opened[fd] = self._writes
            if flags & os.O_CREAT:
                number = len(self.disk.content)
                self.disk.content[number] = b""
                self._set(path, number)
                self._open[fd] = number
            else:
                number_of = self._find(path)
                self._open[fd] = path if number_of is None else number_of
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open.pop(fd, None)
            os.close(fd)

    def write(self, fd: int, data: Any) -> int:
        with self._lock:
            written = os.write(fd, data)
            number = self._open[fd]
            assert isinstance(number, int)
            self._written.setdefault(number, self._writes)
            self._writes += 1
            self.disk.content[number] += bytes(memoryview(data)[:written])
            return written

    def fsync(self, fd: int) -> None:
        with self._lock:
            which = self._open[fd]
            if isinstance(which, int):
                self.disk.synced.add(which)
            else:
                self.disk.sync_folder(which)
            self._happened()

    def link(self, source: str, target: str) -> None:
        with self._lock:
            os.link(source, target)
            number = self._find(source)
            assert number is not None
            self._set(target, number)
            self._happened()

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            os.rename(source, target)
            number = self._find(source)
            assert number is not None
            self._set(target, number)
            self._forget(source)
            self._happened()

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        with self._lock:
            os.unlink(path, dir_fd=dir_fd)
            if dir_fd is not None:
                folder = self._open[dir_fd]
                assert isinstance(folder, str)
                path = f"{folder}/{path}"
            self._forget(path)
            self._happened()

    def mkdir(self, path: str) -> None:
        with self._lock:
            os.mkdir(path)
            self.disk.folders.add(path)

    def syncfs(self, fd: int) -> int:
        with self._lock:
            folder = self._open[fd]
            assert isinstance(folder, str)
            # Linux would not tell about a write that was lost, if another program had synced in between.
            device = self.stat(folder).st_dev
            here = [names for each, names in self.disk.names.items() if self.stat(each).st_dev == device]
            new = [n for names in here for n in names.values() if n not in self.disk.synced]
            assert self._opened[fd] <= min((self._written[n] for n in new if n in self._written), default=self._writes)
            self.whole_syncs.append(folder)
            self.disk.sync_all()
            self._happened()
            return 0

    def _find(self, path: str) -> int | None:
        return self.disk.names.get(os.path.dirname(path), {}).get(os.path.basename(path))

    def _set(self, path: str, number: int) -> None:
        self.disk.names.setdefault(os.path.dirname(path), {})[os.path.basename(path)] = number

    def _forget(self, path: str) -> None:
        self.disk.names.get(os.path.dirname(path), {}).pop(os.path.basename(path), None)


def _record(monkeypatch: pytest.MonkeyPatch, calls: RecordedCalls) -> None:
    monkeypatch.setattr(local_files, "os", calls)
    monkeypatch.setattr(durability, "os", calls)
    monkeypatch.setattr(durability, "_SYNCFS", calls.syncfs)


def _live(repo: icefloe.Repository, root: Path, calls: RecordedCalls, seed: int) -> list[dict[str, list[int]]]:
    """Steps of a repository's life, and after each what all branches hold."""
    rng = random.Random(seed)
    states: list[dict[str, list[int]]] = [{}, {"main": []}]
    calls.reported = 1

    def report(**changed: list[int] | None) -> None:
        kept = {**states[-1], **{name: value for name, value in changed.items() if value is not None}}
        states.append({name: value for name, value in kept.items() if name not in changed or changed[name] is not None})

    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(12,), chunks=(2,), dtype="i4", compressors=None, fill_value=0)
        report(main=[0] * 12)
    calls.reported = 2
    repo.create_branch("side", repo.lookup_branch("main"))
    report(side=[0] * 12)
    calls.reported = 3
    for number in range(5):
        branch = rng.choice(("main", "side"))
        values = np.arange(12, dtype="i4") + 100 * number
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="a")[:] = values
        # The commit may be on the disk before it is reported.
        report(**{branch: values.tolist()})
        session.commit(f"commit {number}")
        calls.reported += 1
    now = dt.datetime.now(dt.UTC)
    repo.expire_snapshots(now)
    repo.garbage_collect(now - dt.timedelta(seconds=0))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 7
    report(main=[7] * 12)
    session.commit("last")
    calls.reported += 1
    return states


def _read(repo: icefloe.Repository) -> dict[str, list[int]]:
    found = {}
    for branch in sorted(repo.list_branches()):
        try:
            array = zarr.open_array(repo.readonly_session(branch).store, path="a", mode="r")
        except FileNotFoundError:
            found[branch] = []
        else:
            found[branch] = array[:].tolist()  # type: ignore[union-attr]
    return found


def _sync_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync the whole file system also for a few files, whatever is faster here."""
    monkeypatch.setattr(durability, "_REPORTS_ERRORS", True)
    monkeypatch.setattr(durability, "device_type", lambda device: "ext4")
    monkeypatch.setattr(durability, "_dirty_bytes", lambda: 0)
    monkeypatch.setattr(durability._SyncTimes, "is_whole_next", lambda self: True)


@pytest.mark.every_generation
@pytest.mark.parametrize("way", ["packed", "single", "whole"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_was_reported_survives_a_power_loss_at_any_moment(
    generation: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, packed = RecordedCalls(seed=len(generation)), way != "single"
    _record(monkeypatch, calls)
    # Which way is faster would be found out with the clock.
    monkeypatch.setattr(durability._SyncTimes, "is_whole_next", lambda self: False)
    if way == "single":
        monkeypatch.setattr(durability, "_SYNCED_SINGLY", 2)
    if way == "whole":
        _sync_whole(monkeypatch)
    root = tmp_path / "repo"
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=packed)
    )
    repo = icefloe.Repository.create(root, config, spec_version=generation)
    states = _live(repo, root, calls, seed=packed)
    monkeypatch.undo()
    calls.moments.append((calls.reported, calls.disk))
    rng = random.Random(1)
    for number, (reported, disk) in enumerate(calls.moments):
        target = tmp_path / f"after-{number}"
        disk.lose_power(str(root), target, rng)
        if reported == 0 and not icefloe.Repository.exists(target):
            continue
        found = icefloe.Repository.open(target)
        report = found.verify()
        assert report.is_clean, f"moment {number} of {len(calls.moments)}: {report}"
        assert _read(found) in states[reported : reported + 2]


def test_without_fsync_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = RecordedCalls(seed=0)
    _record(monkeypatch, calls)
    for storage, config in (
        (icefloe.local_filesystem_storage(tmp_path / "a", fsync=False), None),
        (
            icefloe.local_filesystem_storage(tmp_path / "b", fsync=None),
            icefloe.RepositoryConfig(storage=icefloe.StorageSettings(fsync=False)),
        ),
    ):
        repo = icefloe.Repository.create(storage, config)
        with repo.transaction("main", message="array") as store:
            zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")
        repo = icefloe.Repository.open(storage, config)
        with repo.transaction("main", message="again") as store:
            zarr.create_array(store, name="b", shape=(4,), chunks=(2,), dtype="i4")
    assert not calls.disk.synced and not calls.disk.names_on_disk


async def test_what_another_process_writes_is_on_the_disk_when_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = RecordedCalls(seed=0)
    _record(monkeypatch, calls)
    mine = LocalStorage(tmp_path)
    await mine.put("chunks/mine", b"1")
    assert not calls.disk.synced
    make, (root, fsync, encoded, home, *rest) = mine.__reduce__()
    assert len(calls.disk.synced) == 1, "what was written is synced before somebody else gets the storage"
    theirs = make(root, fsync, encoded, home + 1, *rest)
    await theirs.put("chunks/theirs", b"2")
    await theirs.copy("chunks/theirs", "chunks/copy")
    assert len(calls.disk.synced) == 3
    assert calls.disk.names_on_disk[str(tmp_path / "chunks")].keys() == {"mine", "theirs", "copy"}


async def test_after_a_sync_that_failed_nothing_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(RecordedCalls):
        broken = False

        def fsync(self, fd: int) -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            super().fsync(fd)

    calls = Failing(seed=0)
    _record(monkeypatch, calls)
    storage = LocalStorage(tmp_path)
    await storage.create("a", b"1")
    await storage.put("chunk", b"2")
    calls.broken = True
    with pytest.raises(icefloe.errors.StorageError):
        await storage.create("b", b"refers to the chunk")
    calls.broken = False
    with pytest.raises(icefloe.errors.StorageError, match="restart the program"):
        await storage.create("b", b"refers to the chunk")
    assert not await storage.exists("b")


async def test_a_small_commit_syncs_each_of_its_file_systems_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mounted(RecordedCalls):
        def stat(self, path: Any, **options: Any) -> Any:
            found = os.stat(path, **options)
            if not str(path).endswith("/chunks"):
                return found
            return os.stat_result([*found[:2], found.st_dev + 1, *found[3:10]])

    calls = Mounted(seed=0)
    _record(monkeypatch, calls)
    _sync_whole(monkeypatch)
    storage = LocalStorage(tmp_path)
    for key in ("chunks/a", "snapshots/a", "transactions/a"):
        await storage.put(key, b"1")
    assert not calls.whole_syncs
    await storage.create("refs/a", b"2")
    assert len(calls.whole_syncs) == 2 and str(tmp_path / "chunks") in calls.whole_syncs


@pytest.mark.parametrize(
    "unfit",
    [
        {"device_type": lambda device: "fuse.sshfs"},
        {"device_type": lambda device: ""},
        {"_dirty_bytes": lambda: durability._DIRTY_BYTES + 1},
        {"_REPORTS_ERRORS": False},
        {"_SYNCFS": None},
    ],
    ids=lambda unfit: next(iter(unfit)),
)
async def test_files_are_synced_one_by_one_where_the_whole_may_take_long_or_tells_no_errors(
    unfit: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = RecordedCalls(seed=0)
    _record(monkeypatch, calls)
    _sync_whole(monkeypatch)
    for name, value in unfit.items():
        monkeypatch.setattr(durability, name, value)
    storage = LocalStorage(tmp_path)
    for key in ("chunks/a", "snapshots/a", "transactions/a"):
        await storage.put(key, b"1")
    await storage.create("refs/a", b"2")
    assert not calls.whole_syncs
    assert len(calls.disk.synced) == 4
    assert {str(tmp_path / name) for name in ("chunks", "snapshots", "transactions", "refs")} <= {
        *calls.disk.names_on_disk
    }


async def test_many_files_of_a_server_are_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = RecordedCalls(seed=0)
    _record(monkeypatch, calls)
    monkeypatch.setattr(durability, "_SYNCED_SINGLY", 2)
    monkeypatch.setattr(durability, "device_type", lambda device: "fuse.sshfs")
    storage = LocalStorage(tmp_path)
    for number in range(5):
        await storage.put(f"chunks/{number}", b"1")
    await storage.create("refs/a", b"2")
    assert not calls.whole_syncs and len(calls.disk.synced) == 6


@given(st.lists(st.tuples(st.floats(0, 0.02), st.floats(0, 0.02)), min_size=1, max_size=300))
def test_the_faster_way_to_sync_is_used_nearly_always(seconds: list[tuple[float, float]]) -> None:
    times, singly, whole = durability._SyncTimes(), None, None
    exceptions = 0
    for alone, together in seconds:
        chosen = times.is_whole_next()
        if singly is None or singly > durability._FAST_SECONDS:
            assert not chosen, "a slow disk, or nothing is known of it"
        else:
            exceptions += chosen != (whole is None or whole < singly)
        times.note(together if chosen else alone, whole=chosen)
        if chosen:
            whole = together if whole is None else whole + (together - whole) / 8
        else:
            singly = alone if singly is None else singly + (alone - singly) / 8
    assert exceptions <= len(seconds) // durability._TRIED_AGAIN
