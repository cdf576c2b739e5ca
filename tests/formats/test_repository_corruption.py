"""Files that are not what they say they are: a typed error each, quickly and in little memory."""

from __future__ import annotations

import contextlib
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from formats.repository_examples import example_log, example_snapshot, native_table
from icefloe.errors import FormatError, UnknownFormatError
from icefloe.formats.header import (
    HEADER_BYTES,
    MAGIC,
    DecompressionLimits,
    FileType,
    compress,
    decompress,
    encode_header,
    parse_header,
)
from icefloe.formats.repository import FORMAT
from icefloe.ids import new_object_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.snapshot import Manifest

MIXED = [
    ((0, 0), ChunkRef(ChunkKind.INLINE, 0, 3, data=b"abc")),
    ((0, 1), ChunkRef(ChunkKind.NATIVE, 0, 100, object_id=b"c" * 12)),
    ((1, 0), ChunkRef(ChunkKind.VIRTUAL, 5, 2**40, location="s3://b/k", last_modified=1_700_000_000)),
    ((1, 1), ChunkRef(ChunkKind.VIRTUAL, 5, 6, location="s3://b/k2", etag="e")),
]


def read_snapshot(data: bytes) -> None:
    """Decode everything, also what is decoded on demand."""
    for node in FORMAT.decode_snapshot(data).nodes.values():
        assert node.document


READERS: dict[str, tuple[Callable[[bytes], Any], list[bytes], FileType]] = {
    "snapshot": (read_snapshot, [FORMAT.encode_snapshot(example_snapshot())], FileType.SNAPSHOT),
    "manifest": (
        FORMAT.decode_manifest,
        [
            FORMAT.encode_manifest(Manifest("", {b"1" * 8: table_from_rows(MIXED, 2), b"2" * 8: native_table(5)})),
            FORMAT.encode_manifest(Manifest(new_object_id(), {b"1" * 8: native_table(20)})),
        ],
        FileType.MANIFEST,
    ),
    "log": (
        FORMAT.decode_transaction_log,
        [FORMAT.encode_transaction_log("", example_log())],
        FileType.TRANSACTION_LOG,
    ),
    "attributes": (FORMAT.decode_attributes, [FORMAT.encode_attributes([b'{"a": 1}', b"{}"])], FileType.ATTRIBUTES),
}


def fails_well(read: Callable[[bytes], Any], data: bytes) -> None:
    """Whatever it is, it is read or refused with a FormatError, soon."""
    start = time.process_time()
    with contextlib.suppress(FormatError):
        read(data)
    assert time.process_time() - start < 1


def absurd(body: bytes, at: int, mark: bytes) -> bytes:
    """A head with an absurd length put somewhere."""
    return body[:at] + mark + body[at:]


MARKS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xf0",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
]


@st.composite
def mutations(draw: st.DrawFn, body: bytes) -> bytes:
    kind = draw(st.sampled_from(["flip", "cut", "type", "length", "swap", "grow", "nest"]))
    at = draw(st.integers(0, max(len(body) - 1, 0)))
    if kind == "flip":
        return body[:at] + bytes([body[at] ^ draw(st.integers(1, 255))]) + body[at + 1 :]
    if kind == "cut":
        return body[:at]
    if kind == "type":
        return (
            body[:at]
            + draw(st.sampled_from([b"\xc0", b"\xc3", b"\x90", b"\x80", b"\xa0", b"\xcb", b"\xff", b"\x7f"]))
            + body[at + 1 :]
        )
    if kind == "length":
        return absurd(body, at, draw(st.sampled_from(MARKS)))
    if kind == "swap":
        other = draw(st.integers(0, len(body) - 1))
        return body[:at] + body[other : other + 20] + body[at + 20 :]
    if kind == "grow":
        return body[:at] + draw(st.binary(min_size=1, max_size=30)) + body[at:]
    return body[:at] + b"\x91" * draw(st.sampled_from([10, 5000])) + body[at:]


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
@settings(max_examples=400)
def test_a_mutated_body_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    read, files, file_type = READERS[kind]
    body = decompress(data.draw(st.sampled_from(files))[HEADER_BYTES:])
    mutated = data.draw(mutations(body))
    fails_well(read, encode_header(file_type, 1) + compress(mutated))
    fails_well(read, mutated)


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
@settings(max_examples=200)
def test_a_mutated_file_never_has_another_content(kind: str, data: st.DataObject) -> None:
    read, files, _ = READERS[kind]
    original = data.draw(st.sampled_from(files))
    mutated = data.draw(mutations(original))
    if mutated == original:
        return
    fails_well(read, mutated)
    if mutated[:HEADER_BYTES] == original[:HEADER_BYTES]:
        # Some bits of a frame mean nothing; of all others its checksum tells.
        with contextlib.suppress(FormatError):
            assert decompress(mutated[HEADER_BYTES:]) == decompress(original[HEADER_BYTES:])


