"""Commands that change nodes, commands that cannot be undone, and the way back after a reset."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository, UnsupportedError
from icefloe.cli import options
from icefloe.cli.app import build_app, main
from icefloe.testing import write_month

RECORDING = ["repository", "store", "icechunk2"]


@pytest.fixture
def repo(tmp_path: Path) -> str:
    return make(tmp_path / "repo", "repository")


def make(path: Path, generation: str) -> str:
    repository = Repository.create(str(path), spec_version=generation)
    with repository.transaction("main", message="Two arrays") as store:
        root = zarr.create_group(store, attributes={"title": "old"})
        for name in ("a", "b"):
            root.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def names(repo: str) -> set[str]:
    return set(zarr.open_group(Repository.open(repo).readonly_session("main").store, mode="r"))


def test_mv_rm_and_attrs_are_commits(repo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "mv", repo, "a", "/c")["message"] == "Move /a to /c"
    assert names(repo) == {"b", "c"}
    assert run(capsys, "rm", repo, "b", "/c", "-m", "Both")["message"] == "Both"
    assert names(repo) == set()
    run(capsys, "attrs", repo, "/", "levels", "[1, 2]")
    run(capsys, "attrs", repo, "/", "unit", "K")
    run(capsys, "attrs", repo, "/", "--remove", "title")
    assert run(capsys, "attrs", repo) == {"levels": [1, 2], "unit": "K"}
    assert run(capsys, "attrs", repo, "/", "unit") == "K"
    assert len(list(Repository.open(repo).ancestry(branch="main"))) == 7


def test_what_is_not_there_cannot_be_changed(repo: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["rm", repo, "no"], ["mv", repo, "no", "d"], ["attrs", repo, "no"], ["attrs", repo, "/", "no"]):
        assert run(capsys, *arguments, code=1)["error"]["type"] == "NodeNotFoundError"
    assert run(capsys, "rm", repo, "/", code=1)["error"]["type"] == "InvalidInputError"
    assert names(repo) == {"a", "b"}


@pytest.mark.parametrize("generation", RECORDING)
def test_a_reset_is_undone_by_the_reflog(generation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / generation, generation)
    repository = Repository.open(path)
    tip = repository.lookup_branch("main")
    first = list(repository.ancestry(branch="main"))[-1].id
    run(capsys, "reset", path, "main", first)
    positions = run(capsys, "reflog", path)["positions"]
    assert [row["snapshot_id"] for row in positions] == [first, tip, first]
    assert positions[1]["message"] == "Two arrays"
    assert main(["reflog", path]) == 0
    run(capsys, "reset", path, "main", "main@{1}")
    assert Repository.open(path).lookup_branch("main") == tip
    assert run(capsys, "reset", path, "main", "main@{9}", code=1)["error"]["type"] == "RefNotFoundError"


@pytest.mark.parametrize("generation", RECORDING)
def test_positions_of_a_branch_follow_amends_and_collections(generation: str, tmp_path: Path) -> None:
    repository = Repository.open(make(tmp_path / generation, generation))
    before = repository.lookup_branch("main")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    after = session.amend("Better")
    repository.create_branch("side", before)
    assert [each.snapshot_id for each in repository.reflog("main", limit=2)] == [after, before]
    assert [each.snapshot_id for each in repository.reflog("side")] == [before]
    assert repository.reflog("main", limit=1)[0].snapshot_id == after


@pytest.mark.parametrize("generation", ["dataset", "icechunk1"])
def test_generations_without_a_record_say_so(generation: str, tmp_path: Path) -> None:
    repository = Repository.open(make(tmp_path / generation, generation))
    with pytest.raises(UnsupportedError, match="does not record where branches were"):
        repository.reflog("main")


def test_status_flags_and_operations_of_icechunk2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "shared", "icechunk2")
    assert run(capsys, "status", path)["status"] == "online"
    assert run(capsys, "status", path, "read-only", "--reason", "archived")["reason"] == "archived"
    assert run(capsys, "rm", path, "a", code=1)["error"]["type"] == "ReadOnlyError"
    run(capsys, "status", path, "online")
    found = {flag["name"]: flag["enabled"] for flag in run(capsys, "flags", path, "create_tag", "off")}
    assert found["create_tag"] is False and found["delete_tag"] is True
    assert main(["flags", path]) == 0
    kinds = [row["operation"] for row in run(capsys, "reflog", path, "--operations")["operations"]]
    assert kinds[0] == "FeatureFlagChanged" and kinds[-1] == "RepoInitialized"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)])
def test_a_terminal_is_asked_before_what_cannot_be_undone(
    repo: str, answer: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository.open(repo).create_branch("side", Repository.open(repo).lookup_branch("main"))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert main(["branch", repo, "--delete", "side"]) == code
    assert ("side" in Repository.open(repo).list_branches()) == (answer == "n\n")
    assert main(["gc", repo, "--yes"]) == 0


def test_scripts_are_not_asked(repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["gc", repo, "--older-than", "1d"]) == 0
    assert main(["expire", repo, "--older-than", "1d"]) == 0


def test_drawings_fit_an_ascii_terminal(repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository.open(repo)
    repository.create_branch("side", repository.lookup_branch("main"))
    with repository.transaction("side", message="größer") as store:
        zarr.open_array(store, path="a")[0] = 2
    for arguments in (["log", repo, "--graph"], ["tree", repo], ["stats", repo], ["info", repo]):
        written = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
        assert main(arguments) == 0
        written.getvalue().decode("ascii")


def test_the_shell_completes_names_of_the_repository(repo: str) -> None:
    repository = Repository.open(repo)
    repository.create_branch("side", repository.lookup_branch("main"))
    repository.create_tag("v1", repository.lookup_branch("main"))
    context: Any = SimpleNamespace(params={"repo": repo})
    assert options.complete_branch(context, "") == ["main", "side"]
    assert options.complete_tag(context, "v") == ["v1"]
    assert options.complete_revision(context, "") == ["main", "side", "v1"]
    assert options.complete_path(context, "") == ["a", "b"]
    assert options.complete_path(context, "/a") == ["/a"]
    assert "icechunk2" in options.complete_generation("ice")
    context.params = {"repo": f"{repo}-none"}
    assert options.complete_branch(context, "") == []
    build_app()  # all commands accept their completion functions


def test_a_few_files_are_ingested_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in write_month(tmp_path / "files", days=2, nlat=5, nlon=8, variables=("t2m",))]
    repo = str(tmp_path / "archive")
    planned = run(capsys, "ingest", *files, repo, "--engine", "local", "--dry-run")
    assert planned["snapshot_id"] is None and planned["sources"] == 2
    assert not Repository.exists(repo)
    first = run(capsys, "ingest", files[0], repo, "--engine", "local", "--chunks", "time=24")
    assert first["sources"] == 1 and first["references"] > 0
    run(capsys, "ingest", *files, repo, "--engine", "local", "--append-dim", "time", "--skip-ingested")
    assert run(capsys, "ingest", *files, repo, "--engine", "local", "--skip-ingested")["already_there"] == 2
    with xr.open_mfdataset(files) as expected:
        np.testing.assert_array_equal(Repository.open(repo).to_xarray("main").t2m, expected.t2m)
    error = run(capsys, "ingest", files[0], repo, "--engine", "local", "--batch", "2", code=1)
    assert "need Spark" in error["error"]["message"]


def test_an_error_names_the_file_that_cannot_be_read(repo: str, capsys: pytest.CaptureFixture[str]) -> None:
    tip = Repository.open(repo).lookup_branch("main")
    file = Path(repo) / "snapshots" / tip
    file.write_bytes(file.read_bytes()[:60])
    for command in ("info", "tree", "log"):
        assert main([command, repo]) == 1
        assert f"snapshots/{tip}" in capsys.readouterr().err
    assert any(tip in line for line in run(capsys, "info", repo, code=1)["error"]["details"])
