"""One task carried out, wherever it runs: values or references of some files go to a sink."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.array_plan import ArrayPlan, convert_values, parse_fill_document
from icefloe.ingest.chunk_grids import (
    Region,
    chunk_region,
    concatenate_tables,
    expand_table,
    grid_shape,
    region_shape,
    shift_table,
)
from icefloe.ingest.parsers.contract import OpenSource
from icefloe.ingest.parsers.registry import open_source
from icefloe.ingest.source_model import SourceFile, SourceVariable
from icefloe.ingest.tasks import IngestTask, PlacedFile
from icefloe.model.chunk_table import ChunkTable

OPEN_FILES = 256


class BlockSink(Protocol):
    """Where a task's work goes."""

    def write_block(self, array_path: str, region: Region, values: npt.NDArray[Any]) -> None:
        """Encode and write the values of a region; chunks it covers in part keep their other cells."""

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        """Set the references of an array's chunks."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did, in a few numbers."""

    task_id: int
    files: int
    blocks: int
    references: int
    bytes: int
    """Decoded bytes written by value."""


class _OpenFiles:
    """Sources that stay open while a task goes through its arrays."""

    def __init__(self, access: SourceAccess, format: str | None) -> None:
        self._access = access
        self._format = format
        self._open: OrderedDict[str, OpenSource] = OrderedDict()

    def get(self, file: SourceFile, format: str) -> OpenSource:
        if file.url in self._open:
            self._open.move_to_end(file.url)
            return self._open[file.url]
        source = open_source(file, self._access, format=self._format or format)
        self._open[file.url] = source
        if len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return source

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@contextmanager
def _opened(access: SourceAccess, format: str | None) -> Iterator[_OpenFiles]:
    files = _OpenFiles(access, format)
    try:
        yield files
    finally:
        files.close()


