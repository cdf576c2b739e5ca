"""Node paths, chunk keys, chunk grids, bounds on decoded sizes, and the parts of a zarr.json that the engine needs.

Along each dimension, all chunks have one length (a regular grid), or each chunk has a length of its own. Zarr stores
the second kind as the grid `rectilinear`.

One byte of a body can become a Python object of a hundred bytes. A file may become values of 256 MiB, or of 1,000 times
its stored size. Bodies that are too small to exceed this are not checked.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.model.chunk_table import Coords

FREE_BYTES: Final = 256 << 20
RATIO: Final = 1000
DOCUMENT_BYTES: Final = 512 << 20
"""The memory limit of the values of one JSON document inside of a file."""
SMALL_FILE_BYTES: Final = 4 << 20
"""The size limit of a ref or a configuration. Real ones are much smaller."""

_MOST_PER_BYTE: Final = 128
"""The most memory that one byte can become. Small maps and empty arrays become the most."""
_BLOCK_BYTES: Final = 1 << 20
_SLOT, _ENTRY, _CONTAINER, _SMALL_MAP, _TEXT, _COMPRESSED_NUMBER, _EXTENSION = 9, 150, 80, 240, 64, 40, 160
_JSON_BYTES: Final = {b"[": 120, b"{": 240, b",": 48, b":": 64, b'"': 32}


def check_messagepack(body: bytes | memoryview, stored_bytes: int, what: str) -> None:
    """Raise FormatError if the values of a body would take implausibly much memory for the size of the file."""
    allowed = max(FREE_BYTES, RATIO * stored_bytes)
    if len(body) * _MOST_PER_BYTE <= allowed:
        return
    estimate = estimate_messagepack(body)
    if estimate > allowed:
        raise FormatError(
            f"a {what} file of {stored_bytes} bytes would need about {estimate >> 20} MiB of memory, but at most "
            f"{allowed >> 20} MiB are allowed"
        )


def is_believable_messagepack(body: bytes | memoryview, stored_bytes: int) -> bool:
    """Whether a reader accepts a body of this stored size."""
    allowed = max(FREE_BYTES, RATIO * stored_bytes)
    return len(body) * _MOST_PER_BYTE <= allowed or estimate_messagepack(body) <= allowed


def check_json(document: bytes | str, what: str) -> None:
    """Raise FormatError if the values of one JSON document would take more than DOCUMENT_BYTES."""
    if len(document) * _JSON_BYTES[b"["] <= DOCUMENT_BYTES:
        return
    estimate = estimate_json(document)
    if estimate > DOCUMENT_BYTES:
        raise FormatError(
            f"{what}: JSON of {len(document)} bytes would need about {estimate >> 20} MiB of memory, but at most "
            f"{DOCUMENT_BYTES >> 20} MiB are allowed"
        )


def load_json(data: bytes, what: str) -> Any:
    """Parse JSON. A FormatError contains the name of the file."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not valid JSON: {error}") from error


def load_object(data: bytes, what: str, most_bytes: int | None = None) -> dict[str, Any]:
    """Parse a JSON object. Raises FormatError if it is not one, or has more than `most_bytes`."""
    if most_bytes is not None and len(data) > most_bytes:
        raise FormatError(f"{what} has {len(data)} bytes, expected at most {most_bytes}")
    parsed = load_json(data, what)
    if not isinstance(parsed, dict):
        raise FormatError(f"{what} is a {type(parsed).__name__}, expected a JSON object")
    return parsed


