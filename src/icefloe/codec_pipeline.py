"""A Zarr codec pipeline that reads and writes batches of chunks at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs.sharding import ShardingCodec
from zarr.core import codec_pipeline as zarrs
from zarr.core.buffer import NDBuffer, cpu
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.blocking import gather_each
from icefloe.chunk_coders import (
    ChunkCoder,
    Item,
    ShardCoder,
    ShardPart,
    chunk_bytes,
    fill_value,
    is_synchronous,
    shard_coder,
)
from icefloe.chunks.reader import NOT_IN_MEMORY, LocatedChunks, ShardRanges
from icefloe.errors import IcefloeError, UnsupportedError
from icefloe.model.chunk_table import batches_up_to
from icefloe.storage.contract import Buffer as Bytes
from icefloe.storage.requests import Threads
from icefloe.store import IcechunkStore

T = TypeVar("T")

_ZARRS_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_ROUND_BYTES = 8 << 20
"""Chunks are fetched and decoded in rounds of this many bytes, so that a large read holds few encoded chunks."""
_ROUNDS = 4
"""Concurrent rounds: some wait for storage while others compute."""
_WHOLE_SHARD_SHARE = 0.5
"""From this share of its chunks on, a shard is fetched whole: one request instead of one for the index and others."""
_INLINE_BYTES = 1 << 20
"""Up to here, handing the work to a thread takes longer than the work."""
_LARGE_CHUNK_BYTES = 64 << 10
_READ_ALONE_BYTES = 256 << 10
"""Smaller chunks are read together with their neighbours in a pack."""
_WORKERS = min(8, os.cpu_count() or 1)
_CODERS = Threads("codecs", _WORKERS)


@dataclass(frozen=True)
class NamingPipeline(zarrs.BatchedCodecPipeline):
    """Zarr's pipeline, except that the error for a chunk of ours that cannot be decoded names the chunk."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Any:
        """The pipeline for an array: this one for our stores, zarr's own for others."""
        if isinstance(store, IcechunkStore):
            raise NotImplementedError("zarr builds the pipeline from the codecs")
        ours: Any = zarr.core.array.create_codec_pipeline(array_metadata)
        return zarrs.BatchedCodecPipeline(
            array_array_codecs=ours.array_array_codecs,
            array_bytes_codec=ours.array_bytes_codec,
            bytes_bytes_codecs=ours.bytes_bytes_codecs,
            batch_size=ours.batch_size,
        )

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks. Returns for each chunk whether it exists."""
        batch = list(batch_info)
        try:
            return await super().read(batch, out, drop_axes)
        except Exception as error:
            await self._explain(batch, error)
            raise

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        try:
            await super().write(batch, value, drop_axes)
        except Exception as error:
            await self._explain([item for item in batch if not item[4]], error)
            raise

    async def _explain(self, batch: Sequence[Item], error: Exception) -> None:
        """After a failure: raise the error that names the first chunk which cannot be decoded; return if all can."""
        if isinstance(error, IcefloeError | MemoryError):
            return
        for place, spec, *_ in batch:
            if not isinstance(place, StorePath) or not isinstance(place.store, IcechunkStore):
                return
            body = await place.get(prototype=spec.prototype)
            try:
                list(await self.decode([(body, spec)]))
            except Exception as found:
                located = await place.store.session.keyspace.locate([place.path])
                if located is None:
                    return
                raise located.undecodable(0, found) from found


@dataclass(frozen=True)
class BatchedChunkPipeline(NamingPipeline):
    """Zarr's pipeline, except that chunks in a session are located, fetched, decoded and written in bulk.

    Whatever it does not know is left to zarr: other stores, shards in shards, codecs without a synchronous form, and
    buffers outside of main memory.
    """

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks. Returns for each chunk whether it exists."""
        batch = list(batch_info)
        store = self._store_of(batch, out)
        coder = None if store is None else self._coder_of(batch)
        if store is not None and coder is not None and len(batch) == 1:
            read_one = _read_one if isinstance(coder, ChunkCoder) else _read_one_shard
            status = read_one(store, coder, batch[0], out, drop_axes)  # type: ignore[arg-type]
            if status is not None:
                return (status,)
        located = None
        if store is not None and coder is not None:
            located = await store.session.keyspace.locate([item[0].path for item in batch])
        if located is None or coder is None:
            return await super().read(batch, out, drop_axes)
        target = out.as_ndarray_like()
        if isinstance(coder, ShardCoder):
            await _read_shards(coder, located, batch, target, drop_axes)
            return _statuses(located)

        async def read_round(first: int, end: int) -> None:
            present = first + np.flatnonzero(located.lengths[first:end] >= 0)
            if len(present) == end - first and not len(
                await _decode_where_read(located, present, coder.is_plain, scatter)
            ):
                return
            bodies = await located.fetch(first, end)
            size = int(lengths[first:end].sum())
            decoded = size if coder.is_plain else max(size, chunk_bytes(batch[first][1]) * (end - first))
            await _spread(list(enumerate(bodies, first)), coder.is_plain, decoded, scatter)

        def scatter(part: Sequence[tuple[int, Bytes | None]]) -> None:
            for i, body in part:
                _, spec, chunk_selection, out_selection, _ = batch[i]
                if body is None:
                    target[out_selection] = fill_value(spec)
                    continue
                try:
                    chunk = coder.decode(body, spec)
                except MemoryError:
                    raise
                except Exception as error:
                    raise located.undecodable(i, error) from error
                piece = chunk[chunk_selection]
                target[out_selection] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece

        lengths = np.maximum(located.lengths, 0)
        await _in_rounds(lengths, read_round)
        return _statuses(located)

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        store = self._store_of(batch, value)
        coder = None if store is None else self._coder_of(batch)
        if store is None or coder is None:
            return await super().write(batch, value, drop_axes)
        keys = [item[0].path for item in batch]
        keyspace = store.session.keyspace
        if keyspace.find_chunks(keys) is None or len(set(keys)) < len(keys):
            return await super().write(batch, value, drop_axes)
        store._check_writable()

        async def write_round(first: int, end: int) -> None:
            before = await _existing(keyspace, batch[first:end], first)
            work = [(i, before.get(i), item) for i, item in enumerate(batch[first:end], start=first)]
            encoded: dict[int, Bytes | None] = {}
            try:
                await _spread(work, coder.is_plain, int(sizes[first:end].sum()), lambda part: encode(part, encoded))
            except Exception as error:
                await self._explain([batch[i] for i in before], error)
                raise
            filled = {i: data for i, data in sorted(encoded.items()) if data is not None}
            await keyspace.write_chunks([keys[i] for i in filled], list(filled.values()))
            await keyspace.delete_chunks([keys[i] for i in sorted(encoded.keys() - filled.keys())])

        def encode(part: Sequence[Any], encoded: dict[int, Bytes | None]) -> None:
            for i, body, item in part:
                encoded[i] = coder.encode(body, item, value, drop_axes)

        sizes = np.array([chunk_bytes(item[1]) for item in batch], dtype=np.int64)
        await _in_rounds(sizes, write_round)
        return None

    def _store_of(self, batch: Sequence[Item], buffer: NDBuffer) -> IcechunkStore | None:
        """The store of ours that all chunks are in; None when zarr should do the work."""
        if not batch:
            return None
        place, spec = batch[0][0], batch[0][1]
        if type(place) is not StorePath or not isinstance(place.store, IcechunkStore):
            return None
        store = place.store
        in_memory = isinstance(buffer.as_ndarray_like(), np.ndarray) and spec.prototype.buffer is cpu.Buffer
        if not in_memory or len(batch) == 1:
            return store if in_memory else None
        return store if all(type(item[0]) is StorePath and item[0].store is store for item in batch) else None

    @functools.cached_property
    def _chunk_coder(self) -> ChunkCoder | None:
        """The coder of an array without shards. It is the same for all chunks, and small chunks are read often."""
        return ChunkCoder.of_pipeline(self) if all(map(is_synchronous, self)) else None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_chunk_coder", None)
        return state

    def _coder_of(self, batch: Sequence[Item]) -> ChunkCoder | ShardCoder | None:
        """The coder of the array. None if only zarr can call the codecs.

        That is the case for codecs that need an event loop, shards in shards, codecs around shards, and shards of
        different shapes.
        """
        codec: Any = self.array_bytes_codec
        if type(codec) is not ShardingCodec:
            return self._chunk_coder
        if not batch or self.array_array_codecs or self.bytes_bytes_codecs:
            return None
        spec = batch[0][1]
        if not all(map(is_synchronous, (*codec.codecs, *codec.index_codecs))):
            return None
        if not all(item[1].shape == spec.shape for item in batch):
            return None
        try:
            return shard_coder(codec, spec)
        except TypeError:  # a fill value that cannot be hashed
            return ShardCoder(codec, spec)


