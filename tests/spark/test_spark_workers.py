"""How the processes of a session start, how Python workers wait for tasks, and how they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icefloe.spark import SparkJob, run_tasks
from icefloe.spark.connect import QuietTraceback, QuietWorker, _wrapped, merge_settings, remove_old_logs


def _loop(_: int) -> tuple[str, bool]:
    loop = sys.modules["__main__"]
    return loop.__spec__.name, isinstance(loop.worker, QuietWorker)  # type: ignore[attr-defined, union-attr]


@pytest.mark.spark
def test_a_worker_that_ran_a_task_will_end_quietly(spark: Any) -> None:
    run_tasks(spark, SparkJob(_loop, "settling"), [1, 2])
    assert set(run_tasks(spark, SparkJob(_loop, "asking"), [1])) == {("pyspark.daemon", True)}


@pytest.mark.parametrize("quick_start", [True, False])
def test_a_quick_start_is_a_setting_of_the_jvm_that_own_settings_replace(quick_start: bool) -> None:
    name = "spark.driver.extraJavaOptions"
    assert ("TieredStopAtLevel=1" in merge_settings({}, quick_start=quick_start)[name]) == quick_start
    own = merge_settings({name: "-Dx=1"}, quick_start=quick_start)[name]
    assert "-Dx=1" in own and "TieredStopAtLevel" not in own and "log4j2.properties" in own


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"])
def test_arrow_is_trusted_in_the_jvm_unless_own_settings_speak_of_it(name: str) -> None:
    assert "-Darrow.enable_unsafe_memory_access=true" in merge_settings({}, quick_start=False)[name]
    assert "-Darrow.enable_unsafe_memory_access=true" in merge_settings({name: "-Dx=1"}, quick_start=False)[name]
    own = merge_settings({name: "-Darrow.enable_unsafe_memory_access=false"}, quick_start=False)[name]
    assert "=true" not in own and "=false" in own


def test_logs_of_processes_that_ended_are_removed_after_a_day(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {"ended": f"icefloe-spark-{ended.pid}.log", "rolled": f"icefloe-spark-{ended.pid}.log.1"}
    names |= {"running": f"icefloe-spark-{os.getpid()}.log", "other": "icefloe-spark-notes.log"}
    for name in names.values():
        (tmp_path / name).touch()
    remove_old_logs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names.values())
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    remove_old_logs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {names["running"], names["other"]}


def _run(connection: socket.socket, authenticated: bool) -> int:
    assert authenticated
    return int(connection.recv(10))


def test_a_task_is_handed_on_untouched_and_a_closed_connection_ends_the_loop() -> None:
    ours, theirs = socket.socketpair()
    worker = QuietWorker(_run)
    theirs.sendall(b"42")
    assert worker(ours, True) == 42
    theirs.close()
    assert worker(ours, True) == 1
    ours.close()


def test_a_worker_prints_no_trace_of_a_connection_that_was_closed(capsys: pytest.CaptureFixture[str]) -> None:
    for error, is_printed in ((BrokenPipeError(), False), (ConnectionResetError(), False), (ValueError("bad"), True)):
        try:
            raise error
        except (OSError, ValueError):
            QuietTraceback().print_exc()
        assert bool(capsys.readouterr().err) == is_printed
    assert QuietTraceback().format_exc() == "NoneType: None\n"


@pytest.mark.parametrize("module", ["pyspark_icefloe", "icefloe.spark"])
def test_a_worker_that_only_looks_for_data_sources_is_quiet_and_loads_little(module: str) -> None:
    script = f"""
import sys, types, traceback
import pyspark.sql.datasource
loop = sys.modules["__main__"]
loop.__spec__, loop.worker = types.SimpleNamespace(name="pyspark.daemon"), print
import {module}
assert type(loop.traceback).__name__ == "QuietTraceback", loop.traceback
assert "icefloe.storage" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


NOISY = """
import sys
from icefloe import Repository
from icefloe.spark import SparkJob, connect, register, run_tasks

def fail(_):
    raise RuntimeError("the disk is full")

spark = connect("local[2,2]", quick_start=True)
Repository.create(sys.argv[1])
spark.read.format("icefloe").option("table", "refs").load(sys.argv[1]).collect()
register(spark)
spark.sql(f"SELECT * FROM icefloe_scan('{sys.argv[1]}', table => 'refs')").collect()
rows = spark.range(3).selectExpr("id", "2 * id AS twice").coalesce(1)
rows.write.format("icefloe").mode("append").option("dims", "id").save(sys.argv[1] + "-2")
try:
    spark.sql("SELECT nothing FROM nowhere")
except Exception:
    pass
try:
    run_tasks(spark, SparkJob(fail, "failing"), [1])
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.spark(4, 0)
@pytest.mark.slow
def test_failed_attempts_are_told_in_a_line_each_and_whole_in_a_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", NOISY, str(tmp_path / "repo")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "failing failed on Spark: RuntimeError: the disk is full" in done.stdout
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr and "BrokenPipe" not in done.stderr
    assert "SQLQueryContextLogger" not in done.stderr
    [log] = tmp_path.glob("icefloe-spark-*.log")
    assert str(log) in done.stderr and "the disk is full" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_java_starts_without_the_incubator_module_that_it_warns_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wrapper = _wrapped(java) / "bin" / "java"
    given = ["-Xmx2g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=other"]
    answer = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True).stdout.splitlines()
    assert answer == ["-Xmx2g", "-cp", "a b", "--add-modules=other"]
    assert _wrapped(wrapper) == wrapper.parent.parent
