"""A Spark session with settings that suit Python work on arrays."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession as SparkSession

from icefloe.spark.java import ensure_java
from icefloe.tables.places import DRIVER_VARIABLE

LOCAL_MASTER = "local[*,4]"
"""Every core; a task that fails is tried again, as on a cluster."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOG_NAME = "icefloe-spark-{}.log"
_LOG_AGE_SECONDS = 24 * 3600
"""Logs of processes that have ended stay so long after their last line."""
_QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""No optimising compiler and one collecting thread: half the processor time until the first task runs."""
_TRUSTED_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark asks for values that are there only: without a second look at each, cells become rows in half the time."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    # Spark's own bar and ours would write over each other.
    "spark.ui.showConsoleProgress": "false",
    # A socket file instead of a TCP connection: a third of the cost of a short Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
}


def connect(
    master: str | None = None,
    *,
    app_name: str = "icefloe",
    remote: str | None = None,
    quick_start: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one.

    Parameters
    ----------
    master
        `local[*]`, with retries, when not given; any master URL of a cluster.
    remote
        A Spark Connect server, such as `sc://host:15002`; no Java is needed here then.
    quick_start
        Start a JVM that compiles less: for jobs whose work is done by Python (`ingest`, `map_blocks`, `reduce`, ...),
        not for SQL over many rows.
    settings
        Spark settings, laid over those of this library.

    Examples
    --------
    >>> from icefloe.spark import connect
    >>> spark = connect("local[2]")  # doctest: +SKIP
    """
    quieten_failed_queries()
    if remote is not None:
        return SparkSession.builder.remote(remote).appName(app_name).getOrCreate()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    ensure_java()
    remove_old_logs(Path(tempfile.gettempdir()))
    # Workers would start the first python3 on PATH otherwise, which need not be this environment's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ[DRIVER_VARIABLE] = str(os.getpid())
    builder = SparkSession.builder.master(master or os.environ.get("SPARK_MASTER", LOCAL_MASTER)).appName(app_name)
    for key, value in merge_settings(settings or {}, quick_start=quick_start).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def merge_settings(given: Mapping[str, Any], *, quick_start: bool) -> dict[str, Any]:
    """The settings of a new session: ours, and over them those that were given."""
    merged = {**_SETTINGS, **given}
    options = str(merged.get("spark.driver.extraJavaOptions", _QUICK_START if quick_start else ""))
    options = _with_trusted_arrow(options)
    merged["spark.driver.extraJavaOptions"] = options
    executors = "spark.executor.extraJavaOptions"
    merged[executors] = _with_trusted_arrow(str(merged.get(executors, "")))
    # Inside an archive, as executors may have the package, there is no file for the JVM to read.
    if "log4j2.configurationFile" not in options and _LOGGING.exists():
        # Set from the first line on, where the level of a running context comes too late.
        log = Path(tempfile.gettempdir(), _LOG_NAME.format(os.getpid()))
        told = f"-Dlog4j2.configurationFile={_LOGGING.resolve().as_uri()} -Dicefloe.log={log}"
        merged["spark.driver.extraJavaOptions"] = f"{told} {options}"
    return merged


def quieten_failed_queries() -> None:
    """Let Spark not print the context of a failed query as JSON: the error that is raised says the same."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def remove_old_logs(folder: Path) -> None:
    """Remove logs of sessions whose process ended some time ago."""
    for path in folder.glob(_LOG_NAME.format("*") + "*"):
        number = path.name.removeprefix(_LOG_NAME.partition("{")[0]).partition(".")[0]
        # The logs of other users, and of a process that ends meanwhile, are theirs to remove.
        with contextlib.suppress(OSError):
            is_old = path.stat().st_mtime < time.time() - _LOG_AGE_SECONDS
            if number.isdigit() and is_old and not _is_running(int(number)):
                path.unlink()


def _is_running(process_id: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _with_trusted_arrow(options: str) -> str:
    return options if "-Darrow.enable_" in options else f"{options} {_TRUSTED_ARROW}".strip()


def is_classic(spark: SparkSession) -> bool:
    """Whether the driver runs in this process, as opposed to behind Spark Connect."""
    return "connect" not in type(spark).__module__
