"""Filters and limits of Spark in the data source: pushed only if a probe shows that no row is lost, and then right."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from tests.servers.java import spark_missing, spark_too_old

import icefloe

if spark_missing() or spark_too_old((4, 1)):
    pytest.skip("Spark has pushFilters since 4.1", allow_module_level=True)

from pyspark.sql import datasource as api

from icefloe.spark import pushdown, register, register_views
from icefloe.spark.pushdown import FILTERS, PUSHDOWN, ProbeSource, Pushdown, filters_predicate, find_pushdown
from icefloe.spark.source import PushingDataSource, PushingReader, TableReader
from icefloe.tables.predicates import And, Unknown
from icefloe.tables.table_options import parse_options

pytestmark = pytest.mark.spark(4, 1)
_COMPARE = {
    api.EqualTo: operator.eq,
    api.GreaterThan: operator.gt,
    api.GreaterThanOrEqual: operator.ge,
    api.LessThan: operator.lt,
    api.LessThanOrEqual: operator.le,
}


@pytest.fixture
def asking(spark: Any) -> Iterator[Any]:
    """A session that is asked also if its version is known to be wrong."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


@pytest.fixture
def pushing(asking: Any) -> Iterator[Any]:
    """A session that pushes whatever the probe says. A DataFrame or view must then be used once."""
    found = pushdown._found.get(asking)
    pushdown._found[asking] = Pushdown(True, False, "forced by a test")
    register(asking)
    yield asking
    pushdown._found.pop(asking)
    if found is not None:
        pushdown._found[asking] = found
    asking.conf.unset(FILTERS)
    asking.conf.set(PUSHDOWN, "false")
    register(asking)


def test_the_probe_says_whether_a_second_query_of_a_frame_loses_rows(asking: Any) -> None:
    found = find_pushdown(asking)
    assert find_pushdown(asking) is found, "a session is asked once"
    assert asking.conf.get(FILTERS, None) is None, "the settings of the session are as before"
    asking.conf.set(FILTERS, "true")
    try:
        numbers = asking.read.format(ProbeSource.name()).load()
        filtered, plain = numbers.where("n >= 6").count(), numbers.count()
        both = numbers.where("n < 3").union(numbers.where("n >= 6")).count()
    finally:
        asking.conf.unset(FILTERS)
    assert filtered == 2
    assert found.filters == ((plain, both) == (8, 5))
    assert found.filters or "mixes up" in found.reason


def test_pushdown_can_be_turned_off_and_is_off_where_the_interface_is_wrong(asking: Any) -> None:
    for name in (PUSHDOWN, FILTERS):
        asking.conf.set(name, "false")
        assert find_pushdown(asking) == Pushdown(False, False, f"the setting {name} is false")
        asking.conf.unset(name)
    if not hasattr(api.DataSourceReader, "pushLimit"):
        assert not find_pushdown(asking).filters


def test_filters_that_are_not_understood_exclude_nothing() -> None:
    schema = pa.schema([("a", pa.float64()), ("A", pa.float64()), ("b", pa.float64()), ("t", pa.timestamp("us"))])
    strange = [
        api.EqualTo(("a",), 1.0),  # `a` and `A` are two columns, and conditions do not know the difference
        api.EqualTo(("b", "c"), 1.0),
        api.EqualTo(("B",), 1.0),
        api.EqualTo(("b",), math.nan),
        api.EqualNullSafe(("b",), None),
        api.Not(api.EqualNullSafe(("b",), math.nan)),
        api.In(("b",), (1.0, None)),
        api.Not(api.In(("b",), (1.0, None))),
        api.StringContains(("b",), "x"),
        api.Not(api.StringStartsWith(("b",), "x")),
        api.EqualTo(("t",), dt.datetime(2020, 1, 1)),  # noqa: DTZ001 - Spark's timestamps without a zone
        api.EqualTo(("b",), b"x"),
    ]
    for each in strange:
        assert filters_predicate([each], schema) == And((Unknown(),)), each


def draw_filter(rng: random.Random, data: xr.Dataset) -> Any:
    """A filter as Spark gives it: one column, one operator, constants of its type."""
    name = rng.choice(["time", "lat", "lon", "t2m", "wind"])
    values = data[name].values.ravel()

    def constant() -> Any:
        value = rng.choice(values)
        if name == "time":
            return dt.datetime.fromtimestamp(value.astype("M8[s]").astype(int) + rng.choice([0, 1]), dt.UTC)
        return float(rng.uniform(-10, 300) if math.isnan(value) else value + rng.choice([0, 0, 0.25]))

    kind = rng.choice([*_COMPARE, api.EqualNullSafe, api.In, api.IsNull, api.IsNotNull])
    if kind in (api.IsNull, api.IsNotNull):
        made = kind((name,))
    else:
        made = kind((name,), tuple(constant() for _ in range(3)) if kind is api.In else constant())
    return api.Not(made) if rng.random() < 0.3 else made


