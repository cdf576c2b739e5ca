"""Processes that die in the middle of an ingest, on executors of their own."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from tests.servers.spark_cluster import standalone_cluster

from icefloe import Repository
from icefloe.spark import ingest
from icefloe.spark.connect import pack_package
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]
GRID: dict[str, Any] = {"nlat": 37, "nlon": 72, "variables": ("t2m",)}
SOURCE = Path(__file__).resolve().parents[2] / "src"
Open = Callable[..., xr.Dataset]


def _start(script: str = "cluster_ingest.py", **arguments: str) -> subprocess.Popen[str]:
    """A driver in a process group of its own, without this checkout on its Python path where it ships a package."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_MASTER")}
    arguments = {"source": str(SOURCE), **arguments}
    if "package" not in arguments:
        environment["PYTHONPATH"] = str(SOURCE)
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), json.dumps(arguments)],
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_ingest_runs_behind_spark_connect(tmp_path: Path, opened: Open, expected: Open) -> None:
    pytest.importorskip("grpc_status")
    write_month(tmp_path / "files", days=2, **GRID)
    driver = _start(master="connect", files=str(tmp_path / "files"), repo=str(tmp_path / "repo"), package="shipped")
    out, err = driver.communicate(timeout=380)
    assert driver.returncode == 0, err[-3000:]
    assert "icefloe-" in json.loads(out.splitlines()[-1])["package"]
    xr.testing.assert_equal(
        opened(tmp_path / "repo").drop_vars("orography"), expected(tmp_path / "files").drop_vars("orography")
    )


def test_an_ingest_survives_the_death_of_an_executor(tmp_path: Path, opened: Open, expected: Open) -> None:
    write_month(tmp_path / "files", days=24, **GRID)
    driver = _start(
        master="local-cluster[2,1,1024]",
        files=str(tmp_path / "files"),
        repo=str(tmp_path / "repo"),
        kill="executor",
        package=str(pack_package(tmp_path)),
    )
    out, err = driver.communicate(timeout=380)
    assert driver.returncode == 0, err[-3000:]
    told = json.loads(out.splitlines()[-1])
    assert len(told["killed"]) == 1 and told["tasks"] >= 24
    assert ".zip" in told["package"]
    xr.testing.assert_equal(
        opened(tmp_path / "repo").drop_vars("orography"), expected(tmp_path / "files").drop_vars("orography")
    )


def test_a_task_that_is_attempted_twice_on_a_cluster_is_committed_once(
    tmp_path: Path, opened: Open, expected: Open
) -> None:
    write_month(tmp_path / "files", days=8, **GRID)
    place, marks = tmp_path / "repo", tmp_path / "marks"
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster") as master:
        driver = _start(
            "speculative_ingest.py", master=master, files=str(tmp_path / "files"), repo=str(place), marks=str(marks)
        )
        out, err = driver.communicate(timeout=300)
    assert driver.returncode == 0, err[-3000:]
    told = json.loads(out.splitlines()[-1])
    attempts = {path.name: len(list(path.iterdir())) for path in marks.iterdir() if not path.is_symlink()}
    assert attempts[(marks / "lagging").resolve().name] == 2 and len(attempts) == told["tasks"]
    repository = Repository.open(str(place))
    assert told["references"] == 8 + 1, "a chunk a day, and the heights of the ground"
    found = opened(place).drop_vars("orography")
    xr.testing.assert_equal(found, expected(tmp_path / "files").drop_vars("orography"))
    before = _chunk_files(place)
    time.sleep(1.1)
    repository.garbage_collect(dt.timedelta(seconds=0), ignore_running_sessions=True)
    assert before - _chunk_files(place), "the attempt that lost left chunks behind"
    xr.testing.assert_equal(opened(place).drop_vars("orography"), found)
    assert repository.verify().is_clean


def _chunk_files(place: Path) -> set[Path]:
    return {path for path in (place / "chunks").rglob("*") if path.is_file()}


def test_a_driver_that_dies_leaves_the_branch_as_it_was(
    spark: Any, tmp_path: Path, opened: Open, expected: Open
) -> None:
    write_month(tmp_path / "files", days=24, **GRID)
    place = tmp_path / "repo"
    repository = Repository.create(str(place))
    before = repository.lookup_branch("main")
    driver = _start(master="local[2]", files=str(tmp_path / "files"), repo=str(place))
    try:
        deadline = time.monotonic() + 200
        while not _chunk_files(place):
            assert time.monotonic() < deadline and driver.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert repository.lookup_branch("main") == before
    left = _chunk_files(place)
    assert left
    ingest(spark, tmp_path / "files", repository, chunks={"time": 24})
    xr.testing.assert_equal(opened(place).drop_vars("orography"), expected(tmp_path / "files").drop_vars("orography"))
    time.sleep(1.1)
    repository.garbage_collect(dt.timedelta(seconds=0), ignore_running_sessions=True)
    assert not left & _chunk_files(place)
    xr.testing.assert_equal(opened(place).drop_vars("orography"), expected(tmp_path / "files").drop_vars("orography"))
