"""What people see of a job while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe.spark import SparkJob, run_tasks
from icefloe.spark.jobs import JobMeter, progress_display

METER = JobMeter("reading", 4, 8_000_000)


@pytest.mark.spark
def test_a_job_shows_its_tasks_and_bytes_when_asked(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_tasks(spark, SparkJob(abs, "counting", shown=True, bytes=6_000_000), [1, 2, 3])
    told = capsys.readouterr().err
    assert "counting" in told and "3/3" in told and "6/6 MB" in told


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(METER) as show:
        assert show is None
    assert capsys.readouterr().err == ""


def test_a_notebook_without_widgets_gets_a_line_of_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with progress_display(METER) as show:
        assert show is not None
        show(1)
        show(4)
    shown = capsys.readouterr().err.split("\r")
    assert "reading: 1/4 tasks, 2/8 MB" in shown[1] and "left" in shown[1]
    assert "4/4 tasks" in shown[2] and shown[2].endswith("\n") and "left" not in shown[2]