def official_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    kinds = {"snapshots": "snapshot", "manifests": "manifest", "transactions": "log"}
    for repo in sorted(folder.glob("g2-*")):
        for name, kind in kinds.items():
            for path in sorted((repo / "repo" / name).glob("*"))[:3]:
                yield kind, path.read_bytes()


def test_mutated_official_files_are_read_or_refused(fixtures_folder: Path) -> None:
    generator = random.Random(7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 0
    for kind, data in official_files(fixtures_folder):
        read = READERS[kind][0]
        read(data)
        for _ in range(12):
            mutated = bytearray(data)
            for _ in range(generator.choice([1, 1, 3])):
                mutated[generator.randrange(len(mutated))] = generator.randrange(256)
            fails_well(
                read, bytes(mutated[: generator.randrange(len(mutated))] if generator.random() < 0.2 else mutated)
            )
            count += 1
    assert count > 200
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 100 << 10


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("content_size", [True, False], ids=["declared size", "no size"])
def test_a_decompression_bomb_stops_early(kind: str, content_size: bool) -> None:
    read, _, file_type = READERS[kind]
    bomb = zstandard.ZstdCompressor(write_content_size=content_size).compress(bytes(256 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(FormatError, match="but at most"):
        read(encode_header(file_type, 1) + bomb)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("kind", READERS)
def test_every_byte_of_the_header_counts(kind: str) -> None:
    read, (data, *_), file_type = READERS[kind]
    for index in range(HEADER_BYTES):
        mutated = data[:index] + bytes([data[index] ^ 0x40]) + data[index + 1 :]
        if 12 <= index < 36:
            read(mutated)  # the writer's name is free
        else:
            with pytest.raises(FormatError):
                read(mutated)
    other = FileType.MANIFEST if file_type is not FileType.MANIFEST else FileType.SNAPSHOT
    with pytest.raises(FormatError, match="expected"):
        read(encode_header(other, 1) + data[HEADER_BYTES:])
    with pytest.raises(UnknownFormatError, match="Upgrade"):
        read(encode_header(file_type, 2) + data[HEADER_BYTES:])
    with pytest.raises(FormatError):
        read(data[:20])
    with pytest.raises(FormatError):
        read(b"")


def test_an_uncompressed_body_is_read() -> None:
    read, (data, *_), _ = READERS["snapshot"]
    plain = data[:38] + b"\0" + decompress(data[HEADER_BYTES:])
    read(plain)


def test_a_header_tells_its_writer() -> None:
    header = parse_header(FORMAT.encode_attributes([]))
    assert header.writer.startswith("icefloe-")
    assert (header.spec_version, header.file_type, header.compression) == (1, 3, 1)
    assert MAGIC.decode() == "ICE\U0001f9caCHUNK"


@given(st.binary(max_size=200))
@example(b"\x28\xb5\x2f\xfd")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read, _, file_type in READERS.values():
        fails_well(read, data)
        fails_well(read, encode_header(file_type, 1) + data)


def test_broken_flatbuffers_are_refused() -> None:
    body = b"\x10\0\0\0Ichk" + bytes(20)
    with pytest.raises(FormatError):
        FORMAT.decode_snapshot(encode_header(FileType.SNAPSHOT, 1) + compress(body))


def test_limits_are_configurable() -> None:
    body = bytes(1 << 20)
    assert decompress(compress(body)) == body
    with pytest.raises(FormatError):
        decompress(compress(body), DecompressionLimits(max_bytes=1 << 19))
    with pytest.raises(FormatError):
        decompress(compress(body), DecompressionLimits(free_bytes=1000, ratio=10))


def test_a_manifest_with_a_lying_hint_is_still_read_by_its_entries() -> None:
    manifest = Manifest(new_object_id(), {b"1" * 8: table_from_rows(MIXED, 2)})
    body = decompress(FORMAT.encode_manifest(manifest)[HEADER_BYTES:])
    members = msgpack.unpackb(body, strict_map_key=False, use_list=False)
    honest = list(FORMAT.decode_manifest(body).tables[b"1" * 8].rows())
    for lie in (b"", b"\xc0", members[1]["icefloe.rows"][:-1] + b"\x09", members[1]["icefloe.rows"][:-8]):
        head = body.index(b"\xc6") + 1
        hint = len(members[1]["icefloe.rows"])
        lying = body[:head] + len(lie).to_bytes(4, "big") + lie + body[head + 4 + hint :]
        assert list(FORMAT.decode_manifest(lying).tables[b"1" * 8].rows()) == honest
