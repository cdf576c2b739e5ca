"""The guide to tables runs as it stands, and so does the command."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from typer.testing import CliRunner

pytestmark = pytest.mark.spark(4, 0)


def test_every_block_of_the_guide_runs(
    spark: Any,
    repository_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python spark\n(.*?)```", (repository_root / "docs" / "tables.md").read_text(), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/tables.md", "exec"), names)
    told = capfd.readouterr().out
    assert "two days" in told and "912 " in told
    spark.sql("drop view tropics")
    assert os.path.isdir(tmp_path / "weather" / "statistics")


def test_the_command_answers_in_text_and_json(spark: Any, place: str) -> None:
    from icefloe.cli.app import build_app

    runner, app = CliRunner(), build_app()
    told = runner.invoke(app, ["sql", place, "select count(*) as n, max(lat) as top from t2m"])
    assert told.exit_code == 0 and re.search(r"756\s+90", told.output), told.output
    query = "select m.arrays[0] as first, (select count(*) from refs) as refs from manifests m"
    told = runner.invoke(app, ["sql", place, query, "--json"])
    assert json.loads(told.stdout)["rows"][0]["refs"] == 1
    told = runner.invoke(app, ["sql", place, "--json"])
    views = {view["view"] for view in json.loads(told.stdout)}
    assert {"t2m", "wind", "altitude", "cells", "snapshots", "changes"} <= views


def test_the_query_of_the_readme_is_answered(
    spark: Any, repository_root: Path, place: str, weather: xr.Dataset
) -> None:
    from icefloe.cli.app import build_app

    [(command, query)] = re.findall(r'^icefloe (sql) \S+ "(.*)"$', (repository_root / "README.md").read_text(), re.M)
    told = CliRunner().invoke(build_app(), [command, place, query, "--json"])
    assert told.exit_code == 0, told.output
    [row] = json.loads(told.stdout)["rows"]
    assert row == {"warmest": pytest.approx(float(weather.t2m.max())), "cells": weather.t2m.size}
