"""The configuration of a repository."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from icefloe.errors import InvalidInputError
from icefloe.model.config_value import Anything, Choice, ConfigValue, Count, Flag, Nested, Setting, Text, refused
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.virtual_chunk_container import VirtualChunkContainer

# Annotations are evaluated with the class: they say what the settings take, and every process asks them.


class PackBy(enum.Enum):
    """Whose chunks may lie in one pack."""

    MIXED = "mixed"
    """Chunks of several arrays: the fewest objects."""
    ARRAY = "array"
    """Chunks of one array only: a deleted array leaves no half-used packs behind."""


@dataclass(slots=True, repr=False)
class ChunkPackingConfig(ConfigValue):
    """Small chunks of a session share objects ("packs"); larger ones are objects of their own.

    threshold_bytes  chunks of at most this size are packed (those below the inline threshold are inline anyway)
    target_bytes     a pack is closed when the next chunk would make it larger than this
    by               `PackBy.MIXED` or `PackBy.ARRAY`

    The default target keeps a pack's read in one or two requests and its write in a single put, while 4 KiB chunks
    come to about 2,000 an object. Above the default threshold the time of a request is spent on bytes rather than on
    latency, so that packing gains little and costs garbage collection its grain.

    Examples
    --------
    >>> ChunkPackingConfig(enabled=False).effective("enabled")
    False
    """

    enabled: Annotated[bool | None, Setting(Flag(), True)] = None
    threshold_bytes: Annotated[int | None, Setting(Count(0, 2**40), 256 << 10)] = None
    target_bytes: Annotated[int | None, Setting(Count(1, 2**40), 8 << 20)] = None
    by: Annotated[PackBy | None, Setting(Choice(PackBy), PackBy.MIXED)] = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse a threshold above the target: such chunks would each fill a pack of their own."""
        threshold, target = self.effective("threshold_bytes"), self.effective("target_bytes")
        if self.threshold_bytes is not None and threshold > target:
            raise InvalidInputError(
                f"ChunkPackingConfig.threshold_bytes is {threshold}, more than target_bytes {target}; "
                "allowed: at most target_bytes"
            )


# Annotations are evaluated with the class: they say what the settings take, and every process asks them.


@dataclass(slots=True, repr=False)
class StorageConcurrencySettings(ConfigValue):
    """How one large object is fetched in several requests."""

    max_concurrent_requests_for_object: Annotated[int | None, Setting(Count(1, 65535), 18)] = None
    ideal_concurrent_request_size: Annotated[int | None, Setting(Count(1), 12 << 20)] = None


@dataclass(slots=True, repr=False)
class StorageRetriesSettings(ConfigValue):
    """How often a request is tried, and the waits in between."""

    max_tries: Annotated[int | None, Setting(Count(1, 65535), 10)] = None
    initial_backoff_ms: Annotated[int | None, Setting(Count(), 100)] = None
    max_backoff_ms: Annotated[int | None, Setting(Count(), 180_000)] = None


@dataclass(slots=True, repr=False)
class StorageTimeoutSettings(ConfigValue):
    """How long a request may take; unset is the backend's own limit."""

    connect_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    read_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    operation_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    operation_attempt_timeout_ms: Annotated[int | None, Setting(Count(1))] = None


@dataclass(slots=True, repr=False)
class StorageSettings(ConfigValue):
    """How the repository uses its storage."""

    concurrency: Annotated[StorageConcurrencySettings | None, Setting(Nested(StorageConcurrencySettings))] = None
    retries: Annotated[StorageRetriesSettings | None, Setting(Nested(StorageRetriesSettings))] = None
    unsafe_use_conditional_create: Annotated[bool | None, Setting(Flag(), True)] = None
    unsafe_use_conditional_update: Annotated[bool | None, Setting(Flag(), True)] = None
    unsafe_use_metadata: Annotated[bool | None, Setting(Flag(), True)] = None
    storage_class: Annotated[str | None, Setting(Text())] = None
    metadata_storage_class: Annotated[str | None, Setting(Text())] = None
    chunks_storage_class: Annotated[str | None, Setting(Text())] = None
    minimum_size_for_multipart_upload: Annotated[int | None, Setting(Count(1), 100 << 20)] = None
    timeouts: Annotated[StorageTimeoutSettings | None, Setting(Nested(StorageTimeoutSettings))] = None
    fsync: Annotated[bool | None, Setting(Flag(), True)] = None


