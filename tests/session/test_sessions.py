"""Sessions, commits, refs and time travel, on every generation of the format and every kind of place."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import SpecVersion
from icefloe.blocking import run_blocking
from icefloe.storage.contract import Storage


@pytest.fixture(params=[version.value for version in SpecVersion])
def repo(request: pytest.FixtureRequest, place: Storage) -> icefloe.Repository:
    return icefloe.Repository.create(place, spec_version=request.param)


def keys_of(repo: icefloe.Repository) -> set[str]:
    async def collect() -> set[str]:
        return {item.key async for page in repo.storage.list("") for item in page}

    return run_blocking(collect())


def write(repo: icefloe.Repository, value: int, branch: str = "main") -> str:
    session = repo.writable_session(branch)
    array = zarr.open_array(session.store, path="a", mode="a", shape=(4,), chunks=(2,), dtype="i4")
    array[0] = value
    return session.commit(f"value {value}")


def read(session: icefloe.Session) -> int:
    return int(zarr.open_array(session.store, path="a", mode="r")[0])


def test_a_reader_never_sees_a_commit_made_after_it_opened(repo: icefloe.Repository) -> None:
    write(repo, 1)
    reader = repo.readonly_session("main")
    write(repo, 2)
    assert read(reader) == 1
    assert read(repo.readonly_session("main")) == 2


def test_a_session_reads_its_own_writes_before_the_commit(repo: icefloe.Repository) -> None:
    write(repo, 1)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 7
    assert read(session) == 7
    assert session.has_uncommitted_changes
    session.discard_changes()
    assert read(session) == 1
    assert not session.has_uncommitted_changes


def test_a_committed_session_is_read_only_at_the_new_snapshot(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.group(session.store)
    snapshot_id = session.commit("first")
    assert (session.read_only, session.snapshot_id, session.branch) == (True, snapshot_id, None)
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_group(session.store, mode="r+").create_group("x")
    with pytest.raises(icefloe.ReadOnlyError):
        session.move("/a", "/b")


def test_an_empty_commit_is_refused_unless_asked_for(repo: icefloe.Repository) -> None:
    with pytest.raises(icefloe.SessionStateError, match="no changes"):
        repo.writable_session("main").commit("nothing")
    repo.writable_session("main").commit("nothing", allow_empty=True)
    assert next(repo.ancestry(branch="main")).message == "nothing"


def test_history_is_walked_newest_first_with_parents_and_metadata(repo: icefloe.Repository) -> None:
    repo.set_default_commit_metadata({"by": "tests"})
    first = write(repo, 1)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 2
    second = session.commit("second", {"step": {"n": 2}})
    infos = list(repo.ancestry(branch="main"))
    assert [info.id for info in infos[:2]] == [second, first]
    assert [info.parent_id for info in infos] == [info.id for info in infos[1:]] + [None]
    assert dict(infos[0].metadata) == {"by": "tests", "step": {"n": 2}}
    assert dict(infos[1].metadata) == {"by": "tests"}
    assert all(a.written_at > b.written_at for a, b in itertools.pairwise(infos))


def test_a_session_as_of_a_time_sees_what_the_branch_was_then(repo: icefloe.Repository) -> None:
    write(repo, 1)
    time.sleep(0.01)
    between = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    write(repo, 2)
    assert read(repo.readonly_session("main", as_of=between)) == 1
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.readonly_session("main", as_of=dt.datetime(2001, 1, 1, tzinfo=dt.UTC))


def test_branches_part_and_tags_stay(repo: icefloe.Repository) -> None:
    first = write(repo, 1)
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    write(repo, 2)
    dev = write(repo, 3, "dev")
    assert (read(repo.readonly_session("main")), read(repo.readonly_session("dev"))) == (2, 3)
    assert read(repo.readonly_session(tag="v1")) == 1
    assert repo.list_branches() == {"main", "dev"}
    assert repo.list_tags() == {"v1"}
    assert (repo.lookup_branch("dev"), repo.lookup_tag("v1")) == (dev, first)
    with pytest.raises(icefloe.AlreadyExistsError):
        repo.create_tag("v1", dev)
    with pytest.raises(icefloe.AlreadyExistsError):
        repo.create_branch("dev", dev)
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    with pytest.raises(icefloe.RefNotFoundError):
        repo.lookup_branch("dev")


def test_tags_are_deleted_only_where_the_generation_can(repo: icefloe.Repository) -> None:
    repo.create_tag("v1", write(repo, 1))
    if repo.context.capabilities.deletable_tags:
        repo.delete_tag("v1")
        assert repo.list_tags() == set()
        with pytest.raises(icefloe.IcefloeError):
            repo.create_tag("v1", repo.lookup_branch("main"))
    else:
        with pytest.raises(icefloe.UnsupportedError):
            repo.delete_tag("v1")
        assert repo.list_tags() == {"v1"}


@pytest.mark.parametrize("name", ["a\x07b", ""])
def test_ref_names_that_no_generation_takes(repo: icefloe.Repository, name: str) -> None:
    with pytest.raises(icefloe.IcefloeError):
        repo.create_branch(name, repo.lookup_branch("main"))


def test_main_cannot_be_deleted(repo: icefloe.Repository) -> None:
    with pytest.raises(icefloe.IcefloeError, match="main"):
        repo.delete_branch("main")


def test_reset_is_guarded_by_the_expected_snapshot(repo: icefloe.Repository) -> None:
    first = write(repo, 1)
    second = write(repo, 2)
    with pytest.raises(icefloe.ConflictError):
        repo.reset_branch("main", first, from_snapshot_id=first)
    repo.reset_branch("main", first, from_snapshot_id=second)
    assert repo.lookup_branch("main") == first
    assert read(repo.readonly_session("main")) == 1
    write(repo, 5)
    assert read(repo.readonly_session("main")) == 5
    assert read(repo.readonly_session(snapshot_id=second)) == 2


def test_refs_to_snapshots_that_do_not_exist_are_refused(repo: icefloe.Repository) -> None:
    missing = "0" * len(repo.lookup_branch("main"))
    for call in (repo.create_branch, repo.create_tag):
        with pytest.raises(icefloe.SnapshotNotFoundError):
            call("x", missing)
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.reset_branch("main", missing)


def test_amend_replaces_the_newest_commit_and_keeps_its_changes(repo: icefloe.Repository) -> None:
    first = write(repo, 1)
    write(repo, 2)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[3] = 9
    amended = session.amend("both")
    infos = list(repo.ancestry(branch="main"))
    assert [info.id for info in infos[:2]] == [amended, first]
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    assert (values[0], values[3]) == (2, 9)
    diff = repo.diff(from_snapshot_id=first, to_branch="main")
    assert diff.updated_chunks == {"/a": [[0], [1]]}


def test_the_first_snapshot_cannot_be_amended(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.group(session.store)
    with pytest.raises(icefloe.IcefloeError):
        session.amend("no")


def test_flush_saves_a_snapshot_that_no_branch_points_at(repo: icefloe.Repository) -> None:
    first = write(repo, 1)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 4
    snapshot_id = session.flush("aside")
    assert repo.lookup_branch("main") == first
    assert read(repo.readonly_session(snapshot_id=snapshot_id)) == 4
    repo.create_branch("aside", snapshot_id)
    assert [info.id for info in repo.ancestry(branch="aside")][:2] == [snapshot_id, first]


def test_diff_names_nodes_and_chunks(repo: icefloe.Repository) -> None:
    first = write(repo, 1)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    zarr.open_array(session.store, path="a", mode="r+")[3] = 5
    root.create_group("g").create_array("b", shape=2, dtype="i1")
    session.commit("second")
    diff = repo.diff(from_snapshot_id=first, to_branch="main")
    assert (diff.new_groups - {"/"}, diff.new_arrays) == ({"/g"}, {"/g/b"})
    assert diff.updated_chunks == {"/a": [[1]]}
    assert repo.diff(from_branch="main", to_branch="main").is_empty()


def test_a_transaction_commits_when_it_ends_well_and_forgets_when_it_raises(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="in") as store:
        zarr.group(store).create_group("kept")

    def fail() -> None:
        with repo.transaction("main", message="out") as store:
            zarr.open_group(store).create_group("lost")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert sorted(zarr.open_group(repo.readonly_session("main").store, mode="r").group_keys()) == ["kept"]


def test_repositories_and_read_only_sessions_pickle_and_writable_ones_say_fork(repo: icefloe.Repository) -> None:
    write(repo, 3)
    assert read(pickle.loads(pickle.dumps(repo)).readonly_session("main")) == 3
    reader = repo.readonly_session("main")
    assert read(pickle.loads(pickle.dumps(reader))) == 3
    assert pickle.loads(pickle.dumps(reader.store)).session.snapshot_id == reader.snapshot_id
    with pytest.raises(icefloe.SessionStateError, match="fork"):
        pickle.dumps(repo.writable_session("main"))


def test_forks_travel_and_come_back(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(40, 100), chunks=(10, 100), dtype="f8")
    forks = [pickle.loads(pickle.dumps(session.fork())) for _ in range(4)]
    for index, fork in enumerate(forks):
        zarr.open_array(fork.store, path="a", mode="r+")[index * 10 : (index + 1) * 10] = index + 1
    session.merge(*(pickle.loads(pickle.dumps(fork)) for fork in forks))
    session.commit("merged")
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    np.testing.assert_array_equal(values[:, 0], np.repeat([1, 2, 3, 4], 10))


def test_one_chunk_from_two_forks_is_refused_unless_told_who_wins(repo: icefloe.Repository) -> None:
    def merged(**options: object) -> int:
        session = repo.writable_session("main")
        forks = [session.fork(), session.fork()]
        for value, fork in enumerate(forks, start=10):
            zarr.open_array(fork.store, path="a", mode="r+")[0] = value
        session.merge(*forks, **options)  # type: ignore[arg-type]
        return read(session)

    write(repo, 1)
    with pytest.raises(icefloe.InvalidInputError, match="more than one fork"):
        merged()
    assert merged(on_chunk_conflict=icefloe.VersionSelection.UseOurs) == 10
    assert merged(on_chunk_conflict=icefloe.VersionSelection.UseTheirs) == 11


def test_workers_leave_parts_and_the_driver_links_them(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(40, 100), chunks=(10, 100), dtype="f8")
    fork = pickle.dumps(session.fork())
    written = []
    for index in range(4):
        worker = pickle.loads(fork)
        zarr.open_array(worker.store, path="a", mode="r+")[index * 10 : (index + 1) * 10] = index + 1
        written.append(worker.write_parts(f"task {index}"))
    session.link_parts(written)
    assert zarr.open_array(session.store, path="a", mode="r")[35, 0] == 4
    session.commit("linked")
    reader = repo.readonly_session("main")
    np.testing.assert_array_equal(zarr.open_array(reader.store, path="a", mode="r")[:, 0], np.repeat([1, 2, 3, 4], 10))
    before = next(repo.ancestry(branch="main")).parent_id
    diff = repo.diff(from_snapshot_id=before, to_branch="main")
    assert diff.updated_chunks == {"/a": [[0, 0], [1, 0], [2, 0], [3, 0]]}


def test_two_tasks_that_wrote_one_chunk_are_both_named(repo: icefloe.Repository) -> None:
    write(repo, 1)
    session = repo.writable_session("main")
    written = []
    for label in ("task one", "task two"):
        fork = session.fork()
        zarr.open_array(fork.store, path="a", mode="r+")[0] = 4
        written.append(fork.write_parts(label))
    with pytest.raises(icefloe.InvalidInputError, match=r"task one.*task two"):
        session.link_parts(written)


def test_moves_in_an_ordinary_commit_rewrite_no_manifest_and_no_chunk(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    group = zarr.group(session.store).create_group("g")
    group.create_array("x", shape=(4, 4), chunks=(2, 2), dtype="f8")[:] = 3
    session.commit("base")
    keys = keys_of(repo)
    session = repo.writable_session("main")
    session.move("/g", "/h")
    zarr.open_group(session.store).attrs["note"] = "renamed"
    session.commit("renamed")
    assert not [key for key in keys_of(repo) - keys if key.split("/")[0] in ("chunks", "manifests", "c", "m", "i")]
    reader = repo.readonly_session("main")
    assert (zarr.open_array(reader.store, path="h/x", mode="r")[:] == 3).all()
    assert "g" not in zarr.open_group(reader.store, mode="r")


def test_opening_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(icefloe.RepositoryNotFoundError, match="create"):
        icefloe.Repository.open(tmp_path / "nothing")
    assert not icefloe.Repository.exists(tmp_path / "nothing")


def test_creating_twice_is_refused_and_open_or_create_opens(repo: icefloe.Repository) -> None:
    write(repo, 8)
    with pytest.raises(icefloe.AlreadyExistsError, match="Open"):
        icefloe.Repository.create(repo.storage)
    assert read(icefloe.Repository.open_or_create(repo.storage).readonly_session("main")) == 8


def test_a_place_with_other_objects_is_not_made_a_repository(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(icefloe.AlreadyExistsError, match="other objects"):
        icefloe.Repository.create(tmp_path)
    icefloe.Repository.create(tmp_path, check_clean_root=False)


def test_the_configuration_is_kept_and_can_be_laid_over(repo: icefloe.Repository) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7)
    changed = repo.reopen(config)
    changed.save_config()
    assert icefloe.Repository.open(repo.storage).config.inline_chunk_threshold_bytes == 7
    over = icefloe.Repository.open(repo.storage, config=icefloe.RepositoryConfig(max_concurrent_requests=3))
    assert (over.config.inline_chunk_threshold_bytes, over.config.max_concurrent_requests) == (7, 3)
