"""Status, metadata, feature flags and operations of a repository as a whole, and who has none of it."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import RepoAvailability, RepoStatus, SpecVersion, UpdateType


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(tmp_path / "repo", spec_version=2)


def add_group(repo: icefloe.Repository, path: str) -> str:
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").require_group(path)
    return session.commit(path)


def test_a_read_only_repository_takes_no_writes_until_it_is_online_again(repo: icefloe.Repository) -> None:
    tip = add_group(repo, "a")
    open_session = repo.writable_session("main")
    zarr.open_group(open_session.store, mode="a").create_group("late")
    repo.set_status(RepoStatus(RepoAvailability.read_only, None, "archived"))
    status = repo.get_status()
    assert (status.availability, status.limited_availability_reason) == (RepoAvailability.read_only, "archived")
    attempts: list[Any] = [
        lambda: repo.writable_session("main"),
        lambda: repo.rearrange_session("main"),
        lambda: repo.create_tag("t", tip),
        lambda: repo.create_branch("b", tip),
        lambda: repo.reset_branch("main", tip),
        lambda: repo.set_metadata({"a": 1}),
        lambda: repo.set_feature_flag("move_node", False),
        lambda: repo.save_config(),
        lambda: open_session.commit("late"),
    ]
    for attempt in attempts:
        with pytest.raises(icefloe.ReadOnlyError, match="archived"):
            attempt()
    assert "a" in zarr.open_group(repo.readonly_session("main").store, mode="r")
    repo.set_status(RepoStatus(RepoAvailability.online))
    add_group(repo, "b")
    assert repo.status.availability is RepoAvailability.online


def test_metadata_is_replaced_or_updated_key_by_key(repo: icefloe.Repository) -> None:
    assert repo.get_metadata() == {}
    repo.set_metadata({"team": "ice", "n": [1, {"x": None}]})
    assert repo.update_metadata({"n": 2, "new": "é"}) == {"team": "ice", "n": 2, "new": "é"}
    assert icefloe.Repository.open(repo.storage).metadata == {"team": "ice", "n": 2, "new": "é"}
    repo.set_metadata({})
    assert repo.metadata == {}


def test_flags_forbid_what_they_name(repo: icefloe.Repository) -> None:
    add_group(repo, "a")
    assert {flag.name for flag in repo.feature_flags()} == {"move_node", "create_tag", "delete_tag"}
    assert all(flag.enabled and flag.setting is None for flag in repo.feature_flags())
    moving = repo.writable_session("main")
    moving.move("/a", "/b")
    repo.create_tag("kept", repo.lookup_branch("main"))
    for name in ("move_node", "create_tag", "delete_tag"):
        repo.set_feature_flag(name, False)
    assert {flag.name for flag in repo.disabled_feature_flags()} == {"move_node", "create_tag", "delete_tag"}
    assert repo.enabled_feature_flags() == []
    attempts: list[Any] = [
        lambda: moving.commit("moved"),
        lambda: repo.rearrange_session("main"),
        lambda: repo.create_tag("t", repo.lookup_branch("main")),
        lambda: repo.delete_tag("kept"),
    ]
    for attempt in attempts:
        with pytest.raises(icefloe.IcefloeError, match="is disabled"):
            attempt()
    repo.set_feature_flag("move_node", None)
    moving.commit("moved")
    repo.set_feature_flag("delete_tag", True)
    repo.delete_tag("kept")
    with pytest.raises(icefloe.InvalidInputError, match="nothing"):
        repo.set_feature_flag("nothing", True)


def test_the_operations_log_tells_what_was_done_newest_first(repo: icefloe.Repository) -> None:
    first = add_group(repo, "a")
    repo.create_branch("dev", first)
    repo.create_tag("t", first)
    repo.delete_tag("t")
    session = repo.writable_session("dev")
    zarr.open_group(session.store, mode="a").create_group("x")
    second = session.amend("better")
    repo.reset_branch("dev", first)
    repo.delete_branch("dev")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("aside")
    detached = session.flush("aside")
    repo.set_metadata({"a": 1})
    repo.set_feature_flag("move_node", False)
    repo.set_feature_flag("move_node", None)
    repo.save_config()
    repo.set_status(RepoStatus(RepoAvailability.online, None, "checked"))
    log = list(repo.ops_log())
    kinds = [update.kind for update in log]
    assert isinstance(kinds[0], UpdateType.RepoStatusChanged) and kinds[0].status == repo.status
    assert kinds[1:] == [
        UpdateType.ConfigChanged(),
        UpdateType.FeatureFlagChanged(3, None),
        UpdateType.FeatureFlagChanged(3, False),
        UpdateType.MetadataChanged(),
        UpdateType.NewDetachedSnapshot(detached),
        UpdateType.BranchDeleted("dev", first),
        UpdateType.BranchReset("dev", second),
        UpdateType.CommitAmended("dev", first, second),
        UpdateType.TagDeleted("t", first),
        UpdateType.TagCreated("t"),
        UpdateType.BranchCreated("dev"),
        UpdateType.NewCommit("main", first),
        UpdateType.RepoInitialized(),
    ]
    assert all(isinstance(kind, UpdateType) for kind in kinds)
    assert log[0].backup_path is None and all(update.backup_path for update in log[1:])
    assert all(newer.updated_at > older.updated_at for newer, older in itertools.pairwise(log))
    assert pickle.loads(pickle.dumps(log)) == log

    async def collect() -> list[Any]:
        return [update async for update in repo.ops_log_async()]

    assert asyncio.run(collect()) == log


def test_the_repo_file_is_described_as_plain_data(repo: icefloe.Repository) -> None:
    tip = add_group(repo, "a")
    repo.create_tag("t", tip)
    repo.set_metadata({"a": 1})
    described = repo.inspect_repo_info()
    assert described["branches"] == {"main": tip} and described["tags"] == {"t": tip}
    assert described["metadata"] == {"a": 1}
    assert {entry["id"]: entry.get("parent_id") for entry in described["snapshots"]} == {
        info.id: info.parent_id for info in repo.ancestry(branch="main")
    }
    assert described["latest_updates"][0]["update_type"] == {"type": "MetadataChangedUpdate"}
    assert described["header"]["file_type"] == "repo-info"


@pytest.mark.parametrize("version", ["dataset", "store", "repository", "icechunk1"])
def test_other_generations_say_that_they_have_no_place_for_it(tmp_path: Path, version: str) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo", spec_version=version)
    attempts: list[Any] = [
        repo.get_status,
        repo.get_metadata,
        repo.feature_flags,
        repo.inspect_repo_info,
        lambda: list(repo.ops_log()),
        lambda: repo.set_metadata({}),
        lambda: repo.set_status(RepoStatus(RepoAvailability.online)),
        lambda: repo.set_feature_flag("move_node", True),
        lambda: repo.update_metadata({}),
    ]
    for attempt in attempts:
        with pytest.raises(icefloe.UnsupportedError, match=version):
            attempt()


def test_generations_compare_with_the_numbers_of_the_official_package(repo: icefloe.Repository, tmp_path: Path) -> None:
    assert repo.spec_version == 2 and repo.spec_version >= 2 and repo.spec_version > 1
    assert repo.spec_version != 1
    assert repo.spec_version is SpecVersion.v2 is SpecVersion(2) is SpecVersion("icechunk2") is SpecVersion.current()
    assert SpecVersion.v1 == 1 and SpecVersion.v1 < SpecVersion.v2 and SpecVersion.v1 <= 1
    early = icefloe.Repository.create(tmp_path / "early").spec_version
    assert early is SpecVersion.REPOSITORY and early < 1 and early not in (0, 1, 2)
    assert sorted(SpecVersion, reverse=True) == icefloe.supported_spec_versions()
    assert {SpecVersion.v2: "x"}[2] == "x"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(SpecVersion.v1)) is SpecVersion.v1


@pytest.mark.compat
def test_both_libraries_see_the_same_administration(repo: icefloe.Repository, tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2.0")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    repo.set_metadata({"ours": 1, "deep": {"a": [1, "é", None]}})
    theirs.update_metadata({"theirs": 2.5})
    assert repo.get_metadata() == theirs.get_metadata() == {"ours": 1, "deep": {"a": [1, "é", None]}, "theirs": 2.5}
    repo.set_feature_flag("create_tag", False)
    theirs.set_feature_flag("delete_tag", False)
    ours_of = {flag.id: (flag.name, flag.default_enabled, flag.setting, flag.enabled) for flag in repo.feature_flags()}
    assert ours_of == {f.id: (f.name, f.default_enabled, f.setting, f.enabled) for f in theirs.feature_flags()}
    with pytest.raises(icechunk.SessionStateError):
        theirs.create_tag("t", repo.lookup_branch("main"))
    theirs.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.read_only, limited_availability_reason="theirs"))
    with pytest.raises(icefloe.ReadOnlyError, match="theirs"):
        repo.writable_session("main")
    repo.set_status(RepoStatus(RepoAvailability.read_only, None, "ours"))
    assert theirs.get_status().limited_availability_reason == "ours"
    with pytest.raises(icechunk.ReadOnlyError):
        theirs.writable_session("main")
    repo.set_status(RepoStatus(RepoAvailability.online))
    mine, other = list(repo.ops_log()), list(theirs.ops_log())
    assert [(type(u.kind).__name__, u.updated_at, u.backup_path) for u in mine] == [
        (type(u.kind).__name__, u.updated_at, u.backup_path) for u in other
    ]
    described, official = repo.inspect_repo_info(), theirs.inspect_repo_info()
    for key in ("branches", "tags", "deleted_tags", "metadata", "spec_version"):
        assert described[key] == official[key]


@pytest.mark.parametrize("has_garbage", [False, True])
def test_every_collection_is_in_the_operations_log(has_garbage: bool) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
    if has_garbage:
        session = repo.writable_session("main")
        zarr.create_group(session.store)
        session.flush("nobody refers to this")
    summary = repo.garbage_collect(dt.datetime.now(dt.UTC), ignore_running_sessions=True)
    assert (summary.snapshots_deleted > 0) == has_garbage
    kinds = [type(update.kind).__name__ for update in repo.ops_log()]
    assert kinds.count("GCRan") >= 1 and kinds[0] == "GCRan"
    before = len(kinds)
    repo.garbage_collect(dt.datetime.now(dt.UTC), dry_run=True)
    assert len(list(repo.ops_log())) == before
