"""Build storages from URLs, from arguments, and from the containers of virtual chunks."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
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
from icefloe.storage.contract import SourceStorage, Storage, StorageLike
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
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.storage.endpoints import (
    AzureEndpoint,
    GcsEndpoint,
    HttpEndpoint,
    S3Endpoint,
    read_profile_settings,
    read_settings,
)
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.requests import RetryPolicy, has_userinfo, without_userinfo

TIGRIS_ENDPOINT = "https://t3.storage.dev"
_SORTED_ENDPOINTS = (".amazonaws.com", ".r2.cloudflarestorage.com", ".storage.dev", ".tigris.dev")


def in_memory_storage() -> Storage:
    """Create an empty storage in the memory of this process.

    Returns
    -------
    Storage
        The storage.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(in_memory_storage())
    >>> sorted(repo.list_branches())
    ['main']
    """
    return MemoryStorage()


def local_filesystem_storage(path: str | os.PathLike[str], *, fsync: bool | None = None) -> Storage:
    """Create a storage in a directory of the file system.

    Parameters
    ----------
    path
        The directory. The first write creates it.
    fsync
        Whether commits survive a power loss. True waits for the disk before a commit is reported. False is faster. None
        uses the setting `storage.fsync` of the repository, which is True by default.

    Returns
    -------
    Storage
        The storage.

    Examples
    --------
    >>> local_filesystem_storage("/data/weather").url
    'file:///data/weather/'
    """
    return LocalStorage(path, fsync=fsync)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None = None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: str | None = None,
    headers: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    sorted_listing: bool | None = None,
    retries: RetryPolicy | None = None,
) -> ObstoreStorage:
    """Create a storage in a bucket of Amazon S3 or of an S3-compatible service.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The path of the repository in the bucket.
    region
        The region of the bucket.
    endpoint_url
        The endpoint of an S3-compatible service. The default is the endpoint of the environment, then that of AWS.
    allow_http
        Allow an endpoint without TLS.
    access_key_id, secret_access_key, session_token, expires_after
        An access key, see `s3_credentials`.
    anonymous
        Do not sign requests.
    from_env
        Read credentials from the environment. This is the default.
    get_credentials
        A function that returns `S3StaticCredentials`. It is called again when they have expired.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the storage.
    force_path_style
        Put the bucket in the path of URLs instead of the host name.
    network_stream_timeout_seconds
        How long a response can make no progress.
    requester_pays
        Accept the costs of requests to requester-pays buckets.
    checksum_algorithm
        The checksum of uploads, such as `SHA256`.
    headers
        Headers of every request.
    read_headers
        Headers of requests that read.
    write_headers
        Headers of requests that write.
    sorted_listing
        Whether the service lists keys in order. None detects it for unknown services.
    retries
        How failed requests are retried.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The bucket is not a name, the endpoint contains a password, or the credentials contradict each other.

    Examples
    --------
    >>> s3_storage(bucket="weather", prefix="era5", region="eu-west-1", anonymous=True).url
    's3://weather/era5/'
    """
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    if endpoint_url is not None and has_userinfo(endpoint_url):
        raise InvalidInputError("endpoint_url must not contain a user or a password. Pass the access keys as arguments")
    options = S3Options(
        region,
        endpoint_url,
        allow_http,
        bool(anonymous),
        force_path_style,
        network_stream_timeout_seconds,
        requester_pays,
        checksum_algorithm,
    )
    sorts = sorted_listing if sorted_listing is not None else known_to_sort(options.endpoint_url, bucket)
    endpoint = S3Endpoint(
        _name("bucket", bucket),
        options,
        credentials,
        _headers(headers),
        sorts,
        _headers(read_headers),
        _headers(write_headers),
    )
    return ObstoreStorage(endpoint, prefix or "", retries=retries)


def known_to_sort(endpoint_url: str | None, bucket: str) -> bool | None:
    """Return whether an S3 service lists keys in order.

    Parameters
    ----------
    endpoint_url
        The endpoint of the service. None is the endpoint of the environment, then that of AWS.
    bucket
        The name of the bucket. Directory buckets of AWS do not sort.

    Returns
    -------
    bool or None
        True or False for known services, None for others.

    Examples
    --------
    >>> known_to_sort("https://s3.eu-west-1.amazonaws.com", "weather")
    True
    >>> known_to_sort("https://s3.eu-west-1.amazonaws.com", "weather--euw1-az1--x-s3")
    False
    """
    if bucket.endswith("--x-s3"):  # directory buckets
        return False
    if endpoint_url is None:
        endpoint_url = read_settings(os.environ, read_profile_settings(os.environ)).endpoint_url
    if endpoint_url is None:
        return True
    host = urlsplit(endpoint_url).hostname or ""
    return True if host.endswith(_SORTED_ENDPOINTS) else None


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    **options: Any,
) -> Storage:
    """Create a storage in a bucket of Cloudflare R2.

    Parameters
    ----------
    bucket
        The name of the bucket. If it is not given, it is the first part of `prefix`.
    prefix
        The path of the repository in the bucket.
    account_id
        The id of the Cloudflare account. It defines the endpoint.
    endpoint_url
        The endpoint, instead of `account_id`.
    region
        The region. The default is `auto`.
    **options
        Further arguments of `s3_storage`.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        Neither `account_id` nor `endpoint_url` is given.

    Examples
    --------
    >>> r2_storage(bucket="weather", prefix="era5", account_id="0123abcd", anonymous=True).url
    's3://weather/era5/'
    """
    if endpoint_url is None:
        if account_id is None:
            raise InvalidInputError("R2 storage: give account_id or endpoint_url")
        endpoint_url = f"https://{account_id}.r2.cloudflarestorage.com"
    if bucket is None:
        # The bucket may be the first part of the prefix.
        bucket, _, prefix = (prefix or "").strip("/").partition("/")
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint_url,
        region=region or "auto",
        force_path_style=True,
        **options,
    )


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None = None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Storage:
    """Create a storage in a bucket of Tigris.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The path of the repository in the bucket.
    region
        The region that serves consistent requests. Required, unless `use_weak_consistency` is set.
    endpoint_url
        The endpoint. The default is that of Tigris.
    use_weak_consistency
        Read from the nearest region. The storage is then read-only.
    headers
        Headers of every request.
    **options
        Further arguments of `s3_storage`.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        Neither `region` nor `use_weak_consistency` is given.

    Examples
    --------
    >>> tigris_storage(bucket="weather", region="iad", anonymous=True).url
    's3://weather/'
    """
    if not use_weak_consistency and region is None:
        raise InvalidInputError("Tigris storage: give the region, or pass use_weak_consistency=True to only read")
    consistency = {} if use_weak_consistency else {"X-Tigris-Consistent": "true", "X-Tigris-Regions": region or ""}
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint_url or TIGRIS_ENDPOINT,
        region=region or "auto",
        headers={**consistency, **(headers or {})},
        **options,
    )
    return storage.without_writes() if use_weak_consistency else storage


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None = None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    headers: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    retries: RetryPolicy | None = None,
) -> Storage:
    """Create a storage in a bucket of Google Cloud Storage.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The path of the repository in the bucket.
    service_account_file, service_account_key, application_credentials, bearer_token
        Credentials, see `gcs_credentials`. Give at most one.
    anonymous
        Do not sign requests.
    from_env
        Read credentials from the environment. This is the default.
    config
        Options of the obstore client.
    get_credentials
        A function that returns a `GcsBearerCredential`. It is called again when the token has expired.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the storage.
    headers
        Headers of every request.
    read_headers
        Headers of requests that read.
    write_headers
        Headers of requests that write.
    retries
        How failed requests are retried.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The bucket is not a name, or the credentials contradict each other.

    Examples
    --------
    >>> gcs_storage(bucket="weather", prefix="era5", anonymous=True).url
    'gs://weather/era5/'
    """
    credentials = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    endpoint = GcsEndpoint(
        _name("bucket", bucket),
        credentials,
        dict(config or {}),
        _headers(headers),
        _headers(read_headers),
        _headers(write_headers),
    )
    return ObstoreStorage(endpoint, prefix or "", retries=retries)


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str | None = None,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], AzureStaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    retries: RetryPolicy | None = None,
) -> Storage:
    """Create a storage in a container of Azure Blob Storage.

    Parameters
    ----------
    account
        The name of the storage account.
    container
        The name of the container.
    prefix
        The path of the repository in the container.
    access_key, sas_token, bearer_token
        Credentials, see `azure_credentials`. Give at most one.
    from_env
        Read credentials from the environment. This is the default.
    anonymous
        Do not sign requests.
    config
        Options of the obstore client.
    get_credentials
        A function that returns `AzureStaticCredentials`. It is called again when they have expired.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the storage.
    retries
        How failed requests are retried.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The account or container is not a name, or the credentials contradict each other.

    Examples
    --------
    >>> azure_storage(account="acme", container="weather", prefix="era5", anonymous=True).url
    'az://acme/weather/era5/'
    """
    credentials = azure_credentials(
        access_key=access_key,
        sas_token=sas_token,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    endpoint = AzureEndpoint(_name("account", account), _name("container", container), credentials, dict(config or {}))
    return ObstoreStorage(endpoint, prefix or "", retries=retries)


def http_storage(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    retries: RetryPolicy | None = None,
) -> Storage:
    """Create a read-only storage for a repository on a web server.

    Parameters
    ----------
    base_url
        The URL of the repository.
    opts
        Options of the obstore client.
    headers
        Headers of every request.
    retries
        How failed requests are retried.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The URL is not an http or https URL.

    Examples
    --------
    >>> http_storage("https://example.org/weather").url
    'https://example.org/weather/'
    """
    if urlsplit(base_url).scheme not in ("http", "https"):
        raise InvalidInputError(f"{without_userinfo(base_url)!r} is not an http or https address")
    return ObstoreStorage(HttpEndpoint(base_url, dict(opts or {}), dict(headers or {})), retries=retries)


def _headers(given: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (given or {}).items():
        if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", str(name)) is None or not str(value).isprintable():
            raise InvalidInputError(f"{name!r} is an invalid HTTP header: names have no spaces, values are printable")
    return {str(name): str(value) for name, value in (given or {}).items()}


def _name(what: str, value: str) -> str:
    if "@" in value or ":" in value:
        raise InvalidInputError(f"the name of a {what} must not contain '@' or ':'. Pass credentials as options")
    if not value or "/" in value:
        raise InvalidInputError(f"{value!r} is not the name of a {what}")
    return value


def _local_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(f"{url!r} is a file on another machine. For a local folder, write file:///folder")
    return local_filesystem_storage(unquote(parts.path), **options)


def _s3_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    parts = urlsplit(url, allow_fragments=False)
    return s3_storage(bucket=parts.netloc, prefix=parts.path.strip("/"), **options)


def _gcs_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    parts = urlsplit(url, allow_fragments=False)
    return gcs_storage(bucket=parts.netloc, prefix=parts.path.strip("/"), **options)


def _azure_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    parts = urlsplit(url, allow_fragments=False)
    if "@" in parts.netloc:  # abfss://container@account.dfs.core.windows.net/prefix
        container, _, host = parts.netloc.partition("@")
        named = {"account": host.partition(".")[0], **options}
        return azure_storage(container=container, prefix=parts.path.strip("/"), **named)
    if "account" in options:  # az://container/prefix
        return azure_storage(container=parts.netloc, prefix=parts.path.strip("/"), **options)
    container, _, prefix = parts.path.strip("/").partition("/")  # az://account/container/prefix
    return azure_storage(account=parts.netloc, container=container, prefix=prefix, **options)


def _memory_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    if options:
        raise InvalidInputError(f"memory:// has no options, got {sorted(options)}")
    parts = urlsplit(url)
    storage: Storage = MemoryStorage.named(parts.netloc) if parts.netloc else MemoryStorage()
    return storage.child(parts.path) if parts.path.strip("/") else storage


def _http_from_url(url: str, options: Mapping[str, Any]) -> Storage:
    return http_storage(url, **options)


_SCHEMES: dict[str, Callable[[str, Mapping[str, Any]], Storage]] = {
    "file": _local_from_url,
    "memory": _memory_from_url,
    "s3": _s3_from_url,
    "s3a": _s3_from_url,
    "gs": _gcs_from_url,
    "gcs": _gcs_from_url,
    "az": _azure_from_url,
    "azure": _azure_from_url,
    "abfs": _azure_from_url,
    "abfss": _azure_from_url,
    "http": _http_from_url,
    "https": _http_from_url,
}


REPOSITORY_PART = re.compile(r"\|\s*icechunk\s*(?::|$|(?=\|))", re.IGNORECASE)
"""Where the second part of a URL of a repository at a ref begins (see `RepositoryUrl`)."""


def storage_from_url(url: str, **options: Any) -> Storage:
    """Create the storage for a URL or a path.

    Parameters
    ----------
    url
        A path, or a URL with the scheme file, memory, s3, gs, az, abfss, http or https.
    **options
        Arguments of the constructor for the scheme, such as `endpoint_url` of `s3_storage`.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The URL is empty, its scheme is unknown, or an option does not exist.

    Examples
    --------
    >>> storage_from_url("s3://weather/era5", anonymous=True).url
    's3://weather/era5/'
    >>> storage_from_url("memory://").url.startswith("memory://")
    True
    """
    if REPOSITORY_PART.search(url):
        raise InvalidInputError(
            f"{url!r} names a snapshot of a repository, and a storage or a whole repository is expected here. Give the "
            "part before `|`, or open the URL with icefloe.open_url or xarray.open_dataset"
        )
    scheme, colon, _ = url.partition("://")
    if not colon:
        if not url:
            raise InvalidInputError("expected the URL or path of a storage, got an empty string")
        return local_filesystem_storage(url, **options)
    make = _SCHEMES.get(scheme.lower())
    if make is None:
        raise InvalidInputError(f"unknown kind of storage {scheme}://. Known: {', '.join(_SCHEMES)}, and paths")
    try:
        return make(url, options)
    except TypeError as error:
        # An option that the constructor does not have; the message of Python names it.
        raise InvalidInputError(f"cannot create a storage for {scheme}://: {error}") from error


def resolve_storage(given: StorageLike) -> Storage:
    """Return a storage as it is, or create it from a URL or a path.

    Parameters
    ----------
    given
        A storage, a URL or a path.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    InvalidInputError
        The value is none of the three.

    Examples
    --------
    >>> resolve_storage("/data/weather").url
    'file:///data/weather/'
    """
    if isinstance(given, Storage):
        return given
    if isinstance(given, str):
        return storage_from_url(given)
    if isinstance(given, os.PathLike):
        return local_filesystem_storage(given)
    raise InvalidInputError(f"expected a storage, a URL or a path, got {type(given).__name__}")


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
