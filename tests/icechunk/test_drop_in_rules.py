"""Stores, moves, conflicts, manifests and logs of `icefloe.icechunk` follow the rules of the official package."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from icefloe import icechunk
from icefloe.debug import DIRECTIVE_VARIABLES


@pytest.fixture
def repo() -> icechunk.Repository:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    with repo.transaction("main", message="first") as store:
        group = zarr.create_group(store)
        group.create_array("a", shape=4, chunks=1, dtype="i4")[:] = 1
        group.create_array("b", shape=4, chunks=1, dtype="i4")[:] = 1
        group.create_group("g")
    return repo


# -- stores -------------------------------------------------------------------------------------------------------


async def test_a_key_that_can_have_no_value_is_invalid(repo: icechunk.Repository) -> None:
    store = repo.readonly_session("main").store
    for call in (store.get("a/x", default_buffer_prototype()), store.exists("x"), store.getsize("x")):
        with pytest.raises(icechunk.InvalidInputError) as refused:
            await call
        assert refused.value.kind == icechunk.ErrorKind.INVALID_KEY
    assert await store.get(".zgroup", default_buffer_prototype()) is None
    assert not await store.exists("a/c/9") and not await store.exists("none/zarr.json")


async def test_a_prefix_is_the_path_of_a_node(repo: icechunk.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="g-more")
    assert [key async for key in session.store.list_prefix("g")] == ["g/zarr.json"]
    assert sorted([key async for key in session.store.list_prefix("b/")])[-1] == "b/zarr.json"


def test_keys_are_listed_in_a_for_loop_too(repo: icechunk.Repository) -> None:
    store = repo.readonly_session("main").store
    assert "a/c/0" in list(store.list()) and set(store.list_dir("")) == {"a", "b", "g", "zarr.json"}
    assert list(store.list_prefix("g")) == ["g/zarr.json"]
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="empty", shape=4, dtype="i4")
    assert set(session.store.list_dir("empty")) == {"zarr.json", "c"}


async def test_a_store_of_a_session_is_open_and_a_copy_of_it_opens_when_it_is_used(repo: icechunk.Repository) -> None:
    store = repo.writable_session("main").store
    assert store._is_open and not store.with_read_only(True)._is_open


def test_stores_of_both_packages_are_stores_of_the_drop_in(repo: icechunk.Repository) -> None:
    other = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
    assert isinstance(other, icechunk.IcechunkStore)
    assert isinstance(repo.readonly_session("main").store, icefloe.IcechunkStore)
    assert not isinstance("store", icechunk.IcechunkStore)


async def test_a_node_can_be_below_an_array(repo: icechunk.Repository) -> None:
    session = repo.writable_session("main")
    document = await session.store.get("a/zarr.json", default_buffer_prototype())
    assert document is not None
    await session.store.set("a/b/zarr.json", cpu.Buffer.from_bytes(document.to_bytes()))
    session.commit("below")
    store = repo.readonly_session("main").store
    for key in [key async for key in store.list_prefix("")]:
        assert await store.get(key, default_buffer_prototype()) is not None, key


@pytest.mark.parametrize("package", [icefloe, icechunk], ids=["icefloe", "icechunk"])
def test_a_node_with_the_name_of_an_old_metadata_file_is_listed(package: object) -> None:
    session = package.Repository.create(icefloe.in_memory_storage()).writable_session("main")  # type: ignore[attr-defined]
    group = zarr.create_group(session.store)
    group.create_array(".zgroup", shape=1, dtype="i4")
    assert list(group.array_keys()) == [".zgroup"]


# -- moves and conflicts ------------------------------------------------------------------------------------------


def test_a_move_that_was_undone_can_be_committed(repo: icechunk.Repository) -> None:
    session = repo.rearrange_session("main")
    session.move("/a", "/x")
    session.move("/x", "/a")
    assert session.has_uncommitted_changes
    session.commit("There and back")
    assert not session.has_uncommitted_changes


def test_a_move_that_is_not_possible_says_why(repo: icechunk.Repository) -> None:
    session = repo.rearrange_session("main")
    for source, target, cls, text in (
        ("/", "/", icechunk.SessionStateError, "into itself or its own descendant"),
        ("/g", "/g/x", icechunk.SessionStateError, "into itself or its own descendant"),
        ("/a", "/b", icechunk.AlreadyExistsError, "overwrite existing node"),
        ("/a", "/none/x", icechunk.SessionStateError, "destination's parent group"),
        ("/a", "/b/x", icechunk.SessionStateError, "is an array, not a group"),
        ("/none", "/x", icechunk.NodeNotFoundError, "node not found"),
        ("/a", "x", icechunk.InvalidInputError, "must start with /"),
    ):
        with pytest.raises(cls, match=text):
            session.move(source, target)
    assert not session.has_uncommitted_changes


def test_nothing_is_rebased_over_a_move(repo: icechunk.Repository) -> None:
    writing, moving = repo.writable_session("main"), repo.rearrange_session("main")
    zarr.open_array(writing.store, path="b")[0] = 2
    moving.move("/a", "/x")
    moving.commit("Moved")
    with pytest.raises(icechunk.RebaseFailedError) as failed:
        writing.rebase(icechunk.ConflictDetector())
    assert [each.conflict_type.name for each in failed.value.conflicts] == ["MoveOperationCannotBeRebased"]


def test_chunks_conflict_with_any_change_of_the_metadata_of_their_array(repo: icechunk.Repository) -> None:
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(ours.store, path="a")[0] = 2
    zarr.open_array(theirs.store, path="a").attrs["x"] = 1
    theirs.commit("Attributes")
    with pytest.raises(icechunk.RebaseFailedError) as failed:
        ours.rebase(icechunk.ConflictDetector())
    assert [each.conflict_type.name for each in failed.value.conflicts] == ["ChunksUpdatedInUpdatedArray"]
    ours.rebase(icechunk.BasicConflictSolver())
    ours.commit("Both")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[0] == 2 and array.attrs["x"] == 1


def test_a_difference_goes_from_an_ancestor_to_a_descendant(repo: icechunk.Repository) -> None:
    newest, first = [info.id for info in repo.ancestry(branch="main")]
    assert repo.diff(from_snapshot_id=first, to_branch="main").new_arrays == {"/a", "/b"}
    for start, end in ((newest, first), (newest, newest)):
        with pytest.raises(icechunk.InvalidInputError, match="doesn't include") as refused:
            repo.diff(from_snapshot_id=start, to_snapshot_id=end)
        assert refused.value.kind == icechunk.ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF


# -- files, times and versions ------------------------------------------------------------------------------------


def test_every_array_has_a_manifest_of_its_own_unless_sets_are_configured(repo: icechunk.Repository) -> None:
    snapshot = repo.lookup_branch("main")
    assert [each.num_chunk_refs for each in repo.list_manifest_files(snapshot)] == [4, 4]
    sets = icechunk.ManifestConfig(sets=(icefloe.ManifestSet.default(),), rules=())
    other = icechunk.Repository.create(icechunk.in_memory_storage(), icechunk.RepositoryConfig(manifest=sets))
    with other.transaction("main", message="first") as store:
        for name in "ab":
            zarr.create_array(store, name=name, shape=4, chunks=1, dtype="i4")[:] = 1
    assert [each.num_chunk_refs for each in other.list_manifest_files(other.lookup_branch("main"))] == [8]


def test_a_time_needs_a_time_zone(repo: icechunk.Repository) -> None:
    naive = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
    for call in (
        lambda: repo.readonly_session("main", as_of=naive),
        lambda: repo.expire_snapshots(naive),
        lambda: repo.garbage_collect(naive),
    ):
        with pytest.raises(TypeError):
            call()


def test_metadata_of_another_type_is_a_type_error(repo: icechunk.Repository) -> None:
    with pytest.raises(TypeError, match="metadata"):
        repo.writable_session("main").commit("x", {"a": object()}, allow_empty=True)


def test_locations_below_a_named_container_are_listed_as_urls(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0" * 16)
    prefix = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig()
    store = icechunk.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, name="here"))
    session = icechunk.Repository.create(icechunk.in_memory_storage(), config).writable_session("main")
    zarr.create_array(session.store, name="a", shape=4, chunks=4, dtype="i4")
    session.store.set_virtual_ref("a/c/0", "vcc://here/file", offset=0, length=16)
    assert session.all_virtual_chunk_locations() == [f"{prefix}file"]


def test_versions_that_do_not_exist_are_refused() -> None:
    for version in (255, "v1"):
        with pytest.raises(ValueError, match="version"):
            icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=version)


def test_an_upgraded_repository_object_cannot_be_used() -> None:
    old = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=1)
    with pytest.raises(icechunk.IcechunkError, match="upgrade"):
        old.writable_session("main").amend("x", allow_empty=True)
    new = icechunk.upgrade_icechunk_repository(old, dry_run=False)
    assert new.spec_version == 2 and new.status.set_at == list(new.ops_log())[-1].updated_at
    with pytest.raises(RuntimeError, match="invalidated"):
        old.writable_session("main")


def test_a_session_on_a_missing_snapshot_reports_it_when_it_is_used(tmp_path: Path) -> None:
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    shutil.rmtree(tmp_path / "snapshots")
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path))).writable_session("main")
    with pytest.raises(icechunk.SnapshotNotFoundError, match=session.snapshot_id):
        zarr.create_group(session.store)


def test_the_error_of_a_broken_file_names_the_file(tmp_path: Path) -> None:
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)), config)
    with repo.transaction("main", message="first") as store:
        zarr.create_array(store, name="a", shape=4, chunks=1, dtype="i4")[:] = 1
    (manifest,) = (tmp_path / "manifests").iterdir()
    manifest.write_bytes(b"broken")
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    with pytest.raises(icechunk.FormatError) as broken:
        zarr.open_array(opened.readonly_session("main").store, path="a", mode="r")[:]
    assert any(f"manifests/{manifest.name}" in note for note in broken.value.__notes__)


# -- logs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_logs(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in DIRECTIVE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    icechunk.set_logs_filter(None)


@pytest.mark.usefixtures("own_logs")
def test_a_filter_sets_levels_until_it_is_undone(capsys: pytest.CaptureFixture[str]) -> None:
    for directive, is_shown in (
        ("debug", True),
        (None, False),
        ("icechunk:debug", True),
        ("false", False),
        ("warn,icechunk::repository=trace", False),
        ("tokio:debug", False),
    ):
        icechunk.set_logs_filter(directive)
        icechunk.Repository.create(icechunk.in_memory_storage())
        assert ("Creating Repository" in capsys.readouterr().err) == is_shown, directive
    icechunk.set_logs_filter(None)
    assert logging.getLogger("icefloe").level == logging.NOTSET


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("word", ["icehunk", "icecunk", "iecchunk", "ichunk"])
def test_a_misspelt_module_of_a_filter_is_reported(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    icechunk.set_logs_filter(f"debug,{word}::repository=info,tokio=warn")
    err = capsys.readouterr().err
    assert "WARNING" in err and word in err and "tokio" not in err
    icechunk.set_logs_filter("ice=info,chunk=info,icechunk=info")
    assert "WARNING" not in capsys.readouterr().err


@pytest.mark.usefixtures("own_logs")
def test_caches_that_keep_nothing_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    icechunk.set_logs_filter("warn")
    caching = icechunk.CachingConfig(num_chunk_refs=0, num_snapshot_nodes=0)
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), icechunk.RepositoryConfig(caching=caching))
    for number in range(2):
        with repo.transaction("main", message="more") as store:
            zarr.create_array(store, name=str(number), shape=5, chunks=1, dtype="i4")[:] = 1
    err = capsys.readouterr().err
    assert len(re.findall("WARN", err)) == 2 and "5 chunk references" in err and "keep 0 nodes" in err


@pytest.mark.long
def test_the_environment_decides_about_logs_when_the_package_is_imported() -> None:
    code = "from icefloe import icechunk; icechunk.Repository.create(icechunk.in_memory_storage())"
    for variables, stream in (
        ({}, "stderr"),
        ({"ICECHUNK_LOG_TO_STDOUT": "1"}, "stdout"),
        ({"ICECHUNK_NO_LOGS": "1"}, ""),
    ):
        environment = {**os.environ, "ICECHUNK_LOG": "debug", **variables}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        for name in ("stderr", "stdout"):
            assert ("Creating Repository" in getattr(ran, name)) == (name == stream), (variables, name)


def test_an_expiry_and_a_collection_without_effect_are_in_the_operations_log() -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    repo.expire_snapshots(dt.datetime.now(dt.UTC) + dt.timedelta(days=1))  # a time in the future means now
    repo.garbage_collect(dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
    assert [type(update.kind).__name__ for update in repo.ops_log()] == ["GCRan", "ExpirationRan", "RepoInitialized"]


def test_a_session_that_threads_share_can_be_merged_into_itself() -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.merge(session)
    with pytest.raises(icechunk.InvalidInputError, match="merge takes forks"):
        session.merge(repo.writable_session("main"))
    session.commit("a group")


def test_the_main_branch_cannot_be_deleted() -> None:
    for version in (1, 2):
        repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=version)
        with pytest.raises(icechunk.IcechunkError, match="main branch cannot be deleted"):
            repo.delete_branch("main")


@pytest.mark.parametrize("version", [1, 2])
def test_the_history_of_a_missing_ref_is_an_error_at_once(version: int) -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=version)
    for iterate in (repo.ancestry, repo.async_ancestry):
        for missing in ({"branch": "missing"}, {"tag": "missing"}):
            with pytest.raises(icechunk.RefNotFoundError):
                iterate(**missing)
        for wrong in ({}, {"branch": "main", "tag": "v1"}):
            with pytest.raises(ValueError, match="one of branch, tag, or snapshot_id"):
                iterate(**wrong)
        iterate(snapshot_id="1CECHNKREP0F1RSTCMT1")  # a snapshot is read when it is needed
