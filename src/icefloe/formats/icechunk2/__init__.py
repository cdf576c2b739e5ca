"""The official generation of icechunk 2.x: refs and history in the `repo` file.

Modules
-------
- `repo_edits`: Every change of a `repo` file as a pure function from the old value to the new one.
- `repo_file`: The `repo` file of icechunk 2.x: decoded, encoded, and in public values (status, feature flags,
  operations log).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from icefloe.formats.flatbuf import files
from icefloe.formats.flatbuf.snapshot import ROOT_MARK_2, make_initial_snapshot
from icefloe.formats.format import Format, OpenManifest
from icefloe.ids import ObjectId
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog

SPEC = 2


class Icechunk2Format(Format):
    """What official 2.x reads and writes.

    Official sessions that move nodes make no other changes. Official readers accept a commit with moves and other
    changes: they read it, its diff is right, and rebasing over it is a conflict as for any move.

    Snapshot files do not contain their parent. It is in the `repo` file. A migrated repository keeps files of the first
    generation. They are read by their own spec byte.
    """

    spec_version = SpecVersion.ICECHUNK2
    logs_initial_snapshot = True
    searches_manifests = True
    capabilities = Capabilities(
        deletable_tags=True,
        repository_metadata=True,
        repository_status=True,
        operations_log=True,
        feature_flags=True,
        any_key_encoding=False,
    )

    def object_metadata(self, file_type: str) -> Mapping[str, str]:
        return files.object_metadata(file_type, SPEC)

    def initial_snapshot(self, now: dt.datetime) -> Snapshot:
        return make_initial_snapshot(now, ROOT_MARK_2)

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


FORMAT: Format = Icechunk2Format()
