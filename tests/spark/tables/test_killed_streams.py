"""A stream that is killed and started again at random moments leaves what one uninterrupted run leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import icefloe
from icefloe.tables.metadata_tables import BATCH, QUERY

pytestmark = pytest.mark.spark(4, 0)
STATIONS, TIMES_PER_FILE = 3, 3


def put_files(folder: Path, count: int) -> None:
    """A file per batch, in the order of their times; chunks of arrays lie across them."""
    folder.mkdir()
    for number in range(count):
        ids = np.arange(number * TIMES_PER_FILE * STATIONS, (number + 1) * TIMES_PER_FILE * STATIONS)
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table({"t": ids // STATIONS, "s": ids % STATIONS, "v": ids.astype("f8")}), path)
        os.utime(path, (1_600_000_000 + number,) * 2)


class Driver:
    """The stream in a process of its own; Spark's workers leave its group, and notice its death by themselves."""

    def __init__(self, root: Path, folder: Path, name: str, door: str) -> None:
        self.place, self._log = folder / name, folder / f"{name}.log"
        self._checkpoint = folder / f"{name}-checkpoint"
        source = str(root / "src")
        told = {
            "package": source,
            "source": str(folder / "in"),
            "place": str(self.place),
            "door": door,
            "checkpoint": str(self._checkpoint),
        }
        self._command = [sys.executable, str(Path(__file__).with_name("stream_driver.py")), json.dumps(told)]
        self._variables = {**os.environ, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable}

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._variables, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def finish(self) -> None:
        """Run to the end."""
        process = self.start()
        try:
            assert process.wait(400) == 0, self._log.read_text()[-3000:]
        finally:
            self._kill(process)

    def run_and_kill(self, chance: random.Random) -> bool:
        """Run until a random moment after the stream began; says whether it was still running then.

        It has begun when the first batch is planned: Spark itself refuses a checkpoint whose making was killed.
        """
        process = self.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"streaming\n", self._log.read_text()[-3000:]
            deadline = time.monotonic() + 120
            while not (self._checkpoint / "offsets" / "0").exists() and process.poll() is None:
                assert time.monotonic() < deadline, self._log.read_text()[-3000:]
                time.sleep(0.01)
            time.sleep(chance.choice([0.2, 1.0, 3.0]) * chance.random())
            return process.poll() is None
        finally:
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def batches(place: Path) -> list[int]:
    """The batches that were committed, oldest first."""
    repository = icefloe.Repository.open(str(place))
    return [info.metadata[BATCH] for info in repository.ancestry(branch="main") if info.metadata.get(QUERY)][::-1]


def dataset_at(place: Path) -> xr.Dataset:
    return xr.open_zarr(icefloe.Repository.open(str(place)).readonly_session("main").store, consolidated=False).load()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("door", "kills", "seed"),
    [
        ("tasks", 1, 1),
        pytest.param("tasks", 10, 2, marks=pytest.mark.slow),
        pytest.param("format", 10, 3, marks=pytest.mark.slow),
    ],
)
def test_a_stream_that_is_killed_leaves_what_an_uninterrupted_one_leaves(
    repository_root: Path, tmp_path: Path, door: str, kills: int, seed: int
) -> None:
    files = 2 * kills + 2
    put_files(tmp_path / "in", files)
    driver = Driver(repository_root, tmp_path, "killed", door)
    chance = random.Random(seed)
    hit = [driver.run_and_kill(chance) for _ in range(kills)]
    assert any(hit), "every run was over before it was killed: give the stream more files"
    driver.finish()
    # A death after Spark listed a file and before it planned the batch gives the next batch two files: what lands is
    # the same, and every batch lands once.
    landed = batches(driver.place)
    assert landed == list(range(len(landed))) and files - kills <= len(landed) <= files
    if kills > 1:
        calm = Driver(repository_root, tmp_path, "calm", door)
        calm.finish()
        assert batches(calm.place) == list(range(files))
        xr.testing.assert_identical(dataset_at(driver.place), dataset_at(calm.place))
    expected = np.arange(files * TIMES_PER_FILE * STATIONS, dtype="f8").reshape(-1, STATIONS)
    np.testing.assert_array_equal(dataset_at(driver.place).v, expected)
