"""Rows land on the cell whose coordinates they have, whatever the types of their columns, or nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.tables.targets import WriteOptions, positions, write_rows

_TYPES = ["int8", "uint8", "int16", "int32", "int64", "uint64", "double"]


@given(
    coordinate=st.sampled_from(_TYPES),
    column=st.sampled_from(_TYPES),
    numbers=st.lists(
        st.sampled_from([0, 1, 2, 127, 255, 256, 2**31, 2**32 + 1, 2**52 + 1, -1]), min_size=1, unique=True
    ),
    half=st.booleans(),
)
def test_a_value_is_only_found_where_the_coordinate_is_equal(
    coordinate: str, column: str, numbers: list[int], half: bool
) -> None:
    axis = pa.array([0, 1, 2, 3], coordinate)
    fitting = [n for n in numbers if column == "double" or _holds(column, n)]
    values = pa.array([n + 0.5 if half and column == "double" else n for n in fitting], column)
    found = positions(values, axis)
    for value, place in zip(values.to_pylist(), found.tolist(), strict=True):
        assert place == (int(value) if value in (0, 1, 2, 3) else -1)


def _holds(column: str, number: int) -> bool:
    limits = np.iinfo(column)
    return int(limits.min) <= number <= int(limits.max)


def _stored() -> icefloe.Session:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    rows = pa.table({"x": pa.array([0, 1, 2], "int32"), "v": pa.array([0.0, 1.0, 2.0])})
    write_rows(session, rows, WriteOptions(dims=("x",)))
    return session


@pytest.mark.parametrize(
    "value", [pa.array([0.5]), pa.array([2**32 + 1]), pa.array(["north"]), pa.array([float("nan")])]
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_beside_the_grid_change_nothing(value: Any, mode: str) -> None:
    session = _stored()
    with pytest.raises(InvalidInputError, match="x"):
        write_rows(session, pa.table({"x": value, "v": pa.array([9.0])}), WriteOptions(mode=mode))
    array: Any = zarr.open_array(session.store, path="v", mode="r")
    np.testing.assert_array_equal(array[:], [0.0, 1.0, 2.0])


def test_doubles_that_are_whole_numbers_are_on_a_grid_of_integers() -> None:
    session = _stored()
    write_rows(session, pa.table({"x": pa.array([1.0]), "v": pa.array([9.0])}), WriteOptions(mode="upsert"))
    array: Any = zarr.open_array(session.store, path="v", mode="r")
    np.testing.assert_array_equal(array[:], [0.0, 9.0, 2.0])
