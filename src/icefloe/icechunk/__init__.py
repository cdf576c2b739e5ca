"""The official package's modules, names, arguments and defaults, over the engine of `icefloe`.

A script ports by its import: `from icefloe import icechunk`. Repositories are the same files, so that both packages can
work on one repository. `install` makes `import icechunk` mean this package in a process, for libraries that import it.

Errors, configuration and values are the classes of `icefloe` itself. `Repository` and `Session` are subclasses with
the defaults of the official package: new repositories are of version 2, and one chunk is one object.

Modules
-------
- `__main__`: Run a script or a module whose `import icechunk` is this package: `python -m icefloe.icechunk
  script.py ...`.
- `config`: Configuration, attribution and logs, as `icechunk.config`.
- `conflicts`: Conflicts and their solvers, as `icechunk.conflicts`.
- `credentials`: Credentials, as `icechunk.credentials`.
- `dask`: Writing dask arrays, as `icechunk.dask`.
- `distributed`: Sessions of distributed writes, as `icechunk.distributed`.
- `installer`: `install`: libraries that import `icechunk` get this package.
- `ops`: Results of maintenance and entries of the operations log, as `icechunk.ops`.
- `repository`: Repositories, as `icechunk.repository`.
- `session`: Sessions, as `icechunk.session`.
- `snapshots`: Snapshots, differences and graphs of history, as `icechunk.snapshots`.
- `storage`: Storages and stores of virtual chunks, as `icechunk.storage`.
- `store`: The Zarr store of a session, as `icechunk.store`.
- `testing`: A storage with delays for tests, as `icechunk.testing`.
- `types`: Types of arguments, as `icechunk.types`.
- `version_1`: The rules of version 1 of the official package that contradict those of version 2.
- `virtual`: Virtual chunk containers and references, as `icechunk.virtual`.
- `xarray`: Writing xarray objects, as `icechunk.xarray`.
"""

from __future__ import annotations

from icefloe.conversion.convert import upgrade_icechunk_repository as _upgrade
from icefloe.debug import (
    print_debug_info,
)
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    InternalError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.icechunk.config import (
    Attribution,
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    FeatureFlag,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    initialize_logs,
    set_logs_filter,
    shutdown_telemetry,
)
from icefloe.icechunk.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from icefloe.icechunk.credentials import (
    AnyAzureCredential,
    AnyAzureStaticCredential,
    AnyCredential,
    AnyGcsCredential,
    AnyGcsStaticCredential,
    AnyS3Credential,
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    Credentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
    azure_anonymous_credentials,
    azure_credentials,
    azure_from_env_credentials,
    azure_refreshable_credentials,
    azure_static_credentials,
    containers_credentials,
    gcs_credentials,
    gcs_from_env_credentials,
    gcs_refreshable_credentials,
    gcs_static_credentials,
    s3_anonymous_credentials,
    s3_credentials,
    s3_from_env_credentials,
    s3_refreshable_credentials,
    s3_static_credentials,
)
from icefloe.icechunk.installer import install
from icefloe.icechunk.ops import (
    GCSummary,
    Update,
    UpdateType,
)
from icefloe.icechunk.repository import (
    Repository,
)
from icefloe.icechunk.session import (
    ChunkType,
    ForkSession,
    Session,
    SessionMode,
)
from icefloe.icechunk.snapshots import (
    AncestryGraph,
    Diff,
    ManifestFileInfo,
    SnapshotInfo,
)
from icefloe.icechunk.storage import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    S3Options,
    Storage,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    azure_storage,
    gcs_storage,
    gcs_store,
    hf_storage,
    http_storage,
    http_store,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
    r2_storage,
    redirect_storage,
    s3_storage,
    s3_store,
    tigris_storage,
)
from icefloe.icechunk.store import (
    IcechunkStore,
)
from icefloe.icechunk.types import (
    CommitMethod,
)
from icefloe.icechunk.virtual import (
    VirtualChunkContainer,
    VirtualChunkSpec,
)
from icefloe.model.capabilities import (
    SpecVersion,
)
from icefloe.model.status import (
    RepoAvailability,
    RepoStatus,
)
from icefloe.storage.endpoints import USER_AGENT

__version__ = "2.3.0"
"""The version of the official package whose names and behaviour this package has. Libraries compare it."""


def spec_version() -> SpecVersion:
    """Return the version of the format that new repositories have."""
    return SpecVersion.v2


def supported_spec_versions() -> list[SpecVersion]:
    """Return the versions of the official format, newest first."""
    return [SpecVersion.v2, SpecVersion.v1]


def user_agent() -> str:
    """Return the User-Agent of requests without an attribution."""
    return USER_AGENT


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Convert a repository of version 1 to version 2, in place.

    Parameters
    ----------
    repo
        The repository. Do not use it afterwards.
    dry_run
        Only check that the repository can be converted.
    delete_unused_v1_files
        Delete the files that version 2 does not use.
    prefetch_concurrency
        Ignored: snapshots are read as they are needed.

    Returns
    -------
    Repository
        The repository, opened anew.
    """
    attribution = repo.attribution
    if repo.spec_version is SpecVersion.v2:
        raise SessionStateError("the repository is of version 2 already", "invalid-repository-migration")
    made = _upgrade(repo, dry_run=dry_run, delete_unused_v1_files=delete_unused_v1_files)
    if not dry_run:
        repo._invalidate("this repository object was invalidated by upgrade_icechunk_repository; use what it returned")
    return Repository._adopt(made, attribution)


initialize_logs()


__all__ = [
    "AlreadyExistsError",
    "AncestryGraph",
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyObjectStoreConfig",
    "AnyS3Credential",
    "Attribution",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "BasicConflictSolver",
    "CachingConfig",
    "ChecksumAlgorithm",
    "ChunkType",
    "CommitMethod",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Credentials",
    "Diff",
    "ErrorKind",
    "FeatureFlag",
    "ForkSession",
    "FormatError",
    "GCSummary",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "IcechunkError",
    "IcechunkStore",
    "InternalError",
    "InvalidInputError",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "NodeNotFoundError",
    "NotFoundError",
    "ObjectStoreConfig",
    "ReadOnlyError",
    "RebaseFailedError",
    "RefNotFoundError",
    "RepoAvailability",
    "RepoStatus",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "S3Credentials",
    "S3Options",
    "S3StaticCredentials",
    "Session",
    "SessionMode",
    "SessionStateError",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SpecVersion",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "Update",
    "UpdateType",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "__version__",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "azure_storage",
    "containers_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "initialize_logs",
    "install",
    "local_filesystem_storage",
    "local_filesystem_store",
    "print_debug_info",
    "r2_storage",
    "redirect_storage",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "set_logs_filter",
    "shutdown_telemetry",
    "spec_version",
    "supported_spec_versions",
    "tigris_storage",
    "upgrade_icechunk_repository",
    "user_agent",
]
