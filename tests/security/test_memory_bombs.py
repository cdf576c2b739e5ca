"""Small files never become large in memory: every decoder of every generation bounds sizes before it takes memory."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError
from icefloe.formats.dataset.manifest import encode_coord, manifest_schema
from icefloe.formats.dataset.snapshot import structure_schema
from icefloe.formats.flatbuf.flexbuffers import decode_flexible, decode_metadata
from icefloe.formats.format import get_format
from icefloe.formats.header import ZSTD_MAGIC, FileType, compress, encode_header
from icefloe.ids import new_node_id, new_object_id
from icefloe.model.capabilities import SpecVersion
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.snapshot import GroupNode, Manifest
from icefloe.model.zarr_document import estimate_json, estimate_messagepack, join_attributes, parse_document

MOST_BYTES = 600 << 20
"""What a decoder may take for a bomb before it refuses, besides the process itself."""

Decoder = Callable[[bytes], Any]


def _every_document(decode: Decoder) -> Decoder:
    """Nodes of a snapshot are decoded when they are asked for, and their documents are parsed then."""

    def decode_all(data: bytes) -> None:
        snapshot = decode(data)
        for node in snapshot.nodes.values():
            parse_document(node.document)
        assert snapshot.metadata is not None

    return decode_all


def decoders(version: SpecVersion) -> dict[str, Decoder]:
    layout = get_format(version)
    return {
        "references": lambda data: [len(bytes(table.inline)) for table in layout.decode_manifest(data).tables.values()],
        "documents": _every_document(layout.decode_snapshot),
        "attributes of a node": lambda data: join_attributes(b'{"attributes":{}}', layout.decode_attributes(data)[0]),
        "snapshot": layout.decode_snapshot,
        "manifest": layout.decode_manifest,
        "attributes": layout.decode_attributes,
        "transaction log": layout.decode_transaction_log,
    }


def _limited(version: SpecVersion, kind: str, data: bytes, out: Any) -> None:
    """In a process of its own: memory of Arrow and zstd is not Python's to count."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # What grows further is stopped here: better one error than a machine without memory.
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + (4 << 30),) * 2)
    try:
        decoders(version)[kind](data)
        told = "decoded"
    except IcefloeError as error:
        told = type(error).__name__
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
    out.put((told, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10))


def _address_space() -> int:
    with open("/proc/self/statm") as told:
        return int(told.read().split()[0]) * resource.getpagesize()


def decode_apart(version: SpecVersion, kind: str, data: bytes) -> tuple[str, int]:
    """What a decoder says of a file, and how many bytes it took."""
    context = get_context("fork")
    out = context.SimpleQueue()
    process = context.Process(target=_limited, args=(version, kind, data, out))
    process.start()
    process.join(120)
    assert process.exitcode == 0, "the decoder was killed or did not end"
    told, taken = out.get()
    return str(told), int(taken)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    settings = {"compression": "zstd", "data_page_size": 1 << 30, "dictionary_pagesize_limit": 1 << 28} | options
    pq.write_table(table, sink, write_statistics=False, store_schema=False, **settings)
    return sink.getvalue()


def _rows(count: int) -> dict[str, pa.Array]:
    return {
        "id": pa.array(np.arange(count, dtype="u4")),
        "array_id": pa.array(np.ones(count, "u4")),
        "coord": pa.array([n.to_bytes(4, "big") for n in range(count)], pa.binary()),
        "inline_data": pa.nulls(count, pa.binary()),
        "chunk_file": pa.nulls(count, pa.string()),
        "offset": pa.array(np.zeros(count, "u8")),
        "length": pa.array(np.ones(count, "u4")),
    }


def _repeated(value: bytes, count: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, "i4")), pa.array([value], pa.binary()).cast(kind))


def _manifest_bomb(column: str, size: int, count: int, **options: Any) -> bytes:
    kind = pa.binary() if column in ("inline_data", "coord") else pa.string()
    columns = _rows(count) | {column: _repeated(b"a" * size, count, kind)}
    return _parquet(pa.table(columns), **options)


def _nested_bomb(size: int, elements: int) -> bytes:
    """A structure file with one row, whose list of codecs is long and repeats one long name."""
    schema = structure_schema()
    row = dict.fromkeys(schema.names) | {"id": 1, "type": "array", "path": "/a"}
    row["array_metadata"] = {
        "shape": [1],
        "data_type": "int8",
        "fill_value": b"0",
        "dimension_names": None,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "x" * size, "configuration": None}] * elements,
    }
    return _parquet(pa.Table.from_pylist([row], schema=schema))


def _nulls(count: int) -> bytes:
    table = pa.table({name: pa.nulls(count, field.type) for name, field in zip(_rows(1), manifest_schema())})
    return _parquet(table, row_group_size=count)


