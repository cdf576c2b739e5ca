"""What a generation of the format offers: names of files, and bytes to model and back."""

from __future__ import annotations

import copy
import datetime as dt
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

from icefloe.ids import NodeId, ObjectId, encode_base32, new_object_id
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.snapshot import Manifest, Snapshot, SnapshotInfo, TransactionLog


class OpenManifest(ABC):
    """A manifest file ready to be asked for single references, before it is decoded."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory held, for caches."""

    @abstractmethod
    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        """The references of these chunks of an array.

        None asks to decode all of it: a chunk was not found, or so many searches would take longer.
        """

    @abstractmethod
    def decode(self) -> Manifest:
        """All references."""


class DecodedManifest(OpenManifest):
    """A manifest that there is no way to search in: it was decoded at once."""

    def __init__(self, manifest: Manifest, size_bytes: int) -> None:
        self._manifest = manifest
        self._size_bytes = size_bytes

    @property
    def nbytes(self) -> int:
        return self._size_bytes

    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        return None

    def decode(self) -> Manifest:
        return self._manifest


class Format(ABC):
    """One generation. Encoders take model values that the capabilities allow; decoders raise FormatError only."""

    spec_version: SpecVersion
    capabilities: Capabilities

    snapshots_folder = "snapshots/"
    manifests_folder = "manifests/"
    transactions_folder = "transactions/"
    attributes_folder = "attributes/"
    chunks_folder = "chunks/"
    metadata_extension = ""
    logs_initial_snapshot = False
    """Whether the first snapshot, too, has a transaction log."""
    compression_level: int | None = None
    """Of the files it writes, where their compression has levels; None is the generation's own choice."""

    def compressed_at(self, level: int | None) -> Self:
        """The same generation, writing its files with another compression level."""
        if level == self.compression_level:
            return self
        twin = copy.copy(self)
        twin.compression_level = level
        return twin

    def snapshot_key(self, snapshot_id: ObjectId) -> str:
        return f"{self.snapshots_folder}{snapshot_id}{self.metadata_extension}"

    def manifest_key(self, manifest_id: ObjectId) -> str:
        return f"{self.manifests_folder}{manifest_id}{self.metadata_extension}"

    def transaction_log_key(self, snapshot_id: ObjectId) -> str:
        return f"{self.transactions_folder}{snapshot_id}{self.metadata_extension}"

    def attributes_key(self, attributes_id: ObjectId) -> str:
        return f"{self.attributes_folder}{attributes_id}{self.metadata_extension}"

    def chunk_key(self, chunk_id: bytes) -> str:
        return f"{self.chunks_folder}{encode_base32(chunk_id)}"

    def object_metadata(self, file_type: str) -> Mapping[str, str]:
        """User metadata for an object of type snapshot, manifest, transaction-log or attributes."""
        return {}

    def initial_snapshot(self, now: dt.datetime) -> Snapshot:
        """The snapshot without nodes that a new repository starts from."""
        return Snapshot(
            id=new_object_id(self.capabilities.object_id_bytes),
            parent_id=None,
            written_at=now,
            message="Repository initialized",
            metadata={},
            nodes={},
            manifests={},
            total_ancestors=0,
            started_at=now,
        )

    def read_back_commit(self, info: SnapshotInfo) -> tuple[str, Mapping[str, Any]]:
        """The message and metadata of a commit as they are read after they were written."""
        width = self.capabilities.object_id_bytes
        snapshot = Snapshot(
            "0" * -(-width * 8 // 5), None, info.written_at, info.message, info.metadata, {}, {}, total_ancestors=0
        )
        read = self.decode_snapshot(self.encode_snapshot(snapshot))
        return read.message, read.metadata

    @abstractmethod
    def encode_snapshot(self, snapshot: Snapshot) -> bytes: ...

    @abstractmethod
    def decode_snapshot(self, data: bytes) -> Snapshot: ...

    @abstractmethod
    def encode_manifest(self, manifest: Manifest) -> bytes: ...

    @abstractmethod
    def decode_manifest(self, data: bytes) -> Manifest: ...

    searches_manifests = False
    """Whether `open_manifest` is there: single references are found faster than all of them are decoded."""

    def open_manifest(self, data: bytes) -> OpenManifest:
        """A manifest file to search in."""
        raise NotImplementedError

    @abstractmethod
    def encode_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> bytes: ...

    @abstractmethod
    def decode_transaction_log(self, data: bytes) -> TransactionLog: ...

    def encode_attributes(self, attributes: Sequence[bytes]) -> bytes:
        """An attributes file: row i holds the i-th attributes object, as JSON text."""
        raise NotImplementedError

    def decode_attributes(self, data: bytes) -> Sequence[bytes]:
        raise NotImplementedError


@cache
def get_format(spec_version: SpecVersion) -> Format:
    """The Format of a generation.

    Every generation is a folder of its name that offers FORMAT; only those in use are loaded, because some bring
    large libraries with them.
    """
    module = importlib.import_module(f"icefloe.formats.{spec_version.value}")
    found: Format = module.FORMAT
    return found
