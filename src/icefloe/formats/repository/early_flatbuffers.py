"""Files of the days between this generation and `icechunk1`: flatbuffers around the MessagePack of Zarr metadata."""

from __future__ import annotations

import msgspec

from icefloe.errors import FormatError
from icefloe.formats.flat.body import Body
from icefloe.formats.flat.early import decode_early_snapshot_body, is_early_snapshot
from icefloe.formats.flat.manifest_reader import decode_manifest_body
from icefloe.formats.flat.snapshot_reader import decode_snapshot_body
from icefloe.formats.flat.transaction_logs import decode_transaction_log_body
from icefloe.formats.repository.documents import AS_EARLY, decode_members, put_together
from icefloe.formats.repository.values import MALFORMED
from icefloe.model.snapshot import Manifest, Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.model.zarr_document import ArrayShape, parse_array_shape, parse_document

_SPEC = 1


class _Documents:
    """zarr.json from the members of that time."""

    def build_group(self, attributes: bytes | None) -> bytes:
        return put_together(_unpack(attributes), None, AS_EARLY)

    def build_array(self, members: bytes, attributes: bytes | None) -> tuple[bytes, ArrayShape]:
        try:
            document = put_together(_unpack(attributes), decode_members(members), AS_EARLY)
            return document, parse_array_shape(parse_document(document))
        except (*MALFORMED, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"the Zarr metadata of an early snapshot cannot be read: {error}") from error


def _unpack(attributes: bytes | None) -> object:
    if attributes is None:
        return None
    try:
        return msgspec.msgpack.decode(attributes)
    except MALFORMED as error:
        raise FormatError(f"the attributes of an early snapshot cannot be read: {error}") from error


def decode_flat_snapshot(body: bytes) -> Snapshot:
    """A flatbuffers snapshot, of the early layout or already of the later one."""
    flat = Body(body, "snapshot")
    if is_early_snapshot(flat):
        return decode_early_snapshot_body(flat, _Documents())
    return decode_snapshot_body(flat, _SPEC)


def decode_flat_manifest(body: bytes) -> Manifest:
    """A flatbuffers manifest."""
    return decode_manifest_body(Body(body, "manifest"))


def decode_flat_log(body: bytes) -> TransactionLog:
    """A flatbuffers transaction log."""
    return decode_transaction_log_body(Body(body, "transaction log"))
