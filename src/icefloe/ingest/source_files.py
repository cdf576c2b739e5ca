"""Many source files as Arrow columns. The driver of a job holds those of all of its sources.

A file needs 40 to 80 bytes in columns: the name, the size, the version and the time, and a number for its folder. As
Python objects it needs 300 to 400. An object is made when a file is asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.ingest.source_model import SourceFile

_ROWS_AT_ONCE = 1024
"""Rows that are Python objects at the same time."""
T = TypeVar("T")


class Column(Sequence[T]):
    """A column that is read like a list. It is as long as its Arrow arrays, whose texts are joined.

    A pickled column becomes a list.

    Examples
    --------
    >>> column = Column[str](pa.array(["a/", "b/"]), pa.array(["1.nc", "2.nc"]))
    >>> column[1], column == ["a/1.nc", "b/2.nc"]
    ('b/2.nc', True)
    """

    __slots__ = ("_arrays", "_is_text")

    def __init__(self, *arrays: pa.Array, is_text: bool = False) -> None:
        self._arrays = arrays
        self._is_text = is_text or len(arrays) > 1
        """Numbers are shown as texts."""

    def __len__(self) -> int:
        return len(self._arrays[0])

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            return self._slice(first, end - first) if step == 1 and end >= first else list(self)[index]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        values = [array[index % len(self)].as_py() for array in self._arrays]
        value = values[0] if len(values) == 1 else "".join(values)
        return cast(T, str(value) if self._is_text and value is not None else value)

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(
            cast("list[T]", self.array(first, _ROWS_AT_ONCE).to_pylist())
            for first in range(0, len(self), _ROWS_AT_ONCE)
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        values = list(self)
        if len(values) > 1 and all(isinstance(each, str) for each in values):
            texts = cast("list[str]", values)
            common = _common_start(min(texts), max(texts))
            return _join_texts, (common, [text[len(common) :] for text in texts])
        if len(values) > 1 and all(each == values[0] and type(each) is type(values[0]) for each in values):
            return _repeat, (values[0], len(values))
        return list, (values,)

    def array(self, first: int = 0, count: int | None = None) -> pa.Array:
        """Return some rows as one Arrow array."""
        parts = [_plain(array.slice(first, count), is_text=self._is_text) for array in self._arrays]
        return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")

    def take(self, rows: npt.NDArray[np.intp]) -> Column[T]:
        """Return some rows. Neighbours share the memory of the column."""
        if is_range(rows):
            return self._slice(int(rows[0]), len(rows))
        indexes = pa.array(rows)
        return Column(*(array.take(indexes) for array in self._arrays), is_text=self._is_text)

    def _slice(self, first: int, count: int) -> Column[T]:
        return Column(*(array.slice(first, count) for array in self._arrays), is_text=self._is_text)


def take_rows(column: Sequence[T], rows: npt.NDArray[np.intp]) -> Sequence[T]:
    """Return some rows of a column or a list."""
    return column.take(rows) if isinstance(column, Column) else [column[row] for row in rows.tolist()]


def constant_column(value: Any, count: int) -> Column[Any]:
    """Return a column with one value in all rows. It needs at most a byte for each."""
    return Column(pa.nulls(count) if value is None else pa.repeat(pa.scalar(value, pa.int8()), count))


def _plain(array: pa.Array, *, is_text: bool) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if is_text else array


def is_range(rows: npt.NDArray[np.intp]) -> bool:
    """Return whether rows follow each other without a gap."""
    return len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all())


def _common_start(left: str, right: str) -> str:
    """Return the first characters that two texts have in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return left[: next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))]


def _join_texts(common: str, rest: Sequence[str]) -> list[str]:
    return [common + text for text in rest]


