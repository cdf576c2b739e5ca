"""Names of views, writes that cannot be placed and values that do not fit are told before a query runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.spark import register_views
from icefloe.tables.columns import ColumnCoding, encode_column
from icefloe.tables.targets import _extend
from icefloe.tables.views import list_views
from icefloe.xarray import to_icechunk

pytestmark = pytest.mark.spark(4, 0)


@pytest.fixture
def alike(tmp_path: Any) -> icefloe.Repository:
    """Arrays whose names SQL does not tell apart, and one that no table can show."""
    repository = icefloe.Repository.create(str(tmp_path / "alike"))
    with repository.transaction("main", message="alike") as store:
        zarr.create_group(store)
        zarr.create_group(store, path="a")
        for name, value, dim in (("a/b", 1.0, "i"), ("a_b", 2.0, "i"), ("Q", 10.0, "j"), ("q", 20.0, "k")):
            zarr.create_array(store, name=name, data=np.full(4, value), dimension_names=[dim])
        zarr.create_array(store, name="plain", data=np.full(4, 5.0), dimension_names=["m"])
        # Its column would have the name of its dimension.
        zarr.create_array(store, name="X", data=np.full(4, 7.0), dimension_names=["x"])
    return repository


def test_a_name_that_several_arrays_share_stands_for_none(alike: icefloe.Repository) -> None:
    views = {view.name: view for view in list_views(alike.readonly_session("main"))}
    assert not {"q", "Q", "a_b"} & set(views)
    shared = {(view.group, view.variables): view.name for view in views.values() if view.shares}
    assert set(shared) == {("/", ("Q",)), ("/", ("q",)), ("/", ("a_b",)), ("/a", ("b",))}
    assert len({name.lower() for name in views}) == len(views)
    assert list_views(alike.readonly_session("main")) == list_views(alike.readonly_session("main"))


def test_every_view_answers_from_its_own_array(spark: Any, alike: icefloe.Repository) -> None:
    made = register_views(spark, alike.storage.url)
    assert "plain" in made and "X" not in made
    wanted = {("/", "Q"): 10.0, ("/", "q"): 20.0, ("/", "a_b"): 2.0, ("/a", "b"): 1.0, ("/", "plain"): 5.0}
    for name, view in made.items():
        if view.table is None:
            [column] = view.variables
            assert spark.sql(f"SELECT max(`{column}`) FROM {name}").head()[0] == wanted[view.group, column]
    with pytest.raises(InvalidInputError, match="the name q is ambiguous: 2 arrays"):
        register_views(spark, alike, query="select * from q")
    assert set(register_views(spark, alike, query="select q from plain")) == {"plain"}


def test_a_write_without_a_place_says_what_to_do() -> None:
    from icefloe.spark.source import parse_sink_options

    with pytest.raises(UnsupportedError, match="INSERT INTO"):
        parse_sink_options({}, overwrite=False)


def test_numbers_that_their_array_cannot_hold_are_refused() -> None:
    coding = ColumnCoding("<f4", pa.float32())
    with pytest.raises(InvalidInputError, match="too large"):
        encode_column("v", coding, pa.array([1.0, 1e300]), np.nan)
    found = encode_column("v", coding, pa.array([0.1, np.inf, np.nan]), np.nan)
    np.testing.assert_array_equal(found, np.array([0.1, np.inf, np.nan], dtype="f4"))
    with pytest.raises(InvalidInputError, match="contains NaN"):
        _extend("lat", pa.array([1.0, 2.0]), pa.array([np.nan]), any_order=True)


def test_rows_at_nan_make_no_array(spark: Any, tmp_path: Any) -> None:
    from icefloe.spark import write

    rows = spark.sql("select cast('NaN' as double) lat, 1d v union all select 1d, 2d")
    with pytest.raises(InvalidInputError, match="contains NaN"):
        write(rows, str(tmp_path / "new"), dims=["lat"])


def test_an_odd_name_leaves_the_other_views_alone(spark: Any, tmp_path: Any) -> None:
    repository = icefloe.Repository.create(str(tmp_path / "odd"))
    session = repository.writable_session("main")
    names = ("select", "2t", "a b", "é.c", "c`k", "history")
    to_icechunk(xr.Dataset({name: ("x", np.arange(3.0)) for name in names}, {"x": np.arange(3)}), session)
    session.commit("odd")
    made = register_views(spark, repository)
    assert {"select", "2t", "a_b", "history", "icefloe_history"} <= set(made)
    assert spark.sql("select count(*) from `2t`").head()[0] == 3
