"""Many strings held as one Arrow array, read like a sequence of str."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError

_BATCH = 65_536


class StringColumn(Sequence[str]):
    """An immutable sequence of str without one Python object per string."""

    __slots__ = ("arrow",)

    def __init__(self, arrow: Any) -> None:
        self.arrow = arrow

    def __len__(self) -> int:
        return len(self.arrow)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringColumn: ...
    def __getitem__(self, index: int | slice) -> str | StringColumn:
        if isinstance(index, slice):
            return StringColumn(self.arrow[index])
        text: str = self.arrow[index].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BATCH):
            yield from self.arrow.slice(start, _BATCH).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringColumn):
            return bool(self.arrow.equals(other.arrow))
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and self.arrow.to_pylist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StringColumn({len(self)} strings)"

    @property
    def nbytes(self) -> int:
        return int(self.arrow.nbytes)


def string_column(values: Any) -> StringColumn:
    """Any sequence of str (list, numpy, Arrow, StringColumn) as a StringColumn, without copies where possible."""
    if isinstance(values, StringColumn):
        return values
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return StringColumn(values if values.type == pa.large_string() else values.cast(pa.large_string()))
    return StringColumn(text_array(values.tolist() if isinstance(values, np.ndarray) else list(values)))


def text_array(values: Sequence[str | None]) -> pa.Array:
    """Texts as an Arrow array. `pa.array` would load pandas first, which takes longer than most calls here."""
    missing = np.array([value is None for value in values], dtype=bool) if None in values else None
    texts: Sequence[Any] = values if missing is None else ["" if value is None else value for value in values]
    try:
        joined = "".join(texts)
    except TypeError as error:
        raise InvalidInputError(f"a column of texts holds something else: {error}") from error
    if joined.isascii():
        data, lengths = joined.encode(), np.fromiter(map(len, texts), np.int64, len(texts))
    else:
        encoded = [text.encode() for text in texts]
        data, lengths = b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers)


FEW_TEXTS = 2048
"""So many texts are gathered and coded one by one in less time than Arrow's functions take to load."""


def code_rows(texts: Sequence[str], rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], StringColumn]:
    """The distinct texts at some rows of a column without nulls, and the code of each row among them."""
    column = string_column(texts)
    if len(rows) > FEW_TEXTS:
        encoded = column.arrow.take(number_array(rows)).dictionary_encode()
        return codes_of(encoded.indices), StringColumn(encoded.dictionary)
    known: dict[str, int] = {}
    codes = [known.setdefault(column[row], len(known)) for row in rows.tolist()]
    return np.array(codes, dtype=np.int32), StringColumn(text_array(list(known)))


def number_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A numpy column as an Arrow array over the same memory, null where told; without pandas, as above."""
    column = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [_validity(missing), pa.py_buffer(column)])


def codes_of(indices: pa.Array) -> npt.NDArray[np.int32]:
    """The indices of a dictionary array as numpy, -1 where null; without pandas, as above."""
    filled = indices.fill_null(-1) if indices.null_count else indices
    width = np.dtype(filled.type.to_pandas_dtype())
    start = filled.offset
    return np.frombuffer(filled.buffers()[1], dtype=width)[start : start + len(filled)].astype(np.int32, copy=False)


def _validity(missing: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
