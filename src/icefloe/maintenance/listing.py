"""The objects of a folder as columns: ids, sizes and the times of the store's clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import ObjectId, decode_base32_column, encode_base32_column, text_length
from icefloe.maintenance.progress import tell
from icefloe.storage.contract import ObjectInfo, Storage
from icefloe.storage.local import LocalStorage

Ids = npt.NDArray[np.uint8]
NEVER = 1 << 62
"""A time that no cut-off reaches."""
_VALID = np.zeros(256, dtype=bool)
_VALID[np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", dtype=np.uint8)] = True


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Objects whose name is an id; `foreign` counts the others, which nobody touches.

    ids        uint8[n, width]
    size       int64[n], bytes; -1 where nobody looked
    modified   int64[n], microseconds since 1970 by the store's clock; NEVER where nobody looked
    """

    ids: Ids
    size: npt.NDArray[np.int64]
    modified: npt.NDArray[np.int64]
    foreign: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Listed:
        """Some of the objects."""
        return Listed(self.ids[rows], self.size[rows], self.modified[rows])

    def seen(self) -> Listed:
        """Those whose size and time are known."""
        return self.take(self.size >= 0)

    def texts(self) -> list[ObjectId]:
        """The ids as text."""
        return id_texts(self.ids)


def id_texts(ids: Ids) -> list[ObjectId]:
    """Ids as text, in columns up to the last step."""
    if not len(ids):
        return []
    texts: list[ObjectId] = _id_letters(ids).astype(str).tolist()
    return texts


def _id_letters(ids: Ids) -> npt.NDArray[np.bytes_]:
    text = np.ascontiguousarray(encode_base32_column(ids))
    return text.view(f"S{text.shape[1]}").ravel()


def text_ids(texts: Sequence[ObjectId], width: int) -> Ids:
    """Ids from their texts."""
    if not texts:
        return np.empty((0, width), dtype=np.uint8)
    length = text_length(width)
    joined = np.frombuffer("".join(texts).encode("utf-8", "replace"), dtype=np.uint8)
    # Ids of other lengths must not be taken for parts of their neighbours: what is named here is kept.
    wrong = next((text for text in texts if len(text) != length), "") if len(joined) else texts[0]
    if wrong or len(joined) != length * len(texts):
        raise FormatError(f"{wrong!r:.80} is named as an id; ids have {length} characters of base32")
    try:
        return decode_base32_column(joined.reshape(len(texts), length), width)
    except InvalidInputError as error:
        raise FormatError(f"a file names an object by something that is no id: {error.message}") from error


def microseconds(time: dt.datetime) -> int:
    """A time in whole microseconds since 1970, rounded down."""
    moment = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def empty_listing(width: int) -> Listed:
    """No objects."""
    none = np.empty(0, dtype=np.int64)
    return Listed(np.empty((0, width), dtype=np.uint8), none, none)


async def list_folder(storage: Storage, folder: str, extension: str, width: int) -> Listed:
    """Everything in a folder; pages become columns as they come."""
    if isinstance(storage, LocalStorage):
        listed = await list_folder_names(storage, folder, extension, width)
        return await look_at(storage, folder, extension, listed, np.ones(len(listed), dtype=bool))
    parts: list[Listed] = []
    foreign = 0
    async for page in storage.list(folder):
        part = columns_of(page, folder, extension, width)
        foreign += part.foreign
        parts.append(part)
        tell(f"list {folder}", sum(map(len, parts)))
    return join_listings(parts, width, foreign)


async def list_folder_names(storage: Storage, folder: str, extension: str, width: int) -> Listed:
    """Everything in a folder, without sizes and times where each costs a request; `look_at` finds them out."""
    if not isinstance(storage, LocalStorage):
        return await list_folder(storage, folder, extension, width)
    length = text_length(width) + len(extension)
    names = await storage.list_names_of_length(folder, length)
    text = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(len(names), length)
    unknown = np.full(len(names), -1, dtype=np.int64)
    return text_columns(text, unknown, np.full(len(names), NEVER, dtype=np.int64), extension, width)


