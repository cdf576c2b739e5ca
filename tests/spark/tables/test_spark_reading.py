"""DataFrames over repositories hold what xarray reads, however they are asked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.tables.predicates import sql_lookup
from icefloe.xarray import to_icechunk

pytestmark = pytest.mark.spark(4, 0)


def load(spark: Any, place: str, **options: Any) -> Any:
    reader = spark.read.format("icefloe").option("path", place)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def frame_of(dataset: xr.Dataset) -> pd.DataFrame:
    return dataset.to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()


def same(ours: Any, theirs: pd.DataFrame) -> None:
    got = ours.toPandas()
    names = ["time", "lat", "lon"]
    got = got.sort_values(names).reset_index(drop=True)
    theirs = theirs.sort_values(names).reset_index(drop=True)
    assert len(got) == len(theirs)
    assert list(got.columns) == list(theirs.columns)
    for name in got.columns:
        if name == "time":
            assert (pd.to_datetime(got[name]).values == theirs[name].values).all()
        else:
            np.testing.assert_allclose(got[name].astype("f8"), theirs[name].astype("f8"), rtol=1e-6)


def test_filtered_unfiltered_and_joined_reads_of_one_frame_agree(spark: Any, place: str, weather: xr.Dataset) -> None:
    from icefloe.spark import table

    total, north = weather.t2m.size, int((weather.lat > 0).sum()) * 12 * 9
    for df in (load(spark, place, variables="t2m"), table(spark, place, variables="t2m")):
        filtered = df.where("lat > 0")
        assert filtered.count() == north
        assert df.count() == total
        assert filtered.union(df).count() == north + total
        assert df.where("lat <= 0").union(filtered).count() == total
        df.createOrReplaceTempView("agreeing")
        joined = "select (select count(*) from agreeing where lat > 0), (select count(*) from agreeing)"
        assert tuple(spark.sql(joined).head()) == (north, total)


def test_a_frame_stays_at_its_snapshot(spark: Any, place: str, weather: xr.Dataset) -> None:
    from icefloe.spark import table

    frames = [load(spark, place, variables="t2m"), table(spark, place, variables="t2m")]
    repo = icefloe.Repository.open(place)
    before = repo.lookup_branch("main")
    repo.create_tag("v1", before)
    session = repo.writable_session("main")
    to_icechunk(weather[["t2m"]].drop_vars(["time", "lat", "lon"]) * 0, session, mode="r+")
    session.commit("zeros")
    for df in frames:
        assert df.selectExpr("sum(t2m)").head()[0] == pytest.approx(float(weather.t2m.sum()), rel=1e-5)
    assert load(spark, place, variables="t2m").selectExpr("sum(t2m)").head()[0] == 0
    for option in ({"tag": "v1"}, {"snapshot_id": before}):
        df = load(spark, place, variables="t2m", **option)
        assert df.selectExpr("sum(t2m)").head()[0] == pytest.approx(float(weather.t2m.sum()), rel=1e-5)


CONDITIONS = [
    "lat >= 30 and time between '2020-01-01 06:00:00' and date '2020-01-03'",
    "not lon between 80 and 200 and lat != 0.0",
    "lon in (0, 40, 320) and lat <= -29.5",
    "`lat` > 1e1 or lat < -60BD",
    "lat > 0 and time >= '2020-01-02'",
    "lat between -30 and 30 or lon = 80",
    "not (time < timestamp '2020-01-02 06:00:00') and t2m > 290",
    "abs(lat) > 50 and lon in (0, 40.0, 320)",
    "hour(time) = 6 or wind > 25",
    "t2m is null",
    "wind is not null and lat >= 60",
    "time > '2030-01-01'",
]


@pytest.mark.parametrize("where", CONDITIONS)
def test_conditions_match_the_rows_that_sql_matches(spark: Any, place: str, where: str) -> None:
    from icefloe.spark import table

    names = ["t2m", "wind"]
    pruned = table(spark, place, variables=names, where=where)
    plain = load(spark, place, variables="t2m,wind").where(where)
    theirs = plain.toPandas()
    same(pruned, theirs)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_selections_and_sums_are_those_of_xarray(
    spark: Any, place: str, weather: xr.Dataset, data: st.DataObject
) -> None:
    from icefloe.spark import table

    times = pd.DatetimeIndex(weather.time.values)
    low, high = sorted(data.draw(st.tuples(st.integers(0, 11), st.integers(0, 11))))
    south, north = sorted(data.draw(st.tuples(st.integers(-90, 90), st.integers(-90, 90))))
    where = f"time between '{times[low]}' and '{times[high]}' and lat >= {south} and lat <= {north}"
    wanted = weather[["t2m", "wind"]].sel(time=slice(times[low], times[high]), lat=slice(south, north))
    df = table(spark, place, variables=["t2m", "wind"], where=where)
    same(df, frame_of(wanted))
    region = f"time={times[low].isoformat()}:{times[high].isoformat()},lat={south}:{north}"
    assert load(spark, place, variables="wind", region=region).count() == wanted.wind.size


LOOKED_UP = {
    "double": [0.1, -1e300, None, float("nan"), float("inf"), -0.0],
    "float": [0.1, None, float("nan"), float("-inf"), 3.4e38],
    "bigint": [2**63 - 1, None, -(2**63)],
    "int": [1, None, -(2**31)],
    "smallint": [-5, None],
    "tinyint": [-128, None],
    "boolean": [True, None, False],
    "string": ["", 'it\'s \\ "quoted" é\n', None, "\U0001f9ca"],
    "timestamp": [0, None, -1, 1_600_000_000_123_456],
}


@pytest.mark.parametrize("kind", LOOKED_UP)
def test_coordinates_in_plans_are_exact(spark: Any, kind: str) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import _parse_datatype_string

    column = pa.int64() if kind == "timestamp" else to_arrow_type(_parse_datatype_string(kind))
    values = pa.array(LOOKED_UP[kind], type=column, from_pandas=False)
    values = values.cast(pa.timestamp("us", tz="UTC")) if kind == "timestamp" else values
    found = spark.range(len(values)).selectExpr("id", f"{sql_lookup(values, 'CAST(id AS INT)')} AS v").orderBy("id")
    assert found.schema["v"].dataType.simpleString() == kind
    # As text, in which a NaN is itself and zero has a sign.
    assert repr(found.toArrow()["v"].cast(values.type).to_pylist()) == repr(values.to_pylist())


def test_groups_are_those_of_xarray(spark: Any, place: str, weather: xr.Dataset) -> None:
    from icefloe.spark import table

    df = table(spark, place, variables=["t2m", "wind"])
    by_time = df.groupBy("time").avg("t2m").orderBy("time").toPandas()
    np.testing.assert_allclose(by_time["avg(t2m)"], weather.t2m.mean(("lat", "lon")), rtol=1e-6)
    by_place = df.groupBy("lat", "lon").max("wind").orderBy("lat", "lon").toPandas()
    np.testing.assert_allclose(by_place["max(wind)"], weather.wind.max("time").values.ravel(), rtol=1e-6)


def test_only_chunks_that_can_match_are_read(
    spark: Any, place: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    from icefloe.spark import table

    with caplog.at_level(logging.INFO, logger="icefloe.tables"):
        df = table(spark, place, variables="t2m", where="time = '2020-01-01' and lat > 80")
    assert "2 of 18 chunks" in caplog.text
    df.explain()
    assert "icefloe_reads_2_of_18_chunks" in capsys.readouterr().out


def test_the_session_s_zone_decides_what_times_mean(spark: Any, place: str) -> None:
    from icefloe.spark import table

    where = "time < '2020-01-01 12:00:00'"
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        pruned = table(spark, place, variables="t2m", where=where).count()
        assert pruned == load(spark, place, variables="t2m").where(where).count() == 63
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert table(spark, place, variables="t2m", where=where).count() == 126


@pytest.mark.parametrize(
    "where",
    [
        "time != date '2020-01-02'",
        "time <= '2020-01-01 12:00:00' or lat > 80",
        "time in (date '2020-01-03', date '2020-01-02') and t2m > 270",
        "time > '2020-01-02T00:00:00Z'",
    ],
)
def test_times_without_a_zone_are_in_the_zone_of_the_session_at_every_entry_point(
    spark: Any, place: str, tmp_path: Path, where: str
) -> None:
    from icefloe.spark import register_views, table

    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        register_views(spark, place)
        wanted = load(spark, place, variables="t2m").where(where).count()
        condition = where.replace("'", "''")
        stream = spark.readStream.format("icefloe").option("path", place).option("variables", "t2m")
        sink = stream.option("where", where).load().writeStream.format("parquet")
        sink = sink.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
        sink.start(str(tmp_path / "out")).awaitTermination()
        spark.sql(
            f"create or replace temporary view chosen using icefloe options (path '{place}', variables 't2m', "
            f"where '{condition}')"
        )
        found = {
            "table": table(spark, place, variables="t2m", where=where).count(),
            "view": spark.sql(f"select count(*) from t2m where {where}").head()[0],
            "option": load(spark, place, variables="t2m", where=where).count(),
            "option of a view": spark.sql("select count(*) from chosen").head()[0],
            "function": spark.sql(f"select * from icefloe_scan('{place}', '{condition}', 't2m')").count(),
            "stream": spark.read.parquet(str(tmp_path / "out")).count(),
        }
        assert found == dict.fromkeys(found, wanted)
        given = load(spark, place, variables="t2m", where=where, time_zone="UTC").count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert given == load(spark, place, variables="t2m").where(where).count()
    assert given == load(spark, place, variables="t2m", where=where).count()


def test_regions_are_in_the_zone_of_the_session(spark: Any, place: str) -> None:
    from icefloe.spark import table

    options = {"variables": "t2m", "region": "time=2020-01-01:2020-01-02"}
    try:
        spark.conf.set("spark.sql.session.timeZone", "+06:00")
        assert load(spark, place, **options).count() == table(spark, place, **options).count() == 4 * 63
        assert load(spark, place, layout="chunks", **options).count() == 6
        spark.conf.set("spark.sql.session.timeZone", "PST")
        with pytest.raises(InvalidInputError, match="'PST' of the session is unknown here"):
            table(spark, place, **options)
        with pytest.raises(Exception, match="time zone 'PST' is unknown"):
            load(spark, place, **options).count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert load(spark, place, **options).count() == 5 * 63
    # Behind a conversion to an RDD, tasks do not know the settings of the session.
    with pytest.raises(Exception, match=r"give the option time_zone"):
        load(spark, place, **options).rdd.count()
    assert load(spark, place, time_zone="UTC", **options).rdd.count() == 5 * 63


def test_stored_values_are_read_when_asked_for(spark: Any, place: str) -> None:
    raw = load(spark, place, variables="wind", decode="false")
    assert dict(raw.dtypes)["wind"] == "smallint" and dict(raw.dtypes)["time"] == "bigint"
    assert raw.where("wind = -999").count() == load(spark, place, variables="wind").where("wind is null").count() > 0


def test_chunks_come_as_tensors(spark: Any, place: str, weather: xr.Dataset) -> None:
    from icefloe.spark import table

    for df in (
        load(spark, place, variables="t2m", layout="chunks"),
        table(spark, place, variables="t2m", layout="chunks"),
    ):
        rows = df.collect()
        assert len(rows) == 18
        for row in rows:
            values = np.frombuffer(row["t2m"], dtype=row["t2m_dtype"]).reshape(row["shape"])
            window = tuple(slice(a, a + n) for a, n in zip(row["start"], row["shape"], strict=True))
            np.testing.assert_array_equal(values, weather.t2m.values[window])
            assert row["lat_first"] == weather.lat.values[window[1]][0]
            assert row["lon_last"] == weather.lon.values[window[2]][-1]
    lists = load(spark, place, variables="t2m", layout="chunks", tensor="list")
    assert lists.selectExpr("sum(size(t2m))").head()[0] == weather.t2m.size


def test_rows_of_lists_are_offered(spark: Any, place: str, weather: xr.Dataset) -> None:
    df = load(spark, place, variables="t2m", layout="rows")
    total = df.selectExpr("explode(t2m) v").selectExpr("sum(v)").head()[0]
    assert total == pytest.approx(float(weather.t2m.sum()), rel=1e-5)


def test_tables_of_metadata(spark: Any, place: str) -> None:
    repo = icefloe.Repository.open(place)
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)
    assert load(spark, place, table="refs").orderBy("name").collect() == [("main", "branch", tip), ("v1", "tag", tip)]
    assert [r.message for r in load(spark, place, table="history").orderBy("position").collect()] == [
        "weather",
        "Repository initialized",
    ]
    assert load(spark, place, table="snapshots").count() == 2
    nodes = {row.path: row for row in load(spark, place, table="nodes").collect()}
    assert nodes["/t2m"].shape == [12, 7, 9] and nodes["/t2m"].chunk_grid == [3, 3, 2]
    assert json.loads(nodes["/wind"].attributes)["scale_factor"] == 0.1
    chunks = load(spark, place, table="chunks")
    assert chunks.where("path = '/t2m'").count() == 18
    assert load(spark, place, table="manifests").selectExpr("sum(chunks)").head()[0] == chunks.count()
    files = load(spark, place, table="files")
    assert files.where("kind = 'snapshots'").count() == 2
    changes = load(spark, place, table="changes")
    assert changes.where("change = 'new_array'").count() == 6
    assert changes.where("change = 'chunk' and path = '/wind'").count() == 18
    assert load(spark, place, table="nodes", snapshot_id=repo.lookup_snapshot(tip).parent_id).count() <= 1


def test_the_table_function_selects_in_sql(spark: Any, place: str, weather: xr.Dataset) -> None:
    query = f"select * from icefloe_scan('{place}', 'lat > 0 and time = ''2020-01-01 06:00:00''', 't2m,wind')"
    same(spark.sql(query), frame_of(weather[["t2m", "wind"]].isel(time=[1]).sel(lat=slice(1, 90))))
    refs = f"select name from icefloe_scan('{place}', table => 'refs')"
    assert [row.name for row in spark.sql(refs).collect()] == ["main"]
    with pytest.raises(Exception, match="only SQL can evaluate"):
        spark.sql(f"select * from icefloe_scan('{place}', 'abs(lat) > 3', 't2m')")


def test_a_view_of_a_selection_runs_in_many_tasks_and_hands_over_arrow(
    spark: Any, place: str, weather: xr.Dataset
) -> None:
    """What SQL text alone can use instead of a table function, which Spark runs in one task and row by row."""
    from icefloe.spark.source import TableReader
    from icefloe.tables.table_options import parse_options

    where = 'lat > 0 and time < "2020-01-02 00:00:00"'
    options = {"path": place, "variables": "t2m", "where": where, "partition_bytes": "100"}
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"create or replace temporary view selected using icefloe options ({given})")
    same(spark.table("selected"), frame_of(weather[["t2m"]].isel(time=slice(0, 4)).sel(lat=slice(1, 90))))
    assert spark.table("selected").rdd.getNumPartitions() >= 4  # one per chunk
    reader = TableReader(parse_options(options | {"time_zone": "UTC"}))
    assert all(isinstance(batch, pa.RecordBatch) for part in reader.partitions() for batch in reader.read(part))


def test_tables_and_views_of_the_catalog(spark: Any, place: str, weather: xr.Dataset) -> None:
    spark.sql(f"create temporary view wx using icefloe options (path '{place}', variables 't2m')")
    spark.sql(f"create table kept using icefloe options (path '{place}', variables 't2m', region 'lat=0:90')")
    try:
        count = spark.sql("select count(*) from wx").head()[0]
        assert count == weather.t2m.size
        assert spark.sql("select count(*) from kept").head()[0] == weather.t2m.sel(lat=slice(0, 90)).size
        repo = icefloe.Repository.open(place)
        session = repo.writable_session("main")
        to_icechunk(weather[["t2m"]].drop_vars(["time", "lat", "lon"]) * 0, session, mode="r+")
        session.commit("zeros")
        assert spark.sql("select max(t2m) from kept").head()[0] == 0
    finally:
        spark.sql("drop table kept")
        spark.sql("drop view wx")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "2 different grids"),
        ({"variables": "t3m"}, "altitude"),
        ({"layuot": "rows"}, "unknown option 'layuot'"),
        ({"variables": "t2m", "region": "lev=1:2"}, "'lev', which is not a dimension"),
        ({"variables": "t2m", "storage.secret_access_key": "hidden-value"}, "shown in query plans"),
    ],
)
def test_wrong_options_are_explained(spark: Any, place: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception, match=told) as caught:
        load(spark, place, **options)
    assert "hidden-value" not in str(caught.value)


def test_values_are_skipped_by_their_ranges(spark: Any, place: str, weather: xr.Dataset) -> None:
    from icefloe.spark import analyze, table

    where = "t2m > 309"
    before = table(spark, place, variables="t2m", where=where).count()
    done = analyze(spark, place, variables=["t2m", "wind"])
    assert done.chunks == {"/t2m": 18, "/wind": 18}
    assert analyze(spark, place).chunks == {"/altitude": 1}
    df = table(spark, place, variables="t2m", where=where)
    assert df.count() == before == int((weather.t2m > 309).sum())
    assert table(spark, place, variables="t2m", where="t2m > 400").count() == 0
    assert (
        "reads_0_of_18"
        in df.sparkSession.createDataFrame([(1,)], "a int")
        .union(table(spark, place, variables="t2m", where="t2m > 400").selectExpr("1"))
        ._jdf.queryExecution()
        .toString()
    )


def test_an_ingest_keeps_the_ranges_of_what_it_wrote(spark: Any, tmp_path: Path, weather: xr.Dataset) -> None:
    from icefloe.spark import ingest, table

    for half, part in enumerate((weather.isel(time=slice(0, 6)), weather.isel(time=slice(6, 12)))):
        part[["t2m"]].to_netcdf(tmp_path / f"{half}.nc")
    place = str(tmp_path / "repo")
    options: dict[str, Any] = {"chunks": {"time": 2, "lat": 7, "lon": 9}, "statistics": True}
    ingest(spark, str(tmp_path / "0.nc"), place, **options)
    ingest(spark, str(tmp_path / "1.nc"), place, append_dim="time", **options)
    hottest = float(weather.t2m.max())
    df = table(spark, place, variables="t2m", where=f"t2m >= {hottest!r}D")
    assert df.count() == 1
    assert "reads_1_of_6" in df._jdf.queryExecution().toString()
    with pytest.raises(InvalidInputError, match="needs mode='native'"):
        ingest(spark, str(tmp_path / "*.nc"), place, mode="virtual", statistics=True)


def test_a_relative_path_is_one_folder_for_every_entry_point(
    spark: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icefloe.spark import register, table

    register(spark)
    # Spark's own processes stay in the folder in which the session started.
    monkeypatch.chdir(tmp_path)
    name = Path(place).name
    cells = table(spark, name, variables="t2m").count()
    assert spark.read.format("icefloe").option("variables", "t2m").load(name).count() == cells
    assert spark.read.format("icefloe").option("variables", "t2m").option("url", f"./{name}").load().count() == cells
    assert spark.sql(f"SELECT * FROM icefloe_scan('{name}', NULL, 't2m')").count() == cells
    rows = spark.range(6).selectExpr("cast(id as int) x", "cast(id as float) v")
    rows.coalesce(1).write.format("icefloe").option("dims", "x").mode("append").save("written")
    assert (tmp_path / "written").is_dir()
    assert table(spark, "written").count() == 6
