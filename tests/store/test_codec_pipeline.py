"""The batched pipeline reads and writes exactly what zarr's own pipeline does."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import BufferPrototype, cpu
from zarr.core.sync import sync
from zarr.storage import MemoryStore
from zarr.testing.strategies import basic_indices, orthogonal_indices

import icefloe
from icefloe import codec_pipeline
from icefloe.codec_pipeline import BatchedChunkPipeline
from icefloe.storage.local import LocalStorage
from icefloe.testing import CountingStorage

NO_INLINE = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


def caching(chunk_bytes: int) -> icefloe.RepositoryConfig:
    """A configuration that caches chunks."""
    return icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0, caching=icefloe.CachingConfig(num_bytes_chunks=chunk_bytes)
    )


DTYPES = ["bool", "int8", "uint16", ">i4", "uint64", "float16", "<f4", ">f8", "complex64", "datetime64[s]"]
DTYPES += ["timedelta64[ms]", "S5", "U3", "string"]
FILLS: dict[str, list[Any]] = {"f": [0.0, -0.0, 1.5, float("nan")], "c": [0j, complex("nan")], "i": [0, 7], "u": [0, 7]}
GZIP = GzipCodec(level=1)


def compressors(ndim: int) -> list[dict[str, Any]]:
    big = {"serializer": BytesCodec(endian="big")}
    return [
        {"compressors": None},
        {"compressors": None, **big},
        {"compressors": [ZstdCodec()]},
        {"compressors": [GZIP, Crc32cCodec()]},
        {"compressors": [BloscCodec(cname="lz4")]},
        {"compressors": None, "filters": [TransposeCodec(order=tuple(reversed(range(ndim))))]},
        {"compressors": [Crc32cCodec()], "filters": [TransposeCodec(order=tuple(reversed(range(ndim))))], **big},
    ]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The arguments of `create_array`, and data for all of the array."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9))
    chunks = tuple(draw(st.integers(1, max(1, n))) for n in shape)
    name = draw(st.sampled_from(DTYPES))
    options = draw(st.sampled_from(compressors(len(shape))))
    if name in ("string", "S5", "U3", "bool", "int8"):
        options = {key: value for key, value in options.items() if key != "serializer"}
    layout: dict[str, Any] = {"shape": shape, "chunks": chunks, "dtype": name, **options}
    if draw(st.integers(0, 2)) == 0:
        layout["shards"] = tuple(c * draw(st.integers(1, 4)) for c in chunks)
    layout["config"] = {"write_empty_chunks": draw(st.booleans()), "order": draw(st.sampled_from("CF"))}
    if name == "string":
        # Zarr 3.1 itself mixes up the elements of text chunks in Fortran order.
        layout["config"]["order"] = "C"
        count = int(np.prod(shape))
        texts = draw(st.lists(st.text(max_size=3), min_size=count, max_size=count))
        return layout, np.array(texts, dtype=object).reshape(shape)
    dtype = np.dtype(name)
    fills = FILLS.get(dtype.kind)
    if fills is not None:
        layout["fill_value"] = draw(st.sampled_from(fills))
    fill = np.zeros((), dtype)[()] if "fill_value" not in layout else layout["fill_value"]
    data = draw(npst.arrays(dtype, shape, fill=st.just(None).map(lambda _: fill)))
    return layout, data


def same(left: Any, right: Any) -> None:
    left, right = np.asarray(left), np.asarray(right)
    assert left.dtype == right.dtype and left.shape == right.shape
    if left.dtype.kind in "fc":
        assert left.tobytes() == right.tobytes()
    else:
        np.testing.assert_array_equal(left, right)


def stored(store: Any) -> dict[str, bytes]:
    async def collect() -> dict[str, bytes]:
        prototype = zarr.core.buffer.default_buffer_prototype()
        return {key: (await store.get(key, prototype)).to_bytes() async for key in store.list()}

    return sync(collect())


@pytest.mark.long
@given(layout=layouts(), data=st.data(), round_bytes=st.sampled_from([40, 32 << 20]), in_files=st.booleans())
@settings(max_examples=120, deadline=None)
def test_it_writes_the_same_bytes_and_reads_the_same_values_as_zarrs_own(
    layout: Any, data: Any, round_bytes: int, in_files: bool
) -> None:
    options, values = layout
    plain_store = MemoryStore()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        storage = icefloe.local_filesystem_storage(folder) if in_files else icefloe.in_memory_storage()
        session = icefloe.Repository.create(storage, NO_INLINE).writable_session("main")
        patch.setattr(codec_pipeline, "_ROUND_BYTES", round_bytes)
        patch.setattr(codec_pipeline, "_INLINE_BYTES", 30)
        patch.setattr(codec_pipeline, "_READ_ALONE_BYTES", 0)
        plain = zarr.create_array(plain_store, **options)
        with icefloe.fast_pipeline():
            fast = zarr.create_array(session.store, **options)
        assert type(fast._async_array.codec_pipeline) is BatchedChunkPipeline
        assert type(plain._async_array.codec_pipeline) is not BatchedChunkPipeline
        for array in (plain, fast):
            array[...] = values
        for _ in range(data.draw(st.integers(0, 3))):
            if data.draw(st.booleans()):
                where = data.draw(basic_indices(shape=values.shape))
                change = data.draw(st.sampled_from([values, values[::-1], np.zeros_like(values)]))[where]
                change = data.draw(st.sampled_from([change, values.reshape(-1)[0]]))
                plain[where] = change
                fast[where] = change
                same(plain[where], fast[where])
            else:
                where, _ = data.draw(orthogonal_indices(shape=values.shape))
                same(plain.oindex[where], fast.oindex[where])
                if "shards" not in options:  # zarr 3.1 itself cannot write such selections into shards
                    plain.oindex[where] = np.flip(plain.oindex[where])
                    fast.oindex[where] = np.flip(fast.oindex[where])
            same(plain[...], fast[...])
        ours, theirs = stored(session.store), stored(plain_store)
        assert ours.keys() == theirs.keys()
        assert ours == theirs or GZIP in (options["compressors"] or ())  # gzip notes the time of day
        if session.has_uncommitted_changes:
            session.commit("written")
        with icefloe.fast_pipeline():
            again, plain = (zarr.open_array(store, mode="r") for store in (session.store, plain_store))
        same(plain[...], again[...])
        mask = values == values.reshape(-1)[0] if values.dtype != object else np.ones(values.shape, dtype=bool)
        same(plain.vindex[mask], again.vindex[mask])


def test_missing_chunks_are_told_apart_and_ranges_of_large_arrays_fetch_no_more_than_they_need() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    with icefloe.fast_pipeline():
        array = zarr.create_array(session.store, shape=(100, 10), chunks=(1, 10), dtype="i4", fill_value=-1)
        array[10:20] = 7
    assert (array[5:25].max(axis=1) == [-1] * 5 + [7] * 10 + [-1] * 5).all()
    assert session.chunk_type("/", [10, 0]) is not icefloe.ChunkType.UNINITIALIZED
    assert session.chunk_type("/", [9, 0]) is icefloe.ChunkType.UNINITIALIZED


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_part_of_a_shard_is_its_index_and_the_ranges_of_the_chunks_it_needs(location: Any) -> None:
    storage = CountingStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage)
    values = np.arange(8 * 1024 * 1024, dtype="u4").reshape(8, 1024, 1024)
    with repo.transaction("main", message="shards") as store:
        array = zarr.create_array(
            store,
            name="a",
            shape=values.shape,
            chunks=(1, 1024, 1024),
            dtype="u4",
            compressors=None,
            serializer=ShardingCodec(chunk_shape=(1, 32, 32), codecs=[BytesCodec()], index_location=location),
        )
        array[:] = values
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    _ = array[0, 0, 0]
    shard_bytes = 1024 * 1024 * 4 + 16 * 1024 + 4
    for where, chunks in [((0, 5, 5), 1), ((slice(0, 4), 40, 40), 4), ((3, slice(0, 32), slice(0, 64)), 2)]:
        before = storage.counts.total
        np.testing.assert_array_equal(array[where], values[where])
        shards = 4 if isinstance(where[0], slice) else 1
        spent = storage.counts.total - before
        assert spent.received_bytes < shards * shard_bytes / 8
        assert spent.requests <= shards + chunks
    before = storage.counts.total
    np.testing.assert_array_equal(array[1], values[1])
    assert storage.counts.total.requests - before.requests <= 2, "a whole shard is not read by its index"


def test_a_write_into_a_shard_keeps_the_bytes_of_the_other_chunks() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    array = zarr.create_array(session.store, shape=(64,), chunks=(4,), shards=(32,), dtype="i4", fill_value=-1)
    array[:30] = np.arange(30)
    (first, second) = (stored(session.store)[f"c/{n}"] if n == 0 else None for n in range(2))
    array[5] = 500
    assert second is None and "c/1" not in stored(session.store)
    expected = np.r_[np.arange(30), [-1] * 34]
    expected[5] = 500
    np.testing.assert_array_equal(array[:], expected)
    after = stored(session.store)["c/0"]
    assert first is not None and after != first
    array[4:8] = -1
    array[:4] = -1
    array[8:30] = -1
    assert "c/0" not in stored(session.store), "a shard without chunks is not stored"


def test_arrays_in_other_stores_keep_zarrs_pipeline_and_pickle_without_ours() -> None:
    with icefloe.fast_pipeline():
        array = zarr.create_array(MemoryStore(), shape=(8,), chunks=(2,), dtype="i4")
        array[:] = 3
    assert type(array._async_array.codec_pipeline).__module__.startswith("zarr.")
    assert b"icefloe" not in pickle.dumps(array._async_array.codec_pipeline)


def test_it_is_on_unless_somebody_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    with zarr.config.set({"codec_pipeline.path": own}):
        monkeypatch.setattr(codec_pipeline._Choice, "by_default", True)
        assert session.store is not None and zarr.config.get("codec_pipeline.path") == codec_pipeline.PIPELINE
        icefloe.disable_fast_pipeline()
        assert session.store is not None and zarr.config.get("codec_pipeline.path") == codec_pipeline.PLAIN_PIPELINE
        icefloe.enable_fast_pipeline()
        assert zarr.config.get("codec_pipeline.path") == codec_pipeline.PIPELINE
        monkeypatch.setattr(codec_pipeline._Choice, "by_default", True)
    with zarr.config.set({"codec_pipeline.path": "some.other.Pipeline"}):
        assert session.store is not None and zarr.config.get("codec_pipeline.path") == "some.other.Pipeline"


def test_a_read_only_store_refuses_batches_too() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    with icefloe.fast_pipeline():
        zarr.create_array(session.store, shape=(100,), chunks=(1,), dtype="i4")
        session.commit("made")
        array = zarr.open_array(session.store)
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 1


def test_a_user_may_change_an_array_after_writing_it() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    values = np.arange(64 * 1024, dtype="i4").reshape(16, 4096)
    with icefloe.fast_pipeline():
        array = zarr.create_array(session.store, shape=values.shape, chunks=(1, 4096), dtype="i4", compressors=None)
    array[:] = values
    kept = values.copy()
    values[:] = -1
    np.testing.assert_array_equal(array[:], kept)
    session.commit("written")
    np.testing.assert_array_equal(zarr.open_array(session.store)[:], kept)


def test_text_in_any_memory_order_comes_back_as_it_was() -> None:
    values = np.array([[f"{i}{j}" for j in range(6)] for i in range(6)], dtype=object)
    for order, written in [(o, w) for o in "CF" for w in (values, np.asfortranarray(values))]:
        session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        with icefloe.fast_pipeline():
            array = zarr.create_array(
                session.store, shape=(6, 6), chunks=(2, 2), dtype="string", config={"order": order}
            )
        array[...] = written
        np.testing.assert_array_equal(array[...], values)


async def test_several_reads_at_once_share_nothing_but_the_store() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    with icefloe.fast_pipeline():
        group = zarr.create_group(session.store)
        arrays = [group.create_array(f"a{n}", shape=(200,), chunks=(10,), dtype="i8") for n in range(4)]
    await asyncio.gather(*(a.async_array.setitem(slice(None), np.arange(200) + n) for n, a in enumerate(arrays)))
    found = await asyncio.gather(*(a.async_array.getitem(slice(None)) for a in arrays))
    for n, values in enumerate(found):
        np.testing.assert_array_equal(values, np.arange(200) + n)


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", ["dataset", "store", "repository", "icechunk1", "icechunk2"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_lone_chunk_of_a_local_file_is_read_without_a_request_and_is_the_same(
    tmp_path: Path, generation: str, packed: bool, cache_bytes: int
) -> None:
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=50,
        chunk_packing=icefloe.ChunkPackingConfig(enabled=packed),
        caching=icefloe.CachingConfig(num_bytes_chunks=cache_bytes),
    )
    values = np.arange(1, 601, dtype="i4").reshape(60, 10)
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    session = icefloe.Repository.create(storage, config, spec_version=generation).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(70, 10), chunks=(2, 10), dtype="i4", fill_value=-1)
    array[:60] = values
    small = zarr.create_array(session.store, name="b", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    small[:2] = 5
    expected = np.concatenate([values, np.full((10, 10), -1, dtype="i4")])
    rows = np.random.default_rng(1).permutation(70).tolist()
    for row in rows:
        same(array[row], expected[row])  # some of them wait for their pack
    session.commit("data")
    reader = icefloe.Repository.open(storage, config).readonly_session("main")
    array = zarr.open_array(reader.store, path="a", mode="r")
    for row in [*rows, *range(70)]:
        same(array[row], expected[row])
        same(array[row, 3:5], expected[row, 3:5])
    small = zarr.open_array(reader.store, path="b", mode="r")
    assert [small[index] for index in range(4)] == [5, 5, 0, 0]
    writer = icefloe.Repository.open(storage, config).writable_session("main")
    array = zarr.open_array(writer.store, path="a", mode="r+")
    array[7, 2], expected[7, 2] = 1000, 1000
    array[8:10], expected[8:10] = -1, -1
    for row in rows:
        same(array[row], expected[row])


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_lone_chunk_that_cannot_be_read_is_named(tmp_path: Path, damage: str) -> None:
    repo = icefloe.Repository.create(str(tmp_path))
    with repo.transaction("main", message="data") as store:
        values = np.random.default_rng(1).integers(0, 255, (4, 2000), dtype="u1")
        zarr.create_array(store, name="a", shape=values.shape, chunks=(1, 2000), dtype="u1", compressors=None)[:] = (
            values
        )
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    same(array[1], values[1])
    (file,) = (tmp_path / "chunks").iterdir()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(icefloe.FormatError, match=r"chunk .*3.* of /a"):
        array[3]


LARGE = {
    "chunks": {"chunks": (1, 1 << 20)},
    "compressed": {"chunks": (1, 1 << 20), "compressors": [ZstdCodec(level=1)]},
    "shards": {"shards": (1, 1 << 20), "chunks": (1, 1 << 18)},
}
"""Arrays whose chunks are read in the thread that decodes them."""


def large_array(folder: Path, options: Any, config: icefloe.RepositoryConfig = NO_INLINE) -> tuple[Any, Any]:
    """An array of four large chunks in local files, opened for reading, and its values."""
    repo = icefloe.Repository.create(str(folder), config)
    values = np.random.default_rng(1).integers(0, 255, (4, 1 << 20), dtype="u1")
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, **{"name": "a", "shape": values.shape, "dtype": "u1", "compressors": None, **options})[
            :
        ] = values
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r"), values


@pytest.mark.parametrize("cache_bytes", [0, 100 << 20])
@pytest.mark.parametrize("options", LARGE.values(), ids=LARGE)
def test_large_chunks_of_local_files_are_read_in_the_threads_that_decode_them(
    tmp_path: Path, options: Any, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(self: LocalStorage, key: str, start: int, end: int) -> bytes | None:
        read.append(key)
        return own(self, key, start, end)

    own = LocalStorage.read_in_thread
    monkeypatch.setattr(LocalStorage, "read_in_thread", count)
    array, values = large_array(tmp_path, options, caching(cache_bytes))
    same(array[:], values)
    assert len(read) == (0 if cache_bytes else 4), "cached chunks are requested, so that the next read finds them"
    same(array[1:3], values[1:3])


@pytest.mark.parametrize("damage", ["gone", "short"])
@pytest.mark.parametrize("options", LARGE.values(), ids=LARGE)
def test_a_large_chunk_that_cannot_be_read_is_named(tmp_path: Path, options: Any, damage: str) -> None:
    array, values = large_array(tmp_path, options)
    same(array[:], values)
    file = sorted((tmp_path / "chunks").iterdir())[2]
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(icefloe.FormatError, match=rf"{file.name}.*/a|/a.*{file.name}"):
        array[:]


def test_the_large_chunks_of_a_slow_folder_are_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, values = large_array(tmp_path, LARGE["chunks"])
    monkeypatch.setattr(LocalStorage, "has_fast_reads", False)
    monkeypatch.setattr(LocalStorage, "read_in_thread", None)
    same(array[:], values)


class _OtherBuffer(cpu.NDBuffer):
    """A kind of buffer that a reader may ask for. It notes what was decoded into it."""

    made = 0

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        _OtherBuffer.made += 1


def test_the_codecs_of_an_array_are_remembered_but_not_what_a_reader_asked_for(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path)
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="t", shape=(6, 4), chunks=(1, 4), dtype="i4", compressors=[GZIP])[:] = [
            [5] * 4
        ] * 6
    array = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")
    other = BufferPrototype(buffer=cpu.Buffer, nd_buffer=_OtherBuffer)
    counts = []
    for prototype in (None, other, None, other):
        _OtherBuffer.made = 0
        assert np.asarray(array.get_basic_selection((2, slice(None)), prototype=prototype)).tolist() == [5] * 4
        counts.append(_OtherBuffer.made)
    assert counts[0] == counts[2] == 0
    assert counts[1] == counts[3] > 1, "the output, and the chunk that was decoded"


def test_a_pipeline_is_pickled_without_the_codecs_that_it_remembers(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path)
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="t", shape=(6, 4), chunks=(1, 4), dtype="i4")[:] = 5
    array = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")
    pipeline: Any = array._async_array.codec_pipeline
    before = pickle.dumps(pipeline)
    assert array[3].tolist() == [5] * 4  # type: ignore[union-attr]
    assert pickle.dumps(pipeline) == before
    copied: Any = pickle.loads(pickle.dumps(array))
    assert copied._async_array.codec_pipeline == pipeline
    assert copied[3].tolist() == [5] * 4
