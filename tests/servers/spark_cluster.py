"""A standalone Spark cluster of separate processes: a master and workers, each on a host address of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from icefloe.spark.connect import ensure_java

_START_SECONDS = 120
_MASTER = "127.0.0.1"


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Run a master and workers of one core each on 127.0.0.2 and up; yields the master's URL.

    Spark starts a second attempt of a slow task only on another host, which is why workers do not share one.
    """
    ensure_java()
    with socket.socket() as probe:
        probe.bind((_MASTER, 0))
        port = probe.getsockname()[1]
    url = f"spark://{_MASTER}:{port}"
    log = folder / "master.log"
    with ExitStack() as running:
        running.enter_context(_process("master.Master", folder, log, "--host", _MASTER, "--port", str(port)))
        _wait_for(log, "I have been elected leader", 1)
        for number in range(workers):
            place = ("--host", f"127.0.0.{number + 2}", "--cores", "1", "--memory", "1g")
            work = ("--work-dir", str(folder / f"work-{number}"))
            own = folder / f"worker-{number}.log"
            running.enter_context(_process("worker.Worker", folder, own, *place, *work, url))
        _wait_for(log, "Registering worker", workers)
        yield url


@contextmanager
def _process(name: str, folder: Path, log: Path, *arguments: str) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    finally:
        # A worker ends its executors, which are groups of their own, when it is told to go.
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(log: Path, text: str, times: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while log.read_text().count(text) < times:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
