"""The verbs of maintenance show their plans, do their work, and answer machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import Past, make_past, messages, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.cli.app import main
from icefloe.cli.console import Bars
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
    assert "4 snapshots expired" in capsys.readouterr().out
    assert len(messages(icefloe.Repository.open(place))) == 3
    assert main(["gc", place, "--older-than", "0s", "--dry-run"]) == 0
    assert "4 snapshots" in capsys.readouterr().out
    assert answer(capsys, "gc", place)["snapshots_deleted"] == 0
    assert answer(capsys, "gc", place, "--older-than", "0s", "--incremental")["snapshots_deleted"] == 4
    past.check(icefloe.Repository.open(place))


@pytest.mark.long
def test_maintenance_writes_no_warnings(place: str) -> None:
    for verb in (["expire", place, "--retain-last", "2"], ["gc", place, "--older-than", "0s"], ["verify", place]):
        code = f"import sys; from icefloe.cli.app import main; sys.exit(main({verb!r}))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stderr == "", verb


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
    log = past.repo.context.format.transaction_log_key(past.repo.lookup_branch("main"))
    run_blocking(past.repo.storage.delete([log]))
    found = answer(capsys, "verify", place, code=1)
    assert [each["what"] for each in found["damages"]] == ["transaction log"]  # type: ignore[attr-defined, index]
    assert answer(capsys, "verify", place, "--repair")["clean"] is True


@pytest.mark.skipif("rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only")
def test_compact_merges_old_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = icefloe.Repository.create(tmp_path / "hours")
    with repository.transaction("main", message="hours") as store:
        array = zarr.create_array(store, name="t", shape=(10,), chunks=(1,), dtype="i4", dimension_names=["time"])
        array[:] = np.arange(10) + 1
    place = str(tmp_path / "hours")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        assert answer(capsys, "compact", place, "--merge", "time=4", "--keep", "5", "--dry-run")["chunks"] == 4
        done = answer(capsys, "compact", place, "--merge", "time=4", "--keep", "5")
        assert done["chunks"] == 4 and len(done["commits"]) == 1  # type: ignore[arg-type]
        found = zarr.open_array(icefloe.Repository.open(place).readonly_session("main").store, path="t", mode="r")
        assert found[:].tolist() == list(range(1, 11))
        [listed] = answer(capsys, "ls", place)["children"]  # type: ignore[misc]
        assert listed["chunk_shapes"] == [[4, 1, 1, 1, 1, 1, 1]] and listed["chunk_grid"] == [7]  # type: ignore[index]
        assert main(["ls", place]) == 0 and "1 to 4" in capsys.readouterr().out
        assert answer(capsys, "verify", place, "--decode")["clean"] is True
    # The chunks may be fine, so this is no damage.
    with zarr.config.set({"array.rectilinear_chunks": False}):
        assert main(["verify", place, "--decode"]) == 1
        assert "/t has the chunk grid 'rectilinear'" in capsys.readouterr().err


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


def test_mirror_copies_what_is_new(past: Past, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "copy")
    planned = answer(capsys, "mirror", place, target, "--dry-run")
    assert planned["copied_objects"] and not (tmp_path / "copy").exists()
    first = answer(capsys, "mirror", place, target)
    assert first["copied_objects"] == planned["copied_objects"] and first["unchanged"] == 0
    past.commit(seed=77)
    assert main(["mirror", place, target]) == 0
    assert "copied" in capsys.readouterr().out
    assert messages(icefloe.Repository.open(target)) == messages(past.repo)
    past.check(icefloe.Repository.open(target))


def test_materialize_copies_virtual_chunks_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "files").mkdir()
    source = tmp_path / "files" / "numbers"
    source.write_bytes(np.arange(8, dtype="i4").tobytes())
    prefix = f"{(tmp_path / 'files').as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path / "files")))
    )
    repo = icefloe.Repository.create(local_filesystem_storage(tmp_path / "repo"), config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(8,), chunks=(8,), dtype="i4", compressors=None)
    session.store.set_virtual_ref("v/c/0", source.as_uri(), offset=0, length=32)
    session.commit("virtual")
    repo.save_config()
    place = str(tmp_path / "repo")
    assert answer(capsys, "materialize", place, "--dry-run")["chunks"] == 1
    assert answer(capsys, "materialize", place, "--authorize", prefix)["chunks"] == 1
    source.unlink()
    found = icefloe.Repository.open(place).readonly_session("main")
    assert zarr.open_array(found.store, path="v", mode="r")[:].tolist() == list(range(8))


def test_a_merge_that_clashes_lists_conflicts_by_array_and_chunk(
    past: Past, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    for branch, value in (("main", 1), ("dev", 2)):
        session = past.repo.writable_session(branch)
        zarr.open_array(session.store, path="b", mode="r+")[:10] = value
        session.commit(f"{branch} writes")
    before = past.repo.lookup_branch("main")
    for extra in ([], ["--pick"]):
        expected = [{"type": "ChunkDoubleUpdate", "path": "/b", "chunks": [[0]]}]
        assert answer(capsys, "merge", place, "dev", *extra, "--dry-run")["conflicts"] == expected
        assert answer(capsys, "merge", place, "dev", *extra, code=1)["conflicts"] == expected
    assert main(["merge", place, "dev"]) == 1
    assert "ChunkDoubleUpdate at /b" in capsys.readouterr().err
    assert icefloe.Repository.open(place).lookup_branch("main") == before
    answer(capsys, "merge", place, "dev", "--prefer", "source")
    after = icefloe.Repository.open(place).readonly_session("main")
    assert zarr.open_array(after.store, path="b", mode="r")[0] == 2


def test_a_branch_is_moved_only_forward(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    tip = past.commit("dev", seed=60, name="x")
    old = past.repo.lookup_branch("main")
    planned = answer(capsys, "merge", place, "dev", "--only-fast-forward", "--dry-run")
    assert (planned["target"], planned["source"]) == (old, tip)
    assert past.repo.lookup_branch("main") == old
    assert answer(capsys, "merge", place, "dev", "--only-fast-forward")["snapshot_id"] == tip
    past.commit("main", seed=61, name="y")
    past.commit("dev", seed=62, name="z")
    assert main(["merge", place, "dev", "--only-fast-forward", "--dry-run"]) == 1
    assert main(["merge", place, "dev", "--only-fast-forward"]) == 1
    first = list(past.repo.ancestry(branch="dev"))[-1].id
    assert len(answer(capsys, "merge", place, first, "dev", "--squash", "--dry-run")["commits"]) == 8  # type: ignore[arg-type]


def test_a_repair_is_shown_before_it_is_made(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = past.repo.context.format.transaction_log_key(past.repo.lookup_branch("main"))
    run_blocking(past.repo.storage.delete([log]))
    assert main(["verify", place, "--repair", "--dry-run"]) == 1
    assert "1 damage to repair" in capsys.readouterr().out
    assert not run_blocking(past.repo.storage.exists(log))
    assert main(["verify", place, "--repair"]) == 0
    assert run_blocking(past.repo.storage.exists(log))


def test_a_plan_of_what_is_new_deletes_nothing(past: Past, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "gc", place, "--older-than", "0s", "--incremental")
    past.repo.expire_snapshots(retain_last=2)
    planned = answer(capsys, "gc", place, "--older-than", "0s", "--incremental", "--dry-run")
    assert planned["snapshots_deleted"] == 4
    assert answer(capsys, "gc", place, "--older-than", "0s", "--incremental")["snapshots_deleted"] == 4


def test_stages_are_told_up_to_their_end(past: Past) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def note(stage: str, done: int, total: int) -> None:
        told.setdefault(stage, []).append((done, total))

    repo = past.repo
    repo.compact(unpack=True, progress=note)
    repo.rewrite_manifests("again", branch="main", progress=note)
    repo.expire_snapshots(retain_last=1, progress=note)
    repo.garbage_collect(now(), progress=note)
    repo.mirror(icefloe.in_memory_storage(), progress=note)
    repo.verify(progress=note)
    for stage in (
        "unpack chunks",
        "write manifests",
        "change history",
        "read manifests",
        "delete chunks",
        "delete snapshots",
        "copy objects",
        "check manifests",
        "check transaction logs",
    ):
        done, total = told[stage][-1]
        assert done == total > 0, stage
        assert [each for each, _ in told[stage]] == sorted(each for each, _ in told[stage])


def test_bars_are_drawn_for_people_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.report("stage", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Bars() as bars:
        bars.report("read manifests", 1, 2)
        bars.report("list", 7, 0)
    drawn = capsys.readouterr().err
    assert "read manifests" in drawn and "1/2" in drawn and "7/?" in drawn
