"""Compaction moves bytes and changes none, beside writers that keep what they wrote."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tests.maintenance.histories import GENERATIONS, count, messages, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance import compact as compacting
from icefloe.maintenance.compact import hilbert_order
from icefloe.model.snapshot import TransactionLog

LOOSE = icefloe.RepositoryConfig(
    chunk_packing=icefloe.ChunkPackingConfig(enabled=False), inline_chunk_threshold_bytes=0
)
VALUES = np.arange(8 * 8 * 100, dtype="i8").reshape(8, 8, 100)


@pytest.fixture(params=GENERATIONS)
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    """An array of 64 small chunks, each an object of its own."""
    made = icefloe.Repository.create(icefloe.in_memory_storage(), LOOSE, spec_version=request.param)
    session = made.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=VALUES.shape, chunks=(1, 1, 100), dtype="i8", compressors=None
    )
    array[:] = VALUES
    session.commit("loose")
    return made


def read(repo: icefloe.Repository, branch: str = "main") -> np.ndarray:
    store = icefloe.Repository.open(repo.storage).readonly_session(branch).store
    return zarr.open_array(store, path="a", mode="r")[:]


def objects_of(repo: icefloe.Repository) -> int:
    session = repo.readonly_session("main")
    table = run_blocking(session.state.chunk_table(session.state.tree.array("/a")))
    return len(np.unique(table.object_id, axis=0))


@pytest.mark.parametrize("order", ["chunk", "hilbert"])
def test_small_chunks_come_together_and_apart_again(repo: icefloe.Repository, order: str) -> None:
    assert objects_of(repo) == 64
    plan = repo.plan_compaction(order=order)  # type: ignore[arg-type]
    assert plan.chunks == 64 and "64 chunks" in str(plan)
    done = repo.compact(order=order)  # type: ignore[arg-type]
    assert (done.chunks, done.objects_written, done.skipped) == (64, 1, 0)
    assert objects_of(repo) == 1 and (read(repo) == VALUES).all()
    assert repo.compact().chunks == 0
    repo.expire_snapshots(retain_last=1)
    repo.garbage_collect(now())
    assert count(repo)["chunks"] == 1 and repo.verify(decode=True).is_clean
    assert repo.compact(unpack=True).objects_written == 64
    assert objects_of(repo) == 64 and (read(repo) == VALUES).all()
    assert repo.verify().is_clean


def test_progress_is_committed_batch_by_batch(repo: icefloe.Repository) -> None:
    done = repo.compact(batch_bytes=16 * 800)
    assert len(done.commits) == 4 and messages(repo)[0] == "Pack chunks" and objects_of(repo) == 4
    assert (read(repo) == VALUES).all()


def test_only_what_was_asked_for_is_written(repo: icefloe.Repository) -> None:
    assert repo.compact(arrays="b*").chunks == 0
    assert repo.compact(region=[(0, 2), (0, 8), (0, 1)]).chunks == 16
    assert objects_of(repo) == 49


def test_packs_with_dead_bytes_are_written_anew(repo: icefloe.Repository) -> None:
    repo.compact()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:4] = 7
    session.commit("half is replaced")
    done = repo.compact()
    assert done.chunks == 64 and objects_of(repo) == 1
    expected = VALUES.copy()
    expected[:4] = 7
    assert (read(repo) == expected).all()


def test_a_writer_in_between_keeps_what_it_wrote(repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    write = compacting._write

    async def write_then_race(*args: object) -> object:
        result = await write(*args)  # type: ignore[arg-type]
        session = await repo.writable_session_async("main")
        node = session.state.tree.array("/a")
        await session.state.write_chunk(node, (0, 0, 0), np.full(100, -5, dtype="<i8").tobytes())
        await session.commit_async("in between")
        return result

    monkeypatch.setattr(compacting, "_write", write_then_race)
    done = repo.compact()
    assert (done.chunks, done.skipped) == (63, 1)
    found = read(repo)
    assert (found[0, 0] == -5).all() and (found[1:] == VALUES[1:]).all()


def test_a_writer_that_rebases_over_a_compaction_meets_no_conflict(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0, 0] = 1
    repo.compact()
    session.commit("late", rebase_with=icefloe.ConflictDetector())
    assert (read(repo)[0, 0] == 1).all() and (read(repo)[1:] == VALUES[1:]).all()


def test_a_writer_that_missed_a_compaction_meets_the_conflicts_of_other_commits(repo: icefloe.Repository) -> None:
    """Also where these expired, so that the compaction comes right after the writer's base; whatever metadata says."""
    base = repo.lookup_branch("main")
    late = [repo.writable_session("main") for _ in range(3)]
    for session in late:
        zarr.open_array(session.store, path="a", mode="r+")[0, 0] = 1
    with repo.transaction("main", message="other") as store:
        zarr.open_array(store, path="a", mode="r+")[0, 0] = 2
    (compaction,) = repo.compact().commits
    with pytest.raises(icefloe.RebaseFailedError):
        late[0].rebase(icefloe.ConflictDetector())
    between = [info.id for info in repo.ancestry(branch="main") if info.id not in (base, compaction)][:1]
    repo.expire_snapshots(snapshots=between)
    assert [info.id for info in repo.ancestry(branch="main")][:2] == [compaction, base]
    with pytest.raises(icefloe.RebaseFailedError):
        late[1].rebase(icefloe.ConflictDetector())
    metadata = next(iter(repo.ancestry(branch="main"))).metadata
    repo.reset_branch("main", base)
    (compaction,) = repo.compact().commits
    metadata = {**metadata, **next(iter(repo.ancestry(branch="main"))).metadata}
    amending = repo.writable_session("main")
    zarr.open_array(amending.store, path="a", mode="r+")[0, 0] = 3
    amending.amend("changed after all", metadata=metadata)
    with pytest.raises(icefloe.RebaseFailedError):
        late[2].rebase(icefloe.ConflictDetector())