def estimate_messagepack(body: bytes | memoryview) -> int:
    """A rough lower bound of the memory that the values of a body take.

    Every byte is counted as if it began a value, so that nothing has to be parsed. ASCII bytes begin values that take
    no memory: Python shares small numbers, and their slots are counted with their container.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    total = len(data)
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        total += int(np.bincount(block, minlength=256) @ _COSTS)
        for head, width, least, cost in _LONG_CONTAINERS:
            at = np.flatnonzero(block == head) + start
            total += cost * _declared(data, at, width, least)
        if total >= _MOST_PER_BYTE * len(data):
            return _MOST_PER_BYTE * len(data)
    return total


def _declared(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int, least: int) -> int:
    """The number of members that containers declare, limited by the bytes that follow."""
    at = at[at + width < len(data)]
    counts = np.zeros(len(at), dtype=np.int64)
    for byte in range(1, width + 1):
        counts = counts << 8 | data[at + byte]
    return int(np.minimum(counts, (len(data) - at) // least).sum())


def _costs() -> npt.NDArray[np.int64]:
    costs = np.zeros(256, dtype=np.int64)
    members = np.arange(16)
    costs[0x80:0x90] = np.where(members, _SMALL_MAP + _ENTRY // 2 * members, _CONTAINER)
    costs[0x90:0xA0] = _CONTAINER + _SLOT * members
    costs[0xA0:0xC0] = _TEXT
    costs[0xC4:0xC7] = _TEXT
    costs[0xC7:0xCA] = _EXTENSION
    costs[0xCA:0xD4] = _COMPRESSED_NUMBER
    costs[0xD4:0xD9] = _EXTENSION
    costs[0xD9:0xDC] = _TEXT
    costs[0xDC:0xE0] = _CONTAINER
    costs[0xE0:0xFB] = _COMPRESSED_NUMBER
    return costs


_COSTS = _costs()
_LONG_CONTAINERS = ((0xDC, 2, 1, _SLOT), (0xDD, 4, 1, _SLOT), (0xDE, 2, 2, _ENTRY), (0xDF, 4, 2, _ENTRY))


def estimate_json(document: bytes | str) -> int:
    """A rough lower bound of the memory that the values of a document take, from its punctuation."""
    if isinstance(document, str):
        return len(document) + sum(cost * document.count(mark.decode()) for mark, cost in _JSON_BYTES.items())
    return len(document) + sum(cost * document.count(mark) for mark, cost in _JSON_BYTES.items())


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
    """A key of another form: a chunk of an array with another key encoding, or an unknown key."""

    text: str


Key: TypeAlias = DocumentKey | ChunkKey | OtherKey


def parse_key(key: str) -> Key:
    """Parse a store key by its form alone."""
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
    """Whether a key is a Zarr v2 metadata document. These never exist here."""
    return key.rpartition("/")[2] in _V2_NAMES


def is_node_path(path: str) -> bool:
    """Whether a path in a stored file is a node path: absolute, without empty segments, `.` and `..`."""
    if path == "/":
        return True
    if path[:1] != "/" or path[-1] == "/" or "//" in path:
        return False
    return "/." not in path or {".", ".."}.isdisjoint(path.split("/"))


def find_bad_path(paths: Collection[str]) -> str | None:
    """An invalid node path, if there is one. Files of many nodes are checked as a whole."""
    whole = "\n".join(paths) + "\n"
    ordinary = (
        "//" not in whole
        and "/." not in whole
        and whole.count("/\n") <= ("/" in paths)
        and whole[:1] + whole[-1:] == "/\n"
        and whole.count("\n/") == len(paths) - 1 == whole.count("\n") - 1
    )
    return None if ordinary else next((path for path in paths if not is_node_path(path)), None)


def document_key(path: str) -> str:
    """The store key of a node's document."""
    return DOCUMENT if path == "/" else f"{path[1:]}/{DOCUMENT}"


def check_unicode(text: str, what: str) -> str:
    """Check that a text can be stored. Lone surrogates, as in file names that are not UTF-8, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{what} {text!r} is not valid Unicode: it has a lone surrogate at position {error.start}. os.listdir "
            "returns such text for file names that are not UTF-8. Choose another text"
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
    """The bounds [first, end), in sorted order, of all paths strictly below `path`."""
    prefix = "/" if path == "/" else path + "/"
    return prefix, prefix[:-1] + chr(ord("/") + 1)


_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Shape and chunk grid of an array document."""

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


def parse_document(document: bytes, key: str = "zarr.json") -> dict[str, Any]:
    """Parse a zarr.json. Raises InvalidInputError if it is not a Zarr v3 node document."""
    check_json(document, key)
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{key} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict) or parsed.get("node_type") not in ("array", "group"):
        raise InvalidInputError(f'{key} is not a Zarr v3 document: "node_type" must be "array" or "group"')
    return parsed


def parse_array_shape(parsed: Mapping[str, Any], key: str = "zarr.json") -> ArrayShape:
    """Shape and number of chunks per dimension of a parsed array document."""
    try:
        shape = tuple(int(n) for n in parsed["shape"])
        grid = _count_chunks(shape, parsed["chunk_grid"])
        names = parsed.get("dimension_names")
        dimension_names = None if names is None else tuple(None if n is None else str(n) for n in names)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{key} is not a valid Zarr array document: {error!r}") from error
    if any(n < 0 for n in shape) or len(grid) != len(shape):
        raise InvalidInputError(f"{key} is not a valid Zarr array document: shape {shape}, chunk grid {grid}")
    return ArrayShape(shape, grid, dimension_names)


