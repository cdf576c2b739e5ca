"""Arrays whose chunks differ in length: months of 31, 28 and 31 days. Tables are right, or the request is refused."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import UnsupportedError
from icefloe.model.zarr_document import parse_document, parse_grid
from icefloe.tables import sql
from icefloe.tables.grids import find_grid
from icefloe.tables.metadata_tables import changed_blocks
from icefloe.tables.predicates import parse_predicate
from icefloe.tables.reading import read_blocks
from icefloe.tables.scans import plan_scan
from icefloe.tables.selection import BlockList
from icefloe.tables.statistics import keep_rows, measure_chunks, missing_chunks, summarise_array
from icefloe.tables.table_options import Revision, TableOptions, address_of
from icefloe.tables.targets import WriteOptions, write_rows

RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
needs_grids = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
MONTHS = [31, 28, 31]
VALUES = np.random.default_rng(3).normal(size=(90, 4, 6)).round(3)


@pytest.fixture
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


def _repository(chunks: Any, storage: Any = None) -> Repository:
    repository = Repository.create(storage or icefloe.in_memory_storage())
    with repository.transaction("main", message="months") as store:
        group = zarr.open_group(store, mode="w")
        names = ["time", "y", "x"]
        group.create_array("t", shape=VALUES.shape, chunks=chunks, dtype="f8", dimension_names=names)[:] = VALUES
        for name, length in zip(names, VALUES.shape, strict=True):
            group.create_array(name, data=np.arange(length) * 1.0, dimension_names=[name])
    return repository


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize(
    "query",
    [
        "select count(*) n, sum(t) s, min(t) low, max(t) high from t",
        "select count(*) n, sum(t) s from t where time >= 31 and time < 59 and x > 2",
        "select x, max(t) m from t where time between 30 and 31 group by x order by x",
        "select time, y, x, t from t where t > 2 order by time, y, x",
        "select time, avg(t) a from t group by time order by time limit 40",
    ],
)
def test_a_table_of_months_has_the_rows_of_a_table_of_days(query: str) -> None:
    months, days = _repository([MONTHS, [4], [3, 2, 1]]), _repository((1, 4, 6))
    found, expected = sql(months, query).arrow(), sql(days, query).arrow()
    assert found.column_names == expected.column_names and len(found) == len(expected) > 0
    for name in expected.column_names:
        assert np.allclose(found[name].to_numpy(), expected[name].to_numpy())


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("cell", [(0, 0, 0), (30, 3, 5), (31, 0, 2), (58, 3, 3), (59, 0, 4), (89, 3, 5)])
def test_the_blocks_of_a_changed_chunk_hold_all_of_its_cells(cell: tuple[int, int, int]) -> None:
    repository = _repository([MONTHS, [4], [3, 2, 1]])
    before = repository.lookup_branch("main")
    with repository.transaction("main", message="a cell") as store:
        zarr.open_array(store, path="t", mode="r+")[cell] = 9.0
    session = repository.readonly_session("main")
    grid = find_grid(session, "/", ["t"])
    change = changed_blocks(repository, grid, before, session)
    chosen = np.zeros(VALUES.shape, dtype=bool)
    for block in change.selection.blocks.part(0, len(change.selection.blocks)).coordinates().tolist():
        chosen[tuple(slice(n.start(b), n.start(b + 1)) for b, n in zip(block, grid.block, strict=True))] = True
    lengths = (MONTHS, [4], [3, 2, 1])
    edges = [np.cumsum([0, *each]) for each in lengths]
    at = [int(np.searchsorted(each, c, side="right")) - 1 for each, c in zip(edges, cell, strict=True)]
    chunk = tuple(slice(int(each[k]), int(each[k + 1])) for each, k in zip(edges, at, strict=True))
    assert chosen[chunk].all() and not chosen.all()


@st.composite
def grids(draw: st.DrawFn, cells: int) -> list[int]:
    """The lengths of chunks that cover some cells. The last chunk may be longer."""
    found: list[int] = []
    while sum(found) < cells:
        found.append(draw(st.integers(1, cells)))
    return found


def _write(repository: Repository, values: Any, **chunks: Any) -> None:
    """Write arrays over (time, x) with the same values, and coordinates. Zarr keeps lengths behind the end."""
    with repository.transaction("main", message="values") as store:
        group = zarr.open_group(store, mode="a")
        for name, lengths in chunks.items():
            long = tuple(map(sum, lengths)) if isinstance(lengths, list) else values.shape
            array = group.create_array(
                name, shape=long, chunks=lengths, dtype="f8", dimension_names=["time", "x"], fill_value=np.nan
            )
            array.resize(values.shape)
            array[:] = values
        for axis, name in enumerate(("time", "x")):
            group.create_array(name, data=np.arange(values.shape[axis]) * 1.0, dimension_names=[name])


def _analyse(repository: Repository, name: str) -> int:
    """Measure the chunks of an array, as the job does."""
    session = repository.readonly_session("main")
    variable = find_grid(session, "/", [name]).variables[0]
    scan = plan_scan(TableOptions(address_of(repository), Revision(), variables=(name,))).scan
    todo = missing_chunks(session, variable)
    part = BlockList(tuple((0, n) for n in scan.grid.blocks), todo).part(0, len(todo))
    blocks = (
        (int(np.ravel_multi_index(b.coordinates, scan.grid.blocks)), b.values[0]) for b in read_blocks(scan, part)
    )
    return keep_rows(session, variable, measure_chunks(variable, blocks))


@needs_grids
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_conditions_on_values_skip_the_chunks_that_cannot_match(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5)))
    values = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(np.arange(float(np.prod(shape))))
    values = np.where(values % 7 == 3, np.nan, values).reshape(shape)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        repository = Repository.create(icefloe.in_memory_storage())
        lengths = [data.draw(grids(n)) for n in shape]
        _write(repository, values, v=lengths)
        limit = data.draw(st.integers(0, values.size))
        bounds = [np.r_[0, np.cumsum(each)] for each in lengths]
        chunks = [
            values[a:b, c:d]
            for a, b in itertools.pairwise(bounds[0].tolist())
            for c, d in itertools.pairwise(bounds[1].tolist())
        ]
        assert _analyse(repository, "v") == sum(bool((~np.isnan(c)).any()) for c in chunks if c.size)
        options = TableOptions(address_of(repository), Revision(), variables=("v",))
        plan = plan_scan(options, loose=parse_predicate(f"v >= {limit}"))
        assert plan.chunks == sum(bool((c >= limit).any()) for c in chunks)
        found = sql(repository, f"select time, x, v from v where v >= {limit} order by time, x").arrow()
        expected = [(i, j, values[i, j]) for i, j in np.argwhere(values >= limit).tolist()]
        assert list(zip(*(found[name].to_pylist() for name in ("time", "x", "v")), strict=True)) == expected
        # Statistics answer without reading chunks.
        [row] = sql(repository, "select count(v) n, sum(v) s, min(v) low, max(v) high from v").arrow().to_pylist()
        there = values[~np.isnan(values)]
        wanted = {"n": there.size, "s": there.sum(), "low": there.min(), "high": there.max()} if there.size else None
        assert row == (wanted or {"n": 0, "s": None, "low": None, "high": None})
        summary = summarise_array(repository.readonly_session("main"), "/v")
        assert summary is not None and (summary.count, summary.total) == (there.size, there.sum())


@needs_grids
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rows_are_written_into_the_cells_that_numpy_would_set(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4)))
    values = np.arange(float(np.prod(shape))).reshape(shape)
    more = data.draw(st.integers(0, 5))
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, shape[0] + more - 1), st.integers(0, shape[1] - 1)), min_size=1, unique=True)
    )
    fresh = -1.0 - np.arange(len(rows))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        repository = Repository.create(icefloe.in_memory_storage())
        _write(
            repository,
            values,
            v=[data.draw(grids(n)) for n in shape],
            w=tuple(data.draw(st.integers(1, n)) for n in shape),
        )
        table = pa.table(
            {"time": [float(t) for t, _ in rows], "x": [float(x) for _, x in rows], "v": fresh, "w": fresh}
        )
        session = repository.writable_session("main")
        before = parse_grid(parse_document(session.state.tree.array("/v").document))[0]
        assert write_rows(session, table, WriteOptions()) == len(rows)
        # A new coordinate is added only if a row has it.
        new = sorted({t for t, _ in rows if t >= shape[0]})
        expected = np.full((shape[0] + len(new), shape[1]), np.nan)
        expected[: shape[0]] = values
        for (t, x), value in zip(rows, fresh, strict=True):
            expected[t if t < shape[0] else shape[0] + new.index(t), x] = value
        session.commit("rows")
        group = zarr.open_group(repository.readonly_session("main").store, mode="r")
        for name in ("v", "w"):
            np.testing.assert_array_equal(group[name][:], expected)
        after = parse_grid(parse_document(repository.readonly_session("main").state.tree.array("/v").document))[0]
        assert after.of(len(expected)) == before.of(len(expected))


_JOBS = """
import sys
import numpy as np, zarr
from icefloe import Repository
from icefloe.spark import connect, map_blocks, rechunk, reduce, table

