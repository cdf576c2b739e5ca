"""Parts of chunks are what indexing the whole chunk gives, and no more than leads up to them is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from icefloe.tables.chunk_values import ChunkDecoder, ChunkPart, PartDecoder, decoder_of

SHAPE = (12, 60, 400)
CODECS = {
    "zstd": ZstdCodec(level=1),
    "zstd with a checksum": ZstdCodec(level=1, checksum=True),
    "gzip": GzipCodec(level=1),
    "blosc": BloscCodec(cname="lz4"),
    "none": None,
}


def stored(dtype: str, codec: Any) -> tuple[npt.NDArray[Any], bytes, ChunkDecoder]:
    """The values of an array of one chunk, its bytes and its decoder."""
    values = np.random.default_rng(1).integers(0, 50, SHAPE).astype(dtype)
    store: dict[str, Any] = {}
    array = zarr.create_array(
        zarr.storage.MemoryStore(store), shape=SHAPE, chunks=SHAPE, dtype=dtype, compressors=codec, fill_value=0
    )
    array[...] = values
    decoder = decoder_of(array)
    assert decoder is not None
    return values, store["c/0/0/0"].to_bytes(), decoder


def positions(length: int) -> st.SearchStrategy[npt.NDArray[np.int64]]:
    ordered = st.sets(st.integers(0, length - 1), min_size=1, max_size=6).map(sorted)
    run = st.tuples(st.integers(0, length - 1), st.integers(1, length)).map(
        lambda t: list(range(t[0], min(length, t[0] + t[1])))
    )
    return st.one_of(ordered, run).map(lambda chosen: np.array(chosen, dtype=np.int64))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8"])
def test_a_part_is_what_indexing_gives(codec: str, dtype: str) -> None:
    values, body, decoder = stored(dtype, CODECS[codec])
    decode = PartDecoder(decoder)

    @settings(max_examples=40, deadline=None)
    @given(st.tuples(*map(positions, SHAPE)))
    def check(chosen: tuple[npt.NDArray[np.int64], ...]) -> None:
        part = ChunkPart(chosen)
        np.testing.assert_array_equal(decode(body, part), values[np.ix_(*chosen)])
        np.testing.assert_array_equal(decode(memoryview(body), part), values[np.ix_(*chosen)])

    check()


def test_parts_of_chunks_that_were_never_written_are_fill_values() -> None:
    _, _, decoder = stored("<f4", ZstdCodec())
    part = ChunkPart(tuple(np.arange(2) for _ in SHAPE))
    np.testing.assert_array_equal(PartDecoder(decoder)(None, part), np.zeros((2, 2, 2), dtype="f4"))


def test_parts_outlive_the_next_one() -> None:
    values, body, decoder = stored("<f4", ZstdCodec(level=1))
    decode = PartDecoder(decoder)
    first = ChunkPart((np.array([0]), np.arange(60), np.arange(400)))
    second = ChunkPart((np.array([1]), np.arange(60), np.arange(400)))
    kept = decode(body, first)
    decode(body, second)
    np.testing.assert_array_equal(kept, values[:1])


def test_what_lies_behind_a_part_is_not_looked_at() -> None:
    values, body, decoder = stored("<f4", ZstdCodec(level=1))
    decode = PartDecoder(decoder)
    damaged = body[: len(body) // 2] + bytes(len(body) - len(body) // 2)
    early = ChunkPart((np.array([0, 1]), np.arange(60), np.arange(400)))
    np.testing.assert_array_equal(decode(damaged, early), values[:2])


@pytest.mark.parametrize("damage", [lambda body: body[:100], lambda body: b"no frame" + body[8:], lambda body: b""])
def test_damage_is_told_by_the_codec(damage: Any) -> None:
    _, body, decoder = stored("<f4", ZstdCodec(level=1))
    early = ChunkPart((np.array([0]), np.arange(60), np.arange(400)))
    with pytest.raises(Exception, match=r"(?i)zstd") as whole:
        decoder(damage(body))
    with pytest.raises(type(whole.value), match=r"(?i)zstd"):
        PartDecoder(decoder)(damage(body), early)


def test_checksums_are_looked_at() -> None:
    _, body, decoder = stored("<f4", ZstdCodec(level=1, checksum=True))
    early = ChunkPart((np.array([0]), np.arange(60), np.arange(400)))
    with pytest.raises(Exception, match=r"(?i)zstd"):
        PartDecoder(decoder)(body[:-1] + bytes([body[-1] ^ 1]), early)
