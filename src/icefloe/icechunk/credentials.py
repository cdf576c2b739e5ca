"""Credentials, as `icechunk.credentials`.

The variants of the official package are subclasses of the credentials of `icefloe`, so that the engine takes them as
they are. Only the outer wrappers `Credentials.S3`, `Credentials.Gcs` and `Credentials.Azure` are taken off, by
`plain_credentials`.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from icefloe.errors import InvalidInputError
from icefloe.storage import credentials as own
from icefloe.storage.credentials import GcsBearerCredential, S3StaticCredentials


class S3Credentials:
    """Credentials of S3 and services like it. The variants are `FromEnv`, `Anonymous`, `Static` and `Refreshable`."""

    FromEnv: type[_S3FromEnv]
    Anonymous: type[_S3Anonymous]
    Static: type[_S3Static]
    Refreshable: type[_S3Refreshable]


class _S3FromEnv(own.FromEnvCredentials, S3Credentials):
    """Credentials of the environment, of a profile, or of the machine."""


class _S3Anonymous(own.AnonymousCredentials, S3Credentials):
    """Requests are not signed."""


class _S3Static(own.S3StaticCredentials, S3Credentials):
    """Keys that do not change."""

    def __init__(self, credentials: S3StaticCredentials) -> None:
        super().__init__(
            credentials.access_key_id,
            credentials.secret_access_key,
            credentials.session_token,
            credentials.expires_after,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        keys = (self.access_key_id, self.secret_access_key, self.session_token, self.expires_after)
        return _S3Static, (S3StaticCredentials(*keys),)


class _S3Refreshable(own.S3RefreshableCredentials, S3Credentials):
    """Keys that a function returns, again when they expire."""

    def __init__(self, pickled_function: bytes, current: S3StaticCredentials | None = None) -> None:
        self.__setstate__({"function": pickled_function, "scatter": current is not None, "initial": current})


S3Credentials.FromEnv, S3Credentials.Anonymous = _S3FromEnv, _S3Anonymous
S3Credentials.Static, S3Credentials.Refreshable = _S3Static, _S3Refreshable


class GcsStaticCredentials(own.GcsStaticCredentials):
    """A secret of Google Cloud Storage, by the place or the form it has."""

    ServiceAccount: type[_ServiceAccount]
    ServiceAccountKey: type[_ServiceAccountKey]
    ApplicationCredentials: type[_ApplicationCredentials]
    BearerToken: type[_GcsBearerToken]

    def __reduce__(self) -> tuple[Any, ...]:
        (value,) = (getattr(self, name) for name in self.__dataclass_fields__ if getattr(self, name) is not None)
        return type(self), (value,)


class _ServiceAccount(GcsStaticCredentials):
    """The path of the key file of a service account."""

    def __init__(self, path: str) -> None:
        super().__init__(service_account_file=path)


class _ServiceAccountKey(GcsStaticCredentials):
    """The key of a service account."""

    def __init__(self, key: str) -> None:
        super().__init__(service_account_key=key)


class _ApplicationCredentials(GcsStaticCredentials):
    """The path of a file with application credentials."""

    def __init__(self, path: str) -> None:
        super().__init__(application_credentials=path)


class _GcsBearerToken(GcsStaticCredentials):
    """A bearer token."""

    def __init__(self, token: str) -> None:
        super().__init__(bearer_token=token)


GcsStaticCredentials.ServiceAccount = _ServiceAccount
GcsStaticCredentials.ServiceAccountKey = _ServiceAccountKey
GcsStaticCredentials.ApplicationCredentials = _ApplicationCredentials
GcsStaticCredentials.BearerToken = _GcsBearerToken


class GcsCredentials:
    """Credentials of Google Cloud Storage: `Anonymous`, `FromEnv`, `Static` or `Refreshable`."""

    Anonymous: type[_GcsAnonymous]
    FromEnv: type[_GcsFromEnv]
    Static: type[_GcsStatic]
    Refreshable: type[_GcsRefreshable]


class _GcsAnonymous(own.AnonymousCredentials, GcsCredentials):
    """Requests are not signed."""


class _GcsFromEnv(own.FromEnvCredentials, GcsCredentials):
    """Credentials of the environment or of the machine."""


class _GcsStatic(own.GcsStaticCredentials, GcsCredentials):
    """A secret that does not change."""

    def __init__(self, credentials: own.GcsStaticCredentials) -> None:
        super().__init__(
            credentials.service_account_file,
            credentials.service_account_key,
            credentials.application_credentials,
            credentials.bearer_token,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.service_account_file, self.service_account_key, self.application_credentials, self.bearer_token)
        return _GcsStatic, (own.GcsStaticCredentials(*values),)


class _GcsRefreshable(own.GcsRefreshableCredentials, GcsCredentials):
    """A token that a function returns, again when it expires."""

    def __init__(self, pickled_function: bytes, current: GcsBearerCredential | None = None) -> None:
        self.__setstate__({"function": pickled_function, "scatter": current is not None, "initial": current})


GcsCredentials.Anonymous, GcsCredentials.FromEnv = _GcsAnonymous, _GcsFromEnv
GcsCredentials.Static, GcsCredentials.Refreshable = _GcsStatic, _GcsRefreshable


class AzureRefreshableCredential(own.AzureStaticCredentials):
    """What a function that refreshes credentials of Azure returns: an `AccessKey`, a `SasToken` or a `BearerToken`."""

    AccessKey: type[_RefreshedAccessKey]
    SasToken: type[_RefreshedSasToken]
    BearerToken: type[_RefreshedBearerToken]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_refreshed, (type(self), self._secret(), self.expires_after)

    def _secret(self) -> str:
        return self.access_key or self.sas_token or self.bearer_token or ""


class _RefreshedAccessKey(AzureRefreshableCredential):
    """The access key of the account."""

    def __init__(self, key: str, expires_after: dt.datetime | None = None) -> None:
        super().__init__(access_key=key, expires_after=expires_after)


class _RefreshedSasToken(AzureRefreshableCredential):
    """A shared access signature."""

    def __init__(self, token: str, expires_after: dt.datetime | None = None) -> None:
        super().__init__(sas_token=token, expires_after=expires_after)


class _RefreshedBearerToken(AzureRefreshableCredential):
    """A bearer token."""

    def __init__(self, bearer: str, expires_after: dt.datetime | None = None) -> None:
        super().__init__(bearer_token=bearer, expires_after=expires_after)


def _rebuild_refreshed(cls: Any, secret: str, expires_after: dt.datetime | None) -> AzureRefreshableCredential:
    rebuilt: AzureRefreshableCredential = cls(secret, expires_after=expires_after)
    return rebuilt


AzureRefreshableCredential.AccessKey = _RefreshedAccessKey
AzureRefreshableCredential.SasToken = _RefreshedSasToken
AzureRefreshableCredential.BearerToken = _RefreshedBearerToken


class AzureStaticCredentials(own.AzureStaticCredentials):
    """A secret of Azure Blob Storage: an `AccessKey`, a `SasToken` or a `BearerToken`."""

    AccessKey: type[_AccessKey]
    SasToken: type[_SasToken]
    BearerToken: type[_BearerToken]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.access_key or self.sas_token or self.bearer_token,)


class _AccessKey(AzureStaticCredentials):
    """The access key of the account."""

    def __init__(self, key: str) -> None:
        super().__init__(access_key=key)


class _SasToken(AzureStaticCredentials):
    """A shared access signature."""

    def __init__(self, token: str) -> None:
        super().__init__(sas_token=token)


class _BearerToken(AzureStaticCredentials):
    """A bearer token."""

    def __init__(self, token: str) -> None:
        super().__init__(bearer_token=token)


AzureStaticCredentials.AccessKey, AzureStaticCredentials.SasToken = _AccessKey, _SasToken
AzureStaticCredentials.BearerToken = _BearerToken


class AzureCredentials:
    """Credentials of Azure Blob Storage: `Anonymous`, `FromEnv`, `Static` or `Refreshable`."""

    Anonymous: type[_AzureAnonymous]
    FromEnv: type[_AzureFromEnv]
    Static: type[_AzureStatic]
    Refreshable: type[_AzureRefreshable]


class _AzureAnonymous(own.AnonymousCredentials, AzureCredentials):
    """Requests are not signed."""


class _AzureFromEnv(own.FromEnvCredentials, AzureCredentials):
    """Credentials of the environment or of the machine."""


class _AzureStatic(own.AzureStaticCredentials, AzureCredentials):
    """A secret that does not change."""

    def __init__(self, credentials: own.AzureStaticCredentials) -> None:
        super().__init__(credentials.access_key, credentials.sas_token, credentials.bearer_token)

    def __reduce__(self) -> tuple[Any, ...]:
        return _AzureStatic, (own.AzureStaticCredentials(self.access_key, self.sas_token, self.bearer_token),)


class _AzureRefreshable(own.AzureRefreshableCredentials, AzureCredentials):
    """A secret that a function returns, again when it expires."""

    def __init__(self, pickled_function: bytes, current: AzureRefreshableCredential | None = None) -> None:
        self.__setstate__({"function": pickled_function, "scatter": current is not None, "initial": current})


AzureCredentials.Anonymous, AzureCredentials.FromEnv = _AzureAnonymous, _AzureFromEnv
AzureCredentials.Static, AzureCredentials.Refreshable = _AzureStatic, _AzureRefreshable


class Credentials:
    """Credentials of any store: `S3`, `Gcs`, `Azure`, `LocalFileSystemAccess` or `HttpAccess`."""

    S3: type[_WrappedS3]
    Gcs: type[_WrappedGcs]
    Azure: type[_WrappedAzure]
    LocalFileSystemAccess: type[_LocalFileSystemAccess]
    HttpAccess: type[_HttpAccess]


@dataclass(frozen=True)
class _WrappedS3(Credentials):
    """Credentials of S3."""

    credentials: Any


@dataclass(frozen=True)
class _WrappedGcs(Credentials):
    """Credentials of Google Cloud Storage."""

    credentials: Any


@dataclass(frozen=True)
class _WrappedAzure(Credentials):
    """Credentials of Azure Blob Storage."""

    credentials: Any


class _LocalFileSystemAccess(own.LocalFileSystemAccess, Credentials):
    """Local files may be read. Nothing more is needed."""

    def __call__(self) -> _LocalFileSystemAccess:
        return self


class _HttpAccess(own.HttpAccess, Credentials):
    """Files of web servers may be read. Nothing more is needed."""

    def __call__(self) -> _HttpAccess:
        return self


Credentials.S3, Credentials.Gcs, Credentials.Azure = _WrappedS3, _WrappedGcs, _WrappedAzure
Credentials.LocalFileSystemAccess, Credentials.HttpAccess = _LocalFileSystemAccess, _HttpAccess

LocalFileSystemAccess = _LocalFileSystemAccess()
"""Authorises a container of local files. It can be called, because version 1 has a class of this name."""
HttpAccess = _HttpAccess()
"""Authorises a container of a web server."""

AnyS3Credential: TypeAlias = _S3Static | _S3Anonymous | _S3FromEnv | _S3Refreshable
AnyGcsStaticCredential: TypeAlias = _ServiceAccount | _ServiceAccountKey | _ApplicationCredentials | _GcsBearerToken
AnyGcsCredential: TypeAlias = _GcsAnonymous | _GcsFromEnv | _GcsStatic | _GcsRefreshable
AnyAzureStaticCredential: TypeAlias = _AccessKey | _SasToken | _BearerToken
AnyAzureCredential: TypeAlias = _AzureFromEnv | _AzureAnonymous | _AzureStatic | _AzureRefreshable
AnyCredential: TypeAlias = _WrappedS3 | _WrappedGcs | _WrappedAzure | _LocalFileSystemAccess | _HttpAccess


def plain_credentials(given: Any) -> Any:
    """Return the credentials inside `Credentials.S3`, `Credentials.Gcs` or `Credentials.Azure`, or what was given."""
    if isinstance(given, type) and issubclass(given, own.LocalFileSystemAccess | own.HttpAccess):
        return given()
    return given.credentials if isinstance(given, _WrappedS3 | _WrappedGcs | _WrappedAzure) else given


def _conflicting(function: str) -> InvalidInputError:
    return InvalidInputError(f"Conflicting arguments to {function}: give one kind of credentials")


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials], scatter_initial_credentials: bool = False
) -> _S3Refreshable:
    """Return credentials that a function refreshes. It must be possible to pickle the function."""
    current = get_credentials() if scatter_initial_credentials else None
    return _S3Refreshable(pickle.dumps(get_credentials), current)


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
) -> _S3Static:
    """Return credentials with these keys."""
    return _S3Static(S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after))


def s3_anonymous_credentials() -> _S3Anonymous:
    """Return credentials that sign nothing."""
    return _S3Anonymous()


def s3_from_env_credentials() -> _S3FromEnv:
    """Return credentials that are looked up in the environment."""
    return _S3FromEnv()


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """Return credentials of S3. Give keys, `anonymous`, `from_env`, `get_credentials`, or nothing for `from_env`."""
    keys = any(value is not None for value in (access_key_id, secret_access_key, session_token, expires_after))
    if sum((keys, bool(anonymous), bool(from_env), get_credentials is not None)) > 1:
        raise _conflicting("s3_credentials")
    if keys:
        if not access_key_id or not secret_access_key:
            raise _conflicting("s3_credentials")
        return s3_static_credentials(
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            expires_after=expires_after,
        )
    if anonymous:
        return _S3Anonymous()
    if get_credentials is not None:
        return s3_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if from_env is False:
        raise _conflicting("s3_credentials")
    return _S3FromEnv()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """Return a secret of Google Cloud Storage, from the first argument that is given."""
    if service_account_file is not None:
        return _ServiceAccount(service_account_file)
    if service_account_key is not None:
        return _ServiceAccountKey(service_account_key)
    if application_credentials is not None:
        return _ApplicationCredentials(application_credentials)
    if bearer_token is not None:
        return _GcsBearerToken(bearer_token)
    raise _conflicting("gcs_static_credentials")


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential], scatter_initial_credentials: bool = False
) -> _GcsRefreshable:
    """Return credentials that a function refreshes. It must be possible to pickle the function."""
    current = get_credentials() if scatter_initial_credentials else None
    return _GcsRefreshable(pickle.dumps(get_credentials), current)


def gcs_anonymous_credentials() -> _GcsAnonymous:
    """Return credentials that sign nothing."""
    return _GcsAnonymous()


def gcs_from_env_credentials() -> _GcsFromEnv:
    """Return credentials that are looked up in the environment."""
    return _GcsFromEnv()


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """Return credentials of Google Cloud Storage. Without arguments they are those of the environment."""
    if anonymous:
        return _GcsAnonymous()
    static = {
        "service_account_file": service_account_file,
        "service_account_key": service_account_key,
        "application_credentials": application_credentials,
        "bearer_token": bearer_token,
    }
    if any(value is not None for value in static.values()):
        if from_env:
            raise _conflicting("gcs_credentials")
        return _GcsStatic(gcs_static_credentials(**static))
    if get_credentials is not None and not from_env:
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if from_env is False:
        raise _conflicting("gcs_credentials")
    return _GcsFromEnv()


def azure_static_credentials(
    *, access_key: str | None = None, sas_token: str | None = None, bearer_token: str | None = None
) -> AnyAzureStaticCredential:
    """Return a secret of Azure Blob Storage. Give exactly one argument."""
    if [access_key, sas_token, bearer_token].count(None) != 2:
        raise _conflicting("azure_static_credentials")
    if access_key is not None:
        return _AccessKey(access_key)
    return _SasToken(sas_token) if sas_token is not None else _BearerToken(bearer_token or "")


def azure_refreshable_credentials(
    get_credentials: Callable[[], AzureRefreshableCredential], scatter_initial_credentials: bool = False
) -> _AzureRefreshable:
    """Return credentials that a function refreshes. It must be possible to pickle the function."""
    current = get_credentials() if scatter_initial_credentials else None
    return _AzureRefreshable(pickle.dumps(get_credentials), current)


def azure_from_env_credentials() -> _AzureFromEnv:
    """Return credentials that are looked up in the environment."""
    return _AzureFromEnv()


def azure_anonymous_credentials() -> _AzureAnonymous:
    """Return credentials that sign nothing."""
    return _AzureAnonymous()


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """Return credentials of Azure Blob Storage. Without arguments they are those of the environment."""
    if anonymous:
        return _AzureAnonymous()
    if get_credentials is not None:
        return azure_refreshable_credentials(get_credentials, scatter_initial_credentials)
    static = {"access_key": access_key, "sas_token": sas_token, "bearer_token": bearer_token}
    if any(value is not None for value in static.values()):
        if from_env:
            raise _conflicting("azure_credentials")
        return _AzureStatic(azure_static_credentials(**static))
    if from_env is False:
        raise _conflicting("azure_credentials")
    return _AzureFromEnv()


def containers_credentials(m: Mapping[str, Any]) -> dict[str, AnyCredential | None]:
    """Return credentials of virtual chunk containers by URL prefix, as repositories take them."""
    found: dict[str, Any] = {}
    for prefix, given in m.items():
        credential = plain_credentials(given)
        if credential is None or isinstance(credential, own.LocalFileSystemAccess | own.HttpAccess):
            found[prefix] = credential
        elif isinstance(credential, S3Credentials | own.S3StaticCredentials | own.S3RefreshableCredentials):
            found[prefix] = _WrappedS3(credential)
        elif isinstance(credential, GcsCredentials):
            found[prefix] = _WrappedGcs(credential)
        elif isinstance(credential, AzureCredentials):
            found[prefix] = _WrappedAzure(credential)
        elif isinstance(credential, own.AnyCredential):
            found[prefix] = credential
        else:
            raise InvalidInputError(f"Unknown credential type {type(given).__name__} for the container {prefix!r}")
    return found


__all__ = [
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "Credentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "HttpAccess",
    "LocalFileSystemAccess",
    "S3Credentials",
    "S3StaticCredentials",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
]
