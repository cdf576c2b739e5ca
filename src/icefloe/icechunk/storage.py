"""Storages and stores of virtual chunks, as `icechunk.storage`."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import threading
import urllib.error
import urllib.request
from abc import ABCMeta
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urljoin, urlsplit

from icefloe.display.card import ShownField
from icefloe.errors import InvalidInputError, StorageError, UnsupportedError
from icefloe.icechunk.credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    plain_credentials,
    s3_credentials,
)
from icefloe.icechunk.version_1 import InMemoryStorage, follows_version_1
from icefloe.model.config import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
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
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.session.session import ChunkType
from icefloe.storage import build
from icefloe.storage import contract as engine
from icefloe.storage import credentials as own
from icefloe.storage.contract import StorageObjectInfo
from icefloe.storage.wrappers import Operation, WrappedStorage

T = TypeVar("T")
Headers = Mapping[str, str] | None

AnyObjectStoreConfig: TypeAlias = (
    InMemoryObjectStore
    | LocalFileSystemObjectStore
    | S3ObjectStore
    | S3CompatibleObjectStore
    | GcsObjectStore
    | AzureObjectStore
    | TigrisObjectStore
    | HttpObjectStore
)

_HUGGING_FACE = "https://s3.hf.co"
_MOST_REDIRECTS = 10
_REPOSITORY_SCHEMES = ("s3", "r2", "tigris", "gs", "gcs")


class ChecksumAlgorithm(enum.StrEnum):
    """How S3 checks what is uploaded. Only `Sha256` and `Crc64Nvme` are available."""

    Crc32 = "crc32"
    Crc32c = "crc32c"
    Crc64Nvme = "crc64nvme"
    Sha1 = "sha1"
    Sha256 = "sha256"


class _AnyStorage(ABCMeta):
    """Every storage of the engine is an instance of `Storage`."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, engine.Storage) if cls is Storage else super().__instancecheck__(instance)


