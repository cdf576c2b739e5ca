"""Byte strings of different lengths copied and told apart in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.formats.flat.body import Body, Positions
from icefloe.formats.flat.tables import Vectors, distinct_values

_FEW = 200
"""Columns up to this many rows are quicker done one by one."""


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


def dictionary_of(body: Body, held: Vectors) -> tuple[npt.NDArray[np.int32], pa.LargeBinaryArray]:
    """Which distinct byte string each row has, -1 where it has none, and the distinct ones.

    Writers may store equal strings once or many times; both come out the same.
    """
    codes = np.full(len(held.starts), -1, dtype=np.int32)
    here = held.present
    starts = held.starts[here]
    if len(starts) == 0:
        return codes, pa.array([], type=pa.large_binary())
    distinct, which = distinct_values(starts)
    lengths = body.read(distinct - 4, "<u4").astype(np.int64)
    data, ends = gather_rows(body, distinct, lengths)
    strings = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(distinct), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    encoded = strings.dictionary_encode()
    by_position = encoded.indices.to_numpy(zero_copy_only=False)
    codes[here] = by_position[0] if which is None else by_position[which]
    return codes, encoded.dictionary


def decode_texts(body: Body, strings: pa.LargeBinaryArray) -> list[str]:
    """Byte strings as text."""
    try:
        texts: list[str] = strings.cast(pa.large_string()).to_pylist()
    except pa.ArrowInvalid as error:
        raise body.corrupt("a string is not UTF-8") from error
    return texts


def _decode_text(body: Body, start: int, count: int) -> str:
    try:
        return body.data[start : start + count].decode()
    except UnicodeDecodeError as error:
        raise body.corrupt("a string is not UTF-8") from error


def texts_of(body: Body, held: Vectors) -> list[str | None]:
    """The string of every row as text, for columns of a few thousand rows."""
    if len(held.starts) <= _FEW:
        return [
            None if start < 0 else _decode_text(body, start, count)
            for start, count in zip(held.starts.tolist(), held.counts.tolist(), strict=True)
        ]
    codes, strings = dictionary_of(body, held)
    texts = decode_texts(body, strings)
    return [texts[code] if code >= 0 else None for code in codes.tolist()]
