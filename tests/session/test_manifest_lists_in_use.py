"""Arrays whose manifests are in lists, through the public API: contents, races, requests, damage and garbage."""

from __future__ import annotations

import datetime as dt
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.session.journal import JournalStorage

import icefloe
from icefloe import ManifestConfig, RepositoryConfig
from icefloe.blocking import run_blocking
from icefloe.formats.repository import FORMAT
from icefloe.ids import new_object_id
from icefloe.maintenance.marking import snapshot_facts
from icefloe.manifests import list_plan
from icefloe.manifests.list_plan import ListSizes
from icefloe.model.manifest_config import ManifestSet
from icefloe.model.manifest_lists import (
    ListContent,
    ListedFiles,
    ListedRefs,
    ListSummary,
    ManifestList,
    lists_of,
    missing_lists,
)
from icefloe.model.snapshot import ArrayNode, ManifestRef, RefColumns
from icefloe.storage.contract import Storage

TINY = ListSizes(listed_from=4, usual=3, largest=5)
CHUNKS = 40


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_plan, "SIZES", TINY)


def config() -> RepositoryConfig:
    """Manifests of at most two chunks."""
    manifest = ManifestConfig(sets=(ManifestSet.default(split_size=2),), rules=())
    return RepositoryConfig(manifest=manifest, inline_chunk_threshold_bytes=0)


def reopen(storage: Storage) -> icefloe.Repository:
    return icefloe.Repository.open(storage, config=config())


def create(storage: Storage, chunks: int = CHUNKS, filled: bool = True) -> icefloe.Repository:
    repo = icefloe.Repository.create(storage, config=config())
    with repo.transaction("main", message="begin") as store:
        array = zarr.create_array(store, name="a", shape=(chunks,), chunks=(1,), dtype="i4", fill_value=-1)
        if filled:
            array[:] = np.arange(chunks)
    return reopen(storage)


def write(repo: icefloe.Repository, values: dict[int, int]) -> str:
    with repo.transaction("main", message=f"{values}") as store:
        array = zarr.open_array(store, path="a")
        for index, value in values.items():
            array[index] = value
    return repo.lookup_branch("main")


def read(repo: icefloe.Repository) -> npt.NDArray[np.int32]:
    return np.asarray(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:])


def refs(session: icefloe.Session) -> ListedRefs:
    node = session.state.base.nodes["/a"]
    assert isinstance(node, ArrayNode)
    assert isinstance(node.manifests, ListedRefs)
    return node.manifests


def list_ids(session: icefloe.Session) -> list[str]:
    return [each.id for each in lists_of(session.state.base)]


def list_files(storage: Storage) -> set[str]:
    return set(run_blocking(storage.list_names("attributes/")))


def reachable_lists(repo: icefloe.Repository) -> set[str]:
    files = repo.context.metadata_files
    ids = [info.id for info in repo.ancestry(branch="main")]
    return {each.id for found in ids for each in lists_of(run_blocking(files.fetch_snapshot(found)))}


chunk = st.integers(0, CHUNKS - 1)
edits = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(chunk, st.integers(0, 99), min_size=1, max_size=8)),
    st.tuples(st.just("clear"), chunk),
    st.tuples(st.just("resize"), st.integers(CHUNKS // 2, CHUNKS + 10)),
    st.tuples(st.just("rewrite"), st.none()),
    st.tuples(st.just("expire"), st.none()),
)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.lists(edits, max_size=10), st.booleans())
def test_any_history_has_the_values_of_a_dict(history: list[tuple[str, object]], filled: bool) -> None:
    storage = icefloe.in_memory_storage()
    repo = create(storage, filled=filled)
    model = {index: index for index in range(CHUNKS)} if filled else {}
    length = CHUNKS
    for action, value in history:
        if action == "write":
            assert isinstance(value, dict)
            inside = {index: each for index, each in value.items() if index < length}
            if inside:
                write(repo, inside)
            model |= inside
        elif action == "clear":
            assert isinstance(value, int)
            if value in model:
                with repo.transaction("main", message="clear") as store:
                    run_blocking(store.delete(f"a/c/{value}"))
                del model[value]
        elif action == "resize":
            assert isinstance(value, int)
            if value != length:
                with repo.transaction("main", message="resize") as store:
                    zarr.open_array(store, path="a").resize((value,))
            length = value
            model = {index: each for index, each in model.items() if index < length}
        elif action == "rewrite":
            repo.rewrite_manifests("rewrite", branch="main")
        else:
            repo.expire_snapshots(dt.datetime.now(dt.UTC))
        expected = np.array([model.get(index, -1) for index in range(length)])
        repo = reopen(storage)
        assert read(repo).tolist() == expected.tolist()
        array = zarr.open_array(reopen(storage).readonly_session("main").store, path="a", mode="r")
        assert int(array[length - 1]) == expected[-1]
    assert not repo.verify().damages
    assert reachable_lists(reopen(storage)) <= list_files(storage)
    repo.garbage_collect(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1))
    assert list_files(storage) == reachable_lists(reopen(storage))
    assert not repo.verify().damages
    assert read(reopen(storage)).tolist() == [model.get(index, -1) for index in range(length)]


