"""Repositories that official releases of the MessagePack generation wrote read as they were described."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.errors import RefNotFoundError
from icefloe.formats.repository import FORMAT
from icefloe.formats.repository.snapshot import parse_time
from icefloe.ids import decode_base32, encode_base32, new_object_id
from icefloe.ledger.generations import detect_generation
from icefloe.ledger.repository import RepositoryLedger
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.snapshot import ArrayNode, Snapshot
from icefloe.storage.build import in_memory_storage, local_filesystem_storage
from icefloe.storage.contract import Storage

NAMES = [
    "g2-0.1.0",
    "g2-alpha1-colon-refs",
    "g2-alpha11-binary-ids",
    "g2-alpha2-dot-refs",
    "g2-alpha5-random-node-ids",
    "g2-alpha8-txlogs",
    "g2-alpha9-header",
    "g2-dev-manifest-size",
    "g2-dev-parent-id",
    "g2-dev-zstd-manifest",
]


@dataclasses.dataclass(frozen=True)
class Fixture:
    folder: Path
    expected: dict[str, Any]

    def read(self, *parts: str) -> bytes:
        return self.folder.joinpath("repo", *parts).read_bytes()

    def files(self, kind: str) -> list[str]:
        folder = self.folder / "repo" / kind
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest, fixtures_folder: Path) -> Fixture:
    folder = fixtures_folder / request.param
    return Fixture(folder, json.loads((folder / "expected.json").read_text()))


def node_id(wire: int | str) -> bytes:
    return wire.to_bytes(8, "big") if isinstance(wire, int) else decode_base32(wire, 8)


def test_snapshots_read_as_described(fixture: Fixture) -> None:
    assert fixture.files("snapshots") == sorted(fixture.expected["snapshots"])
    for name, expected in fixture.expected["snapshots"].items():
        snapshot = FORMAT.decode_snapshot(fixture.read("snapshots", name))
        assert snapshot.id == expected["id"]
        assert snapshot.parent_id == expected["parent_id"]
        assert snapshot.written_at == parse_time(expected["time"])
        assert snapshot.message == expected["message"]
        assert snapshot.metadata == expected["metadata"]
        check_manifest_files(snapshot, fixture, expected["manifest_files"])
        assert set(snapshot.nodes) == set(expected["nodes"])
        for path, described in expected["nodes"].items():
            check_node(snapshot, path, described)


def check_manifest_files(snapshot: Snapshot, fixture: Fixture, described: list[Any]) -> None:
    assert [encode_id(d[0]) for d in described] == list(snapshot.manifests)
    for manifest_id, info in snapshot.manifests.items():
        if info.size_bytes:
            assert info.size_bytes == len(fixture.read("manifests", manifest_id))
        if info.num_chunk_refs:
            assert info.num_chunk_refs == len(FORMAT.decode_manifest(fixture.read("manifests", manifest_id)))


def encode_id(described: Any) -> str:
    return described if isinstance(described, str) else encode_base32(bytes.fromhex(described[0]))


def check_node(snapshot: Snapshot, path: str, described: dict[str, Any]) -> None:
    node = snapshot.nodes[path]
    assert node.id == node_id(described["node_id"])
    assert isinstance(node, ArrayNode) == (described["type"] == "array")
    document = json.loads(node.document)
    assert document.get("attributes") == described["attributes"]
    if "zarr" in described:
        assert document == described["zarr"]
    if isinstance(node, ArrayNode):
        assert list(node.shape) == described["shape"]
        assert list(node.grid) == described["num_chunks"]
        assert [m.manifest_id for m in node.manifests] == [m["id"] for m in described["manifests"]]
        names = described["dimension_names"]
        assert node.dimension_names == (None if names is None else tuple(names))


def chunks_of(fixture: Fixture, node: ArrayNode) -> dict[tuple[int, ...], ChunkRef]:
    found: dict[tuple[int, ...], ChunkRef] = {}
    for reference in node.manifests:
        table = FORMAT.decode_manifest(fixture.read("manifests", reference.manifest_id)).tables.get(node.id)
        if table is not None:
            found |= {c: r for c, r in table.rows() if all(i < n for i, n in zip(c, node.grid, strict=True))}
    return found


def test_chunks_read_as_described(fixture: Fixture) -> None:
    checked = 0
    for name, expected in fixture.expected["snapshots"].items():
        snapshot = FORMAT.decode_snapshot(fixture.read("snapshots", name))
        for path, described in expected["nodes"].items():
            node = snapshot.nodes[path]
            if not isinstance(node, ArrayNode) or "chunks" not in described:
                continue
            found = chunks_of(fixture, node)
            if isinstance(described["chunks"], int):
                assert len(found) == described["chunks"]
                continue
            assert [list(coords) for coords in found] == [c["coords"] for c in described["chunks"]]
            for chunk in described["chunks"]:
                check_chunk(found[tuple(chunk["coords"])], chunk)
                checked += 1
    assert checked


def check_chunk(found: ChunkRef, described: dict[str, Any]) -> None:
    assert found.kind.name.lower() == described["kind"]
    assert found.length == described["length"]
    if found.kind is ChunkKind.NATIVE:
        assert encode_base32(found.object_id or b"") == described["chunk_id"]
        assert found.offset == described["offset"]
    elif found.kind is ChunkKind.VIRTUAL:
        assert (found.location, found.offset) == (described["location"], described["offset"])
        checksum = described.get("checksum") or {}
        assert found.last_modified == checksum.get("last_modified")
        assert found.etag == checksum.get("etag")


def test_transaction_logs_read_as_described(fixture: Fixture) -> None:
    described = fixture.expected.get("transactions") or {}
    assert fixture.files("transactions") == sorted(described)
    for name, expected in described.items():
        log = FORMAT.decode_transaction_log(fixture.read("transactions", name))
        ids = {key: {node_id(n) for n in expected[key]} for key in expected if key != "updated_chunks"}
        new = ids["new_groups"] | ids["new_arrays"]
        assert (log.new_groups, log.new_arrays) == (ids["new_groups"], ids["new_arrays"])
        assert (log.deleted_groups, log.deleted_arrays) == (ids["deleted_groups"], ids["deleted_arrays"])
        updated = ids["updated_user_attributes"] | ids["updated_zarr_metadata"]
        assert log.updated_groups | log.updated_arrays == updated - new
        chunks = {encode_base32(node): coords.tolist() for node, coords in log.updated_chunks.items()}
        assert chunks == {node: sorted(coords) for node, coords in expected["updated_chunks"].items()}


@pytest.fixture
def storage(fixture: Fixture) -> Storage:
    return local_filesystem_storage(fixture.folder / "repo")


async def test_refs_and_history_read_as_described(fixture: Fixture, storage: Storage) -> None:
    expected = fixture.expected
    assert await detect_generation(storage) is SpecVersion.REPOSITORY
    ledger = RepositoryLedger(storage, MetadataFiles(storage, FORMAT))
    assert await ledger.list_branches() == set(expected["branches"])
    assert await ledger.list_tags() == set(expected["tags"])
    for branch, snapshot_id in expected["branches"].items():
        tip = await ledger.fetch_tip(branch)
        assert tip.snapshot_id == snapshot_id
        assert tip.version_token == max(f["sequence"] for f in expected["branch_files"][branch])
        assert await ledger.fetch_tip(branch) == tip
    for tag, snapshot_id in expected["tags"].items():
        assert await ledger.fetch_tag(tag) == snapshot_id
    for tag in expected["deleted_tags"]:
        with pytest.raises(RefNotFoundError):
            await ledger.fetch_tag(tag)
    for ref, described in expected["ancestry"].items():
        kind, _, name = ref.partition(":")
        start = expected["branches" if kind == "branch" else "tags"][name]
        found = [{"id": info.id, "message": info.message} async for info in ledger.ancestry(start)]
        assert found == described


async def test_the_configuration_reads_as_described(fixture: Fixture, storage: Storage) -> None:
    stored = await RepositoryLedger(storage, MetadataFiles(storage, FORMAT)).fetch_config()
    assert stored.document == fixture.expected.get("config_yaml")


async def copy_of(fixture: Fixture) -> Storage:
    storage = in_memory_storage()
    root = fixture.folder / "repo"
    for path in root.rglob("*"):
        if path.is_file():
            await storage.put(path.relative_to(root).as_posix(), path.read_bytes())
    return storage


async def test_new_commits_on_top_keep_history_nodes_and_refs_together(fixture: Fixture) -> None:
    storage = await copy_of(fixture)
    metadata_files = MetadataFiles(storage, FORMAT)
    ledger = RepositoryLedger(storage, metadata_files)
    described = [entry["id"] for entry in fixture.expected["ancestry"]["branch:main"]]
    for _ in range(3):
        tip = await ledger.fetch_tip("main")
        parent = await metadata_files.fetch_snapshot(tip.snapshot_id)
        total = None if parent.total_ancestors is None else parent.total_ancestors + 1
        child = dataclasses.replace(
            parent,
            id=new_object_id(),
            parent_id=parent.id,
            message="ours",
            total_ancestors=total,
            history=(dataclasses.replace(parent.info, manifests=()), *parent.history)[:2],
        )
        await metadata_files.write_snapshot(child)
        assert (await ledger.advance("main", tip, child)).version_token == tip.version_token + 1
        described.insert(0, child.id)
    await ledger.create_branch("new", described[2])
    await ledger.create_tag("new tag", described[1])
    fresh_files = MetadataFiles(storage, FORMAT)
    fresh = RepositoryLedger(storage, fresh_files)
    assert await detect_generation(storage) is SpecVersion.REPOSITORY
    tip = await fresh.fetch_tip("main")
    assert [info.id async for info in fresh.ancestry(tip.snapshot_id)] == described
    assert await fresh.list_branches() == {*fixture.expected["branches"], "new"}
    assert await fresh.list_tags() == {*fixture.expected["tags"], "new tag"}
    old = await fresh_files.fetch_snapshot(described[3])
    new = await fresh_files.fetch_snapshot(tip.snapshot_id)
    assert dict(new.nodes) == dict(old.nodes)
    separators = {name[len("branch")] for name in await storage.list_names("refs/") if name.startswith("branch")}
    assert separators == ({":"} if "colon" in fixture.folder.name else {"."})


def test_manifests_are_written_again_without_loss(fixture: Fixture) -> None:
    for name in fixture.files("manifests"):
        manifest = FORMAT.decode_manifest(fixture.read("manifests", name))
        again = FORMAT.decode_manifest(FORMAT.encode_manifest(manifest))
        assert again.tables.keys() == manifest.tables.keys()
        for node, table in manifest.tables.items():
            assert list(again.tables[node].rows()) == list(table.rows())
            assert np.array_equal(again.tables[node].coords, table.coords)