def _count_chunks(shape: tuple[int, ...], chunk_grid: Mapping[str, Any]) -> tuple[int, ...]:
    name, configuration = chunk_grid["name"], chunk_grid.get("configuration", {})
    if name == "regular":
        chunks = configuration["chunk_shape"]
        if len(chunks) != len(shape):
            raise ValueError(f"chunk shape {chunks} for shape {shape}")
        # Zarr allows a chunk length of zero if the dimension is empty.
        return tuple(-(-n // int(c)) if n else 0 for n, c in zip(shape, chunks, strict=True))
    if name == "rectilinear":
        return tuple(
            _count_rectilinear(n, sizes) for n, sizes in zip(shape, configuration["chunk_shapes"], strict=True)
        )
    raise ValueError(f"unknown chunk grid {name!r}")


def _count_rectilinear(length: int, sizes: Any) -> int:
    """The number of chunks that begin before the end. An array that was made smaller keeps the lengths behind it."""
    if isinstance(sizes, int):
        return -(-length // sizes)
    count, start = 0, 0
    for entry in sizes:
        size, number = (int(entry[0]), int(entry[1])) if isinstance(entry, list) else (int(entry), 1)
        if start + size * number >= length:
            return count + (-(-(length - start) // size) if size > 0 else 0)
        count, start = count + number, start + size * number
    return count


def find_attributes(document: str) -> tuple[int, int] | None:
    """The position of the value of the top-level key "attributes" in a JSON object, or None."""
    position = _skip(document, document.index("{") + 1)
    while document[position] == '"':
        key, position = _DECODER.raw_decode(document, position)
        start = _skip(document, _skip(document, position) + 1)
        _, end = _DECODER.raw_decode(document, start)
        if key == "attributes":
            return start, end
        position = _skip(document, end)
        if document[position] != ",":
            return None
        position = _skip(document, position + 1)
    return None


def _skip(text: str, position: int) -> int:
    while text[position] in _BLANKS:
        position += 1
    return position


def split_attributes(document: bytes) -> tuple[bytes, bytes] | None:
    """The document with `{}` for its attributes, and the attributes as written. None if it has none."""
    text = document.decode()
    span = find_attributes(text)
    if span is None:
        return None
    start, end = span
    return (text[:start] + "{}" + text[end:]).encode(), text[start:end].encode()


def join_attributes(document: bytes, attributes: bytes) -> bytes:
    """The inverse of split_attributes, byte for byte."""
    check_json(document, "a document")
    check_json(attributes, "attributes")
    try:
        text, inner = document.decode(), attributes.decode()
        span = find_attributes(text)
    except (ValueError, IndexError) as error:
        raise FormatError(f"a document or its attributes are not JSON in UTF-8: {error}") from error
    if span is None:
        raise InvalidInputError("the zarr.json has no attributes")
    start, end = span
    return (text[:start] + inner + text[end:]).encode()


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """How the coordinates of a chunk follow the path of its array in a key."""

    lead: str
    """`c` in the default encoding, empty in that of Zarr v2."""
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
        """The coordinates in a key below the path of the array, or None if it is not a chunk key."""
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
        """The leading coordinates of the chunks in a folder below the array, or None if it cannot contain chunks."""
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
    """The chunk key encoding of an array document."""
    encoding = parse_document(document).get("chunk_key_encoding")
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, dict):
        return DEFAULT_ENCODING
    configuration = encoding.get("configuration") or {}
    if encoding.get("name") == "v2":
        return KeyEncoding("", str(configuration.get("separator", ".")))
    return KeyEncoding("c", str(configuration.get("separator", "/")))


@dataclass(frozen=True, slots=True)
class ChunkLengths:
    """The lengths of the chunks along one dimension: one for all chunks, or one for each chunk.

    After the last chunk with a length of its own, chunks have the length of the last one. So every cell is in a chunk,
    also if the dimension grows.
    """

    each: int | tuple[int, ...]
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = () if isinstance(self.each, int) else self.each
        object.__setattr__(self, "_starts", tuple(itertools.accumulate(own, initial=0)))

    @property
    def is_regular(self) -> bool:
        return isinstance(self.each, int)

    @property
    def longest(self) -> int:
        return self.each if isinstance(self.each, int) else max(self.each, default=1)

    @property
    def _last(self) -> int:
        """The length of the chunks after those with a length of their own."""
        return max(1, self.each) if isinstance(self.each, int) else (self.each or (1,))[-1]

    def index(self, cell: int) -> int:
        """The chunk that has a cell."""
        if cell < self._starts[-1]:
            return bisect.bisect_right(self._starts, cell) - 1
        return len(self._starts) - 1 + (cell - self._starts[-1]) // self._last

    def start(self, index: int) -> int:
        """The first cell of a chunk."""
        own = len(self._starts) - 1
        return self._starts[index] if index <= own else self._starts[-1] + (index - own) * self._last

    def length(self, index: int) -> int:
        """The length of a chunk. The array may end before the chunk does."""
        return self.each[index] if not isinstance(self.each, int) and index < len(self.each) else self._last

    def indices(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The chunks that have cells. The same as `index` for each of them."""
        if isinstance(self.each, int):
            return np.asarray(cells // self._last)
        found = np.searchsorted(np.array(self._starts, dtype=np.int64), cells, side="right") - 1
        # Chunks behind the last one with a length of its own.
        return np.asarray(found + np.maximum(0, cells - self._starts[-1]) // self._last)

    def starts(self, cells: int) -> npt.NDArray[np.int64]:
        """The first cell of each chunk that has some of the first cells."""
        if isinstance(self.each, int):
            return np.arange(0, cells, self._last, dtype=np.int64)
        own = np.array(self._starts, dtype=np.int64)
        more = np.arange(self._starts[-1] + self._last, cells, self._last, dtype=np.int64)
        found = np.concatenate([own, more])
        return found[found < cells]

    def starts_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first cells of chunks. The same as `start` for each of them."""
        if isinstance(self.each, int):
            return np.asarray(indices * self._last)
        own = np.array(self._starts, dtype=np.int64)
        known = np.minimum(indices, len(own) - 1)
        return np.asarray(own[known] + (indices - known) * self._last)

    def lengths(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The lengths of chunks. The same as `length` for each of them."""
        own = np.array(() if isinstance(self.each, int) else self.each, dtype=np.int64)
        if not len(own):
            return np.full(len(indices), self._last, dtype=np.int64)
        return own[np.minimum(indices, len(own) - 1)]

    def count(self, cells: int) -> int:
        """The number of chunks that have some of the first cells."""
        return self.index(cells - 1) + 1 if cells > 0 else 0

    def is_bound(self, cell: int) -> bool:
        """Whether a chunk begins at a cell."""
        return self.start(self.index(cell)) == cell

    def of(self, cells: int) -> tuple[int, ...]:
        """The lengths of all chunks that have some of the first cells."""
        return tuple(self.length(index) for index in range(self.count(cells)))

    def covering(self, cells: int) -> ChunkLengths:
        """The same chunks, with a length for each one that has some of the first cells, and for no other."""
        return self if isinstance(self.each, int) else ChunkLengths(self.of(max(1, cells)))

    def part(self, first: int, end: int) -> ChunkLengths:
        """The chunks of the cells [first, end), with bounds at the same cells. Chunks at both ends may be shorter."""
        if end <= first:
            return ChunkLengths(1)
        if isinstance(self.each, int) and first % self._last == 0:
            return self
        bounds = [first, *(self.start(index) for index in range(self.index(first) + 1, self.index(end - 1) + 1)), end]
        return ChunkLengths(tuple(after - before for before, after in itertools.pairwise(bounds)))

    def __str__(self) -> str:
        if isinstance(self.each, int):
            return str(self.each)
        low, high = min(self.each, default=0), max(self.each, default=0)
        return str(low) if low == high else f"{low} to {high}"


def as_lengths(chunks: Iterable[int | tuple[int, ...]]) -> tuple[ChunkLengths, ...]:
    """The chunk lengths along each dimension."""
    return tuple(map(ChunkLengths, chunks))


_MOST_LENGTHS = 10_000_000
"""A document of a few bytes can claim any number of chunks."""


def parse_grid(document: Mapping[str, Any]) -> tuple[ChunkLengths, ...]:
    """The chunk lengths of the array of a zarr.json document."""
    grid = document["chunk_grid"]
    if grid["name"] == "regular":
        return as_lengths(int(c) for c in grid["configuration"]["chunk_shape"])
    if grid["name"] != "rectilinear":
        raise UnsupportedError(f"the chunk grid {grid['name']!r} cannot be combined with others")
    return as_lengths(map(_parse_lengths, grid["configuration"]["chunk_shapes"]))


def _parse_lengths(entry: Any) -> int | tuple[int, ...]:
    """Chunk lengths along a dimension. Zarr writes repeated lengths as [length, number]."""
    if isinstance(entry, int):
        return entry
    repeated = [each if isinstance(each, (list, tuple)) else (each, 1) for each in entry]
    if sum(int(number) for _, number in repeated) > _MOST_LENGTHS:
        raise UnsupportedError(f"the chunk grid has more than {_MOST_LENGTHS:,} lengths along a dimension")
    return tuple(int(length) for length, number in repeated for _ in range(int(number)))


def grid_document(grid: Sequence[ChunkLengths]) -> dict[str, Any]:
    """The `chunk_grid` member of zarr.json."""
    if all(lengths.is_regular for lengths in grid):
        return {"name": "regular", "configuration": {"chunk_shape": [max(1, lengths.longest) for lengths in grid]}}
    shapes = [each.each if isinstance(each.each, int) else _repeated(each.each) for each in grid]
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}


def _repeated(lengths: Sequence[int]) -> list[Any]:
    """Lengths with [length, number] for those that repeat, as zarr writes them, if that is shorter."""
    runs = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
    return [[*run] if run[1] > 1 else run[0] for run in runs] if len(runs) < len(lengths) else list(lengths)
