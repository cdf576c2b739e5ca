"""Node paths, and what a Zarr key means."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from icefloe.errors import InvalidInputError

DOCUMENT = "zarr.json"
_DEFAULT_CHUNK_KEY = re.compile(r"(?:(.*)/)?c((?:/(?:0|[1-9][0-9]*))*)")
_V2_NAMES = (".zarray", ".zgroup", ".zattrs", ".zmetadata")


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """The zarr.json of the node at a path."""

    path: str


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """A chunk of the array at a path."""

    path: str
    coords: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A key of another form: a chunk of an array with another key encoding, or nothing of ours."""

    text: str


Key: TypeAlias = DocumentKey | ChunkKey | OtherKey


def parse_key(key: str) -> Key:
    """What a store key names, by its form alone."""
    if key == DOCUMENT:
        return DocumentKey("/")
    if key.endswith("/" + DOCUMENT):
        return DocumentKey("/" + key[: -len(DOCUMENT) - 1])
    match = _DEFAULT_CHUNK_KEY.fullmatch(key)
    if match is None:
        return OtherKey(key)
    numbers = match.group(2)
    coords = tuple(map(int, numbers[1:].split("/"))) if numbers else ()
    return ChunkKey("/" + (match.group(1) or ""), coords)


def is_v2_key(key: str) -> bool:
    """Whether a key is a Zarr v2 metadata document, which is never here."""
    return key.rpartition("/")[2] in _V2_NAMES


def is_node_path(path: str) -> bool:
    """Whether a path of a stored file names a node: absolute, without empty parts, `.` and `..`."""
    if path == "/":
        return True
    if path[:1] != "/" or path[-1] == "/" or "//" in path:
        return False
    return "/." not in path or {".", ".."}.isdisjoint(path.split("/"))


def find_bad_path(paths: Collection[str]) -> str | None:
    """A path that names no node, if there is one; files of many nodes are looked at as a whole."""
    whole = "\n".join(paths) + "\n"
    ordinary = (
        "//" not in whole
        and "/." not in whole
        and whole.count("/\n") <= ("/" in paths)
        and whole[:1] + whole[-1:] == "/\n"
        and whole.count("\n/") == len(paths) - 1 == whole.count("\n") - 1
    )
    return None if ordinary else next((path for path in paths if not is_node_path(path)), None)


def chunk_prefix(path: str) -> str:
    """The key of a chunk up to its coordinates, in the default encoding."""
    return "c" if path == "/" else f"{path[1:]}/c"


def document_key(path: str) -> str:
    """The store key of a node's document."""
    return DOCUMENT if path == "/" else f"{path[1:]}/{DOCUMENT}"


def check_unicode(text: str, what: str) -> str:
    """A text that can be stored; lone surrogates, as in file names that are not UTF-8, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{what} {text!r} is not valid Unicode: it has a lone surrogate at position {error.start}. File names that "
            "are not UTF-8 come out of os.listdir like this; give it a text of your own"
        ) from error
    return text


def check_path(path: str) -> str:
    """A node path in canonical form: valid Unicode, absolute, no empty, `.` or `..` segments."""
    check_unicode(path, "the node path")
    normal = path if path.startswith("/") else "/" + path
    if len(normal) > 1:
        normal = normal.removesuffix("/")
    if normal != "/" and any(part in ("", ".", "..") for part in normal[1:].split("/")):
        raise InvalidInputError(f"{path!r} is not a node path: empty, `.` and `..` segments are not allowed")
    return normal


def parent_path(path: str) -> str | None:
    """The path of the enclosing group; None for the root."""
    if path == "/":
        return None
    return path.rpartition("/")[0] or "/"


def subtree_bounds(path: str) -> tuple[str, str]:
    """Strings between which, in sorted order, all paths strictly below `path` lie: [first, end)."""
    prefix = "/" if path == "/" else path + "/"
    return prefix, prefix[:-1] + chr(ord("/") + 1)
