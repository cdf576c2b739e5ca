"""Chunk keys of an array in its own key encoding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from icefloe.model.chunk_table import Coords
from icefloe.model.zarr_document import parse_document


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """How the coordinates of a chunk are written after the path of its array."""

    lead: str
    """`c` in the default encoding, nothing in the one of Zarr v2."""
    separator: str

    @property
    def is_default(self) -> bool:
        return self.lead == "c" and self.separator == "/"

    def suffix(self, coords: Iterable[int]) -> str:
        """The key of a chunk below the path of its array."""
        numbers = [str(c) for c in coords]
        if not self.lead:
            return self.separator.join(numbers) or "0"
        return self.separator.join([self.lead, *numbers])

    def parse(self, suffix: str, ndim: int) -> Coords | None:
        """The coordinates in a key below the path of the array, or None when it is not a chunk key."""
        numbers = suffix
        if self.lead:
            if suffix == self.lead:
                return () if ndim == 0 else None
            if not suffix.startswith(self.lead + self.separator):
                return None
            numbers = suffix[len(self.lead + self.separator) :]
        parts = numbers.split(self.separator)
        if any(_NUMBER.fullmatch(part) is None for part in parts):
            return None
        if ndim == 0 and not self.lead:
            return () if numbers == "0" else None
        return tuple(map(int, parts)) if len(parts) == ndim else None

    def parse_folder(self, folder: str, ndim: int) -> Coords | None:
        """The leading coordinates of the chunks in a folder below the array, or None when it can hold none."""
        if self.separator != "/":
            return None
        parts = folder.split("/")
        if self.lead and parts.pop(0) != self.lead:
            return None
        if len(parts) >= ndim or any(_NUMBER.fullmatch(part) is None for part in parts):
            return None
        return tuple(map(int, parts))


_NUMBER = re.compile(r"0|[1-9][0-9]*")
DEFAULT_ENCODING = KeyEncoding("c", "/")


@lru_cache(maxsize=4096)
def key_encoding(document: bytes) -> KeyEncoding:
    """The chunk key encoding that an array document asks for."""
    encoding = parse_document(document).get("chunk_key_encoding")
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, dict):
        return DEFAULT_ENCODING
    configuration = encoding.get("configuration") or {}
    if encoding.get("name") == "v2":
        return KeyEncoding("", str(configuration.get("separator", ".")))
    return KeyEncoding("c", str(configuration.get("separator", "/")))
