"""Credentials for object stores. They pickle to workers and are never shown."""

from __future__ import annotations

import asyncio
import configparser
import datetime as dt
import inspect
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from icefloe.errors import InvalidInputError

try:
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    cloudpickle = None


class Expiring(Protocol):
    """Anything that is valid for some time, or for ever."""

    @property
    def expires_after(self) -> dt.datetime | None: ...


E = TypeVar("E", bound=Expiring)


class RefreshableCredentials(Generic[E]):
    """Credentials that `get_credentials` gives, asked again when the last ones expire.

    With `scatter_initial_credentials` the first ones are fetched now and travel along, so that many workers do not
    all ask at once.
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
        """Credentials that are valid now; may call the user's function."""
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
    """By reference where the worker can import it, by value where cloudpickle is installed."""
    try:
        data = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if cloudpickle is None:
            raise InvalidInputError(
                f"{function!r} cannot travel to another process: define it at the top of a module, "
                "or install cloudpickle"
            ) from error
        by_value: bytes = cloudpickle.dumps(function)
        return by_value
    return data


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


# Any of these is a source that obstore knows by itself and that comes before profiles.
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_TRUE = {"true", "1", "yes", "on"}


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What a profile says; each may be missing."""

    credentials: S3StaticCredentials | None = None
    region: str | None = None
    endpoint_url: str | None = None
    addressing_style: str | None = None
    """`path` or `virtual`."""
    ignores_endpoints: bool = False
    """`ignore_configured_endpoint_urls`."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Where requests for S3 go, as the environment and the profile say."""

    endpoint_url: str | None = None
    by_path: bool | None = None
    """Whether the bucket is in the path of a URL, rather than in the name of its host; None if neither is asked for."""
    allow_http: bool = False
    ignores_endpoints: bool = False
    """Endpoints of the environment and of the profile do not count: requests go to AWS."""


def read_settings(environment: Mapping[str, str], profile: AwsProfile | None = None) -> AwsSettings:
    """The settings of AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and a profile, in the order in which AWS' tools ask them.

    With AWS_IGNORE_CONFIGURED_ENDPOINT_URLS, or that setting of a profile, none of them counts.
    `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` and `AWS_ALLOW_HTTP` are obstore's. An endpoint that the environment names with
    `http://` is allowed, as AWS' tools do.
    """
    profile = profile or AwsProfile()
    asked = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    ignores = profile.ignores_endpoints if asked is None else asked.strip().lower() in _TRUE
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or profile.endpoint_url
    endpoint = None if ignores else endpoint
    virtual = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").strip().lower()
    by_path = None
    if virtual:
        by_path = virtual not in _TRUE
    elif profile.addressing_style in ("path", "virtual"):
        by_path = profile.addressing_style == "path"
    allowed = environment.get("AWS_ALLOW_HTTP", "").strip().lower() in _TRUE
    return AwsSettings(endpoint, by_path, allowed or (endpoint or "").startswith("http://"), ignores)


def read_profile(environment: Mapping[str, str]) -> AwsProfile:
    """The profile that the environment names, or the default one, of the shared credentials and config files.

    Its credentials are left out where the environment has others.
    """
    settings, found = read_profile_settings(environment), _read_named(environment)
    if any(environment.get(source) for source in _OTHER_SOURCES):
        return settings
    if "aws_access_key_id" in found and "aws_secret_access_key" in found:
        credentials = S3StaticCredentials(
            found["aws_access_key_id"], found["aws_secret_access_key"], found.get("aws_session_token")
        )
        return replace(settings, credentials=credentials)
    if environment.get("AWS_PROFILE"):
        raise InvalidInputError(
            f"AWS_PROFILE is {environment['AWS_PROFILE']!r}, but no access key of that profile is in the shared "
            "credentials or config file; profiles of other kinds need get_credentials="
        )
    return settings


def read_profile_settings(environment: Mapping[str, str]) -> AwsProfile:
    """The profile without its credentials."""
    found = _read_named(environment)
    services = {}
    if "services" in found:
        config = _read(environment.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"))
        services = _nested(_section(config, f"services {found['services']}").get("s3", ""))
    endpoint = services.get("endpoint_url") or found.get("endpoint_url")
    style = _nested(found.get("s3", "")).get("addressing_style")
    ignores = found.get("ignore_configured_endpoint_urls", "").strip().lower() in _TRUE
    return AwsProfile(None, found.get("region"), endpoint, style, ignores)


def find_aws_endpoint(environment: Mapping[str, str], region: str | None) -> str:
    """AWS' own endpoint of a region."""
    name = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"https://s3.{name}.amazonaws.com{'.cn' if name.startswith('cn-') else ''}"


def _read_named(environment: Mapping[str, str]) -> dict[str, str]:
    """Everything that both files say about the profile."""
    name = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    secrets = _read(environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials"))
    config = _read(environment.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"))
    section = "default" if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(secrets, name)}


def _read(path: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except configparser.Error as error:
        raise InvalidInputError(f"{path} is not a file of AWS profiles: {error.message.splitlines()[0]}") from error
    return parser


def _section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}


def _nested(text: str) -> dict[str, str]:
    """The indented settings below one of a section, such as `s3 =`."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in lines}
