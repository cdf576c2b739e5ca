"""DataFrames into repositories: rows written are rows read, in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import AlreadyExistsError, InvalidInputError

pytestmark = pytest.mark.spark(4, 0)

Stored = Callable[..., xr.Dataset]


def cells(spark: Any, first: int, end: int, stations: int = 5, parts: int = 3) -> Any:
    """Rows (t, s, v, n), spread over partitions without regard to chunks."""
    rows = spark.range(first * stations, end * stations, 1, parts)
    return rows.selectExpr(
        f"timestamp_seconds(3600 * (id div {stations})) t",
        f"cast(id % {stations} as int) s",
        "cast(id as float) v",
        "cast(id % 7 as int) n",
    ).repartition(parts)


def check(dataset: xr.Dataset, first: int, end: int, stations: int = 5) -> None:
    assert dataset.sizes == {"t": end - first, "s": stations}
    ids = np.arange(first * stations, end * stations).reshape(-1, stations)
    np.testing.assert_array_equal(dataset.v, ids.astype("f4"))
    np.testing.assert_array_equal(dataset.n, ids % 7)
    assert dataset.t.values[0] == np.datetime64(first * 3600, "s")


def test_rows_become_chunks_with_one_shuffle_and_one_commit(spark: Any, tmp_path: Path, stored: Stored) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    done = write(
        cells(spark, 0, 40), place, dims=["t", "s"], chunks={"t": 6, "s": 2}, message="rows", metadata={"a": 1}
    )
    assert (done.cells, done.chunks) == (200, 42)
    check(stored(place), 0, 40)
    repo = icefloe.Repository.open(place)
    info = repo.lookup_snapshot(str(done.snapshot_id))
    assert (info.message, dict(info.metadata)) == ("rows", {"a": 1})
    assert sum(1 for _ in repo.ancestry(branch="main")) == 2
    # Appended rows share a chunk with earlier ones, and set some again.
    write(cells(spark, 38, 50), place)
    check(stored(place), 0, 50)


@pytest.mark.parametrize("door", ["tasks", "format"])
def test_instants_are_the_same_in_every_zone(spark: Any, tmp_path: Path, stored: Stored, door: str) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        if door == "tasks":
            write(cells(spark, 0, 20), place, dims=["t", "s"], chunks={"t": 7})
            write(cells(spark, 19, 24), place)
        else:
            for rows in (cells(spark, 0, 20), cells(spark, 19, 24, parts=1)):
                made = rows.write.format("icefloe").mode("append").option("path", place)
                made.option("dims", "t,s").option("chunks", "t=7").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    check(stored(place), 0, 24)


def test_cells_that_no_row_names_are_kept(spark: Any, tmp_path: Path, stored: Stored) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    write(cells(spark, 0, 20), place, dims=["t", "s"], chunks={"t": 7})
    write(cells(spark, 3, 9).where("s = 2").selectExpr("t", "s", "-1f v", "n"), place, mode="upsert")
    dataset = stored(place)
    assert (dataset.v.values[3:9, 2] == -1).all()
    rest = dataset.v.values.copy()
    rest[3:9, 2] = np.arange(100).reshape(20, 5)[3:9, 2]
    np.testing.assert_array_equal(rest, np.arange(100).reshape(20, 5))


def test_modes_are_those_that_spark_s_users_know(spark: Any, tmp_path: Path, stored: Stored) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    write(cells(spark, 0, 4), place, dims=["t", "s"])
    with pytest.raises(AlreadyExistsError, match="exists"):
        write(cells(spark, 0, 4), place, mode="error")
    with pytest.raises(InvalidInputError, match="does not extend"):
        write(cells(spark, 2, 6), place, mode="upsert")
    write(cells(spark, 2, 6), place, mode="upsert", off_grid="drop")
    check(stored(place), 0, 4)
    write(cells(spark, 10, 12), place, dims=["t", "s"], mode="overwrite")
    check(stored(place), 10, 12)
    double = cells(spark, 10, 12).union(cells(spark, 10, 12))
    with pytest.raises(InvalidInputError, match="several rows"):
        write(double, place)
    write(double, place, duplicates="sum")
    assert float(stored(place).v.sum()) == 2 * sum(range(50, 60))


def test_spark_s_own_writer(spark: Any, tmp_path: Path, stored: Stored) -> None:
    place = str(tmp_path / "r")

    def writer(df: Any, mode: str = "append") -> Any:
        made = df.write.format("icefloe").mode(mode).option("path", place).option("dims", "t,s")
        return made.option("chunks", "t=4,s=5").option("message", f"by {mode}")

    writer(cells(spark, 0, 8)).save()
    check(stored(place), 0, 8)
    # One task per chunk: rows of cells that exist are written by tasks, new ones when Spark commits.
    writer(cells(spark, 4, 10).coalesce(1)).save()
    check(stored(place), 0, 10)
    with pytest.raises(Exception, match="were written by both"):
        writer(cells(spark, 0, 4, parts=2)).save()
    check(stored(place), 0, 10)
    writer(cells(spark, 20, 23), "overwrite").save()
    check(stored(place), 20, 23)
    messages = [info.message for info in icefloe.Repository.open(place).ancestry(branch="main")]
    assert messages[:3] == ["by overwrite", "by append", "by append"]


def test_concurrent_writers_to_other_arrays_both_land(spark: Any, tmp_path: Path) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    with icefloe.Repository.create(place).transaction("main", message="root") as store:
        zarr.group(store)
    failures: list[BaseException] = []

    def run(group: str) -> None:
        try:
            write(cells(spark, 0, 6), place, group=group, dims=["t", "s"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"/g{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    store = icefloe.Repository.open(place).readonly_session("main").store
    for n in range(2):
        check(xr.open_zarr(store, group=f"g{n}", consolidated=False).load(), 0, 6)


@pytest.mark.parametrize("extending", [True, False], ids=["that extend it", "of cells that exist"])
def test_concurrent_rows_into_one_array_land_or_say_why_not(
    spark: Any, tmp_path: Path, stored: Stored, extending: bool
) -> None:
    from icefloe.spark import write

    place = str(tmp_path / "r")
    write(cells(spark, 0, 20), place, dims=["t", "s"], chunks={"t": 5})
    spans = [(20, 25), (20, 25)] if extending else [(0, 5), (10, 15)]
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        # Spark looks a format up in the session of the thread, which this call makes it.
        spark.createDataFrame([(number,)], "n int")
        first, end = spans[number]
        rows = cells(spark, first, end, parts=1).selectExpr("t", "s", f"{-1 - number}f v", "n")
        try:
            rows.write.format("icefloe").mode("append").option("path", place).option("message", str(number)).save()
            outcomes[number] = ""
        except Exception as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    landed = {number for number, told in outcomes.items() if not told}
    assert landed, outcomes
    for number, told in outcomes.items():
        assert number in landed or "the branch is at snapshot" in told, told
    history = [info.message for info in icefloe.Repository.open(place).ancestry(branch="main")]
    assert sorted(history[: len(landed)]) == sorted(map(str, landed))
    # Those who landed last are seen; those who did not left nothing.
    values = stored(place).v.values
    assert len(values) == (25 if extending else 20)
    for first, end in set(spans):
        writers = [n for n in landed if spans[n] == (first, end)]
        last = next((int(message) for message in history if message in map(str, writers)), None)
        wanted = np.arange(first * 5, end * 5).reshape(-1, 5) if last is None else np.full((end - first, 5), -1 - last)
        np.testing.assert_array_equal(values[first:end], wanted)


def test_a_table_that_is_written_is_the_table_that_was_read(
    spark: Any, place: str, tmp_path: Path, weather: xr.Dataset
) -> None:
    from icefloe.spark import table, write

    other = str(tmp_path / "copy")
    df = table(spark, place, variables=["t2m", "wind"])
    write(df, other, dims=["time", "lat", "lon"])
    back = table(spark, other)
    assert back.exceptAll(df).count() == df.exceptAll(back).count() == 0
    copied = xr.open_zarr(icefloe.Repository.open(other).readonly_session("main").store, consolidated=False).load()
    np.testing.assert_allclose(copied.wind, weather.wind, rtol=1e-6)
    assert (copied.time.values == weather.time.values).all()
