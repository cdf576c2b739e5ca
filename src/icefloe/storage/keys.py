"""Which keys are allowed, and how they are spelled where a store cannot take every character."""

from __future__ import annotations

import re
from urllib.parse import unquote

from icefloe.errors import InvalidInputError

# The set that the object_store crate escapes in each part of a path, so that its users find what we wrote.
_UNSAFE = re.compile('[\x00-\x1f\x7f-\U0010ffff\\\\{^}%`\\]">\\[~<#|*?]')


def check_key(key: str) -> str:
    """The key itself, if it names an object inside the storage."""
    if not key or key[-1] == "/":
        raise InvalidInputError(f"{key!r} is not a key: the name of an object is missing")
    _check_parts(key, key)
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, if it names a folder inside the storage; the empty one is the whole."""
    if not prefix:
        return prefix
    if prefix[-1] != "/":
        raise InvalidInputError(f"{prefix!r} is not a folder: a prefix ends in '/', or is empty")
    _check_parts(prefix, prefix[:-1])
    return prefix


def _check_parts(shown: str, path: str) -> None:
    if path[:1] == "/" or "//" in path or "\0" in path:
        raise InvalidInputError(f"{shown!r} is not a key: parts are separated by one '/', without a leading one")
    if "." in path and not {".", ".."}.isdisjoint(path.split("/")):
        raise InvalidInputError(f"{shown!r} is not a key: '.' and '..' would lead out of the storage")
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"{shown!r} is not a key: it is not valid Unicode") from error


def join_prefix(outer: str, inner: str) -> str:
    """One folder prefix from two; either may be empty, and `inner` may lack the last slash."""
    inner = inner.strip("/")
    return check_prefix(f"{outer}{inner}/" if inner else outer)


def encode_key(key: str) -> str:
    """A key as local files, GCS and Azure hold it: percent-encoded where the character set demands it."""
    if _UNSAFE.search(key) is None:
        return key
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode()), key)


def decode_key(text: str) -> str:
    """The key that was encoded."""
    return unquote(text) if "%" in text else text
