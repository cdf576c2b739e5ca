"""Byte strings and texts of different lengths, read and written as columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.flatbuf.decode import Body, Positions, Vectors, distinct_values
from icefloe.lazy_exports import lazy_module

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")


def gather_ranges(
    source: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """The bytes [start, start + length) of every row, concatenated. Nothing is copied if they are contiguous."""
    if len(starts) == 0:
        return np.empty(0, dtype=np.uint8)
    ends = starts + lengths
    full = lengths > 0
    if (starts < 0).any() or (lengths < 0).any() or (ends[full] > len(source)).any():
        raise InvalidInputError(
            f"the offset and length of an inline chunk are outside of the {len(source)} inline bytes"
        )
    used_starts, used_ends, used_lengths = starts[full], ends[full], lengths[full]
    if len(used_starts) == 0:
        return np.empty(0, dtype=np.uint8)
    if (used_starts[1:] == used_ends[:-1]).all():
        return source[int(used_starts[0]) : int(used_ends[-1])]
    targets = np.cumsum(used_lengths) - used_lengths
    index = np.repeat(used_starts - targets, used_lengths) + np.arange(int(used_lengths.sum()), dtype=np.int64)
    return source[index]


_FEW = 200
"""Up to this many rows, a Python loop is faster."""
_FEW_STRINGS = 2048
"""Up to this many strings, a Python loop is faster than loading Arrow's functions."""


def copy_rows(
    target: npt.NDArray[np.uint8],
    target_starts: Positions,
    source: Any,
    source_starts: Positions,
    lengths: npt.NDArray[np.int64],
) -> None:
    """Copy row i of the source to row i of the target. Positions must have been checked.

    Rows of equal length move together as items of that width, so the loop is over distinct lengths.
    """
    if len(lengths) == 0:
        return
    first = int(lengths[0])
    if bool((lengths == first).all()):
        _copy_equal(target, target_starts, source, source_starts, first)
        return
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, edges):
        _copy_equal(target, target_starts[rows], source, source_starts[rows], int(lengths[rows[0]]))


def _copy_equal(
    target: npt.NDArray[np.uint8], target_starts: Positions, source: Any, source_starts: Positions, width: int
) -> None:
    if width == 0 or len(target_starts) == 0:
        return
    if len(target_starts) == 1:
        begin, end = int(source_starts[0]), int(target_starts[0])
        target[end : end + width] = np.frombuffer(source, dtype=np.uint8)[begin : begin + width]
        return
    kind = np.dtype((np.void, width))
    size = memoryview(source).nbytes
    sources: npt.NDArray[Any] = np.ndarray((size - width + 1,), dtype=kind, buffer=source, strides=(1,))
    targets: npt.NDArray[Any] = np.ndarray((len(target) - width + 1,), dtype=kind, buffer=target, strides=(1,))
    targets[target_starts] = sources[source_starts]