async def look_at(storage: Storage, folder: str, extension: str, listed: Listed, rows: npt.NDArray[np.bool_]) -> Listed:
    """The same objects, with the sizes and times of some of them, but for those that are gone by now."""
    wanted = np.flatnonzero(rows & (listed.size < 0))
    if not isinstance(storage, LocalStorage) or not len(wanted):
        return listed
    names: list[bytes] = _id_letters(listed.ids[wanted]).tolist()
    found = await storage.stat_names(folder, [name + extension.encode() for name in names] if extension else names)
    size, modified = listed.size.copy(), listed.modified.copy()
    size[wanted], modified[wanted] = np.array(found[0], dtype=np.int64), np.array(found[1], dtype=np.int64) // 1000
    there = np.ones(len(listed), dtype=bool)
    there[wanted] = size[wanted] >= 0
    return Listed(listed.ids[there], size[there], modified[there], listed.foreign)


def text_columns(
    text: npt.NDArray[np.uint8],
    size: npt.NDArray[np.int64],
    modified: npt.NDArray[np.int64],
    extension: str,
    width: int,
) -> Listed:
    """Objects from the letters of their names, uint8[n, length]; names that are no ids are only counted."""
    length = text_length(width)
    ending = np.frombuffer(extension.encode(), dtype=np.uint8)
    proper = _VALID[text[:, :length]].all(axis=1) & (text[:, length:] == ending).all(axis=1)
    ids = decode_base32_column(np.ascontiguousarray(text[proper, :length]), width)
    return Listed(np.ascontiguousarray(ids), size[proper], modified[proper], len(text) - len(ids))


def join_listings(parts: Sequence[Listed], width: int, foreign: int = 0) -> Listed:
    """Several listings as one."""
    if not parts:
        return empty_listing(width)
    return Listed(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.modified for part in parts]),
        foreign,
    )


def columns_of(page: Sequence[ObjectInfo], folder: str, extension: str, width: int) -> Listed:
    """One page as columns; names that are no ids are only counted."""
    length = text_length(width)
    expected = len(folder) + length + len(extension)
    fitting = [item for item in page if len(item.key) == expected and item.key.endswith(extension)]
    if not fitting:
        return _nothing(width, len(page))
    names = "".join([item.key[len(folder) : len(folder) + length] for item in fitting])
    encoded = names.encode()
    if len(encoded) != len(fitting) * length:  # some name is not ASCII
        fitting = [item for item in fitting if item.key.isascii()]
        return columns_of(fitting, folder, extension, width) if len(fitting) < len(page) else _nothing(width, len(page))
    text = np.frombuffer(encoded, dtype=np.uint8).reshape(len(fitting), length)
    proper = np.asarray(_VALID[text].all(axis=1), dtype=bool)
    kept = [item for item, good in zip(fitting, proper.tolist(), strict=True) if good]
    ids = decode_base32_column(text[proper], width) if kept else np.empty((0, width), dtype=np.uint8)
    return Listed(
        np.ascontiguousarray(ids),
        np.fromiter((item.size_bytes for item in kept), dtype=np.int64, count=len(kept)),
        np.fromiter((microseconds(item.last_modified) for item in kept), dtype=np.int64, count=len(kept)),
        len(page) - len(kept),
    )


def _nothing(width: int, foreign: int) -> Listed:
    nothing = empty_listing(width)
    return Listed(nothing.ids, nothing.size, nothing.modified, foreign)


def id_keys(ids: Ids) -> npt.NDArray[np.uint64]:
    """The first eight bytes of ids as numbers. Ids are random: two that agree here only keep garbage."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").ravel().astype(np.uint64)


def sorted_distinct(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Keys in order, each once; several times quicker than `np.unique`."""
    keys = np.sort(keys)
    return keys[_heads(keys)]


def first_rows(ids: Ids) -> npt.NDArray[np.intp]:
    """For every distinct key, in order, a row that has it."""
    keys = id_keys(ids)
    order = np.argsort(keys)
    return order[_heads(keys[order])]


def _heads(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    heads = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=heads[1:])
    return heads


def is_among(ids: Ids, live: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which ids are among live ones, given as sorted keys."""
    if not len(live) or not len(ids):
        return np.zeros(len(ids), dtype=bool)
    keys = id_keys(ids)
    places = np.searchsorted(live, keys)
    places[places == len(live)] = 0
    found: npt.NDArray[np.bool_] = live[places] == keys
    return found
