"""Byte strings of different lengths copied and told apart in columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.formats.flat.body import Body, Positions
from icefloe.formats.flat.tables import Vectors, distinct_values

_FEW = 200
"""Columns up to this many rows are quicker done one by one."""
_FEW_STRINGS = 2048
"""So many strings are told apart one by one in less time than Arrow's functions take to load."""


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
    """The rows laid end to end, and where each begins (one more entry than rows); never more than the file holds."""
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    if int(ends[-1]) > body.size:
        raise body.corrupt("its strings overlap")
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    copy_rows(data, ends[:-1], body.data, starts, lengths)
    return data, ends


@dataclass(frozen=True, slots=True)
class Strings:
    """Byte strings laid end to end, and where each begins; one more entry than strings."""

    data: bytes
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def split(self) -> list[bytes]:
        """Each string by itself."""
        return [self.data[start:end] for start, end in itertools.pairwise(self.ends.tolist())]


def dictionary_of(body: Body, held: Vectors) -> tuple[npt.NDArray[np.int32], Strings]:
    """Which distinct byte string each row has, -1 where it has none, and the distinct ones.

    Writers may store equal strings once or many times; both come out the same.
    """
    codes = np.full(len(held.starts), -1, dtype=np.int32)
    here = held.present
    starts = held.starts[here]
    if len(starts) == 0:
        return codes, Strings(b"", np.zeros(1, dtype=np.int64))
    # Strings that are all stored by themselves stand in the order of their rows, one way or the other.
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
    """Whether positions only rise, or only fall."""
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
    """Texts as bytes laid end to end, and the length of each."""
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


def texts_of(body: Body, held: Vectors) -> list[str | None]:
    """The string of every row as text, for columns of a few thousand rows."""
    if len(held.starts) <= _FEW:
        # Rows may share a string, which is then decoded once.
        distinct = dict(zip(held.starts.tolist(), held.counts.tolist(), strict=True))
        if sum(count for start, count in distinct.items() if start >= 0) > body.size:
            raise body.corrupt("its strings overlap")
        found = {start: None if start < 0 else _decode_text(body, start, count) for start, count in distinct.items()}
        return [found[start] for start in held.starts.tolist()]
    codes, strings = dictionary_of(body, held)
    texts = decode_texts(body, strings)
    return [texts[code] if code >= 0 else None for code in codes.tolist()]
