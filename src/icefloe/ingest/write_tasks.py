"""Split an ingest into tasks that share no chunk, and run one task."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from icefloe.codec_pipeline import enable_variable_grids
from icefloe.errors import InvalidInputError
from icefloe.ingest.access import SourceAccess, listing_version, local_path
from icefloe.ingest.array_plan import ArrayPlan, convert_values, parse_fill_document
from icefloe.ingest.catalogue import SourceRun
from icefloe.ingest.cf import packing_of
from icefloe.ingest.chunk_grids import (
    ChunkRegion,
    chunk_region,
    concatenate_tables,
    expand_table,
    grid_shape,
    region_shape,
    shift_table,
)
from icefloe.ingest.members import encoding_difference
from icefloe.ingest.parsers.registry import OpenSource, open_source
from icefloe.ingest.source_model import SourceFile, SourceVariable, digest_values
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.zarr_document import ChunkLengths
from icefloe.storage.requests import normal_etag

Window = Mapping[str, tuple[int, int]]
"""[first, end) by dimension. Other dimensions are complete."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file with its origin along each joined dimension, and its variables by array path."""

    file: SourceFile
    format: str
    origin: Mapping[str, int]
    variables: Mapping[str, SourceVariable]
    run: SourceRun | None = None
    """The sources that it stands for, if they are planned like one file."""

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What tells it apart from other files, and from other parts of the same file."""
        return self.file.url, tuple(self.origin.values())

    @property
    def count(self) -> int:
        """The number of files."""
        return 1 if self.run is None else len(self.run)

    def files(self, window: Window) -> list[PlacedFile]:
        """Return the files of a run that have cells in a window. A single file is returned as it is."""
        run = self.run
        if run is None:
            return [self]
        origin, variables = self.origin[run.dim], self._of_files(1)
        return [
            PlacedFile(run.file(i), self.format, {**self.origin, run.dim: origin + i * run.length}, variables)
            for i in self._between(window)
        ]

    def within(self, window: Window) -> PlacedFile:
        """Return the part of a run that has cells in a window. A single file is returned as it is."""
        if self.run is None:
            return self
        chosen = self._between(window)
        return self.take(chosen.start, chosen.stop)

    def take(self, first: int, end: int) -> PlacedFile:
        """Return the files [first, end) of a run as a run."""
        run = self.run
        if run is None or (first, end) == (0, len(run)):
            return self
        origin = {**self.origin, run.dim: self.origin[run.dim] + first * run.length}
        return PlacedFile(run.file(first), self.format, origin, self._of_files(end - first), run.take(first, end))

    def _between(self, window: Window) -> range:
        """Return the indexes of the files of a run that have cells in a window."""
        run = self.run
        assert run is not None
        origin = self.origin[run.dim]
        first, end = window.get(run.dim, (origin, origin + len(run) * run.length))
        return run.between(first - origin, end - origin)

    def _of_files(self, count: int) -> dict[str, SourceVariable]:
        """Return the variables of some files of a run."""
        run, variables = self.run, dict(self.variables)
        assert run is not None
        for path, v in variables.items():
            lengths = zip(v.dims, v.shape, strict=True)
            variables[path] = replace(v, shape=tuple(count * run.length if d == run.dim else n for d, n in lengths))
        return variables


@dataclass(frozen=True, slots=True)
class IngestTask:
    """A part of an ingest: cells of arrays (native), or references of files (virtual).

    Tasks share no chunks. They can run in any order and in any process.

    Parameters
    ----------
    id
        The number of the task.
    kind
        `native` or `virtual`.
    arrays
        The paths of the arrays.
    window
        The cells as [first, end) by dimension. Other dimensions are whole.
    files
        The files and their origins.
    bytes
        The decoded bytes.

    Examples
    --------
    >>> IngestTask(0, "native", ("t",), {"time": (0, 10)}, (), 80).window
    {'time': (0, 10)}
    """

    id: int
    kind: Literal["native", "virtual"]
    arrays: tuple[str, ...]
    window: Window
    files: tuple[PlacedFile, ...]
    bytes: int

    def of_files(self) -> IngestTask:
        """Return the same task with the files of runs.

        Returns
        -------
        IngestTask
            The task.

        Examples
        --------
        >>> IngestTask(0, "native", ("t",), {"time": (0, 10)}, (), 80).of_files().files
        ()
        """
        if all(placed.run is None for placed in self.files):
            return self
        return replace(self, files=tuple(file for placed in self.files for file in placed.files(self.window)))


@dataclass(frozen=True, slots=True)
class RepeatedVariable:
    """A variable that must have the same values in two files, or in a file and in the repository.

    The array has the values of `kept`. None is the repository.
    """

    path: str
    kept: PlacedFile | None
    other: PlacedFile
    digest: str | None = None
    """The hash of the stored values of `other`, if the schema has it."""
    region: ChunkRegion | None = None
    """The cells of the repository that `other` must be equal to. None is the whole array."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of each joined dimension that the ingest writes."""

    bounds: Mapping[str, tuple[int, int]]


