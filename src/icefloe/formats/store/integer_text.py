"""Integers read out of text in columns: chunk keys such as `3/0/12`, and JSON arrays of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError

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
    """All keys at once; FormatError for any that is not decimal numbers with `/` between, in shortest form."""
    if not keys:
        return KeyColumns(np.empty(0, dtype=np.uint32), np.zeros(1, dtype=np.int64))
    text = np.frombuffer(("\n".join(keys) + "\n").encode("utf-8", "replace"), dtype=np.uint8)
    is_digit = (text - _ZERO) < 10
    is_end = text == ord("\n")
    if not (is_digit | is_end | (text == ord("/"))).all() or int(is_end.sum()) != len(keys):
        raise _wrong_key()
    # Every number ends in exactly one separator; one at the start or behind another has no number before it.
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
    """JSON arrays of integers 0..255 as one run of bytes, and how many bytes each gave.

    The texts must be valid JSON values; FormatError when they are not arrays of such integers.
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
        raise FormatError("a list of bytes holds something else than integers")
    # A list starts and ends with a bracket, so digits never touch the ends of the text.
    is_digit = (text - _ZERO) < 10
    turns = np.flatnonzero(is_digit[:-1] != is_digit[1:]) + 1
    starts, ends = turns[::2], turns[1::2]
    lengths = ends - starts
    if int(lengths.max(initial=0)) > 3:
        raise FormatError("a list of bytes holds a number above 255")
    values = (text[ends - 1] - _ZERO).astype(np.uint16)
    for place in (1, 2):
        longer = np.flatnonzero(lengths > place)
        values[longer] += (text[ends[longer] - 1 - place] - _ZERO).astype(np.uint16) * np.uint16(10**place)
    if int(values.max(initial=0)) > 255:
        raise FormatError("a list of bytes holds a number above 255")
    return values.astype(np.uint8), np.diff(np.searchsorted(starts, bounds)).astype(np.int64)


def read_integers(
    text: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint64]:
    """The numbers whose digits end before `ends`."""
    values = np.zeros(len(ends), dtype=np.uint64)
    for place in range(int(lengths.max(initial=0))):
        # Places beyond a number's first digit count as zero; the index is kept inside the text.
        digits = text[np.maximum(ends - 1 - place, 0)].astype(np.uint64) - np.uint64(_ZERO)
        values += np.where(lengths > place, digits, np.uint64(0)) * np.uint64(10**place)
    return values


def _wrong_key() -> FormatError:
    return FormatError("a chunk key is not a node number and coordinates, such as 3/0/12")
