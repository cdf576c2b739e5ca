"""Credentials for object stores. They can be pickled and sent to workers. Their secrets are never shown."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from icefloe.display.card import ShownField, WithFields
from icefloe.errors import InvalidInputError

try:
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    cloudpickle = None


class Expiring(Protocol):
    """A value that is valid until a point in time, or without limit."""

    @property
    def expires_after(self) -> dt.datetime | None:
        """The time at which the value expires, or None."""


E = TypeVar("E", bound=Expiring)


class RefreshableCredentials(Generic[E]):
    """Credentials from a function. The function is called again when the last credentials have expired.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns credentials. It must be importable in workers, unless cloudpickle is
        installed.
    scatter_initial_credentials
        Call the function now and pickle the result with this object. Workers then start with valid credentials and do
        not call the function all at once.
    """

    def __init__(self, get_credentials: Callable[[], E], scatter_initial_credentials: bool = False) -> None:
        self.get_credentials = get_credentials
        self.scatter_initial_credentials = scatter_initial_credentials
        self._initial: E | None = get_credentials() if scatter_initial_credentials else None

    def __repr__(self) -> str:
        name = getattr(self.get_credentials, "__qualname__", type(self.get_credentials).__name__)
        return f"{type(self).__name__}({name})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_credentials == getattr(other, "get_credentials", None)

    def __hash__(self) -> int:
        return hash(self.get_credentials)

    def current(self) -> E:
        """Return credentials that are valid now. Calls `get_credentials` when the last ones have expired.

        Returns
        -------
        credentials
            What `get_credentials` returned.

        Examples
        --------
        >>> import icefloe
        >>> renewed = icefloe.s3_refreshable_credentials(lambda: icefloe.S3StaticCredentials("key", "secret"))
        >>> renewed.current().access_key_id
        'key'
        """
        initial = self._initial
        if initial is not None and (initial.expires_after is None or initial.expires_after > dt.datetime.now(dt.UTC)):
            return initial
        self._initial = None
        given = self.get_credentials()
        if inspect.isawaitable(given):
            given = asyncio.run(_wait(given))
        return given

    def __getstate__(self) -> dict[str, Any]:
        return {
            "function": _pickle_function(self.get_credentials),
            "scatter": self.scatter_initial_credentials,
            "initial": self._initial,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.get_credentials = pickle.loads(state["function"])
        self.scatter_initial_credentials = state["scatter"]
        self._initial = state["initial"]


async def _wait(given: Any) -> Any:
    return await given


def _pickle_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function by reference if workers can import it, otherwise by value with cloudpickle."""
    try:
        data = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if cloudpickle is None:
            raise InvalidInputError(
                f"{function!r} cannot be sent to another process. Define the function at the top level of a module, or "
                "install cloudpickle"
            ) from error
        by_value: bytes = cloudpickle.dumps(function)
        return by_value
    return data


@dataclass(frozen=True, slots=True, repr=False)
class S3StaticCredentials(WithFields):
    """An S3 access key.

    Parameters
    ----------
    access_key_id
        The id of the key.
    secret_access_key
        The secret of the key. It is not part of the `repr`.
    session_token
        The token of temporary credentials.
    expires_after
        When temporary credentials expire. None means never.

    Examples
    --------
    >>> print(S3StaticCredentials("AKIA123456", "secret"))
    <icechunk.credentials.S3StaticCredentials>
    access_key_id: AKIA****
    secret_access_key: ****
    session_token: None
    expires_after: None
    <BLANKLINE>
    """

    _full_name = "icechunk.credentials.S3StaticCredentials"

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_after: dt.datetime | None = None

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("access_key_id", f"{self.access_key_id[:4]}****" if len(self.access_key_id) > 8 else "****")
        yield ShownField("secret_access_key", "****")
        yield ShownField("session_token", None if self.session_token is None else "****")
        yield ShownField("expires_after", self.expires_after)


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """No credentials. Requests are not signed.

    Examples
    --------
    >>> AnonymousCredentials()
    AnonymousCredentials()
    """


@dataclass(frozen=True, slots=True)
class FromEnvCredentials:
    """Credentials from the environment variables, profiles and metadata services of the process that connects.

    Examples
    --------
    >>> FromEnvCredentials()
    FromEnvCredentials()
    """


