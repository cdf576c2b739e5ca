"""Archives of dozens of files of which few change each night, so that most of them are planned in runs.

Every plan with runs is compared with a plan of each source, and the archive with a model of its files. The files of a
`LongArchive` follow each other in time. Those of a `GridArchive` have a cell of a grid each: a time, or the time, the
step and the member of a forecast.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import netCDF4
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr

import icefloe
import icefloe.ingest.sync as sync_module
from icefloe.ingest import IngestOptions, ingest_local, sync_local
from icefloe.ingest.local_ingest import Archive, read_archive
from icefloe.ingest.record import FoundSources
from icefloe.ingest.source_model import GAP
from icefloe.ingest.sync_plan import SyncPlan, plan_sync

MOST_SLOTS = 120


@dataclass
class RunCount:
    """How many plans have runs, and how many sources are in them."""

    plans: int = 0
    plans_with_runs: int = 0
    sources: int = 0
    sources_in_runs: int = 0
    moved_in_runs: int = 0


def _sorted_tasks(plan: SyncPlan) -> list[Any]:
    return sorted(
        (
            task.kind,
            task.arrays,
            sorted(task.window.items()),
            sorted(
                (f.file.url, sorted(f.origin.items()), sorted((p, v.path, v.shape) for p, v in f.variables.items()))
                for f in task.files
            ),
            task.bytes,
        )
        for task in plan.tasks
    )


def _facts(plan: SyncPlan) -> dict[str, Any]:
    """Everything that a plan does, and what it records."""
    fresh = plan.ingest
    sources = plan.catalogue.sources
    return {
        "arrays": {
            path: (each.is_rewritten, each.written, dict(each.moved), each.cleared, each.kept, each.array.document)
            for path, each in plan.arrays.items()
        },
        "deleted": plan.deleted,
        "documents": dict(plan.documents),
        "values": [(w.path, w.start, w.values.dtype, w.values.tobytes()) for w in plan.values],
        "tasks": _sorted_tasks(plan),
        "copies": sorted((c.path, str(c.old), str(c.new)) for c in plan.copies),
        "sources": {url: (s.file, s.digest, s.placed) for url in sources for s in (sources[url],)},
        "catalogue": (plan.catalogue.arrays, plan.catalogue.groups, plan.catalogue.chunks, plan.catalogue.settings),
        "ingest": fresh and (fresh.containers, fresh.sources, fresh.source_bytes, fresh.documents),
        # An issue names the first source of a run only. Gaps are shown to the user of a sync.
        "issues": fresh and {(i.severity, i.variable, i.facet) for i in fresh.report.issues},
        "gaps": fresh and sorted(str(issue) for issue in fresh.report.issues if issue.facet == GAP),
    }


@contextmanager
def compared_plans(count: RunCount) -> Iterator[None]:
    """Compare every plan of a sync with a plan without runs."""

    def plan_twice(found: FoundSources, options: IngestOptions, archive: Archive) -> SyncPlan:
        plan, alone = (plan_sync(found, options, archive, in_runs=each) for each in (True, False))
        expected, facts = _facts(alone), _facts(plan)
        for name, fact in facts.items():
            assert fact == expected[name], f"{name} of a plan with runs differ"
        runs = [file.run for each in (plan.ingest.datasets if plan.ingest else ()) for file in each.files if file.run]
        count.plans += 1
        count.plans_with_runs += bool(runs)
        count.sources += len(found.sources)
        count.sources_in_runs += sum(map(len, runs))
        count.moved_in_runs += plan.moved if runs else 0
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_module, "plan_sync", plan_twice)
        yield


def check_catalogue(repo: icefloe.Repository, plan: SyncPlan, group: str = "") -> None:
    """Check that the stored catalogue is the one of the plan."""
    stored = read_archive(repo, "main", group, rebuild=False).catalogue
    assert stored is not None
    found, expected = (
        {u: (s.file, s.digest, s.placed) for u, s in c.sources.items()} for c in (stored, plan.catalogue)
    )
    assert found == expected


@dataclass(frozen=True)
class Kind:
    """What the files of an archive are like."""

    mode: Any
    cells: int
    """How many times a file has."""
    chunk: int
    """The length of a chunk of the archive by value, or of a file by reference."""
    falls: bool = False
    """Times run backwards."""
    backward_names: bool = False
    """The order of names is the reverse of that of times."""
    has_second: bool = False
    """A part of the files is another kind: with a second variable, and without the first one."""
    vanished: Any = "remove"
    overlap: Any = "error"


def draw_kind(draw: random.Random) -> Kind:
    mode = draw.choices(("native", "virtual", "mixed"), (3, 1, 1))[0]
    cells = draw.choice((1, 1, 1, 2, 3))
    overlap = draw.choice(("error", "error", "last")) if mode == "native" else "error"
    chunk = draw.choice((1, cells, 2, 3, 4, 7)) if mode == "native" else draw.choice((1, cells))
    return Kind(
        mode,
        cells,
        chunk,
        falls=cells > 1 and draw.random() < 0.2,
        backward_names=draw.random() < 0.2,
        # Overlapping files with different variables are refused.
        has_second=draw.random() < 0.3 and overlap == "error",
        vanished=draw.choice(("remove", "remove", "keep")) if mode == "native" else "remove",
        overlap=overlap,
    )


class LongArchive:
    """Files in a folder, a repository that follows them, and what the files say."""

    def __init__(self, folder: Path, seed: int, kind: Kind | None = None, first: int = 40) -> None:
        self.random = random.Random(f"long archive {seed}")
        self.folder, self.first = folder, first
        self.kind = kind or draw_kind(self.random)
        mode, chunk = self.kind.mode, self.kind.chunk
        self.options = IngestOptions(
            mode=mode,
            append_dim="time",
            chunks={"time": chunk} if mode == "native" else {},
            allow_missing=True,
            native_below_bytes=64,
            overlap=self.kind.overlap,
        )
        self.repo = icefloe.Repository.create(icefloe.in_memory_storage())
        self.files: dict[int, dict[str, npt.NDArray[Any]]] = {}
        """What the file of a slot says, also of files that vanished and are kept."""
        self.gone: set[int] = set()
        self.ingested: dict[int, dict[str, npt.NDArray[Any]]] = {}
        """The files of the last sync."""
        self.clock = 1_000_000_000
        self.count = RunCount()
        self.done: list[str] = []

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, slot: int) -> Path:
        return self.folder / f"f{MOST_SLOTS - slot if self.kind.backward_names else slot:03}.nc"

    def write(self, slot: int) -> None:
        cells = self.kind.cells
        times = slot * 10.0 + np.arange(cells)
        if self.kind.overlap != "error" and cells > 1 and self.random.random() < 0.1:
            times = times - 9.0  # some of them are times of the file before
        times = times[::-1] if self.kind.falls else times
        name = "q" if self.kind.has_second and slot % 5 == 2 else "t"
        values = np.array([self.random.uniform(-90, 90) for _ in range(cells * 4)], "f4").reshape(cells, 2, 2)
        path = self.path_of(slot)
        path.unlink(missing_ok=True)
        with netCDF4.Dataset(path, "w") as file:
            for dim, length in (("time", cells), ("y", 2), ("x", 2)):
                file.createDimension(dim, length)
            time = file.createVariable("time", "f8", ("time",))
            time.units = "hours since 2000-01-01"
            time[:] = times
            step = file.createVariable("step", "i4", ("time",))
            step[:] = slot + np.arange(cells)
            file.createVariable("y", "f8", ("y",))[:] = [1.0, 2.0]
            file.createVariable("mask", "i1", ("y", "x"))[:] = [[0, 1], [1, 0]]
            chunks = None if self.kind.mode == "native" else (self.kind.chunk, 2, 2)
            # The few files with another encoding are written by value in mixed mode.
            is_odd = self.kind.mode == "mixed" and slot % 11 == 3
            file.createVariable(name, "f4", ("time", "y", "x"), zlib=is_odd, chunksizes=chunks)[:] = values
        self.files[slot] = {"time": times, name: values}
        self.gone.discard(slot)
        self.stamp(slot)

    def stamp(self, slot: int) -> None:
        self.clock += 10
        os.utime(self.path_of(slot), (self.clock, self.clock))

    def present(self) -> list[int]:
        return sorted(slot for slot in self.files if slot not in self.gone)

    # -- nights ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        self.write(min(MOST_SLOTS - 1, max(self.files) + self.random.choice((1, 1, 2))))

    def prepend(self) -> None:
        if min(self.files) > 0:
            self.write(min(self.files) - 1)

    def insert(self) -> None:
        free = [s for s in range(min(self.files), max(self.files)) if s not in self.files]
        if free:
            self.write(self.random.choice(free))

    def reissue(self) -> None:
        self.write(self.random.choice(self.present()))

    def remove(self) -> None:
        slot = self.random.choice(self.present())
        self.path_of(slot).unlink()
        known = self.ingested.get(slot) if self.kind.vanished == "keep" else None
        if known is not None:
            self.files[slot] = known
            self.gone.add(slot)
        else:
            del self.files[slot]

    def touch(self) -> None:
        self.stamp(self.random.choice(self.present()))

    def edit(self) -> None:
        """Somebody else changes a chunk. The next sync writes it again."""
        if self.kind.mode != "native" or self.gone or self.kind.vanished == "keep":
            return
        session = self.repo.writable_session("main")
        array = zarr.open_array(session.store, path=self.random.choice(("t", "t", "step")))
        array[self.random.randrange(array.shape[0])] = -1
        session.commit("by hand")

    def night(self) -> None:
        steps = [self.append, self.insert, self.insert, self.reissue, self.remove, self.prepend, self.touch, self.edit]
        for _ in range(self.random.randint(1, 3)):
            chosen = self.random.choice(steps)
            self.done.append(chosen.__name__)
            chosen()
        self.sync()

    def _sync(self) -> Any:
        return sync_local(str(self.folder / "f*.nc"), self.repo, self.options, vanished=self.kind.vanished)

    def sync(self) -> None:
        with compared_plans(self.count):
            result = self._sync()
        if result.snapshot_id is not None:
            check_catalogue(self.repo, result.plan)
        self.ingested = dict(self.files)
        self.check()
        assert self._sync().snapshot_id is None, "a second sync has work to do"
        self.done.append("sync")

    # -- what the archive must be ---------------------------------------------------------------------------------

    def read(self, repo: icefloe.Repository) -> xr.Dataset:
        access = {f"file://{self.folder}/": None} if self.kind.mode != "native" else None
        opened = icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=access) if access else repo
        store = opened.readonly_session("main").store
        return xr.open_zarr(store, consolidated=False, zarr_format=3, decode_times=False, chunks=None).load()

    def check(self) -> None:
        """Compare the archive with the model."""
        cells: dict[float, dict[str, Any]] = {}
        # Of files that overlap, the last one by its name is used.
        for slot in sorted(self.files, key=lambda each: self.path_of(each).name):
            file = self.files[slot]
            for index, time in enumerate(file["time"].tolist()):
                cells[time] = {name: values[index] for name, values in file.items() if name != "time"}
        found = self.read(self.repo)
        times = sorted(cells, reverse=self.kind.falls)
        assert found.time.values.tolist() == times
        for name in ("t", "q"):
            missing = np.full((2, 2), np.nan, "f4")
            if any(name in each for each in cells.values()):
                expected = np.stack([cells[time].get(name, missing) for time in times])
                np.testing.assert_array_equal(found[name].values, expected)
            else:
                assert name not in found

    def check_fresh(self) -> None:
        """Compare the archive with a new ingest of its files."""
        if self.gone:
            return
        fresh = icefloe.Repository.create(icefloe.in_memory_storage())
        ingest_local(str(self.folder / "f*.nc"), fresh, self.options)
        xr.testing.assert_identical(self.read(self.repo), self.read(fresh))
        report = icefloe.Repository.open(self.repo.storage).verify()
        assert report.is_clean, report

    def live(self, nights: int = 4) -> RunCount:
        for slot in self.random.sample(range(10, 10 + self.first * 5 // 4), self.first):
            self.write(slot)
        try:
            self.sync()
            for _ in range(nights):
                self.night()
            self.check_fresh()
        except Exception as error:
            raise AssertionError(f"{self.kind} {self.done}: {error}") from error
        return self.count


# -- archives with one file for every cell of a grid -------------------------------------------------------------------

Cell: TypeAlias = tuple[int, ...]
"""The numbers of the time, the step and the member of a file, as far as the archive has these dimensions."""
_DIMS = ("time", "step", "member")
_FIRST_DAY = dt.date(2000, 1, 1)


@dataclass(frozen=True)
class GridKind:
    """What the files of an archive with one file for every cell of a grid are like."""

    counts: tuple[int, ...]
    """How many times, steps and members there are at first."""
    chunks: tuple[int, ...]
    """The chunk lengths of the archive by value."""
    mode: Any = "native"
    named: tuple[str, ...] = ()
    """The dimensions whose coordinates are in the names of files only."""
    scalar: bool = False
    """Files have a scalar time, and no dimension."""
    step_first: bool = False
    """Names begin with the step."""
    options: dict[str, Any] = field(default_factory=dict)
    vanished: Any = "remove"
    has_lead: bool = False
    """Files have a variable that depends on the step only."""
    has_valid: bool = False
    """Files have a coordinate that depends on the time and the step."""
    missing: float = 0.1
    """The share of files that are missing at first."""

    @property
    def is_found(self) -> bool:
        """Whether the joined dimension is found from scalar times."""
        return self.scalar and self.chunks == (1,)

    @property
    def dims(self) -> tuple[str, ...]:
        return _DIMS[: len(self.counts)]


def draw_grid_kind(draw: random.Random) -> GridKind:
    rank = draw.choice((1, 2, 2, 3))
    dims = _DIMS[:rank]
    mode = draw.choices(("native", "virtual", "mixed"), (4, 1, 1))[0]
    named = draw.choice(((), (), dims, dims[:1], dims[1:]))
    arranged = {"sort": {"y": draw.choice(("ascending", "descending"))}} if mode == "native" else {}
    options: dict[str, Any] = draw.choice(
        ({}, {}, {"tolerance": 0.01}, arranged, {"flip": dims[:1]}, {"sort": {dims[-1]: "ascending"}})
    )
    if mode == "native" and draw.random() < 0.2:
        options = {**options, "longitudes": "-180..180"}
    arranged_dims = {*options.get("sort", ()), *options.get("flip", ())}
    return GridKind(
        ((24,), (10, 4), (6, 3, 2))[rank - 1],
        tuple(draw.choice((1, 1, 2, 3)) for _ in dims),
        mode,
        named,
        # Files without a dimension cannot be sorted along it.
        scalar=rank == 1 and not named and draw.random() < 0.4 and "time" not in arranged_dims,
        step_first=draw.random() < 0.3,
        options=options,
        vanished=draw.choice(("remove", "remove", "keep")) if mode == "native" else "remove",
        has_lead=rank > 1 and not named and draw.random() < 0.3,
        has_valid=rank > 1 and not named and draw.random() < 0.3,
        missing=draw.choice((0.0, 0.1, 0.3)),
    )


class GridArchive:
    """Files of single cells of a grid, a repository that follows them, and what the files say."""

    def __init__(self, folder: Path, seed: int, kind: GridKind | None = None) -> None:
        self.random = random.Random(f"grid archive {seed}")
        self.folder = folder
        self.kind = kind or draw_grid_kind(self.random)
        dims = self.kind.dims
        order = ("step", "time", "member") if self.kind.step_first else _DIMS
        fields = {"time": "{time:%Y%m%d}", "step": "{step:3d}", "member": "{member:2d}"}
        parts = [fields[d] if d in self.kind.named else "*" for d in order if d in dims]
        self.options = IngestOptions(
            mode=self.kind.mode,
            concat_dims=tuple(d for d in dims if d not in self.kind.named) if not self.kind.is_found else None,
            chunks=dict(zip(dims, self.kind.chunks, strict=True))
            if self.kind.mode == "native" and not self.kind.is_found
            else {},
            allow_missing=True,
            native_below_bytes=8,
            pattern=f"f_{'_'.join(parts)}.nc" if self.kind.named else None,
            **self.kind.options,
        )
        self.order = [d for d in order if d in dims]
        self.repo = icefloe.Repository.create(icefloe.in_memory_storage())
        self.files: dict[Cell, npt.NDArray[Any]] = {}
        """What the file of a cell says, also of files that vanished and are kept."""
        self.gone: set[Cell] = set()
        self.ingested: dict[Cell, npt.NDArray[Any]] = {}
        self.first = 10
        self.clock = 1_000_000_000
        self.count = RunCount()
        self.done: list[str] = []

    # -- files ----------------------------------------------------------------------------------------------------

    def coordinate(self, dim: str, number: int) -> float:
        """The coordinate of a file: the day, the hours of the step, or the member."""
        return {"time": float(number), "step": 6.0 * number, "member": float(number)}[dim]

    def path_of(self, cell: Cell) -> Path:
        numbers = dict(zip(self.kind.dims, cell, strict=True))
        texts = {"time": (_FIRST_DAY + dt.timedelta(numbers["time"])).strftime("%Y%m%d")}
        texts |= {
            dim: f"{int(self.coordinate(dim, n)):0{3 if dim == 'step' else 2}}"
            for dim, n in numbers.items()
            if dim != "time"
        }
        return self.folder / f"f_{'_'.join(texts[dim] for dim in self.order)}.nc"

    def write(self, cell: Cell) -> None:
        kind = self.kind
        numbers = dict(zip(kind.dims, cell, strict=True))
        own = [] if kind.scalar else [dim for dim in kind.dims if dim not in kind.named]
        values = np.array([self.random.uniform(-90, 90) for _ in range(4)], "f4").reshape(2, 2)
        path = self.path_of(cell)
        path.unlink(missing_ok=True)
        with netCDF4.Dataset(path, "w") as file:
            for dim, length in (*((dim, 1) for dim in own), ("y", 2), ("lon", 2)):
                file.createDimension(dim, length)
            for dim in own or (["time"] if kind.scalar else []):
                variable = file.createVariable(dim, "f8", (dim,) if own else ())
                variable[...] = self.coordinate(dim, numbers[dim])
                if dim == "time":
                    variable.units = "days since 2000-01-01"
            file.createVariable("y", "f8", ("y",))[:] = [2.0, 1.0]
            file.createVariable("lon", "f8", ("lon",))[:] = [190.0, 10.0]
            file.createVariable("mask", "i1", ("y", "lon"), fill_value=-1)[:] = [[0, 1], [1, 0]]
            if kind.has_lead:
                file.createVariable("lead", "f8", ("step",))[:] = self.coordinate("step", numbers["step"]) / 24
            if kind.has_valid:
                hours = numbers["time"] * 24 + self.coordinate("step", numbers["step"])
                file.createVariable("valid", "f8", ("time", "step"))[:] = hours
            chunks = None if kind.mode == "native" else (*(1 for _ in own), 2, 2)
            data = file.createVariable("t", "f4", (*own, "y", "lon"), chunksizes=chunks)
            if kind.has_valid:
                data.coordinates = "valid"
            data[...] = values.reshape(data.shape)
        self.files[cell] = values
        self.gone.discard(cell)
        self.stamp(cell)

    def stamp(self, cell: Cell) -> None:
        self.clock += 10
        os.utime(self.path_of(cell), (self.clock, self.clock))

    def present(self) -> list[Cell]:
        return sorted(cell for cell in self.files if cell not in self.gone)

    def others(self) -> list[Cell]:
        """All positions along the other dimensions than time."""
        return list(itertools.product(*(range(n) for n in self.kind.counts[1:])))

    # -- nights ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        """A new run of the model. The last steps may be late."""
        others = self.others()
        number = max(cell[0] for cell in self.files) + self.random.choice((1, 1, 2))
        for other in others[: self.random.choice((len(others), max(1, len(others) - 1)))]:
            self.write((number, *other))

    def prepend(self) -> None:
        number = min(cell[0] for cell in self.files) - 1
        for other in self.others() if number >= 0 else ():
            self.write((number, *other))

    def insert(self) -> None:
        numbers = range(min(cell[0] for cell in self.files), max(cell[0] for cell in self.files))
        free = [
            cell for cell in itertools.product(numbers, *map(range, self.kind.counts[1:])) if cell not in self.files
        ]
        if free:
            self.write(self.random.choice(free))

    def extend(self) -> None:
        """A file with a step or a member that no other file has."""
        if len(self.kind.counts) > 1:
            cell = list(self.random.choice(self.present()))
            axis = self.random.randrange(1, len(cell))
            cell[axis] = max(each[axis] for each in self.files) + 1
            self.write(tuple(cell))

    def reissue(self) -> None:
        self.write(self.random.choice(self.present()))

    def remove(self) -> None:
        cell = self.random.choice(self.present())
        self.path_of(cell).unlink()
        if self.kind.vanished == "keep" and cell in self.ingested:
            self.files[cell] = self.ingested[cell]
            self.gone.add(cell)
        else:
            del self.files[cell]

    def touch(self) -> None:
        self.stamp(self.random.choice(self.present()))

    def edit(self) -> None:
        """Somebody else changes a chunk. The next sync writes it again."""
        if self.kind.mode != "native" or self.kind.vanished == "keep":
            return
        session = self.repo.writable_session("main")
        array = zarr.open_array(session.store, path="t")
        array[tuple(self.random.randrange(n) for n in array.shape)] = -1
        session.commit("by hand")

    def night(self) -> None:
        steps = [self.append, self.insert, self.insert, self.reissue, self.remove, self.prepend, self.touch, self.edit]
        for _ in range(self.random.randint(1, 3)):
            chosen = self.random.choice([*steps, self.extend])
            self.done.append(chosen.__name__)
            chosen()
        self.sync()

    def _sync(self) -> Any:
        return sync_local(str(self.folder / "f_*.nc"), self.repo, self.options, vanished=self.kind.vanished)

    def sync(self) -> None:
        with compared_plans(self.count):
            result = self._sync()
        if result.snapshot_id is not None:
            check_catalogue(self.repo, result.plan)
        self.ingested = dict(self.files)
        self.check()
        assert self._sync().snapshot_id is None, "a second sync has work to do"
        self.done.append("sync")

    # -- what the archive must be ---------------------------------------------------------------------------------

    def read(self, repo: icefloe.Repository) -> xr.Dataset:
        access = {f"file://{self.folder}/": None} if self.kind.mode != "native" else None
        opened = icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=access) if access else repo
        store = opened.readonly_session("main").store
        return xr.open_zarr(store, consolidated=False, zarr_format=3, decode_timedelta=False, chunks=None).load()

    def check(self) -> None:
        """Compare the archive with the model."""
        found, dims = self.read(self.repo), self.kind.dims
        numbers = [sorted({cell[axis] for cell in self.files}) for axis in range(len(dims))]
        for dim, own in zip(dims, numbers, strict=True):
            expected: Any = [self.coordinate(dim, number) for number in own]
            if dim == "time":
                expected = [np.datetime64("2000-01-01") + np.timedelta64(number, "D") for number in own]
            assert found[dim].values.tolist() == np.array(expected, found[dim].dtype).tolist()
        values = np.full((*map(len, numbers), 2, 2), np.nan, "f4")
        for cell, own_values in self.files.items():
            values[tuple(n.index(i) for n, i in zip(numbers, cell, strict=True))] = own_values
        if self.kind.options.get("sort", {}).get("y") == "ascending":
            values = values[..., ::-1, :]
        if "longitudes" in self.kind.options:
            assert found.lon.values.tolist() == [-170.0, 10.0]
        np.testing.assert_array_equal(found["t"].transpose(*dims, "y", "lon").values, values)

    def check_fresh(self) -> None:
        """Compare the archive with a new ingest of its files."""
        if self.gone:
            return
        fresh = icefloe.Repository.create(icefloe.in_memory_storage())
        ingest_local(str(self.folder / "f_*.nc"), fresh, self.options)
        xr.testing.assert_identical(self.read(self.repo), self.read(fresh))
        report = icefloe.Repository.open(self.repo.storage).verify()
        assert report.is_clean, report

    def live(self, nights: int = 4) -> RunCount:
        times, *others = (range(n) for n in self.kind.counts)
        for cell in itertools.product(range(self.first, self.first + len(times)), *others):
            if self.random.random() >= self.kind.missing:
                self.write(cell)
        try:
            self.sync()
            for _ in range(nights):
                self.night()
            self.check_fresh()
        except Exception as error:
            raise AssertionError(f"{self.kind} {self.done}: {error}") from error
        return self.count
