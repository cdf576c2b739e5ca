"""A plan of many new sources in runs is the plan of each of them, or the same error."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.ingest import IngestOptions, SessionSink, expand_sources
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.local_ingest import read_existing, read_schemas
from icefloe.ingest.plan import IngestPlan, plan_ingest
from icefloe.ingest.record import store_containers
from icefloe.ingest.runs import plan_table
from icefloe.ingest.schema_table import SchemaTable
from icefloe.ingest.source_model import (
    SourceFailure,
    SourceFile,
    SourceSchema,
    SourceVariable,
    digest_values,
    summarise_coordinate,
)
from icefloe.ingest.write_tasks import IngestTask, run_task

UNITS = "hours since 1970-01-01"


def stack(schema: SourceSchema, style: str) -> SourceSchema:
    """The same source without the dimension time. Its time is a scalar, or in its name."""
    prefix = next(path for path in schema.coordinates if path.endswith("lat")).removesuffix("lat")
    cells = dict(schema.variables)
    if style != "length one":
        for path, each in cells.items():
            kept = [axis for axis, dim in enumerate(each.dims) if dim != "time"]
            dims, shape, chunks = ([part[axis] for axis in kept] for part in (each.dims, each.shape, each.chunks))
            cells[path] = replace(each, dims=tuple(dims), shape=tuple(shape), chunks=tuple(chunks))
    gone = () if style == "scalar" else (f"{prefix}time",)
    return replace(
        schema,
        variables={path: each for path, each in cells.items() if path not in gone},
        coordinates={path: each for path, each in schema.coordinates.items() if path not in gone},
    )


def make_schema(
    number: int, times: Sequence[float], draw: random.Random, *, kind: int = 0, folder: str = "", odd: str = ""
) -> SourceSchema:
    """A source with the variables time, lat, t2m and mask, and the auxiliary coordinate `cycle` along time."""
    length, prefix = len(times), f"{folder}/" if folder else ""
    units = "days since 1970-01-01" if odd == "units" else UNITS
    lat = np.arange(3.0) + (0.5 if odd == "grid" else 0.0)
    cells: dict[str, SourceVariable] = {
        "time": SourceVariable("time", ("time",), (length,), "<f8", (length,), {"units": units}),
        "lat": SourceVariable("lat", ("lat",), (3,), "<f8", (3,)),
        "t2m": SourceVariable("t2m", ("time", "lat"), (length, 3), "<f4", (1, 3), {"kind": kind}),
        "mask": SourceVariable("mask", ("lat",), (3,), "<i1", (3,)),
        "cycle": SourceVariable("cycle", ("time",), (length,), "<i4", (length,), {"coordinates": "time"}),
    }
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    cells = {name: replace(each, codecs=(bytes_codec,)) for name, each in cells.items()}
    if odd == "type":
        cells["t2m"] = replace(cells["t2m"], dtype="<f8")
    if odd == "lacks":
        del cells["t2m"]
    if odd == "scalar":
        times = times[:1]
        cells["time"] = replace(cells["time"], dims=(), shape=(), chunks=())
    mask = np.array([number if odd == "mask" else 1] * 3, dtype="i1")
    digests = {} if odd == "large mask" else {"mask": digest_values(mask)}
    digests["t2m"] = f"{number:032x}"
    values = np.array(times, dtype="f8") if odd != "nan" else np.full(len(times), np.nan)
    return SourceSchema(
        SourceFile(f"file:///data/{folder or 'x'}/{number}.nc", 1000 + number, version=str(number)),
        "hdf5",
        {prefix + name: replace(each, path=prefix + name) for name, each in cells.items()},
        {
            prefix + "time": summarise_coordinate(values),
            prefix + "lat": summarise_coordinate(lat),
            prefix + "cycle": summarise_coordinate(np.arange(length, dtype="i4") + draw.randrange(2)),
        },
        {"": {"history": f"made at {number}"}} | ({folder: {}} if folder else {}),
        digests=digests,
    )


ODD = ["", "", "", "units", "grid", "type", "lacks", "scalar", "mask", "large mask", "nan"]


STYLES = ["", "", "", "scalar", "name", "length one"]


def make_archive(draw: random.Random, style: str = "") -> list[SourceSchema]:
    """Sources that mostly follow each other, with names in any order, gaps, and now and then one that does not fit."""
    count, length = draw.randrange(1, 60), draw.choice([1, 1, 1, 2, 4]) if not style else 1
    numbers = list(range(count))
    if draw.random() < 0.2:
        draw.shuffle(numbers)
    folder = draw.choice(["", "", "", "group"])
    kinds = draw.choice([1, 1, 2])
    odd, chance = draw.choice(ODD), draw.choice([0.0, 0.05, 1.0])
    steady = draw.random() < 0.8
    schemas, start = [], 0.0
    for position, number in enumerate(numbers):
        times = [start + step for step in range(length)]
        start += length + draw.choice([0, 0, 0, 0, 5, -1 if draw.random() < 0.02 else 0])
        own = odd if draw.random() < chance else ""
        kind = 0 if kinds == 1 or position < count // 2 else 1
        if style:
            state = random.Random(7 if steady else position)  # whether the other scalar differs between sources
            made = make_schema(number, times, state, kind=kind, folder=folder, odd=own if own != "scalar" else "")
            schemas.append(stack(made, style))
            continue
        schemas.append(make_schema(number, times, draw, kind=kind, folder=folder, odd=own))
    return sorted(schemas, key=lambda schema: int(schema.file.name.removesuffix(".nc")))


def make_options(draw: random.Random, style: str = "") -> IngestOptions:
    return IngestOptions(
        mode=draw.choice(["native", "virtual", "mixed"]),
        append_dim=draw.choice(["time", "time", None]),
        concat_dims=("time",) if draw.random() < (0.6 if style else 0.1) else None,
        pattern=draw.choice(["{time:d}.nc", "{time:d}.nc", "{time:f}.nc", "{time:s}.nc"])
        if style in ("name", "length one")
        else None,
        group=draw.choice(["", "a/b"]),
        variables=draw.choice([None, None, ("t2m",)]),
        allow_missing=draw.random() < 0.2,
        unchecked=draw.random() < 0.2,
        chunks={},
        files_per_task=draw.choice([1, 7, 32]),
        task_bytes=draw.choice([64, 1 << 20]),
        overlap="last" if draw.random() < 0.1 else "error",
        tolerance=0.1 if draw.random() < 0.1 else None,
    )


def facts_of(plan: IngestPlan) -> dict[str, Any]:
    tasks = [pickle.loads(pickle.dumps(task)).of_files() for task in plan.tasks]
    return {
        "documents": dict(plan.documents),
        "arrays": {path: (each.kind, each.shape, each.chunks, each.joined) for path, each in plan.arrays.items()},
        "values": [(w.path, w.start, w.values.dtype, repr(w.values.tolist())) for w in plan.values],
        "tasks": [(t.id, t.kind, t.arrays, t.window, t.bytes, [files_of(t)]) for t in tasks],
        "issues": plan.report.rows(),
        "rest": (plan.containers, plan.sources, plan.source_bytes, plan.skipped),
        "repeated": sorted((r.path, r.other.file.url) for r in plan.repeated),
    }


def files_of(task: IngestTask) -> list[Any]:
    return [
        (f.file, f.format, dict(f.origin), {p: (v.path, v.dims, v.shape, v.chunks) for p, v in f.variables.items()})
        for f in task.files
    ]


def outcome_of(plan: Any, *args: Any, **settings: Any) -> tuple[Any, IngestPlan | None]:
    try:
        found: IngestPlan = plan(*args, **settings)
    except InvalidInputError as error:
        return str(error), None
    return facts_of(found), found


def count_in_runs(plan: IngestPlan | None) -> int:
    return 0 if plan is None else sum(f.count for t in plan.tasks for f in t.files if f.run is not None)


@given(st.integers(0, 2**32))
def test_a_plan_in_runs_is_the_plan_of_each_source(seed: int) -> None:
    draw = random.Random(seed)
    style = draw.choice(STYLES)
    schemas, options = make_archive(draw, style), make_options(draw, style)
    failures = []
    if len(schemas) > 3 and draw.random() < 0.1:
        options = replace(options, on_error="skip")
        failures = [SourceFailure(schemas.pop(draw.randrange(1, len(schemas) - 1)).file, "broken", "FormatError")]
    table = SchemaTable(options=options)
    for first in range(0, len(schemas), 7):
        part = schemas[first : first + 7]
        if draw.random() < 0.5:
            table.add(part)
            continue
        # A task has read them.
        files = [schema.file for schema in part]
        table.join(pickle.loads(pickle.dumps(SchemaTable(part, options).without_files(files))), files)
    wanted, _ = outcome_of(plan_ingest, schemas, options, failures=failures)
    assert outcome_of(plan_table, table, options, failures=failures)[0] == wanted


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
def test_most_sources_of_a_plain_archive_are_in_runs(mode: Any) -> None:
    draw = random.Random(1)
    schemas = [make_schema(n, [n * 2.0, n * 2.0 + 1], draw) for n in range(500)]
    schemas[250] = replace(schemas[250], groups={"": {"history": "another"}, "more": {}})
    options = IngestOptions(mode=mode, append_dim="time")
    _, plan = outcome_of(plan_table, SchemaTable(schemas, options), options)
    # The first source of each kind is planned alone.
    assert count_in_runs(plan) == 498


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("style", ["scalar", "name", "length one"])
@pytest.mark.parametrize("appended", [True, False])
def test_most_sources_that_are_stacked_are_in_runs(mode: Any, style: str, appended: bool) -> None:
    schemas = [stack(make_schema(n, [n * 2.0], random.Random(1)), style) for n in range(500)]
    pattern = None if style == "scalar" else "{time:d}.nc"
    options = IngestOptions(mode=mode, append_dim="time" if appended else None, pattern=pattern)
    if style == "length one":
        # The other coordinate along time must be in a column, which it is only if it differs.
        schemas = [replace(s, coordinates={p: c for p, c in s.coordinates.items() if p != "cycle"}) for s in schemas]
    _, plan = outcome_of(plan_table, SchemaTable(schemas, options), options)
    assert count_in_runs(plan) == 499


def test_a_table_has_every_schema() -> None:
    draw = random.Random(2)
    schemas = [make_schema(n, [n + 0.0], draw, kind=n % 2, odd=draw.choice(ODD)) for n in range(40)]
    table = SchemaTable(schemas)
    assert len(table) == len(schemas)
    found = {schema.file.url: schema for schema in table}
    for schema in schemas:
        own = found[schema.file.url]
        assert (own.variables, own.digests, own.groups) == (schema.variables, schema.digests, schema.groups)
        assert own.coordinates.keys() == schema.coordinates.keys()
        for path, coordinate in schema.coordinates.items():
            assert own.coordinates[path].digest == coordinate.digest
            np.testing.assert_array_equal(own.coordinates[path].values, coordinate.values)
    assert [file.url for file in table.files()] == [schema.file.url for schema in schemas]
    files = [schema.file for schema in schemas]
    joined = SchemaTable()
    for part in (slice(0, 25), slice(25, 40)):
        joined.join(pickle.loads(pickle.dumps(SchemaTable(schemas[part]).without_files(files[part]))), files[part])
    assert [*map(repr, joined)] == [*map(repr, table)]
    assert joined.files() == files


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_tasks_with_runs_write_what_the_files_have(tmp_path: Path, mode: Any) -> None:
    """Two ingests of 30 files, the second one appended to the first."""
    for day in range(60):
        values = np.float32(day) + np.array([[0, 0, 0], [0.5, 0.5, 0.5]], dtype="f4")
        coordinates = {"time": np.arange(2) + day * 2, "x": [0, 1, 2]}
        data = xr.Dataset({"t": (("time", "x"), values)}, coordinates, {"history": f"day {day}"})
        data.to_netcdf(tmp_path / f"{day:03d}.nc", unlimited_dims=["time"])
    storage, authorised = icefloe.in_memory_storage(), {f"file://{tmp_path}/": None}
    options = IngestOptions(mode=mode, append_dim="time", files_per_task=8, task_bytes=64)
    repository = icefloe.Repository.create(storage)
    files, in_runs = expand_sources(str(tmp_path / "*.nc")), 0
    for part in (files[:30], files[30:]):
        access = icefloe.containers_credentials(authorised)
        opened = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
        existing = read_existing(opened.readonly_session("main"))
        plan = plan_table(SchemaTable(read_schemas(part, SourceAccess())[0], options), options, existing=existing)
        session = store_containers(repository, plan.containers, (), {}).writable_session("main")
        sink = SessionSink(session)
        sink.begin(plan)
        for task in plan.tasks:
            run_task(pickle.loads(pickle.dumps(task)).of_files(), plan.arrays, sink)
        session.commit("files")
        in_runs += count_in_runs(plan)
    assert in_runs >= 58
    opened = icefloe.Repository.open(storage, authorize_virtual_chunk_access=icefloe.containers_credentials(authorised))
    group = zarr.open_group(opened.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(group["t"][:, 1], np.arange(120) / 2)
    np.testing.assert_array_equal(group["time"][:], np.arange(120))
    assert group.attrs["history"] == "day 0"