def plan_native_tasks(
    arrays: Sequence[ArrayPlan], files: Sequence[PlacedFile], extent: Extent, task_bytes: int
) -> Iterator[tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]]:
    """Yield arrays, window, files and bytes of each native task. Windows end at chunk or extent bounds."""
    layers: dict[tuple[tuple[str, ChunkLengths], ...], list[ArrayPlan]] = {}
    for array in arrays:
        key = tuple((d, each) for d, each in zip(array.dims, array.grid, strict=True) if d in array.joined)
        layers.setdefault(key, []).append(array)
    for key, layer in layers.items():
        placed = _LayerFiles(layer, [d for d, _ in key], files)
        for group, window in _windows(layer, dict(key), extent, task_bytes):
            chosen = placed.meeting(group, window)
            if chosen:
                size = sum(_window_bytes(array, window) for array in group)
                yield tuple(array.path for array in group), window, chosen, size


class _LayerFiles:
    """The files of a layer, with their boxes along the joined dimensions as columns."""

    def __init__(self, layer: Sequence[ArrayPlan], dims: Sequence[str], files: Sequence[PlacedFile]) -> None:
        paths = [array.path for array in layer]
        self._files = [f for f in files if any(p in f.variables for p in paths)]
        self._dims = dims
        boxes = [_box(f, next(f.variables[p] for p in paths if p in f.variables), dims) for f in self._files]
        self._boxes = np.array(boxes, dtype=np.int64).reshape(len(self._files), len(dims), 2)

    def meeting(self, group: Sequence[ArrayPlan], window: Window) -> tuple[PlacedFile, ...]:
        """Return the files that have cells of the group's arrays in a window."""
        low = np.array([window[d][0] for d in self._dims], dtype=np.int64)
        high = np.array([window[d][1] for d in self._dims], dtype=np.int64)
        inside = ((self._boxes[:, :, 0] < high) & (self._boxes[:, :, 1] > low)).all(axis=1)
        found = [self._files[i] for i in np.flatnonzero(inside)]
        return tuple(f.within(window) for f in found if any(array.path in f.variables for array in group))


def _box(file: PlacedFile, variable: SourceVariable, dims: Sequence[str]) -> list[tuple[int, int]]:
    lengths = dict(zip(variable.dims, variable.shape, strict=True))
    return [(file.origin.get(d, 0), file.origin.get(d, 0) + lengths[d]) for d in dims]


