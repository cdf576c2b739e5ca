"""A few references of one array in a manifest of many, found while the rows of the others stay undecoded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.formats.contract import OpenManifest
from icefloe.formats.repository.manifest_decoding import (
    HintError,
    RowPlan,
    decode_manifest_body,
    decode_plan,
    read_plan,
)
from icefloe.formats.repository.rows import NODE_TEXT_BYTES
from icefloe.ids import NodeId, encode_base32
from icefloe.model.chunk_table import ChunkRef, ChunkTable
from icefloe.model.coordinates import rows_inside
from icefloe.model.snapshot import Manifest

_NODE_TEXT_AT = 2
_ARRAYS_PER_WHOLE = 16
"""Reading one of so many arrays alone is quicker than decoding all; when that many were asked for, all are decoded."""


class RowManifest(OpenManifest):
    """The body of a manifest file, and where the rows of every array begin if its hint says so."""

    def __init__(self, body: bytes, stored_bytes: int | None = None) -> None:
        self._body = body
        self._stored_bytes = stored_bytes
        self._plan: RowPlan | None = None
        with contextlib.suppress(HintError):
            self._plan = read_plan(body)
        self._found: dict[NodeId, ChunkTable | None] = {}
        self._arrays_left = 0
        self._starts: list[int] = []
        if self._plan is not None:
            self._arrays_left = len(self._plan.counts) // _ARRAYS_PER_WHOLE
            starts = self._plan.row_starts(np.cumsum(self._plan.counts) - self._plan.counts)
            self._starts = starts.tolist() if _in_order(body, starts) else []

    @property
    def nbytes(self) -> int:
        # The plan holds two numbers a row, which takes about as much again.
        return 2 * len(self._body)

    def decode(self) -> Manifest:
        return decode_manifest_body(self._body, self._stored_bytes)

    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        table = self._table(node_id)
        if table is None or any(len(coords) != table.ndim for coords in wanted):
            return None
        found = []
        for coords in wanted:
            rows = np.flatnonzero(rows_inside(table.coords, coords, [c + 1 for c in coords]))
            if not len(rows):
                return None  # the search believes in the order of the arrays; that there is no such row needs a proof
            found.append(table.row(int(rows[0])))
        return found

    def _table(self, node_id: NodeId) -> ChunkTable | None:
        if node_id in self._found:
            return self._found[node_id]
        if self._plan is None or self._arrays_left <= 0:
            return None
        self._arrays_left -= 1
        index = self._search(encode_base32(node_id).encode())
        table = None
        if index is not None:
            with contextlib.suppress(HintError):
                table = decode_plan(self._body, self._plan.of_array(index)).tables.get(node_id)
        self._found[node_id] = table
        return table

    def _search(self, text: bytes) -> int | None:
        """The array of that id, by bisection: arrays are in the order of their ids."""
        low, high = 0, len(self._starts)
        while low < high:
            middle = (low + high) // 2
            start = self._starts[middle] + _NODE_TEXT_AT
            found = self._body[start : start + NODE_TEXT_BYTES]
            if found == text:
                return middle
            if found < text:
                low = middle + 1
            else:
                high = middle
        return None


def _in_order(body: bytes, starts: npt.NDArray[np.int64]) -> bool:
    """Whether the ids of the arrays ascend, each once."""
    if len(starts) < 2:
        return True
    count = len(body) - _NODE_TEXT_AT - NODE_TEXT_BYTES + 1
    texts: npt.NDArray[Any] = np.ndarray(
        (count,), dtype=f"S{NODE_TEXT_BYTES}", buffer=body, offset=_NODE_TEXT_AT, strides=(1,)
    )[starts]
    return bool((texts[1:] > texts[:-1]).all())
