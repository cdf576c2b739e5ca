"""Many strings held as one Arrow array, read like a sequence of str."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

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
    if isinstance(values, np.ndarray):
        # Arrow reads object arrays directly; fixed-width and variable-width text goes through them.
        return StringColumn(pa.array(values.astype(object), type=pa.large_string()))
    return StringColumn(pa.array(list(values), type=pa.large_string()))