def test_opening_reading_and_writing_a_chunk_load_one_list() -> None:
    storage = JournalStorage(icefloe.in_memory_storage())
    create(storage)
    repo = reopen(storage)
    storage.journal.entries.clear()
    session = repo.readonly_session("main")
    assert len(refs(session).lists) >= 5
    assert not storage.journal.reads("attributes/")
    assert int(zarr.open_array(session.store, path="a", mode="r")[20]) == 20
    assert len(storage.journal.reads("attributes/")) == 1
    assert len(missing_lists(refs(session).lists)) == len(refs(session).lists) - 1
    repo = reopen(storage)
    storage.journal.entries.clear()
    write(repo, {20: 7})
    assert len(storage.journal.reads("attributes/")) == 1
    written = [entry.key for entry in storage.journal.entries if entry.method == "put"]
    assert len([key for key in written if key.startswith("attributes/")]) == 1
    storage.journal.entries.clear()
    ids = [info.id for info in repo.ancestry(branch="main")]
    assert reopen(storage).diff(from_snapshot_id=ids[1], to_snapshot_id=ids[0]).updated_chunks == {"/a": [[20]]}
    assert not storage.journal.reads("attributes/")
    assert read(repo)[20] == 7


def test_a_small_array_has_no_list() -> None:
    storage = JournalStorage(icefloe.in_memory_storage())
    create(storage, chunks=6)
    write(reopen(storage), {3: 7})
    assert list_files(storage) == set()
    assert "ListedArray" not in str(run_blocking(storage.get(f"snapshots/{reopen(storage).lookup_branch('main')}")))


@pytest.mark.parametrize("second", [3, 30])
def test_writers_of_one_list_and_of_two_lists_both_land(second: int) -> None:
    storage = icefloe.in_memory_storage()
    create(storage)
    ours, theirs = (reopen(storage).writable_session("main") for _ in range(2))
    zarr.open_array(ours.store, path="a")[2] = 100
    zarr.open_array(theirs.store, path="a")[second] = 200
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=icefloe.ConflictDetector())
    expected = np.arange(CHUNKS)
    expected[[2, second]] = 100, 200
    assert read(reopen(storage)).tolist() == expected.tolist()
    assert not reopen(storage).verify().damages


def test_a_lost_race_does_not_write_a_list_again_that_the_winner_left_alone() -> None:
    storage = icefloe.in_memory_storage()
    repo = create(storage)
    before = set(list_ids(repo.readonly_session("main")))
    ours, theirs = (reopen(storage).writable_session("main") for _ in range(2))
    zarr.open_array(ours.store, path="a")[2] = 100
    zarr.open_array(theirs.store, path="a")[30] = 200
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=icefloe.ConflictDetector())
    after = set(list_ids(reopen(storage).readonly_session("main")))
    assert len(after - before) == 2


def test_parts_of_workers_are_linked_into_lists() -> None:
    storage = icefloe.in_memory_storage()
    repo = create(storage)
    session = repo.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))
    zarr.open_array(fork.store, path="a")[10:20] = np.arange(10) + 100
    session.merge(fork)
    session.commit("parts")
    expected = np.arange(CHUNKS)
    expected[10:20] = np.arange(10) + 100
    assert read(reopen(storage)).tolist() == expected.tolist()
    assert refs(reopen(storage).readonly_session("main"))


def test_a_pickled_session_loads_lists_where_it_arrives(tmp_path: object) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    create(storage)
    session = pickle.loads(pickle.dumps(reopen(storage).readonly_session("main")))
    assert int(zarr.open_array(session.store, path="a", mode="r")[33]) == 33
    assert missing_lists(refs(session).lists)


