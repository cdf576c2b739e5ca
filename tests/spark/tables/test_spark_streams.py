"""Streams in and out: every batch lands once, changes come out in order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from tests.servers.java import spark_too_old

import icefloe
from icefloe.tables.metadata_tables import BATCH, QUERY

pytestmark = pytest.mark.spark(4, 0)

Stored = Callable[..., xr.Dataset]


def put_rows(spark: Any, folder: Path, first: int, end: int) -> None:
    rows = spark.range(first * 3, end * 3, 1, 2).selectExpr("id div 3 t", "id % 3 s", "cast(id as double) v")
    rows.write.mode("append").parquet(str(folder))


def rows_stream(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("t long, s long, v double").option("maxFilesPerTrigger", 2).parquet(str(folder))


def batches(place: str, query: str) -> list[int]:
    history = icefloe.Repository.open(place).ancestry(branch="main")
    return [info.metadata[BATCH] for info in history if info.metadata.get(QUERY) == query]


def check(dataset: xr.Dataset, end: int) -> None:
    dataset = dataset.sortby("t")
    np.testing.assert_array_equal(dataset.t, np.arange(end))
    np.testing.assert_array_equal(dataset.v, np.arange(end * 3.0).reshape(-1, 3))


@pytest.mark.parametrize("door", ["format", "tasks"])
def test_every_batch_of_a_stream_lands_exactly_once(spark: Any, tmp_path: Path, stored: Stored, door: str) -> None:
    from icefloe.spark import write_stream

    source, place, checkpoint = tmp_path / "in", str(tmp_path / "r"), tmp_path / "check"

    def start() -> None:
        rows = rows_stream(spark, source)
        if door == "format":
            writer = rows.writeStream.format("icefloe").option("path", place).option("dims", "t,s")
            writer = writer.option("any_order", "true").option("query", "q")
        else:
            writer = write_stream(rows, place, query="q", dims=["t", "s"], any_order=True)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    put_rows(spark, source, 0, 4)
    start()
    put_rows(spark, source, 4, 6)
    start()
    check(stored(place), 6)
    landed = batches(place, "q")
    assert landed == sorted(set(landed), reverse=True) and len(landed) >= 2
    # The last batch is forgotten by Spark after it was committed here, as if the driver had died in between.
    newest = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for file in (checkpoint / "commits").glob(f"*{newest}*"):
        file.unlink()
    tip = icefloe.Repository.open(place).lookup_branch("main")
    start()
    assert icefloe.Repository.open(place).lookup_branch("main") == tip
    check(stored(place), 6)


def test_a_stream_of_changes_emits_new_cells_as_commits_arrive(spark: Any, tmp_path: Path) -> None:
    from icefloe.spark import write

    place, checkpoint, out = str(tmp_path / "r"), str(tmp_path / "check"), str(tmp_path / "out")

    def grow(first: int, end: int) -> None:
        rows = spark.range(first * 3, end * 3).selectExpr("id div 3 t", "id % 3 s", "cast(id as double) v")
        write(rows, place, dims=["t", "s"], chunks={"t": 4})

    def follow(**options: Any) -> None:
        reader = spark.readStream.format("icefloe").option("path", place).option("emit", "new_cells")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(out).awaitTermination()

    grow(0, 2)
    follow()
    assert spark.read.parquet(out).count() == 6
    grow(2, 5)
    grow(5, 6)
    follow(**({} if spark_too_old((4, 2)) else {"max_commits_per_batch": 1}))
    follow()
    rows = spark.read.parquet(out).orderBy("t", "s").collect()
    assert [row.v for row in rows] == [float(n) for n in range(18)]


def test_changed_chunks_come_whole(spark: Any, tmp_path: Path) -> None:
    from icefloe.spark import write

    place, checkpoint, out = str(tmp_path / "r"), str(tmp_path / "check"), str(tmp_path / "out")
    rows = spark.range(24).selectExpr("id div 3 t", "id % 3 s", "cast(id as double) v")
    write(rows, place, dims=["t", "s"], chunks={"t": 4})

    def follow() -> int:
        reader = spark.readStream.format("icefloe").option("path", place).option("starting_snapshot", "latest")
        writer = reader.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(out).awaitTermination()
        return int(spark.read.schema("t long, s long, v double").parquet(out).count())

    assert follow() == 0
    write(rows.where("t = 1 and s = 1").selectExpr("t", "s", "-1d v"), place)
    assert follow() == 12
    shutil.rmtree(checkpoint)
