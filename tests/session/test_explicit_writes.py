"""What was written explicitly is a change: it is told, meets the changes of others, and can be committed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, ConflictType, RepositoryConfig, SpecVersion
from icefloe.codec_pipeline import PIPELINE


@pytest.fixture(params=[version.value for version in SpecVersion])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=request.param)
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        root.create_array("a", shape=(8,), chunks=(2,), dtype="i4", attributes={"note": 1})[:2] = 5
    return repo


def array(session: icefloe.Session, name: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=name)


def files(repo: icefloe.Repository, folder: str) -> int:
    from icefloe.blocking import run_blocking

    async def count() -> int:
        return sum([len(page) async for page in repo.storage.list(folder)])

    return run_blocking(count())


PIPELINES = [PIPELINE, "zarr.core.codec_pipeline.BatchedCodecPipeline"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_fill_values_alone_are_a_change_that_can_be_committed(repo: icefloe.Repository, pipeline: str) -> None:
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        session = repo.writable_session("main")
        array(session)[4:8] = 0
    assert session.has_uncommitted_changes
    assert session.status().chunk_coords["/a"].tolist() == [[2], [3]]
    manifests = files(repo, "manifests/")
    tip = session.commit("zeros")
    assert files(repo, "manifests/") <= manifests + 1
    assert array(repo.readonly_session("main"))[:].tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    if repo.context.capabilities.transaction_logs:
        parent = list(repo.ancestry(branch="main"))[1].id
        told = repo.diff(from_snapshot_id=parent, to_snapshot_id=tip)
        assert told.chunk_coords["/a"].tolist() == [[2], [3]]


def zeros_in_place(session: icefloe.Session) -> None:
    array(session)[2:4] = 0


def values_in_place(session: icefloe.Session) -> None:
    array(session)[2:4] = 65


def appended_zeros(session: icefloe.Session) -> None:
    array(session).append(np.zeros(2, "i4"))


def appended_values(session: icefloe.Session) -> None:
    array(session).append(np.array([7, 8], "i4"))


def same_attribute(session: icefloe.Session) -> None:
    array(session).attrs["note"] = 1


def other_attribute(session: icefloe.Session) -> None:
    array(session).attrs["note"] = 2


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (zeros_in_place, values_in_place, ConflictType.ChunkDoubleUpdate),
        (values_in_place, zeros_in_place, ConflictType.ChunkDoubleUpdate),
        (zeros_in_place, zeros_in_place, ConflictType.ChunkDoubleUpdate),
        (appended_zeros, appended_values, ConflictType.ZarrMetadataDoubleUpdate),
        (appended_values, appended_zeros, ConflictType.ZarrMetadataDoubleUpdate),
        (same_attribute, other_attribute, ConflictType.ZarrMetadataDoubleUpdate),
        (other_attribute, other_attribute, ConflictType.ZarrMetadataDoubleUpdate),
        (other_attribute, same_attribute, ConflictType.ZarrMetadataDoubleUpdate),
    ],
)
def test_explicit_writes_meet_those_of_others(
    repo: icefloe.Repository,
    ours: Callable[[icefloe.Session], None],
    theirs: Callable[[icefloe.Session], None],
    expected: ConflictType,
) -> None:
    if theirs in (zeros_in_place, same_attribute) and not repo.context.capabilities.transaction_logs:
        pytest.skip("without logs nobody can tell that others wrote what was there before")
    mine, other = repo.writable_session("main"), repo.writable_session("main")
    ours(mine)
    theirs(other)
    other.commit("theirs")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        mine.commit("ours", rebase_with=ConflictDetector())
    assert expected in {conflict.conflict_type for conflict in caught.value.conflicts}
    assert mine.has_uncommitted_changes and not mine.read_only


def test_a_document_written_as_it_was_is_a_change_that_can_be_committed(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    same_attribute(session)
    assert session.status().updated_arrays == {"/a"}
    session.commit("the same")
    assert dict(array(repo.readonly_session("main")).attrs) == {"note": 1}


def test_a_move_there_and_back_is_none(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    session.move("/a", "/b")
    session.move("/b", "/a")
    assert not session.has_uncommitted_changes


def test_workers_that_write_fill_values_leave_them_in_the_log_and_in_no_manifest(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))
    array(fork)[2:8] = [0, 0, 1, 1, 0, 0]
    session.link_parts([fork.write_parts()])
    others = repo.writable_session("main")
    array(others)[6:] = 9
    others.commit("others")
    with pytest.raises(icefloe.RebaseFailedError):
        session.commit("ours", rebase_with=ConflictDetector())


def test_workers_that_write_only_fill_values_can_be_committed(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))
    array(fork)[2:8] = 0
    parts = fork.write_parts()
    assert parts.chunks == 0
    session.link_parts([parts])
    session.commit("zeros")
    assert array(repo.readonly_session("main"))[:].tolist() == [5, 5, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("order", [(7, 0), (0, 7)])
def test_two_workers_that_set_and_clear_one_chunk_are_refused(
    repo: icefloe.Repository, order: tuple[int, int], at_once: bool
) -> None:
    session = repo.writable_session("main")
    written = []
    for label, value in zip(("task one", "task two"), order, strict=True):
        fork = pickle.loads(pickle.dumps(session.fork()))
        array(fork)[2:6] = value
        written.append(fork.write_parts(label))
    before = array(session)[:].tolist()
    if not at_once:
        session.link_parts(written[:1])
        before[2:6] = [order[0]] * 4
        written = written[1:]
    with pytest.raises(icefloe.InvalidInputError, match=r"written by both (task one|an earlier task) and task two"):
        session.link_parts(written)
    assert array(session)[:].tolist() == before


def test_workers_may_clear_one_chunk_both_and_others_between_those_that_are_set(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_group(session.store).create_array("b", shape=(9,), chunks=(1,), dtype="i4")
    written = []
    for first in (0, 1):
        fork = pickle.loads(pickle.dumps(session.fork()))
        array(fork, "b").oindex[[first, first + 4]] = 7
        array(fork, "b").oindex[[first + 2, first + 6, 8]] = 0
        written.append(fork.write_parts(f"task {first}"))
    session.link_parts(written)
    session.commit("both")
    assert array(repo.readonly_session("main"), "b")[:].tolist() == [7, 7, 0, 0, 7, 7, 0, 0, 0]


def test_a_chunk_that_the_session_set_since_is_cleared_by_a_worker(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))
    array(session)[2:6] = 7
    array(fork)[4:8] = 0
    session.link_parts([fork.write_parts()])
    assert array(session)[:].tolist() == [5, 5, 7, 7, 0, 0, 0, 0]
