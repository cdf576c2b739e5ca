"""The generation `dataset`: a state file, and Parquet for everything else.

Modules
-------
- `manifest`: Manifests of the generation `dataset`: Parquet rows sorted by array and coordinates.
- `parquet`: Parquet files of the generation `dataset`: bounded reads, and the attributes file.
- `snapshot`: Structure files of the generation `dataset`: a snapshot as Parquet, one row per node.
- `state`: The state file of the generation `dataset`: all snapshots and refs. Unknown keys are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icefloe.errors import UnsupportedError
from icefloe.formats.dataset import manifest as manifest_file
from icefloe.formats.dataset import parquet as attributes_file
from icefloe.formats.dataset import snapshot as structure_file
from icefloe.formats.dataset.state import State, encode_state, parse_state, snapshot_entry
from icefloe.formats.format import Format
from icefloe.ids import ObjectId
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.snapshot import Manifest, Snapshot, SnapshotInfo, TransactionLog


class DatasetFormat(Format):
    """Parquet metadata under `s/ a/ i/`, chunks under `c/`; history and refs are in the state file."""

    spec_version = SpecVersion.DATASET
    capabilities = Capabilities(
        node_id_is_counter=True,
        attributes_files=True,
        transaction_logs=False,
        checksums=False,
    )

    snapshots_folder = "s/"
    manifests_folder = "i/"
    attributes_folder = "a/"
    chunks_folder = "c/"
    metadata_extension = structure_file.EXTENSION

    def read_back_commit(self, info: SnapshotInfo) -> tuple[str, Mapping[str, Any]]:
        state = State(id=info.id, generation=1, snapshots=(snapshot_entry(info),), refs={})
        found = parse_state(encode_state(state)).snapshots[0].info()
        return found.message, found.metadata

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return structure_file.encode_snapshot(snapshot)

    def decode_snapshot(self, data: bytes) -> Snapshot:
        return structure_file.decode_snapshot(data)

    def encode_manifest(self, manifest: Manifest) -> bytes:
        return manifest_file.encode_manifest(manifest)

    def decode_manifest(self, data: bytes) -> Manifest:
        return manifest_file.decode_manifest(data)

    def encode_attributes(self, attributes: Sequence[bytes]) -> bytes:
        return attributes_file.encode_attributes(attributes)

    def decode_attributes(self, data: bytes) -> Sequence[bytes]:
        return attributes_file.decode_attributes(data)

    def encode_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> bytes:
        raise UnsupportedError("the generation `dataset` has no transaction logs. Compare snapshots instead")

    def decode_transaction_log(self, data: bytes) -> TransactionLog:
        raise UnsupportedError("the generation `dataset` has no transaction logs. Compare snapshots instead")


FORMAT: Format = DatasetFormat()
