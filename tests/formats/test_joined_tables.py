"""Tables of many arrays in common columns are stored like tables of their own."""

from __future__ import annotations

import random

import pytest

from icefloe import SpecVersion
from icefloe.formats.contract import get_format
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
