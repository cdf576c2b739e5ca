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
from icefloe.model.manifest_lists import ListContent
from icefloe.model.snapshot import Manifest, Snapshot, SnapshotInfo, TransactionLog


class OpenManifest(ABC):
    """A manifest file that is searched for single references without decoding all of it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory used, for caches."""

    @abstractmethod
    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        """The references of these chunks of an array.

        Returns None if the whole manifest must be decoded: a chunk was not found, or decoding is faster than searching.
        """

    @abstractmethod
    def decode(self) -> Manifest:
        """All references."""


class DecodedManifest(OpenManifest):
    """A manifest that cannot be searched, and was decoded when it was opened."""

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
    """One generation. Encoders accept model values that the capabilities allow. Decoders only raise FormatError."""

    spec_version: SpecVersion
    capabilities: Capabilities

    snapshots_folder = "snapshots/"
    manifests_folder = "manifests/"
    transactions_folder = "transactions/"
    attributes_folder = "attributes/"
    chunks_folder = "chunks/"
    metadata_extension = ""
    logs_initial_snapshot = False
    """Whether the first snapshot has a transaction log too."""
    compression_level: int | None = None
    """The compression level of files it writes, if their compression has levels.

    None means the generation's default.
    """

    def compressed_at(self, level: int | None) -> Self:
        """The same generation with another compression level for new files."""
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

    def manifest_list_key(self, list_id: ObjectId) -> str:
        """Manifest lists are in the folder of attributes files. Snapshots refer to both kinds, and share them."""
        return f"{self.attributes_folder}{list_id}{self.metadata_extension}"

    def chunk_key(self, chunk_id: bytes) -> str:
        return f"{self.chunks_folder}{encode_base32(chunk_id)}"

    def object_metadata(self, file_type: str) -> Mapping[str, str]:
        """User metadata for an object of type snapshot, manifest, manifest-list, transaction-log or attributes."""
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
        """The message and metadata of a commit as they are read back after writing."""
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
    """Whether `open_manifest` is implemented: it finds single references faster than decoding all of them."""

    def open_manifest(self, data: bytes) -> OpenManifest:
        """Open a manifest file for searching."""
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

    def encode_manifest_list(self, content: ListContent) -> bytes:
        """A file with neighbouring manifests of a large array."""
        raise NotImplementedError

    def decode_manifest_list(self, data: bytes) -> ListContent:
        raise NotImplementedError


@cache
def get_format(spec_version: SpecVersion) -> Format:
    """The Format of a generation.

    Every generation is a package of the same name with an attribute FORMAT. A generation is imported at its first use,
    because some need large libraries.
    """
    module = importlib.import_module(f"icefloe.formats.{spec_version.value}")
    found: Format = module.FORMAT
    return found
