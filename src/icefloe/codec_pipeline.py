"""A Zarr codec pipeline that reads and writes whole batches of chunks at once where the store is one of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core import codec_pipeline as zarrs
from zarr.core.buffer import NDBuffer, cpu
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.chunk_coder import ChunkCoder, Item, chunk_bytes, fill_value, is_synchronous
from icefloe.errors import IcefloeError
from icefloe.model.runs import runs_up_to
from icefloe.storage.contract import Buffer as Bytes
from icefloe.storage.threads import Threads
from icefloe.store import IcechunkStore

T = TypeVar("T")

_ZARRS_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_ROUND_BYTES = 8 << 20
"""Chunks are fetched and decoded in rounds of this many bytes, so that a large read holds few encoded chunks."""
_ROUNDS = 4
"""Rounds under way at once: some wait while others compute."""
_INLINE_BYTES = 1 << 20
"""Up to here, handing the work to a thread takes longer than the work."""
_LARGE_CHUNK_BYTES = 64 << 10
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
        """Fill `out` from chunks; says of each whether it was there."""
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

    Whatever it does not know is left to zarr: other stores, sharded arrays, codecs without a synchronous form, and
    buffers outside of main memory.
    """

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks; says of each whether it was there."""
        batch = list(batch_info)
        store = self._store_of(batch, out)
        located = None
        if store is not None:
            located = await store.session.keyspace.locate([item[0].path for item in batch])
        if located is None:
            return await super().read(batch, out, drop_axes)
        coder = ChunkCoder(self)
        target = out.as_ndarray_like()

        async def read_round(first: int, end: int) -> None:
            bodies = await located.fetch(first, end)
            work = [
                (i, body, *item) for i, (body, item) in enumerate(zip(bodies, batch[first:end], strict=True), first)
            ]
            await _spread(work, coder.is_plain, int(lengths[first:end].sum()), lambda part: scatter(part))

        def scatter(part: Sequence[Any]) -> None:
            for i, body, _, spec, chunk_selection, out_selection, _ in part:
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
        return tuple({"status": "missing" if length < 0 else "present"} for length in located.lengths.tolist())

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        store = self._store_of(batch, value)
        if store is None:
            return await super().write(batch, value, drop_axes)
        keys = [item[0].path for item in batch]
        keyspace = store.session.keyspace
        if keyspace.find_chunks(keys) is None or len(set(keys)) < len(keys):
            return await super().write(batch, value, drop_axes)
        store._check_writable()
        coder = ChunkCoder(self)

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
        if not isinstance(place, StorePath) or not isinstance(place.store, IcechunkStore):
            return None
        store = place.store
        in_memory = isinstance(buffer.as_ndarray_like(), np.ndarray) and spec.prototype.buffer is cpu.Buffer
        if not in_memory or not all(map(is_synchronous, self)):
            return None
        return store if all(type(item[0]) is StorePath and item[0].store is store for item in batch) else None


async def _existing(keyspace: Any, batch: Sequence[Item], first: int) -> dict[int, Bytes]:
    """The bytes of the chunks that are written in part, by position."""
    partial = [i for i, item in enumerate(batch) if not item[4]]
    if not partial:
        return {}
    located = await keyspace.locate([batch[i][0].path for i in partial])
    if located is None:
        return {}
    bodies = await located.fetch(0, len(partial))
    return {first + i: body for i, body in zip(partial, bodies, strict=True) if body is not None}


async def _in_rounds(sizes: npt.NDArray[np.int64], work: Callable[[int, int], Any]) -> None:
    """Do the work in rounds of about `_ROUND_BYTES`, a few at a time."""
    turns = asyncio.Semaphore(_ROUNDS)

    async def one(first: int, end: int) -> None:
        async with turns:
            await work(first, end)

    rounds = list(runs_up_to(_ROUND_BYTES, np.cumsum(sizes)))
    if len(rounds) == 1:
        await work(*rounds[0])
    else:
        await asyncio.gather(*(one(*each) for each in rounds))


async def _spread(work: Sequence[T], is_plain: bool, size_bytes: int, do: Callable[[Sequence[T]], None]) -> None:
    """Do the work here when there is little, else in threads: several, unless it is many tiny copies."""
    if size_bytes <= _INLINE_BYTES:
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
    """Whether somebody has said if the pipeline is to be used."""

    by_default = os.environ.get("ICEFLOE_FAST_PIPELINE", "1").strip().lower() not in ("0", "false", "no", "off")


def enable_fast_pipeline() -> None:
    """Let zarr read and write our chunks in bulk: arrays opened from now on use `BatchedChunkPipeline`.

    Arrays in other stores are not affected. It is a setting of zarr (`codec_pipeline.path`).
    """
    zarr.config.set({"codec_pipeline.path": PIPELINE})


def disable_fast_pipeline() -> None:
    """Let zarr read and write chunk by chunk: arrays opened from now on use zarr's own code.

    Only errors for chunks that cannot be decoded are still ours: they name the chunk.
    """
    _Choice.by_default = False
    if zarr.config.get("codec_pipeline.path") in (PIPELINE, _ZARRS_DEFAULT):
        zarr.config.set({"codec_pipeline.path": PLAIN_PIPELINE})


def prefer_fast_pipeline() -> None:
    """Use the pipeline unless somebody chose another, or zarr's own code."""
    if zarr.config.get("codec_pipeline.path") == _ZARRS_DEFAULT:
        zarr.config.set({"codec_pipeline.path": PIPELINE if _Choice.by_default else PLAIN_PIPELINE})


@contextlib.contextmanager
def fast_pipeline() -> Iterator[None]:
    """`enable_fast_pipeline` for arrays opened inside a `with` block."""
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
