"""Where a virtual chunk lies: its URL in one spelling, and the container whose prefix it has."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from icefloe.errors import InvalidInputError
from icefloe.model.string_column import FEW_TEXTS, StringColumn, string_column, text_array
from icefloe.model.virtual_chunk_container import VirtualChunkContainer

RELATIVE_SCHEME = "vcc"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*$")
_URL = r"^[a-z][a-z0-9+.-]*://."
_UNTIDY_FILE = r"^file://([^/]|//|/.*//|/(.*/)?\.\.?(/|$))"
"""A file URL with a host, with doubled slashes, or with dots as segments."""
_USERINFO = r"^https?://[^/?#]*@"


def normalise_location(location: str) -> str:
    """The one spelling of a location: schemes in small letters, file paths without dots and doubled slashes.

    URLs of object stores are otherwise kept as they are: their keys may hold any of that.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or not _SCHEME.match(scheme) or not rest:
        hint = f"file://{quote(location)}" if location.startswith("/") else "s3://bucket/key or file:///path/to/file"
        raise InvalidInputError(f"the location {location!r} is not a URL; write it like {hint}", location=location)
    scheme = scheme.lower()
    if scheme in ("http", "https") and "@" in re.split("[/?#]", rest, maxsplit=1)[0]:
        raise InvalidInputError(
            f"a location on {rest.partition('/')[0].rpartition('@')[2]} holds a user or a password; locations are "
            "stored and shown, give credentials as headers of the container's http_store(...)"
        )
    if scheme != "file":
        return f"{scheme}://{rest}"
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise InvalidInputError(
            f"the location {location!r} names a file on another machine, or has no absolute path; "
            "write file:///path/to/file",
            location=location,
        )
    folder = "/" if path.endswith("/") and path.strip("/") else ""
    return f"file://{posixpath.normpath('/' + path.lstrip('/'))}{folder}"


def normalise_locations(locations: Any) -> StringColumn:
    """A column of distinct locations in one spelling; only rows that need it are touched one by one."""
    column = string_column(locations)
    if len(column) <= FEW_TEXTS:
        texts = list(column)
        tidy = [None if text is None else normalise_location(text) for text in texts]
        return column if tidy == texts else StringColumn(text_array(tidy))
    import pyarrow.compute as pc  # noqa: PLC0415 - a twentieth of a second that a few locations do not need

    untidy = pc.or_(
        pc.invert(pc.match_substring_regex(column.arrow, _URL)),
        pc.match_substring_regex(column.arrow, f"({_UNTIDY_FILE})|({_USERINFO})"),
    )
    if not pc.any(untidy).as_py():
        return column
    fixed = [normalise_location(text) for text in column.arrow.filter(untidy).to_pylist()]
    return StringColumn(pc.replace_with_mask(column.arrow, untidy, text_array(fixed)))


def container_prefix(url_prefix: str) -> str:
    """The prefix by which locations are matched; bare schemes, which early repositories hold, cover all of theirs."""
    if "://" not in url_prefix:
        url_prefix = f"{url_prefix}://"
    scheme, _, rest = url_prefix.partition("://")
    if scheme.lower() == "file":
        normal = normalise_location(f"file:///{rest.lstrip('/')}")
        return normal if normal.endswith("/") else normal + "/"
    return f"{scheme.lower()}://{rest}" if not rest or rest.endswith("/") else f"{scheme.lower()}://{rest}/"


def by_longest_prefix(containers: Mapping[str, VirtualChunkContainer]) -> list[tuple[str, VirtualChunkContainer]]:
    """Containers with their prefixes, longest first, so that the first match is the right one.

    Of two with the same prefix, the one that the caller gave comes before the one that a repository holds.
    """
    pairs = [(container_prefix(container.url_prefix), container) for container in containers.values()]
    return sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0], pair[1].stored))


def split_url(url: str) -> tuple[str, str]:
    """The root of the store a URL points into, and the key below it, decoded."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/", url_path(path)


def url_path(path: str) -> str:
    """The key that the path of a URL stands for: without query and fragment, percent escapes resolved."""
    key = re.split(r"[?#]", path, maxsplit=1)[0]
    return unquote(key) if "%" in key else key
