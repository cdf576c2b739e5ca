"""The credentials that the AWS tools keep in the home folder."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass

from icefloe.errors import InvalidInputError
from icefloe.storage.credentials import S3StaticCredentials

# Any of these is a source that obstore knows by itself and that comes before profiles.
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What a profile says; either may be missing."""

    credentials: S3StaticCredentials | None = None
    region: str | None = None


def read_profile(environment: Mapping[str, str]) -> AwsProfile:
    """The profile that the environment names, or the default one, of the shared credentials and config files."""
    if any(environment.get(name) for name in _OTHER_SOURCES):
        return AwsProfile()
    name = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    home = os.path.expanduser("~")
    secrets = _read(environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials")
    config = _read(environment.get("AWS_CONFIG_FILE") or f"{home}/.aws/config")
    section = "default" if name == "default" else f"profile {name}"
    found = {**_section(config, section), **_section(secrets, name)}
    credentials = None
    if "aws_access_key_id" in found and "aws_secret_access_key" in found:
        credentials = S3StaticCredentials(
            found["aws_access_key_id"], found["aws_secret_access_key"], found.get("aws_session_token")
        )
    elif environment.get("AWS_PROFILE"):
        raise InvalidInputError(
            f"AWS_PROFILE is {name!r}, but no access key of that profile is in the shared credentials or config file; "
            "profiles of other kinds need get_credentials="
        )
    return AwsProfile(credentials, found.get("region"))


def _read(path: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except configparser.Error as error:
        raise InvalidInputError(f"{path} is not a file of AWS profiles: {error.message.splitlines()[0]}") from error
    return parser


def _section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}
