"""A declarative pipeline of Spark reads the changes of a repository and writes into another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.xarray import to_icechunk

pytestmark = [pytest.mark.spark(4, 1), pytest.mark.slow]

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


@pytest.fixture(autouse=True)
def shared_spark() -> None:
    """The pipeline has a session of its own. No other one has to be started."""


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


def run_pipeline(home: Path, folder: Path, source: Path) -> None:
    """Run `spark-pipelines run` in a folder. It starts two JVMs, which end with it."""
    from icefloe.spark.connect import ensure_java

    ensure_java()
    variables = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        # The Connect server of the run listens on a free port. Otherwise two runs on one machine disturb each other.
        "SPARK_TESTING": "1",
        # Half of the time of a short run is the compiler of the JVM.
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    settings = ("spark.ui.enabled=false", "spark.ui.showConsoleProgress=false")
    command = ["bash", str(home / "bin" / "spark-pipelines"), *(word for each in settings for word in ("--conf", each))]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "run", "--spec", "spark-pipeline.yml"],
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    assert code == 0, (folder / "log.txt").read_text()[-5000:]


@pytest.mark.timeout(700)
def test_a_pipeline_follows_changes_into_a_sink(repository_root: Path, tmp_path: Path) -> None:
    pipelines = pytest.importorskip("pyspark.pipelines", reason="declarative pipelines need Spark 4.1")
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "doubled.py").write_text(_FLOW.format(source=source, target=target))
    (tmp_path / "spark-pipeline.yml").write_text(_SPECIFICATION.format(storage=(tmp_path / "storage").as_uri()))
    home = Path(pipelines.__file__).parents[1]
    for run, (first, end) in enumerate(((0, 4), (4, 6)), 1):
        grow(source, first, end)
        run_pipeline(home, tmp_path, repository_root / "src")
        repo = icefloe.Repository.open(target)
        found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).sortby("t")
        np.testing.assert_array_equal(found.v, 2 * np.arange(end * 3.0).reshape(-1, 3))
        batches = [info.metadata.get("icefloe.stream.query") for info in repo.ancestry(branch="main")]
        assert batches.count("doubled") == run, "a run commits what is new, once"
