"""Whole files of the official generations: header, compressed body, and the limits under which they are opened."""

from __future__ import annotations

from collections.abc import Mapping

from icefloe.formats.compression import DecompressionLimits
from icefloe.formats.contract import OpenManifest
from icefloe.formats.flat.body import MAX_BODY_BYTES, Body
from icefloe.formats.flat.manifest_reader import decode_manifest_body
from icefloe.formats.flat.manifest_search import FlatManifest
from icefloe.formats.flat.manifest_writer import encode_manifest_body
from icefloe.formats.flat.snapshot_reader import decode_snapshot_body, decode_snapshot_info_body
from icefloe.formats.flat.snapshot_writer import encode_snapshot_body
from icefloe.formats.flat.transaction_logs import decode_transaction_log_body, encode_transaction_log_body
from icefloe.formats.header import WRITER, FileType, decode_file, encode_file
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Manifest, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog

SPEC_VERSIONS = range(1, 3)
_LIMITS = DecompressionLimits(max_bytes=MAX_BODY_BYTES, free_bytes=256 << 20)
_FAST_LEVEL_BYTES = 8 << 20
"""Bodies above this are mostly random ids, which a higher level would not make smaller."""


def open_body(data: bytes, file_type: FileType) -> tuple[int, Body]:
    """The spec version of a file and its flatbuffer."""
    header, body = decode_file(data, file_type, SPEC_VERSIONS, _LIMITS)
    return header.spec_version, Body(body, file_type.name.lower().replace("_", " "))


def seal_body(body: bytes, file_type: FileType, spec: int, level: int | None = None) -> bytes:
    """A whole file."""
    return encode_file(file_type, spec, body, level=level or (1 if len(body) > _FAST_LEVEL_BYTES else 3))


def decode_snapshot(data: bytes) -> Snapshot:
    """A snapshot file of either generation."""
    spec, body = open_body(data, FileType.SNAPSHOT)
    return decode_snapshot_body(body, spec)


def decode_snapshot_info(data: bytes) -> SnapshotInfo:
    """What history shows of a snapshot file, at a cost that does not grow with its nodes."""
    spec, body = open_body(data, FileType.SNAPSHOT)
    return decode_snapshot_info_body(body, spec)


def encode_snapshot(snapshot: Snapshot, spec: int, level: int | None = None) -> bytes:
    """A snapshot file."""
    return seal_body(encode_snapshot_body(snapshot, spec), FileType.SNAPSHOT, spec, level)


def decode_manifest(data: bytes) -> Manifest:
    """A manifest file of either generation."""
    return decode_manifest_body(open_body(data, FileType.MANIFEST)[1])


def open_manifest(data: bytes) -> OpenManifest:
    """A manifest file of either generation, to be searched."""
    return FlatManifest(open_body(data, FileType.MANIFEST)[1])


def encode_manifest(manifest: Manifest, spec: int, level: int | None = None) -> bytes:
    """A manifest file."""
    return seal_body(encode_manifest_body(manifest, spec), FileType.MANIFEST, spec, level)


def decode_transaction_log(data: bytes) -> TransactionLog:
    """A transaction log of either generation."""
    return decode_transaction_log_body(open_body(data, FileType.TRANSACTION_LOG)[1])


def encode_transaction_log(snapshot_id: ObjectId, log: TransactionLog, spec: int, level: int | None = None) -> bytes:
    """A transaction log file."""
    body = encode_transaction_log_body(snapshot_id, log, with_moves=spec >= 2)
    return seal_body(body, FileType.TRANSACTION_LOG, spec, level)


def object_metadata(file_type: str, spec: int) -> Mapping[str, str]:
    """What official writers attach to objects; never read back."""
    return {"ic_spec_ver": str(spec), "ic_client": WRITER, "ic_file_type": file_type, "ic_comp_alg": "zstd"}
