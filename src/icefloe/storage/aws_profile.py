"""AWS profiles and endpoints, from environment variables and the shared credentials and config files."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from icefloe.errors import InvalidInputError
from icefloe.storage.credentials import S3StaticCredentials

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
