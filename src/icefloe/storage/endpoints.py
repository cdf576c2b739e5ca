"""Where a storage is on a network: bucket, options and credentials, with AWS profiles and environment variables."""

from __future__ import annotations

import base64
import configparser
import datetime as dt
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe import __version__
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.model.virtual_chunk_container import S3Options
from icefloe.storage.credentials import (
    AnonymousCredentials,
    AzureCredentials,
    AzureRefreshableCredentials,
    AzureStaticCredentials,
    FromEnvCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsRefreshableCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3RefreshableCredentials,
    S3StaticCredentials,
)
from icefloe.storage.requests import RetryPolicy, without_userinfo

if TYPE_CHECKING:
    from obstore.store import ObjectStore

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
    """The settings of an AWS profile. Each can be missing."""

    credentials: S3StaticCredentials | None = None
    region: str | None = None
    endpoint_url: str | None = None
    addressing_style: str | None = None
    """`path` or `virtual`."""
    ignores_endpoints: bool = False
    """`ignore_configured_endpoint_urls`."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """The S3 endpoint and its options, as the environment and the profile define them."""

    endpoint_url: str | None = None
    by_path: bool | None = None
    """Whether the bucket is in the path of a URL, rather than in the name of its host; None if neither is asked for."""
    allow_http: bool = False
    ignores_endpoints: bool = False
    """Endpoints of the environment and of the profile do not count: requests go to AWS."""


def read_settings(environment: Mapping[str, str], profile: AwsProfile | None = None) -> AwsSettings:
    """Read the S3 endpoint from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and a profile, in the order of the AWS tools.

    AWS_IGNORE_CONFIGURED_ENDPOINT_URLS, or the same setting of a profile, disables all three.
    `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` and `AWS_ALLOW_HTTP` are variables of obstore. As in the AWS tools, an endpoint
    of the environment can use `http://`.
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
    """Read the profile that the environment names, or the default one, from the shared credentials and config files.

    The credentials of the profile are left out if the environment has others.
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
            f"AWS_PROFILE is {environment['AWS_PROFILE']!r}, but the shared credentials and config files have no "
            "access key for that profile. For other kinds of profiles, pass get_credentials="
        )
    return settings


def read_profile_settings(environment: Mapping[str, str]) -> AwsProfile:
    """Read the profile without its credentials."""
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
    """Return the AWS endpoint of a region."""
    name = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"https://s3.{name}.amazonaws.com{'.cn' if name.startswith('cn-') else ''}"


def _read_named(environment: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of the profile from both files."""
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
        raise InvalidInputError(
            f"{path} is not a valid file of AWS profiles: {error.message.splitlines()[0]}"
        ) from error
    return parser


def _section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}


