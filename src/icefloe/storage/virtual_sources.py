"""Storages that virtual chunks are read from."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.virtual_chunk_container import (
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
)
from icefloe.storage.build import TIGRIS_ENDPOINT, known_to_sort
from icefloe.storage.contract import SourceStorage
from icefloe.storage.credentials import (
    AnonymousCredentials,
    AnyCredential,
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
)
from icefloe.storage.endpoints import AzureEndpoint, GcsEndpoint, HttpEndpoint, S3Endpoint
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.requests import RetryPolicy


def open_object_store(
    config: ObjectStoreConfig,
    credentials: AnyCredential | None,
    prefix: str,
    *,
    retries: RetryPolicy | None = None,
) -> SourceStorage:
    """The storage whose keys are what follows `prefix`, a URL, in the locations of virtual chunks; for reading only.

    An empty prefix is the folder of a local store itself. `credentials` of None are those a public or local place
    needs.
    """
    if isinstance(config, LocalFileSystemObjectStore):
        _accept(config, credentials, LocalFileSystemAccess)
        return LocalStorage(_local_path(prefix) if prefix else config.folder, encoded=False)
    if isinstance(config, InMemoryObjectStore):
        return MemoryStorage.named(urlsplit(prefix).netloc)
    if isinstance(config, HttpObjectStore):
        _accept(config, credentials, HttpAccess)
        return ObstoreStorage(HttpEndpoint(prefix, dict(config.opts), dict(config.headers)), retries=retries)
    parts = urlsplit(prefix, allow_fragments=False)
    if not parts.netloc:
        raise InvalidInputError(f"{prefix!r} contains no bucket or container")
    folder = parts.path.strip("/")
    if isinstance(config, S3ObjectStore | S3CompatibleObjectStore | TigrisObjectStore):
        endpoint = _s3_endpoint(config, credentials, parts.netloc)
    elif isinstance(config, GcsObjectStore):
        endpoint = _gcs_endpoint(config, credentials, parts.netloc)
    elif isinstance(config, AzureObjectStore):
        endpoint, folder = _azure_endpoint(config, credentials, parts.netloc, folder)
    else:
        raise InvalidInputError(f"{type(config).__name__} is not an object store for virtual chunks")
    return ObstoreStorage(endpoint, folder, retries=retries, read_only=True, foreign=True)


def _s3_endpoint(
    config: S3ObjectStore | S3CompatibleObjectStore | TigrisObjectStore, given: AnyCredential | None, bucket: str
) -> S3Endpoint | GcsEndpoint | AzureEndpoint:
    options = config.options
    if isinstance(config, TigrisObjectStore) and options.endpoint_url is None:
        options = S3Options(
            options.region or "auto",
            TIGRIS_ENDPOINT,
            options.allow_http,
            options.anonymous,
            options.force_path_style,
            options.network_stream_timeout_seconds,
            options.requester_pays,
            options.checksum_algorithm,
        )
    if given is None:
        given = AnonymousCredentials()
    if not isinstance(
        given, S3StaticCredentials | S3RefreshableCredentials | AnonymousCredentials | FromEnvCredentials
    ):
        raise _wrong_credentials(config, given)
    return S3Endpoint(bucket, options, given, {}, known_to_sort(options.endpoint_url, bucket))


def _gcs_endpoint(config: GcsObjectStore, given: AnyCredential | None, bucket: str) -> GcsEndpoint:
    if given is None:
        given = AnonymousCredentials()
    if not isinstance(
        given,
        GcsStaticCredentials
        | GcsBearerCredential
        | GcsRefreshableCredentials
        | AnonymousCredentials
        | FromEnvCredentials,
    ):
        raise _wrong_credentials(config, given)
    return GcsEndpoint(bucket, given, dict(config.opts))


def _azure_endpoint(
    config: AzureObjectStore, given: AnyCredential | None, netloc: str, folder: str
) -> tuple[AzureEndpoint, str]:
    if given is None:
        given = AnonymousCredentials()
    if not isinstance(
        given,
        AzureStaticCredentials | AzureRefreshableCredentials | AnonymousCredentials | FromEnvCredentials,
    ):
        raise _wrong_credentials(config, given)
    opts = dict(config.opts)
    named = opts.pop("account", None) or opts.pop("account_name", None)
    if "@" in netloc:  # abfss://container@account.dfs.core.windows.net/folder
        container, _, host = netloc.partition("@")
        return AzureEndpoint(named or host.partition(".")[0], container, given, opts), folder
    if named is not None:  # az://container/folder
        return AzureEndpoint(named, netloc, given, opts), folder
    container, _, folder = folder.partition("/")  # az://account/container/folder
    return AzureEndpoint(netloc, container, given, opts), folder


def _local_path(prefix: str) -> str:
    parts = urlsplit(prefix, allow_fragments=False)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise InvalidInputError(f"{prefix!r} is not a local folder")
    return unquote(parts.path)


def _accept(config: ObjectStoreConfig, given: AnyCredential | None, wanted: type) -> None:
    if given is not None and not isinstance(given, wanted | AnonymousCredentials | FromEnvCredentials):
        raise _wrong_credentials(config, given)


def _wrong_credentials(config: ObjectStoreConfig, given: object) -> VirtualChunkError:
    return VirtualChunkError(
        f"the container is a {config.tag} store, but was authorised with {type(given).__name__}. Use credentials for "
        f"{config.tag}"
    )