def _prefixes(count: int, size: int) -> bytes:
    columns = _rows(count)
    columns["chunk_file"] = pa.array([f"{'a' * size}{n:06}" for n in range(count)])
    return _parquet(pa.table(columns), use_dictionary=False, column_encoding={"chunk_file": "DELTA_BYTE_ARRAY"})


DATASET_BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "repeated inline data": ("manifest", lambda: _manifest_bomb("inline_data", 4 << 20, 2000)),
    "repeated names": ("manifest", lambda: _manifest_bomb("chunk_file", 4 << 20, 2000)),
    "repeated coordinates": ("manifest", lambda: _manifest_bomb("coord", 4 << 20, 2000)),
    "snappy": ("manifest", lambda: _manifest_bomb("inline_data", 1 << 20, 8000, compression="snappy")),
    "pages of version 2": ("manifest", lambda: _manifest_bomb("inline_data", 4 << 20, 2000, data_page_version="2.0")),
    "plain pages": ("manifest", lambda: _manifest_bomb("inline_data", 1 << 20, 1000, use_dictionary=False)),
    "shared prefixes": ("manifest", lambda: _prefixes(1000, 1 << 20)),
    "nulls": ("manifest", lambda: _nulls(100_000_000)),
    "nested names": ("snapshot", lambda: _nested_bomb(1 << 20, 1500)),
    "attributes": (
        "attributes",
        lambda: _parquet(pa.table({"attrs": _repeated(b"x" * (4 << 20), 2000, pa.binary())})),
    ),
}


LONG_TO_MAKE = {"nested names", "plain pages", "nulls", "shared prefixes"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG_TO_MAKE else ()) for name in sorted(DATASET_BOMBS)],
)
def test_parquet_that_would_become_large_is_refused(name: str) -> None:
    kind, make = DATASET_BOMBS[name]
    data = make()
    assert len(data) < 4 << 20
    told, taken = decode_apart(SpecVersion.DATASET, kind, data)
    assert told == "FormatError" and taken < MOST_BYTES, (told, taken >> 20)


def test_parquet_whose_values_repeat_a_little_is_read() -> None:
    """A dictionary that grows within what is believed is no bomb, even where its longest value alone looks like one."""
    values = [b"a" * (1 << 20), *(bytes([n]) for n in range(200))]
    indices = np.r_[0, np.tile(np.arange(1, 201), 50)].astype("i4")
    columns = _rows(len(indices)) | {
        "inline_data": pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values, pa.binary())),
        "length": pa.array([1 << 20, *([1] * (len(indices) - 1))], pa.uint32()),
        "offset": pa.nulls(len(indices), pa.uint64()),
        "coord": pa.array([encode_coord((n,)) for n in range(len(indices))], pa.binary()),
    }
    (found,) = get_format(SpecVersion.DATASET).decode_manifest(_parquet(pa.table(columns))).tables.values()
    assert len(found) == len(indices) and len(found.inline) == (1 << 20) + len(indices) - 1


def test_a_footer_with_wrong_sizes_gives_a_format_error() -> None:
    data = _manifest_bomb("inline_data", 1 << 10, 10)
    layout = get_format(SpecVersion.DATASET)
    for position in range(len(data) - 800, len(data) - 8, 3):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        with contextlib.suppress(FormatError):
            layout.decode_manifest(bytes(broken))


# -- MessagePack ----------------------------------------------------------------------------------------------------

HEAVY = {
    "empty arrays": b"\x90",
    "empty maps": b"\x80",
    "arrays of one": b"\x91\x00",
    "maps of one": b"\x81\xa1a\xc0",
    "numbers": b"\xcd\xff\xff",
    "negative numbers": b"\xe0",
    "texts": b"\xa2ab",
}
"""Values of few bytes that take many as Python objects."""