def _nested(text: str) -> dict[str, str]:
    """Parse the indented settings below one setting of a section, such as `s3 =`."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


USER_AGENT = f"icefloe/{__version__}"
"""What requests name as their sender."""
_CHECKSUMS = {"sha256": "SHA256", "crc64nvme": "CRC64NVME"}


@dataclass(frozen=True, slots=True)
class Traits:
    """How a kind of service differs from the others."""

    encodes_keys: bool = False
    """Other users of the service percent-encode keys, so Icefloe does, too."""
    quotes_etags: bool = False
    """Conditional requests need the ETag with its quotes. S3 services all accept it without."""
    sorts: bool | None = True
    """Whether listings are sorted by key. None: unknown, look at the first listing."""
    writable: bool = True
    lists: bool = True


class Endpoint(ABC):
    """The address of a remote service, with what a connection to it needs.

    It can be pickled. Each process opens its own connection.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, without credentials, ending in `/`."""

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """How the service differs from the others."""

    read_headers: Mapping[str, str] = MappingProxyType({})
    write_headers: Mapping[str, str] = MappingProxyType({})
    user_agent: str | None = None

    @abstractmethod
    def connect(self, retries: RetryPolicy, *, writing: bool = False) -> ObjectStore:
        """A client for it. A client for writing sends the headers of writes, the other one those of reads."""

    @property
    def has_own_writer(self) -> bool:
        """Whether reads and writes need clients of their own."""
        return bool(self.read_headers or self.write_headers)

    def with_user_agent(self, user_agent: str) -> Endpoint:
        """The same endpoint, whose requests name this user agent."""
        changed: Any = {"user_agent": user_agent}
        return replace(self, **changed)  # type: ignore[type-var]

    def headers_of(self, shared: Mapping[str, str], *, writing: bool) -> dict[str, str]:
        """The headers of reads or writes."""
        return {**shared, **(self.write_headers if writing else self.read_headers)}


def retry_config(retries: RetryPolicy) -> Any:
    """The policy as the arguments that obstore takes."""
    return {
        "max_retries": retries.max_tries - 1,
        "backoff": {
            "init_backoff": dt.timedelta(milliseconds=max(1, retries.initial_backoff_ms)),
            "max_backoff": dt.timedelta(milliseconds=max(1, retries.max_backoff_ms, retries.initial_backoff_ms)),
            "base": 2,
        },
    }


def client_options(
    *,
    allow_http: bool,
    stream_timeout_seconds: int | None,
    headers: Mapping[str, str] | None = None,
    user_agent: str | None = None,
) -> Any:
    """Options of the HTTP client. A stream may take long, but it times out if no data arrives."""
    options: dict[str, Any] = {"allow_http": allow_http, "timeout": dt.timedelta(days=1)}
    options["connect_timeout"] = dt.timedelta(seconds=10)
    seconds = 60 if stream_timeout_seconds is None else stream_timeout_seconds
    if seconds:
        options["read_timeout"] = dt.timedelta(seconds=seconds)
    if headers:
        options["default_headers"] = dict(headers)
    options["user_agent"] = user_agent or USER_AGENT
    return options


@dataclass(frozen=True, slots=True)
class S3Provider:
    """Passes the current S3 credentials to obstore."""

    source: S3StaticCredentials | S3RefreshableCredentials

    def __call__(self) -> Any:
        now = self.source if isinstance(self.source, S3StaticCredentials) else self.source.current()
        if not isinstance(now, S3StaticCredentials):
            raise TypeError(
                f"the function of refreshable credentials must return S3StaticCredentials; {now!r} cannot be cast to it"
            )
        return {
            "access_key_id": now.access_key_id,
            "secret_access_key": now.secret_access_key,
            "token": now.session_token,
            "expires_at": now.expires_after,
        }


@dataclass(frozen=True, slots=True)
class S3Endpoint(Endpoint):
    """A bucket of a service with the S3 protocol."""

    bucket: str
    options: S3Options = field(default_factory=S3Options)
    credentials: S3Credentials = field(default_factory=AnonymousCredentials)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sorts: bool | None = True
    read_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    write_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_agent: str | None = field(default=None, compare=False, repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/"

    @property
    def traits(self) -> Traits:
        return Traits(sorts=self.sorts)

    def connect(self, retries: RetryPolicy, *, writing: bool = False) -> ObjectStore:
        options = self.options
        config: Any = {"conditional_put": "etag"}
        credentials, region = self.credentials, options.region
        profile = AwsProfile()
        if isinstance(credentials, FromEnvCredentials):
            profile = read_profile(os.environ)
            credentials = profile.credentials or credentials
            if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
                region = region or profile.region
        if region is not None:
            config["region"] = region
        settings = read_settings(os.environ, profile)
        # Settings of the environment belong to its endpoint; whoever names another gives its settings too.
        if options.endpoint_url is not None:
            settings = AwsSettings(options.endpoint_url, None, options.allow_http)
        # A custom endpoint is addressed by path: it seldom has a name for each bucket.
        by_path = settings.by_path if settings.by_path is not None else settings.endpoint_url is not None
        by_path = by_path or options.force_path_style or "." in self.bucket
        config["virtual_hosted_style_request"] = not by_path
        endpoint = settings.endpoint_url
        if settings.ignores_endpoints:
            # obstore asks the environment itself, unless it is given one.
            endpoint = find_aws_endpoint(os.environ, region)
        if endpoint is not None:
            config["endpoint"] = endpoint if by_path else _with_bucket(endpoint, self.bucket)
        if options.requester_pays:
            config["request_payer"] = True
        if options.checksum_algorithm is not None:
            config["checksum_algorithm"] = _checksum(options.checksum_algorithm)
        provider: Any = None
        if isinstance(credentials, AnonymousCredentials) or options.anonymous:
            config["skip_signature"] = True
        elif isinstance(credentials, S3StaticCredentials | S3RefreshableCredentials):
            # As a provider, so that a session token of the environment does not get mixed in.
            provider = S3Provider(credentials)
        return S3Store(
            self.bucket,
            config=config,
            client_options=client_options(
                allow_http=options.allow_http or settings.allow_http,
                stream_timeout_seconds=options.network_stream_timeout_seconds,
                headers=self.headers_of(self.headers, writing=writing),
                user_agent=self.user_agent,
            ),
            retry_config=retry_config(retries),
            credential_provider=provider,
        )


def _with_bucket(endpoint_url: str, bucket: str) -> str:
    """The endpoint with the bucket in the name of its host."""
    parts = urlsplit(endpoint_url)
    if parts.netloc.startswith(f"{bucket}."):
        return endpoint_url
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


def _checksum(name: str) -> str:
    plain = str(name).rpartition(".")[2].replace("-", "").replace("_", "").lower()
    if plain not in _CHECKSUMS:
        raise UnsupportedError(f"checksum algorithm {name!r} is not supported. Use one of {', '.join(_CHECKSUMS)}")
    return _CHECKSUMS[plain]


@dataclass(frozen=True, slots=True)
class GcsProvider:
    """Passes the current GCS token to obstore."""

    source: GcsBearerCredential | GcsRefreshableCredentials

    def __call__(self) -> Any:
        now = self.source if isinstance(self.source, GcsBearerCredential) else self.source.current()
        return {"token": now.bearer, "expires_at": now.expires_after}


@dataclass(frozen=True, slots=True)
class GcsEndpoint(Endpoint):
    """A bucket of Google Cloud Storage."""

    bucket: str
    credentials: GcsCredentials = field(default_factory=AnonymousCredentials)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    write_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_agent: str | None = field(default=None, compare=False, repr=False)

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/"

    @property
    def traits(self) -> Traits:
        return Traits(encodes_keys=True, quotes_etags=True)

    def connect(self, retries: RetryPolicy, *, writing: bool = False) -> ObjectStore:
        config: Any = {}
        provider: Any = None
        given = self.credentials
        if isinstance(given, AnonymousCredentials):
            config["skip_signature"] = True
        elif isinstance(given, GcsBearerCredential | GcsRefreshableCredentials):
            provider = GcsProvider(given)
        elif isinstance(given, GcsStaticCredentials):
            if given.bearer_token is not None:
                provider = GcsProvider(GcsBearerCredential(given.bearer_token))
            for name, value in (
                ("service_account", given.service_account_file),
                ("service_account_key", given.service_account_key),
                ("application_credentials", given.application_credentials),
            ):
                if value is not None:
                    config[name] = value
        client, service = _split_client_options(self.config)
        return GCSStore(
            self.bucket,
            config=config | service,
            client_options=client_options(
                allow_http=False,
                stream_timeout_seconds=None,
                headers=self.headers_of(self.headers, writing=writing),
                user_agent=self.user_agent,
            )
            | client,
            retry_config=retry_config(retries),
            credential_provider=provider,
        )


@dataclass(frozen=True, slots=True)
class AzureProvider:
    """Passes the current Azure credentials to obstore."""

    source: AzureStaticCredentials | AzureRefreshableCredentials

    def __call__(self) -> Any:
        now = self.source if isinstance(self.source, AzureStaticCredentials) else self.source.current()
        for name, value in (
            ("access_key", now.access_key),
            ("sas_token", now.sas_token),
            ("token", now.bearer_token),
        ):
            if value is not None:
                return {name: value, "expires_at": now.expires_after}
        raise InvalidInputError("Azure credentials: give access_key, sas_token or bearer_token")


@dataclass(frozen=True, slots=True)
class AzureEndpoint(Endpoint):
    """A container of Azure Blob Storage."""

    account: str
    container: str
    credentials: AzureCredentials = field(default_factory=AnonymousCredentials)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_agent: str | None = field(default=None, compare=False, repr=False)

    @property
    def url(self) -> str:
        return f"az://{self.account}/{self.container}/"

    @property
    def traits(self) -> Traits:
        return Traits(encodes_keys=True, quotes_etags=True)

    def connect(self, retries: RetryPolicy, *, writing: bool = False) -> ObjectStore:
        config: Any = {"account_name": self.account}
        provider: Any = None
        if isinstance(self.credentials, AnonymousCredentials):
            config["skip_signature"] = True
        elif isinstance(self.credentials, AzureStaticCredentials | AzureRefreshableCredentials):
            provider = AzureProvider(self.credentials)
        client, service = _split_client_options(self.config)
        return AzureStore(
            self.container,
            config=config | service,
            client_options=client_options(allow_http=False, stream_timeout_seconds=None, user_agent=self.user_agent)
            | client,
            retry_config=retry_config(retries),
            credential_provider=provider,
        )


_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "proxy_url",
    "read_timeout",
    "timeout",
    "user_agent",
}


def _split_client_options(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the HTTP client, and those of the service, from one mapping."""
    client: dict[str, Any] = {}
    service: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _CLIENT_OPTIONS:
            service[name] = value
        elif name.startswith("allow_"):
            client[name] = str(value).lower() in _TRUE
        else:
            client[name] = value
    return client, service