def _read_one(
    store: IcechunkStore, coder: ChunkCoder, item: Item, out: NDBuffer, drop_axes: tuple[int, ...]
) -> Any | None:
    """Fill `out` from a chunk that is in memory or in a small local file, without a turn of the event loop.

    None if it is elsewhere, or cannot be decoded: then the other way names the chunk in its error.
    """
    place, spec, chunk_selection, out_selection, _ = item
    body = store.session.keyspace.fetch_now(place.path)
    if body is NOT_IN_MEMORY or (body is not None and len(body) > _INLINE_BYTES):
        return None
    target: Any = out.as_ndarray_like()
    if body is None:
        target[out_selection] = fill_value(spec)
        return {"status": "missing"}
    try:
        chunk = coder.decode(body, spec)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - raised with the name of the chunk by the other way
        return None
    piece = chunk[chunk_selection]
    target[out_selection] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece
    return {"status": "present"}


def _read_one_shard(
    store: IcechunkStore, coder: ShardCoder, item: Item, out: NDBuffer, drop_axes: tuple[int, ...]
) -> Any | None:
    """Fill `out` from one chunk of a shard as `_read_one` does. None if the other way has to be taken."""
    place, spec, selection, out_selection, _ = item
    part = coder.part(selection)
    if len(part.numbers) != 1 or coder.box_bytes(part) > _INLINE_BYTES:
        return None
    located = store.session.keyspace.locate_now(place.path)
    if located is NOT_IN_MEMORY:
        return None
    target: Any = out.as_ndarray_like()
    if located is None:
        target[out_selection] = fill_value(spec)
        return {"status": "missing"}
    length = located.length
    index = located.find_index(coder.layout)
    try:
        if index is None:
            first = 0 if coder.index_first else length - coder.index_bytes
            data = located.fetch_now(first, first + coder.index_bytes) if first >= 0 else NOT_IN_MEMORY
            if data is NOT_IN_MEMORY:
                return None
            index = coder.ranges(data, length)
            located.keep_index(coder.layout, index)
        number = int(part.numbers[0])
        first, size = int(index[0][number]), int(index[1][number])
        body = located.fetch_now(first, first + size) if size >= 0 else None
        if body is NOT_IN_MEMORY:
            return None
        box = coder.assemble(part, [body])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - raised with the name of the chunk by the other way
        return None
    piece = box[part.selection]
    target[out_selection] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece
    return {"status": "present"}