def damaged_list(storage: Storage) -> str:
    session = reopen(storage).readonly_session("main")
    return f"attributes/{list_ids(session)[2]}"


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_list_is_found_and_stops_a_collection(is_missing: bool) -> None:
    storage = icefloe.in_memory_storage()
    create(storage)
    write(reopen(storage), {0: 5})
    key = damaged_list(storage)
    if is_missing:
        run_blocking(storage.delete([key]))
    else:
        run_blocking(storage.put(key, run_blocking(storage.get(key))[:60]))
    damages = reopen(storage).verify().damages
    found = [damage for damage in damages if damage.what == "manifest list"]
    assert [(damage.key, damage.kind.name) for damage in found] == [(key, "MISSING" if is_missing else "UNREADABLE")]
    repo = reopen(storage)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    before = list_files(storage)
    with pytest.raises(icefloe.IcefloeError, match="Nothing was deleted"):
        repo.garbage_collect(later)
    assert list_files(storage) == before
    with pytest.raises(icefloe.IcefloeError, match="manifest.list"):
        read(reopen(storage))
    # Chunks of other lists are still there.
    assert int(zarr.open_array(reopen(storage).readonly_session("main").store, path="a", mode="r")[39]) == 39


def test_to_verify_arrays_that_share_a_list_takes_the_memory_of_one() -> None:
    storage, manifests = icefloe.in_memory_storage(), 200
    repo = create(storage, chunks=manifests, filled=False)
    tip = write(repo, {0: 0})
    snapshot = run_blocking(repo.context.metadata_files.fetch_snapshot(tip))
    node = snapshot.nodes["/a"]
    assert isinstance(node, ArrayNode)
    first = node.manifests[0].manifest_id
    edges = np.arange(manifests + 1)
    boxes = np.stack([edges[:-1], edges[1:]], axis=1).reshape(manifests, 1, 2)
    content = ListContent(RefColumns([first] * manifests, boxes), np.full(manifests, 9), np.full(manifests, 1))
    only = ManifestList(ListSummary.of(new_object_id(), content), content)
    run_blocking(storage.put(FORMAT.manifest_list_key(only.id), FORMAT.encode_manifest_list(content)))
    listed = replace(snapshot, manifests=ListedFiles(dict(snapshot.manifests), [only]))
    paths = [f"/b{number:03}" for number in range(300)]
    sharing = node.with_manifests(ListedRefs([only]))
    nodes = {path: replace(sharing, path=path, id=path.encode().rjust(8)) for path in paths}
    data = FORMAT.encode_snapshot(replace(listed, nodes={"/": snapshot.nodes["/"], **nodes}))
    run_blocking(storage.put(FORMAT.snapshot_key(tip), data))
    tracemalloc.start()
    try:
        reopen(storage).verify(logs=False)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_lists_are_loaded_to_write_a_snapshot_with_manifests_of_unknown_size() -> None:
    storage = icefloe.in_memory_storage()
    files = create(storage).context.metadata_files
    snapshot = run_blocking(files.fetch_snapshot_file(reopen(storage).lookup_branch("main")))
    assert missing_lists(lists_of(snapshot))
    node = snapshot.nodes["/a"]
    assert isinstance(node, ArrayNode)
    unknown = tuple(ManifestRef(new_object_id(), ((first, first + 1),)) for first in range(8))
    other = replace(node.with_manifests(unknown), path="/b", id=b"b" * 8)
    run_blocking(files.write_snapshot(replace(snapshot, nodes={**snapshot.nodes, "/b": other})))
    found = run_blocking(reopen(storage).context.metadata_files.fetch_snapshot(snapshot.id))
    assert found.nodes["/a"] == node
    assert found.nodes["/b"] == other


def test_every_way_to_look_at_a_repository_shows_manifests_in_lists() -> None:
    storage = icefloe.in_memory_storage()
    create(storage)
    tip = reopen(storage).lookup_branch("main")
    count = len(refs(reopen(storage).readonly_session("main")))
    assert len(reopen(storage).list_manifest_files(tip)) == count
    assert len(reopen(storage).lookup_snapshot(tip).manifests) == count
    assert len(reopen(storage).inspect_snapshot(tip)["manifests"]) == count
    base = run_blocking(reopen(storage).context.metadata_files.fetch_snapshot(tip))
    facts = snapshot_facts(base)
    assert len(facts.manifests) == count
    assert set(facts.attributes) == list_files(storage)