@dataclass(frozen=True, slots=True)
class HttpEndpoint(Endpoint):
    """A folder of a web server; read only.

    A user and a password in the address are taken out of it and sent as a header, so that they are in no message.
    """

    base_url: str = field(repr=False)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_agent: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc:
            userinfo, _, host = parts.netloc.rpartition("@")
            object.__setattr__(self, "base_url", urlunsplit(parts._replace(netloc=host)))
            secret = base64.b64encode(unquote(userinfo).encode()).decode()
            object.__setattr__(self, "headers", {"Authorization": f"Basic {secret}", **self.headers})

    @property
    def url(self) -> str:
        return without_userinfo(self.base_url).rstrip("/") + "/"

    @property
    def traits(self) -> Traits:
        return Traits(quotes_etags=True, writable=False, lists=False)

    def connect(self, retries: RetryPolicy, *, writing: bool = False) -> ObjectStore:
        client, other = _split_client_options(self.config)
        if other:
            raise InvalidInputError(
                f"unknown options {sorted(other)} for {self.url}. Known: {', '.join(sorted(_CLIENT_OPTIONS))}"
            )
        # The scheme of the address was chosen by the caller, who saw it.
        plain = self.base_url.startswith("http://")
        return HTTPStore(
            self.base_url.rstrip("/"),
            client_options=client_options(
                allow_http=plain, stream_timeout_seconds=None, headers=self.headers, user_agent=self.user_agent
            )
            | client,
            retry_config=retry_config(retries),
        )