def _statuses(located: LocatedChunks) -> tuple[Any, ...]:
    return tuple({"status": "missing" if length < 0 else "present"} for length in located.lengths.tolist())


async def _read_shards(
    coder: ShardCoder, located: LocatedChunks, batch: Sequence[Item], target: Any, drop_axes: tuple[int, ...]
) -> None:
    """Fill `target` from shards.

    A shard of which half or more is needed is fetched whole. Of the others, the indexes that were not read before are
    fetched together, and then the ranges of the chunks together, so that a read of many shards waits at most twice.
    """
    parts = [coder.part(item[2]) for item in batch]
    shares = np.array([coder.share(part) for part in parts])
    whole = shares >= _WHOLE_SHARD_SHARE
    lengths = np.maximum(located.lengths, 0)
    sizes = np.where(whole, lengths, (lengths * shares).astype(np.int64) + coder.index_bytes)

    async def read_round(first: int, end: int) -> None:
        is_present = located.lengths[first:end] >= 0
        for position in (first + np.flatnonzero(~is_present)).tolist():
            target[batch[position][3]] = fill_value(batch[position][1])
        present = first + np.flatnonzero(is_present)
        at_once, by_index = present[whole[present]], present[~whole[present]]
        at_once = await _decode_where_read(located, at_once, coder.is_plain, scatter)
        indexes = {position: located.find_index(position, coder.layout) for position in by_index.tolist()}
        unknown = np.array([position for position, index in indexes.items() if index is None], np.int64)
        starts = _index_ranges(coder, located, unknown)
        shards, fetched = await gather_each(
            lambda wanted: located.fetch_ranges(*wanted),
            [(at_once, np.zeros(len(at_once), np.int64), lengths[at_once]), (unknown, *starts)],
        )
        for position, data in zip(unknown.tolist(), fetched, strict=True):
            indexes[position] = _decode_index(coder, located, position, data)
        wanted = _wanted_ranges(parts, indexes)
        bodies = iter(await located.fetch_ranges(*wanted.fetched()))
        work: list[tuple[int, Any]] = list(zip(at_once.tolist(), shards, strict=True))
        for position, stored in wanted.stored:
            work.append((position, [next(bodies) if is_stored else None for is_stored in stored]))
        decoded = sum(coder.box_bytes(parts[position]) for position, _ in work)
        await _spread(work, coder.is_plain, decoded, scatter)

    def scatter(share: Sequence[tuple[int, Any]]) -> None:
        for position, data in share:
            part = parts[position]
            out = None if drop_axes else _box_in(target, batch[position][3], part, coder)
            try:
                box = coder.assemble(part, data, out) if isinstance(data, list) else coder.read(data, part, out)
            except MemoryError:
                raise
            except Exception as error:
                raise located.undecodable(position, error) from error
            if out is None:
                piece = box[part.selection]
                target[batch[position][3]] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece

    await _in_rounds(sizes, read_round)


