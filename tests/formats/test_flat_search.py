"""Readers of single things in flatbuffers files say what the readers of whole columns say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.flat_values import MANIFESTS, nodes, repositories, snapshots
from tests.formats.test_flat_fuzz import compressed_manifest_body, repo_body

from icefloe.errors import FormatError
from icefloe.formats.flatbuf.decode import Body, root, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, Coordinates, FlatWriter
from icefloe.formats.flatbuf.files import open_body, seal_body
from icefloe.formats.flatbuf.flexbuffers import read_few_items, read_items
from icefloe.formats.flatbuf.manifest import FlatManifest
from icefloe.formats.flatbuf.snapshot import (
    FEW_NODES,
    FlatNodes,
    NodeColumns,
    decode_snapshot_body,
    encode_snapshot_body,
    read_few_nodes,
)
from icefloe.formats.format import Format
from icefloe.formats.header import FileType
from icefloe.formats.icechunk1 import FORMAT as FORMAT_1
from icefloe.formats.icechunk2 import FORMAT as FORMAT_2
from icefloe.formats.icechunk2.repo_file import RepoInfo, encode_repo, read_repo_head
from icefloe.ids import NODE_ID_BYTES, new_object_id
from icefloe.manifests.chunk_columns import table_from_columns
from icefloe.metadata_files import CacheLimits, MetadataFiles
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.snapshot import ArrayNode, Manifest, ManifestFileInfo, ManifestRef, Snapshot
from icefloe.storage.build import in_memory_storage
from icefloe.testing.storages import CountingStorage

FORMATS = st.sampled_from([FORMAT_1, FORMAT_2])
NODES_SLOT, METADATA_SLOT = 2, 5
NODE = (7).to_bytes(NODE_ID_BYTES, "big")


def unsorted_body() -> bytes:
    """Three references of an array of one dimension, not in order."""
    writer = FlatWriter()
    top = writer.tables(1, {0: 12, 1: OFFSET_TYPE})
    arrays = writer.references(np.array([1]))
    top.link(1, arrays.positions)
    array = writer.tables(1, {0: NODE_ID_BYTES, 1: OFFSET_TYPE}).set(0, np.frombuffer(NODE, dtype=np.uint8)[None])
    arrays.link(array.positions)
    refs = writer.references(np.array([3]))
    array.link(1, refs.positions)
    rows = writer.tables(3, {0: Coordinates(1), 2: "<u8", 3: "<u8", 4: 12})
    rows.set_coordinates(0, np.array([[2], [1], [0]], dtype=np.uint32)).set(3, 9)
    refs.link(rows.positions)
    return writer.finish(top)


@given(MANIFESTS, FORMATS)
def test_a_reference_that_is_searched_is_the_one_in_the_columns(manifest: Manifest, format: Format) -> None:
    data = format.encode_manifest(manifest)
    for node, table in manifest.tables.items():
        for coords, ref in table.rows():
            assert format.open_manifest(data).find(node, [coords]) == [ref]
        first = next(table.rows())[0]
        assert format.open_manifest(data).find(node, [(*first, 1)]) is None
    assert format.open_manifest(data).find(b"nobodys!", [(0,)]) is None
    assert format.open_manifest(data).decode().tables.keys() == manifest.tables.keys()


def test_a_compressed_location_is_found() -> None:
    opened = FlatManifest(Body(compressed_manifest_body(), "manifest"))
    refs = opened.find(bytes(NODE_ID_BYTES), [(1,), (0,)])
    assert refs is not None
    assert [ref.location for ref in refs] == [f"s3://bucket/prefix/file-000{i}.nc" for i in (4, 3)]


def test_many_arrays_in_one_manifest_are_told_apart() -> None:
    tables = {
        i.to_bytes(NODE_ID_BYTES, "big"): table_from_rows([((i,), ChunkRef(ChunkKind.INLINE, 0, 1, data=b"x"))], 1)
        for i in range(40)
    }
    opened = FORMAT_2.open_manifest(FORMAT_2.encode_manifest(Manifest(new_object_id(), tables)))
    assert opened.find((39).to_bytes(NODE_ID_BYTES, "big"), [(39,)]) is not None
    assert opened.find((39).to_bytes(NODE_ID_BYTES, "big"), [(38,)]) is None


def test_rows_out_of_order_are_never_taken_for_missing() -> None:
    opened = FlatManifest(Body(unsorted_body(), "manifest"))
    assert opened.find(NODE, [(1,)]) is not None
    assert opened.find(NODE, [(2,)]) is None
    assert opened.decode().tables[NODE].coords.ravel().tolist() == [0, 1, 2]


def test_many_searches_ask_for_the_columns() -> None:
    opened = FlatManifest(Body(unsorted_body(), "manifest"))
    answers = [opened.find(NODE, [(1,)]) for _ in range(20)]
    assert answers[0] is not None and answers[-1] is None


@pytest.mark.long
@given(snapshots(), st.sampled_from([1, 2]))
def test_few_nodes_read_as_many_do(snapshot: Snapshot, spec: int) -> None:
    body = Body(encode_snapshot_body(snapshot, spec), "snapshot")
    few = read_few_nodes(root(body).children(NODES_SLOT))
    columns = FlatNodes(NodeColumns(root_table(body).tables(NODES_SLOT)[0]))
    assert few == dict(columns) and list(few) == list(columns)
    assert read_few_items(root(body), METADATA_SLOT) == read_items(root_table(body), METADATA_SLOT)[0]


@given(st.data(), st.sampled_from([1, 2]))
def test_snapshots_on_both_sides_of_few_come_back(data: st.DataObject, spec: int) -> None:
    count = data.draw(st.sampled_from([FEW_NODES, FEW_NODES + 1]))
    paths = sorted(f"/{number}" for number in range(count))
    one = data.draw(nodes("/"))
    infos = [ManifestFileInfo(new_object_id(), number, number) for number in range(count)]
    manifests = tuple(ManifestRef(info.id, ()) for info in infos)
    made = {path: dataclasses.replace(one, path=path) for path in paths}
    made = {p: dataclasses.replace(n, manifests=manifests) if isinstance(n, ArrayNode) else n for p, n in made.items()}
    snapshot = dataclasses.replace(data.draw(snapshots()), nodes=made, manifests={info.id: info for info in infos})
    found = decode_snapshot_body(Body(encode_snapshot_body(snapshot, spec), "snapshot"), spec)
    assert dict(found.nodes) == made
    assert dict(found.manifests) == dict(snapshot.manifests)


@given(repositories())
def test_a_glance_at_a_repo_file_tells_what_all_of_it_tells(info: RepoInfo) -> None:
    head = read_repo_head(encode_repo(info))
    assert head.config == info.config and head.status == info.status
    for find, refs in ((head.find_branch, info.branches), (head.find_tag, info.tags)):
        assert {name: find(name) for name in refs} == dict(refs)
        assert find("\ud800 nobody") is None


def test_a_glance_refuses_what_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.formats.icechunk2.repo_file.KNOWN_SPEC", 1)
    with pytest.raises(FormatError, match="Upgrade"):
        read_repo_head(seal_body(repo_body(), FileType.REPO_INFO, 2))


async def metadata_files_of(count: int, limit: int) -> tuple[MetadataFiles, CountingStorage, Manifest]:
    storage = CountingStorage(in_memory_storage())
    coords = np.arange(count, dtype=np.int64)[:, None]
    table = table_from_columns(
        coords, kind=ChunkKind.NATIVE, offset=coords[:, 0], length=1, object_id=np.zeros((count, 12), dtype=np.uint8)
    )
    manifest = Manifest(new_object_id(), {NODE: table})
    await storage.put(FORMAT_2.manifest_key(manifest.id), FORMAT_2.encode_manifest(manifest))
    storage.counts.reset()
    return MetadataFiles(storage, FORMAT_2, CacheLimits(manifests=limit)), storage, manifest


async def test_a_manifest_is_requested_once_for_searches_and_columns() -> None:
    metadata_files, storage, manifest = await metadata_files_of(10_000, 1 << 30)
    for row in (3, 9_999, 0):
        refs = await metadata_files.find_refs(manifest.id, NODE, [(row,)])
        assert refs is not None and refs[0].offset == row
    assert await metadata_files.find_refs(manifest.id, NODE, [(10_000,)]) is None
    assert (await metadata_files.fetch_manifest(manifest.id)).tables[NODE] == manifest.tables[NODE]
    assert await metadata_files.find_refs(manifest.id, NODE, [(3,)]) is None
    assert storage.counts.total.requests == 1


async def test_a_manifest_too_large_to_be_kept_open_is_kept_as_columns_where_they_fit() -> None:
    metadata_files, storage, manifest = await metadata_files_of(10_000, 400_000)
    size = open_body(FORMAT_2.encode_manifest(manifest), FileType.MANIFEST)[1].size
    assert manifest.tables[NODE].nbytes < 400_000 < size
    assert await metadata_files.find_refs(manifest.id, NODE, [(3,)]) is not None
    assert await metadata_files.find_refs(manifest.id, NODE, [(3,)]) is None
    await metadata_files.fetch_manifest(manifest.id)
    assert storage.counts.total.requests == 1
