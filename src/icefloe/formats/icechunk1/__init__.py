"""The official generation of icechunk 0.2 to 1.x: refs in `ref.json` files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from icefloe.formats.flatbuf import files
from icefloe.formats.flatbuf.snapshot import ROOT_MARK_1, make_initial_snapshot
from icefloe.formats.format import Format, OpenManifest
from icefloe.ids import ObjectId
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog

SPEC = 1


class Icechunk1Format(Format):
    """What official 0.2 to 1.x reads and writes, and 2.x in repositories of spec version 1.

    The logs of 1.x have no entry for a move. A moved node keeps its id and has its new path. The log contains the move
    in the field that 2.x introduced. Official 1.x skips this field: its `diff` does not show the move, and its sessions
    see the new path.
    """

    spec_version = SpecVersion.ICECHUNK1
    searches_manifests = True
    capabilities = Capabilities(
        deletable_tags=True, any_chunk_grid=False, any_key_encoding=False, container_locations=False
    )

    def object_metadata(self, file_type: str) -> Mapping[str, str]:
        return files.object_metadata(file_type, SPEC)

    def initial_snapshot(self, now: dt.datetime) -> Snapshot:
        return make_initial_snapshot(now, ROOT_MARK_1)

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return files.encode_snapshot(snapshot, SPEC, self.compression_level)

    def decode_snapshot(self, data: bytes) -> Snapshot:
        return files.decode_snapshot(data)

    def encode_manifest(self, manifest: Manifest) -> bytes:
        return files.encode_manifest(manifest, SPEC, self.compression_level)

    def decode_manifest(self, data: bytes) -> Manifest:
        return files.decode_manifest(data)

    def open_manifest(self, data: bytes) -> OpenManifest:
        return files.open_manifest(data)

    def encode_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> bytes:
        return files.encode_transaction_log(snapshot_id, log, SPEC, self.compression_level)

    def decode_transaction_log(self, data: bytes) -> TransactionLog:
        return files.decode_transaction_log(data)


FORMAT: Format = Icechunk1Format()