async def _decode_where_read(
    located: LocatedChunks,
    positions: npt.NDArray[np.int64],
    is_plain: bool,
    use: Callable[[Sequence[tuple[int, Bytes]]], None],
) -> npt.NDArray[np.int64]:
    """Read and decode chunks in the same thread, where files are on this machine. Returns the positions that are left.

    The bytes are then still in the cache of the processor, and their memory serves the next chunk.
    """
    sizes = located.lengths[positions]
    size_bytes = int(sizes.sum())
    if size_bytes <= max(_INLINE_BYTES, len(positions) * _READ_ALONE_BYTES) or not located.has_fast_reads:
        return positions
    unread: list[int] = []

    def read(share: Sequence[int]) -> None:
        for position in share:
            data = located.read_in_thread(position)
            if data is None:
                unread.append(position)
            else:
                use([(position, data)])

    await _spread(positions.tolist(), is_plain, size_bytes, read)
    left = np.isin(positions, unread)
    located.note_reads(sizes[~left].tolist())
    return positions[left]


def _box_in(target: Any, selection: Any, part: ShardPart, coder: ShardCoder) -> Any | None:
    """The part of the output that a part of a shard fills, as a view. None if it is not a box of whole chunks."""
    if not part.is_whole_box or not isinstance(selection, tuple):
        return None
    if not all(isinstance(each, slice) for each in selection):
        return None
    view = target[selection]
    return view if view.shape == coder.box_shape(part) else None


