"""The unreleased files between `repository` and `icechunk1` are read by the generation whose refs they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import FormatError
from icefloe.formats.repository import FORMAT
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.snapshot import ArrayNode, Node, to_microseconds


@pytest.fixture
def early(fixtures_folder: Path) -> tuple[Path, dict[str, Any]]:
    folder = fixtures_folder / "g3-dev-early-flatbuffers"
    if not folder.is_dir():
        pytest.skip("no fixture of early flatbuffers")
    return folder / "repo", json.loads((folder / "expected.json").read_text())


def test_early_flatbuffers_files_are_read(early: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = early
    for name, wanted in expected["snapshots"].items():
        snapshot = FORMAT.decode_snapshot((folder / "snapshots" / name).read_bytes())
        assert (snapshot.id, snapshot.parent_id) == (wanted["id"], wanted["parent_id"])
        assert (snapshot.message, snapshot.metadata) == (wanted["message"], wanted["metadata"])
        assert to_microseconds(snapshot.written_at) == wanted["flushed_at_us"]
        files = [[info.id, info.size_bytes, info.num_chunk_refs] for info in snapshot.manifests.values()]
        assert files == wanted["manifest_files"] and list(snapshot.nodes) == sorted(wanted["nodes"], key=str.encode)
        for path, node in wanted["nodes"].items():
            check_node(folder, snapshot.nodes[path], node)
    for name, wanted in expected["transactions"].items():
        log = FORMAT.decode_transaction_log((folder / "transactions" / name).read_bytes())
        for field in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_arrays"):
            assert sorted(encode_base32(node) for node in getattr(log, field)) == sorted(wanted[field])
        chunks = {encode_base32(node): rows.tolist() for node, rows in log.updated_chunks.items()}
        assert chunks == {node: sorted(rows) for node, rows in wanted["updated_chunks"].items()}


def check_node(folder: Path, node: Node, wanted: dict[str, Any]) -> None:
    assert encode_base32(node.id) == wanted["node_id"]
    document = json.loads(node.document)
    assert document.get("attributes", {}) == (wanted["attributes"] or {})
    if "zarr" in wanted:
        assert document == wanted["zarr"]
    if wanted["type"] == "group":
        return
    assert isinstance(node, ArrayNode)
    assert (list(node.shape), list(node.grid)) == (wanted["shape"], wanted["num_chunks"])
    found: dict[tuple[int, ...], ChunkRef] = {}
    for ref in node.manifests:
        manifest = FORMAT.decode_manifest((folder / "manifests" / ref.manifest_id).read_bytes())
        found.update(manifest.tables[node.id].rows())
    chunks = wanted["chunks"]
    assert len(found) == (chunks if isinstance(chunks, int) else len(chunks))
    for chunk in [] if isinstance(chunks, int) else chunks:
        assert found[tuple(chunk["coords"])].length == chunk["length"]


def test_a_broken_early_file_is_a_format_error(early: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = early
    name = next(iter(expected["snapshots"]))
    data = (folder / "snapshots" / name).read_bytes()
    for end in range(0, len(data), 7):
        with pytest.raises(FormatError):
            FORMAT.decode_snapshot(data[:end] + b"\0" * 3)
