"""The verbs of maintenance show their plans, do their work, and answer machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.maintenance.histories import Past, make_past, messages

import icefloe
from icefloe.blocking import run_blocking
from icefloe.cli.app import main
from icefloe.storage.build import local_filesystem_storage


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return make_past(local_filesystem_storage(tmp_path / "repo"), "repository")


@pytest.fixture
def place(past: Past, tmp_path: Path) -> str:
    return str(tmp_path / "repo")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_expire_and_gc(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answer(capsys, "expire", place, "--retain-last", "2", "--dry-run")["expired"]) == 4  # type: ignore[arg-type]
    assert len(messages(icefloe.Repository.open(place))) == 7
    assert main(["expire", place, "--rule", "branch:main=last:2+0s", "--rule", "tag:*=forever"]) == 0
    assert "4 snapshots to expire" in capsys.readouterr().out
    assert len(messages(icefloe.Repository.open(place))) == 3
    assert main(["gc", place, "--older-than", "0s", "--dry-run"]) == 0
    assert "4 snapshots" in capsys.readouterr().out
    assert answer(capsys, "gc", place)["snapshots_deleted"] == 0
    assert answer(capsys, "gc", place, "--older-than", "0s", "--incremental")["snapshots_deleted"] == 4
    past.check(icefloe.Repository.open(place))


def test_expire_of_a_range(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    found = answer(capsys, "expire", place, "--snapshot", f"{ids[4][:9]}..{ids[2]}")
    assert found["expired"] == ids[2:5]


@pytest.mark.parametrize("wrong", [["--rule", "main"], ["--older-than", "soon"], ["--rule", "x=later"]])
def test_wrong_usage_is_refused(place: str, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expire", place, *wrong]) == 2


def test_verify_exits_with_1_when_something_is_wrong(
    past: Past, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, "verify", place, "--decode")["clean"] is True
    log = past.repo.engine.format.transaction_log_key(past.repo.lookup_branch("main"))
    run_blocking(past.repo.storage.delete([log]))
    found = answer(capsys, "verify", place, code=1)
    assert [each["what"] for each in found["damages"]] == ["transaction log"]  # type: ignore[attr-defined, index]
    assert answer(capsys, "verify", place, "--repair")["clean"] is True


def test_compact_and_rewrite(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "chunks" in answer(capsys, "compact", place, "--unpack", "--dry-run")
    assert answer(capsys, "compact", place, "--unpack")["chunks"] == 3
    assert answer(capsys, "compact", place, "--hilbert", "--arrays", "b", "--region", "0:3")["chunks"] == 3
    assert main(["rewrite-manifests", place, "--dry-run"]) == 0
    assert "manifests to write" in capsys.readouterr().out
    assert "snapshot_id" in answer(capsys, "rewrite-manifests", place, "--amend")
    past.check(icefloe.Repository.open(place))


def test_merge_pick_revert_and_squash(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    picked = past.commit("dev", seed=50, name="x")
    past.commit("main", seed=51, name="y")
    assert answer(capsys, "merge", place, "dev", "--dry-run")["conflicts"] == []
    assert answer(capsys, "merge", place, "dev")["branch"] == "main"
    assert main(["merge", place, "main", "--revert"]) == 0
    capsys.readouterr()
    assert answer(capsys, "merge", place, picked, "--pick", "--dry-run")["up_to_date"] is False
    first = list(past.repo.ancestry(branch="main"))[-1].id
    answer(capsys, "merge", place, first, "main", "--squash", "-m", "one")
    assert messages(icefloe.Repository.open(place)) == ["one", "Repository initialized"]
