"""Tables of many arrays in common columns are stored like tables of their own."""

from __future__ import annotations

import json
import random

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import SpecVersion
from icefloe.formats.format import get_format
from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, join_tables, table_from_rows
from icefloe.model.snapshot import Manifest


def _draw_ref(source: random.Random, id_bytes: int) -> ChunkRef:
    kind = source.choice([ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL])
    if kind is ChunkKind.INLINE:
        data = source.randbytes(source.randrange(40))
        return ChunkRef(kind, 0, len(data), data=data)
    if kind is ChunkKind.NATIVE:
        return ChunkRef(
            kind, source.randrange(1 << 40), source.randrange(1 << 30), object_id=source.randbytes(id_bytes)
        )
    return ChunkRef(kind, source.randrange(99), source.randrange(999), location=f"s3://b/{source.randrange(5)}")


def _draw_tables(seed: int, id_bytes: int) -> dict[NodeId, ChunkTable]:
    source = random.Random(seed)
    tables = {}
    for number in source.sample(range(1, 1 << 32 if seed % 2 else 90), 30):
        ndim = source.choice([0, 1, 2]) if seed % 3 else 1
        coords = {tuple(source.randrange(1 << 20) for _ in range(ndim)) for _ in range(source.randrange(1, 5))}
        rows = [(each, _draw_ref(source, id_bytes)) for each in sorted(coords)]
        tables[number.to_bytes(8, "big")] = table_from_rows(rows, ndim)
    return tables


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("generation", [version.value for version in SpecVersion])
def test_common_columns_are_encoded_like_separate_tables(generation: str, seed: int) -> None:
    layout = get_format(SpecVersion(generation))
    width = layout.capabilities.object_id_bytes
    tables = _draw_tables(seed, width)
    name = "0" * 26 if width == 16 else "0" * 20
    apart = layout.decode_manifest(layout.encode_manifest(Manifest(name, tables)))
    together = layout.decode_manifest(layout.encode_manifest(Manifest(name, join_tables(tables))))
    assert dict(apart.tables.items()) == dict(together.tables.items()) == tables


@pytest.mark.parametrize("generation", [version.value for version in SpecVersion])
def test_nodes_with_equal_documents_keep_their_own_paths_and_chunks(generation: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for index in range(24):
        root.create_array(f"a{index}", shape=(4,), chunks=(2,), dtype="i4", attributes={"n": index % 3})
        if index % 2:
            root[f"a{index}"][:] = index
    # No other writer formats a document like this, so that it has to be kept as it is.
    prototype = default_buffer_prototype()
    usual = sync(session.store.get("a1/zarr.json", prototype))
    assert usual is not None
    data = json.dumps(json.loads(usual.to_bytes()), indent=5).encode()
    for name in ("b", "c"):
        sync(session.store.set(f"{name}/zarr.json", prototype.buffer.from_bytes(data)))
    session.commit("alike")
    opened = icefloe.Repository.open(repo.storage).readonly_session("main")
    found = zarr.open_group(opened.store, mode="r")
    for index in range(24):
        assert found[f"a{index}"][:].tolist() == [index if index % 2 else 0] * 4
        assert dict(found[f"a{index}"].attrs) == {"n": index % 3}
    for name in ("b", "c"):
        kept = sync(opened.store.get(f"{name}/zarr.json", prototype))
        assert kept is not None and kept.to_bytes() == data
