"""Tables read from repositories hold what xarray reads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.tables.predicates import parse_predicate
from icefloe.tables.reading import PICKED, list_type, plan_rows, read_rows, scan_batches
from icefloe.tables.scans import plan_scan
from icefloe.tables.table_options import (
    RepositoryAddress,
    Revision,
    TableOptions,
    address_of,
    normalise_options,
    parse_options,
    parse_zone,
)
from icefloe.tables.targets import WriteOptions, write_rows
from icefloe.xarray import to_icechunk


@st.composite
def datasets(draw: st.DrawFn) -> tuple[xr.Dataset, dict[str, Any]]:
    """A dataset with one grid, and how it is stored."""
    sizes = {dim: draw(st.integers(1, 6)) for dim in draw(st.sampled_from([("t",), ("t", "y"), ("t", "y", "x")]))}
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    coords: dict[str, Any] = {"t": pd.date_range("2001-02-27T18:00", periods=sizes["t"], freq="6h")}
    if "y" in sizes and draw(st.booleans()):
        coords["y"] = np.round(np.sort(rng.uniform(-90, 90, sizes["y"])), 2).astype(draw(st.sampled_from(["f4", "f8"])))
    if "x" in sizes and draw(st.booleans()):
        coords["x"] = [f"s{i}é" for i in range(sizes["x"])]
    shape = tuple(sizes.values())
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    variables, encoding = {}, {}
    for number in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["f4", "f8", "i2", "u4", "u1", "?", "packed", "time", "f2"]))
        name = f"v{number}"
        values = rng.uniform(-100, 100, shape)
        encoding[name] = {"chunks": chunks if draw(st.booleans()) else shape}
        if kind == "packed":
            values = np.round(values, 1)
            values[rng.uniform(size=shape) < 0.2] = np.nan
            encoding[name] |= {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -32768}
        elif kind == "time":
            values = np.datetime64("1999-12-31", "ns") + (np.abs(values) * 1e6).astype("i8") * np.timedelta64(
                1000, "ns"
            )
        elif kind in ("f4", "f8", "f2"):
            values[rng.uniform(size=shape) < 0.2] = np.nan
            values = values.astype(kind)
        else:
            values = np.abs(values).astype(kind)
        variables[name] = (tuple(sizes), values)
    return xr.Dataset(variables, coords={k: v for k, v in coords.items() if k in sizes}), encoding


def repository_of(dataset: xr.Dataset, encoding: dict[str, Any] | None = None) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    to_icechunk(dataset, session, encoding=encoding or {})
    session.commit("data")
    return repo


def read(repo: icefloe.Repository, *, tasks: int = 1, **options: Any) -> pd.DataFrame:
    """Cells as the data source yields them, ordered by position."""
    plan = plan_scan(TableOptions(address_of(repo), Revision(), **options), tasks=tasks)
    batches = [batch for part in plan.parts for batch in scan_batches(plan.scan, part)]
    table = pa.Table.from_batches(batches, schema=plan.scan.grid.schema())
    frame = table.to_pandas()
    return frame.sort_values(list(plan.scan.grid.dims)).reset_index(drop=True) if plan.scan.grid.dims else frame


def as_frame(dataset: xr.Dataset) -> pd.DataFrame:
    dims = list(dataset.dims)
    frame = dataset.to_dataframe(dim_order=[str(d) for d in dims]).reset_index()
    for name in dims:
        if name not in dataset.coords:
            frame[name] = frame[name].astype("i8")
    return frame.sort_values(dims).reset_index(drop=True)


def same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert list(ours.columns) == [*(c for c in theirs.columns)]
    assert len(ours) == len(theirs)
    for name in ours.columns:
        a, b = ours[name], theirs[name]
        if pd.api.types.is_datetime64_any_dtype(b):
            gap = (a.dt.tz_localize(None) - b).abs().fillna(pd.Timedelta(0))
            assert (gap <= pd.Timedelta("1us")).all() and (a.isna() == b.isna()).all()
        elif pd.api.types.is_numeric_dtype(b):
            np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=1e-6, equal_nan=True)
        else:
            assert a.tolist() == b.tolist()


@pytest.mark.long
@settings(max_examples=40)
@given(given_data=datasets())
def test_cells_are_what_xarray_reads(given_data: Any) -> None:
    dataset, encoding = given_data
    repo = repository_of(dataset, encoding)
    expected = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    same(read(repo), as_frame(expected[list(dataset.data_vars)].reset_coords(drop=True)))


@pytest.mark.long
@settings(max_examples=40)
@given(given_data=datasets(), data=st.data())
def test_regions_are_what_xarray_selects(given_data: Any, data: st.DataObject) -> None:
    dataset, encoding = given_data
    repo = repository_of(dataset, encoding)
    times = pd.DatetimeIndex(dataset.t.values)
    low, high = sorted(data.draw(st.tuples(st.sampled_from(list(times)), st.sampled_from(list(times)))))
    chosen = dataset.sel(t=slice(low, high))
    region = f"t={low.isoformat()}:{high.isoformat()}"
    index = ""
    if "y" in dataset.dims:
        first = data.draw(st.integers(0, dataset.sizes["y"] - 1))
        index = f"y={first}:{first + 2}"
        chosen = chosen.isel(y=slice(first, first + 2))
        if "y" not in dataset.coords:
            chosen = chosen.assign_coords(y=np.arange(dataset.sizes["y"])[first : first + 2])
    # With more tasks than shares, other threads decode ahead.
    tasks = data.draw(st.sampled_from([1, 100]))
    same(read(repo, tasks=tasks, region=region, region_index=index), as_frame(chosen))


CONSTANTS = [
    "3",
    "2.5",
    "1e300",
    "9007199254740993",
    "true",
    "'s1é'",
    "'NaN'",
    "'2001-02-28'",
    "'not a time'",
    "timestamp '2001-02-28 00:00:00'",
    "date '2001-02-28'",
    "-0.0",
    "3000000000",
    "0.1d",
]


@settings(max_examples=30)
@given(datasets(), st.data())
def test_a_condition_is_refused_when_it_is_planned_or_decides_every_cell(given_data: Any, data: st.DataObject) -> None:
    dataset, encoding = given_data
    columns = st.sampled_from([*dataset.dims, *dataset.data_vars])
    constants = st.sampled_from(CONSTANTS)
    lists = st.lists(constants, min_size=1, max_size=3).map(", ".join)
    leaf = st.one_of(
        st.builds("{} {} {}".format, columns, st.sampled_from(["<", "<=", "=", "!=", ">", ">="]), constants),
        st.builds("{} {} ({})".format, columns, st.sampled_from(["in", "not in"]), lists),
        st.builds("{} is null".format, columns),
    )
    joined = st.builds("({} {} {})".format, leaf, st.sampled_from(["and", "or"]), leaf)
    where = data.draw(st.one_of(leaf, joined))
    repo = repository_of(dataset, encoding)
    address = address_of(repo)
    try:
        plan = plan_scan(TableOptions(address, Revision(), where=where))
    except InvalidInputError as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert "cannot be evaluated here" in told or "only SQL can evaluate" in told
        return
    # Every block, also those that the plan left out.
    whole = plan_scan(TableOptions(address, Revision()))
    scan = replace(whole.scan, exact=plan.scan.exact)
    kept = sum(len(batch) for part in whole.parts for batch in scan_batches(scan, part))
    assert kept == sum(len(batch) for part in plan.parts for batch in scan_batches(plan.scan, part))


def test_an_undecidable_condition_is_told_in_the_words_of_the_query() -> None:
    repo = repository_of(xr.Dataset({"v": ("x", np.arange(3.0))}))
    with pytest.raises(InvalidInputError, match=r"`v > 'NaN'` on a column of type double.*WHERE"):
        plan_scan(TableOptions(address_of(repo), Revision(), where="v > 'NaN'"))


ZONES = ["Europe/Berlin", "Asia/Kolkata", "America/New_York", "Pacific/Kiritimati", "+05:45", "GMT-8", "UTC"]
DATES = [
    "date '2001-02-27'",
    "date '2001-02-28'",
    "timestamp '2001-02-28 06:00:00'",
    "timestamp '2001-02-28 06:00:00Z'",
]
TIMES = [*DATES, "'2001-02-28'", "'2001-02-28 02:30'", "'2001-02-28T12:00Z'", "'1999-12-31'", "'0001-01-01'"]


@pytest.mark.long
@settings(max_examples=40)
@given(given_data=datasets(), data=st.data())
def test_a_plan_without_a_zone_reads_in_every_zone_what_a_plan_for_that_zone_reads(
    given_data: Any, data: st.DataObject
) -> None:
    dataset, encoding = given_data
    names = ["t", *(name for name in dataset.data_vars if dataset[name].dtype.kind == "M")]
    columns, times, dates = st.sampled_from(names), st.sampled_from(TIMES), st.sampled_from(DATES)
    leaf = st.one_of(
        st.builds("{} {} {}".format, columns, st.sampled_from(["<", "<=", "=", "!=", ">", ">="]), times),
        st.builds("{} {} ({}, {})".format, columns, st.sampled_from(["in", "not in"]), dates, dates),
        st.builds("{} is not null".format, st.sampled_from(list(dataset.dims))),
    )
    where = data.draw(st.one_of(leaf, st.builds("({} {} {})".format, leaf, st.sampled_from(["and", "or"]), leaf)))
    layout = data.draw(st.sampled_from(["cells", "rows", "chunks"]))
    zone = parse_zone(data.draw(st.sampled_from(ZONES)))
    repo = repository_of(dataset, encoding)
    options = TableOptions(address_of(repo), Revision(), where=where, layout=layout)
    known, unknown = plan_scan(options, zone=zone), plan_scan(options, zone=None)
    expected = [row for part in known.parts for batch in scan_batches(known.scan, part) for row in batch.to_pylist()]
    found = []
    for part in unknown.parts:
        scan, left = unknown.scan.in_zone(part, zone) if unknown.scan.needs_zone else (unknown.scan, part)
        found += [row for batch in scan_batches(scan, left) for row in batch.to_pylist()]
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("name", "hours"),
    [("+02:00", 2.0), ("GMT-3", -3.0), ("UTC+5:30", 5.5), ("+0545", 5.75), ("Z", 0.0), ("-18", -18.0)],
)
def test_zones_are_known_by_offset(name: str, hours: float) -> None:
    moment = pd.Timestamp("2020-06-01").to_pydatetime()
    assert parse_zone(name).utcoffset(moment) == pd.Timedelta(hours=hours).to_pytimedelta()


@pytest.mark.parametrize("name", ["Mars/Olympus", "+19:00", "+2000000", ""])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="time zone .* is unknown"):
        parse_zone(name)


@settings(max_examples=30)
@given(given_data=datasets())
def test_rows_of_lists_hold_every_cell_once(given_data: Any) -> None:
    dataset, encoding = given_data
    repo = repository_of(dataset, encoding)
    plan = plan_scan(TableOptions(address_of(repo), Revision(), layout="rows"))
    layout = plan_rows(plan.scan.grid, plan.scan.masks)
    lists = [batch for part in plan.parts for batch in read_rows(plan.scan, part, layout)]
    assert sum(len(batch.column("v0").flatten()) for batch in lists) == dataset["v0"].size
    plain = [batch for part in plan.parts for batch in scan_batches(plan.scan, part)]
    assert sum(len(batch.column("v0").flatten()) for batch in plain) == dataset["v0"].size


def test_only_lists_of_numbers_that_may_be_missing_have_nulls() -> None:
    numbers = np.arange(70.0)
    numbers[3] = np.nan
    names = ("floats", "doubles", "packed", "filled", "plain")
    encoding: dict[str, Any] = {
        "packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1},
        "filled": {"dtype": "i4", "_FillValue": -1},
    }
    stored = {"floats": numbers.astype("f4"), "plain": np.arange(70)}
    dataset = xr.Dataset({name: ("x", stored.get(name, numbers)) for name in names})
    repo = repository_of(dataset, encoding)
    plan = plan_scan(TableOptions(address_of(repo), Revision()))
    (batch,) = read_rows(plan.scan, plan.parts[0], plan_rows(plan.scan.grid, plan.scan.masks))
    nullable = {name for name in names if batch.schema.field(name).type.value_field.nullable}
    missing = {name: batch.column(name).flatten()[3].as_py() for name in names}
    assert nullable == {"filled"}
    assert missing["filled"] is None and missing["plain"] == 3
    assert all(np.isnan(missing[name]) for name in ("floats", "doubles", "packed"))
    plain = [b for part in plan.parts for b in scan_batches(plan.scan, part)]
    assert plain[0].column("floats")[3].as_py() is None


@pytest.mark.long
@settings(max_examples=40)
@given(given_data=datasets(), threshold=st.floats(-5, 5), loose=st.booleans())
def test_cells_that_cannot_match_are_left_out_of_lists_where_they_are_many(
    given_data: Any, threshold: float, loose: bool
) -> None:
    dataset, encoding = given_data
    repo = repository_of(dataset, encoding)
    text = f"v0 > {threshold}" + (" or sqrt(v0) > 1" if loose else "")
    plan = plan_scan(TableOptions(address_of(repo), Revision()), loose=parse_predicate(text))
    layout = plan_rows(plan.scan.grid, plan.scan.masks, picked=True)
    batches = [batch for part in plan.parts for batch in read_rows(plan.scan, part, layout)]
    stored = plan_scan(TableOptions(address_of(repo), Revision()))
    values = pa.concat_arrays([b.column("v0") for part in stored.parts for b in scan_batches(stored.scan, part)])
    lists = pa.concat_arrays([b.column("v0") for b in batches] or [pa.array([], list_type(values.type))])
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    matching = sum(1 for v in values.to_pylist() if v is not None and v > threshold) if numeric else 0
    found = lists.flatten()
    if loose or not numeric:
        assert len(found) == len(values)
        return
    assert sum(1 for v in found.to_pylist() if v is not None and v > threshold) == matching
    for batch in batches:
        for picked, each in zip(batch.column(PICKED).to_pylist(), batch.column("v0").to_pylist(), strict=True):
            if picked is not None:
                # What a list leaves out, it leaves out for good: its cells all match, and know their places.
                assert all(v is not None and v > threshold for v in each)
                assert picked == sorted(set(picked)) and len(picked) == len(each) > 0


@pytest.mark.long
@settings(max_examples=40)
@given(given_data=datasets(), share=st.floats(0.2, 1.0))
def test_rows_that_are_written_are_read_back(given_data: Any, share: float) -> None:
    dataset, _ = given_data
    source = repository_of(dataset)
    plan = plan_scan(TableOptions(address_of(source), Revision()))
    batches = [batch for part in plan.parts for batch in scan_batches(plan.scan, part)]
    table = pa.Table.from_batches(batches)
    rows = np.random.default_rng(len(table)).permutation(len(table))[: max(1, int(len(table) * share))]
    table = table.take(pa.array(rows))
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    nullable = [
        name
        for name in table.column_names
        if table.column(name).null_count and table.schema.field(name).type == pa.bool_()
    ]
    assert not nullable
    written = write_rows(session, table, WriteOptions(dims=plan.scan.grid.dims, chunks={"t": 2}))
    session.commit("rows")
    assert written == len(table)
    dims = list(plan.scan.grid.dims)
    back = read(repo).set_index(dims)
    wanted = table.to_pandas().set_index(dims)
    pd.testing.assert_frame_equal(back.loc[wanted.index], wanted, check_dtype=False)
    rest = back.drop(wanted.index)
    for name in rest.columns:
        if table.schema.field(name).type != pa.bool_():
            assert rest[name].isna().all()


def rows(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_appended_rows_extend_the_grid_and_keep_the_rest() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    write_rows(session, rows(t=[1, 1, 2], y=[0.5, 1.5, 0.5], v=[1.0, 2.0, 3.0]), WriteOptions(dims=("t", "y")))
    session.commit("first")
    session = repo.writable_session("main")
    write_rows(session, rows(t=[2, 4], y=[1.5, 0.5], v=[4.0, 5.0]), WriteOptions())
    session.commit("second")
    frame = read(repo)
    assert frame.t.tolist() == [1, 1, 2, 2, 4, 4]
    assert frame.v.fillna(-1).tolist() == [1, 2, 3, 4, 5, -1]


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        (rows(t=[0], y=[0.5], v=[1.0]), WriteOptions(), "before the last existing value"),
        (rows(t=[3], y=[9.0], v=[1.0]), WriteOptions(), "not on the grid"),
        (rows(t=[3], y=[0.5], v=[1.0]), WriteOptions(mode="upsert"), "does not extend"),
        (rows(t=[1, 1], y=[0.5, 0.5], v=[1.0, 2.0]), WriteOptions(), "several rows"),
        (rows(t=[1], y=[None], v=[1.0]), WriteOptions(), "has nulls"),
        (rows(t=[1], v=[1.0]), WriteOptions(), "no column"),
        (rows(t=[1], y=[0.5], v=["x"]), WriteOptions(), "does not fit"),
    ],
)
def test_rows_that_do_not_fit_are_refused(table: pa.Table, options: WriteOptions, told: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    write_rows(session, rows(t=[1, 2], y=[0.5, 1.5], v=[1.0, 2.0]), WriteOptions(dims=("t", "y")))
    session.commit("first")
    with pytest.raises(InvalidInputError, match=told):
        write_rows(repo.writable_session("main"), table, options)


@pytest.mark.parametrize(("how", "value"), [("min", 1.0), ("max", 4.0), ("sum", 5.0), ("mean", 2.5)])
def test_several_rows_for_a_cell_are_settled_as_told(how: str, value: float) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    write_rows(session, rows(t=[1, 1, 2], v=[1.0, 4.0, 7.0]), WriteOptions(dims=("t",), duplicates=how))
    session.commit("x")
    assert read(repo).v.tolist() == [value, 7.0]


def test_overwriting_replaces_the_grid() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    for table in (rows(t=[1, 2, 3], v=[1.0, 2.0, 3.0]), rows(t=[7], v=[9.0])):
        session = repo.writable_session("main")
        write_rows(session, table, WriteOptions(dims=("t",), mode="overwrite"))
        session.commit("x")
    assert read(repo).values.tolist() == [[7.0, 9.0]]


def test_variables_of_two_grids_are_named_apart() -> None:
    dataset = xr.Dataset({"a": (("x",), np.zeros(3)), "b": (("x",), np.zeros(3)), "c": (("x", "y"), np.zeros((3, 2)))})
    repo = repository_of(dataset)
    with pytest.raises(InvalidInputError, match=r"2 different grids.*a, b over \(x: 3\); c over \(x: 3, y: 2\)"):
        read(repo)
    assert len(read(repo, variables=("a", "b"))) == 3
    with pytest.raises(NodeNotFoundError, match="There are: a, b, c"):
        read(repo, variables=("d",))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "/x", "foo": "1"}, "unknown option 'foo'"),
        ({}, "`path` is missing"),
        ({"path": "/x", "layout": "wide"}, "layout is 'wide', expected one of cells, rows, chunks"),
        ({"path": "/x", "branch": "a", "tag": "b"}, "branch and tag"),
        ({"path": "/x", "as_of": "yesterday"}, "as_of"),
        ({"path": "/x", "partition_bytes": "many"}, "partition_bytes"),
        ({"path": "/x", "decode": "maybe"}, "decode"),
        ({"path": "/x", "table": "chunk"}, "table is 'chunk'"),
        ({"path": "/x", "storage.secret_access_key": "abc"}, "shown in query plans"),
    ],
)
def test_options_are_checked_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told) as caught:
        parse_options(normalise_options(options))
    assert "abc" not in str(caught.value)


def test_a_place_never_shows_what_it_carries() -> None:
    assert repr(RepositoryAddress("s3://b/p", packed=b"secret")) == "RepositoryAddress('s3://b/p')"


_WORKER = """
import os, sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.sql.worker.plan_data_source_read")
os.environ.pop("ICEFLOE_DRIVER_PID", None)
from icefloe.tables.table_options import absolute_address
print(absolute_address("sub/repo"))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("SparkSubmit pyspark-shell", "driver"), ("SparkSubmit script.py", "session"), ("SparkConnectServer", "refused")],
)
def test_relative_paths_start_at_the_directory_of_a_driver_that_started_spark_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, expected: str
) -> None:
    # The process that plans is started by the JVM, and the JVM by the driver, which has changed its directory since.
    java = tmp_path / "java"
    java.symlink_to(Path(sys.executable).resolve())
    for name in ("driver", "session", "worker"):
        (tmp_path / name).mkdir()
    (tmp_path / "worker.py").write_text(_WORKER)
    started = "import subprocess, sys; subprocess.run([sys.argv[1], sys.argv[2]], cwd='../worker')"
    command = [str(java), "-c", started, sys.executable, str(tmp_path / "worker.py"), *arguments.split()]
    monkeypatch.chdir(tmp_path / "driver")
    ended = subprocess.run(command, cwd=tmp_path / "session", capture_output=True, text=True, check=False)
    if expected == "refused":
        assert "InvalidInputError: give an absolute path instead of 'sub/repo'" in ended.stderr
    else:
        assert ended.stdout.strip() == str(tmp_path / expected / "sub" / "repo"), ended.stderr
