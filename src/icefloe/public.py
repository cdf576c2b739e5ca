"""The public names of the library, and nothing else; a name is added by an import and its line in `__all__`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from icefloe.codec_pipeline import disable_fast_pipeline, enable_fast_pipeline, fast_pipeline
from icefloe.debug import initialize_logs, print_debug_info, set_logs_filter
from icefloe.display.ancestry_graph import AncestryGraph
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    UnknownFormatError,
    UnsupportedError,
    VersionMismatchError,
    VirtualChunkError,
)
from icefloe.formats.config_yaml import config_from_yaml, config_to_yaml
from icefloe.maintenance.collect_plan import GCSummary
from icefloe.maintenance.expire_plan import RetentionRule
from icefloe.model.administration import FeatureFlag, RepoAvailability, RepoStatus, Update, UpdateType
from icefloe.model.capabilities import Capabilities, SpecVersion, supported_spec_versions
from icefloe.model.config import CachingConfig, CompressionAlgorithm, CompressionConfig, RepositoryConfig
from icefloe.model.diff import Diff
from icefloe.model.manifest_conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplittingConfig,
    PreloadRules,
)
from icefloe.model.object_store_config import (
    AzureObjectStore,
    GcsObjectStore,
    HttpObjectStore,
    InMemoryObjectStore,
    LocalFileSystemObjectStore,
    ObjectStoreConfig,
    S3CompatibleObjectStore,
    S3ObjectStore,
    S3Options,
    TigrisObjectStore,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.model.packing_config import ChunkPackingConfig, PackBy
from icefloe.model.snapshot import ManifestFileInfo, SnapshotInfo
from icefloe.model.storage_settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.model.virtual import VirtualChunkSpec
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.session.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from icefloe.session.modes import ChunkType, SessionMode
from icefloe.session.session import ForkSession, Session
from icefloe.storage.build import (
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    known_to_sort,
    local_filesystem_storage,
    r2_storage,
    resolve_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.contract import Storage
from icefloe.storage.credentials import (
    AnonymousCredentials,
    AzureRefreshableCredentials,
    AzureStaticCredentials,
    FromEnvCredentials,
    GcsBearerCredential,
    GcsRefreshableCredentials,
    GcsStaticCredentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3RefreshableCredentials,
    S3StaticCredentials,
    azure_anonymous_credentials,
    azure_credentials,
    azure_from_env_credentials,
    azure_refreshable_credentials,
    azure_static_credentials,
    containers_credentials,
    gcs_anonymous_credentials,
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
from icefloe.store import IcechunkStore
from icefloe.version import __version__

if TYPE_CHECKING:
    from icefloe.conversion.convert import convert, upgrade
    from icefloe.conversion.losses import LossKind
    from icefloe.conversion.official import upgrade_icechunk_repository
    from icefloe.conversion.running import Conversion
else:
    # Conversions know every generation: only who converts waits until all of them are loaded.
    _CONVERSION = {
        "Conversion": "running",
        "LossKind": "losses",
        "convert": "convert",
        "upgrade": "convert",
        "upgrade_icechunk_repository": "official",
    }

    def __getattr__(name: str) -> Any:
        if name not in _CONVERSION:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"icefloe.conversion.{_CONVERSION[name]}"), name)


__all__ = [
    "AlreadyExistsError",
    "AncestryGraph",
    "AnonymousCredentials",
    "AzureObjectStore",
    "AzureRefreshableCredentials",
    "AzureStaticCredentials",
    "BasicConflictSolver",
    "CachingConfig",
    "Capabilities",
    "ChunkPackingConfig",
    "ChunkType",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Conversion",
    "Diff",
    "ErrorKind",
    "FeatureFlag",
    "ForkSession",
    "FormatError",
    "FromEnvCredentials",
    "GCSummary",
    "GcsBearerCredential",
    "GcsObjectStore",
    "GcsRefreshableCredentials",
    "GcsStaticCredentials",
    "HttpAccess",
    "HttpObjectStore",
    "IcechunkError",
    "IcechunkStore",
    "IcefloeError",
    "InMemoryObjectStore",
    "InvalidInputError",
    "LocalFileSystemAccess",
    "LocalFileSystemObjectStore",
    "LossKind",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestRule",
    "ManifestSet",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "NodeNotFoundError",
    "NotFoundError",
    "ObjectNotFoundError",
    "ObjectStoreConfig",
    "OutcomeUnknownError",
    "PackBy",
    "PermissionDeniedError",
    "PreloadRules",
    "ReadOnlyError",
    "RebaseFailedError",
    "RefNotFoundError",
    "RepoAvailability",
    "RepoStatus",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "RetentionRule",
    "S3CompatibleObjectStore",
    "S3ObjectStore",
    "S3Options",
    "S3RefreshableCredentials",
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
    "TigrisObjectStore",
    "UnknownFormatError",
    "UnsupportedError",
    "Update",
    "UpdateType",
    "VersionMismatchError",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkError",
    "VirtualChunkSpec",
    "__version__",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "azure_storage",
    "azure_store",
    "config_from_yaml",
    "config_to_yaml",
    "containers_credentials",
    "convert",
    "disable_fast_pipeline",
    "enable_fast_pipeline",
    "fast_pipeline",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "gcs_storage",
    "gcs_store",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "initialize_logs",
    "known_to_sort",
    "local_filesystem_storage",
    "local_filesystem_store",
    "print_debug_info",
    "r2_storage",
    "resolve_storage",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "set_logs_filter",
    "storage_from_url",
    "supported_spec_versions",
    "tigris_storage",
    "upgrade",
    "upgrade_icechunk_repository",
]