# Annotations are evaluated with the class: they say what the settings take, and every process asks them.


_SNAPSHOT_NODE_BYTES = 512
"""What a node of a decoded snapshot weighs, document included; for limits given as a number of nodes."""
_CHUNK_REF_BYTES = 48
_CHANGE_BYTES = 24


class CompressionAlgorithm(enum.Enum):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> "CompressionAlgorithm":
        return CompressionAlgorithm.Zstd


_ALGORITHMS = Choice(CompressionAlgorithm)


@dataclass(slots=True, repr=False)
class CompressionConfig(ConfigValue):
    """How metadata files are compressed."""

    algorithm: Annotated[CompressionAlgorithm | None, Setting(_ALGORITHMS, CompressionAlgorithm.Zstd)] = None
    level: Annotated[int | None, Setting(Count(1, 22), 3)] = None


@dataclass(slots=True, repr=False)
class CachingConfig(ConfigValue):
    """How much of what was read is kept, for all sessions of a repository together.

    The limits by number are those people know; a limit by bytes, where it is set, wins.
    """

    num_snapshot_nodes: Annotated[int | None, Setting(Count(), 500_000)] = None
    num_chunk_refs: Annotated[int | None, Setting(Count(), 15_000_000)] = None
    num_transaction_changes: Annotated[int | None, Setting(Count(), 1_000_000)] = None
    num_bytes_attributes: Annotated[int | None, Setting(Count(), 64 << 20)] = None
    num_bytes_chunks: Annotated[int | None, Setting(Count(), 0)] = None
    num_bytes_snapshots: Annotated[int | None, Setting(Count())] = None
    num_bytes_manifests: Annotated[int | None, Setting(Count())] = None
    num_bytes_transaction_logs: Annotated[int | None, Setting(Count())] = None

    @property
    def snapshots_limit_bytes(self) -> int:
        return self._limit(self.num_bytes_snapshots, "num_snapshot_nodes", _SNAPSHOT_NODE_BYTES)

    @property
    def manifests_limit_bytes(self) -> int:
        return self._limit(self.num_bytes_manifests, "num_chunk_refs", _CHUNK_REF_BYTES)

    @property
    def transaction_logs_limit_bytes(self) -> int:
        return self._limit(self.num_bytes_transaction_logs, "num_transaction_changes", _CHANGE_BYTES)

    def _limit(self, in_bytes: int | None, name: str, weight_bytes: int) -> int:
        return int(self.effective(name)) * weight_bytes if in_bytes is None else in_bytes


@dataclass(slots=True, repr=False)
class RepoUpdateRetryConfig(ConfigValue):
    """How often an update that others overtook is tried again."""

    default: Annotated[StorageRetriesSettings | None, Setting(Nested(StorageRetriesSettings))] = None  # type: ignore[assignment]


