"""The command `sync`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.ingest.test_sync import values, write_day

import icefloe
from icefloe.cli.app import main


def test_a_night_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 3):
        write_day(tmp_path, day, day)
    repo, files = str(tmp_path / "repo"), str(tmp_path / "day*.nc")
    command = ["sync", files, repo, "--append-dim", "time"]
    assert main(command) == 0
    assert "Sources: 2 added" in capsys.readouterr().out
    write_day(tmp_path, 2, 2)
    (tmp_path / "day001.nc").unlink()
    assert main([*command, "--dry-run"]) == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert main([*command, "--vanished", "remove", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [Path(url).name for url in facts["added"]] == ["day002.nc"]
    assert [Path(url).name for url in facts["vanished"]] == ["day001.nc"]
    assert values(icefloe.Repository.open(repo)) == [2, 3]
    assert main(command) == 0
    assert "There is nothing to do" in capsys.readouterr().out


def test_a_dry_run_creates_no_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_day(tmp_path, 1, 1)
    assert main(["sync", str(tmp_path / "day*.nc"), str(tmp_path / "repo"), "--dry-run"]) == 0
    assert not (tmp_path / "repo").exists()
    assert "1 added" in capsys.readouterr().out