def _windows(
    layer: Sequence[ArrayPlan], joined: Mapping[str, ChunkLengths], extent: Extent, task_bytes: int
) -> Iterator[tuple[Sequence[ArrayPlan], Window]]:
    bounds = {d: extent.bounds[d] for d in joined}
    cell = sum(_cell_bytes(array, joined, bounds) for array in layer)
    if cell > 2 * task_bytes and len(layer) > 1:
        for array in layer:
            yield from _windows([array], joined, extent, task_bytes)
        return
    inner: Sequence[Window] = [{}]
    if cell > 2 * task_bytes:
        inner = _split_inner(layer[0], joined, cell / task_bytes)
    rows = max(1, int(task_bytes // max(1, cell)))
    ranges: list[list[tuple[int, int]]] = []
    for dim, lengths in joined.items():
        first, end = bounds[dim]
        low, high = lengths.index(first), lengths.count(end)
        # Rows are joined along the first dimension with several chunks. Other dimensions have one chunk per task.
        taken = min(rows, max(1, high - low))
        rows = max(1, rows // taken)
        ranges.append(
            [(max(lengths.start(i), first), min(lengths.start(i + taken), end)) for i in range(low, high, taken)]
        )
    for combination in itertools.product(*ranges):
        window = dict(zip(joined, combination, strict=True))
        for part in inner:
            yield layer, {**window, **part}


def _cell_bytes(array: ArrayPlan, joined: Mapping[str, ChunkLengths], bounds: Window) -> int:
    """Return the bytes of an array in one chunk row of the joined dimensions. Other dimensions are whole."""
    lengths = [
        min(joined[d].longest, bounds[d][1] - bounds[d][0]) if d in joined else n
        for d, n in zip(array.dims, array.shape, strict=True)
    ]
    return math.prod(lengths) * array.itemsize


def _split_inner(array: ArrayPlan, joined: Mapping[str, ChunkLengths], parts: float) -> list[Window]:
    """Return about `parts` windows over the other dimensions, at chunk bounds."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for dim, length, lengths in zip(array.dims, array.shape, array.grid, strict=True):
        if dim in joined or parts <= 1:
            continue
        count = lengths.count(length)
        pieces = min(count, math.ceil(parts))
        parts /= pieces
        step = -(-count // pieces)
        ranges[dim] = [(lengths.start(i), min(lengths.start(i + step), length)) for i in range(0, count, step)]
    return [dict(zip(ranges, combination, strict=True)) for combination in itertools.product(*ranges.values())]


def _window_bytes(array: ArrayPlan, window: Window) -> int:
    lengths = [
        (window[d][1] - window[d][0]) if d in window else n for d, n in zip(array.dims, array.shape, strict=True)
    ]
    return math.prod(lengths) * array.itemsize


def plan_virtual_tasks(
    arrays: Sequence[ArrayPlan], files: Sequence[PlacedFile], files_per_task: int, references_per_task: int = 1 << 18
) -> Iterator[tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]]:
    """Yield tasks with limited numbers of files and estimated references."""
    paths = {a.path for a in arrays}
    batch: list[PlacedFile] = []
    count = references = 0
    for file in files:
        own = [file.variables[p] for p in paths if p in file.variables]
        if not own:
            continue
        # The files of a run have chunks of their own.
        each = sum(_reference_count(v) for v in own) // file.count
        taken = 0
        while taken < file.count:
            if batch and (count >= files_per_task or references + each > references_per_task):
                yield _virtual(paths, batch)
                batch, count, references = [], 0, 0
            room = min(files_per_task - count, (references_per_task - references) // max(1, each))
            end = min(file.count, taken + max(1, room))
            batch.append(file.take(taken, end))
            count, references, taken = count + end - taken, references + each * (end - taken), end
    if batch:
        yield _virtual(paths, batch)


def _virtual(
    paths: set[str], batch: Sequence[PlacedFile]
) -> tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]:
    used = sorted({p for f in batch for p in f.variables if p in paths})
    return tuple(used), {}, tuple(batch), sum(f.variables[p].nbytes for f in batch for p in used if p in f.variables)


def _reference_count(variable: SourceVariable) -> int:
    return int(np.prod([-(-n // c) for n, c in zip(variable.shape, variable.chunks, strict=True)], dtype=np.int64))


OPEN_FILES = 256
OPEN_PREPROCESSED = 4


class BlockSink(Protocol):
    """The interface through which tasks write. `SessionSink` implements it.

    Examples
    --------
    >>> from icefloe.ingest import SessionSink
    >>> all(hasattr(SessionSink, name) for name in ("write_block", "write_table"))
    True
    """

    def write_block(self, array_path: str, region: ChunkRegion, values: npt.NDArray[Any]) -> None:
        """Encode and write the values of a region. Partly covered chunks keep their other cells.

        Parameters
        ----------
        array_path
            The path of the array.
        region
            One slice per dimension.
        values
            The values, with the shape of the region.

        Examples
        --------
        >>> class Printer:
        ...     def write_block(self, array_path, region, values):
        ...         print(array_path, region, values)
        >>> Printer().write_block("t", (slice(0, 2),), np.array([1, 2]))
        t (slice(0, 2, None),) [1 2]
        """

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        """Set the chunk references of an array.

        Parameters
        ----------
        array_path
            The path of the array.
        table
            The references.

        Examples
        --------
        >>> class Counter:
        ...     def write_table(self, array_path, table):
        ...         print(array_path, len(table))
        >>> Counter().write_table("t", concatenate_tables([], 1))
        t 0
        """


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

    Attributes
    ----------
    task_id
        The number of the task.
    files
        The number of files.
    blocks
        The number of blocks written by value.
    references
        The number of references written.
    bytes
        The decoded bytes written by value.

    Examples
    --------
    >>> TaskResult(task_id=0, files=2, blocks=1, references=0, bytes=80).blocks
    1
    """

    task_id: int
    files: int
    blocks: int
    references: int
    bytes: int
    """Decoded bytes written by value."""


class _OpenFiles:
    """Sources that stay open while a task processes its arrays."""

    def __init__(self, access: SourceAccess, format: str | None) -> None:
        self._access = access
        self._format = format
        self._open: OrderedDict[str, OpenSource] = OrderedDict()
        self._opened: dict[str, SourceFile] = {}

    def get(self, file: SourceFile, format: str) -> OpenSource:
        if file.url in self._open:
            self._open.move_to_end(file.url)
            return self._open[file.url]
        source = open_source(file, self._access, format=self._format or format)
        self._open[file.url] = source
        self._opened[file.url] = file
        # A function may have read all values of a file into memory.
        if len(self._open) > (OPEN_FILES if self._access.preprocess is None else OPEN_PREPROCESSED):
            self._open.popitem(last=False)[1].close()
        return source

    def check_unchanged(self, *, remote: bool) -> None:
        """Refuse files that were replaced after they were listed. Their values may not belong to the coordinates.

        It is called after everything is read. Remote files need a request each. Only values need it, because references
        contain the version of the file. A Zarr store is a directory, which has no version of its own.
        """
        listed = [f for f in self._opened.values() if f.last_modified and f.size_bytes and not f.url.endswith("/")]
        for file in listed:
            if local_path(file.url) is not None:
                _check_version(file, self._access.describe(file.url))
        far = [f for f in listed if local_path(f.url) is None] if remote else []
        if far:
            with ThreadPoolExecutor(_CHECKING_THREADS) as pool:
                for file, now in zip(far, pool.map(lambda f: self._access.describe(f.url), far), strict=True):
                    _check_version(file, now)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


_CHECKING_THREADS = 16


def _check_version(listed: SourceFile, now: SourceFile) -> None:
    is_same = (listed.size_bytes, listed.last_modified) == (now.size_bytes, now.last_modified)
    if listed.version is not None and now.version is not None:
        is_same = is_same and listed.version == now.version
    if listed.etag is not None and now.etag is not None:
        is_same = normal_etag(listed.etag) == normal_etag(now.etag)
    if not is_same:
        raise _changed(listed.url)


def _changed(url: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} changed while it was ingested. Nothing was committed. Run the ingest again when the file is complete",
        url=url,
    )


def check_stores(stores: Sequence[SourceFile], access: SourceAccess) -> None:
    """Refuse Zarr stores of which an object was replaced, added or removed since their schemas were read.

    Call this before the commit. It lists every store once more.
    """
    if not stores:
        return
    with ThreadPoolExecutor(_CHECKING_THREADS) as pool:
        for file, now in zip(
            stores, pool.map(lambda f: listing_version(access.list_files(f.url)), stores), strict=True
        ):
            if file.version != now:
                raise _changed(file.url)


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
    """Run one task of a plan.

    Parameters
    ----------
    task
        The task.
    arrays
        The arrays of the plan, at least those of the task.
    sink
        Where blocks and references are written.
    access
        How sources are read. The default uses the environment.
    format
        The parser. None uses the one of the plan.

    Returns
    -------
    TaskResult
        The counts of the task.

    Examples
    --------
    >>> import icefloe, xarray
    >>> from icefloe.ingest import IngestOptions, SessionSink, expand_sources, parse_schema, plan_ingest
    >>> xarray.Dataset({"t": (("y", "x"), [[1.0, 2.0]])}).to_netcdf("task.nc")
    >>> plan = plan_ingest([parse_schema(file) for file in expand_sources("task.nc")], IngestOptions())
    >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    >>> sink = SessionSink(session)
    >>> sink.begin(plan)
    >>> [run_task(task, plan.arrays, sink).blocks for task in plan.tasks]
    [1]
    """
    if not all(arrays[path].is_regular for path in task.arrays):
        # A plan has such arrays only if they are enabled where it was made. A worker has settings of its own.
        enable_variable_grids()
    with _opened(access or SourceAccess(), format) as files:
        write = _write_values if task.kind == "native" else _write_references
        try:
            counts = [write(task, arrays[path], sink, files) for path in task.arrays]
        except Exception:
            # A file that was replaced may look broken.
            files.check_unchanged(remote=True)
            raise
        blocks, references, size = (sum(c[i] for c in counts) for i in range(3))
        files.check_unchanged(remote=blocks > 0)
    return TaskResult(task.id, len(task.files), blocks, references, size)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The cells that one file contributes to a window."""

    placed: PlacedFile
    variable: SourceVariable
    source: ChunkRegion
    target: ChunkRegion


def _window_region(array: ArrayPlan, task: IngestTask) -> ChunkRegion:
    return tuple(
        slice(*task.window[d]) if d in task.window else slice(0, n)
        for d, n in zip(array.dims, array.shape, strict=True)
    )


def plan_pieces(array: ArrayPlan, task: IngestTask) -> list[_Piece]:
    """Return which cells of which file go to which cells of the window of a task."""
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
        # Cells that no file has keep their values.
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


def read_values(source: OpenSource, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
    """Read the stored values of a region of a variable, with the dimensions along which files are stacked."""
    if variable.whole is not None:
        moved = zip(region, variable.first, strict=True)
        region = tuple(slice(part.start + first, part.stop + first) for part, first in moved)
        return read_values(source, variable.whole, region)
    if variable.stacked:
        values = np.asarray(read_values(source, variable.in_file(), region[variable.stacked :]))
        return values[(np.newaxis,) * variable.stacked]
    return _read_arranged(source, variable, region) if variable.order else source.values(variable, region)


def _read_arranged(source: OpenSource, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
    """Read a region of a variable whose cells are used in another order than that of the file."""
    taken: list[npt.NDArray[np.int64]] = []
    spans: list[slice] = []
    for dim, part in zip(variable.dims, region, strict=True):
        order = variable.order.get(dim)
        cells = np.arange(part.start, part.stop) if order is None else np.array(order[part.start : part.stop])
        spans.append(slice(int(cells.min()), int(cells.max()) + 1) if len(cells) else part)
        taken.append(cells - spans[-1].start)
    values = source.values(variable, tuple(spans))[np.ix_(*taken)]
    for axis, (dim, part) in enumerate(zip(variable.dims, region, strict=True)):
        if dim in variable.added:
            added = np.array(variable.added[dim][part.start : part.stop], dtype=values.dtype)
            values = values + added.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    return values


COMPARED_BLOCK_BYTES = 16 << 20
"""Values are compared in blocks of about this size."""


def digest_variables(
    placed: PlacedFile, arrays: Mapping[str, ArrayPlan], access: SourceAccess, format: str | None
) -> dict[str, str]:
    """Return hashes of variables of a file, by array path. Values that are equal in the array have the same hash."""
    with _opened(access, format) as files:
        found = {path: _digest_variable(placed, arrays[path], files) for path in placed.variables}
        files.check_unchanged(remote=False)
    return found


def _digest_variable(placed: PlacedFile, array: ArrayPlan, files: _OpenFiles) -> str:
    variable = placed.variables[array.path]
    digest = hashlib.blake2b(digest_size=16)
    whole = tuple(slice(0, n) for n in variable.shape)
    if not whole:
        _update(digest, _read(_Piece(placed, variable, whole, whole), array, files))
        return digest.hexdigest()
    # Rows of whole chunks, so that no chunk is decoded twice.
    step = max(1, variable.chunks[0])
    row_bytes = max(1, variable.nbytes // max(1, variable.shape[0]))
    rows = max(1, COMPARED_BLOCK_BYTES // (row_bytes * step)) * step
    for first in range(0, variable.shape[0], rows):
        region = (slice(first, min(first + rows, variable.shape[0])), *whole[1:])
        _update(digest, _read(_Piece(placed, variable, region, region), array, files))
    return digest.hexdigest()


def _update(digest: Any, values: npt.NDArray[Any]) -> None:
    """Add values in C order, so that the hash does not depend on the blocks."""
    if values.dtype.kind in "OT":
        for text in values.reshape(-1).tolist():
            encoded = str(text).encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return
    if values.dtype.kind in "fc":
        # Zeros of both signs are equal. Every NaN counts as the same value.
        plain = values.astype(values.dtype.newbyteorder("<")) + values.dtype.type(0)
        values = np.where(np.isnan(plain), values.dtype.type(np.nan), plain)
    digest.update(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False)).tobytes())


class Comparison(Protocol):
    """How repeated variables are read for a comparison."""

    def stored(self, path: str, region: ChunkRegion | None = None) -> npt.NDArray[Any]:
        """Return the values of an array of the repository, or of a region of it."""

    def digests(self, files: Sequence[PlacedFile], arrays: Mapping[str, ArrayPlan]) -> Sequence[Mapping[str, str]]:
        """Return the result of `digest_variables` for each file."""


def check_repeated(
    repeated: Sequence[RepeatedVariable], arrays: Mapping[str, ArrayPlan], comparison: Comparison
) -> None:
    """Compare every variable that must be the same in two files, or in a file and in the repository.

    Raises
    ------
    InvalidInputError
        The values differ.
    """
    needed: dict[str, PlacedFile] = {}
    stored: dict[int, str] = {}
    compared: list[RepeatedVariable] = []
    for each in repeated:
        array = arrays.get(each.path)
        if array is None:
            continue
        if each.kept is None:
            values = comparison.stored(each.path, each.region)
            if _is_stored(each, array, values):
                continue
            stored[len(compared)] = _digest_stored(values)
        compared.append(each)
        for placed in (each.kept, each.other):
            if placed is not None:
                known = needed.setdefault(placed.file.url, replace(placed, variables={}))
                needed[placed.file.url] = replace(known, variables={**known.variables, **placed.variables})
    found = dict(zip(needed, comparison.digests(list(needed.values()), arrays), strict=True))
    for index, each in enumerate(compared):
        ours = stored[index] if each.kept is None else found[each.kept.file.url][each.path]
        if ours == found[each.other.file.url][each.path]:
            continue
        kept = "the repository" if each.kept is None else each.kept.file.url
        raise InvalidInputError(
            f"/{each.path} has other values in {each.other.file.url} than in {kept}, at the same "
            "coordinates. Leave one of the files out, or drop the variable with drop_variables",
            path=each.path,
            url=each.other.file.url,
        )


def _digest_stored(values: npt.NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    _update(digest, values)
    return digest.hexdigest()


def _is_stored(each: RepeatedVariable, array: ArrayPlan, values: npt.NDArray[Any]) -> bool:
    """Return whether hashes show that the repository has the stored values of a file, and that they mean the same."""
    variable = each.other.variables[each.path]
    return (
        each.digest is not None
        and means_the_same(variable, array.template)
        and digest_values(np.ascontiguousarray(values).reshape(-1)) == each.digest
    )


def means_the_same(left: SourceVariable, right: SourceVariable) -> bool:
    """Return whether equal stored values of two variables mean the same."""
    return left is right or (
        all(left.attributes.get(key) == right.attributes.get(key) for key in ("units", "calendar"))
        and packing_of(left.attributes, left.dtype) == packing_of(right.attributes, right.dtype)
    )


def _write_references(task: IngestTask, array: ArrayPlan, sink: BlockSink, files: _OpenFiles) -> tuple[int, int, int]:
    tables: list[ChunkTable] = []
    blocks = size = 0
    for placed in task.files:
        variable = placed.variables.get(array.path)
        if variable is None:
            continue
        source = files.get(placed.file, placed.format)
        varying = () if array.is_regular else array.joined
        if encoding_difference(array.template, variable, varying) is not None:
            for piece in _chunk_rows(placed, variable, array):
                values = _read(piece, array, files)
                sink.write_block(array.path, piece.target, values)
                blocks, size = blocks + 1, size + values.nbytes
            continue
        origin = [placed.origin.get(d, 0) if d in array.joined else 0 for d in array.dims]
        first = [lengths.index(o) for lengths, o in zip(array.grid, origin, strict=True)]
        # The plan may have shorter chunks of contiguous values than the schema.
        chunks = tuple(
            lengths.longest if lengths.is_regular else own
            for lengths, own in zip(array.grid, variable.chunks, strict=True)
        )
        fitted = replace(variable, chunks=chunks)
        found = source.references(fitted.in_file())
        table, by_value = found.table, found.by_value
        # A chunk that the file does not store replaces an existing chunk of the array.
        if not array.is_new or not _same_fill(variable, array):
            by_value = np.concatenate([by_value, _absent_chunks(fitted.in_file(), table, by_value)])
        for _ in range(variable.stacked):
            table, by_value = expand_table(table), np.insert(by_value, 0, 0, axis=1)
        if not array.is_regular:
            table, by_value = _without_padded(table, by_value, array, variable.shape, chunks, first)
        tables.append(shift_table(table, first))
        for coords in by_value:
            region = chunk_region(coords.tolist(), chunks, variable.shape)
            values = read_values(source, variable, region)
            sink.write_block(array.path, _shift(region, origin), values)
            blocks, size = blocks + 1, size + values.nbytes
    table = concatenate_tables(tables, len(array.dims))
    if len(table):
        sink.write_table(array.path, table)
    return blocks, len(table), size


def _without_padded(
    table: ChunkTable,
    by_value: npt.NDArray[np.uint32],
    array: ArrayPlan,
    shape: Sequence[int],
    chunks: Sequence[int],
    first: Sequence[int],
) -> tuple[ChunkTable, npt.NDArray[np.uint32]]:
    """Return the references of chunks that have the length of the array's chunk, and the coordinates of the others.

    A chunk at the end of a file is stored with its whole length, but the chunk of the array ends with the file.
    """
    is_padded = np.zeros(len(table), dtype=bool)
    for axis, (lengths, n, chunk) in enumerate(zip(array.grid, shape, chunks, strict=True)):
        last = (n - 1) // chunk
        if not lengths.is_regular and lengths.length(first[axis] + last) != chunk:
            is_padded |= table.coords[:, axis] == last
    if not is_padded.any():
        return table, by_value
    return take(table, np.flatnonzero(~is_padded)), np.concatenate([by_value, table.coords[is_padded]])


def _chunk_rows(placed: PlacedFile, variable: SourceVariable, array: ArrayPlan) -> Iterator[_Piece]:
    """Yield the cells of a file in rows of whole chunks of the array, about `COMPARED_BLOCK_BYTES` each."""
    if 0 in variable.shape:
        return
    origin = [placed.origin.get(d, 0) if d in array.joined else 0 for d in array.dims]
    whole = tuple(slice(0, n) for n in variable.shape)
    if not whole:
        yield _Piece(placed, variable, (), ())
        return
    row_bytes = max(1, variable.nbytes // variable.shape[0])
    lengths, end = array.grid[0], origin[0] + variable.shape[0]
    step = max(1, COMPARED_BLOCK_BYTES // (row_bytes * lengths.longest))
    for index in range(lengths.index(origin[0]), lengths.count(end), step):
        low, high = max(lengths.start(index), origin[0]), min(lengths.start(index + step), end)
        region = (slice(low - origin[0], high - origin[0]), *whole[1:])
        yield _Piece(placed, variable, region, _shift(region, origin))


def _same_fill(variable: SourceVariable, array: ArrayPlan) -> bool:
    """Return whether a missing chunk has the same value in the file and in the array."""
    if array.dtype == "string" or (variable.dtype == array.dtype and variable.fill_value == array.fill_value):
        return True
    own, other = parse_fill_document(variable.dtype, variable.fill_value), array.fill()
    return bool(own == other) or bool(own != own and other != other)


def _absent_chunks(
    variable: SourceVariable, table: ChunkTable, by_value: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Return the chunks that the file does not store. Their cells are the file's fill value."""
    grid = grid_shape(variable.shape, variable.chunks)
    is_absent = np.ones(grid, dtype=bool)
    for coords in (table.coords, by_value):
        is_absent[tuple(coords.T)] = False
    return np.argwhere(is_absent).astype(np.uint32).reshape(-1, len(grid))


def _shift(region: ChunkRegion, origin: Sequence[int]) -> ChunkRegion:
    return tuple(slice(s.start + o, s.stop + o) for s, o in zip(region, origin, strict=True))
