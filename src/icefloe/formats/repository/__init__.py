"""The generation `repository`: header, zstd and MessagePack.

Modules
-------
- `legacy_flatbuffers`: Files of early releases between `repository` and `icechunk1`: flatbuffers around MessagePack
  metadata.
- `manifest_list`: Manifest lists of the generation `repository`: their files, and their summaries in snapshots.
- `manifest_reader`: Read manifests of the generation `repository`: as a matrix where rows have fixed width, else
  entry by entry.
- `manifest_writer`: Write manifests of the generation `repository` as rows of fixed width.
- `snapshot`: Snapshots and small documents of the generation `repository`: MessagePack and JSON to values and back.
- `transaction_log`: Transaction logs of the generation `repository`: lists of node ids and coordinates of changed
  chunks.
- `wire_values`: Values in MessagePack files of the generation `repository`: checked decoding, and ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from icefloe.formats.format import DecodedManifest, Format, OpenManifest
from icefloe.formats.header import (
    WRITER,
    ZSTD_MAGIC,
    Compression,
    DecompressionLimits,
    FileType,
    compress,
    decode_file,
    decompress,
    encode_header,
    has_magic,
    is_believable,
    is_flatbuffer,
)
from icefloe.formats.repository.manifest_list import decode_list_body, encode_list_body
from icefloe.formats.repository.manifest_reader import RowManifest, decode_manifest_body
from icefloe.formats.repository.manifest_writer import HINT_PREFIX, encode_manifest_body
from icefloe.formats.repository.snapshot import decode_snapshot_body, encode_snapshot_body
from icefloe.formats.repository.transaction_log import decode_log_body, encode_log_body
from icefloe.formats.repository.wire_values import MALFORMED, decode_or_refuse
from icefloe.ids import ObjectId
from icefloe.lazy_exports import lazy_module
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.manifest_lists import ListContent
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog
from icefloe.model.zarr_document import check_messagepack, is_believable_messagepack

if TYPE_CHECKING:
    from icefloe.formats.repository import legacy_flatbuffers as legacy
else:
    legacy = lazy_module("icefloe.formats.repository.legacy_flatbuffers")

SPEC_VERSION = 1
_LEVEL = 1
"""Level 3 takes twice as long and does not make these files smaller."""
_LIMITS = {
    FileType.SNAPSHOT: DecompressionLimits(max_bytes=1 << 30),
    FileType.MANIFEST: DecompressionLimits(max_bytes=4 << 30),
    FileType.MANIFEST_LIST: DecompressionLimits(max_bytes=1 << 30),
    FileType.ATTRIBUTES: DecompressionLimits(max_bytes=1 << 30),
    FileType.TRANSACTION_LOG: DecompressionLimits(max_bytes=1 << 30),
}
_BYTES_ROWS = msgspec.msgpack.Decoder(list[bytes])
_TEXT_ROWS = msgspec.msgpack.Decoder(list[str])


class RepositoryFormat(Format):
    """Writes one layout. Reads all layouts that were released in this generation."""

    spec_version = SpecVersion.REPOSITORY
    capabilities = Capabilities(
        boxes_in_logs=True, attributes_files=True, history_in_snapshot=True, manifest_lists=True
    )
    searches_manifests = True

    def object_metadata(self, file_type: str) -> Mapping[str, str]:
        return {
            "ic_spec_ver": str(SPEC_VERSION),
            "ic_client": WRITER,
            "ic_file_type": file_type,
            "ic_comp_alg": "zstd",
        }

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return self._encode(FileType.SNAPSHOT, encode_snapshot_body(snapshot))

    def decode_snapshot(self, data: bytes) -> Snapshot:
        body = _decode(FileType.SNAPSHOT, data)
        if is_flatbuffer(body):
            return legacy.decode_flat_snapshot(body)
        check_messagepack(body, len(data), "snapshot")
        return decode_snapshot_body(body)

    def encode_manifest(self, manifest: Manifest) -> bytes:
        return self._encode(FileType.MANIFEST, encode_manifest_body(manifest))

    def decode_manifest(self, data: bytes) -> Manifest:
        body = _decode(FileType.MANIFEST, data)
        return legacy.decode_flat_manifest(body) if is_flatbuffer(body) else decode_manifest_body(body, len(data))

    def open_manifest(self, data: bytes) -> OpenManifest:
        body = _decode(FileType.MANIFEST, data)
        if is_flatbuffer(body):
            return DecodedManifest(legacy.decode_flat_manifest(body), len(body))
        return RowManifest(body, len(data))

    def encode_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> bytes:
        return self._encode(FileType.TRANSACTION_LOG, encode_log_body(log))

    def decode_transaction_log(self, data: bytes) -> TransactionLog:
        body = _decode(FileType.TRANSACTION_LOG, data)
        if is_flatbuffer(body):
            return legacy.decode_flat_log(body)
        check_messagepack(body, len(data), "transaction log")
        return decode_log_body(body)

    def encode_attributes(self, attributes: Sequence[bytes]) -> bytes:
        return self._encode(FileType.ATTRIBUTES, msgspec.msgpack.encode(list(attributes)))

    def decode_attributes(self, data: bytes) -> Sequence[bytes]:
        body = _decode(FileType.ATTRIBUTES, data)
        check_messagepack(body, len(data), "attributes")
        try:
            return _BYTES_ROWS.decode(body)
        except MALFORMED:
            return [row.encode() for row in decode_or_refuse(_TEXT_ROWS, body, "attributes")]

    def encode_manifest_list(self, content: ListContent) -> bytes:
        return self._encode(FileType.MANIFEST_LIST, encode_list_body(content))

    def decode_manifest_list(self, data: bytes) -> ListContent:
        body = _decode(FileType.MANIFEST_LIST, data)
        check_messagepack(body, len(data), "manifest list")
        return decode_list_body(body)

    def _encode(self, file_type: FileType, body: bytes | memoryview) -> bytes:
        compressed = compress(body, self.compression_level or _LEVEL)
        # Rows that a hint describes are not decoded to Python values.
        hinted = bytes(body[: len(HINT_PREFIX)]) == HINT_PREFIX
        if is_believable(len(body), len(compressed), _LIMITS[file_type]) and (
            hinted or is_believable_messagepack(body, len(compressed))
        ):
            return encode_header(file_type, SPEC_VERSION) + compressed
        # It compresses so well that a reader would refuse it as a decompression bomb.
        return encode_header(file_type, SPEC_VERSION, Compression.NONE) + bytes(body)


def _decode(file_type: FileType, data: bytes) -> bytes:
    """The body of a file. Files without a header are plain MessagePack, or a plain zstd frame."""
    if has_magic(data):
        return decode_file(data, file_type, range(SPEC_VERSION, SPEC_VERSION + 1), _LIMITS[file_type])[1]
    if data[: len(ZSTD_MAGIC)] == ZSTD_MAGIC:
        return decompress(data, _LIMITS[file_type])
    return bytes(data)


FORMAT = RepositoryFormat()
