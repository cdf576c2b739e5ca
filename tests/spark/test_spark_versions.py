"""Older versions of Spark: what they lack is an error that says so, and their rows and Java are understood."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.java import spark_too_old

from icefloe.errors import UnsupportedError

pytest.importorskip("pyspark")
connect = pytest.importorskip("icefloe.spark.connect")


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that another version is installed."""
    return lambda version: monkeypatch.setattr(connect.pyspark, "__version__", version)


@pytest.mark.parametrize(
    ("version", "parsed"), [("3.5.9", (3, 5)), ("4.0.1", (4, 0)), ("4.10.0.dev0", (4, 10)), ("4.1", (4, 1))]
)
def test_a_version_is_its_first_two_numbers(older: Any, version: str, parsed: tuple[int, int]) -> None:
    older(version)
    assert connect.spark_version() == parsed


def test_the_data_source_names_the_version_it_needs_and_what_to_use_instead(older: Any) -> None:
    from icefloe.spark import register

    older("3.5.9")
    with pytest.raises(UnsupportedError, match=r"needs Spark 4\.0 or newer, and this is Spark 3\.5\.9.*spark\.table"):
        register(None)


@pytest.mark.skipif(bool(spark_too_old((4, 0))), reason="data sources")
def test_limits_of_a_stream_name_the_version_they_need(older: Any, tmp_path: Path) -> None:
    from icefloe.spark.source import ChangesReader
    from icefloe.tables.table_options import parse_options

    options = parse_options({"url": str(tmp_path / "repo")})
    older("4.1.2")
    for name in ("max_commits_per_batch", "max_chunks_per_batch"):
        with pytest.raises(UnsupportedError, match=r"needs Spark 4\.2 or newer, and this is Spark 4\.1\.2"):
            ChangesReader(options, {name: "3"})
    ChangesReader(options, {})


def _java(home: Path, version: int) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("spark", "java", "fits"),
    [
        ("3.5.9", 17, True),
        ("3.5.9", 21, True),
        ("3.5.9", 24, False),
        ("4.0.1", 25, False),
        ("4.1.0", 25, True),
        ("4.3.0", 17, True),
    ],
)
def test_a_java_that_is_too_new_for_an_older_spark_is_refused(
    older: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: str, java: int, fits: bool
) -> None:
    older(spark)
    _java(tmp_path / "java", java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(connect, "_packaged", lambda: None)
    if fits:
        assert connect.ensure_java() == str(tmp_path / "java" / "bin" / "java")
    else:
        with pytest.raises(UnsupportedError, match=rf"Java {java}, and Spark {spark} .* JAVA_HOME to Java 17 or 21"):
            connect.ensure_java()


@pytest.mark.skipif(bool(spark_too_old((4, 0))), reason="data sources")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_of_an_older_stream_become_the_same_columns(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Spark gives times as local times without a zone, also those that a clock shows twice."""
    from icefloe.spark.source import _row_batches

    moments = [dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.UTC) for hour in range(3, 9)]
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        local = [dt.datetime.fromtimestamp(each.timestamp()) for each in moments]  # noqa: DTZ006 - as Spark does
        rows = [(each, number, None) for number, each in enumerate(local)]
        schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("v", pa.float32())])
        table = pa.Table.from_batches(_row_batches(iter(rows), schema))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert table.to_pydict() == {"time": moments, "n": list(range(6)), "v": [None] * 6}


@pytest.mark.spark
def test_arrow_tables_travel_to_spark_and_back(spark: Any) -> None:
    """Integers with missing values, empty tables, and times, also where Spark only takes pandas."""
    from icefloe.spark.tasks import arrow_frame, arrow_table

    moment = dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC)
    types = [("i", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary())]
    full = pa.table({"i": [1, None], "s": ["a", None], "t": [moment, None], "b": [b"x", None]}, pa.schema(types))
    for table in (full, full.slice(0, 0)):
        assert arrow_table(arrow_frame(spark, table)).to_pydict() == table.to_pydict()
