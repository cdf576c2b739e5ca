"""Who asks: credentials for object stores, which pickle to workers and are shown to nobody."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from icefloe.errors import InvalidInputError
from icefloe.storage.refreshing import RefreshableCredentials


@dataclass(frozen=True, slots=True)
class S3StaticCredentials:
    """An access key, maybe for a limited time."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_after: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """Requests are not signed."""


@dataclass(frozen=True, slots=True)
class FromEnvCredentials:
    """What the environment of the process that connects has."""


@dataclass(frozen=True, slots=True)
class GcsBearerCredential:
    """A token, maybe for a limited time."""

    bearer: str = field(repr=False)
    expires_after: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class GcsStaticCredentials:
    """A service account by file or key, application credentials, or a token; one of them."""

    service_account_file: str | None = None
    service_account_key: str | None = field(default=None, repr=False)
    application_credentials: str | None = None
    bearer_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AzureStaticCredentials:
    """An account key, a shared access signature, or a token; one of them."""

    access_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    expires_after: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class LocalFileSystemAccess:
    """The caller allows that local files are read."""


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The caller allows that a web server is read."""


class S3RefreshableCredentials(RefreshableCredentials[S3StaticCredentials]):
    """S3 credentials renewed by a function."""


class GcsRefreshableCredentials(RefreshableCredentials[GcsBearerCredential]):
    """GCS tokens renewed by a function."""


class AzureRefreshableCredentials(RefreshableCredentials[AzureStaticCredentials]):
    """Azure credentials renewed by a function."""


AzureRefreshableCredential = AzureStaticCredentials

S3Credentials: TypeAlias = S3StaticCredentials | AnonymousCredentials | FromEnvCredentials | S3RefreshableCredentials
GcsCredentials: TypeAlias = (
    GcsStaticCredentials | GcsBearerCredential | AnonymousCredentials | FromEnvCredentials | GcsRefreshableCredentials
)
AzureCredentials: TypeAlias = (
    AzureStaticCredentials | AnonymousCredentials | FromEnvCredentials | AzureRefreshableCredentials
)
AnyCredential: TypeAlias = S3Credentials | GcsCredentials | AzureCredentials | LocalFileSystemAccess | HttpAccess


def _one_of(what: str, **given: object) -> str | None:
    """The name of the one way that was asked for."""
    asked = [name for name, value in given.items() if value is not None and value is not False]
    if len(asked) > 1:
        raise InvalidInputError(f"{what} credentials: give one of {', '.join(given)}; got {' and '.join(asked)}")
    return asked[0] if asked else None


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
) -> S3StaticCredentials:
    """S3 credentials by value."""
    return S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)


def s3_anonymous_credentials() -> AnonymousCredentials:
    """No credentials: requests are not signed."""
    return AnonymousCredentials()


def s3_from_env_credentials() -> FromEnvCredentials:
    """S3 credentials from the environment of the process that connects."""
    return FromEnvCredentials()


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials], scatter_initial_credentials: bool = False
) -> S3RefreshableCredentials:
    """S3 credentials renewed by a function."""
    return S3RefreshableCredentials(get_credentials, scatter_initial_credentials)


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
) -> S3Credentials:
    """S3 credentials of the one kind that is asked for; from the environment when none is."""
    way = _one_of(
        "S3", access_key_id=access_key_id, anonymous=anonymous, from_env=from_env, get_credentials=get_credentials
    )
    if way == "access_key_id" or secret_access_key is not None:
        if access_key_id is None or secret_access_key is None:
            raise InvalidInputError("S3 credentials: access_key_id and secret_access_key go together; one is missing")
        return S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    if anonymous:
        return AnonymousCredentials()
    if get_credentials is not None:
        return S3RefreshableCredentials(get_credentials, scatter_initial_credentials)
    return FromEnvCredentials()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> GcsStaticCredentials:
    """GCS credentials by value; one of the arguments."""
    way = _one_of(
        "GCS",
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
    )
    if way is None:
        raise InvalidInputError("GCS credentials: none given")
    return GcsStaticCredentials(service_account_file, service_account_key, application_credentials, bearer_token)


def gcs_anonymous_credentials() -> AnonymousCredentials:
    """No credentials: requests are not signed."""
    return AnonymousCredentials()


def gcs_from_env_credentials() -> FromEnvCredentials:
    """GCS credentials from the environment of the process that connects."""
    return FromEnvCredentials()


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential], scatter_initial_credentials: bool = False
) -> GcsRefreshableCredentials:
    """GCS tokens renewed by a function."""
    return GcsRefreshableCredentials(get_credentials, scatter_initial_credentials)


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
) -> GcsCredentials:
    """GCS credentials of the one kind that is asked for; from the environment when none is."""
    static = {
        "service_account_file": service_account_file,
        "service_account_key": service_account_key,
        "application_credentials": application_credentials,
        "bearer_token": bearer_token,
    }
    way = _one_of("GCS", **static, from_env=from_env, anonymous=anonymous, get_credentials=get_credentials)
    if way in static:
        return gcs_static_credentials(**static)
    if anonymous:
        return AnonymousCredentials()
    if get_credentials is not None:
        return GcsRefreshableCredentials(get_credentials, scatter_initial_credentials)
    return FromEnvCredentials()


def azure_static_credentials(
    *, access_key: str | None = None, sas_token: str | None = None, bearer_token: str | None = None
) -> AzureStaticCredentials:
    """Azure credentials by value; one of the arguments."""
    if _one_of("Azure", access_key=access_key, sas_token=sas_token, bearer_token=bearer_token) is None:
        raise InvalidInputError("Azure credentials: none given")
    return AzureStaticCredentials(access_key, sas_token, bearer_token)


def azure_anonymous_credentials() -> AnonymousCredentials:
    """No credentials: requests are not signed."""
    return AnonymousCredentials()


def azure_from_env_credentials() -> FromEnvCredentials:
    """Azure credentials from the environment of the process that connects."""
    return FromEnvCredentials()


def azure_refreshable_credentials(
    get_credentials: Callable[[], AzureStaticCredentials], scatter_initial_credentials: bool = False
) -> AzureRefreshableCredentials:
    """Azure credentials renewed by a function."""
    return AzureRefreshableCredentials(get_credentials, scatter_initial_credentials)


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AzureStaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AzureCredentials:
    """Azure credentials of the one kind that is asked for; from the environment when none is."""
    static = {"access_key": access_key, "sas_token": sas_token, "bearer_token": bearer_token}
    way = _one_of("Azure", **static, from_env=from_env, anonymous=anonymous, get_credentials=get_credentials)
    if way in static:
        return azure_static_credentials(**static)
    if anonymous:
        return AnonymousCredentials()
    if get_credentials is not None:
        return AzureRefreshableCredentials(get_credentials, scatter_initial_credentials)
    return FromEnvCredentials()


def containers_credentials(
    containers: Mapping[str, AnyCredential | None],
) -> dict[str, AnyCredential | None]:
    """Which virtual chunk containers may be read, by url prefix, and with which credentials (None: its own default)."""
    for prefix, credential in containers.items():
        if credential is not None and not isinstance(credential, AnyCredential):
            raise InvalidInputError(
                f"the credentials of container {prefix!r} are a {type(credential).__name__}; "
                "make them with s3_credentials, gcs_credentials, azure_credentials or the like"
            )
    return dict(containers)
