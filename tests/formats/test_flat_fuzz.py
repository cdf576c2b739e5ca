"""Every offset, length and count of a flatbuffers file, set to hostile values: a typed error or a valid reading."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zstandard

from icefloe.errors import FormatError
from icefloe.formats.flatbuf.decode import Body, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, Coordinates, FlatWriter
from icefloe.formats.flatbuf.files import decode_transaction_log_body, encode_transaction_log_body
from icefloe.formats.flatbuf.flexbuffers import Kind, decode_flexible, encode_flexible
from icefloe.formats.flatbuf.manifest import FlatManifest, decode_manifest_body, encode_manifest_body
from icefloe.formats.flatbuf.snapshot import FlatNodes, NodeColumns, decode_snapshot_body, encode_snapshot_body
from icefloe.formats.header import FileType, compress, encode_header
from icefloe.formats.icechunk2 import FORMAT
from icefloe.formats.icechunk2.repo_file import (
    Availability,
    FlagChange,
    RepoHead,
    RepoInfo,
    SnapshotRecord,
    StatusRecord,
    UpdateKind,
    UpdateRecord,
    decode_repo_body,
    encode_repo_body,
)
from icefloe.ids import new_node_id, new_object_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.snapshot import (
    ArrayNode,
    GroupNode,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Move,
    Snapshot,
    TransactionLog,
)

Reader = Callable[[bytes], Any]
PLACES = [(b"matrices", (i, j)) for i in (0, 1) for j in (0, 1)] + [
    (b"scalars.", ()),
    (bytes(8), (0,)),
    (bytes(8), (1,)),
]


def manifest_body(spec: int) -> bytes:
    rows = [
        ((0, 0), ChunkRef(ChunkKind.NATIVE, 8, 9, object_id=b"i" * 12)),
        ((0, 1), ChunkRef(ChunkKind.INLINE, 0, 5, data=b"bytes")),
        ((1, 0), ChunkRef(ChunkKind.VIRTUAL, 1, 2, location="s3://b/k", etag="e", last_modified=7)),
        ((1, 1), ChunkRef(ChunkKind.VIRTUAL, 1, 2, location="s3://b/other")),
    ]
    tables = {b"matrices": table_from_rows(rows, 2), b"scalars.": table_from_rows([((), rows[0][1])], 0)}
    return encode_manifest_body(Manifest(new_object_id(), tables), spec)


def compressed_manifest_body() -> bytes:
    """A manifest with two locations compressed by a dictionary, as official writers make for large ones."""
    urls = [f"s3://bucket/prefix/file-{i:04d}.nc".encode() for i in range(200)]
    dictionary = zstandard.train_dictionary(512, urls * 5)
    compressor = zstandard.ZstdCompressor(dict_data=dictionary, level=3)
    writer = FlatWriter()
    root = writer.tables(1, {0: 12, 1: OFFSET_TYPE, 2: OFFSET_TYPE, 3: "u1"}).set(3, 1)
    arrays = writer.references(np.array([1]))
    root.link(1, arrays.positions).link(2, writer.blobs([dictionary.as_bytes()]))
    array = writer.tables(1, {0: 8, 1: OFFSET_TYPE})
    arrays.link(array.positions)
    refs = writer.references(np.array([2]))
    array.link(1, refs.positions)
    rows = writer.tables(2, {0: Coordinates(1), 2: "<u8", 3: "<u8", 8: OFFSET_TYPE})
    rows.set_coordinates(0, np.array([[0], [1]], dtype=np.uint32)).set(3, 9)
    rows.link(8, writer.blobs([compressor.compress(urls[3]), compressor.compress(urls[4])]))
    refs.link(rows.positions)
    return writer.finish(root)


def snapshot_body(spec: int) -> bytes:
    manifest = new_object_id()
    nodes = [
        GroupNode(new_node_id(), "/", b"{}"),
        ArrayNode(
            new_node_id(),
            "/a",
            b"{ }",
            (10, 20),
            (5, 2),
            ("x", None),
            (ManifestRef(manifest, ((0, 5), (0, 2))), ManifestRef(manifest, ())),
        ),
        ArrayNode(new_node_id(), "/b", b"", (), (), None, ()),
    ]
    snapshot = Snapshot(
        new_object_id(),
        new_object_id(),
        dt.datetime.now(dt.UTC),
        "message",
        {"k": {"a": [1, "b"]}},
        {node.path: node for node in nodes},
        {manifest: ManifestFileInfo(manifest, 100, 3)},
    )
    return encode_snapshot_body(snapshot, spec)


def log_body() -> bytes:
    some = frozenset([new_node_id(), new_node_id()])
    chunks = {new_node_id(): np.array([[0, 1], [2, 3]], dtype=np.uint32), new_node_id(): np.zeros((1, 0), np.uint32)}
    log = TransactionLog(some, some, some, some, some, some, chunks, (Move("/a", "/b", new_node_id(), True),))
    return encode_transaction_log_body(new_object_id(), log, with_moves=True)


def repo_body() -> bytes:
    first, second = sorted([new_object_id(), new_object_id()])
    status = StatusRecord(Availability.READ_ONLY, 5, "why")
    kinds = UpdateKind
    info = RepoInfo(
        branches={"main": second, "dev": first},
        snapshots={
            first: SnapshotRecord(first, None, 1, "a", (("k", encode_flexible({"a": 1})),)),
            second: SnapshotRecord(second, first, 2, "b", (), (first,)),
        },
        updates=(
            UpdateRecord(kinds.NEW_COMMIT, 9, None, name="main", new_id=second),
            UpdateRecord(kinds.COMMIT_AMENDED, 8, "p", name="main", previous_id=first, new_id=second),
            UpdateRecord(kinds.STATUS_CHANGED, 7, "q", status=status),
            UpdateRecord(kinds.FEATURE_FLAG_CHANGED, 6, None, flag=FlagChange(3, True, True)),
            UpdateRecord(kinds.TAG_DELETED, 5, None, name="t", previous_id=first),
            UpdateRecord(kinds.REPO_MIGRATED, 4, None, versions=(1, 2)),
        ),
        status=status,
        tags={"v1": first},
        deleted_tags=frozenset(["old"]),
        metadata=(("m", encode_flexible(None)),),
        updates_before="repo.1",
        config=encode_flexible({"x": 1}),
        enabled_flags=frozenset([3]),
        disabled_flags=frozenset([4, 5]),
    )
    return encode_repo_body(info)


def read_manifest(data: bytes) -> None:
    for table in decode_manifest_body(Body(data, "manifest")).tables.values():
        for _, ref in table.rows():
            assert ref.kind is not ChunkKind.INLINE or len(ref.data or b"") == ref.length


def search_manifest(data: bytes) -> None:
    for node_id, coords in PLACES:
        opened = FlatManifest(Body(data, "manifest"))
        for ref in opened.find(node_id, [coords]) or ():
            assert ref.kind is not ChunkKind.INLINE or len(ref.data or b"") == ref.length


def read_snapshot(spec: int) -> Reader:
    def read(data: bytes) -> None:
        dict(decode_snapshot_body(Body(data, "snapshot"), spec).nodes)

    return read


def read_node_columns(data: bytes) -> None:
    """The way of snapshots with many nodes."""
    dict(FlatNodes(NodeColumns(root_table(Body(data, "snapshot")).tables(2)[0])))


def head(data: bytes) -> None:
    seen = RepoHead(Body(data, "repo"))
    assert seen.status.availability in Availability
    assert seen.config is None or len(seen.config) < len(data)
    for name in ("main", "dev", "none"):
        seen.find_branch(name)
    seen.find_tag("v1")


FILES: dict[str, tuple[bytes, Reader]] = {
    "manifest 1": (manifest_body(1), read_manifest),
    "manifest 2": (manifest_body(2), read_manifest),
    "compressed": (compressed_manifest_body(), read_manifest),
    "snapshot 1": (snapshot_body(1), read_snapshot(1)),
    "snapshot 2": (snapshot_body(2), read_snapshot(2)),
    "log": (log_body(), lambda data: decode_transaction_log_body(Body(data, "log"))),
    "repo": (repo_body(), lambda data: decode_repo_body(Body(data, "repo"))),
    "manifest 2, searched": (manifest_body(2), search_manifest),
    "compressed, searched": (compressed_manifest_body(), search_manifest),
    "snapshot 1, in columns": (snapshot_body(1), read_node_columns),
    "snapshot 2, in columns": (snapshot_body(2), read_node_columns),
    "repo, at a glance": (repo_body(), head),
}
MUTATIONS_PER_FILE = 3000


def mutations(data: bytes) -> Iterator[bytes]:
    """Every 16-bit and 32-bit word of a file, set to the values that break naive readers."""
    size = len(data)
    for width in (2, 4):
        top = (1 << (8 * width)) - 1
        for at in range(0, size - width + 1, 2):
            word = int.from_bytes(data[at : at + width], "little")
            hostile = {0, top, top >> 1, word + 1, word - 1, word + 4, word ^ (top >> 1), size, size - at}
            for value in sorted(hostile - {word}):
                yield data[:at] + (value & top).to_bytes(width, "little") + data[at + width :]


def survive(read: Reader, data: bytes) -> bool:
    try:
        read(data)
    except FormatError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_word_is_an_error_or_a_valid_reading(name: str) -> None:
    data, read = FILES[name]
    assert survive(read, data)
    picked = list(mutations(data))
    random.Random(name).shuffle(picked)
    refused = sum(not survive(read, mutated) for mutated in picked[:MUTATIONS_PER_FILE])
    assert refused > 50
    assert len(picked) > MUTATIONS_PER_FILE


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
def test_every_word_changed_is_an_error_or_a_valid_reading(name: str) -> None:
    data, read = FILES[name]
    for mutated in mutations(data):
        survive(read, mutated)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_truncated_file_is_an_error(name: str) -> None:
    data, read = FILES[name]
    cut = sum(survive(read, data[:end]) for end in range(0, len(data) - 4, 3))
    assert cut < len(data) // 10


@pytest.mark.long
def test_several_random_changes_at_once_are_an_error_or_a_valid_reading() -> None:
    chance = random.Random(7)
    for data, read in FILES.values():
        for _ in range(400):
            mutated = bytearray(data)
            for _ in range(chance.randint(2, 12)):
                mutated[chance.randrange(len(data))] = chance.choice((0, 1, 4, 255, chance.randrange(256)))
            survive(read, bytes(mutated))


def test_shared_containers_do_not_expand_without_end() -> None:
    """A few hundred bytes of FlexBuffers in which every level names the one below many times."""
    vector = Kind.VECTOR << 2
    data = bytearray([1, 0, Kind.INT << 2])
    start = 1
    for _ in range(11):
        data.append(9)
        here = len(data)
        data += bytes(here + i - start for i in range(9))
        data += bytes([vector]) * 9
        start = here
    data += bytes([len(data) - start, vector, 1])
    with pytest.raises(FormatError, match="more items"):
        decode_flexible(bytes(data))


def test_references_that_share_one_table_are_refused_before_they_fill_the_memory() -> None:
    """A small file that names one reference millions of times."""
    writer = FlatWriter()
    root = writer.tables(1, {0: 12, 1: OFFSET_TYPE})
    arrays = writer.references(np.array([1]))
    root.link(1, arrays.positions)
    array = writer.tables(1, {0: 8, 1: OFFSET_TYPE})
    arrays.link(array.positions)
    count = 4_000_000
    refs = writer.references(np.array([count]))
    array.link(1, refs.positions)
    row = writer.tables(1, {0: Coordinates(1), 2: "<u8", 3: "<u8", 4: 12})
    refs.link(np.repeat(row.positions, count))
    body = writer.finish(root)
    with pytest.raises(FormatError, match="overlap"):
        decode_manifest_body(Body(body, "manifest"))


def test_a_body_that_expands_without_end_is_refused() -> None:
    bomb = encode_header(FileType.MANIFEST, 2) + compress(bytes(64 << 20))
    with pytest.raises(FormatError):
        FORMAT.decode_manifest(bomb)
    for data in (b"", b"x" * 38, encode_header(FileType.MANIFEST, 2), encode_header(FileType.SNAPSHOT, 9) + b"x"):
        with pytest.raises(FormatError):
            FORMAT.decode_manifest(data)
