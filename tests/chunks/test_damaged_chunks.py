"""A chunk whose bytes are damaged is an error of ours that names the array, the chunk and the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

import icefloe
from icefloe.codec_pipeline import PIPELINE, PLAIN_PIPELINE
from icefloe.errors import FormatError, IcefloeError, VirtualChunkError
from icefloe.tables.chunk_values import ChunkPart, ChunkValues

GENERATIONS = ("dataset", "store", "repository", "icechunk1", "icechunk2")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "gzip": {"compressors": [GzipCodec()]},
    "zstd": {"compressors": [ZstdCodec()]},
    "checksum": {"compressors": [Crc32cCodec()]},
    "shards": {"shards": (4, 4), "compressors": [ZstdCodec()]},
}


def damaged(folder: Path, kind: str, where: str, generation: str = "repository") -> icefloe.Session:
    """A writer on an array `/g/v` of four chunks (or shards), of which (1, 0) is damaged."""
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 1 << 20 if where == "inline" else 0
    prefix = f"file://{folder}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    repo = icefloe.Repository.create(
        str(folder / "repo"), config=config, authorize_virtual_chunk_access={prefix: None}, spec_version=generation
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="g/v",
        shape=(8, 8),
        chunks=(4, 4) if kind != "shards" else (2, 2),
        dtype="f4",
        **{name: value for name, value in KINDS[kind].items() if name != "chunks"},
    )
    array[:] = np.random.default_rng(1).random((8, 8))
    bad = b"these bytes are no chunk"
    if where == "virtual":
        (folder / "data.bin").write_bytes(bad)
        session.store.set_virtual_ref("g/v/c/1/0", f"{prefix}data.bin", offset=0, length=len(bad))
    else:
        from zarr.core.buffer import cpu
        from zarr.core.sync import sync

        sync(session.store.set("g/v/c/1/0", cpu.Buffer.from_bytes(bad)))
    session.commit("damaged")
    return repo.writable_session("main")


def check(error: IcefloeError, where: str) -> None:
    text = str(error)
    assert "(1, 0)" in text and "/g/v" in text
    if where == "virtual":
        assert isinstance(error, VirtualChunkError) and "data.bin" in text
    else:
        assert isinstance(error, FormatError)
        assert ("manifest" if where == "inline" else "chunks/") in text


@pytest.mark.parametrize("pipeline", [PIPELINE, PLAIN_PIPELINE])
@pytest.mark.parametrize("where", ["native", "inline", "virtual"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_damaged_chunk_is_named_however_it_is_met(tmp_path: Path, kind: str, where: str, pipeline: str) -> None:
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        _check_damaged(damaged(tmp_path, kind, where), where)


def _check_damaged(session: icefloe.Session, where: str) -> None:
    array = zarr.open_array(session.store, path="g/v")
    with pytest.raises(IcefloeError) as read:
        array[:]
    check(read.value, where)
    # Half of the chunk is written: the other half has to be decoded.
    with pytest.raises(IcefloeError) as written:
        array[5:6, 0:3] = 1.0
    check(written.value, where)
    assert array[0, 0] > 0
    values = ChunkValues(session, "/g/v")
    if not values.is_direct:
        return
    places = np.array([[0, 0], [1, 0]])
    with pytest.raises(IcefloeError) as whole:
        list(values.read(places))
    check(whole.value, where)
    part = ChunkPart((np.arange(2), np.arange(2)))
    for ahead in (False, True):
        with pytest.raises(IcefloeError) as some:
            list(values.read_parts(places, [part, part], decode_ahead=ahead))
        check(some.value, where)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("where", ["native", "virtual"])
def test_a_damaged_chunk_is_named_in_every_generation(tmp_path: Path, generation: str, where: str) -> None:
    session = damaged(tmp_path, "gzip", where, generation)
    with pytest.raises(FormatError if where == "native" else VirtualChunkError, match=r"\(1, 0\) of /g/v"):
        zarr.open_array(session.store, path="g/v")[:]
    assert session.has_uncommitted_changes is False
