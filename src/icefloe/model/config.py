"""The configuration of a repository."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from icefloe.errors import InvalidInputError
from icefloe.model.config_value import Anything, Choice, ConfigValue, Count, Flag, Nested, Setting, Text, refused
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.virtual_chunk_container import VirtualChunkContainer

# Annotations are evaluated when the class is created, because `settings_of` reads the settings from them.


class PackBy(enum.Enum):
    """Which chunks can share a pack."""

    MIXED = "mixed"
    """A pack contains chunks of several arrays. This needs the fewest objects."""
    ARRAY = "array"
    """A pack contains chunks of one array. A deleted array then leaves no partly used packs."""


@dataclass(slots=True, repr=False)
class ChunkPackingConfig(ConfigValue):
    """How small chunks of a session are packed into shared objects ("packs"). Larger chunks are objects of their own.

    With the default target size, a pack is written in one request and read in one or two. It contains about 2,000
    chunks of 4 KiB. Above the default threshold, requests are limited by bandwidth and not by latency. Packing then
    saves little time, and garbage collection can free less.

    Parameters
    ----------
    enabled
        Whether chunks are packed.
    threshold_bytes
        The largest size of a packed chunk. Chunks below the inline threshold are stored inline instead.
    target_bytes
        A pack is closed when the next chunk would make it larger than this.
    by
        Whether a pack contains chunks of several arrays (`PackBy.MIXED`) or of one (`PackBy.ARRAY`).

    Examples
    --------
    >>> ChunkPackingConfig(enabled=False).effective("enabled")
    False
    """

    _full_name = "icefloe.ChunkPackingConfig"

    enabled: Annotated[
        bool | None, Setting(Flag(), True, doc="small chunks share objects; false stores one object per chunk")
    ] = None
    threshold_bytes: Annotated[
        int | None, Setting(Count(0, 2**40), 256 << 10, doc="larger chunks are separate objects", stored=(0, 256 << 20))
    ] = None
    target_bytes: Annotated[
        int | None,
        Setting(
            Count(1, 2**40),
            8 << 20,
            doc="a pack is closed when the next chunk would make it larger than this",
            stored=(1, 256 << 20),
        ),
    ] = None
    by: Annotated[
        PackBy | None,
        Setting(
            Choice(PackBy),
            PackBy.MIXED,
            doc="`mixed`: chunks of several arrays share a pack; `array`: a pack contains chunks of one array only",
        ),
    ] = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check that the threshold is not above the target. Such chunks would each fill a pack.

        Raises
        ------
        InvalidInputError
            `threshold_bytes` is larger than `target_bytes`.

        Examples
        --------
        >>> ChunkPackingConfig(threshold_bytes=1024).check()
        """
        threshold, target = self.effective("threshold_bytes"), self.effective("target_bytes")
        if self.threshold_bytes is not None and threshold > target:
            raise InvalidInputError(
                f"ChunkPackingConfig.threshold_bytes is {threshold}, more than target_bytes {target}; "
                "allowed: at most target_bytes"
            )


@dataclass(slots=True, repr=False)
class StorageConcurrencySettings(ConfigValue):
    """How one large object is fetched with several requests.

    Parameters
    ----------
    max_concurrent_requests_for_object
        The number of requests for one object at a time.
    ideal_concurrent_request_size
        The size of each request in bytes.

    Examples
    --------
    >>> StorageConcurrencySettings().effective("max_concurrent_requests_for_object")
    18
    """

    _full_name = "icechunk.storage.StorageConcurrencySettings"

    max_concurrent_requests_for_object: Annotated[
        int | None, Setting(Count(1, 65535), 18, unused="reads are limited by `max_concurrent_requests`")
    ] = None
    ideal_concurrent_request_size: Annotated[
        int | None,
        Setting(
            Count(1),
            12 << 20,
            doc="if set, large objects are fetched in ranges of this size",
            stored=(64 << 10, 1 << 30),
        ),
    ] = None


