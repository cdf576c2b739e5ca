"""Repositories as early code of the generation `store` wrote them are read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgpack
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import FormatError, ReadOnlyError
from icefloe.formats.store import FORMAT
from icefloe.ids import encode_base32
from icefloe.ledger.store import key_here, key_there
from icefloe.storage.memory import MemoryStorage

IDS = [encode_base32(bytes([number] * 16)) for number in range(8)]
ARRAY = [
    [4, 2],
    "float32",
    [2, 2],
    "Slash",
    {"Float32": float("nan")},
    [["bytes", {"endian": "little"}], ["crc32c", None]],
    [],
    ["x", None],
]
ROOT = [1, "/", {"Inline": {"title": "t"}}, "Group"]
DATA = np.arange(4, dtype="<f4").reshape(2, 2)


def with_checksum(data: bytes) -> bytes:
    import google_crc32c

    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


def snapshot_file(number: int, nodes: dict[str, Any], history: list[list[str]]) -> bytes:
    time = f"2024-09-18T12:00:0{number}.123456789Z"
    document = [
        len(history),
        len(history),
        history,
        [IDS[number], time, f"commit {number}"],
        time,
        {"by": number},
        nodes,
    ]
    return msgpack.packb(document)


def metadata(number: int) -> list[str]:
    return [IDS[number], f"2024-09-18T12:00:0{number}.123456789Z", f"commit {number}"]


def manifest_file(chunks: dict[tuple[int, tuple[int, ...]], Any]) -> bytes:
    """Maps with arrays as keys, which the Python packer does not write by itself."""
    packer = msgpack.Packer()
    body = b"".join(packer.pack(key) + packer.pack(value) for key, value in chunks.items())
    return b"\x91" + packer.pack_map_header(len(chunks)) + body


async def make_repository(storage: MemoryStorage) -> None:
    array = [7, "/a", None, {"Array": [ARRAY, [[IDS[4], [], []]]]}]
    await storage.put(f"s/{IDS[0]}.msgpack", snapshot_file(0, {}, []))
    await storage.put(f"s/{IDS[1]}.msgpack", snapshot_file(1, {"/": ROOT, "/a": array}, [metadata(0)]))
    await storage.put(f"s/{IDS[2]}.msgpack", snapshot_file(2, {"/": ROOT}, [metadata(0), metadata(1)]))
    stored = with_checksum(DATA.tobytes())
    chunks = {
        (7, (0, 0)): {"Inline": with_checksum((DATA + 10).tobytes())},
        (7, (1, 0)): {"Ref": [IDS[5], 2, len(stored)]},
    }
    await storage.put(f"m/{IDS[4]}.msgpack", manifest_file(chunks))
    await storage.put(f"c/{IDS[5]}.msgpack", b"__" + stored)
    for number in range(2):
        name = encode_base32((2**64 - 1 - number).to_bytes(8, "big"))
        reference = {"snapshot": IDS[number], "timestamp": "2024-09-18T12:00:00Z", "properties": {}}
        await storage.put(f"r/branch:main/{name}.json", json.dumps(reference).encode())
    await storage.put(f"r/tag:v2/{'ref.json'}", json.dumps({"snapshot": IDS[2]}).encode())


async def test_a_repository_of_early_code_is_read_and_not_written() -> None:
    storage = MemoryStorage()
    await make_repository(storage)
    repository = await icefloe.Repository.open_async(storage)
    assert await repository.list_branches_async() == {"main"}
    assert await repository.list_tags_async() == {"v2"}
    infos = [(info.message, info.id) async for info in repository.async_ancestry(tag="v2")]
    assert infos == [("commit 2", IDS[2]), ("commit 1", IDS[1]), ("commit 0", IDS[0])]
    session = await repository.readonly_session_async("main")
    array = await zarr.api.asynchronous.open_array(store=session.store, path="a", mode="r")
    assert array.metadata.dimension_names == ("x", None)
    assert np.isnan(array.metadata.fill_value)
    values = await array.getitem(...)
    assert np.array_equal(values, np.concatenate([DATA + 10, DATA]))
    writing = await repository.writable_session_async("main")
    await zarr.api.asynchronous.group(store=writing.store, path="new")
    with pytest.raises(ReadOnlyError):
        await writing.commit_async("refused")


def test_names_of_early_code_are_those_of_the_specification() -> None:
    pairs = {
        "r/main/ZZZZZZZZ.json": "r/branch:main/ZZZZZZZZZZZZY.json",
        "r/main/ZZZZZZZY.json": "r/branch:main/ZZZZZZZZZZZZW.json",
        "r/main/ZZZZZZZX.json": "r/branch:main/ZZZZZZZZZZZZT.json",
        "r/v1.json": "r/tag:v1/ref.json",
        "s/X.json": "s/X.msgpack",
        "c/X": "c/X.msgpack",
        "config.json": "config.json",
    }
    for here, there in pairs.items():
        assert key_there(here) == there
        assert key_here(there) == here


@given(st.data())
def test_broken_files_of_early_code_give_format_errors_only(data: st.DataObject) -> None:
    array = [7, "/a", {"Ref": [IDS[3], 1, []]}, {"Array": [ARRAY, [[IDS[4], [], [[0, 0], [2, 1]]]]]}]
    snapshot = snapshot_file(1, {"/": ROOT, "/a": array}, [metadata(0)])
    virtual = {"Virtual": [{"Absolute": "s3://b/k"}, 1, 2]}
    manifest = manifest_file({(7, (0, 0)): {"Inline": b"ab"}, (7, (1, 0)): {"Ref": [IDS[5], 2, 3]}, (8, ()): virtual})
    assert len(FORMAT.decode_manifest(manifest)) == 3
    assert FORMAT.decode_snapshot(snapshot).nodes["/a"].attributes is not None
    for whole, decode in ((snapshot, FORMAT.decode_snapshot), (manifest, FORMAT.decode_manifest)):
        with pytest.raises(FormatError):
            decode(whole[: data.draw(st.integers(0, len(whole) - 1))])  # type: ignore[operator]
        flipped = bytearray(whole)
        flipped[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(FormatError):
            decode(bytes(flipped))  # type: ignore[operator]
