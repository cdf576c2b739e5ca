"""Chunks come back whole or in part, from packs, objects, memory and caches, or with an error that names them."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.s3 import S3Server

from icefloe.chunks.packs import PackBuilder, PackingPolicy
from icefloe.chunks.reader import ChunkLookup, ChunkReader, read_limits
from icefloe.errors import FormatError, VirtualChunkError
from icefloe.formats.format import Format
from icefloe.ids import encode_base32, new_node_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.config import CachingConfig, RepositoryConfig, StorageConcurrencySettings, StorageSettings
from icefloe.model.snapshot import ArrayNode, ManifestRef
from icefloe.storage.build import s3_storage
from icefloe.storage.contract import Storage
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage

NODE = b"12345678"


def chunk_key(chunk_id: bytes) -> str:
    return f"{Format.chunks_folder}{encode_base32(chunk_id)}"


def native(chunk_id: bytes, offset: int, length: int) -> ChunkRef:
    return ChunkRef(ChunkKind.NATIVE, offset, length, object_id=chunk_id)


async def write_packs(storage: Storage, chunks: dict[tuple[int, ...], bytes], target: int) -> ChunkTable:
    """Chunks in packs on a storage; returns the references to all of them."""
    builder = PackBuilder(PackingPolicy(0, target, target))
    for coords, data in chunks.items():
        builder.add(NODE, coords, data)
    rows = []
    for pack in builder.seal():
        await storage.put(chunk_key(pack.object_id), pack.data)
        rows += list(pack.tables[NODE].rows())
    return table_from_rows(rows, 1)


@given(
    chunks=st.dictionaries(st.tuples(st.integers(0, 50)), st.binary(min_size=1, max_size=90), min_size=1, max_size=40),
    target=st.integers(90, 900),
    seed=st.integers(0, 9),
    cache_bytes=st.sampled_from([0, 100, 10_000]),
)
def test_what_was_packed_is_read_back_one_by_one_and_in_bulk(
    chunks: dict[tuple[int, ...], bytes], target: int, seed: int, cache_bytes: int
) -> None:
    async def both() -> None:
        storage = MemoryStorage()
        table = await write_packs(storage, chunks, target)
        reader = ChunkReader(storage, chunk_key, cache_bytes=cache_bytes)
        rows = np.array(random.Random(seed).choices(range(len(table)), k=2 * len(table)), dtype=np.intp)
        expected = [chunks[tuple(table.coords[row].tolist())] for row in rows]
        assert await reader.fetch_many(table, rows) == expected
        assert await asyncio.gather(*(reader.fetch(table.row(int(row))) for row in rows)) == expected
        assert await reader.fetch_many(table) == [chunks[key] for key in sorted(chunks)]

    asyncio.run(both())


@given(data=st.binary(min_size=1, max_size=60), start=st.integers(0, 70), end=st.none() | st.integers(0, 70))
def test_part_of_a_chunk_is_cut_to_the_chunk(data: bytes, start: int, end: int | None) -> None:
    async def read() -> None:
        storage = MemoryStorage()
        await storage.put(chunk_key(bytes(12)), b"before" + data + b"after")
        reader = ChunkReader(storage, chunk_key)
        wanted = data[start:end] if end is None or end > start else b""
        assert await reader.fetch(native(bytes(12), 6, len(data)), start, end) == wanted
        inline = ChunkRef(ChunkKind.INLINE, 0, len(data), data=data)
        assert await reader.fetch(inline, start, end) == wanted

    asyncio.run(read())


def test_inline_native_and_virtual_chunks_mix_in_one_batch(tmp_path: Path) -> None:
    async def read() -> list[bytes]:
        storage = MemoryStorage()
        await storage.put(chunk_key(bytes(12)), b"one")
        rows = [
            ((0,), ChunkRef(ChunkKind.INLINE, 0, 2, data=b"in")),
            ((1,), native(bytes(12), 0, 3)),
            ((2,), ChunkRef(ChunkKind.INLINE, 0, 4, data=b"line")),
        ]
        return await ChunkReader(storage, chunk_key).fetch_many(table_from_rows(rows, 1))

    assert asyncio.run(read()) == [b"in", b"one", b"line"]


def test_packs_that_are_not_written_yet_are_read_from_memory() -> None:
    async def read() -> None:
        reader = ChunkReader(MemoryStorage(), chunk_key)
        local: dict[bytes, bytes] = {}
        session = reader.for_session(local)
        local[bytes(12)] = b"0123456789"
        ref = native(bytes(12), 2, 5)
        assert await session.fetch(ref) == b"23456"
        assert await session.fetch(ref, 1, 3) == b"34"
        assert await session.fetch_many(table_from_rows([((0,), ref)], 1)) == [b"23456"]
        assert session.counts is reader.counts and reader.counts.requests == 0
        with pytest.raises(FormatError):
            await reader.fetch(ref)

    asyncio.run(read())


def test_a_missing_chunk_object_is_named() -> None:
    reader = ChunkReader(MemoryStorage(), chunk_key)
    ref = native(b"\x01" * 12, 0, 5)
    with pytest.raises(FormatError, match=rf"chunks/{encode_base32(bytes([1] * 12))}.*wanted by /t2m c/3/4") as raised:
        asyncio.run(reader.fetch(ref, where="/t2m c/3/4"))
    assert raised.value.facts["chunk_id"] == encode_base32(b"\x01" * 12)
    with pytest.raises(FormatError, match="is missing"):
        asyncio.run(reader.fetch_many(table_from_rows([((0,), ref)], 1), array_path="/t2m"))


def test_a_truncated_object_fails_only_the_chunks_it_lacks() -> None:
    async def read() -> None:
        storage = MemoryStorage()
        await storage.put(chunk_key(bytes(12)), bytes(25))
        reader = ChunkReader(storage, chunk_key)
        refs = [native(bytes(12), 10 * i, 10) for i in range(3)]
        found = await asyncio.gather(*(reader.fetch(ref) for ref in refs), return_exceptions=True)
        assert found[:2] == [bytes(10), bytes(10)]
        assert isinstance(found[2], FormatError) and "5 of the 10 bytes" in str(found[2])
        table = table_from_rows([((i,), ref) for i, ref in enumerate(refs)], 1)
        with pytest.raises(FormatError, match=r"chunk \(2,\) of /t2m"):
            await reader.fetch_many(table, array_path="/t2m")

    asyncio.run(read())


def test_absurd_references_are_refused_without_reading() -> None:
    reader = ChunkReader(MemoryStorage(), chunk_key)
    for ref in (native(bytes(12), 2**63, 5), native(bytes(12), 0, 2**63), native(bytes(12), 2**64 - 1, 2**64 - 1)):
        with pytest.raises(FormatError, match="damaged"):
            asyncio.run(reader.fetch(ref))
        with pytest.raises(FormatError, match="damaged"):
            asyncio.run(reader.fetch_many(table_from_rows([((0,), ref)], 1)))


def test_a_chunk_is_read_once_when_chunks_are_cached() -> None:
    async def read() -> None:
        storage = MemoryStorage()
        await storage.put(chunk_key(bytes(12)), b"0123456789")
        config = RepositoryConfig(caching=CachingConfig(num_bytes_chunks=1000))
        reader = ChunkReader.configured(storage, chunk_key, config)
        for _ in range(3):
            assert await reader.fetch(native(bytes(12), 2, 5)) == b"23456"
        assert reader.counts.requests == 1

    asyncio.run(read())


def test_a_large_chunk_is_fetched_in_parts_where_a_part_size_is_set(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    data = random.Random(5).randbytes(1_000_003)

    async def read(config: RepositoryConfig) -> int:
        reader = ChunkReader.configured(storage, chunk_key, config)
        assert await reader.fetch(native(bytes(12), 0, len(data))) == data
        return reader.counts.requests

    asyncio.run(storage.put(chunk_key(bytes(12)), data))
    assert asyncio.run(read(RepositoryConfig())) == 1
    parts = StorageSettings(concurrency=StorageConcurrencySettings(ideal_concurrent_request_size=100_000))
    assert asyncio.run(read(RepositoryConfig(storage=parts))) == 11
    assert read_limits(RepositoryConfig(max_concurrent_requests=3)).max_requests == 3


def test_readers_pickle_without_what_they_hold(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    asyncio.run(storage.put(chunk_key(bytes(12)), b"0123456789"))
    reader = ChunkReader(storage, chunk_key, cache_bytes=100).for_session({b"x": b"y"})
    ref = native(bytes(12), 2, 5)
    assert asyncio.run(reader.fetch(ref)) == b"23456"
    assert asyncio.run(pickle.loads(pickle.dumps(reader)).fetch(ref)) == b"23456"


def test_a_virtual_chunk_needs_a_container() -> None:
    ref = ChunkRef(ChunkKind.VIRTUAL, 0, 5, location="s3://bucket/a.nc")
    reader = ChunkReader(MemoryStorage(), chunk_key)
    with pytest.raises(VirtualChunkError, match="no virtual chunk container"):
        asyncio.run(reader.fetch(ref))
    with pytest.raises(VirtualChunkError, match="no virtual chunk container"):
        asyncio.run(reader.fetch_many(table_from_rows([((0,), ref)], 1)))


def test_four_thousand_scattered_chunks_need_one_request_a_pack(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    chunks = {(i,): i.to_bytes(4, "big") * 256 for i in range(4000)}

    async def read() -> None:
        table = await write_packs(storage, chunks, 1 << 20)
        reader = ChunkReader(storage, chunk_key)
        rows = np.array(random.Random(1).sample(range(4000), 4000), dtype=np.intp)
        assert await reader.fetch_many(table, rows) == [chunks[int(row),] for row in rows]
        assert reader.counts.requests == 4
        with_rows = dataclasses.replace(table)
        assert await reader.fetch_many(with_rows, np.empty(0, dtype=np.intp)) == []

    asyncio.run(read())


@pytest.mark.s3
def test_a_thousand_neighbours_on_s3_need_one_request(s3_server: S3Server, s3_bucket: str) -> None:
    storage = s3_storage(**s3_server.storage_options(s3_bucket))
    chunks = {(i,): i.to_bytes(4, "big") * 256 for i in range(1000)}

    async def read() -> None:
        table = await write_packs(storage, chunks, 4 << 20)
        together = ChunkReader(storage, chunk_key)
        assert await asyncio.gather(*(together.fetch(table.row(i)) for i in range(1000))) == list(chunks.values())
        assert together.counts.requests == 1
        one_by_one = ChunkReader(storage, chunk_key)
        assert [await one_by_one.fetch(table.row(i)) for i in range(1000)] == list(chunks.values())
        assert one_by_one.counts.requests < 10
        with pytest.raises(FormatError, match="is missing"):
            await together.fetch(native(b"\x01" * 12, 0, 5))

    asyncio.run(read())


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=2, max_size=2), min_size=2, max_size=20
    ),
    st.tuples(st.integers(0, 10), st.integers(0, 10)),
)
def test_the_manifests_of_a_chunk_are_those_whose_box_contains_it(
    boxes: list[list[tuple[int, int]]], coords: tuple[int, int]
) -> None:
    refs = tuple(
        ManifestRef(f"{number:020d}", tuple((first, first + size) for first, size in box))
        for number, box in enumerate(boxes)
    )
    node = ArrayNode(new_node_id(), "/a", b"{}", (11, 11), (11, 11), manifests=refs)
    inside = [
        ref.manifest_id
        for ref in refs
        if all(first <= c < end for c, (first, end) in zip(coords, ref.extents, strict=True))
    ]
    files: Any = None  # the extents of manifests are in the node
    assert ChunkLookup(files).manifests_for(node, coords) == inside
