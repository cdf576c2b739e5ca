"""Whole ingests into real repositories, without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from icefloe import Repository, in_memory_storage
from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.local_ingest import SessionSink, ingest_local
from icefloe.ingest.parsers.registry import open_source
from icefloe.ingest.plan import PlanView
from icefloe.ingest.record import METADATA_KEY, explain_authorisation
from icefloe.ingest.source_model import SourceFile, SourceSchema, SourceVariable, intern_schemas, summarise_coordinate
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.write_tasks import run_task
from icefloe.testing.synthetic_weather import write_month

pytestmark = pytest.mark.filterwarnings("ignore")
GRID = {"nlat": 19, "nlon": 36, "variables": ("t2m", "tp")}


def _expected(folder: Path, pattern: str = "**/*.nc") -> xr.Dataset:
    return xr.open_mfdataset(sorted(str(p) for p in folder.glob(pattern)), engine="netcdf4", data_vars="minimal").load()


def _opened(place: str, *containers: str, group: str = "") -> xr.Dataset:
    repository = Repository.open(place, authorize_virtual_chunk_access=dict.fromkeys(containers))
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group or None, consolidated=False).load()


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_week_and_then_a_day_equal_the_sources(tmp_path: Path, mode: Any, packed: bool) -> None:
    write_month(tmp_path / "in put" / "a", days=3, packed=packed, **GRID)
    write_month(tmp_path / "in put" / "b", start=dt.date(2020, 1, 4), days=1, packed=packed, **GRID)
    place = str(tmp_path / "repo")
    repository = Repository.create(place)
    first = ingest_local(
        tmp_path / "in put" / "a", repository, IngestOptions(mode=mode, native_below_bytes=10_000), message="first"
    )
    above = normalise_url(tmp_path / "in put") + "/"
    second = ingest_local(
        tmp_path / "in put" / "b",
        repository,
        IngestOptions(mode=mode, append_dim="time", native_below_bytes=10_000, container_prefix=above),
    )
    containers = {*first.plan.containers, *second.plan.containers}  # type: ignore[union-attr]
    assert bool(containers) == (mode != "native")
    result = _opened(place, *containers)
    xr.testing.assert_equal(result.drop_vars("orography"), _expected(tmp_path).drop_vars("orography"))
    assert result.t2m.attrs["standard_name"] == "air_temperature"
    for prefix in containers:
        assert prefix in explain_authorisation(sorted(containers))


def test_a_dry_run_writes_nothing_and_prints_the_plan(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    repository = Repository.create(in_memory_storage())
    before = repository.lookup_branch("main")
    result = ingest_local(tmp_path / "a", repository, IngestOptions(mode="mixed"), dry_run=True)
    assert result.snapshot_id is None and repository.lookup_branch("main") == before
    console = Console(record=True, width=200, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(PlanView(result.plan))  # type: ignore[arg-type]
    shown = capture.get()
    assert "/t2m" in shown and "48 × 19 × 36" in shown and "2 sources" in shown


def test_sources_already_ingested_are_skipped_when_asked(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    repository = Repository.create(in_memory_storage())
    ingest_local(tmp_path / "a", repository, IngestOptions(append_dim="time"))
    write_month(tmp_path / "b", start=dt.date(2020, 1, 3), days=1, **GRID)
    options = IngestOptions(append_dim="time")
    sources = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(InvalidInputError, match="cannot append"):
        ingest_local(sources, repository, options)
    again = ingest_local(sources, repository, options, skip_ingested=True)
    assert again.already_there == 2 and len(again.plan.sources) == 1  # type: ignore[union-attr]
    done = ingest_local(sources, repository, options, skip_ingested=True)
    assert done.snapshot_id is None and done.already_there == 3
    record = next(iter(repository.ancestry(branch="main"))).metadata[METADATA_KEY]
    assert record["mode"] == "native" and record["sources"] == 1


def test_a_refused_ingest_leaves_the_branch_as_it_was(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    write_month(tmp_path / "a", start=dt.date(2020, 1, 3), days=1, nlat=10, nlon=36, variables=("t2m", "tp"))
    repository = Repository.create(in_memory_storage())
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="nothing was written"):
        ingest_local(tmp_path / "a", repository, IngestOptions(concat_dims=("time",)))
    assert repository.lookup_branch("main") == before


def test_a_broken_file_is_skipped_and_the_commit_says_so(tmp_path: Path) -> None:
    paths = write_month(tmp_path / "a", days=4, **GRID)
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    repository = Repository.create(in_memory_storage())
    with pytest.raises(InvalidInputError, match=paths[2].name):
        ingest_local(tmp_path / "a", repository)
    result = ingest_local(tmp_path / "a", repository, IngestOptions(on_error="skip"))
    data = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    assert np.isnan(data.t2m.values[48:72]).all() and np.isfinite(data.t2m.values[72:]).all()
    info = repository.lookup_snapshot(result.snapshot_id)  # type: ignore[arg-type]
    assert info.metadata[METADATA_KEY]["skipped"] == [paths[2].as_uri()]


@pytest.mark.parametrize("format", ["netcdf4", "netcdf3", "zarr"])
def test_every_synthetic_format_holds_the_same_weather(tmp_path: Path, format: Any) -> None:
    write_month(tmp_path / "in", days=2, format=format, packed=True, seed=4, **GRID)
    write_month(tmp_path / "ref", days=2, packed=True, seed=4, **GRID)
    place = str(tmp_path / "repo")
    ingest_local(tmp_path / "in", Repository.create(place), IngestOptions(group="w/x", chunks={"time": 5}))
    result = _opened(place, group="w/x")
    expected = _expected(tmp_path, "ref/*.nc")
    np.testing.assert_array_equal(result.t2m.values, expected.t2m.values)
    np.testing.assert_array_equal(result.time.values, expected.time.values)


@pytest.mark.parametrize("format", ["netcdf4", "netcdf3", "zarr"])
def test_sources_on_an_object_store_are_read_by_ranges(tmp_path: Path, format: Any) -> None:
    write_month(tmp_path / "in", days=2, format=format, **GRID)
    storage = in_memory_storage()
    for path in (tmp_path / "in").rglob("*"):
        if path.is_file():
            run_blocking(storage.put(f"data/{path.relative_to(tmp_path / 'in').as_posix()}", path.read_bytes()))
    access = SourceAccess({"s3://bucket": storage})
    repository = Repository.create(in_memory_storage())
    ingest_local("s3://bucket/data", repository, access=access)
    result = xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()
    write_month(tmp_path / "ref", days=2, **GRID)
    np.testing.assert_array_equal(result.t2m.values, _expected(tmp_path, "ref/*.nc").t2m.values)


def test_forks_carry_out_the_tasks_of_a_plan(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=4, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    options = IngestOptions(chunks={"time": 24}, task_bytes=1)
    plan = ingest_local(tmp_path / "a", repository, options, dry_run=True).plan
    assert plan is not None and len(plan.tasks) > 4
    session = repository.writable_session("main")
    SessionSink(session).begin(plan)
    fork = pickle.dumps(session.fork())
    returned = []
    for task in plan.tasks:
        own = pickle.loads(fork)
        run_task(pickle.loads(pickle.dumps(task)), plan.arrays, SessionSink(own))
        returned.append(pickle.dumps(own))
    session.merge(*(pickle.loads(f) for f in returned))
    session.commit("by forks")
    np.testing.assert_array_equal(_opened(str(tmp_path / "repo")).t2m.values, _expected(tmp_path).t2m.values)


def test_the_same_seed_makes_the_same_weather(tmp_path: Path, describe: Any) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_month(tmp_path / folder, days=1, seed=seed, **GRID)
    found = []
    for folder in "abc":
        with open_source(describe(tmp_path / folder / "weather-20200101.nc")) as source:
            found.append(source.values(source.find_variable("t2m"), (slice(0, 24), slice(0, 19), slice(0, 36))))
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    assert found[0].min() > 200 and found[0].max() < 330


def test_arrays_that_exist_are_not_written_over_unasked(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    repository = Repository.create(in_memory_storage())
    ingest_local(tmp_path / "a", repository)
    with pytest.raises(InvalidInputError, match="exists. Use append_dim"):
        ingest_local(tmp_path / "a", repository)


def _similar_schemas(count: int, seed: int) -> Iterator[SourceSchema]:
    """Schemas of files that were read one after the other: many parts are equal, and no part is the same object."""
    random = np.random.default_rng(seed)
    for number in range(count):
        variables = {
            path: SourceVariable(path, ("x",), (4,), "<f4", (2,), attributes={"comment": f"{kind} " * 500})
            for path, kind in zip(("/t", "/u"), random.integers(0, 3, 2).tolist(), strict=True)
        }
        coordinates = {
            "/x": summarise_coordinate(np.arange(4.0)),
            "/time": summarise_coordinate(np.array([number % 40], dtype=random.choice(["i4", "f8"]))),
        }
        groups = {"": {"title": "a" * int(random.integers(1, 3))}}
        yield SourceSchema(SourceFile(f"file:///{number}.nc"), "netcdf3", variables, coordinates, groups)


def _description(schema: SourceSchema) -> tuple[Any, ...]:
    kept = {
        path: (each.digest, None if each.values is None else (each.values.dtype.str, each.values.tolist()))
        for path, each in schema.coordinates.items()
    }
    return schema.file, schema.variables, kept, schema.groups


@pytest.mark.parametrize("seed", range(4))
def test_schemas_that_share_their_parts_are_equal_to_those_that_were_read(seed: int) -> None:
    shared = intern_schemas(_similar_schemas(700, seed))
    assert [_description(each) for each in shared] == [_description(each) for each in _similar_schemas(700, seed)]
    assert len({id(variable) for each in shared for variable in each.variables.values()}) == 6


@pytest.mark.long
def test_schemas_share_their_parts_while_they_are_read() -> None:
    tracemalloc.start()
    try:
        whole = len(list(_similar_schemas(4000, 1)))
        unshared = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        shared = intern_schemas(_similar_schemas(4000, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(shared) == whole
    assert peak < unshared / 2
