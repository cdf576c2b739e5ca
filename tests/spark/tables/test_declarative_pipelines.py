"""A declarative pipeline of Spark reads the changes of a repository and writes into another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.xarray import to_icechunk

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SPECIFICATION = """
name: doubled
storage: {storage}
libraries:
  - glob:
      include: flows/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""
_FLOW = """
from pyspark import pipelines
from pyspark.sql import SparkSession

spark = SparkSession.active()
options = {{"path": {target!r}, "dims": "t,s", "any_order": "true", "query": "doubled"}}
pipelines.create_sink("doubled", "icefloe", options)


@pipelines.append_flow(target="doubled")
def new_cells():
    changes = spark.readStream.format("icefloe").option("path", {source!r}).option("emit", "new_cells").load()
    return changes.selectExpr("t", "s", "2 * v AS v")
"""


def grow(source: str, first: int, end: int) -> None:
    repo = icefloe.Repository.open_or_create(source)
    session = repo.writable_session("main")
    values = np.arange(first * 3.0, end * 3.0).reshape(-1, 3)
    data = xr.Dataset({"v": (("t", "s"), values)}, coords={"t": np.arange(first, end), "s": np.arange(3)})
    if first:
        to_icechunk(data, session, append_dim="t")
    else:
        to_icechunk(data, session, encoding={"v": {"chunks": (4, 3)}})
    session.commit(f"rows {first} to {end}")


@pytest.mark.timeout(900)
def test_a_pipeline_follows_changes_into_a_sink(repository_root: Path, tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark.pipelines", reason="declarative pipelines need Spark 4.1")
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "doubled.py").write_text(_FLOW.format(source=source, target=target))
    (tmp_path / "spark-pipeline.yml").write_text(_SPECIFICATION.format(storage=(tmp_path / "storage").as_uri()))
    home = Path(pyspark.__file__).parents[1]
    variables = {
        **os.environ,
        "PYTHONPATH": str(repository_root / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
    }

    def run() -> None:
        program = str(home / "bin" / "spark-pipelines")
        command = ["bash", program, "--conf", "spark.ui.enabled=false", "run", "--spec", "spark-pipeline.yml"]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-3000:]

    for first, end in ((0, 4), (4, 6)):
        grow(source, first, end)
        run()
        store = icefloe.Repository.open(target).readonly_session("main").store
        found = xr.open_zarr(store, consolidated=False).sortby("t")
        np.testing.assert_array_equal(found.v, 2 * np.arange(end * 3.0).reshape(-1, 3))
