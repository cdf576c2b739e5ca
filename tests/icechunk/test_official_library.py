"""The official package reads what we wrote and commits on top, and we read that."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.formats.hand_made import (
    GROUP_DOCUMENT,
    HandMade,
    array_document,
    array_node,
    group_node,
    inline,
    int32_bytes,
    native,
)

from icefloe.formats.flatbuf.snapshot import INITIAL_SNAPSHOT_ID
from icefloe.formats.icechunk2.repo_file import Availability, UpdateKind
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.snapshot import ArrayNode, ManifestRef, Move, TransactionLog
from icefloe.storage.build import local_filesystem_storage

icechunk = pytest.importorskip("icechunk")
OFFICIAL = int(icechunk.__version__.split(".")[0])
SPECS = [1] if OFFICIAL < 2 else [1, 2]
pytestmark = pytest.mark.compat


def official(path: Path) -> Any:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def create_official(path: Path, spec: int, **options: Any) -> Any:
    if OFFICIAL >= 2:
        options["spec_version"] = spec
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), **options)


def ours(path: Path, spec: int) -> HandMade:
    return HandMade.at(local_filesystem_storage(path), spec)


def write_virtual_file(path: Path) -> None:
    path.write_bytes(b"header" + int32_bytes(np.full((4, 4), 7)))


async def first_commit(repo: HandMade, virtual_file: Path) -> tuple[str, dict[str, ArrayNode]]:
    """One array with packed native, inline and virtual chunks, one split over two manifests, a scalar, a group."""
    packed = int32_bytes(np.arange(8))
    chunk = await repo.put_chunk(packed)
    mixed = array_node("/group/mixed", (12, 4), (4, 4), dimension_names=["t", None])
    split = array_node("/split", (8,), (2,))
    scalar = array_node("/scalar", (), ())
    empty = array_node("/a-empty", (0, 5), (3, 5))
    write_virtual_file(virtual_file)
    location = f"file://{virtual_file}"
    together = await repo.write_manifest(
        {
            mixed.id: [
                ((0, 0), inline(int32_bytes(np.full((4, 4), 5)))),
                ((2, 0), ChunkRef(ChunkKind.VIRTUAL, 6, 64, location=location, last_modified=4102444800)),
            ],
            scalar.id: [((), inline(int32_bytes(42)))],
            split.id: [((0,), native(chunk, 8, 0)), ((1,), native(chunk, 8, 8))],
        }
    )
    rest = await repo.write_manifest({split.id: [((2,), native(chunk, 8, 16)), ((3,), native(chunk, 8, 24))]})
    arrays = {
        "mixed": ref(mixed, ManifestRef(together.id, ((0, 3), (0, 1)))),
        "scalar": ref(scalar, ManifestRef(together.id, ())),
        "split": ref(split, ManifestRef(together.id, ((0, 2),)), ManifestRef(rest.id, ((2, 4),))),
        "empty": empty,
    }
    groups = [group_node("/"), group_node("/group")]
    log = TransactionLog(
        new_groups=frozenset(group.id for group in groups),
        new_arrays=frozenset(array.id for array in arrays.values()),
        updated_chunks={
            mixed.id: np.array([[0, 0], [2, 0]], dtype=np.uint32),
            scalar.id: np.empty((1, 0), dtype=np.uint32),
            split.id: np.array([[0], [1], [2], [3]], dtype=np.uint32),
        },
    )
    metadata = {"author": "hand", "nested": {"a": [1, 2.5, None, True, "x"]}}
    snapshot = await repo.commit("first", [*groups, *arrays.values()], [together, rest], log, metadata=metadata)
    return snapshot, arrays


def ref(node: ArrayNode, *manifests: ManifestRef) -> ArrayNode:
    return dataclasses.replace(node, manifests=manifests)


@pytest.mark.parametrize("spec", SPECS)
async def test_the_official_package_reads_our_commit_and_commits_on_top(tmp_path: Path, spec: int) -> None:
    repo = ours(tmp_path / "repo", spec)
    await repo.create({"inline_chunk_threshold_bytes": 3, "chunk-manifests": {"kept": True}})
    first, arrays = await first_commit(repo, tmp_path / "virtual.bin")
    await repo.ledger.create_tag("v1", first)

    config = icechunk.RepositoryConfig.default()
    container = icechunk.VirtualChunkContainer(f"file://{tmp_path}/", icechunk.local_filesystem_store(str(tmp_path)))
    config.set_virtual_chunk_container(container)
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repo")),
        config=config,
        authorize_virtual_chunk_access={f"file://{tmp_path}/": None},
    )
    assert theirs.list_tags() == {"v1"} and theirs.lookup_tag("v1") == first
    history = list(theirs.ancestry(branch="main"))
    assert [info.message for info in history] == ["first", "Repository initialized"]
    assert history[0].metadata == {"author": "hand", "nested": {"a": [1, 2.5, None, True, "x"]}}
    root = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    mixed = root["group/mixed"]
    assert mixed.metadata.dimension_names == ("t", None)
    assert [int(mixed[row, 0]) for row in (0, 4, 8)] == [5, 0, 7]
    assert root["split"][:].tolist() == list(range(8)) and root["scalar"][()] == 42
    assert root["a-empty"].shape == (0, 5)
    changes = theirs.diff(from_snapshot_id=INITIAL_SNAPSHOT_ID, to_branch="main")
    assert changes.new_arrays == {"/group/mixed", "/split", "/scalar", "/a-empty"}
    assert {path: sorted(map(tuple, coords)) for path, coords in changes.updated_chunks.items()} == {
        "/group/mixed": [(0, 0), (2, 0)],
        "/scalar": [()],
        "/split": [(0,), (1,), (2,), (3,)],
    }

    session = theirs.writable_session("main")
    opened = zarr.open_group(session.store, mode="a")
    opened["split"][2:4] = [20, 30]
    opened.create_array("added", shape=(4,), chunks=(2,), dtype="i4")[:] = [1, 2, 3, 4]
    del opened["scalar"]
    second = session.commit("second")

    again = ours(tmp_path / "repo", spec)
    assert (await again.ledger.fetch_tip("main")).snapshot_id == second
    infos = [info async for info in again.ledger.ancestry(second)]
    assert [info.id for info in infos] == [second, first, INITIAL_SNAPSHOT_ID]
    snapshot = await again.metadata_files.fetch_snapshot(second)
    assert list(snapshot.nodes) == ["/", "/a-empty", "/added", "/group", "/group/mixed", "/split"]
    assert snapshot.nodes["/group/mixed"] == arrays["mixed"]
    log = await again.metadata_files.fetch_transaction_log(second)
    assert log.deleted_arrays == {arrays["scalar"].id}
    assert log.updated_chunks[arrays["split"].id].tolist() == [[1]]
    split = snapshot.nodes["/split"]
    assert isinstance(split, ArrayNode)
    found = {}
    for manifest_ref in split.manifests:
        table = (await again.metadata_files.fetch_manifest(manifest_ref.manifest_id)).tables[split.id]
        found.update(dict(table.rows()))
    assert sorted(found) == [(0,), (1,), (2,), (3,)]
    assert found[(0,)].object_id == found[(3,)].object_id and found[(1,)].object_id != found[(0,)].object_id
    stored = await again.ledger.fetch_config()
    assert stored.document is not None
    assert stored.document["inline_chunk_threshold_bytes"] == 3 and stored.document["chunk-manifests"] == {"kept": True}


@pytest.mark.parametrize("spec", SPECS)
async def test_we_read_what_the_official_package_wrote(tmp_path: Path, spec: int) -> None:
    theirs = create_official(tmp_path, spec)
    session = theirs.writable_session("main")
    root = zarr.open_group(session.store, mode="a", attributes={"title": "é"})
    root.create_array("a/b", shape=(6, 6), chunks=(2, 3), dtype="f4", dimension_names=("y", None))[:] = 1.5
    root.create_array("a-b", shape=(4,), chunks=(2,), dtype="i8", compressors=None)[:2] = 9
    first = session.commit("one", {"k": [1, None, {"x": "y"}]})
    theirs.create_branch("dev", first)
    theirs.create_tag("gone", first)
    theirs.create_tag("50% #1?", first)
    theirs.delete_tag("gone")
    repo = ours(tmp_path, spec)
    assert await repo.ledger.list_branches() == {"main", "dev"}
    assert await repo.ledger.list_tags() == {"50% #1?"}
    assert await repo.ledger.fetch_tag("50% #1?") == first
    info = await repo.ledger.fetch_info(first)
    assert info.message == "one" and info.metadata == {"k": [1, None, {"x": "y"}]}
    assert info.written_at == next(iter(theirs.ancestry(branch="main"))).written_at
    snapshot = await repo.metadata_files.fetch_snapshot(first)
    assert list(snapshot.nodes) == ["/", "/a", "/a-b", "/a/b"]
    node = snapshot.nodes["/a/b"]
    assert isinstance(node, ArrayNode)
    assert (node.shape, node.grid, node.dimension_names) == ((6, 6), (3, 2), ("y", None))
    assert json.loads(snapshot.nodes["/"].document)["attributes"] == {"title": "é"}
    table = (await repo.metadata_files.fetch_manifest(node.manifests[0].manifest_id)).tables[node.id]
    assert table.coords.tolist() == [[i, j] for i in range(3) for j in range(2)]
    for coords, chunk in (
        (await repo.metadata_files.fetch_manifest(snapshot.nodes["/a-b"].manifests[0].manifest_id))
        .tables[snapshot.nodes["/a-b"].id]
        .rows()
    ):
        assert coords == (0,)
        assert chunk.data == np.full(2, 9, "<i8").tobytes()
    log = await repo.metadata_files.fetch_transaction_log(first)
    assert log.new_arrays == {node.id, snapshot.nodes["/a-b"].id}


@pytest.mark.parametrize("spec", SPECS)
async def test_turns_of_both_libraries_agree_on_refs_and_history(tmp_path: Path, spec: int) -> None:
    repo = ours(tmp_path, spec)
    await repo.create()
    root = group_node("/")
    first = await repo.commit("ours 0", [root], [], TransactionLog(new_groups=frozenset([root.id])))
    for turn in range(1, 6):
        theirs = official(tmp_path)
        if turn % 2:
            session = theirs.writable_session("main")
            zarr.open_group(session.store, mode="a").attrs[f"t{turn}"] = turn
            session.commit(f"theirs {turn}")
            theirs.create_branch(f"b{turn}", first)
            theirs.create_tag(f"t{turn}", first)
        else:
            tip = (await repo.ledger.fetch_tip("main")).snapshot_id
            node = (await repo.metadata_files.fetch_snapshot(tip)).nodes["/"]
            document = json.loads(node.document)
            document["attributes"][f"o{turn}"] = turn
            changed = type(node)(node.id, "/", json.dumps(document).encode())
            log = TransactionLog(updated_groups=frozenset([node.id]))
            await repo.commit(f"ours {turn}", [changed], [], log)
            await repo.ledger.reset_branch(f"b{turn - 1}", tip, first)
            await repo.ledger.delete_tag(f"t{turn - 1}")
        theirs = official(tmp_path)
        branches = await repo.ledger.list_branches()
        assert branches == theirs.list_branches() and await repo.ledger.list_tags() == theirs.list_tags()
        for branch in branches:
            tip = (await repo.ledger.fetch_tip(branch)).snapshot_id
            assert tip == theirs.lookup_branch(branch)
            mine = [(i.id, i.parent_id, i.message, i.written_at) async for i in repo.ledger.ancestry(tip)]
            assert mine == [(i.id, i.parent_id, i.message, i.written_at) for i in theirs.ancestry(branch=branch)]
    attributes = dict(zarr.open_group(official(tmp_path).readonly_session("main").store, mode="r").attrs)
    assert attributes == {"t1": 1, "o2": 2, "t3": 3, "o4": 4, "t5": 5}


@pytest.mark.parametrize("spec", SPECS)
async def test_a_moved_node_is_found_under_its_new_path_by_the_official_package(tmp_path: Path, spec: int) -> None:
    repo = ours(tmp_path, spec)
    await repo.create()
    first, arrays = await first_commit(repo, tmp_path / "virtual.bin")
    nodes = dict((await repo.metadata_files.fetch_snapshot(first)).nodes)
    manifests = list((await repo.metadata_files.fetch_snapshot(first)).manifests.values())
    split = nodes.pop("/split")
    assert isinstance(split, ArrayNode)
    moved = ArrayNode(
        split.id, "/group/moved", split.document, split.shape, split.grid, split.dimension_names, split.manifests
    )
    move = Move("/split", "/group/moved", split.id, True)
    second = await repo.commit("move", [*nodes.values(), moved], manifests, TransactionLog(moves=(move,)))
    theirs = official(tmp_path)
    root = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert root["group/moved"][:].tolist() == list(range(8)) and "split" not in root
    changes = theirs.diff(from_snapshot_id=first, to_snapshot_id=second)
    assert not changes.new_arrays and not changes.deleted_arrays
    if OFFICIAL >= 2:
        assert [tuple(pair) for pair in changes.moved_nodes] == [("/split", "/group/moved")]
    session = theirs.writable_session("main")
    zarr.open_group(session.store, mode="a")["group/moved"][0] = 100
    third = session.commit("write to the moved array")
    log = await ours(tmp_path, spec).metadata_files.fetch_transaction_log(third)
    assert list(log.updated_chunks) == [arrays["split"].id]


@pytest.mark.parametrize("spec", SPECS)
async def test_a_commit_that_moves_and_writes_is_understood_by_the_official_package(tmp_path: Path, spec: int) -> None:
    repo = ours(tmp_path, spec)
    await repo.create()
    first, _ = await first_commit(repo, tmp_path / "virtual.bin")
    base = await repo.metadata_files.fetch_snapshot(first)
    nodes = dict(base.nodes)
    group, mixed = nodes.pop("/group"), nodes.pop("/group/mixed")
    split = nodes["/split"]
    manifest = await repo.write_manifest({split.id: [((1,), inline(int32_bytes([7, 8])))]})
    nodes["/split"] = ref(split, ManifestRef(manifest.id, ((1, 2),)))
    added = array_node("/added", (2,), (2,))
    log = TransactionLog(
        new_arrays=frozenset([added.id]),
        updated_chunks={split.id: np.array([[0], [1], [2], [3]], dtype=np.uint32)},
        moves=(Move("/group", "/moved", group.id, False), Move("/group/mixed", "/moved/mixed", mixed.id, True)),
    )
    moved = [dataclasses.replace(group, path="/moved"), dataclasses.replace(mixed, path="/moved/mixed")]
    second = await repo.commit("both", [*nodes.values(), *moved, added], [*base.manifests.values(), manifest], log)
    theirs = official(tmp_path)
    root = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert root["split"][:].tolist() == [0, 0, 7, 8, 0, 0, 0, 0] and root["moved/mixed"][0, 0] == 5
    changes = theirs.diff(from_snapshot_id=first, to_snapshot_id=second)
    assert changes.new_arrays == {"/added"} and set(changes.updated_chunks) == {"/split"}
    if OFFICIAL >= 2:
        assert {tuple(pair) for pair in changes.moved_nodes} == {
            ("/group", "/moved"),
            ("/group/mixed", "/moved/mixed"),
        }


@pytest.mark.skipif(OFFICIAL < 2, reason="the repo file belongs to 2.x")
async def test_status_metadata_flags_and_operations_are_the_official_ones(tmp_path: Path) -> None:
    repo = ours(tmp_path, 2)
    await repo.create({"num_updates_per_repo_info_file": 3})
    ledger = repo.ledger
    assert isinstance(ledger, Icechunk2Ledger)
    first, _ = await first_commit(repo, tmp_path / "virtual.bin")
    await ledger.set_metadata({"owner": "x", "list": [1, None, {"a": 1.5}]})
    await ledger.update_metadata({"more": True})
    await ledger.create_branch("dev", first)
    await ledger.set_flag("create_tag", False)
    theirs = official(tmp_path)
    assert theirs.metadata == {"owner": "x", "list": [1, None, {"a": 1.5}], "more": True}
    with pytest.raises(icechunk.IcechunkError):
        theirs.create_tag("no", first)
    await ledger.set_flag("create_tag", None)
    official(tmp_path).create_tag("yes", first)
    mine = [update async for update in ledger.ops_log()]
    theirs_log = list(official(tmp_path).ops_log())
    assert len(mine) == len(theirs_log) == 8
    assert [update.kind for update in mine][-2:] == [UpdateKind.NEW_COMMIT, UpdateKind.REPO_INITIALIZED]
    await ledger.set_status(Availability.READ_ONLY, "maintenance")
    with pytest.raises(icechunk.IcechunkError):
        official(tmp_path).create_tag("never", first)
    await ledger.set_status(Availability.ONLINE)
    official(tmp_path).create_tag("again", first)
    assert await ledger.list_tags() == {"yes", "again"}


@pytest.mark.skipif(OFFICIAL < 2, reason="the repo file belongs to 2.x")
async def test_our_amendment_is_amended_again_by_the_official_package(tmp_path: Path) -> None:
    repo = ours(tmp_path, 2)
    await repo.create()
    root = group_node("/")
    log = TransactionLog(new_groups=frozenset([root.id]))
    first = await repo.commit("first", [root], [], log)
    second = await repo.commit("second", [root], [], log, amends=first)
    theirs = official(tmp_path)
    assert [info.id for info in theirs.ancestry(branch="main")] == [second, INITIAL_SNAPSHOT_ID]
    session = theirs.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["x"] = 1
    third = session.amend("third")
    assert [i.id async for i in repo.ledger.ancestry(third)] == [third, INITIAL_SNAPSHOT_ID]
    kinds = [update.kind async for update in repo.ledger.ops_log()]  # type: ignore[attr-defined]
    assert kinds[:2] == [UpdateKind.COMMIT_AMENDED, UpdateKind.COMMIT_AMENDED]


@pytest.mark.skipif(OFFICIAL < 2, reason="migration belongs to 2.x")
async def test_a_migrated_repository_keeps_files_of_both_generations(tmp_path: Path) -> None:
    repo = ours(tmp_path, 1)
    await repo.create()
    first, arrays = await first_commit(repo, tmp_path / "virtual.bin")
    await repo.ledger.create_tag("v1", first)
    upgrade = getattr(icechunk, "upgrade_icechunk_repository", None)
    if upgrade is None:
        pytest.skip("this release has no migration")
    upgrade(official(tmp_path), dry_run=False, delete_unused_v1_files=True)
    migrated = ours(tmp_path, 2)
    session = official(tmp_path).writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["x"] = 1
    second = session.commit("after")
    infos = [info async for info in migrated.ledger.ancestry(second)]
    assert [info.id for info in infos] == [second, first, INITIAL_SNAPSHOT_ID]
    assert infos[1].metadata == {"author": "hand", "nested": {"a": [1, 2.5, None, True, "x"]}}
    snapshot = await migrated.metadata_files.fetch_snapshot(first)
    assert snapshot.metadata == infos[1].metadata and snapshot.nodes["/split"] == arrays["split"]
    assert (await migrated.metadata_files.fetch_snapshot(second)).nodes["/split"] == arrays["split"]


@pytest.mark.skipif(OFFICIAL < 2, reason="rectilinear grids belong to 2.x")
async def test_a_rectilinear_grid_written_by_hand_is_read_by_the_official_package(tmp_path: Path) -> None:
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 3, 1]]}}
    repo = ours(tmp_path, 2)
    await repo.create()
    document = array_document((6,), (6,), chunk_grid=grid)
    node = ArrayNode(array_node("/r", (6,), (6,)).id, "/r", document, (6,), (3,))
    manifest = await repo.write_manifest(
        {node.id: [((i,), inline(int32_bytes(np.full(n, i)))) for i, n in enumerate((2, 3, 1))]}
    )
    root = group_node("/")
    log = TransactionLog(
        new_groups=frozenset([root.id]),
        new_arrays=frozenset([node.id]),
        updated_chunks={node.id: np.array([[0], [1], [2]], dtype=np.uint32)},
    )
    await repo.commit("r", [root, ref(node, ManifestRef(manifest.id, ((0, 3),)))], [manifest], log)
    store = official(tmp_path).readonly_session("main").store
    assert await store.exists("r/c/2") and GROUP_DOCUMENT
    got = await store.get("r/c/1", zarr.core.buffer.default_buffer_prototype())
    assert got is not None and got.to_bytes() == int32_bytes(np.full(3, 1))
    assert os.listdir(tmp_path / "manifests") == [manifest.id]