@dataclass(slots=True, repr=False)
class StorageRetriesSettings(ConfigValue):
    """How failed requests are retried.

    Parameters
    ----------
    max_tries
        The number of attempts, the first one included.
    initial_backoff_ms
        The wait before the second attempt. Later waits grow exponentially.
    max_backoff_ms
        The longest wait.

    Examples
    --------
    >>> StorageRetriesSettings(max_tries=3).effective("initial_backoff_ms")
    100
    """

    _full_name = "icechunk.storage.StorageRetriesSettings"

    max_tries: Annotated[
        int | None,
        Setting(
            Count(1, 65535),
            10,
            doc="maximum number of attempts of a request to an object store, including the first",
            stored=(1, 30),
        ),
    ] = None
    initial_backoff_ms: Annotated[
        int | None,
        Setting(Count(), 100, doc="wait before the second attempt; it doubles with each attempt", stored=(0, 10_000)),
    ] = None
    max_backoff_ms: Annotated[
        int | None,
        Setting(
            Count(),
            180_000,
            doc="longest wait. If unset, 15,000, as in `s3_storage(..., retries=...)`.",
            stored=(0, 180_000),
        ),
    ] = None


@dataclass(slots=True, repr=False)
class StorageTimeoutSettings(ConfigValue):
    """Time limits of requests. None is the limit of the storage client.

    Parameters
    ----------
    connect_timeout_ms
        The time to open a connection.
    read_timeout_ms
        The time to the first byte of a response.
    operation_timeout_ms
        The time of a request with all its retries.
    operation_attempt_timeout_ms
        The time of one attempt.

    Examples
    --------
    >>> StorageTimeoutSettings(connect_timeout_ms=5000).connect_timeout_ms
    5000
    """

    _full_name = "icechunk.storage.StorageTimeoutSettings"

    connect_timeout_ms: Annotated[int | None, Setting(Count(1), unused="")] = None
    read_timeout_ms: Annotated[
        int | None,
        Setting(
            Count(1), unused="pass a timeout to the storage: `s3_storage(..., network_stream_timeout_seconds=...)`"
        ),
    ] = None
    operation_timeout_ms: Annotated[int | None, Setting(Count(1), unused="")] = None
    operation_attempt_timeout_ms: Annotated[int | None, Setting(Count(1), unused="")] = None


@dataclass(slots=True, repr=False)
class StorageSettings(ConfigValue):
    """How a repository uses its storage.

    Parameters
    ----------
    concurrency
        How large objects are fetched.
    retries
        How failed requests are retried.
    unsafe_use_conditional_create
        Use conditional requests to create objects. Without them, concurrent commits can be lost.
    unsafe_use_conditional_update
        Use conditional requests to update objects. Without them, concurrent commits can be lost.
    unsafe_use_metadata
        Write object metadata.
    storage_class
        The storage class of new objects.
    metadata_storage_class
        The storage class of metadata files. The default is `storage_class`.
    chunks_storage_class
        The storage class of chunks. The default is `storage_class`.
    minimum_size_for_multipart_upload
        Larger objects, in bytes, are uploaded in parts.
    timeouts
        Time limits of requests.
    fsync
        On local file systems, wait for the disk before a commit is reported.

    Examples
    --------
    >>> StorageSettings(retries=StorageRetriesSettings(max_tries=3)).retries.max_tries
    3
    """

    _full_name = "icechunk.storage.StorageSettings"
    _own_settings = frozenset({"fsync"})

    concurrency: Annotated[StorageConcurrencySettings | None, Setting(Nested(StorageConcurrencySettings))] = None
    retries: Annotated[StorageRetriesSettings | None, Setting(Nested(StorageRetriesSettings))] = None
    unsafe_use_conditional_create: Annotated[
        bool | None, Setting(Flag(), True, unused="the writes that decide a commit are always conditional")
    ] = None
    unsafe_use_conditional_update: Annotated[
        bool | None, Setting(Flag(), True, unused="the writes that decide a commit are always conditional")
    ] = None
    unsafe_use_metadata: Annotated[bool | None, Setting(Flag(), True, unused="")] = None
    storage_class: Annotated[str | None, Setting(Text(), unused="")] = None
    metadata_storage_class: Annotated[str | None, Setting(Text(), unused="")] = None
    chunks_storage_class: Annotated[str | None, Setting(Text(), unused="")] = None
    minimum_size_for_multipart_upload: Annotated[int | None, Setting(Count(1), 100 << 20, unused="")] = None
    timeouts: Annotated[StorageTimeoutSettings | None, Setting(Nested(StorageTimeoutSettings))] = None
    fsync: Annotated[
        bool | None,
        Setting(
            Flag(),
            True,
            doc="local files only: commits survive a power loss; false is faster. "
            "`local_filesystem_storage(..., fsync=...)` takes precedence. A stored value of false"
            " is ignored.",
        ),
    ] = None


