"""Many lines of text built at once: one byte matrix per piece, zero bytes where a line is shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Piece: TypeAlias = npt.NDArray[np.uint8]
"""uint8[n, width]; JSON text never holds a zero byte, so zeros are holes."""

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
    """The bytes of each row as decimals with commas between; only the first `lengths` of them, where given."""
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
    """Pieces behind each other in every line."""
    return np.concatenate(pieces, axis=1)


def compress(lines: Piece) -> bytes:
    """The text of all lines, without the holes."""
    flat = lines.reshape(-1)
    text: bytes = flat[flat != 0].tobytes()
    return text


def escape_json(texts: pa.Array) -> pa.Array:
    """Texts as the inside of JSON strings."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    for code in range(0x20):
        control = chr(code)
        if pc.any(pc.match_substring(escaped, control)).as_py():
            escaped = pc.replace_substring(escaped, control, f"\\u{code:04x}")
    return escaped