def _array(value: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + value * count


def _pack(*members: Any) -> bytes:
    return msgspec.msgpack.encode(list(members))


def _snapshot_body(properties: Any, nodes: Any) -> bytes:
    own = [new_object_id(), "2024-01-01T00:00:00Z", "message"]
    return _pack([], [], 0, 0, [], own, "2024-01-01T00:00:00Z", properties, nodes)


def _messagepack_bombs(value: bytes, count: int) -> dict[str, tuple[str, FileType, bytes]]:
    """Each place of the files of `repository` where a value or a list may be as long as its writer likes."""
    many = msgspec.Raw(_array(value, count))
    group = [new_object_id()[:13], "/", {"Inline": {"a": many}}, "Group"]
    return {
        "properties": ("snapshot", FileType.SNAPSHOT, _snapshot_body({"a": many}, {})),
        "attributes in a snapshot": ("documents", FileType.SNAPSHOT, _snapshot_body({}, {"/": group})),
        "manifest files": ("snapshot", FileType.SNAPSHOT, b"\x99" + bytes(many) + _snapshot_body({}, {})[2:]),
        "references": ("manifest", FileType.MANIFEST, _pack(1, {}, {0: {(0,): {"Ref": many}}})),
        "ids of a log": ("transaction log", FileType.TRANSACTION_LOG, _pack(1, many, [], [], [], [], [], {})),
        "chunks of a log": ("transaction log", FileType.TRANSACTION_LOG, _pack(1, [], [], [], [], [], [], {0: many})),
        "rows of attributes": ("attributes", FileType.ATTRIBUTES, bytes(many)),
    }


def _as_file(kind: FileType, body: bytes) -> bytes:
    return encode_header(kind, 1) + compress(body)


@pytest.mark.long
@pytest.mark.parametrize("place", sorted(_messagepack_bombs(b"\x90", 1)))
@pytest.mark.parametrize("heavy", sorted(HEAVY))
def test_messagepack_that_would_become_large_is_refused(place: str, heavy: str) -> None:
    """16 MiB of a body are free, and one byte of it may become 80 in memory."""
    value = HEAVY[heavy]
    kind, file_type, body = _messagepack_bombs(value, (15 << 20) // len(value))[place]
    data = _as_file(file_type, body) if heavy in ("empty arrays", "maps of one") else compress(body)
    assert len(data) < 64 << 10
    told, taken = decode_apart(SpecVersion.REPOSITORY, kind, data)
    assert told == "FormatError" and taken < MOST_BYTES, (told, taken >> 20)


@pytest.mark.long
def test_messagepack_of_a_large_honest_file_is_read() -> None:
    """Many groups that say nearly the same compress well, and are believed."""
    nodes = {
        path: [new_object_id()[:13], path, {"Inline": {"units": "K", "valid": [0, n]}}, "Group"]
        for n, path in enumerate(["/", *(f"/group{n:06}" for n in range(50_000))])
    }
    body = _snapshot_body({}, nodes)
    assert len(get_format(SpecVersion.REPOSITORY).decode_snapshot(_as_file(FileType.SNAPSHOT, body)).nodes) == 50_001


def test_what_a_reader_would_refuse_is_written_without_compression() -> None:
    layout = get_format(SpecVersion.REPOSITORY)
    rows = [b"[]"] * 4_000_000
    data = layout.encode_attributes(rows)
    assert ZSTD_MAGIC not in data[:64] and len(layout.decode_attributes(data)) == len(rows)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4), inner, max_size=20),
    max_leaves=60,
)