SNAPSHOT_NODE_BYTES = 512
"""The memory of a node of a decoded snapshot, with its document. It converts limits in nodes to bytes."""
CHUNK_REF_BYTES = 48
_CHANGE_BYTES = 24


class _CallableForDefault(enum.EnumMeta):
    """The official package makes the default by calling the class without arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) if args or kwargs else next(iter(cls))


class CompressionAlgorithm(enum.Enum, metaclass=_CallableForDefault):
    """The compression of metadata files."""

    Zstd = 0

    @staticmethod
    def default() -> "CompressionAlgorithm":
        """Return the default algorithm.

        Returns
        -------
        CompressionAlgorithm
            Zstandard.

        Examples
        --------
        >>> CompressionAlgorithm.default()
        <CompressionAlgorithm.Zstd: 0>
        """
        return CompressionAlgorithm.Zstd


_ALGORITHMS = Choice(CompressionAlgorithm)


@dataclass(slots=True, repr=False)
class CompressionConfig(ConfigValue):
    """How metadata files are compressed.

    Parameters
    ----------
    algorithm
        The compression algorithm.
    level
        The compression level, from 1 (fast) to 22 (small). 0 is the usual level of Zstandard.

    Examples
    --------
    >>> CompressionConfig(level=9).level
    9
    """

    _full_name = "icechunk.config.CompressionConfig"

    algorithm: Annotated[
        CompressionAlgorithm | None, Setting(_ALGORITHMS, CompressionAlgorithm.Zstd, doc="the only supported algorithm")
    ] = None
    level: Annotated[
        int | None,
        Setting(
            Count(0, 22),
            3,
            doc="compression level of snapshots, manifests, attributes files and transaction logs, "
            "from 1 (fast) to 22 (small). If unset, each generation uses its own level (1 or 3).",
            stored=(1, 19),
        ),
    ] = None


@dataclass(slots=True, repr=False)
class CachingConfig(ConfigValue):
    """Sizes of the caches that all sessions of a repository share.

    A limit in bytes takes precedence over a limit by number.

    Parameters
    ----------
    num_snapshot_nodes
        Nodes of snapshots.
    num_chunk_refs
        Chunk references of manifests.
    num_transaction_changes
        Changes of transaction logs.
    num_bytes_attributes
        Bytes of Zarr attributes.
    num_bytes_chunks
        Bytes of chunks. 0 disables the chunk cache.
    num_bytes_snapshots
        Bytes of snapshots. Replaces `num_snapshot_nodes`.
    num_bytes_manifests
        Bytes of manifests. Replaces `num_chunk_refs`.
    num_bytes_transaction_logs
        Bytes of transaction logs. Replaces `num_transaction_changes`.

    Examples
    --------
    >>> CachingConfig(num_bytes_chunks=1 << 30).effective("num_chunk_refs")
    15000000
    """

    _full_name = "icechunk.config.CachingConfig"
    _own_settings = frozenset({"num_bytes_snapshots", "num_bytes_manifests", "num_bytes_transaction_logs"})

    num_snapshot_nodes: Annotated[
        int | None, Setting(Count(), 500_000, doc="snapshot nodes kept in memory", stored=(0, 5_000_000))
    ] = None
    num_chunk_refs: Annotated[
        int | None, Setting(Count(), 15_000_000, doc="manifest references kept in memory", stored=(0, 60_000_000))
    ] = None
    num_transaction_changes: Annotated[
        int | None, Setting(Count(), 1_000_000, doc="transaction log changes kept in memory", stored=(0, 50_000_000))
    ] = None
    num_bytes_attributes: Annotated[
        int | None, Setting(Count(), 64 << 20, doc="bytes of attributes files kept in memory", stored=(0, 1 << 30))
    ] = None
    num_bytes_chunks: Annotated[
        int | None, Setting(Count(), 0, doc="bytes of chunks kept in memory; 0 disables the cache", stored=(0, 1 << 30))
    ] = None
    num_bytes_snapshots: Annotated[
        int | None,
        Setting(
            Count(), doc="limit for snapshots in bytes; takes precedence over the number of nodes", stored=(0, 3 << 30)
        ),
    ] = None
    num_bytes_manifests: Annotated[
        int | None,
        Setting(
            Count(),
            doc="limit for manifests in bytes; takes precedence over the number of references",
            stored=(0, 3 << 30),
        ),
    ] = None
    num_bytes_transaction_logs: Annotated[
        int | None, Setting(Count(), doc="limit for transaction logs in bytes", stored=(0, 1 << 30))
    ] = None

    @property
    def snapshots_limit_bytes(self) -> int:
        """The size of the snapshot cache in bytes."""
        return self._limit(self.num_bytes_snapshots, "num_snapshot_nodes", SNAPSHOT_NODE_BYTES)

    @property
    def manifests_limit_bytes(self) -> int:
        """The size of the manifest cache in bytes."""
        return self._limit(self.num_bytes_manifests, "num_chunk_refs", CHUNK_REF_BYTES)

    @property
    def transaction_logs_limit_bytes(self) -> int:
        """The size of the transaction log cache in bytes."""
        return self._limit(self.num_bytes_transaction_logs, "num_transaction_changes", _CHANGE_BYTES)

    def _limit(self, in_bytes: int | None, name: str, weight_bytes: int) -> int:
        return int(self.effective(name)) * weight_bytes if in_bytes is None else in_bytes


@dataclass(slots=True, repr=False)
class RepoUpdateRetryConfig(ConfigValue):
    """How updates of the repository are retried after a concurrent update.

    Parameters
    ----------
    default
        The number of attempts and the waits between them.
    """

    _full_name = "icechunk.config.RepoUpdateRetryConfig"

    default: Annotated[
        StorageRetriesSettings | None,
        Setting(
            Nested(StorageRetriesSettings),
        ),
    ] = None  # type: ignore[assignment]


@dataclass(slots=True, repr=False)
class RepositoryConfig(ConfigValue):
    """The configuration of a repository. A setting that is None has its default.

    Parameters
    ----------
    inline_chunk_threshold_bytes
        Chunks up to this size are stored in the manifest.
    get_partial_values_concurrency
        Concurrent reads of one `get_partial_values` call.
    compression
        How metadata files are compressed.
    max_concurrent_requests
        Concurrent requests of the repository to its storage.
    caching
        Sizes of the caches.
    storage
        How the storage is used.
    virtual_chunk_containers
        Containers of virtual chunks by URL prefix.
    manifest
        How chunk references are divided into manifest files.
    repo_update_retries
        How updates of the repository are retried after a concurrent update.
    num_updates_per_repo_info_file
        Entries of the operation log in one file.
    max_concurrent_decodes
        Chunks that are decoded at a time.
    chunk_packing
        How small chunks share objects.
    attributes_threshold_bytes
        Larger attributes are stored in files of their own.
    unknown
        Keys of a stored configuration that this version does not know. They are preserved.

    Examples
    --------
    >>> config = RepositoryConfig.default()
    >>> config.inline_chunk_threshold_bytes = 1024
    >>> config.merge(RepositoryConfig(max_concurrent_requests=64)).inline_chunk_threshold_bytes
    1024
    """

    _full_name = "icechunk.config.RepositoryConfig"
    _own_settings = frozenset({"chunk_packing", "attributes_threshold_bytes"})

    inline_chunk_threshold_bytes: Annotated[
        int | None,
        Setting(
            Count(0, 2**31 - 1), 512, doc="chunks of at most this size are stored in the manifest", stored=(0, 16 << 20)
        ),
    ] = None
    get_partial_values_concurrency: Annotated[
        int | None, Setting(Count(1, 65535), 10, unused="reads are limited by `max_concurrent_requests`")
    ] = None
    compression: Annotated[CompressionConfig | None, Setting(Nested(CompressionConfig))] = None
    max_concurrent_requests: Annotated[
        int | None,
        Setting(Count(1, 65535), 256, doc="maximum number of concurrent requests for chunks", stored=(1, 1024)),
    ] = None
    caching: Annotated[CachingConfig | None, Setting(Nested(CachingConfig))] = None
    storage: Annotated[StorageSettings | None, Setting(Nested(StorageSettings))] = None
    virtual_chunk_containers: Annotated[
        dict[str, VirtualChunkContainer] | None,
        Setting(Anything(), doc="locations outside the repository from which chunks may be read, see below"),
    ] = None
    manifest: Annotated[ManifestConfig | None, Setting(Nested(ManifestConfig))] = None
    repo_update_retries: Annotated[RepoUpdateRetryConfig | None, Setting(Nested(RepoUpdateRetryConfig), unused="")] = (
        None
    )
    num_updates_per_repo_info_file: Annotated[
        int | None,
        Setting(
            Count(1, 65535),
            1000,
            doc="`icechunk2` only: number of operations in the `repo` file before older ones move to another file",
        ),
    ] = None
    max_concurrent_decodes: Annotated[
        int | None, Setting(Count(1, 65535), unused="the number of decoding threads is chosen automatically")
    ] = None
    chunk_packing: Annotated[ChunkPackingConfig | None, Setting(Nested(ChunkPackingConfig))] = None
    attributes_threshold_bytes: Annotated[
        int | None,
        Setting(
            Count(),
            4096,
            doc="larger attributes are stored in separate files, which later snapshots reuse if they "
            "did not change them",
        ),
    ] = None
    unknown: dict[str, Any] = field(default_factory=dict)
    """Keys of a stored configuration that this version does not know. They are preserved."""

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
        """Return a new configuration. Settings of `other` take precedence and nested settings are merged.

        Containers of `other` are added. A container that a repository stores does not replace one that the caller gave.

        Parameters
        ----------
        other
            The configuration with precedence. Its settings that are None are ignored.

        Returns
        -------
        RepositoryConfig
            The merged configuration.

        Examples
        --------
        >>> RepositoryConfig(inline_chunk_threshold_bytes=0).merge(RepositoryConfig()).inline_chunk_threshold_bytes
        0
        """
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
                # A container of the repository never replaces one that the caller gave.
                if not (container.stored and any(_is_same(found, container) for found in given)):
                    merged.set_virtual_chunk_container(container)
        return merged

    @property
    def previous_file(self) -> str | None:
        """The file of the previous configuration, if the official package has written it."""
        found = self.unknown.get("previous_file")
        return found if isinstance(found, str) else None

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, or replace the one with the same name or prefix.

        Parameters
        ----------
        cont
            The container.

        Raises
        ------
        InvalidInputError
            The container is invalid.

        Examples
        --------
        >>> import icefloe
        >>> config = RepositoryConfig()
        >>> config.set_virtual_chunk_container(
        ...     VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="eu-west-1"))
        ... )
        >>> list(config.virtual_chunk_containers)
        ['s3://bucket/']
        """
        if not isinstance(cont, VirtualChunkContainer):
            raise InvalidInputError(f"expected a VirtualChunkContainer, found {cont!r}")
        cont.check()
        kept = {
            key: other
            for key, other in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or other.name != cont.name
        }
        kept[cont.url_prefix] = cont
        self.virtual_chunk_containers = kept

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """Return the container with a URL prefix or name.

        Parameters
        ----------
        name
            The URL prefix or the name.

        Returns
        -------
        VirtualChunkContainer or None
            The container, or None if there is none.

        Examples
        --------
        >>> RepositoryConfig().get_virtual_chunk_container("s3://bucket/") is None
        True
        """
        containers = self.virtual_chunk_containers or {}
        if name in containers:
            return containers[name]
        return next((found for found in containers.values() if found.name == name), None)

    def clear_virtual_chunk_containers(self) -> None:
        """Remove all containers.

        Examples
        --------
        >>> config = RepositoryConfig()
        >>> config.clear_virtual_chunk_containers()
        >>> config.virtual_chunk_containers
        {}
        """
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
    """Return `mine` with the settings of `theirs` that are not the default."""
    usual = ManifestConfig()
    changed = {f.name: getattr(theirs, f.name) for f in fields(theirs)}
    return replace(mine, **{name: value for name, value in changed.items() if value != getattr(usual, name)})


def _merge_unknown(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(mine)
    for key, value in theirs.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge_unknown(known, value) if both else value  # type: ignore[arg-type]
    return merged