class Storage(engine.Storage, metaclass=_AnyStorage):
    """Where the objects of a repository are. The static constructors are those of the official package."""

    @classmethod
    def new_in_memory(cls) -> engine.Storage:
        """Return a storage in the memory of this process."""
        return in_memory_storage()

    @classmethod
    def new_local_filesystem(cls, path: str) -> engine.Storage:
        """Return a storage in a folder."""
        return build.local_filesystem_storage(path)

    @classmethod
    def new_s3(
        cls,
        config: S3Options,
        bucket: str,
        prefix: str | None,
        credentials: Any = None,
        legacy_rooted_keys: bool | None = None,
        *,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of S3, or of a service like it."""
        _check_rooted(prefix, legacy_rooted_keys)
        more: dict[str, Any] = {"headers": headers, "read_headers": read_headers, "write_headers": write_headers}
        return build.s3_storage(bucket=bucket, prefix=prefix, **_s3_options(config, credentials), **more)

    @classmethod
    def new_s3_object_store(
        cls,
        config: S3Options,
        bucket: str,
        prefix: str | None,
        credentials: Any = None,
        *,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of S3. There is one client for S3, so this is `new_s3`."""
        more: dict[str, Any] = {"headers": headers, "read_headers": read_headers, "write_headers": write_headers}
        return build.s3_storage(bucket=bucket, prefix=prefix, **_s3_options(config, credentials), **more)

    @classmethod
    def new_tigris(
        cls,
        config: S3Options,
        bucket: str,
        prefix: str | None,
        use_weak_consistency: bool,
        credentials: Any = None,
        legacy_rooted_keys: bool | None = None,
        *,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of Tigris."""
        _check_rooted(prefix, legacy_rooted_keys)
        return build.tigris_storage(
            bucket=bucket,
            prefix=prefix,
            use_weak_consistency=use_weak_consistency,
            headers=headers,
            read_headers=read_headers,
            write_headers=write_headers,
            **_s3_options(config, credentials),
        )

    @classmethod
    def new_r2(
        cls,
        config: S3Options,
        bucket: str | None = None,
        prefix: str | None = None,
        account_id: str | None = None,
        credentials: Any = None,
        legacy_rooted_keys: bool | None = None,
        *,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of Cloudflare R2."""
        _check_rooted(prefix, legacy_rooted_keys)
        options = _s3_options(config, credentials)
        options.pop("force_path_style")
        return build.r2_storage(
            bucket=bucket,
            prefix=prefix,
            account_id=account_id,
            headers=headers,
            read_headers=read_headers,
            write_headers=write_headers,
            **options,
        )

    @classmethod
    def new_hf(
        cls,
        config: S3Options,
        bucket: str,
        prefix: str | None,
        namespace: str,
        credentials: Any = None,
        legacy_rooted_keys: bool | None = None,
        *,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of Hugging Face. A user or an organization is its namespace."""
        _check_rooted(prefix, legacy_rooted_keys)
        if not namespace or "/" in namespace:
            raise InvalidInputError(f"{namespace!r} is not the namespace of a Hugging Face bucket")
        options = _s3_options(config, credentials)
        options |= {"endpoint_url": f"{_HUGGING_FACE}/{namespace}", "force_path_style": True}
        options["region"] = options["region"] or "us-east-1"
        more: dict[str, Any] = {"headers": headers, "read_headers": read_headers, "write_headers": write_headers}
        return build.s3_storage(bucket=bucket, prefix=prefix, **options, **more)

    @classmethod
    def new_gcs(
        cls,
        bucket: str,
        prefix: str | None,
        credentials: Any = None,
        *,
        config: Mapping[str, str] | None = None,
        read_headers: Headers = None,
        write_headers: Headers = None,
        headers: Headers = None,
    ) -> engine.Storage:
        """Return a storage in a bucket of Google Cloud Storage."""
        return build.gcs_storage(
            bucket=bucket,
            prefix=prefix,
            config=config,
            headers=headers,
            read_headers=read_headers,
            write_headers=write_headers,
            **_gcs_options(plain_credentials(credentials)),
        )

    @classmethod
    def new_azure_blob(
        cls,
        account: str,
        container: str,
        prefix: str,
        credentials: Any = None,
        *,
        config: Mapping[str, str] | None = None,
    ) -> engine.Storage:
        """Return a storage in a container of Azure Blob Storage."""
        options = _azure_options(plain_credentials(credentials))
        return build.azure_storage(account=account, container=container, prefix=prefix, config=config, **options)

    @classmethod
    def new_http(
        cls, base_url: str, config: Mapping[str, str] | None = None, headers: Headers = None
    ) -> engine.Storage:
        """Return a read-only storage on a web server."""
        return build.http_storage(base_url, config, headers)

    @classmethod
    def new_redirect(cls, base_url: str) -> engine.Storage:
        """Return the storage that a web server redirects to."""
        return redirect_storage(base_url)


def _check_rooted(prefix: str | None, legacy_rooted_keys: bool | None) -> None:
    if legacy_rooted_keys is None:
        return
    if prefix:
        raise InvalidInputError("legacy_rooted_keys is only valid with an empty prefix")
    if legacy_rooted_keys:
        raise UnsupportedError(
            "legacy_rooted_keys=True: keys that start with '/' are not supported; copy the repository to a prefix"
        )


def _s3_options(config: S3Options, credentials: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "region": config.region,
        "endpoint_url": config.endpoint_url,
        "allow_http": config.allow_http,
        "force_path_style": config.force_path_style,
        "requester_pays": config.requester_pays,
        "checksum_algorithm": config.checksum_algorithm,
    }
    if config.network_stream_timeout_seconds is not None:
        options["network_stream_timeout_seconds"] = config.network_stream_timeout_seconds
    given = plain_credentials(credentials)
    match given:
        case own.AnonymousCredentials():
            options["anonymous"] = True
        case own.S3StaticCredentials():
            options |= {"access_key_id": given.access_key_id, "secret_access_key": given.secret_access_key}
            options |= {"session_token": given.session_token, "expires_after": given.expires_after}
        case own.S3RefreshableCredentials():
            options["get_credentials"] = given.current
        case _ if config.anonymous:
            options["anonymous"] = True
        case None | own.FromEnvCredentials():
            options["from_env"] = True
        case _:
            raise InvalidInputError(f"{type(given).__name__} are no credentials of S3")
    return options


def _gcs_options(given: Any) -> dict[str, Any]:
    match given:
        case None | own.FromEnvCredentials():
            return {"from_env": True}
        case own.AnonymousCredentials():
            return {"anonymous": True}
        case own.GcsStaticCredentials():
            names = ("service_account_file", "service_account_key", "application_credentials", "bearer_token")
            return {name: getattr(given, name) for name in names}
        case own.GcsRefreshableCredentials():
            return {"get_credentials": given.current}
    raise InvalidInputError(f"{type(given).__name__} are no credentials of Google Cloud Storage")


def _azure_options(given: Any) -> dict[str, Any]:
    match given:
        case None | own.FromEnvCredentials():
            return {"from_env": True}
        case own.AnonymousCredentials():
            return {"anonymous": True}
        case own.AzureStaticCredentials():
            return {name: getattr(given, name) for name in ("access_key", "sas_token", "bearer_token")}
        case own.AzureRefreshableCredentials():
            return {"get_credentials": given.current}
    raise InvalidInputError(f"{type(given).__name__} are no credentials of Azure Blob Storage")


def in_memory_storage() -> engine.Storage:
    """Return a storage in the memory of this process."""
    return InMemoryStorage() if follows_version_1() else build.in_memory_storage()


def local_filesystem_storage(path: str) -> engine.Storage:
    """Return a storage in a folder."""
    return build.local_filesystem_storage(path)


def http_storage(base_url: str, opts: Mapping[str, str] | None = None, headers: Headers = None) -> engine.Storage:
    """Return a read-only storage on a web server."""
    return build.http_storage(base_url, opts, headers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are looked at one by one: the last one names a scheme that is not HTTP."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _RedirectStorage(WrappedStorage, Storage):
    """The storage that a web server redirects to. The server is asked at the first use, and not again."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._found: engine.Storage | None = None
        self._lock = threading.Lock()

    @property
    def inner(self) -> engine.Storage:
        """The storage. If the server was not asked before, this waits for its answer."""
        with self._lock:
            if self._found is None:
                self._found = _follow_redirects(self._base_url)
            return self._found

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        await self.find()
        return await call()

    async def find(self) -> engine.Storage:
        """Return the storage. If the server was not asked before, a thread waits for its answer."""
        found = self._found
        return await asyncio.to_thread(lambda: self.inner) if found is None else found

    def _rewrap(self, inner: engine.Storage) -> engine.Storage:
        return inner

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", "redirect")
        yield ShownField("url", self._base_url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RedirectStorage) and other._base_url == self._base_url

    def __hash__(self) -> int:
        return hash(self._base_url)

    def __reduce__(self) -> tuple[Any, ...]:
        return _RedirectStorage, (self._base_url,)


async def resolve_redirect(storage: Any) -> Any:
    """Return the storage that a redirect storage leads to, and other storages as they are."""
    return await storage.find() if isinstance(storage, _RedirectStorage) else storage


def redirect_storage(base_url: str) -> engine.Storage:
    """Return the read-only storage that a web server redirects to. The server is asked when the storage is first used.

    Parameters
    ----------
    base_url
        An address that answers with a redirect, at the end to `s3://bucket/prefix?region=...`, `r2://`, `tigris://`,
        `gs://` or `https+icechunk://`. If the server cannot be reached, or does not redirect to a storage, the first
        use is a `StorageError`.
    """
    return _RedirectStorage(base_url)


def _follow_redirects(base_url: str) -> engine.Storage:
    opener = urllib.request.build_opener(_NoRedirect)
    url = base_url
    for _ in range(_MOST_REDIRECTS + 1):
        scheme = urlsplit(url).scheme.lower()
        if scheme in _REPOSITORY_SCHEMES or scheme.endswith(("+icechunk", "+ic")):
            return _redirected(url)
        if scheme not in ("http", "https"):
            raise StorageError(f"{base_url} redirects to {url!r}: no storage for {scheme}://", "bad-redirect")
        try:
            with opener.open(url, timeout=60) as answer:
                location = answer.headers.get("location")
        except urllib.error.HTTPError as error:
            location = error.headers.get("location") if error.code in range(300, 400) else None
        except OSError as error:
            raise StorageError(f"{base_url} cannot be reached: {error}", "bad-redirect") from error
        if location is None:
            raise StorageError(f"{url} does not redirect to a storage: it has no location header", "bad-redirect")
        url = urljoin(url, location)
    raise StorageError(f"{base_url} redirects more than {_MOST_REDIRECTS} times", "bad-redirect")


def _redirected(url: str) -> engine.Storage:
    parts = urlsplit(url)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    bucket, prefix, region = parts.hostname or "", parts.path.strip("/"), asked.get("region")
    match parts.scheme.lower():
        case "s3":
            return build.s3_storage(bucket=bucket, prefix=prefix, region=region, anonymous=True)
        case "r2":
            account = asked.get("account_id")
            return build.r2_storage(bucket=bucket, prefix=prefix, region=region, account_id=account, anonymous=True)
        case "tigris":
            return build.tigris_storage(
                bucket=bucket, prefix=prefix, region=region, use_weak_consistency=True, anonymous=True
            )
        case "gs" | "gcs":
            return build.gcs_storage(bucket=bucket, prefix=prefix, anonymous=True)
    scheme, _, rest = url.partition("://")
    return build.http_storage(f"{scheme.partition('+')[0]}://{rest}")


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
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
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of S3, or of a service like it."""
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
    return Storage.new_s3(
        options,
        bucket,
        prefix,
        credentials,
        legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def s3_object_store_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    force_path_style: bool = False,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of S3. There is one client for S3, so this is `s3_storage`."""
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        force_path_style=force_path_style,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of Tigris."""
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
    options = S3Options(
        region,
        endpoint_url,
        allow_http,
        bool(anonymous),
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
    )
    return Storage.new_tigris(
        options,
        bucket,
        prefix,
        use_weak_consistency,
        credentials,
        legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of Cloudflare R2."""
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
    options = S3Options(
        region,
        endpoint_url,
        allow_http,
        bool(anonymous),
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
    )
    return Storage.new_r2(
        options,
        bucket,
        prefix,
        account_id,
        credentials,
        legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of Hugging Face."""
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return Storage.new_hf(
        S3Options(network_stream_timeout_seconds=network_stream_timeout_seconds),
        bucket,
        prefix,
        namespace,
        credentials,
        legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> engine.Storage:
    """Return a storage in a bucket of Google Cloud Storage."""
    credentials = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return Storage.new_gcs(
        bucket,
        prefix,
        credentials,
        config=config,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def azure_store(*, account: str, config: Mapping[str, str] | None = None) -> AzureObjectStore:
    """Return the store of virtual chunks in an account of Azure Blob Storage."""
    return AzureObjectStore({"account": account, **(config or {})})


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> engine.Storage:
    """Return a storage in a container of Azure Blob Storage."""
    credentials = azure_credentials(
        access_key=access_key, sas_token=sas_token, bearer_token=bearer_token, from_env=from_env, anonymous=anonymous
    )
    return Storage.new_azure_blob(account, container, prefix, credentials, config=config)


__all__ = [
    "AnyObjectStoreConfig",
    "ChecksumAlgorithm",
    "ChunkType",
    "ObjectStoreConfig",
    "S3Options",
    "Storage",
    "StorageConcurrencySettings",
    "StorageObjectInfo",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "azure_credentials",
    "azure_storage",
    "azure_store",
    "gcs_credentials",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "local_filesystem_storage",
    "local_filesystem_store",
    "r2_storage",
    "redirect_storage",
    "s3_credentials",
    "s3_object_store_storage",
    "s3_storage",
    "s3_store",
    "tigris_storage",
]