def _repeat(value: Any, count: int) -> list[Any]:
    return [value] * count


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceFiles(Sequence[SourceFile]):
    """Source files as columns. They are read like a list, and parts of it share its memory.

    Examples
    --------
    >>> files = SourceFiles.of([SourceFile("file:///a/1.nc", 10), SourceFile("file:///a/2.nc", 20)])
    >>> files[1].name, sum(files.sizes), files[1:].urls
    ('2.nc', 30, ['file:///a/2.nc'])
    """

    batch: pa.RecordBatch
    """Columns of more files, of which these are the rows from `first` to `end`."""
    first: int
    end: int

    @staticmethod
    def of(files: Iterable[SourceFile]) -> SourceFiles:
        """Return the columns of files. Only some of them are objects at a time if `files` makes them."""
        if isinstance(files, SourceFiles):
            return files
        builder, source = _Builder(), iter(files)
        while part := list(itertools.islice(source, _ROWS_AT_ONCE)):
            builder.add(part)
        batch = builder.finish()
        return SourceFiles(batch, 0, batch.num_rows)

    @staticmethod
    def join(parts: Iterable[SourceFiles]) -> SourceFiles:
        """Return all files of some parts. Nothing is copied if they are neighbours in the same columns."""
        joined: list[SourceFiles] = []
        for part in parts:
            last = joined[-1] if joined else None
            if last is not None and last.batch is part.batch and last.end == part.first:
                joined[-1] = SourceFiles(last.batch, last.first, part.end)
            elif len(part):
                joined.append(part)
        return joined[0] if len(joined) == 1 else SourceFiles.of(itertools.chain.from_iterable(joined))

    def __len__(self) -> int:
        return self.end - self.first

    @overload
    def __getitem__(self, index: int) -> SourceFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SourceFile]: ...

    def __getitem__(self, index: int | slice) -> SourceFile | Sequence[SourceFile]:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step == 1:
                return SourceFiles(self.batch, self.first + first, self.first + max(first, end))
            return list(self)[index]
        return SourceFile(*(column[index] for column in self.columns))

    def __iter__(self) -> Iterator[SourceFile]:
        return itertools.starmap(SourceFile, zip(*self.columns, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SourceFiles({len(self):,} files)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self.columns

    @property
    def columns(self) -> tuple[Column[Any], ...]:
        """The fields of the files, in the order of `SourceFile`."""
        rows = [self.batch.column(name).slice(self.first, len(self)) for name in _NAMES]
        folder, name, size, etag, modified, version = rows
        return Column(folder, name), Column(size), Column(etag), Column(modified), Column(version, is_text=True)

    @property
    def urls(self) -> Column[str]:
        """The URL of each file."""
        return self.columns[0]

    @property
    def sizes(self) -> Column[int]:
        """The size of each file in bytes."""
        return self.columns[1]

    def total_bytes(self) -> int:
        """Return the size of all files."""
        return pc.sum(self.sizes.array()).as_py() or 0

    def take(self, rows: npt.NDArray[np.intp]) -> SourceFiles:
        """Return some files. Neighbours share the memory of the columns."""
        if not len(rows) or is_range(rows):
            first = int(rows[0]) if len(rows) else 0
            return SourceFiles(self.batch, self.first + first, self.first + first + len(rows))
        batch = self.batch.take(pa.array(rows + self.first))
        return SourceFiles(batch, 0, batch.num_rows)

    def in_natural_order(self) -> SourceFiles:
        """Return every file once, in the natural order of the URLs. The first of several files of a URL is used."""
        if not len(self):
            return self
        urls = self.urls.array()
        order = natural_order(urls)
        urls = urls.take(pa.array(order))
        is_other = pc.not_equal(urls.slice(1), urls.slice(0, len(urls) - 1)).to_numpy(zero_copy_only=False)
        return self.take(order[np.append(True, is_other)])


_NAMES = ("folder", "name", "size_bytes", "etag", "last_modified", "version")


def _restore(*columns: Sequence[Any]) -> SourceFiles:
    return SourceFiles.of(itertools.starmap(SourceFile, zip(*columns, strict=True)))


class _Builder:
    """Makes columns of files, some files after the others."""

    def __init__(self) -> None:
        self._folders: dict[str, int] = {}
        self._chunks: dict[str, list[pa.Array]] = {name: [] for name in _NAMES}
        self._has_numbers = True
        """Whether all versions are whole numbers, as those of local files are."""

    def add(self, files: Sequence[SourceFile]) -> None:
        codes, names = [], []
        for file in files:
            # The last part of the URL of a folder ends with a slash.
            at = file.url.rfind("/", 0, -1) + 1
            codes.append(self._folders.setdefault(file.url[:at], len(self._folders)))
            names.append(file.url[at:])
        self._append("folder", codes, pa.int32())
        self._append("name", names, pa.string())
        self._append("size_bytes", [file.size_bytes for file in files], pa.int64())
        self._append("etag", [file.etag for file in files], pa.string())
        self._append("last_modified", [file.last_modified for file in files], pa.int64())
        versions = [file.version for file in files]
        if self._has_numbers and not all(each is None or _is_number(each) for each in versions):
            self._has_numbers = False
            self._chunks["version"] = [chunk.cast(pa.string()) for chunk in self._chunks["version"]]
        if self._has_numbers:
            self._append("version", [None if each is None else int(each) for each in versions], pa.int64())
        else:
            self._append("version", versions, pa.string())

    def _append(self, name: str, values: Sequence[Any], kind: pa.DataType) -> None:
        self._chunks[name].append(pa.array(values, kind))

    def finish(self) -> pa.RecordBatch:
        found = {name: self._joined(name) for name in _NAMES}
        folders = pa.array(self._folders, pa.string())
        found["folder"] = pa.DictionaryArray.from_arrays(found["folder"].cast(pa.int32()), folders)
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(_NAMES))

    def _joined(self, name: str) -> pa.Array:
        chunks = self._chunks.pop(name)
        if all(chunk.null_count == len(chunk) for chunk in chunks):
            return pa.nulls(sum(map(len, chunks)))
        return pa.concat_arrays(chunks)


_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def _is_number(text: str) -> bool:
    """Return whether a text is that of a 64-bit number."""
    return _NUMBER.fullmatch(text) is not None and int(text) < 1 << 63


# -- the natural order ------------------------------------------------------------------------------------------------

_DIGITS = str.maketrans("123456789", "000000000")


def natural_order(texts: pa.Array) -> npt.NDArray[np.intp]:
    """Return the positions of texts in their natural order: `day9` is before `day10`.

    Texts such as `day1` and `day01`, which are equal otherwise, are in the order of their characters. Equal texts stay
    in their order.
    """
    ends = pc.min_max(texts)
    # What the first and the last text have in common, all texts between them have too. Digits may belong together.
    common = _common_start(ends["min"].as_py() or "", ends["max"].as_py() or "")
    while common and common[-1].isdecimal():
        common = common[:-1]
    column = Column[str](texts)
    shapes: set[str] = set()
    for text in column:
        shapes.add(text[len(common) :].translate(_DIGITS))
        if len(shapes) > 1:
            break
    if len(shapes) <= 1:
        # The numbers in the texts have equal lengths, so that their order is that of their characters.
        order = pc.sort_indices(texts)
    else:
        rest = (natural_key(text[len(common) :]) for text in column)
        keys = pa.concat_arrays([pa.array(part, pa.binary()) for part in _blocks(rest)])
        table = pa.table({"key": keys, "text": texts})
        order = pc.sort_indices(table, sort_keys=[("key", "ascending"), ("text", "ascending")])
    return np.asarray(order).astype(np.intp)


def _blocks(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    while part := list(itertools.islice(values, _ROWS_AT_ONCE)):
        yield part


def in_natural_order(texts: Iterable[str]) -> list[str]:
    """Sort texts as `natural_order` does. Small jobs do not need Arrow, which may import pandas."""
    ordered = sorted(texts)
    common = len(_common_start(ordered[0], ordered[-1])) if ordered else 0
    while common and ordered[0][common - 1].isdecimal():
        common -= 1
    if len({text[common:].translate(_DIGITS) for text in ordered}) > 1:
        ordered.sort(key=lambda text: natural_key(text[common:]))
    return ordered


def natural_key(text: str) -> bytes:
    """Return a sort key that orders `day9` before `day10`. Texts come after numbers.

    Bytes need much less memory than a tuple of the parts.
    """
    found = bytearray()
    for index, part in enumerate(_NUMBERS.split(text)):
        if index % 2:
            digits = str(int(part)).encode()
            found += b"\x01" + len(digits).to_bytes(4, "big") + digits
        elif part:
            found += b"\x02" + part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"
    return bytes(found)


_NUMBERS = re.compile(r"(\d+)")
