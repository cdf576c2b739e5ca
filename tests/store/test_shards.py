"""Shards: which requests their indexes take, frames of other writers, and the bytes of whole shards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import example, given, settings
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import icefloe
from icefloe import chunk_coders, codec_pipeline
from icefloe.chunks import reader as chunk_reader
from icefloe.codec_pipeline import BatchedChunkPipeline
from icefloe.testing import CountingStorage

NO_INLINE = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


def counted_array(shards: int = 4) -> tuple[CountingStorage, icefloe.Repository, np.ndarray[Any, Any]]:
    """A repository with an array `a` of shards of 2 MiB, each with 64 chunks of 32 KiB."""
    storage = CountingStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, NO_INLINE)
    values = np.random.default_rng(1).integers(0, 1 << 30, (shards, 1 << 19), dtype="i4")
    with repo.transaction("main", message="data") as store:
        zarr.create_array(
            store, name="a", shape=values.shape, shards=(1, 1 << 19), chunks=(1, 1 << 13), dtype="i4", compressors=None
        )[:] = values
    return storage, repo, values


def requests_of(storage: CountingStorage, read: Any) -> int:
    before = storage.counts.total.requests
    read()
    return storage.counts.total.requests - before


def test_the_index_of_a_shard_is_fetched_once() -> None:
    storage, repo, values = counted_array()
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[0, 5] == values[0, 5]  # also reads the manifest
    assert requests_of(storage, lambda: array[0, 300_000]) == 1
    assert requests_of(storage, lambda: array[1:4, 200_000]) == 6, "three indexes, three chunks"
    assert requests_of(storage, lambda: array[0:4, 400_000]) == 4
    np.testing.assert_array_equal(array[0:4, 400_000], values[0:4, 400_000])
    other = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert requests_of(storage, lambda: other[2, 100_000]) == 1, "sessions of a repository share the indexes"


def test_few_indexes_are_kept_when_there_is_little_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reader, "_INDEX_CACHE_BYTES", 2000)  # an index has 64 chunks of 16 bytes
    storage, repo, values = counted_array(2)
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    _ = array[0, 0], array[1, 0]
    for column in (100_000, 200_000):
        assert requests_of(storage, lambda column=column: array[0, column]) == 2
        assert requests_of(storage, lambda column=column: array[0, column + 100_000]) == 1
        assert requests_of(storage, lambda column=column: array[1, column]) == 2
        assert array[0, column] == values[0, column]
        assert array[1, column] == values[1, column]


@pytest.mark.parametrize("where", ["memory", "files"])
def test_threads_that_read_the_same_shards_see_the_same_values(tmp_path: Path, where: str) -> None:
    storage = icefloe.in_memory_storage() if where == "memory" else icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage, NO_INLINE)
    values = np.random.default_rng(1).random((64, 64))
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=(64, 64), shards=(32, 32), chunks=(4, 4), dtype="f8")[:] = values
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")

    def read(seed: int) -> bool:
        places = np.random.default_rng(seed).integers(0, 64, (40, 2)).tolist()
        return all(array[i, j] == values[i, j] and (array[:, j] == values[:, j]).all() for i, j in places)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(6)))


@pytest.mark.long
@given(data=st.data(), packed=st.booleans(), inline=st.booleans(), local=st.booleans())
@settings(max_examples=25, deadline=None)
def test_reads_see_every_write_of_the_session_and_nothing_of_later_ones(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool, inline: bool, local: bool
) -> None:
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=10_000 if inline else 0, chunk_packing=icefloe.ChunkPackingConfig(enabled=packed)
    )
    folder = str(tmp_path_factory.mktemp("shards"))
    storage = icefloe.local_filesystem_storage(folder) if local else icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config)
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(32,), shards=(16,), chunks=(4,), dtype="i4", fill_value=0)
    model = np.zeros(32, "i4")
    session.commit("empty")
    kept: list[tuple[Any, np.ndarray[Any, Any]]] = []
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a", mode="r+")
    for number in range(1, data.draw(st.integers(2, 12))):
        where = data.draw(st.integers(0, 31))
        match data.draw(st.sampled_from(["write", "write", "clear", "commit", "read"])):
            case "write":
                array[where], model[where] = number, number
            case "clear":
                first = where // 4 * 4
                array[first : first + 4] = 0
                model[first : first + 4] = 0
            case "commit" if session.has_uncommitted_changes:
                session.commit("more")
                opened = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
                kept.append((opened, model.copy()))
                session = repo.writable_session("main")
                array = zarr.open_array(session.store, path="a", mode="r+")
        for old, expected in [*kept, (array, model)]:
            assert [old[place] for place in (where, (where + 4) % 32, (where + 16) % 32)] == [
                expected[place] for place in (where, (where + 4) % 32, (where + 16) % 32)
            ]
            np.testing.assert_array_equal(old[where::16], expected[where::16])


def shard_of(frames: list[bytes | None]) -> bytes:
    """A shard with chunks in their order and the index at the end, as the Zarr specification describes it."""
    index, body = b"", b""
    for frame in frames:
        missing = 2**64 - 1
        place = (missing, missing) if frame is None else (len(body), len(frame))
        index += b"".join(number.to_bytes(8, "little") for number in place)
        body += frame or b""
    return body + index + google_crc32c.value(index).to_bytes(4, "little")


def test_the_index_of_a_file_of_others_is_read_again(tmp_path: Path) -> None:
    prefix = f"file://{tmp_path}/data/"
    (tmp_path / "data").mkdir()
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(tmp_path / "data"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    repo = icefloe.Repository.create(
        str(tmp_path / "repo"), config=config, authorize_virtual_chunk_access={prefix: None}
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(4,), shards=(4,), chunks=(1,), dtype="i4", compressors=None, fill_value=-1
    )
    one, two = (np.array([n], "<i4").tobytes() for n in (1, 2))
    before, after = shard_of([one, two, one, None]), shard_of([None, one, two, one])
    assert len(before) == len(after)
    (tmp_path / "data/shard").write_bytes(before)
    session.store.set_virtual_ref("a/c/0", f"{prefix}shard", offset=0, length=len(before))
    assert [array[n] for n in range(4)] == [1, 2, 1, -1]
    (tmp_path / "data/shard").write_bytes(after)
    assert [array[n] for n in range(4)] == [-1, 1, 2, 1]


def test_an_index_is_not_understood_as_that_of_another_layout() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), NO_INLINE)
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(16,), shards=(16,), chunks=(2,), dtype="i4")
    array[:] = np.arange(16)
    session.commit("data")
    session = repo.writable_session("main")
    assert zarr.open_array(session.store, path="a")[3] == 3
    document = json.loads(sync(session.store.get("a/zarr.json", default_buffer_prototype())).to_bytes())
    document["codecs"][0]["configuration"]["index_location"] = "start"
    sync(session.store.set("a/zarr.json", cpu.Buffer.from_bytes(json.dumps(document).encode())))
    with pytest.raises(icefloe.FormatError, match=r"cannot decode chunk \(0,\) of /a"):
        zarr.open_array(session.store, path="a")[3]


# -- zstd frames of other writers ---------------------------------------------------------------------------------

SKIPPABLE = b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab"


def frame_without_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(content)


def streamed_frame(content: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return (
        stream.compress(content[:5])
        + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + stream.compress(content[5:])
        + stream.flush()
    )


FRAMES: dict[str, Any] = {
    "usual": lambda content: zstandard.ZstdCompressor(level=3).compress(content),
    "best level": lambda content: zstandard.ZstdCompressor(level=22).compress(content),
    "fastest level": lambda content: zstandard.ZstdCompressor(level=-5).compress(content),
    "checksum": lambda content: zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content),
    "no content size": frame_without_size,
    "streamed": streamed_frame,
    "two frames": lambda content: zstandard.compress(content[:7]) + zstandard.compress(content[7:]),
    "two frames without a size": lambda content: frame_without_size(content[:9]) + frame_without_size(content[9:]),
    "skippable frame before": lambda content: SKIPPABLE + zstandard.compress(content),
    "skippable frame after": lambda content: zstandard.compress(content) + SKIPPABLE,
    "more bytes after": lambda content: zstandard.compress(content) + b"more",
    "too little content": lambda content: zstandard.compress(content[:-4]),
    "too much content": lambda content: zstandard.compress(content + b"\0" * 4),
    "no content": lambda content: zstandard.compress(b""),
    "nothing": lambda content: b"",
    "no frame": lambda content: b"these bytes are no frame",
    "cut off": lambda content: zstandard.compress(content)[:-2],
    "wrong checksum": lambda content: zstandard.ZstdCompressor(write_checksum=True).compress(content)[:-1] + b"\0",
    "claims a petabyte": lambda content: (
        zstandard.MAGIC_NUMBER.to_bytes(4, "little") + b"\xe0" + (1 << 50).to_bytes(8, "little")
    ),
}


@pytest.mark.long
@given(
    kinds=st.lists(st.sampled_from(sorted(FRAMES)), min_size=4, max_size=4),
    usual=st.integers(0, 4),
    sharded=st.booleans(),
    checksum=st.booleans(),
    dtype=st.sampled_from(["<f4", ">i8", "datetime64[s]", "bool"]),
    decoded_bytes=st.sampled_from([1, 100, 1 << 20]),
)
@example(["too little content", "too much content"] * 2, 0, True, False, "<f4", 1 << 20)
@settings(max_examples=150, deadline=None)
def test_frames_of_other_writers_are_read_or_refused_as_zarr_does(
    kinds: list[str], usual: int, sharded: bool, checksum: bool, dtype: str, decoded_bytes: int
) -> None:
    kinds = ["usual"] * usual + kinds[usual:]
    if sharded:
        # Zarr 3.1 refuses a chunk without bytes in a whole shard, but reads it as missing in a part of a shard.
        kinds = ["no content" if kind == "nothing" else kind for kind in kinds]
    values = (np.arange(24) % 7).astype(dtype)
    endian = "big" if dtype.startswith(">") else "little"
    layout: dict[str, Any] = {
        "shape": (24,),
        "chunks": (6,),
        "dtype": dtype,
        "compressors": [ZstdCodec(level=1, checksum=checksum)],
    }
    if values.dtype.itemsize > 1:
        layout["serializer"] = BytesCodec(endian=endian)
    if sharded:
        layout["shards"] = (24,)
    contents = [values[first : first + 6].tobytes() for first in range(0, 24, 6)]
    bodies = [FRAMES[kind](content) for kind, content in zip(kinds, contents, strict=True)]
    keys = {"c/0": shard_of(bodies)} if sharded else {f"c/{n}": body for n, body in enumerate(bodies)}
    session = icefloe.Repository.create(icefloe.in_memory_storage(), NO_INLINE).writable_session("main")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_coders, "_DECODED_BYTES", decoded_bytes)
        for store in (MemoryStore(), session.store):
            with icefloe.fast_pipeline():
                array = zarr.create_array(store, **layout)
            for key, body in keys.items():
                sync(store.set(key, cpu.Buffer.from_bytes(body)))
            for selection in (slice(None), slice(6, 12), 0, slice(5, 20), 23):
                try:
                    found.append(np.asarray(array[selection]).tobytes())
                except MemoryError:
                    raise
                except Exception:
                    found.append(None)
    assert type(array.async_array.codec_pipeline) is BatchedChunkPipeline
    half = len(found) // 2
    assert found[:half] == found[half:]


LEVELS = [-131072, -7, -1, 0, 1, 3, 9, 19, 22]


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shards", [None, (8_000,)])
def test_frames_of_any_level_have_the_bytes_that_zarr_writes(level: int, checksum: bool, shards: Any) -> None:
    values = np.random.default_rng(1).integers(0, 50, 24_000).cumsum().astype("i4")
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    contents = []
    for store in (MemoryStore(), session.store):
        with icefloe.fast_pipeline():
            array = zarr.create_array(
                store,
                shape=values.shape,
                chunks=(4_000,),
                shards=shards,
                dtype="i4",
                compressors=[ZstdCodec(level=level, checksum=checksum)],
            )
        array[:] = values
        contents.append(sync(_contents(store)))
        np.testing.assert_array_equal(array[:], values)
    assert contents[0] == contents[1]


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("codecs", ["zstd", "plain", "transposed", "summed"])
@given(
    data=st.data(),
    dtype=st.sampled_from(["u1", ">i2", "<f4", "f8", "c16", "bool"]),
    location=st.sampled_from(["start", "end"]),
)
@settings(max_examples=20, deadline=None)
def test_whole_shards_have_the_bytes_that_zarr_writes(
    codecs: str, checksum: bool, data: st.DataObject, dtype: str, location: Any
) -> None:
    """With empty chunks, at the edge of an array, with several rounds and threads."""
    grid = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    chunk = [data.draw(st.integers(1, 4)) for _ in grid]
    shard = [n * c for n, c in zip(grid, chunk, strict=True)]
    shape = [data.draw(st.integers(1, 2 * n)) for n in shard]
    bytes_codec = BytesCodec(endian="big" if dtype.startswith(">") else "little")
    zstd = ZstdCodec(level=1, checksum=checksum)
    inner: dict[str, list[Any]] = {
        "zstd": [bytes_codec, zstd],
        "plain": [bytes_codec],
        "transposed": [TransposeCodec(order=tuple(reversed(range(len(grid))))), bytes_codec, zstd],
        "summed": [bytes_codec, zstd, Crc32cCodec()],
    }
    serializer = ShardingCodec(chunk_shape=tuple(chunk), codecs=inner[codecs], index_location=location)
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = random.integers(0, 2, shape).astype(dtype)
    for _ in range(data.draw(st.integers(0, 3))):  # chunks of nothing but the fill value
        values[tuple(slice(random.integers(0, n), None) for n in shape)] = 0
    empty = data.draw(st.booleans())
    order = data.draw(st.sampled_from("CF"))
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    stores = (MemoryStore(), session.store)
    contents: list[dict[str, bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec_pipeline, "_INLINE_BYTES", data.draw(st.sampled_from([10, 1 << 20])))
        patch.setattr(codec_pipeline, "_ROUND_BYTES", data.draw(st.sampled_from([100, 8 << 20])))
        patch.setattr(chunk_coders, "_DECODED_BYTES", data.draw(st.sampled_from([1, 64, 1 << 20])))
        for store in stores:
            with icefloe.fast_pipeline():
                array = zarr.create_array(
                    store,
                    shape=shape,
                    chunks=tuple(shard),
                    dtype=dtype,
                    serializer=serializer,
                    compressors=None,
                    fill_value=0,
                    config={"write_empty_chunks": empty, "order": order},
                )
            array[...] = values
            first = tuple(slice(0, n // 2 + 1) for n in shape)
            array[first] = values[first][::-1]
            expected = values.copy()
            expected[first] = values[first][::-1]
            np.testing.assert_array_equal(array[...], expected)
            np.testing.assert_array_equal(array[first], expected[first])
            contents.append(sync(_contents(store)))
    assert contents[0] == contents[1]


async def _contents(store: Any) -> dict[str, bytes]:
    prototype = default_buffer_prototype()
    return {key: (await store.get(key, prototype)).to_bytes() async for key in store.list() if "zarr.json" not in key}


@pytest.mark.parametrize("places", [(0, 8, 16, 24), (24, 0, 8, 16), (8, 8, 8, 8), (0, 16, 8, 16), (4, 12, 0, 20)])
def test_chunks_of_a_shard_may_share_their_bytes_or_have_gaps(places: tuple[int, ...]) -> None:
    """Other writers may store equal chunks once, or leave bytes unused."""
    body = np.arange(8, dtype="<i4").tobytes()
    index = b"".join(first.to_bytes(8, "little") + (8).to_bytes(8, "little") for first in places)
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(8,), shards=(8,), chunks=(2,), dtype="<i4", compressors=None
    )
    shard = body + index + google_crc32c.value(index).to_bytes(4, "little")
    sync(session.store.set("a/c/0", cpu.Buffer.from_bytes(shard)))
    expected = np.concatenate([np.frombuffer(body, "<i4", 2, first) for first in places])
    np.testing.assert_array_equal(array[:], expected)
    assert [array[place] for place in range(8)] == expected.tolist()
