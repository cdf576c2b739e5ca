"""The verbs that run on Spark, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe import Repository
from icefloe.cli.app import main
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
GRID: dict[str, Any] = {"nlat": 19, "nlon": 36, "variables": ("t2m", "tp")}


def test_files_are_planned_ingested_appended_and_exported(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in write_month(tmp_path / "a", days=3, **GRID)]
    place = str(tmp_path / "repo")

    def run(*arguments: str, code: int = 0) -> str:
        assert main(arguments) == code
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    plan = run("ingest", *paths[:2], place, "--dry-run", "--chunks", "time=12")
    assert "48 × 19 × 36" in plan and not Path(place).exists()
    first = json.loads(run("ingest", *paths[:2], place, "--chunks", "time=12", "-m", "two days", "--json"))
    assert first["sources"] == 2 and first["arrays"]["/t2m"]["chunks"][0] == 12
    assert "snapshot" in run("ingest", *paths, place, "--append-dim", "time", "--skip-ingested")
    assert "No new sources" in run("ingest", *paths, place, "--append-dim", "time", "--skip-ingested")
    run("ingest", *paths, place, "--group", "measured", "--statistics")
    assert json.loads(run("analyze", place, "--group", "measured", "--json"))["chunks"] == {}
    assert json.loads(run("analyze", place, "--variables", "t2m", "--dry-run", "--json"))["chunks"]["/t2m"] > 0
    virtual = run("ingest", *paths, str(tmp_path / "virtual"), "--mode", "virtual")
    assert "authorize_virtual_chunk_access" in virtual

    plain = str(tmp_path / "plain")
    told = json.loads(run("export", place, plain, "--variables", "t2m", "--region", "time=24:72", "--json"))
    assert told["objects"] > 5
    expected = xr.open_dataset(paths[2], engine="netcdf4").t2m.values
    assert (xr.open_zarr(plain).t2m.values[24:] == expected).all()
    assert "snapshot" in run("export", place, str(tmp_path / "copy"), "--to", "repository")

    assert "exists. Use append_dim" in run("ingest", *paths, place, code=1)
    assert "NAME=VALUE" in run("ingest", *paths, place, "--rename", "x", code=2)


def test_gaps_and_files_that_do_not_fit_are_told_line_by_line(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in write_month(tmp_path / "a", days=4, **GRID)]
    place = str(tmp_path / "repo")
    assert main(["ingest", paths[0], place]) == 0
    assert main(["ingest", paths[2], place, "--append-dim", "time"]) == 0
    assert "ends at 2020-01-01 23:00, weather-20200103.nc starts at 2020-01-03 00:00" in capsys.readouterr().out
    Path(paths[1]).write_bytes(b"not at all")
    Path(paths[3]).write_bytes(b"")
    assert main(["ingest", *paths, str(tmp_path / "other")]) == 1
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("error: 2 of 4 sources cannot be read. Nothing was written")
    assert [name in line for name, line in zip(paths[1::2], others, strict=True)] == [True, True]
    write_month(tmp_path / "a", days=4, **{**GRID, "variables": ("t2m",)})
    write_month(tmp_path / "a", days=2, **GRID)
    assert main(["ingest", str(tmp_path / "a"), str(tmp_path / "other"), "--dry-run"]) == 1
    told = capsys.readouterr()
    assert "missing variable" in told.out and "would fail: 2 differences" in told.err


@pytest.mark.slow
def test_the_demo_tells_its_story(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(tmp_path / "demo"), "--days", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hours"] == {"now": 96, "before": 72} and told["virtual_equals_native"] is True
    assert Path(told["picture"]).stat().st_size > 10_000
    assert main(["demo", str(tmp_path / "demo")]) == 1


def test_a_query_that_fails_is_told_in_one_line(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "repo")
    session = Repository.create(place).writable_session("main")
    xr.Dataset({"v": ("x", [1.0, 2.0])}).to_zarr(session.store, consolidated=False)
    session.commit("two values")
    assert main(["sql", place, "select nope from v"]) == 1
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0 and "nope" in told