def _index_ranges(coder: ShardCoder, located: LocatedChunks, positions: Any) -> tuple[Any, Any]:
    """Where the indexes of shards are."""
    lengths = located.lengths[positions]
    for position in positions[lengths < coder.index_bytes].tolist():
        short = ValueError(f"the shard has {located.lengths[position]} bytes, its index alone {coder.index_bytes}")
        raise located.undecodable(position, short)
    starts = np.zeros(len(positions), np.int64) if coder.index_first else lengths - coder.index_bytes
    return starts, np.full(len(positions), coder.index_bytes, np.int64)


@dataclass(frozen=True, slots=True)
class _WantedRanges:
    """The ranges of the inner chunks that a read needs, shard by shard."""

    stored: list[tuple[int, list[bool]]]
    """The position of each shard, and which of the chunks it needs are in the shard."""
    columns: list[tuple[npt.NDArray[np.int64], ...]]

    def fetched(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Position of the shard, first byte and length of each chunk."""
        empty = np.empty(0, np.int64)
        positions, starts, sizes = zip(*self.columns, strict=True) if self.columns else ((empty,),) * 3
        return np.concatenate(positions), np.concatenate(starts), np.concatenate(sizes)


def _decode_index(coder: ShardCoder, located: LocatedChunks, position: int, data: Bytes) -> ShardRanges:
    """Decode the index of a shard, and remember it."""
    try:
        index = coder.ranges(data, int(located.lengths[position]))
    except Exception as error:
        raise located.undecodable(position, error) from error
    located.keep_index(position, coder.layout, index)
    return index


def _wanted_ranges(parts: Sequence[ShardPart], indexes: Mapping[int, ShardRanges | None]) -> _WantedRanges:
    wanted = _WantedRanges([], [])
    for position, index in indexes.items():
        assert index is not None
        offsets, sizes = index
        numbers = parts[position].numbers
        stored = sizes[numbers] >= 0
        chosen = numbers[stored]
        wanted.stored.append((position, stored.tolist()))
        wanted.columns.append((np.full(len(chosen), position, np.int64), offsets[chosen], sizes[chosen]))
    return wanted


async def _existing(keyspace: Any, batch: Sequence[Item], first: int) -> dict[int, Bytes]:
    """The bytes of the chunks that are written in part, by position."""
    partial = [i for i, item in enumerate(batch) if not item[4]]
    if not partial:
        return {}
    if len(partial) == 1:
        found = keyspace.fetch_now(batch[partial[0]][0].path)
        if found is not NOT_IN_MEMORY:
            return {} if found is None else {first + partial[0]: found}
    located = await keyspace.locate([batch[i][0].path for i in partial])
    if located is None:
        return {}
    bodies = await located.fetch(0, len(partial))
    return {first + i: body for i, body in zip(partial, bodies, strict=True) if body is not None}


async def _in_rounds(sizes: npt.NDArray[np.int64], work: Callable[[int, int], Any]) -> None:
    """Do the work in rounds of about `_ROUND_BYTES`, a few at a time."""
    if len(sizes) == 1:
        await work(0, 1)
        return
    turns = asyncio.Semaphore(_ROUNDS)

    async def one(first: int, end: int) -> None:
        async with turns:
            await work(first, end)

    rounds = list(batches_up_to(_ROUND_BYTES, np.cumsum(sizes)))
    if len(rounds) == 1:
        await work(*rounds[0])
    else:
        await asyncio.gather(*(one(*each) for each in rounds))


async def _spread(work: Sequence[T], is_plain: bool, size_bytes: int, do: Callable[[Sequence[T]], None]) -> None:
    """Do the work here when there is little, else in threads: several, unless it is many tiny copies.

    `size_bytes` is the size of the decoded chunks. A codec takes several times as long for a byte as a copy.
    """
    if size_bytes <= (_INLINE_BYTES if is_plain else _INLINE_BYTES // 2):
        do(work)
        return
    # Copies of a few kilobytes hold Python's lock most of the time: more threads would only wait for one another.
    parts = 1 if is_plain and size_bytes < len(work) * _LARGE_CHUNK_BYTES else min(_WORKERS, len(work))
    edges = np.linspace(0, len(work), parts + 1).astype(int).tolist()
    await asyncio.gather(*(_run(do, work[a:b]) for a, b in pairwise(edges)))


async def _run(do: Callable[[Sequence[T]], None], part: Sequence[T]) -> None:
    await _CODERS.run(lambda: do(part))


PIPELINE = f"{BatchedChunkPipeline.__module__}.{BatchedChunkPipeline.__qualname__}"
PLAIN_PIPELINE = f"{NamingPipeline.__module__}.{NamingPipeline.__qualname__}"
register_pipeline(NamingPipeline)
register_pipeline(BatchedChunkPipeline)


class _Choice:
    """Whether the user has chosen a pipeline."""

    by_default = os.environ.get("ICEFLOE_FAST_PIPELINE", "1").strip().lower() not in ("0", "false", "no", "off")


def enable_fast_pipeline() -> None:
    """Read and write many chunks at once, for arrays of Icefloe stores opened from now on.

    Arrays in other stores are not affected. The function sets `codec_pipeline.path` in the configuration of zarr.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.enable_fast_pipeline()
    """
    zarr.config.set({"codec_pipeline.path": PIPELINE})


def disable_fast_pipeline() -> None:
    """Use zarr's own code for arrays opened from now on. It reads and writes chunk by chunk.

    An error for a chunk that cannot be decoded still contains the name of the chunk.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.disable_fast_pipeline()
    >>> icefloe.enable_fast_pipeline()
    """
    _Choice.by_default = False
    if zarr.config.get("codec_pipeline.path") in (PIPELINE, _ZARRS_DEFAULT):
        zarr.config.set({"codec_pipeline.path": PLAIN_PIPELINE})


def prefer_fast_pipeline() -> None:
    """Use the pipeline unless the user chose another one."""
    if zarr.config.get("codec_pipeline.path") == _ZARRS_DEFAULT:
        zarr.config.set({"codec_pipeline.path": PIPELINE if _Choice.by_default else PLAIN_PIPELINE})


@contextlib.contextmanager
def fast_pipeline() -> Iterator[None]:
    """Like `enable_fast_pipeline`, for arrays opened inside a `with` block.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with icefloe.fast_pipeline(), repo.transaction("main", message="data") as store:
    ...     array = zarr.create_array(store, name="t", shape=3, dtype="f4")
    """
    with zarr.config.set({"codec_pipeline.path": PIPELINE}):
        yield


__all__ = [
    "PIPELINE",
    "BatchedChunkPipeline",
    "disable_fast_pipeline",
    "enable_fast_pipeline",
    "fast_pipeline",
    "prefer_fast_pipeline",
]


def has_variable_grids() -> bool:
    """Whether zarr reads and writes chunks of different lengths, and is asked to."""
    return bool(zarr.config.get("array.rectilinear_chunks", False))


def enable_variable_grids() -> None:
    """Let zarr use chunks of different lengths in this process, for a worker of a job that has them."""
    if not has_variable_grids():
        zarr.config.set({"array.rectilinear_chunks": True})


def check_grid(path: str, document: Mapping[str, Any]) -> None:
    """Refuse an array of the repository whose chunk grid zarr does not read."""
    name = document["chunk_grid"]["name"]
    if name != "regular" and not has_variable_grids():
        text = f"/{path} has the chunk grid {name!r}, which zarr does not use here. {variable_grid_advice()}"
        raise UnsupportedError(text, path=path)


def variable_grid_advice() -> str:
    """What makes zarr use chunks of different lengths."""
    if "rectilinear_chunks" in zarr.config.get("array"):
        return "Set the variable ZARR_ARRAY__RECTILINEAR_CHUNKS=True, also for the workers of Spark"
    return "Use Python 3.12 or newer with a newer zarr"
