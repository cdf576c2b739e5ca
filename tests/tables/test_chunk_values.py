"""Chunks come in the order asked for, however far ahead they are fetched and decoded."""

from __future__ import annotations

import asyncio
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.tables.chunk_values import ChunkPart, ChunkValues

CHUNK = 40_000
VALUES = np.random.default_rng(3).random(40 * CHUNK)
HALF = ChunkPart((np.arange(CHUNK // 2),))


def values_of(session: icefloe.Session) -> ChunkValues:
    return ChunkValues(session, "/v")


@pytest.fixture(scope="module")
def repository() -> icefloe.Repository:
    """Random numbers in 40 chunks, several rounds of requests; the third chunk was never written."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="v", shape=VALUES.shape, chunks=(CHUNK,), dtype="f8", fill_value=-1.0)
    array[: 2 * CHUNK] = VALUES[: 2 * CHUNK]
    array[3 * CHUNK :] = VALUES[3 * CHUNK :]
    session.commit("numbers")
    return repo


def expected(order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float64]]:
    blank = np.full(CHUNK, -1.0)
    return [blank if at == 2 else VALUES[at * CHUNK : (at + 1) * CHUNK] for at in order.tolist()]


@pytest.mark.parametrize("ahead", [False, True])
def test_parts_come_in_the_order_asked_for(repository: icefloe.Repository, ahead: bool) -> None:
    order = np.random.default_rng(4).permutation(40)
    chunks = values_of(repository.readonly_session("main"))
    found = list(chunks.read_parts(order[:, None], [HALF] * 40, decode_ahead=ahead))
    for ours, whole in zip(found, expected(order), strict=True):
        np.testing.assert_array_equal(ours, whole[: CHUNK // 2])
    for ours, whole in zip(chunks.read(order[:, None]), expected(order), strict=True):
        np.testing.assert_array_equal(ours, whole)
    assert list(chunks.read_parts(np.empty((0, 1), dtype=np.int64), [], decode_ahead=ahead)) == []


@pytest.mark.parametrize("ahead", [False, True])
def test_whoever_stops_early_leaves_nothing_behind(repository: icefloe.Repository, ahead: bool) -> None:
    chunks = values_of(repository.readonly_session("main"))
    places = np.arange(40)[:, None]
    for _ in range(5):
        few = list(islice(chunks.read_parts(places, [HALF] * 40, decode_ahead=ahead), 3))
        np.testing.assert_array_equal(few[0], VALUES[: CHUNK // 2])
    assert len(list(chunks.read_parts(places, [HALF] * 40, decode_ahead=ahead))) == 40


@pytest.mark.parametrize("ahead", [False, True])
def test_a_chunk_that_cannot_be_decoded_fails_where_it_stands(ahead: bool) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="v", shape=VALUES.shape, chunks=(CHUNK,), dtype="f8")
    array[...] = VALUES
    broken = default_buffer_prototype().buffer.from_bytes(b"not a zstd frame")
    asyncio.run(session.store.set("v/c/5", broken))
    found = values_of(session).read_parts(np.arange(40)[:, None], [HALF] * 40, decode_ahead=ahead)
    assert len(list(islice(found, 5))) == 5
    with pytest.raises(icefloe.errors.FormatError, match=r"chunk \(5,\) of /v .*(?i:zstd)"):
        next(found)
