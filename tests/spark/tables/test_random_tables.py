"""Queries over random grids, types, chunks and conditions answer what xarray computes; what is written is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tables.test_table_scans import as_frame, datasets, same

import icefloe
from icefloe.xarray import to_icechunk

pytestmark = pytest.mark.spark(4, 0)


def draw_condition(data: st.DataObject, frame: pd.DataFrame) -> tuple[str, Any]:
    """SQL on some of the columns, and the rows of a frame that it means."""
    texts, kept = [], pd.Series(True, index=frame.index)
    for name in frame.columns:
        column = frame[name]
        operator = data.draw(st.sampled_from(["", "", ">=", "<=", "=", "!="]), label=str(name))
        if not operator or pd.api.types.is_bool_dtype(column):
            continue
        value = data.draw(st.sampled_from(sorted(column.dropna().unique().tolist())[:9] or [0]), label=f"{name} value")
        if pd.api.types.is_datetime64_any_dtype(column):
            if str(name).startswith("v"):
                # Stored to the nanosecond, compared to the microsecond.
                continue
            value = pd.Timestamp(value)
            spelled = f"'{value}'"
        elif isinstance(value, str):
            spelled = f"'{value}'"
        else:
            spelled = f"{float(value)!r}D" if pd.api.types.is_float_dtype(column) else str(value)
        texts.append(f"`{name}` {operator} {spelled}")
        compared = {">=": column >= value, "<=": column <= value, "=": column == value, "!=": column != value}[operator]
        # What is missing neither matches nor fails to match.
        kept &= compared & column.notna()
    return " and ".join(texts), kept


def fetch(df: Any, dims: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = df.toArrow().to_pandas()
    return frame.sort_values(dims).reset_index(drop=True)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(given_data=datasets(), data=st.data())
def test_queries_over_random_grids_are_those_of_xarray(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, given_data: Any, data: st.DataObject
) -> None:
    from icefloe.spark import analyze, table, write

    dataset, encoding = given_data
    folder: Path = tmp_path_factory.mktemp("grid")
    repo = icefloe.Repository.create(str(folder / "repo"))
    session = repo.writable_session("main")
    to_icechunk(dataset, session, encoding=encoding)
    session.commit("data")
    loaded = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    dims = [str(dim) for dim in loaded["v0"].dims]
    truth = as_frame(loaded[list(dataset.data_vars)].reset_coords(drop=True))
    if data.draw(st.booleans(), label="statistics"):
        analyze(spark, repo)
    where, kept = draw_condition(data, truth)
    chosen = table(spark, repo, where=where or None)
    same(fetch(chosen, dims), truth[kept].reset_index(drop=True))
    plain = spark.read.format("icefloe").load(str(folder / "repo"))
    same(fetch(plain.where(where) if where else plain, dims), truth[kept].reset_index(drop=True))
    by_time = chosen.groupBy("t").count().toPandas().set_index("t")["count"].to_dict()
    assert {pd.Timestamp(t): n for t, n in by_time.items()} == truth[kept].groupby("t").size().to_dict()
    if kept.any():
        write(chosen, str(folder / "copy"), dims=dims)
        everywhere = fetch(table(spark, str(folder / "copy")), dims).set_index(dims)
        wanted = fetch(chosen, dims).set_index(dims)
        pd.testing.assert_frame_equal(everywhere.loc[wanted.index], wanted, check_dtype=False)
