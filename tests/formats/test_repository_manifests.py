"""Manifests of the repository generation."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.repository_examples import manifests, native_table, rows_of
from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.repository import FORMAT, manifest_writer
from icefloe.formats.repository.manifest_reader import decode_entries, decode_manifest_body
from icefloe.formats.repository.manifest_writer import encode_manifest_body
from icefloe.ids import decode_base32, encode_base32, new_object_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.snapshot import Manifest

NODE = b"12345678"


def unpack(body: bytes | memoryview) -> Any:
    return msgpack.unpackb(body, strict_map_key=False, use_list=False)


@pytest.mark.long
@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    decoded = FORMAT.decode_manifest(FORMAT.encode_manifest(manifest))
    assert decoded.id == manifest.id
    assert rows_of(decoded) == rows_of(manifest)
    for node, table in decoded.tables.items():
        assert table.coords.shape == manifest.tables[node].coords.shape
        assert set(table.locations) == set(manifest.tables[node].locations)
        assert (table.object_id is None) == (not (table.kind == ChunkKind.NATIVE).any())
        assert (table.location is None) == (not (table.kind == ChunkKind.VIRTUAL).any())


@pytest.mark.long
@given(manifests())
def test_few_rows_are_written_as_many_rows_are(manifest: Manifest) -> None:
    few = bytes(encode_manifest_body(manifest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_writer, "_JOINED_ROWS", -1)
        assert bytes(encode_manifest_body(manifest)) == few
        patch.setattr(manifest_writer, "_FEW_ROWS", -1)
        assert bytes(encode_manifest_body(manifest)) == few


@pytest.mark.long
@given(manifests())
def test_any_messagepack_reader_reads_our_rows(manifest: Manifest) -> None:
    body = bytes(encode_manifest_body(manifest))
    version, _, entries = unpack(body)
    assert version == 1
    assert list(entries) == sorted(entries)
    assert {(decode_base32(node, 8), coords) for node, coords in entries} == {
        (node, coords) for node, rows in rows_of(manifest).items() for coords, _ in rows
    }
    assert rows_of(decode_entries(body)) == rows_of(manifest)


@pytest.mark.long
@given(manifests(), st.data())
def test_a_changed_byte_never_makes_the_matrix_differ_from_the_entries(manifest: Manifest, data: st.DataObject) -> None:
    body = bytearray(encode_manifest_body(manifest))
    index = data.draw(st.integers(0, len(body) - 1))
    body[index] ^= data.draw(st.integers(1, 255))
    try:
        expected = rows_of(decode_entries(bytes(body)))
    except FormatError:
        expected = None
    try:
        found = rows_of(decode_manifest_body(bytes(body)))
    except FormatError:
        return
    # A matrix may be read where the map does not decode as text only if every row is still sound.
    assert expected is None or found == expected


def payloads() -> dict[tuple[int, ...], dict[str, Any]]:
    return {
        (0, 0): {"Inline": b"abc"},
        (0, 1): {"Ref": (encode_base32(b"c" * 12), 0, 100)},
        (1, 0): {"Virtual": ("s3://b/k", 5, 2**40, {"LastModified": 1_700_000_000})},
        (1, 1): {"Virtual": ("s3://b/k2", 5, 6, {"ETag": "e"})},
        (2, 0): {"Virtual": ("s3://b/k", 5, 6, None)},
    }


def expected_rows() -> list[tuple[tuple[int, ...], ChunkRef]]:
    return [
        ((0, 0), ChunkRef(ChunkKind.INLINE, 0, 3, data=b"abc")),
        ((0, 1), ChunkRef(ChunkKind.NATIVE, 0, 100, object_id=b"c" * 12)),
        ((1, 0), ChunkRef(ChunkKind.VIRTUAL, 5, 2**40, location="s3://b/k", last_modified=1_700_000_000)),
        ((1, 1), ChunkRef(ChunkKind.VIRTUAL, 5, 6, location="s3://b/k2", etag="e")),
        ((2, 0), ChunkRef(ChunkKind.VIRTUAL, 5, 6, location="s3://b/k")),
    ]


def binary(payload: dict[str, Any]) -> dict[str, Any]:
    if "Ref" not in payload:
        return payload
    text, *rest = payload["Ref"]
    return {"Ref": ((decode_base32(text, 12), ()), *rest)}


TEXT_NODE, BINARY_NODE = encode_base32(NODE), (NODE, ())
MANIFEST_ID = new_object_id()
SHAPES = {
    "M1": (1, {}, {(TEXT_NODE, coords): p for coords, p in payloads().items()}),
    "M1 with counters": (0, {}, {(7, coords): p for coords, p in payloads().items()}),
    "M2": (1, {}, {BINARY_NODE: {coords: binary(p) for coords, p in payloads().items()}}),
    "M3": (1, {}, MANIFEST_ID, {TEXT_NODE: payloads()}),
    "M4": ((decode_base32(MANIFEST_ID, 12), ()), {BINARY_NODE: {c: binary(p) for c, p in payloads().items()}}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_that_was_ever_written_is_read(shape: str) -> None:
    manifest = FORMAT.decode_manifest(msgpack.packb(SHAPES[shape]))
    node = (7).to_bytes(8, "big") if "counters" in shape else NODE
    assert rows_of(manifest) == {node: expected_rows()}
    assert manifest.id == (MANIFEST_ID if shape in ("M3", "M4") else "")


def test_wrapped_locations_of_the_earliest_files_are_read() -> None:
    body = msgpack.packb((0, {}, {(7, (0,)): {"Virtual": ({"Absolute": "s3://b/k"}, 1, 2)}}))
    (rows,) = rows_of(FORMAT.decode_manifest(body)).values()
    assert rows == [((0,), ChunkRef(ChunkKind.VIRTUAL, 1, 2, location="s3://b/k"))]


def test_references_copied_from_an_array_of_another_rank_are_left_out() -> None:
    small = {(7, (i,)): {"Inline": b"T"} for i in range(5)}
    own = {(3, (0, i)): {"Inline": bytes([i])} for i in range(2)}
    stray = {(3, coords): p for (_, coords), p in small.items()}
    manifest = FORMAT.decode_manifest(msgpack.packb((0, {}, small | own | stray)))
    assert manifest.tables[(3).to_bytes(8, "big")].coords.tolist() == [[0, 0], [0, 1]]
    assert len(manifest.tables[(7).to_bytes(8, "big")]) == 5


def test_unsorted_entries_are_sorted() -> None:
    body = msgpack.packb((1, {}, {(TEXT_NODE, c): p for c, p in reversed(payloads().items())}))
    assert rows_of(FORMAT.decode_manifest(body)) == {NODE: expected_rows()}


def swap_rows(body: bytes, first: int, size: int) -> bytes:
    a, b = body[first : first + size], body[first + size : first + 2 * size]
    return body[:first] + b + a + body[first + 2 * size :]


def test_a_hint_over_unsorted_or_repeated_rows_is_not_believed() -> None:
    rows = [((i,), ChunkRef(ChunkKind.NATIVE, 0, 1, object_id=bytes([i] * 12))) for i in range(2)]
    body = bytes(encode_manifest_body(Manifest("", {NODE: table_from_rows(rows, 1)})))
    size = body.count(b"") and (len(body) - body.rindex(b"\xdf\x00\x00\x00\x02") - 5) // 2
    first = len(body) - 2 * size
    assert rows_of(decode_manifest_body(swap_rows(body, first, size))) == {NODE: rows}
    repeated = body[:first] + body[first + size :] + body[first + size :]
    assert rows_of(decode_manifest_body(repeated)) == {NODE: rows[1:]}


BROKEN: list[Any] = [
    (1, {}, {(TEXT_NODE, (0,)): {"Ref": ("short", 0, 1)}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Ref": (encode_base32(b"c" * 12), -1, 1)}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Ref": (encode_base32(b"c" * 12), 0)}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Other": b""}}),
    (1, {}, {(TEXT_NODE, (0,)): {}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Inline": b"", "Ref": ()}}),
    (1, {}, {(TEXT_NODE, (2**32,)): {"Inline": b""}}),
    (1, {}, {(TEXT_NODE, (-1,)): {"Inline": b""}}),
    (1, {}, {(TEXT_NODE, (2**64 - 1,)): {"Inline": b""}}),
    (1, {}, {("!" * 13, (0,)): {"Inline": b""}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Virtual": (None, 0, 1, None)}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Virtual": ({"Relative": "x"}, 0, 1, None)}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Virtual": ("x", 0, 1, {"LastModified": 2**40})}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Virtual": ("x", 0, 1, {"Other": 1})}}),
    (1, {}, {(TEXT_NODE, (0,)): {"Virtual": ("x",)}}),
    (1, {}, 5),
    (1,),
    {},
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda b: str(b)[:60])
def test_a_broken_reference_is_refused(body: Any) -> None:
    with pytest.raises(FormatError):
        FORMAT.decode_manifest(msgpack.packb(body))


def test_an_empty_manifest_is_read() -> None:
    assert FORMAT.decode_manifest(FORMAT.encode_manifest(Manifest("", {}))).tables == {}
    assert FORMAT.decode_manifest(msgpack.packb((1, {}, {}))).tables == {}


def test_deleted_references_are_not_written() -> None:
    table = dataclasses.replace(native_table(3), kind=np.full(3, ChunkKind.DELETED, dtype=np.uint8))
    with pytest.raises(InvalidInputError):
        FORMAT.encode_manifest(Manifest("", {NODE: table}))


def test_many_small_arrays_share_a_manifest_quickly() -> None:
    tables = {i.to_bytes(8, "big"): native_table(4, i) for i in range(5760)}
    start = time.process_time()
    decoded = FORMAT.decode_manifest(FORMAT.encode_manifest(Manifest("", tables)))
    assert time.process_time() - start < 5
    assert len(decoded.tables) == 5760
    assert (decoded.tables[(77).to_bytes(8, "big")].object_id == tables[(77).to_bytes(8, "big")].object_id).all()
    assert sum(t.nbytes for t in decoded.tables.values()) < 5760 * 4 * 100


@pytest.mark.parametrize("checksum", [-32, "text", {}, {"a": "b", "c": "d"}, {"ETag": 1}])
def test_a_checksum_of_another_kind_is_an_error_of_the_format(checksum: object) -> None:
    entry = {"Virtual": ["s3://b/k", 0, 1, checksum]}
    body = msgpack.packb([1, {}, {encode_base32(NODE): {(0,): entry}}])
    with pytest.raises(FormatError):
        decode_entries(body)
