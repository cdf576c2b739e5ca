"""Chunks of variable grids move to places of the same shape, as numpy moves their cells, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError

RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
pytestmark = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
Lengths = list[int]


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


def _array(lengths: Lengths, written: list[bool], repository: Any) -> tuple[Any, Any, list[tuple[int, int]]]:
    """A session with an array of some written chunks, and the cells [first, end) of each chunk."""
    session = repository.writable_session("main")
    bounds = list(itertools.pairwise(itertools.accumulate(lengths, initial=0)))
    array = zarr.create_array(
        session.store,
        name="t",
        shape=(sum(lengths), 2),
        chunks=[lengths, [2]],
        dtype="i4",
        fill_value=0,
        overwrite=True,
    )
    for index, (first, end) in enumerate(bounds):
        if written[index]:
            array[first:end] = np.arange(first, end)[:, None] + 1
    return session, array, bounds


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_shift_moves_cells_as_numpy_does_or_is_refused(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    written = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    offset = data.draw(st.integers(-len(lengths), len(lengths)))
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session, array, bounds = _array(lengths, written, repository)
    before = array[:]
    moved = [(i, i + offset) for i in range(len(lengths)) if written[i] and 0 <= i + offset < len(lengths)]
    if any(lengths[a] != lengths[b] for a, b in moved):
        with pytest.raises(InvalidInputError, match="only move to a place of the same shape"):
            session.shift_array("/t", (offset, 0))
        np.testing.assert_array_equal(array[:], before)
        return
    session.shift_array("/t", (offset, 0))
    expected = np.zeros_like(before)
    for old, new in moved:
        expected[slice(*bounds[new])] = before[slice(*bounds[old])]
    session.commit("shift", allow_empty=True)
    found = zarr.open_array(repository.readonly_session("main").store, path="t", mode="r")[:]
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_permutation_moves_cells_as_numpy_does_or_is_refused(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=6))
    order = data.draw(st.permutations(range(len(lengths))))
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session, array, bounds = _array(lengths, [True] * len(lengths), repository)
    before = array[:]

    def forward(coords: Iterable[int]) -> list[int]:
        row, column = coords
        return [order[row], column]

    if any(lengths[a] != lengths[b] for a, b in enumerate(order)):
        with pytest.raises(InvalidInputError, match=r"chunk \(\d, 0\) of /t cannot move to \(\d, 0\)"):
            session.reindex_array("/t", forward)
        np.testing.assert_array_equal(array[:], before)
        return
    session.reindex_array("/t", forward)
    for old, new in enumerate(order):
        np.testing.assert_array_equal(array[slice(*bounds[new])], before[slice(*bounds[old])])


def test_chunks_behind_the_end_of_a_smaller_array_are_not_in_its_grid() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session, array, _ = _array([2, 3, 4, 3], [True] * 4, repository)
    array.resize((4, 2))
    node = session.state.tree.array("/t")
    assert node.grid == (2, 1)
    session.shift_array("/t", (2, 0))
    assert len(run_blocking(session.state.chunk_table(node))) == 0
    array.resize((12, 2))
    assert not array[:].any()
