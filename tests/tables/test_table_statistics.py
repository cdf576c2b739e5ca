"""Ranges of values hold for the chunks they were measured of, and for no others."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.tables.grids import find_grid
from icefloe.tables.predicates import parse_predicate
from icefloe.tables.reading import read_blocks
from icefloe.tables.scans import plan_scan
from icefloe.tables.selection import BlockList
from icefloe.tables.statistics import keep_rows, load_ranges, measure_chunks, missing_chunks
from icefloe.tables.table_options import Revision, TableOptions, address_of
from icefloe.xarray import to_icechunk


def analyse(repo: icefloe.Repository) -> int:
    """What the job does, in this process."""
    session = repo.readonly_session("main")
    variable = find_grid(session, "/", ["v"]).variables[0]
    plan = plan_scan(TableOptions(address_of(repo), Revision(), variables=("v",)))
    todo = missing_chunks(session, variable)
    part = BlockList(tuple((0, n) for n in plan.scan.grid.blocks), todo).part(0, len(todo))
    blocks = plan.scan.grid.blocks
    found = ((int(np.ravel_multi_index(b.coordinates, blocks)), b.values[0]) for b in read_blocks(plan.scan, part))
    return keep_rows(session, variable, measure_chunks(variable, found))


def chunks_read(repo: icefloe.Repository, where: str) -> int:
    options = TableOptions(address_of(repo), Revision(), variables=("v",))
    return plan_scan(options, loose=parse_predicate(where)).chunks


@pytest.fixture(params=["repository", "icechunk2", "dataset", "store", "icechunk1"])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    session = repo.writable_session("main")
    values = np.arange(40.0).reshape(8, 5)
    values[0, 0] = np.nan
    to_icechunk(xr.Dataset({"v": (("t", "x"), values)}), session, encoding={"v": {"chunks": (2, 5)}})
    session.commit("data")
    return repo


def test_chunks_are_skipped_by_value_once_they_are_measured(repo: icefloe.Repository) -> None:
    assert chunks_read(repo, "v > 35") == 4
    assert analyse(repo) == 4
    assert chunks_read(repo, "v > 35") == 1
    assert chunks_read(repo, "v between 9 and 10") == 2
    assert chunks_read(repo, "v is null") == 1
    assert chunks_read(repo, "v > 100") == 0
    assert chunks_read(repo, "sqrt(v) > 100") == 4
    assert analyse(repo) == 0


def test_a_chunk_that_changed_is_read_until_it_is_measured_again(repo: icefloe.Repository) -> None:
    analyse(repo)
    session = repo.writable_session("main")
    change = xr.Dataset({"v": (("t", "x"), np.full((2, 5), 99.0))})
    to_icechunk(change, session, region={"t": slice(0, 2), "x": slice(0, 5)})
    session.commit("change")
    assert chunks_read(repo, "v > 35") == 2
    assert analyse(repo) == 1
    assert chunks_read(repo, "v > 50") == 1
    parent = next(info for number, info in enumerate(repo.ancestry(branch="main")) if number == 1)
    options = TableOptions(address_of(repo), Revision(snapshot_id=parent.id), variables=("v",))
    assert plan_scan(options, loose=parse_predicate("v > 35")).chunks == 1


def test_many_measurements_become_one_file(repo: icefloe.Repository) -> None:
    for number in range(11):
        session = repo.writable_session("main")
        change = xr.Dataset({"v": (("t", "x"), np.full((2, 5), float(number)))})
        to_icechunk(change, session, region={"t": slice(0, 2), "x": slice(0, 5)})
        session.commit("change")
        analyse(repo)
    session = repo.readonly_session("main")
    ranges = load_ranges(session, find_grid(session, "/", ["v"]).variables[0])
    assert ranges is not None and ranges.known.all() and ranges.high[0, 0] == 10.0


def test_chunks_that_were_never_written_are_known_by_their_fill_value(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    array = __import__("zarr").open_array(session.store, path="v", mode="r+")
    array.resize((20, 5))
    session.commit("longer")
    analyse(repo)
    assert chunks_read(repo, "v >= 0") == 4
    assert chunks_read(repo, "v is null") == 7


def test_cells_that_an_array_shows_since_it_grew_are_not_skipped_by_what_was_measured_before() -> None:
    zarr = __import__("zarr")
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="v", shape=(6,), chunks=(4,), dtype="f8", fill_value=0.0)
    array[:] = 5.0
    session.commit("data")
    assert analyse(repo) == 2
    assert chunks_read(repo, "v < 1") == 0
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+").resize((8,))
    session.commit("longer")
    assert chunks_read(repo, "v < 1") == 1
    assert analyse(repo) == 1
    assert chunks_read(repo, "v < 1") == 1 and chunks_read(repo, "v < -1") == 0


def test_totals_count_what_is_there_and_are_left_open_where_a_double_does_not_hold_them() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    values = np.array([1, 2, 2**60, 3, 5, 7], dtype="i8")
    to_icechunk(xr.Dataset({"v": (("x",), values)}), session, encoding={"v": {"chunks": (3,)}})
    session.commit("data")
    analyse(repo)
    session = repo.readonly_session("main")
    ranges = load_ranges(session, find_grid(session, "/", ["v"]).variables[0])
    assert ranges is not None and np.isnan(ranges.total[0]) and ranges.total[1] == 15


def test_complete_statistics_are_read_once_and_incomplete_ones_again_when_there_are_more(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = repo.readonly_session("main")
    [variable] = find_grid(session, "/", ["v"]).variables
    values = np.arange(40.0).reshape(4, 2, 5)
    listed: list[str] = []
    storage = session.state.context.storage
    list_names = type(storage).list_names

    async def counted(self: object, prefix: str) -> list[str]:
        listed.append(prefix)
        return await list_names(self, prefix)  # type: ignore[arg-type]

    monkeypatch.setattr(type(storage), "list_names", counted)
    assert load_ranges(session, variable) is None
    keep_rows(session, variable, measure_chunks(variable, [(0, values[0])]))
    ranges = load_ranges(session, variable)
    assert ranges is not None and ranges.known.sum() == 1
    assert load_ranges(session, variable) is ranges  # the same files
    keep_rows(session, variable, measure_chunks(variable, [(n, values[n]) for n in (1, 2, 3)]))
    listed.clear()
    ranges = load_ranges(session, variable)
    assert ranges is not None and ranges.known.all() and len(listed) == 1
    assert load_ranges(session, variable) is ranges and len(listed) == 1
    # Another session reads them itself.
    again = load_ranges(repo.readonly_session("main"), variable)
    assert again is not None and again is not ranges and again.known.all()
    # A writable session can change chunks, so nothing is kept for it.
    writable = repo.writable_session("main")
    assert load_ranges(writable, variable) is not load_ranges(writable, variable)
