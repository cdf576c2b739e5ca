"""A repository that early code of the generation `store` wrote, under the names that the specification gives its files.

| here | there |
|---|---|
| `r/NAME/<8>.json` | `r/branch:NAME/<13>.json` |
| `r/NAME.json` | `r/tag:NAME/ref.json` |
| `s/<id>.json`, `m/<id>.json` | `s/<id>.msgpack`, `m/<id>.msgpack` |
| `c/<id>` | `c/<id>.msgpack` or `c/<id>` |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from icefloe.errors import InvalidInputError, ObjectNotFoundError, ReadOnlyError
from icefloe.formats.store.reference_file import EXTENSION, find_sequence, sequence_name
from icefloe.ids import decode_base32, encode_base32
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned

MAIN_FOLDER = "r/branch:main/"
_BRANCH, _TAG, _TAG_FILE, _PACKED = "branch:", "tag:", "ref.json", ".msgpack"
_LAST = 2**64 - 1


async def locate_code_form(storage: Storage) -> Storage:
    """The storage itself, or a view of it when early code wrote the repository in it."""
    async for page in storage.list(MAIN_FOLDER):
        if page:
            return CodeFormView(storage)
    return storage


class CodeFormView(Storage):
    """Reads such a repository; writing into it is refused."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        return CodeFormView, (self.storage,)

    @property
    def url(self) -> str:
        return self.storage.url

    @property
    def read_only(self) -> bool:
        return True

    async def _find(self, key: str) -> str:
        """The key there; chunks have either of two."""
        stored = key_there(key)
        if key.startswith("c/") and not await self.storage.exists(stored):
            return key
        return stored

    async def get(self, key: str) -> bytes:
        return await self.storage.get(await self._find(key))

    async def get_versioned(self, key: str) -> Versioned:
        return await self.storage.get_versioned(await self._find(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.storage.get_range(await self._find(key), start, end)

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return await self.storage.get_ranges(await self._find(key), starts, ends)

    async def head(self, key: str) -> ObjectInfo:
        return replace(await self.storage.head(await self._find(key)), key=key)

    async def list_names(self, prefix: str) -> list[str]:
        found: set[str] = set()
        async for page in self.list(prefix):
            rests = [item.key[len(prefix) :] for item in page]
            found.update(rest[: rest.index("/") + 1] if "/" in rest else rest for rest in rests)
        return sorted(found)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        there = prefix
        if prefix.startswith("r/") and len(prefix) > 2:
            there = f"r/{_BRANCH}{prefix[2:]}"
        items = [replace(item, key=key_here(item.key)) async for page in self.storage.list(there) for item in page]
        wanted = (item for item in items if item.key.startswith(prefix) and (after is None or item.key > after))
        yield sorted(wanted, key=lambda item: item.key)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        self._refuse()

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        self._refuse()

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        self._refuse()

    async def delete(self, keys: Sequence[str]) -> None:
        self._refuse()

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        self._refuse()

    def child(self, prefix: str) -> Storage:
        return self.storage.child(prefix)

    def _refuse(self) -> NoReturn:
        raise ReadOnlyError(f"{self.url} was written by early code and can only be read; convert it, then write there")


def key_there(key: str) -> str:
    """How early code called what the specification calls `key`."""
    folder, _, name = key.partition("/")
    if folder == "r":
        branch, slash, file = name.partition("/")
        if not slash:
            return f"r/{_TAG}{name.removesuffix(EXTENSION)}/{_TAG_FILE}"
        sequence = find_sequence(file)
        if sequence is None:
            raise ObjectNotFoundError(f"no object {key!r}: it is not the name of a branch file")
        return f"r/{_BRANCH}{branch}/{encode_base32((_LAST - sequence).to_bytes(8, 'big'))}{EXTENSION}"
    if folder in ("s", "m"):
        return f"{folder}/{name.removesuffix(EXTENSION)}{_PACKED}"
    return key + _PACKED if folder == "c" else key


def key_here(stored: str) -> str:
    """What the specification calls an object of early code; keys of other forms stay."""
    folder, _, name = stored.partition("/")
    if folder == "r" and name.startswith(_TAG) and name.endswith("/" + _TAG_FILE):
        return f"r/{name.removeprefix(_TAG).removesuffix('/' + _TAG_FILE)}{EXTENSION}"
    if folder == "r" and name.startswith(_BRANCH):
        branch, _, file = name.removeprefix(_BRANCH).partition("/")
        try:
            number = int.from_bytes(decode_base32(file.removesuffix(EXTENSION), 8), "big")
        except InvalidInputError:
            return stored
        return f"r/{branch}/{sequence_name(_LAST - number)}" if _LAST - number < 2**40 else stored
    if folder in ("s", "m") and name.endswith(_PACKED):
        return f"{folder}/{name.removesuffix(_PACKED)}{EXTENSION}"
    return stored.removesuffix(_PACKED) if folder == "c" else stored