def _size(value: Any) -> int:
    """What a value takes, with what the collector of cycles puts in front of containers."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list):
        return sys.getsizeof(value) + 16 + sum(map(_size, value))
    if value is None or isinstance(value, bool) or (isinstance(value, int) and -5 <= value <= 256):
        return 0
    return sys.getsizeof(value) if value != "" else 0


@pytest.mark.long
@given(_VALUES, st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_an_estimate_is_never_less_than_what_the_values_take(value: Any, count: int) -> None:
    many = [value] * count
    packed, text = msgspec.msgpack.encode(many), json.dumps(many).encode()
    assert estimate_messagepack(packed) * 1.1 + 200 >= _size(msgspec.msgpack.decode(packed))
    assert estimate_json(text) * 1.1 + 200 >= _size(json.loads(text))


# -- JSON -----------------------------------------------------------------------------------------------------------


def test_json_in_compressed_files_that_would_become_large_is_refused() -> None:
    row = b'{"a":[' + b"[]," * (5 << 20) + b"[]]}"
    data = _as_file(FileType.ATTRIBUTES, _pack(row))
    assert len(data) < 64 << 10
    told, taken = decode_apart(SpecVersion.REPOSITORY, "attributes of a node", data)
    assert told == "FormatError" and taken < MOST_BYTES, (told, taken >> 20)


@pytest.mark.parametrize("version", [SpecVersion.ICECHUNK1, SpecVersion.ICECHUNK2])
def test_documents_of_official_generations_that_would_become_large_are_refused(version: SpecVersion) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    document = b'{"zarr_format":3,"node_type":"group","attributes":{"a":[' + b"[]," * (8 << 20) + b"[]]}}"
    snapshot = get_format(version).initial_snapshot(repo.lookup_snapshot(repo.lookup_branch("main")).written_at)
    from dataclasses import replace

    data = get_format(version).encode_snapshot(replace(snapshot, nodes={"/": GroupNode(new_node_id(), "/", document)}))
    assert len(data) < 1 << 20
    told, taken = decode_apart(version, "documents", data)
    assert told == "FormatError" and taken < MOST_BYTES, (told, taken >> 20)


@pytest.mark.parametrize("version", [SpecVersion.STORE, SpecVersion.REPOSITORY])
def test_a_huge_configuration_or_ref_is_refused(version: SpecVersion) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    bomb = b'{"a":[' + b"[]," * (2 << 20) + b"[]]}"
    run_blocking(repo.storage.put("config.json", bomb))
    with pytest.raises(FormatError, match="at most"):
        icefloe.Repository.open(repo.storage)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["snapshot", "manifest", "attributes"])
def test_plain_json_becomes_no_more_than_64_times_its_file(kind: str) -> None:
    data = b'{"nodes":[' + b"[]," * (2 << 20) + b"[]]}"
    told, taken = decode_apart(SpecVersion.STORE, kind, data)
    assert told == "FormatError" and taken < 64 * len(data), (told, taken >> 20)


@pytest.mark.long
def test_a_state_file_becomes_no_more_than_64_times_its_size() -> None:
    from icefloe.formats.dataset.state import parse_state

    data = b'{"id":[' + b"[]," * (1 << 18) + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse_state(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(data)
    finally:
        tracemalloc.stop()


# -- flatbuffers ----------------------------------------------------------------------------------------------------

SHARED_ROWS = 400
_LONG = (b"\0\0p\0" * (2 << 20)).decode()
"""Text of 8 MiB, each word of which is also the length of a text of 7 MiB."""


def _name_parts_of(body: bytes, tiny: list[bytes], inside: int) -> bytes:
    """The body with every offset that led to a small text leading into the long one, each to another word."""
    words = np.frombuffer(body[: len(body) // 4 * 4], dtype="<u4").astype(np.int64)
    targets = words + np.arange(len(words)) * 4
    patched = bytearray(body)
    for index, text in enumerate(tiny):
        at = body.index(len(text).to_bytes(4, "little") + text)
        (fields,) = np.nonzero(targets == at)
        assert len(fields), text
        for field in fields.tolist():
            patched[4 * field : 4 * field + 4] = (inside + 4 * index - 4 * field).to_bytes(4, "little")
    return bytes(patched)


@pytest.mark.parametrize("version", [SpecVersion.ICECHUNK1, SpecVersion.ICECHUNK2])
@pytest.mark.parametrize("column", ["location", "etag", "inline"])
def test_flatbuffers_whose_rows_share_overlapping_texts_take_no_memory(version: SpecVersion, column: str) -> None:
    def row(text: str) -> ChunkRef:
        if column == "inline":
            return ChunkRef(ChunkKind.INLINE, 0, len(text), data=text.encode())
        if column == "etag":
            return ChunkRef(ChunkKind.VIRTUAL, 0, 1, location="s3://b/k", etag=text)
        return ChunkRef(ChunkKind.VIRTUAL, 0, 1, location=text)

    tiny = [f"s3://tiny/{n:06}" for n in range(SHARED_ROWS)]
    long = f"s3://long/{'x' * 2}{_LONG}"
    rows = [((n,), row(text)) for n, text in enumerate([*tiny, long])]
    layout = get_format(version)
    data = layout.encode_manifest(Manifest(new_object_id(), {new_node_id(): table_from_rows(rows, 1)}))
    header, body = data[:39], zstandard.ZstdDecompressor().decompress(data[39:])
    start = body.index(long.encode())
    bomb = header + compress(_name_parts_of(body, [text.encode() for text in tiny], start + 12))
    assert len(bomb) < 1 << 20
    told, taken = decode_apart(version, "references", bomb)
    # Inline bytes stay where they are in the body, so that rows may share them.
    assert (told == "FormatError" or column == "inline") and taken < MOST_BYTES, (told, taken >> 20)


@pytest.mark.long
def test_flexbuffers_that_would_become_large_are_refused() -> None:
    count = 1_100_000
    numbers = count.to_bytes(4, "little") + bytes(4 * count)
    data = numbers + (4 * count).to_bytes(4, "little") + bytes([12 << 2 | 2, 4])  # a vector of uint32
    with pytest.raises(FormatError, match="values"):
        decode_flexible(data)


def test_metadata_of_the_first_official_generation_that_would_become_large_is_refused() -> None:
    value = _array(b"\x90", 15 << 20)
    with pytest.raises(FormatError, match="memory"):
        decode_metadata((("a", value),), 1)
    with pytest.raises(FormatError, match="memory"):
        decode_metadata(tuple((str(n), _array(b"\x90", 1 << 20)) for n in range(15)), 1)