def holds(given: Any, row: dict[str, Any]) -> bool | None:
    """Evaluate a filter by the rules of SQL."""
    if isinstance(given, api.Not):
        held = holds(given.child, row)
        return None if held is None else not held
    value = row[given.attribute[0]]
    if isinstance(given, api.IsNull | api.IsNotNull):
        return (value is None) == isinstance(given, api.IsNull)
    if isinstance(given, api.EqualNullSafe):
        return bool(value == given.value)
    if value is None:
        return None
    return value in given.value if isinstance(given, api.In) else bool(_COMPARE[type(given)](value, given.value))


def rows_of(reader: TableReader) -> list[dict[str, Any]]:
    return [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]


def blocks_of(reader: TableReader) -> int:
    return sum(len(share.value.coordinates()) for share in reader.partitions())


@pytest.mark.parametrize("seed", range(4))
def test_generated_filters_exclude_chunks_and_no_row_that_matches(place: str, weather: xr.Dataset, seed: int) -> None:
    rng = random.Random(seed)
    options = parse_options({"path": place, "variables": "t2m,wind"})
    everything = rows_of(TableReader(options))
    assert len(everything) == weather.t2m.size
    fewer = 0
    for _ in range(60):
        filters = [draw_filter(rng, weather) for _ in range(rng.randint(1, 3))]
        reader = PushingReader(options)
        assert reader.pushFilters(filters) == filters, "Spark evaluates all of them again"
        fewer += blocks_of(reader) < 18
        wanted = [row for row in everything if all(holds(each, row) for each in filters)]
        found = [row for row in rows_of(reader) if all(holds(each, row) for each in filters)]
        assert found == wanted, filters
    assert fewer > 20


def test_a_limit_reads_the_first_chunks_only(place: str) -> None:
    options = parse_options({"path": place, "variables": "t2m", "partition_bytes": "800"})
    plain, limited = TableReader(options), PushingReader(options)
    assert limited.pushLimit(7)
    assert len(plain.partitions()) == len(limited.partitions()) > 1
    for ours, theirs in zip(limited.partitions(), plain.partitions(), strict=True):
        few = pa.Table.from_batches(limited.read(ours))
        assert few.to_pylist() == pa.Table.from_batches(plain.read(theirs)).to_pylist()[:7]


_CONDITIONS = (
    "lat > 0",
    "lat between -30 and 30 and lon < 100",
    "lat in (-90, 30) and t2m is not null",
    "not (lat <=> 30)",
    "time >= '2020-01-02' and time < '2020-01-02 12:00:00'",
    "time = timestamp '2020-01-02T06:00:00Z' or lat = 0",
    "date(time) = '2020-01-03' and lat < 0",
    "t2m > 300 and lon = 40",
    "t2m is null",
    "not t2m > 270",
    "lat = 12345",
    "hour(time) = 6 and lon != 80",
)


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "Asia/Tokyo"])
def test_pushed_and_unpushed_queries_have_the_same_rows(pushing: Any, place: str, zone: str) -> None:
    from icefloe.spark import table

    plain = table(pushing, place, variables="t2m")
    try:
        pushing.conf.set("spark.sql.session.timeZone", zone)
        for condition in _CONDITIONS:
            # A fresh frame for each query: see `icefloe.spark.pushdown`.
            source = pushing.read.format("icefloe").option("variables", "t2m").load(place)
            found = sorted(map(repr, source.where(condition).collect()))
            assert found == sorted(map(repr, plain.where(condition).collect())), condition
    finally:
        pushing.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_reader_without_filters_works_where_pushdown_is_turned_off(pushing: Any, place: str) -> None:
    pushing.conf.set(FILTERS, "false")
    source = pushing.read.format("icefloe").option("variables", "t2m").load(place)
    assert source.where("lat > 0").count() == 3 * 12 * 9
    assert source.count() == 7 * 12 * 9
    assert PushingDataSource.name() == "icefloe"


def test_a_condition_on_a_view_fetches_only_its_chunks(pushing: Any, tmp_path: Path) -> None:
    """Every object of another chunk is removed. A query that asked for one of them would fail."""
    place = str(tmp_path / "repo")
    repo = icefloe.Repository.create(place)
    values = np.random.default_rng(0).random((8, 40))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="v", shape=(8, 40), chunks=(2, 40), dtype="f8", dimension_names=["y", "x"])
    for row in range(0, 8, 2):  # the chunks of one commit are in one object
        with repo.transaction("main", message="rows") as store:
            zarr.open_array(store, path="v")[row : row + 2] = values[row : row + 2]
    rows = icefloe.sql(repo, "select coords, object from chunks where path = '/v'").to_pylist()
    removed = {row["object"] for row in rows if row["coords"][0] != 1}
    assert len(removed) == 3
    for name in removed:
        (tmp_path / "repo" / name).unlink()
    for query, expected in {
        "select sum(v) from v where y between 2 and 3": values[2:4].sum(),
        "select max(x) from v where y = 3 and v > 0.5": np.flatnonzero(values[3] > 0.5).max(),
    }.items():
        register_views(pushing, place)
        assert pushing.sql(query).head()[0] == pytest.approx(expected)
    # An open repository may have credentials, which options of a data source would show.
    register_views(pushing, repo)
    with pytest.raises(Exception, match="(?i)not found|no such|missing"):
        pushing.sql("select sum(v) from v where y between 2 and 3").collect()