repo, spark = Repository.open(sys.argv[1]), connect("local[2,2]", quick_start=True)
values = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")[:]
assert np.allclose(reduce(spark, repo, "mean", "time", variables=["t"]).t, values.mean(0))
assert np.isclose(table(spark, repo, variables="t").selectExpr("sum(t)").head()[0], values.sum())
map_blocks(spark, repo, lambda block: block * 2, repo, variables=["t"], target_group="twice")
rechunk(spark, repo, {"time": 45, "y": 4, "x": 6}, variables=["t"])
store = repo.readonly_session("main").store
assert np.array_equal(zarr.open_array(store, path="twice/t", mode="r")[:], values * 2)
array = zarr.open_array(store, path="t", mode="r")
assert array.chunks == (45, 4, 6) and np.array_equal(array[:], values)
spark.stop()
"""


@needs_grids
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
def test_jobs_on_months_equal_numpy(tmp_path: Path) -> None:
    """In a process of its own, because the workers of Spark need the variable when they start."""
    _repository([MONTHS, [4], [3, 2, 1]], icefloe.local_filesystem_storage(tmp_path / "repo"))
    variables = {**os.environ, "ZARR_ARRAY__RECTILINEAR_CHUNKS": "True"}
    subprocess.run([sys.executable, "-c", _JOBS, str(tmp_path / "repo")], env=variables, check=True)


def test_a_grid_that_this_zarr_does_not_read_is_named() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="t", shape=(6,), chunks=(6,), dtype="f8", dimension_names=["x"])
    stored = run_blocking(session.store.get("t/zarr.json", default_buffer_prototype()))
    assert stored is not None
    document = json.loads(stored.to_bytes())
    document["chunk_grid"] = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 3, 1]]}}
    run_blocking(session.store.set("t/zarr.json", cpu.Buffer.from_bytes(json.dumps(document).encode())))
    session.commit("a variable grid")
    advice = "ZARR_ARRAY__RECTILINEAR_CHUNKS" if RECTILINEAR else "newer zarr"
    with pytest.raises(UnsupportedError, match=f"/t has the chunk grid 'rectilinear', which zarr .*{advice}"):
        sql(repository, "select sum(t) from t")