def gather_rows(
    body: Body, starts: Positions, lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The rows, concatenated, and the offset of each (one more entry than rows). Never larger than the file."""
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    if int(ends[-1]) > body.size:
        raise body.corrupt("its strings overlap")
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    copy_rows(data, ends[:-1], body.data, starts, lengths)
    return data, ends


@dataclass(frozen=True, slots=True)
class Strings:
    """Concatenated byte strings, and the offset of each. There is one more offset than strings."""

    data: bytes
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def split(self) -> list[bytes]:
        """The strings as a list."""
        return [self.data[start:end] for start, end in itertools.pairwise(self.ends.tolist())]


def dictionary_of(body: Body, vectors: Vectors) -> tuple[npt.NDArray[np.int32], Strings]:
    """The number of each row's distinct byte string (-1 if it has none), and the distinct byte strings.

    Writers may store equal strings once or several times. The result is the same.
    """
    codes = np.full(len(vectors.starts), -1, dtype=np.int32)
    here = vectors.present
    starts = vectors.starts[here]
    if len(starts) == 0:
        return codes, Strings(b"", np.zeros(1, dtype=np.int64))
    # If no string is shared, the strings are in the order of the rows, or in the reverse order.
    apart = len(starts) > 1 and _one_way(starts)
    distinct, which = (starts, None) if apart else distinct_values(starts)
    lengths = body.read(distinct - 4, "<u4").astype(np.int64)
    data, ends = gather_rows(body, distinct, lengths)
    by_position, strings = _code_strings(data, ends)
    if apart:
        codes[here] = by_position
    else:
        codes[here] = by_position[0] if which is None else by_position[which]
    return codes, strings


def _code_strings(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], Strings]:
    """The code of every byte string, and the distinct ones."""
    count = len(ends) - 1
    if count <= _FEW_STRINGS:
        known: dict[bytes, int] = {}
        codes = [known.setdefault(each, len(known)) for each in Strings(bytes(data), ends).split()]
        lengths = np.fromiter(map(len, known), dtype=np.int64, count=len(known))
        return np.array(codes, dtype=np.int32), Strings(b"".join(known), np.append(0, np.cumsum(lengths)))
    column = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    encoded = column.dictionary_encode()
    _, found_ends, found_data = encoded.dictionary.buffers()
    ends = np.frombuffer(found_ends, dtype=np.int64, count=len(encoded.dictionary) + 1)
    strings = Strings(b"" if found_data is None else found_data.to_pybytes(), ends)
    return np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32, count=count), strings


def _one_way(positions: npt.NDArray[np.int64]) -> bool:
    """Whether positions only increase, or only decrease."""
    if positions[0] < positions[1]:
        return bool((positions[1:] > positions[:-1]).all())
    return bool((positions[1:] < positions[:-1]).all())


def decode_texts(body: Body, strings: Strings) -> list[str]:
    """Byte strings as text."""
    if strings.data.isascii():
        whole = strings.data.decode("ascii")
        return [whole[start:end] for start, end in itertools.pairwise(strings.ends.tolist())]
    try:
        return [string.decode() for string in strings.split()]
    except UnicodeDecodeError as error:
        raise body.corrupt("a string is not UTF-8") from error


def join_texts(texts: Sequence[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Texts as concatenated bytes, and the length of each."""
    whole = "".join(texts)
    if whole.isascii():
        return whole.encode(), np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    encoded = [text.encode() for text in texts]
    return b"".join(encoded), np.fromiter(map(len, encoded), dtype=np.int64, count=len(texts))


def _decode_text(body: Body, start: int, count: int) -> str:
    try:
        return body.data[start : start + count].decode()
    except UnicodeDecodeError as error:
        raise body.corrupt("a string is not UTF-8") from error


def texts_of(body: Body, vectors: Vectors) -> list[str | None]:
    """The string of every row as text, for columns of a few thousand rows."""
    if len(vectors.starts) <= _FEW:
        # Rows may share a string. It is decoded once.
        distinct = dict(zip(vectors.starts.tolist(), vectors.counts.tolist(), strict=True))
        if sum(count for start, count in distinct.items() if start >= 0) > body.size:
            raise body.corrupt("its strings overlap")
        found = {start: None if start < 0 else _decode_text(body, start, count) for start, count in distinct.items()}
        return [found[start] for start in vectors.starts.tolist()]
    codes, strings = dictionary_of(body, vectors)
    texts = decode_texts(body, strings)
    return [texts[code] if code >= 0 else None for code in codes.tolist()]


Piece: TypeAlias = npt.NDArray[np.uint8]
"""uint8[n, width]. JSON text never contains a zero byte, so zeros are padding."""

_COMMA = ord(",")


def _byte_texts() -> Piece:
    texts = np.zeros((256, 4), dtype=np.uint8)
    for value in range(256):
        text = f"{value},".encode()
        texts[value, 4 - len(text) :] = np.frombuffer(text, dtype=np.uint8)
    return texts


_BYTE_TEXTS = _byte_texts()


def literal(text: bytes, count: int) -> Piece:
    """The same text in every line."""
    return np.broadcast_to(np.frombuffer(text, dtype=np.uint8), (count, len(text)))


def decimal(values: npt.NDArray[Any]) -> Piece:
    """Non-negative integers in decimal."""
    largest = int(values.max(initial=0))
    digits = len(str(largest))
    numbers: npt.NDArray[Any] = values.astype(np.uint32 if largest <= 0xFFFFFFFF else np.uint64)
    text = np.empty((len(numbers), digits), dtype=np.uint8)
    for place in range(digits - 1, -1, -1):
        rest: npt.NDArray[Any] = numbers // 10
        text[:, place] = numbers - rest * 10 + 48
        if place < digits - 1:
            text[numbers == 0, place] = 0
        numbers = rest
    return text


def byte_lists(data: Piece, lengths: npt.NDArray[Any] | None = None) -> Piece:
    """The bytes of each row as decimals with commas between them. `lengths` limits how many bytes of a row are used."""
    count, width = data.shape
    text = _BYTE_TEXTS[data]
    if lengths is None:
        text[:, -1:, 3] = 0
    else:
        text[np.arange(width) >= lengths[:, None]] = 0
        filled = np.flatnonzero(lengths)
        text[filled, lengths[filled].astype(np.intp) - 1, 3] = 0
    return text.reshape(count, width * 4)


def ragged(data: Piece, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Piece:
    """Runs of bytes as rows of equal width."""
    width = int(lengths.max(initial=0))
    if width == 0:
        return np.zeros((len(starts), 0), dtype=np.uint8)
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    return np.where(inside, data[np.where(inside, starts[:, None] + columns, 0)], 0).astype(np.uint8)


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Join the pieces of every line."""
    return np.concatenate(pieces, axis=1)


def compress(lines: Piece) -> bytes:
    """The text of all lines, without the padding."""
    flat = lines.reshape(-1)
    text: bytes = flat[flat != 0].tobytes()
    return text


def escape_json(texts: pa.Array) -> pa.Array:
    """Texts as the content of JSON strings, escaped."""
    import pyarrow.compute as pc  # noqa: PLC0415 - it takes long to load, and only one generation needs it

    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    for code in range(0x20):
        control = chr(code)
        if pc.any(pc.match_substring(escaped, control)).as_py():
            escaped = pc.replace_substring(escaped, control, f"\\u{code:04x}")
    return escaped


_ZERO = np.uint8(ord("0"))
_DIGITS_OF_U32 = 10
_BLOCK = 1 << 16
_IN_BYTE_LIST = np.zeros(256, dtype=bool)
_IN_BYTE_LIST[np.frombuffer(b"0123456789[], \t\r\n", dtype=np.uint8)] = True


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Keys as numbers: `numbers[first[i] : first[i + 1]]` are the node number and coordinates of key i."""

    numbers: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]

    @property
    def nodes(self) -> npt.NDArray[np.uint32]:
        return self.numbers[self.first[:-1]]

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        return np.diff(self.first) - 1

    def coords(self, rows: npt.NDArray[np.intp], rank: int) -> npt.NDArray[np.uint32]:
        """The coordinates of rows of one rank."""
        found: npt.NDArray[np.uint32] = self.numbers[self.first[rows][:, None] + 1 + np.arange(rank)]
        return found


def parse_keys(keys: Sequence[str]) -> KeyColumns:
    """Parse all keys.

    Raises FormatError unless every key consists of decimal numbers joined by `/`, without leading zeros.
    """
    if not keys:
        return KeyColumns(np.empty(0, dtype=np.uint32), np.zeros(1, dtype=np.int64))
    text = np.frombuffer(("\n".join(keys) + "\n").encode("utf-8", "replace"), dtype=np.uint8)
    is_digit = (text - _ZERO) < 10
    is_end = text == ord("\n")
    if not (is_digit | is_end | (text == ord("/"))).all() or int(is_end.sum()) != len(keys):
        raise _wrong_key()
    # Every number is followed by exactly one separator. A separator at the start or after another one has no number.
    ends = np.flatnonzero(~is_digit)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    if (lengths == 0).any() or (lengths > _DIGITS_OF_U32).any() or ((lengths > 1) & (text[starts] == _ZERO)).any():
        raise _wrong_key()
    numbers = read_integers(text, ends, lengths)
    if (numbers > 0xFFFFFFFF).any():
        raise _wrong_key()
    first = np.zeros(len(keys) + 1, dtype=np.int64)
    first[1:] = np.flatnonzero(is_end[ends]) + 1
    return KeyColumns(numbers.astype(np.uint32), first)


def parse_byte_lists(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """JSON arrays of integers 0..255 as concatenated bytes, and the length of each array.

    The texts must be valid JSON values. Raises FormatError if they are not arrays of such integers.
    """
    blocks = [_parse_block(texts[start : start + _BLOCK]) for start in range(0, len(texts), _BLOCK)]
    if not blocks:
        return np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64)
    return np.concatenate([values for values, _ in blocks]), np.concatenate([counts for _, counts in blocks])


def _parse_block(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    text = np.frombuffer(b"".join(texts), dtype=np.uint8)
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)), out=bounds[1:])
    opens = text == ord("[")
    if not _IN_BYTE_LIST[text].all() or not opens[bounds[:-1]].all() or int(opens.sum()) != len(texts):
        raise FormatError("a list of bytes contains a value that is not an integer")
    # A list starts and ends with a bracket, so digits never touch the ends of the text.
    is_digit = (text - _ZERO) < 10
    turns = np.flatnonzero(is_digit[:-1] != is_digit[1:]) + 1
    starts, ends = turns[::2], turns[1::2]
    lengths = ends - starts
    if int(lengths.max(initial=0)) > 3:
        raise FormatError("a list of bytes contains a number above 255")
    values = (text[ends - 1] - _ZERO).astype(np.uint16)
    for place in (1, 2):
        longer = np.flatnonzero(lengths > place)
        values[longer] += (text[ends[longer] - 1 - place] - _ZERO).astype(np.uint16) * np.uint16(10**place)
    if int(values.max(initial=0)) > 255:
        raise FormatError("a list of bytes contains a number above 255")
    return values.astype(np.uint8), np.diff(np.searchsorted(starts, bounds)).astype(np.int64)


def read_integers(
    text: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint64]:
    """The numbers whose digits end before `ends`."""
    values = np.zeros(len(ends), dtype=np.uint64)
    for place in range(int(lengths.max(initial=0))):
        # Positions before a number's first digit count as zero. The index is clipped to the text.
        digits = text[np.maximum(ends - 1 - place, 0)].astype(np.uint64) - np.uint64(_ZERO)
        values += np.where(lengths > place, digits, np.uint64(0)) * np.uint64(10**place)
    return values


def _wrong_key() -> FormatError:
    return FormatError("a chunk key is not a node number and coordinates. Expected a key such as 3/0/12")
