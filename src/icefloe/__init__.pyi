"""Transactional, versioned storage for Zarr arrays on object storage."""

from icefloe.codec_pipeline import (
    disable_fast_pipeline as disable_fast_pipeline,
)
from icefloe.codec_pipeline import (
    enable_fast_pipeline as enable_fast_pipeline,
)
from icefloe.codec_pipeline import (
    fast_pipeline as fast_pipeline,
)
from icefloe.conversion.convert import Conversion as Conversion
from icefloe.conversion.convert import (
    convert as convert,
)
from icefloe.conversion.convert import (
    upgrade as upgrade,
)
from icefloe.conversion.convert import (
    upgrade_icechunk_repository as upgrade_icechunk_repository,
)
from icefloe.conversion.survey import LossKind as LossKind
from icefloe.debug import (
    initialize_logs as initialize_logs,
)
from icefloe.debug import (
    print_debug_info as print_debug_info,
)
from icefloe.debug import (
    set_logs_filter as set_logs_filter,
)
from icefloe.display.graph import AncestryGraph as AncestryGraph
from icefloe.errors import (
    AlreadyExistsError as AlreadyExistsError,
)
from icefloe.errors import (
    ConflictError as ConflictError,
)
from icefloe.errors import (
    ContainerError as ContainerError,
)
from icefloe.errors import (
    ErrorKind as ErrorKind,
)
from icefloe.errors import (
    FinishedSessionError as FinishedSessionError,
)
from icefloe.errors import (
    ForbiddenChangeError as ForbiddenChangeError,
)
from icefloe.errors import (
    FormatError as FormatError,
)
from icefloe.errors import (
    IcechunkError as IcechunkError,
)
from icefloe.errors import (
    IcefloeError as IcefloeError,
)
from icefloe.errors import (
    InternalError as InternalError,
)
from icefloe.errors import (
    InvalidInputError as InvalidInputError,
)
from icefloe.errors import (
    InvalidSnapshotIdError as InvalidSnapshotIdError,
)
from icefloe.errors import (
    NodeNotFoundError as NodeNotFoundError,
)
from icefloe.errors import (
    NotAnArrayError as NotAnArrayError,
)
from icefloe.errors import (
    NotFoundError as NotFoundError,
)
from icefloe.errors import (
    ObjectNotFoundError as ObjectNotFoundError,
)
from icefloe.errors import (
    OutcomeUnknownError as OutcomeUnknownError,
)
from icefloe.errors import (
    PathOccupiedError as PathOccupiedError,
)
from icefloe.errors import (
    PermissionDeniedError as PermissionDeniedError,
)
from icefloe.errors import (
    ReadOnlyError as ReadOnlyError,
)
from icefloe.errors import (
    RebaseFailedError as RebaseFailedError,
)
from icefloe.errors import (
    RefNotFoundError as RefNotFoundError,
)
from icefloe.errors import (
    RepositoryExistsError as RepositoryExistsError,
)
from icefloe.errors import (
    RepositoryNotFoundError as RepositoryNotFoundError,
)
from icefloe.errors import (
    SessionStateError as SessionStateError,
)
from icefloe.errors import (
    SnapshotNotFoundError as SnapshotNotFoundError,
)
from icefloe.errors import (
    StorageError as StorageError,
)
from icefloe.errors import (
    UnknownFormatError as UnknownFormatError,
)
from icefloe.errors import (
    UnsupportedError as UnsupportedError,
)
from icefloe.errors import (
    UnsupportedVersionError as UnsupportedVersionError,
)
from icefloe.errors import (
    VersionMismatchError as VersionMismatchError,
)
from icefloe.errors import (
    VirtualChunkError as VirtualChunkError,
)
from icefloe.formats.config_yaml import config_from_yaml as config_from_yaml
from icefloe.formats.config_yaml import config_to_yaml as config_to_yaml
from icefloe.maintenance.collect import GCSummary as GCSummary
from icefloe.maintenance.expire import RetentionRule as RetentionRule
from icefloe.model.capabilities import (
    Capabilities as Capabilities,
)
from icefloe.model.capabilities import (
    SpecVersion as SpecVersion,
)
from icefloe.model.capabilities import (
    supported_spec_versions as supported_spec_versions,
)
from icefloe.model.config import (
    CachingConfig as CachingConfig,
)
from icefloe.model.config import (
    ChunkPackingConfig as ChunkPackingConfig,
)
from icefloe.model.config import (
    CompressionAlgorithm as CompressionAlgorithm,
)
from icefloe.model.config import (
    CompressionConfig as CompressionConfig,
)
from icefloe.model.config import (
    PackBy as PackBy,
)
from icefloe.model.config import (
    RepositoryConfig as RepositoryConfig,
)
from icefloe.model.config import (
    StorageConcurrencySettings as StorageConcurrencySettings,
)
from icefloe.model.config import (
    StorageRetriesSettings as StorageRetriesSettings,
)
from icefloe.model.config import (
    StorageSettings as StorageSettings,
)
from icefloe.model.config import (
    StorageTimeoutSettings as StorageTimeoutSettings,
)
from icefloe.model.manifest_conditions import (
    ManifestPreloadCondition as ManifestPreloadCondition,
)
from icefloe.model.manifest_conditions import (
    ManifestSplitCondition as ManifestSplitCondition,
)
from icefloe.model.manifest_conditions import (
    ManifestSplitDimCondition as ManifestSplitDimCondition,
)
from icefloe.model.manifest_config import (
    ManifestConfig as ManifestConfig,
)
from icefloe.model.manifest_config import (
    ManifestPreloadConfig as ManifestPreloadConfig,
)
from icefloe.model.manifest_config import (
    ManifestRule as ManifestRule,
)
from icefloe.model.manifest_config import (
    ManifestSet as ManifestSet,
)
from icefloe.model.manifest_config import (
    ManifestSplittingConfig as ManifestSplittingConfig,
)
from icefloe.model.manifest_config import (
    PreloadRules as PreloadRules,
)
from icefloe.model.snapshot import BranchPosition as BranchPosition
from icefloe.model.snapshot import Diff as Diff
from icefloe.model.snapshot import ManifestFileInfo as ManifestFileInfo
from icefloe.model.snapshot import SnapshotInfo as SnapshotInfo
from icefloe.model.status import (
    FeatureFlag as FeatureFlag,
)
from icefloe.model.status import (
    RepoAvailability as RepoAvailability,
)
from icefloe.model.status import (
    RepoStatus as RepoStatus,
)
from icefloe.model.status import (
    Update as Update,
)
from icefloe.model.status import (
    UpdateType as UpdateType,
)
from icefloe.model.virtual_chunk_container import (
    AzureObjectStore as AzureObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    GcsObjectStore as GcsObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    HttpObjectStore as HttpObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    InMemoryObjectStore as InMemoryObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    LocalFileSystemObjectStore as LocalFileSystemObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    ObjectStoreConfig as ObjectStoreConfig,
)
from icefloe.model.virtual_chunk_container import (
    S3CompatibleObjectStore as S3CompatibleObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    S3ObjectStore as S3ObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    S3Options as S3Options,
)
from icefloe.model.virtual_chunk_container import (
    TigrisObjectStore as TigrisObjectStore,
)
from icefloe.model.virtual_chunk_container import (
    VirtualChunkContainer as VirtualChunkContainer,
)
from icefloe.model.virtual_chunk_container import (
    VirtualChunkSpec as VirtualChunkSpec,
)
from icefloe.model.virtual_chunk_container import (
    azure_store as azure_store,
)
from icefloe.model.virtual_chunk_container import (
    gcs_store as gcs_store,
)
from icefloe.model.virtual_chunk_container import (
    http_store as http_store,
)
from icefloe.model.virtual_chunk_container import (
    local_filesystem_store as local_filesystem_store,
)
from icefloe.model.virtual_chunk_container import (
    s3_store as s3_store,
)
from icefloe.repository import Repository as Repository
from icefloe.repository.url import (
    RepositoryUrl as RepositoryUrl,
)
from icefloe.repository.url import (
    open_url as open_url,
)
from icefloe.session.rebase import (
    BasicConflictSolver as BasicConflictSolver,
)
from icefloe.session.rebase import (
    Conflict as Conflict,
)
from icefloe.session.rebase import (
    ConflictDetector as ConflictDetector,
)
from icefloe.session.rebase import (
    ConflictSolver as ConflictSolver,
)
from icefloe.session.rebase import (
    ConflictType as ConflictType,
)
from icefloe.session.rebase import (
    VersionSelection as VersionSelection,
)
from icefloe.session.session import (
    ChunkType as ChunkType,
)
from icefloe.session.session import (
    ForkSession as ForkSession,
)
from icefloe.session.session import (
    Session as Session,
)
from icefloe.session.session import (
    SessionMode as SessionMode,
)
from icefloe.storage.build import (
    azure_storage as azure_storage,
)
from icefloe.storage.build import (
    gcs_storage as gcs_storage,
)
from icefloe.storage.build import (
    http_storage as http_storage,
)
from icefloe.storage.build import (
    in_memory_storage as in_memory_storage,
)
from icefloe.storage.build import (
    known_to_sort as known_to_sort,
)
from icefloe.storage.build import (
    local_filesystem_storage as local_filesystem_storage,
)
from icefloe.storage.build import (
    r2_storage as r2_storage,
)
from icefloe.storage.build import (
    resolve_storage as resolve_storage,
)
from icefloe.storage.build import (
    s3_storage as s3_storage,
)
from icefloe.storage.build import (
    storage_from_url as storage_from_url,
)
from icefloe.storage.build import (
    tigris_storage as tigris_storage,
)
from icefloe.storage.contract import Storage as Storage
from icefloe.storage.credentials import (
    AnonymousCredentials as AnonymousCredentials,
)
from icefloe.storage.credentials import (
    AzureRefreshableCredentials as AzureRefreshableCredentials,
)
from icefloe.storage.credentials import (
    AzureStaticCredentials as AzureStaticCredentials,
)
from icefloe.storage.credentials import (
    FromEnvCredentials as FromEnvCredentials,
)
from icefloe.storage.credentials import (
    GcsBearerCredential as GcsBearerCredential,
)
from icefloe.storage.credentials import (
    GcsRefreshableCredentials as GcsRefreshableCredentials,
)
from icefloe.storage.credentials import (
    GcsStaticCredentials as GcsStaticCredentials,
)
from icefloe.storage.credentials import (
    HttpAccess as HttpAccess,
)
from icefloe.storage.credentials import (
    LocalFileSystemAccess as LocalFileSystemAccess,
)
from icefloe.storage.credentials import (
    S3RefreshableCredentials as S3RefreshableCredentials,
)
from icefloe.storage.credentials import (
    S3StaticCredentials as S3StaticCredentials,
)
from icefloe.storage.credentials import (
    azure_anonymous_credentials as azure_anonymous_credentials,
)
from icefloe.storage.credentials import (
    azure_credentials as azure_credentials,
)
from icefloe.storage.credentials import (
    azure_from_env_credentials as azure_from_env_credentials,
)
from icefloe.storage.credentials import (
    azure_refreshable_credentials as azure_refreshable_credentials,
)
from icefloe.storage.credentials import (
    azure_static_credentials as azure_static_credentials,
)
from icefloe.storage.credentials import (
    containers_credentials as containers_credentials,
)
from icefloe.storage.credentials import (
    gcs_anonymous_credentials as gcs_anonymous_credentials,
)
from icefloe.storage.credentials import (
    gcs_credentials as gcs_credentials,
)
from icefloe.storage.credentials import (
    gcs_from_env_credentials as gcs_from_env_credentials,
)
from icefloe.storage.credentials import (
    gcs_refreshable_credentials as gcs_refreshable_credentials,
)
from icefloe.storage.credentials import (
    gcs_static_credentials as gcs_static_credentials,
)
from icefloe.storage.credentials import (
    s3_anonymous_credentials as s3_anonymous_credentials,
)
from icefloe.storage.credentials import (
    s3_credentials as s3_credentials,
)
from icefloe.storage.credentials import (
    s3_from_env_credentials as s3_from_env_credentials,
)
from icefloe.storage.credentials import (
    s3_refreshable_credentials as s3_refreshable_credentials,
)
from icefloe.storage.credentials import (
    s3_static_credentials as s3_static_credentials,
)
from icefloe.store import IcechunkStore as IcechunkStore
from icefloe.tables.queries import QueryResult as QueryResult
from icefloe.tables.queries import sql as sql

__version__: str