@dataclass(frozen=True, slots=True)
class GcsBearerCredential:
    """A Google Cloud OAuth token.

    Parameters
    ----------
    bearer
        The token. It is not part of the `repr`.
    expires_after
        When the token expires. None means never.

    Examples
    --------
    >>> GcsBearerCredential("token")
    GcsBearerCredential(expires_after=None)
    """

    bearer: str = field(repr=False)
    expires_after: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class GcsStaticCredentials:
    """Google Cloud credentials. Set exactly one field.

    Parameters
    ----------
    service_account_file
        Path of the JSON file of a service account.
    service_account_key
        The JSON text of a service account.
    application_credentials
        Path of a file of application default credentials.
    bearer_token
        An OAuth token.

    Examples
    --------
    >>> GcsStaticCredentials(service_account_file="/secrets/account.json").service_account_file
    '/secrets/account.json'
    """

    service_account_file: str | None = None
    service_account_key: str | None = field(default=None, repr=False)
    application_credentials: str | None = None
    bearer_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AzureStaticCredentials:
    """Azure credentials. Set exactly one of the first three fields.

    Parameters
    ----------
    access_key
        The key of the storage account.
    sas_token
        A shared access signature.
    bearer_token
        An OAuth token.
    expires_after
        When the credentials expire. None means never.

    Examples
    --------
    >>> AzureStaticCredentials(sas_token="sv=...")
    AzureStaticCredentials(expires_after=None)
    """

    access_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    expires_after: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class LocalFileSystemAccess:
    """Permission to read virtual chunks from local files.

    Examples
    --------
    >>> containers_credentials({"file:///data/": LocalFileSystemAccess()})
    {'file:///data/': LocalFileSystemAccess()}
    """


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Permission to read virtual chunks from a web server.

    Examples
    --------
    >>> containers_credentials({"https://example.org/": HttpAccess()})
    {'https://example.org/': HttpAccess()}
    """


class S3RefreshableCredentials(RefreshableCredentials[S3StaticCredentials]):
    """S3 credentials from a function. The function is called again when the last credentials have expired.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns `S3StaticCredentials`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Examples
    --------
    >>> def renew():
    ...     return S3StaticCredentials("AKIA", "secret")
    >>> S3RefreshableCredentials(renew)
    S3RefreshableCredentials(renew)
    """


class GcsRefreshableCredentials(RefreshableCredentials[GcsBearerCredential]):
    """Google Cloud tokens from a function. The function is called again when the last token has expired.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns a `GcsBearerCredential`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Examples
    --------
    >>> def renew():
    ...     return GcsBearerCredential("token")
    >>> GcsRefreshableCredentials(renew)
    GcsRefreshableCredentials(renew)
    """


class AzureRefreshableCredentials(RefreshableCredentials[AzureStaticCredentials]):
    """Azure credentials from a function. The function is called again when the last credentials have expired.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns `AzureStaticCredentials`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Examples
    --------
    >>> def renew():
    ...     return AzureStaticCredentials(sas_token="sv=...")
    >>> AzureRefreshableCredentials(renew)
    AzureRefreshableCredentials(renew)
    """


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
    """Return the name of the only argument that is set, or None. Several are an error."""
    asked = [name for name, value in given.items() if value is not None and value is not False]
    if len(asked) > 1:
        raise InvalidInputError(f"{what} credentials: give only one of {', '.join(given)}, got {' and '.join(asked)}")
    return asked[0] if asked else None


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: dt.datetime | None = None,
) -> S3StaticCredentials:
    """Create S3 credentials from an access key.

    Parameters
    ----------
    access_key_id
        The id of the key.
    secret_access_key
        The secret of the key.
    session_token
        The token of temporary credentials.
    expires_after
        When temporary credentials expire. None means never.

    Returns
    -------
    S3StaticCredentials
        The credentials.

    Examples
    --------
    >>> s3_static_credentials(access_key_id="AKIA", secret_access_key="secret").access_key_id
    'AKIA'
    """
    return S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)


def s3_anonymous_credentials() -> AnonymousCredentials:
    """Create credentials that do not sign requests to S3.

    Returns
    -------
    AnonymousCredentials
        The credentials.

    Examples
    --------
    >>> s3_anonymous_credentials()
    AnonymousCredentials()
    """
    return AnonymousCredentials()


def s3_from_env_credentials() -> FromEnvCredentials:
    """Create S3 credentials that are read from the environment of the process that connects.

    Returns
    -------
    FromEnvCredentials
        The credentials.

    Examples
    --------
    >>> s3_from_env_credentials()
    FromEnvCredentials()
    """
    return FromEnvCredentials()


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials], scatter_initial_credentials: bool = False
) -> S3RefreshableCredentials:
    """Create S3 credentials that a function renews.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns `S3StaticCredentials`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Returns
    -------
    S3RefreshableCredentials
        The credentials.

    Examples
    --------
    >>> renewed = s3_refreshable_credentials(lambda: S3StaticCredentials("AKIA", "secret"))
    >>> renewed.current().access_key_id
    'AKIA'
    """
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
    """Create S3 credentials of the kind that the arguments describe. Without arguments, they come from the environment.

    Parameters
    ----------
    access_key_id, secret_access_key
        An access key. Give both or none.
    session_token
        The token of temporary credentials.
    expires_after
        When temporary credentials expire. None means never.
    anonymous
        Do not sign requests.
    from_env
        Read credentials from the environment of the process that connects.
    get_credentials
        A function without arguments that returns `S3StaticCredentials`.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the credentials.

    Returns
    -------
    S3Credentials
        Static, anonymous, environment or refreshable credentials.

    Raises
    ------
    InvalidInputError
        The arguments describe several kinds, or half an access key.

    Examples
    --------
    >>> s3_credentials(anonymous=True)
    AnonymousCredentials()
    >>> s3_credentials()
    FromEnvCredentials()
    """
    way = _one_of(
        "S3", access_key_id=access_key_id, anonymous=anonymous, from_env=from_env, get_credentials=get_credentials
    )
    if way == "access_key_id" or secret_access_key is not None:
        if access_key_id is None or secret_access_key is None:
            raise InvalidInputError("S3 credentials: give both access_key_id and secret_access_key, or none")
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
    """Create Google Cloud credentials from a service account, application credentials or a token. Give exactly one.

    Parameters
    ----------
    service_account_file
        Path of the JSON file of a service account.
    service_account_key
        The JSON text of a service account.
    application_credentials
        Path of a file of application default credentials.
    bearer_token
        An OAuth token.

    Returns
    -------
    GcsStaticCredentials
        The credentials.

    Raises
    ------
    InvalidInputError
        No argument or several arguments are given.

    Examples
    --------
    >>> gcs_static_credentials(service_account_file="account.json").service_account_file
    'account.json'
    """
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
    """Create credentials that do not sign requests to Google Cloud Storage.

    Returns
    -------
    AnonymousCredentials
        The credentials.

    Examples
    --------
    >>> gcs_anonymous_credentials()
    AnonymousCredentials()
    """
    return AnonymousCredentials()


def gcs_from_env_credentials() -> FromEnvCredentials:
    """Create Google Cloud credentials that are read from the environment of the process that connects.

    Returns
    -------
    FromEnvCredentials
        The credentials.

    Examples
    --------
    >>> gcs_from_env_credentials()
    FromEnvCredentials()
    """
    return FromEnvCredentials()


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential], scatter_initial_credentials: bool = False
) -> GcsRefreshableCredentials:
    """Create Google Cloud credentials that a function renews.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns a `GcsBearerCredential`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Returns
    -------
    GcsRefreshableCredentials
        The credentials.

    Examples
    --------
    >>> gcs_refreshable_credentials(lambda: GcsBearerCredential("token")).current()
    GcsBearerCredential(expires_after=None)
    """
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
    """Create Google Cloud credentials of the kind that the arguments describe.

    Without arguments, they come from the environment.

    Parameters
    ----------
    service_account_file
        Path of the JSON file of a service account.
    service_account_key
        The JSON text of a service account.
    application_credentials
        Path of a file of application default credentials.
    bearer_token
        An OAuth token.
    from_env
        Read credentials from the environment of the process that connects.
    anonymous
        Do not sign requests.
    get_credentials
        A function without arguments that returns a `GcsBearerCredential`.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the credentials.

    Returns
    -------
    GcsCredentials
        Static, anonymous, environment or refreshable credentials.

    Raises
    ------
    InvalidInputError
        The arguments describe several kinds.

    Examples
    --------
    >>> gcs_credentials(anonymous=True)
    AnonymousCredentials()
    """
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
    """Create Azure credentials from an account key, a shared access signature or a token. Give exactly one.

    Parameters
    ----------
    access_key
        The key of the storage account.
    sas_token
        A shared access signature.
    bearer_token
        An OAuth token.

    Returns
    -------
    AzureStaticCredentials
        The credentials.

    Raises
    ------
    InvalidInputError
        No argument or several arguments are given.

    Examples
    --------
    >>> azure_static_credentials(access_key="a2V5")
    AzureStaticCredentials(expires_after=None)
    """
    if _one_of("Azure", access_key=access_key, sas_token=sas_token, bearer_token=bearer_token) is None:
        raise InvalidInputError("Azure credentials: none given")
    return AzureStaticCredentials(access_key, sas_token, bearer_token)


def azure_anonymous_credentials() -> AnonymousCredentials:
    """Create credentials that do not sign requests to Azure.

    Returns
    -------
    AnonymousCredentials
        The credentials.

    Examples
    --------
    >>> azure_anonymous_credentials()
    AnonymousCredentials()
    """
    return AnonymousCredentials()


def azure_from_env_credentials() -> FromEnvCredentials:
    """Create Azure credentials that are read from the environment of the process that connects.

    Returns
    -------
    FromEnvCredentials
        The credentials.

    Examples
    --------
    >>> azure_from_env_credentials()
    FromEnvCredentials()
    """
    return FromEnvCredentials()


def azure_refreshable_credentials(
    get_credentials: Callable[[], AzureStaticCredentials], scatter_initial_credentials: bool = False
) -> AzureRefreshableCredentials:
    """Create Azure credentials that a function renews.

    Parameters
    ----------
    get_credentials
        A function without arguments that returns `AzureStaticCredentials`.
    scatter_initial_credentials
        Call the function now and pickle the result with this object.

    Returns
    -------
    AzureRefreshableCredentials
        The credentials.

    Examples
    --------
    >>> azure_refreshable_credentials(lambda: AzureStaticCredentials(access_key="a2V5")).current()
    AzureStaticCredentials(expires_after=None)
    """
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
    """Create Azure credentials of the kind that the arguments describe.

    Without arguments, they come from the environment.

    Parameters
    ----------
    access_key
        The key of the storage account.
    sas_token
        A shared access signature.
    bearer_token
        An OAuth token.
    from_env
        Read credentials from the environment of the process that connects.
    anonymous
        Do not sign requests.
    get_credentials
        A function without arguments that returns `AzureStaticCredentials`.
    scatter_initial_credentials
        Call `get_credentials` now and pickle the result with the credentials.

    Returns
    -------
    AzureCredentials
        Static, anonymous, environment or refreshable credentials.

    Raises
    ------
    InvalidInputError
        The arguments describe several kinds.

    Examples
    --------
    >>> azure_credentials(from_env=True)
    FromEnvCredentials()
    """
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
    m: Mapping[str, AnyCredential | None],
) -> dict[str, AnyCredential | None]:
    """Check the credentials of virtual chunk containers.

    Pass the result as `authorize_virtual_chunk_access` when you open a repository.

    Parameters
    ----------
    m
        Credentials by URL prefix of the container. None stands for the default of the store: local files and public
        buckets can then be read.

    Returns
    -------
    dict
        The credentials by URL prefix.

    Raises
    ------
    InvalidInputError
        A value is not credentials.

    Examples
    --------
    >>> containers_credentials({"s3://bucket/": s3_credentials(anonymous=True), "file:///data/": None})
    {'s3://bucket/': AnonymousCredentials(), 'file:///data/': None}
    """
    for prefix, credential in m.items():
        if credential is not None and not isinstance(credential, AnyCredential):
            raise InvalidInputError(
                f"the credentials of container {prefix!r} are a {type(credential).__name__}; "
                "create them with s3_credentials, gcs_credentials or azure_credentials"
            )
    return dict(m)