@pytest.mark.long
def test_a_converted_repository_has_the_same_values_and_lists_again() -> None:
    storage = icefloe.in_memory_storage()
    create(storage)
    write(reopen(storage), {5: 50})
    there = icefloe.in_memory_storage()
    icefloe.convert(storage, there, "icechunk2")
    assert read(icefloe.Repository.open(there)).tolist() == read(reopen(storage)).tolist()
    back = icefloe.in_memory_storage()
    icefloe.convert(there, back, "repository")
    assert read(reopen(back)).tolist() == read(reopen(storage)).tolist()
    assert len(refs(reopen(back).readonly_session("main")).lists) >= 5
    assert not reopen(back).verify().damages


def test_the_snapshot_does_not_grow_with_the_number_of_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_plan, "SIZES", ListSizes())
    sizes = []
    for chunks in (1_400, 5_600):
        storage = icefloe.in_memory_storage()
        create(storage, chunks)
        tip = write(reopen(storage), {17: 1})
        sizes.append(len(run_blocking(storage.get(f"snapshots/{tip}"))))
        assert len(refs(reopen(storage).readonly_session("main"))) == chunks // 2
    # 2,100 more manifests would have taken 60,000 bytes more.
    assert sizes[1] - sizes[0] < 1_500


def create_many(storage: Storage, arrays: int, chunks: int) -> None:
    with icefloe.Repository.create(storage, config=config()).transaction("main", message="many") as store:
        for number in range(arrays):
            array = zarr.create_array(store, name=f"a{number}", shape=(chunks,), chunks=(1,), dtype="i4", fill_value=-1)
            array[:] = np.arange(chunks) + number


def test_many_arrays_with_some_manifests_each_have_lists_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_plan, "SIZES", ListSizes(most_unlisted=20))
    few, many = icefloe.in_memory_storage(), icefloe.in_memory_storage()
    create_many(few, 2, 16)
    create_many(many, 6, 16)
    assert not lists_of(reopen(few).readonly_session("main").state.base)
    before = list_ids(reopen(many).readonly_session("main"))
    assert len(before) == 6
    with reopen(many).transaction("main", message="one") as store:
        zarr.open_array(store, path="a3")[5] = 500
        zarr.create_array(store, name="new", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    session = reopen(many).readonly_session("main")
    # One list was written again. The new array has so few manifests that a list would take more bytes.
    assert len(set(list_ids(session)) & set(before)) == 5
    assert len(list_ids(session)) == 6
    for number in range(6):
        expected = np.arange(16) + number
        expected[5] = 500 if number == 3 else expected[5]
        assert np.array_equal(zarr.open_array(session.store, path=f"a{number}", mode="r")[:], expected)
    cut_off = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    reopen(many).garbage_collect(cut_off)
    assert not reopen(many).verify().damages


def test_the_snapshot_of_many_arrays_does_not_grow_with_their_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_plan, "SIZES", ListSizes(most_unlisted=40))
    sizes = []
    for chunks in (20, 200):
        storage = icefloe.in_memory_storage()
        create_many(storage, 10, chunks)
        sizes.append(len(run_blocking(storage.get(f"snapshots/{reopen(storage).lookup_branch('main')}"))))
    # 900 more manifests would have taken 25,000 bytes more.
    assert sizes[1] - sizes[0] < 500


def test_a_reader_that_does_not_know_lists_refuses_the_array() -> None:
    storage = icefloe.in_memory_storage()
    create(storage)
    found = FORMAT.decode_snapshot(run_blocking(storage.get(f"snapshots/{reopen(storage).lookup_branch('main')}")))
    encoded = found.nodes._encoded["/a"]  # type: ignore[attr-defined]
    assert b"\xabListedArray\x92" in bytes(memoryview(encoded))


def test_a_commit_in_progress_whose_list_is_not_written_yet_does_not_stop_a_collection() -> None:
    storage = icefloe.in_memory_storage()
    repo = create(storage)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[2] = 100
    flushed = session.flush("no branch points to it")
    own = {each.id for each in lists_of(run_blocking(repo.context.metadata_files.fetch_snapshot(flushed)))}
    (late,) = own - set(list_ids(repo.readonly_session("main")))
    data = run_blocking(storage.get(f"attributes/{late}"))
    run_blocking(storage.delete([f"attributes/{late}"]))
    kept = {"ignore_running_sessions": True, "incremental": True}
    reopen(storage).garbage_collect(dt.datetime.now(dt.UTC) - dt.timedelta(days=1), **kept)
    run_blocking(storage.put(f"attributes/{late}", data))
    # Afterwards its list is read, although the first collection knows the snapshot.
    reopen(storage).reset_branch("main", flushed)
    reopen(storage).garbage_collect(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1), **kept)
    assert not reopen(storage).verify().damages
    assert read(reopen(storage))[:4].tolist() == [0, 1, 100, 3]