@dataclass(slots=True, repr=False)
class RepositoryConfig(ConfigValue):
    """The configuration of a repository; what is None has its default.

    Examples
    --------
    >>> config = RepositoryConfig.default()
    >>> config.inline_chunk_threshold_bytes = 1024
    >>> config.merge(RepositoryConfig(max_concurrent_requests=64)).inline_chunk_threshold_bytes
    1024
    """

    inline_chunk_threshold_bytes: Annotated[int | None, Setting(Count(0, 2**31 - 1), 512)] = None
    get_partial_values_concurrency: Annotated[int | None, Setting(Count(1, 65535), 10)] = None
    compression: Annotated[CompressionConfig | None, Setting(Nested(CompressionConfig))] = None
    max_concurrent_requests: Annotated[int | None, Setting(Count(1, 65535), 256)] = None
    caching: Annotated[CachingConfig | None, Setting(Nested(CachingConfig))] = None
    storage: Annotated[StorageSettings | None, Setting(Nested(StorageSettings))] = None
    virtual_chunk_containers: Annotated[dict[str, VirtualChunkContainer] | None, Setting(Anything())] = None
    manifest: Annotated[ManifestConfig | None, Setting(Nested(ManifestConfig))] = None
    repo_update_retries: Annotated[RepoUpdateRetryConfig | None, Setting(Nested(RepoUpdateRetryConfig))] = None
    num_updates_per_repo_info_file: Annotated[int | None, Setting(Count(1, 65535), 1000)] = None
    max_concurrent_decodes: Annotated[int | None, Setting(Count(1, 65535))] = None
    chunk_packing: Annotated[ChunkPackingConfig | None, Setting(Nested(ChunkPackingConfig))] = None
    attributes_threshold_bytes: Annotated[int | None, Setting(Count(), 4096)] = None
    unknown: dict[str, Any] = field(default_factory=dict)
    """Keys of a stored configuration that this library does not know, kept for whoever does."""

    def __post_init__(self) -> None:
        given = self.virtual_chunk_containers
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise refused("RepositoryConfig.virtual_chunk_containers", given, "a dict of VirtualChunkContainer")
        for key, container in given.items():
            if not isinstance(container, VirtualChunkContainer):
                raise refused(
                    f"RepositoryConfig.virtual_chunk_containers[{key!r}]", container, "a VirtualChunkContainer"
                )
        object.__setattr__(self, "virtual_chunk_containers", dict(given))

    def merge(self, other: "RepositoryConfig") -> "RepositoryConfig":
        """A new configuration: what `other` sets wins, nested values merge, containers of `other` are added."""
        containers = self.virtual_chunk_containers
        mine = RepositoryConfig(**{name: getattr(self, name) for name in _MERGED})
        theirs = RepositoryConfig(**{name: getattr(other, name) for name in _MERGED})
        merged: RepositoryConfig = ConfigValue.merge(mine, theirs)
        merged.unknown = _merge_unknown(self.unknown, other.unknown)
        if self.manifest is not None and other.manifest is not None:
            merged.manifest = _merge_manifest(self.manifest, other.manifest)
        if containers is not None or other.virtual_chunk_containers is not None:
            merged.virtual_chunk_containers = dict(containers or {})
            given = [found for found in (containers or {}).values() if not found.stored]
            for container in (other.virtual_chunk_containers or {}).values():
                # What a repository holds never takes the place of what the caller gave.
                if not (container.stored and any(_is_same(found, container) for found in given)):
                    merged.set_virtual_chunk_container(container)
        return merged

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, or replace the one of the same name or prefix."""
        if not isinstance(cont, VirtualChunkContainer):
            raise InvalidInputError(f"a VirtualChunkContainer is needed, not {cont!r}")
        cont.check()
        kept = {
            key: other
            for key, other in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or other.name != cont.name
        }
        kept[cont.url_prefix] = cont
        self.virtual_chunk_containers = kept

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """The container with this prefix or name, if there is one."""
        containers = self.virtual_chunk_containers or {}
        if name in containers:
            return containers[name]
        return next((found for found in containers.values() if found.name == name), None)

    def clear_virtual_chunk_containers(self) -> None:
        """Forget all containers."""
        self.virtual_chunk_containers = {}


_MERGED = (
    "inline_chunk_threshold_bytes",
    "get_partial_values_concurrency",
    "compression",
    "max_concurrent_requests",
    "caching",
    "storage",
    "manifest",
    "repo_update_retries",
    "num_updates_per_repo_info_file",
    "max_concurrent_decodes",
    "chunk_packing",
    "attributes_threshold_bytes",
)


def _is_same(one: VirtualChunkContainer, other: VirtualChunkContainer) -> bool:
    return one.url_prefix == other.url_prefix or (one.name is not None and one.name == other.name)


def _merge_manifest(mine: ManifestConfig, theirs: ManifestConfig) -> ManifestConfig:
    """What `theirs` leaves at its default stays as in `mine`."""
    usual = ManifestConfig()
    changed = {f.name: getattr(theirs, f.name) for f in fields(theirs)}
    return replace(mine, **{name: value for name, value in changed.items() if value != getattr(usual, name)})


def _merge_unknown(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(mine)
    for key, value in theirs.items():
        held = merged.get(key)
        both = isinstance(held, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge_unknown(held, value) if both else value  # type: ignore[arg-type]
    return merged