def run_task(
    task: IngestTask,
    arrays: Mapping[str, ArrayPlan],
    sink: BlockSink,
    *,
    access: SourceAccess | None = None,
    format: str | None = None,
) -> TaskResult:
    """Carry out one task of a plan; `arrays` are the plan's (those of the task suffice)."""
    with _opened(access or SourceAccess(), format) as files:
        if task.kind == "native":
            counts = [_write_values(task, arrays[path], sink, files) for path in task.arrays]
        else:
            counts = [_write_references(task, arrays[path], sink, files) for path in task.arrays]
    blocks, references, size = (sum(c[i] for c in counts) for i in range(3))
    return TaskResult(task.id, len(task.files), blocks, references, size)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The cells that one file brings to a window."""

    placed: PlacedFile
    variable: SourceVariable
    source: Region
    target: Region


def _window_region(array: ArrayPlan, task: IngestTask) -> Region:
    return tuple(
        slice(*task.window[d]) if d in task.window else slice(0, n)
        for d, n in zip(array.dims, array.shape, strict=True)
    )


def plan_pieces(array: ArrayPlan, task: IngestTask) -> list[_Piece]:
    """Which cells of which file belong where in the window of a task."""
    window = _window_region(array, task)
    pieces: list[_Piece] = []
    for placed in task.files:
        variable = placed.variables.get(array.path)
        if variable is None:
            continue
        source, target = [], []
        for dim, length, part in zip(variable.dims, variable.shape, window, strict=True):
            origin = placed.origin.get(dim, 0) if dim in array.joined else 0
            low, high = max(part.start, origin), min(part.stop, origin + length)
            source.append(slice(low - origin, high - origin))
            target.append(slice(low, high))
        if all(s.stop > s.start for s in target):
            pieces.append(_Piece(placed, variable, tuple(source), tuple(target)))
    return pieces


def _write_values(task: IngestTask, array: ArrayPlan, sink: BlockSink, files: _OpenFiles) -> tuple[int, int, int]:
    pieces = plan_pieces(array, task)
    if not pieces:
        return 0, 0, 0
    window = _window_region(array, task)
    shape = region_shape(window)
    covered = sum(int(np.prod(region_shape(p.target), dtype=np.int64)) for p in pieces)
    whole = int(np.prod(shape, dtype=np.int64))
    if len(pieces) == 1 and covered == whole:
        sink.write_block(array.path, window, _read(pieces[0], array, files))
    elif covered < whole and not array.is_new:
        # Cells that no file covers keep what the repository has there.
        for piece in pieces:
            sink.write_block(array.path, piece.target, _read(piece, array, files))
        return len(pieces), 0, covered * array.itemsize
    else:
        dtype: Any = object if array.dtype == "string" else array.dtype
        block = np.empty(shape, dtype) if covered == whole else np.full(shape, array.fill(), dtype)
        for piece in pieces:
            inside = tuple(
                slice(t.start - w.start, t.stop - w.start) for t, w in zip(piece.target, window, strict=True)
            )
            block[inside] = _read(piece, array, files)
        sink.write_block(array.path, window, block)
    return 1, 0, covered * array.itemsize


def _read(piece: _Piece, array: ArrayPlan, files: _OpenFiles) -> npt.NDArray[Any]:
    source = files.get(piece.placed.file, piece.placed.format)
    values = read_values(source, piece.variable, piece.source)
    try:
        return convert_values(values, piece.variable, array)
    except InvalidInputError as error:
        raise InvalidInputError(f"{piece.placed.file.url}: {error}", url=piece.placed.file.url) from error


def read_values(source: OpenSource, variable: SourceVariable, region: Region) -> npt.NDArray[Any]:
    """Stored values of a region of a variable, stacked ones included."""
    if variable.is_stacked:
        return source.values(variable.in_file(), region[1:])[np.newaxis]
    return source.values(variable, region)


def _write_references(task: IngestTask, array: ArrayPlan, sink: BlockSink, files: _OpenFiles) -> tuple[int, int, int]:
    tables: list[ChunkTable] = []
    blocks = size = 0
    for placed in task.files:
        variable = placed.variables.get(array.path)
        if variable is None:
            continue
        source = files.get(placed.file, placed.format)
        # The plan may cut contiguous values shorter than the file's own description does.
        fitted = replace(variable, chunks=array.chunks)
        found = source.references(fitted.in_file())
        table, by_value = found.table, found.by_value
        if not _same_fill(variable, array):
            by_value = np.concatenate([by_value, _absent_chunks(fitted.in_file(), table, by_value)])
        if variable.is_stacked:
            table, by_value = expand_table(table), np.insert(by_value, 0, 0, axis=1)
        origin = [placed.origin.get(d, 0) if d in array.joined else 0 for d in array.dims]
        tables.append(shift_table(table, [o // c for o, c in zip(origin, array.chunks, strict=True)]))
        for coords in by_value:
            region = chunk_region(coords.tolist(), array.chunks, variable.shape)
            values = read_values(source, variable, region)
            sink.write_block(array.path, _shift(region, origin), values)
            blocks, size = blocks + 1, size + values.nbytes
    table = concatenate_tables(tables, len(array.dims))
    if len(table):
        sink.write_table(array.path, table)
    return blocks, len(table), size


def _same_fill(variable: SourceVariable, array: ArrayPlan) -> bool:
    """Whether a chunk that is nowhere reads the same in the file and in the array."""
    if array.dtype == "string":
        return True
    own, other = parse_fill_document(variable.dtype, variable.fill_value), array.fill()
    return bool(own == other) or bool(own != own and other != other)


def _absent_chunks(
    variable: SourceVariable, table: ChunkTable, by_value: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Chunks that the file never stored: their cells are the file's fill value."""
    grid = grid_shape(variable.shape, variable.chunks)
    is_absent = np.ones(grid, dtype=bool)
    for coords in (table.coords, by_value):
        is_absent[tuple(coords.T)] = False
    return np.argwhere(is_absent).astype(np.uint32).reshape(-1, len(grid))


def _shift(region: Region, origin: Sequence[int]) -> Region:
    return tuple(slice(s.start + o, s.stop + o) for s, o in zip(region, origin, strict=True))
