"""The nodes of a flatbuffers snapshot: read in columns, checked at once, made into values when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.ragged import texts_of
from icefloe.formats.flat.tables import Tables, Vectors, item_positions
from icefloe.ids import encode_base32_column
from icefloe.model.nodes import ArrayNode, Extents, GroupNode, ManifestRef, Node
from icefloe.model.paths import find_bad_path

_ID, _PATH, _USER_DATA, _DATA_TYPE, _DATA = range(5)
_SHAPE, _DIMENSION_NAMES, _MANIFESTS, _SHAPE_V2 = range(4)
ARRAY, GROUP = 1, 2


class FlatNodes(Mapping[str, Node]):
    """Nodes by path, in the order of raw UTF-8 bytes."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._rows = {path: row for row, path in enumerate(columns.paths)}
        self._made: dict[str, Node] = {}

    def __getitem__(self, path: str) -> Node:
        made = self._made.get(path)
        if made is None:
            made = self._made[path] = self._columns.make(self._rows[path], path)
        return made

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


class NodeColumns:
    """Everything a snapshot says of its nodes, as columns whose every offset has been checked."""

    def __init__(self, nodes: Tables) -> None:
        body = nodes.body
        self._data = body.data
        ids = nodes.struct(_ID, 8)
        paths = [path or "" for path in texts_of(body, nodes.strings(_PATH))]
        documents = nodes.vectors(_USER_DATA, 1, 1)
        kinds = nodes.scalar(_DATA_TYPE, "u1")
        if not bool(np.isin(kinds, (ARRAY, GROUP)).all()):
            raise body.corrupt("a node is neither an array nor a group")
        is_array = kinds == ARRAY
        nodes.child(_DATA)
        arrays = Tables(body, nodes.targets(_DATA, required=True)[is_array])
        order = _path_order(body, paths)
        self.paths = [paths[row] for row in order]
        self._ids = [ids[row].tobytes() for row in order]
        self._starts = documents.starts[order].tolist()
        self._ends = (documents.starts + documents.counts)[order].tolist()
        array_rows = np.where(is_array, np.cumsum(is_array) - 1, -1)
        self._array_rows = array_rows[order].tolist()
        self._shapes = ShapeColumns(arrays)
        self._names = NameColumns(arrays, self._shapes.ranks)
        self._manifests = ManifestColumns(arrays, self._shapes.ranks)

    def make(self, row: int, path: str) -> Node:
        """The value of one node."""
        document = self._data[self._starts[row] : self._ends[row]]
        array = self._array_rows[row]
        if array < 0:
            return GroupNode(self._ids[row], path, document)
        shape, grid = self._shapes.of(array)
        return ArrayNode(self._ids[row], path, document, shape, grid, self._names.of(array), self._manifests.of(array))


def _path_order(body: Body, paths: list[str]) -> list[int]:
    """Rows by raw UTF-8 bytes of the path; files of correct writers are in that order already."""
    keys = [path.encode() for path in paths]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if any(keys[a] == keys[b] for a, b in itertools.pairwise(order)):
        raise body.corrupt("a path appears twice")
    bad = find_bad_path(paths)
    if bad is not None:
        raise body.corrupt(f"{bad!r:.80} is not the path of a node")
    return order


class ShapeColumns:
    """Shape and number of chunks per dimension of every array, in the form of either generation."""

    def __init__(self, arrays: Tables) -> None:
        body = arrays.body
        newer = arrays.has(_SHAPE_V2)
        older = arrays.vectors(_SHAPE, 16, 8)
        dimensions, held = arrays.tables(_SHAPE_V2, required=False)
        older = Vectors(older.starts, np.where(newer, 0, older.counts))
        at = item_positions(body, older, 16)
        lengths = body.read(at, "<u8", alignment=8)
        chunks = body.read(at + 8, "<u8", alignment=8)
        if bool(((lengths > 0) & (chunks == 0)).any()):
            raise body.corrupt("an array has chunks of length zero")
        whole = np.where(lengths > 0, (lengths - 1) // np.maximum(chunks, 1) + 1, 0)
        self._older = (lengths.tolist(), whole.tolist(), older.bounds().tolist())
        counts = dimensions.scalar(1, "<u4")
        self._newer = (dimensions.scalar(0, "<u8").tolist(), counts.tolist(), held.bounds().tolist())
        self._is_newer = newer.tolist()
        self.ranks: npt.NDArray[np.int64] = np.where(newer, held.counts, older.counts)

    def of(self, array: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        lengths, counts, bounds = self._newer if self._is_newer[array] else self._older
        here = slice(bounds[array], bounds[array + 1])
        return tuple(lengths[here]), tuple(counts[here])


class NameColumns:
    """Dimension names of every array; an absent or empty name is none."""

    def __init__(self, arrays: Tables, ranks: npt.NDArray[np.int64]) -> None:
        names, held = arrays.tables(_DIMENSION_NAMES, required=False)
        if bool((held.present & (held.counts != ranks)).any()):
            raise arrays.body.corrupt("an array has another number of dimension names than of dimensions")
        self._texts = [text or None for text in texts_of(arrays.body, names.strings(0, required=False))]
        self._bounds = held.bounds().tolist()
        self._present = held.present.tolist()

    def of(self, array: int) -> tuple[str | None, ...] | None:
        if not self._present[array]:
            return None
        return tuple(self._texts[self._bounds[array] : self._bounds[array + 1]])


def _differ(counts: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]) -> bool:
    return bool(((counts > 0) & (counts != ranks)).any())


class ManifestColumns:
    """The manifests of every array, and the box of the grid that each speaks for."""

    def __init__(self, arrays: Tables, ranks: npt.NDArray[np.int64] | None, slot: int = _MANIFESTS) -> None:
        body = arrays.body
        refs, held = arrays.tables(slot)
        ids = encode_base32_column(refs.struct(0, 12))
        self._ids = ids.tobytes().decode("ascii")
        self._width = ids.shape[1]
        extents = refs.vectors(1, 8, 4)
        if ranks is not None and _differ(extents.counts, np.repeat(ranks, held.counts)):
            raise body.corrupt("the extents of a manifest have another rank than the array")
        at = item_positions(body, extents, 8)
        self._first = body.read(at, "<u4").tolist()
        self._end = body.read(at + 4, "<u4").tolist()
        self._boxes = extents.bounds().tolist()
        self._bounds = held.bounds().tolist()

    def of(self, array: int) -> tuple[ManifestRef, ...]:
        return tuple(
            ManifestRef(self._ids[row * self._width : (row + 1) * self._width], self._box(row))
            for row in range(self._bounds[array], self._bounds[array + 1])
        )

    def _box(self, row: int) -> Extents:
        here = slice(self._boxes[row], self._boxes[row + 1])
        return tuple(zip(self._first[here], self._end[here], strict=True))