def test_virtual_chunks_are_copied_in(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUES.tobytes())
    prefix = f"file://{tmp_path}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    access = icefloe.containers_credentials({prefix: None})
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, access)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=VALUES.shape, chunks=(1, 8, 100), dtype="i8", compressors=None)
    for index in range(8):
        session.store.set_virtual_ref(f"a/c/{index}/0/0", f"{prefix}data", offset=index * 6400, length=6400)
    session.commit("virtual")
    assert repo.plan_compaction(materialize=True).chunks == 8
    repo.materialize()
    (tmp_path / "data").unlink()
    assert (read(repo) == VALUES).all() and repo.materialize().chunks == 0


@given(st.integers(2, 4), st.integers(1, 4))
def test_neighbours_on_the_curve_are_neighbours_in_the_grid(ndim: int, bits: int) -> None:
    side = 1 << min(bits, 8 // ndim)
    coords = np.array(list(itertools.product(range(side), repeat=ndim)), dtype=np.uint32)
    along = coords[hilbert_order(coords)].astype(int)
    assert sorted(map(tuple, along.tolist())) == sorted(map(tuple, coords.tolist()))
    assert (np.abs(np.diff(along, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("truthful", [True, False])
def test_a_compaction_that_expired_leaves_no_log_that_differs(repo: icefloe.Repository, truthful: bool) -> None:
    if not repo.context.capabilities.transaction_logs:
        pytest.skip("the generation has no logs")
    repo.create_tag("before", repo.lookup_branch("main"))
    assert repo.compact().chunks
    for value in (1, 2):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[0, 0] = value
        session.commit("late")
    repo.expire_snapshots(retain_last=1)
    assert [info.message for info in repo.ancestry(branch="main")][:1] == ["late"]
    if truthful:
        assert repo.verify().is_clean
        return
    tip, pruned = repo.lookup_branch("main"), run_blocking(repo.context.ledger.fetch_all_pruned_logs())
    for each in (tip, *pruned):
        run_blocking(repo.context.metadata_files.write_transaction_log(each, TransactionLog()))
    report = icefloe.Repository.open(repo.storage).verify()
    assert [(damage.kind.value, damage.snapshot_id) for damage in report.damages] == [("log differs", tip)]


def test_manifests_are_not_rewritten_with_an_unknown_commit_method(repo: icefloe.Repository) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="expected 'new_commit' or 'amend'"):
        repo.rewrite_manifests("again", branch="main", commit_method="replace")  # type: ignore[arg-type]
    assert messages(repo)[0] == "loose"
