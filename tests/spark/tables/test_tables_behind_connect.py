"""Behind Spark Connect, where there is no context and no RDD, tables are what they are elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe.spark.connect import is_classic

pytestmark = pytest.mark.spark(4, 0)


@pytest.mark.timeout(600)
def test_queries_agree_behind_connect_and_with_a_classic_session(
    spark: Any, repository_root: Path, place: str, tmp_path: Path, weather: xr.Dataset
) -> None:
    from tests.spark.tables.connect_driver import agreement

    from icefloe.spark import table

    source = str(repository_root / "src")
    arguments = json.dumps({"package": source, "place": place, "copy": str(tmp_path / "copy")})
    # A server listens and a process has one kind of session: the client gets a process of its own.
    # With SPARK_TESTING, the server listens on a free port, so that several servers can run on one machine.
    variables = {**os.environ, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
    driver = Path(__file__).with_name("connect_driver.py")
    ran = subprocess.run(
        [sys.executable, str(driver), arguments], env=variables, capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert "connect" in told["module"] and is_classic(spark)

    north, total = int((weather.lat > 0).sum()) * 12 * 9, weather.t2m.size
    expected = {
        "filtered": north,
        "all": total,
        "joined": north + total,
        "halves": total,
        "in sql": [north, total],
        "sum": pytest.approx(float(weather.t2m.sum(dtype="f8")), rel=1e-6),
    }
    for name in ("format", "table", "function"):
        assert told[name] == expected, name
    assert agreement(spark, table(spark, place, variables="t2m")) == expected
    half = weather.t2m.sel(lat=weather.lat > 0, time=slice(None, "2020-01-01"))
    assert told["selected"] == {
        "count(1)": half.size,
        "sum(t2m)": pytest.approx(float(half.sum(dtype="f8")), rel=1e-6),
    }
    assert told["refs"] == 1
    assert (told["written"], told["differences"]) == (total, 0)
