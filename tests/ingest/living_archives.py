"""Random histories of an archive whose files are added, replaced, deleted and touched while others use the repository.

After every sync the archive must be equal to a new ingest of the same files.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from tests.ingest.long_archives import RunCount, check_catalogue, compared_plans
from tests.maintenance.test_expired_bases import NEVER, Interrupted

import icefloe
from icefloe.ingest import IngestOptions, ingest_local
from icefloe.ingest.sync import SyncResult, sync_local

Sync = Callable[..., SyncResult]


class Killed(BaseException):
    """The process of a sync ends."""


class MortalStorage(Interrupted):
    """The storage of a process that can be killed at a request. Other processes get the storage behind it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.inner,)


class LivingArchive:
    """Files in a folder, and a repository that follows them."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        run: Sync = sync_local,
        storage: icefloe.Storage | None = None,
    ) -> None:
        """`run` syncs. `storage` is where the repository is."""
        self.random = random.Random(f"archive {seed}")
        self.folder = folder
        self.batch = random.Random(f"batch {seed}").choice((None, None, 1, 2))
        draw = self.random
        self.mode: Any = draw.choices(("native", "virtual", "mixed"), (4, 1, 1))[0]
        self.members = draw.choice((1, 1, 1, 2))
        self.cells = 1 if self.mode != "native" else draw.choice((1, 1, 2, 3))
        """How many times a file has at most."""
        self.is_packed = draw.random() < 0.2
        self.vanished: Any = draw.choice(("remove", "remove", "keep")) if self.mode == "native" else "remove"
        can_overlap = self.mode == "native" and self.members == 1 and self.vanished == "remove"
        self.overlap: Any = draw.choice(("error", "first", "last")) if can_overlap else "error"
        """Files overlap unless this is `error`."""
        chunks = {"time": draw.choice((1, 2, 3, 5))} if self.mode == "native" and draw.random() < 0.8 else {}
        dims = ("time", "member") if self.members > 1 else ("time",)
        self.options = IngestOptions(
            mode=self.mode,
            concat_dims=dims,
            chunks=chunks,
            allow_missing=True,
            native_below_bytes=64,
            group=draw.choice(("", "", "sub")),
            overlap=self.overlap,
            overlap_by=draw.choice(("name", "time", r"f(\d+)")),
        )
        self.generation = draw.choice(("repository", "repository", "icechunk1", "icechunk2", "store", "dataset"))
        self.run = run
        self.storage = MortalStorage(storage or icefloe.in_memory_storage())
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=draw.choice((0, 512)))
        self.repo = icefloe.Repository.create(self.storage, config, spec_version=self.generation)
        self.kept: dict[str, bytes] = {}
        """Files that vanished and stay in the archive."""
        self.clock = 1_000_000_000
        self.done: list[str] = []
        self.count = RunCount()
        self.ingested: dict[str, bytes] = {}
        """The files of the last sync, as they were then."""
        self.versions: dict[str, dict[str, bytes]] = {}
        """The same by snapshot."""

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, slot: int, member: int) -> Path:
        return self.folder / f"f{slot:03}_{member}.nc"

    def write(self, slot: int, member: int) -> None:
        """Write the file of a slot of time, with new values."""
        draw = self.random
        # Files of one time and different members have the same times.
        count = draw.randint(1, self.cells) if self.members == 1 else self.cells
        times = slot * 10.0 + np.arange(count)
        if self.overlap != "error":
            count = draw.randint(1, 5)
            times = slot * 2.0 + np.arange(count) * draw.choice((1, 1, 2))
        values = np.round(np.array([draw.uniform(-90, 90) for _ in range(count * 6)], dtype="f8"), 2)
        shape = (count, 2, 3) if self.members == 1 else (count, 1, 2, 3)
        dims = ("time", "y", "x") if self.members == 1 else ("time", "member", "y", "x")
        units = "hours since 2000-01-01" if self.mode != "native" else draw.choice(("hours since 2000-01-01",) * 3)
        coordinates: dict[str, Any] = {
            "time": ("time", times, {"units": units}),
            "y": ("y", [1.0, 2.0]),
            "x": ("x", [1.0, 2.0, 3.0]),
        }
        if self.members > 1:
            coordinates["member"] = ("member", [member])
        variables: dict[str, Any] = {"t": (dims, values.reshape(shape), {"units": "K"})}
        # Overlapping files with different variables are refused.
        if self.mode == "native" and self.overlap == "error" and draw.random() < 0.5:
            variables["q"] = (dims, values.reshape(shape).astype("f4") * 2)
        data = xr.Dataset(variables, coordinates, {"title": "archive"})
        encoding: dict[str, Any] = {"time": {"dtype": "f8", "_FillValue": None}}
        if self.is_packed:
            encoding["t"] = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -32768}
        path = self.path_of(slot, member)
        data.to_netcdf(path, encoding=encoding)
        self.stamp(path)
        self.kept.pop(path.name, None)

    def stamp(self, path: Path) -> None:
        """Give a file a time of its own: two versions of it are not of one second."""
        self.clock += 10
        os.utime(path, (self.clock, self.clock))

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("f*.nc"))

    # -- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One random change of the files or of the repository."""
        steps = {
            self.add: 6,
            self.replace: 3,
            self.delete: 2,
            self.touch: 1,
            self.edit: 1,
            self.expire: 1,
            self.compact: 1,
            self.collect: 1,
            self.undo: 1,
        }
        chosen = self.random.choices(list(steps), list(steps.values()))[0]
        self.done.append(chosen.__name__)
        chosen()
        self.versions[self.repo.lookup_branch("main")] = self.ingested

    def add(self) -> None:
        slot = self.random.randrange(12)
        for member in range(self.members):
            if self.random.random() < 0.9 or member == 0:
                self.write(slot, member)

    def replace(self) -> None:
        if files := self.files():
            name = self.random.choice(files).stem
            self.write(int(name[1:4]), int(name[5:]))

    def delete(self) -> None:
        files = self.files()
        tonight = self.done[::-1].index("sync") if "sync" in self.done else len(self.done)
        if self.vanished == "keep" and "edit" in self.done[len(self.done) - tonight :]:
            return  # somebody else changed the array, so that cells of a file that is gone cannot be written again
        if len(files) > 1:
            path = self.random.choice(files)
            if self.vanished == "keep" and path.name in self.ingested:
                self.kept[path.name] = self.ingested[path.name]
            path.unlink()

    def touch(self) -> None:
        if files := self.files():
            self.stamp(self.random.choice(files))

    def edit(self) -> None:
        """Somebody else changes the archive, or another array."""
        if self.kept:
            return  # cells of files that are gone cannot be written again
        session = self.repo.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        kind = self.random.randrange(4)
        prefix = f"{self.options.group}/" if self.options.group else ""
        if kind == 0 or f"{prefix}t" not in root:
            if "other" not in root:
                root.create_array("other", shape=(3,), dtype="i4", chunks=(1,), dimension_names=["o"])
            root["other"][self.random.randrange(3)] = 7
        elif kind == 1 and self.mode == "native":
            root[f"{prefix}t"][0] = 1
        elif kind == 2:
            root[f"{prefix}t"].attrs["note"] = "by hand"
        else:
            del root[f"{prefix}t"]
        session.commit("by hand", allow_empty=True)

    def expire(self) -> None:
        if not self.kept:
            self.repo.expire_snapshots(dt.timedelta(0))

    def compact(self) -> None:
        self.repo.rewrite_manifests("rewritten", branch="main")

    def collect(self) -> None:
        self.repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)

    def undo(self) -> None:
        """Go back to the snapshot before the last one."""
        history = list(self.repo.ancestry(branch="main"))
        if self.vanished == "keep" and history[1:] and history[1].message == "by hand":
            return  # cells of files that vanish later cannot be written again, because somebody else changed the array
        # A sync in batches has commits in between, of which the model does not know the files.
        if len(history) > 2 and not self.kept and (self.batch is None or history[1].id in self.versions):
            self.repo.reset_branch("main", history[1].id)
            self.ingested = self.versions.get(history[1].id, {})

    # -- sync -----------------------------------------------------------------------------------------------------

    def sync(self) -> SyncResult | None:
        """Sync, sometimes after a sync that was killed at some request, and compare with a new ingest."""
        if not self.files():
            return None
        if self.random.random() < 0.15:
            self.kill()
        result = self._sync(self.repo)
        if result.snapshot_id is not None:
            check_catalogue(self.repo, result.plan, self.options.group)
        self.ingested = {path.name: path.read_bytes() for path in self.files()}
        self.check(result)
        self.versions[self.repo.lookup_branch("main")] = self.ingested
        return result

    def _sync(self, repo: icefloe.Repository) -> SyncResult:
        with compared_plans(self.count):
            return self.run(str(self.folder / "f*.nc"), repo, self.options, vanished=self.vanished, batch=self.batch)

    def kill(self) -> None:
        def die() -> None:
            raise Killed

        self.storage.left, self.storage.action = self.random.randint(1, 30), die
        self.done.append(f"killed at {self.storage.left}")
        try:
            with contextlib.suppress(Killed):
                self._sync(icefloe.Repository.open(self.storage))
        finally:
            self.storage.left, self.storage.action = NEVER, lambda: None

    def check(self, result: SyncResult) -> None:
        fresh = icefloe.Repository.create(icefloe.in_memory_storage())
        for name, content in self.kept.items():
            (self.folder / name).write_bytes(content)
        try:
            ingest_local(str(self.folder / "f*.nc"), fresh, self.options)
            expected, found = self.read(fresh), self.read(self.repo)
        finally:
            for name in self.kept:
                (self.folder / name).unlink()
        xr.testing.assert_identical(self.without_others(found), self.without_others(expected))
        report = icefloe.Repository.open(self.repo.storage).verify()
        assert report.is_clean, report
        again = self._sync(self.repo)
        assert again.snapshot_id is None, f"a second sync has work to do: {again.plan}"

    def read(self, repo: icefloe.Repository) -> xr.Dataset:
        access = {f"file://{self.folder}/": None} if self.mode != "native" else None
        opened = icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=access) if access else repo
        store = opened.readonly_session("main").store
        return xr.open_zarr(
            store, group=self.options.group or None, consolidated=False, zarr_format=3, chunks=None
        ).load()

    @staticmethod
    def without_others(data: xr.Dataset) -> xr.Dataset:
        kept = data.drop_vars([name for name in ("other",) if name in data])
        for variable in kept.variables.values():
            variable.attrs.pop("note", None)
        return kept

    def live(self) -> None:
        """A history of some nights."""
        self.add()
        self.sync()
        for _ in range(self.random.randint(2, 6)):
            for _ in range(self.random.randint(1, 3)):
                self.step()
            try:
                self.sync()
            except Exception as error:
                told = (self.mode, self.generation, self.options.chunks, self.vanished, self.batch, self.done)
                raise AssertionError(f"history {told}: {error}") from error
            self.done.append("sync")
