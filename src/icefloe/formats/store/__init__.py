"""The generation `store`: JSON files that follow the schemas of the specification.

Modules
-------
- `manifest`: Manifests of the generation `store`: JSON text to columns and back.
- `snapshot`: Snapshots, attributes files and refs of the generation `store`: JSON, and MessagePack as early code
  wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.errors import UnsupportedError
from icefloe.formats.format import Format
from icefloe.formats.store import manifest as manifest_file
from icefloe.formats.store import snapshot as snapshot_file
from icefloe.formats.store.snapshot import ID_BYTES
from icefloe.ids import ObjectId
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog


class StoreFormat(Format):
    """JSON metadata under `s/ a/ m/`, chunks under `c/`, refs under `r/`."""

    spec_version = SpecVersion.STORE
    capabilities = Capabilities(
        object_id_bytes=ID_BYTES,
        node_id_is_counter=True,
        attributes_files=True,
        transaction_logs=False,
        history_in_snapshot=True,
    )

    snapshots_folder = "s/"
    manifests_folder = "m/"
    attributes_folder = "a/"
    chunks_folder = "c/"
    metadata_extension = ".json"

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return snapshot_file.encode_snapshot(snapshot)

    def decode_snapshot(self, data: bytes) -> Snapshot:
        return snapshot_file.decode_snapshot(data)

    def encode_manifest(self, manifest: Manifest) -> bytes:
        return manifest_file.encode_manifest(manifest)

    def decode_manifest(self, data: bytes) -> Manifest:
        return manifest_file.decode_manifest(data)

    def encode_attributes(self, attributes: Sequence[bytes]) -> bytes:
        return snapshot_file.encode_attributes(attributes)

    def decode_attributes(self, data: bytes) -> Sequence[bytes]:
        return snapshot_file.decode_attributes(data)

    def encode_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> bytes:
        raise UnsupportedError("the generation `store` has no transaction logs. Compare snapshots instead")

    def decode_transaction_log(self, data: bytes) -> TransactionLog:
        raise UnsupportedError("the generation `store` has no transaction logs. Compare snapshots instead")


FORMAT: Format = StoreFormat()
