"""Repositories written by official releases read as their expected.json says, at the level of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.formats.hand_made import HandMade

from icefloe.formats.icechunk2.repo_file import UpdateKind
from icefloe.ids import encode_base32
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.snapshot import ArrayNode, Node, TransactionLog, to_microseconds
from icefloe.storage.build import local_filesystem_storage

REPOSITORIES = {"g3-0.2.17-split": 1, "g3-official-1.1.21": 1, "g4-2.0": 2, "g4-2.0-expired": 2, "g4-official-2.3.0": 2}
KINDS = {
    "RepoInitialized": UpdateKind.REPO_INITIALIZED,
    "ConfigChanged": UpdateKind.CONFIG_CHANGED,
    "MetadataChanged": UpdateKind.METADATA_CHANGED,
    "TagCreated": UpdateKind.TAG_CREATED,
    "TagDeleted": UpdateKind.TAG_DELETED,
    "BranchCreated": UpdateKind.BRANCH_CREATED,
    "BranchDeleted": UpdateKind.BRANCH_DELETED,
    "BranchReset": UpdateKind.BRANCH_RESET,
    "NewCommit": UpdateKind.NEW_COMMIT,
    "CommitAmended": UpdateKind.COMMIT_AMENDED,
    "GCRan": UpdateKind.GC_RAN,
    "ExpirationRan": UpdateKind.EXPIRATION_RAN,
    "FeatureFlagChanged": UpdateKind.FEATURE_FLAG_CHANGED,
}


@pytest.fixture(params=sorted(REPOSITORIES))
def golden(request: pytest.FixtureRequest, fixtures_folder: Path) -> tuple[HandMade, dict[str, Any]]:
    folder = fixtures_folder / request.param
    if not folder.is_dir():
        pytest.skip(f"no fixture {request.param}")
    expected = json.loads((folder / "expected.json").read_text())
    return HandMade.at(local_filesystem_storage(folder / "repo"), REPOSITORIES[request.param]), expected


async def test_refs_and_history_are_read(golden: tuple[HandMade, dict[str, Any]]) -> None:
    repo, expected = golden
    assert await repo.ledger.list_branches() == set(expected["branches"])
    assert await repo.ledger.list_tags() == set(expected["tags"])
    for branch, tip in expected["branches"].items():
        assert (await repo.ledger.fetch_tip(branch)).snapshot_id == tip
    for tag, target in expected["tags"].items():
        assert await repo.ledger.fetch_tag(tag) == target
    for name, history in expected["ancestry"].items():
        kind, _, ref = name.partition(":")
        start = expected["branches" if kind == "branch" else "tags"][ref]
        found = [{"id": info.id, "message": info.message} async for info in repo.ledger.ancestry(start)]
        assert found == history


async def test_snapshots_nodes_and_chunks_are_read(golden: tuple[HandMade, dict[str, Any]]) -> None:
    repo, expected = golden
    for name, wanted in expected["snapshots"].items():
        snapshot = await repo.metadata_files.fetch_snapshot(name)
        assert (snapshot.id, snapshot.message) == (wanted["id"], wanted["message"])
        assert snapshot.metadata == wanted["metadata"]
        assert to_microseconds(snapshot.written_at) == wanted["flushed_at_us"]
        if not wanted.get("dangling") and name in {i for h in expected["ancestry"].values() for i in _ids(h)}:
            assert (await repo.ledger.fetch_info(name)).parent_id == wanted["parent_id"]
        files = [[info.id, info.size_bytes, info.num_chunk_refs] for info in snapshot.manifests.values()]
        assert files == wanted["manifest_files"]
        assert list(snapshot.nodes) == sorted(wanted["nodes"], key=str.encode)
        for path, node in wanted["nodes"].items():
            await _check_node(repo, snapshot.nodes[path], node, dangling=bool(wanted.get("dangling")))


def _ids(history: list[dict[str, Any]]) -> set[str]:
    return {entry["id"] for entry in history}


async def _check_node(repo: HandMade, node: Node, wanted: dict[str, Any], *, dangling: bool) -> None:
    assert encode_base32(node.id) == wanted["node_id"]
    document = json.loads(node.document)
    assert document.get("attributes", {}) == (wanted["attributes"] or {})
    if "zarr" in wanted:
        assert document == wanted["zarr"]
    if wanted["type"] == "group":
        assert not isinstance(node, ArrayNode)
        return
    assert isinstance(node, ArrayNode)
    assert (list(node.shape), list(node.grid)) == (wanted["shape"], wanted["num_chunks"])
    names = None if node.dimension_names is None else list(node.dimension_names)
    assert names == wanted["dimension_names"]
    if dangling:
        return
    found: dict[tuple[int, ...], ChunkRef] = {}
    for ref in node.manifests:
        table = (await repo.metadata_files.fetch_manifest(ref.manifest_id)).tables[node.id]
        assert table.extents() == ref.extents or not ref.extents
        found.update(table.rows())
    if isinstance(wanted["chunks"], int):
        assert len(found) == wanted["chunks"]
        return
    assert sorted(found) == sorted(tuple(chunk["coords"]) for chunk in wanted["chunks"])
    for chunk in wanted["chunks"]:
        _check_chunk(found[tuple(chunk["coords"])], chunk)


def _check_chunk(ref: ChunkRef, wanted: dict[str, Any]) -> None:
    assert ref.kind.name.lower() == wanted["kind"] and ref.length == wanted["length"]
    if ref.kind is ChunkKind.NATIVE:
        assert ref.object_id is not None
        assert encode_base32(ref.object_id) == wanted["chunk_id"] and ref.offset == wanted["offset"]
    if ref.kind is ChunkKind.VIRTUAL:
        assert ref.location == wanted["location"] and ref.offset == wanted["offset"]


async def test_transaction_logs_are_read(golden: tuple[HandMade, dict[str, Any]]) -> None:
    repo, expected = golden
    for name, wanted in expected["transactions"].items():
        log = await repo.metadata_files.fetch_transaction_log(name)
        assert _plain(log) == {"moved_nodes": [], **{key: _sorted(value) for key, value in wanted.items()}}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted(coords) for key, coords in value.items()}
    return value if value and isinstance(value[0], dict) else sorted(value)


def _plain(log: TransactionLog) -> dict[str, Any]:
    lists = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_arrays", "updated_groups")
    plain: dict[str, Any] = {name: sorted(encode_base32(node) for node in getattr(log, name)) for name in lists}
    plain["updated_chunks"] = {encode_base32(node): rows.tolist() for node, rows in log.updated_chunks.items()}
    plain["moved_nodes"] = [
        {
            "from": move.from_path,
            "to": move.to_path,
            "node_id": encode_base32(move.node_id),
            "node_type": "array" if move.is_array else "group",
        }
        for move in log.moves
    ]
    return plain


async def test_configuration_and_repository_state_are_read(golden: tuple[HandMade, dict[str, Any]]) -> None:
    repo, expected = golden
    stored = await repo.ledger.fetch_config()
    if not isinstance(repo.ledger, Icechunk2Ledger):
        assert _tags_as_text(stored.document) == expected.get("config_yaml")
        return
    wanted = expected["repo_info"]
    assert stored.document == wanted["config"]
    info = await repo.ledger.fetch_repo_info()
    assert sorted(info.deleted_tags) == expected["deleted_tags"]
    assert info.updates_before == wanted["repo_before_updates"]
    assert await repo.ledger.fetch_metadata() == (wanted["metadata"] or {})
    status = await repo.ledger.fetch_status()
    assert (status.availability.name.lower(), status.set_at_us) == (
        wanted["status"]["availability"],
        wanted["status"]["set_at_us"],
    )
    assert sorted(info.enabled_flags) == (wanted["enabled_feature_flags"] or [])
    assert sorted(info.disabled_flags) == (wanted["disabled_feature_flags"] or [])
    for record in wanted["snapshots"]:
        found = info.snapshots[record["id"]]
        assert (found.parent_id, found.flushed_at_us) == (record["parent_id"], record["flushed_at_us"])
        assert list(found.pruned_logs) == (record["pruned_ancestor_tx_logs"] or [])


def _tags_as_text(value: Any) -> Any:
    """Tagged scalars as text: expected.json does not say what `!Axis 0` is, only how it is spelled."""
    if isinstance(value, dict):
        return {
            key: str(item) if key.startswith("!") and isinstance(item, int) else _tags_as_text(item)
            for key, item in value.items()
        }
    return [_tags_as_text(item) for item in value] if isinstance(value, list) else value


async def test_the_operations_log_is_read_across_its_pages(golden: tuple[HandMade, dict[str, Any]]) -> None:
    repo, expected = golden
    if not isinstance(repo.ledger, Icechunk2Ledger):
        return
    found = [update async for update in repo.ledger.ops_log()]
    assert [(update.kind, update.at_us) for update in found] == [
        (KINDS[entry["type"]], entry["at"]) for entry in expected["ops_log"]
    ]
    for update, entry in zip(found, expected["ops_log"], strict=True):
        assert update.name == entry.get("name", entry.get("branch"))
        assert (update.previous_id, update.new_id) == (entry.get("prev"), entry.get("new"))
        # The first entry of a continued page has no path of its own: it takes the page's.
        assert update.backup == entry["backup_path"] or entry["backup_path"] is None
        if update.flag is not None:
            flag = update.flag
            assert (flag.flag_id, flag.value, flag.is_set) == (entry["id"], entry["new_value"], entry["is_set"])
