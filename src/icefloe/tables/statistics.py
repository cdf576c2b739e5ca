"""Statistics per chunk: ranges and totals. They are stored in the repository and valid only for unchanged chunks.

A row describes a chunk *reference*, not a snapshot. It is valid for every branch, tag and later snapshot whose array
refers to the same bytes. Other readers ignore the folder, and garbage collection does not delete it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.blocking import run_blocking
from icefloe.errors import ObjectNotFoundError
from icefloe.ids import encode_base32
from icefloe.lazy_exports import lazy_module
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import ArrayNode
from icefloe.model.zarr_document import ChunkLengths
from icefloe.session.session import Session
from icefloe.storage.contract import Storage
from icefloe.tables.columns import ColumnCoding, coding_of, has_one_missing_value
from icefloe.tables.evaluate import ValueRanges
from icefloe.tables.grids import Variable, chunk_lengths, open_array

if TYPE_CHECKING:
    import pyarrow.parquet as pq
else:
    pq = lazy_module("pyarrow.parquet")

WIDTH = 33
"""Bytes of a fingerprint: which object (16), offset (8), length (8), kind (1)."""
_ID = 16


def fingerprints(table: ChunkTable) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return a fingerprint per reference, and whether it can be trusted.

    A native object never changes. A virtual chunk is trusted only if its reference has the version of the file.
    """
    count = len(table)
    made = np.zeros((count, WIDTH), dtype=np.uint8)
    made[:, _ID : _ID + 8] = table.offset.astype("<u8").view(np.uint8).reshape(count, 8)
    made[:, _ID + 8 : _ID + 16] = table.length.astype("<u8").view(np.uint8).reshape(count, 8)
    made[:, -1] = table.kind
    sure = table.kind == ChunkKind.NATIVE
    if table.object_id is not None:
        width = min(_ID, table.object_id.shape[1])
        made[:, :width] = table.object_id[:, :width]
    inline = np.flatnonzero(table.kind == ChunkKind.INLINE)
    if len(inline):
        made[inline, _ID : _ID + 8] = 0
        data = memoryview(table.inline)
        bounds = np.stack([table.offset[inline], table.offset[inline] + table.length[inline]], axis=1).astype(np.int64)
        digests = b"".join(hashlib.blake2b(data[a:b], digest_size=_ID).digest() for a, b in bounds.tolist())
        made[inline, :_ID] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _ID)
        sure = sure | (table.kind == ChunkKind.INLINE)
    virtual = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
    if len(virtual):
        made[virtual, :_ID], known = _sources(table, virtual)
        sure[virtual] = known
    return made, sure


def _sources(table: ChunkTable, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return digests of the files of virtual chunks, one per file and version."""
    assert table.location is not None
    none = np.full(len(rows), -1, dtype=np.int64)
    etag = none if table.etag is None else table.etag[rows].astype(np.int64)
    modified = np.zeros(len(rows), dtype=np.int64)
    if table.last_modified is not None:
        modified = table.last_modified[rows].astype(np.int64)
    states = np.stack([table.location[rows].astype(np.int64), etag, modified], axis=1)
    unique, codes = np.unique(states, axis=0, return_inverse=True)
    digests = np.empty((len(unique), _ID), dtype=np.uint8)
    for number, (location, tag, time) in enumerate(unique.tolist()):
        text = f"{table.locations[location]}\n{table.etags[tag] if tag >= 0 else ''}\n{time}"
        digests[number] = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=_ID).digest(), dtype=np.uint8)
    return digests[codes.reshape(-1)], (etag >= 0) | (modified > 0)


FOLDER = "statistics"
_MOST_FILES = 8
_EXACT = 2.0**53
MEASURED = pa.schema(
    [
        ("chunk", pa.int64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("missing", pa.int64()),
        ("count", pa.int64()),
        ("total", pa.float64()),
    ]
)
SCHEMA = pa.schema([*MEASURED, ("reference", pa.binary(WIDTH))])
"""Columns of a file: the number of a chunk in C order, the statistics of its values, and a fingerprint of its bytes.

The total of values is null if it is not known exactly, and in files of earlier versions.
"""


def has_ranges(coding: ColumnCoding) -> bool:
    """Return whether the values of a column have a useful range."""
    kind = coding.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind))


@dataclass(frozen=True, slots=True)
class _LoadedRanges:
    """Ranges of an array at a snapshot, and the files that they were read from."""

    files: tuple[str, ...]
    ranges: ValueRanges
    is_complete: bool
    """Whether all chunks have a range. Later files cannot add any."""


_LOADED: WeakKeyDictionary[Session, dict[tuple[str, tuple[ChunkLengths, ...]], _LoadedRanges]] = WeakKeyDictionary()
"""Per read-only session and array. The chunks of a snapshot do not change, so a range stays valid."""


def load_ranges(session: Session, variable: Variable) -> ValueRanges | None:
    """Return the stored ranges of an array's chunks, or None if there are none.

    A read-only session reads them once, and again if there are new files and some chunks have no range yet.
    """
    if not has_ranges(variable.coding):
        return None
    loaded = _LOADED.setdefault(session, {}) if session.read_only else {}
    key = variable.path, variable.chunks
    known = loaded.get(key)
    if known is not None and known.is_complete:
        return known.ranges
    node = session.state.tree.array(variable.path)
    storage, folder = session.state.context.storage, _folder(node)
    files = run_blocking(_list_files(storage, folder))
    if known is not None and known.files == files:
        return known.ranges
    kept = run_blocking(_fetch_files(storage, folder, files)) if files else None
    if kept is None:
        return None
    ranges = _join(session, variable, *_chunks(session, variable), kept)
    loaded[key] = _LoadedRanges(files, ranges, bool(ranges.known.all()))
    return ranges


def missing_chunks(session: Session, variable: Variable) -> npt.NDArray[np.int64]:
    """Return the numbers of the chunks (in C order of the grid) without a range that can have one."""
    table, numbers = _chunks(session, variable)
    _, sure = fingerprints(table)
    kept = fetch_rows(session.state.context.storage, session.state.tree.array(variable.path))
    if kept is None:
        return numbers[sure]
    known = _join(session, variable, table, numbers, kept).known.reshape(-1)
    return numbers[sure & ~known[numbers]]


def _chunks(session: Session, variable: Variable) -> tuple[ChunkTable, npt.NDArray[np.int64]]:
    """Return the references of an array, and the numbers of their chunks in ascending order."""
    node = session.state.tree.array(variable.path)
    table = run_blocking(session.state.chunk_table(node))
    if not node.shape:
        return table, np.zeros(len(table), dtype=np.int64)
    grid = tuple(each.count(n) for each, n in zip(variable.chunks, node.shape, strict=True))
    outside = (table.coords >= np.array(grid)).any(axis=1)
    if outside.any():
        table = take(table, np.flatnonzero(~outside))
    return table, np.ravel_multi_index(tuple(table.coords.T.astype(np.int64)), grid).astype(np.int64)


def _join(
    session: Session, variable: Variable, table: ChunkTable, numbers: npt.NDArray[np.int64], kept: pa.Table
) -> ValueRanges:
    prints, sure = fingerprints(table)
    by_chunk = cells_of_chunks(session.state.tree.array(variable.path).shape, variable.chunks)
    cells = by_chunk.reshape(-1)
    row_of = np.full(len(cells), -1, dtype=np.int64)
    row_of[numbers] = np.arange(len(table))
    ranges = ValueRanges.unknown(len(cells))
    _never_written(session, variable, np.setdiff1d(np.arange(len(cells)), numbers), cells, ranges)
    chunk = kept.column("chunk").to_numpy().astype(np.int64)
    inside = chunk < len(cells)
    rows = np.where(inside, row_of[np.where(inside, chunk, 0)], -1)
    stored = np.frombuffer(b"".join(kept.column("reference").to_pylist()), dtype=np.uint8).reshape(-1, WIDTH)
    valid = rows >= 0
    valid[valid] &= sure[rows[valid]] & (prints[rows[valid]] == stored[valid]).all(axis=1)
    # If an array was resized, the chunks at its end have more or fewer cells than were measured.
    valid[valid] &= cells[chunk[valid]] == kept.column("count").to_numpy()[valid]
    at = chunk[valid]
    ranges.known[at] = True
    for name in ("low", "high", "count", "missing", "total"):
        column = kept.column(name).fill_null(np.nan) if name == "total" else kept.column(name)
        getattr(ranges, name)[at] = column.to_numpy()[valid]
    return ranges.reshape(by_chunk.shape)


def cells_of_chunks(shape: Sequence[int], chunks: Sequence[ChunkLengths]) -> npt.NDArray[np.int64]:
    """Return the number of cells in each chunk of the grid."""
    cells = np.ones((), dtype=np.int64)
    for length, lengths in zip(shape, chunks, strict=True):
        cells = np.multiply.outer(cells, np.diff(lengths.starts(length), append=length))
    return np.asarray(cells)


def _never_written(
    session: Session,
    variable: Variable,
    chunks: npt.NDArray[np.int64],
    cells: npt.NDArray[np.int64],
    ranges: ValueRanges,
) -> None:
    """Set the ranges of chunks that were never written. All their cells have the fill value."""
    if not len(chunks):
        return
    array = open_array(session, variable.path)
    low, high, missing, total = _summary(variable.coding.decode(np.array([array.fill_value], dtype=array.dtype)))
    ranges.known[chunks], ranges.low[chunks], ranges.high[chunks] = True, low, high
    ranges.count[chunks] = cells[chunks]
    ranges.missing[chunks] = missing * cells[chunks]
    ranges.total[chunks] = np.nan if total is None else total * cells[chunks]


def _summary(values: pa.Array) -> tuple[float, float, int, float | None]:
    """Return bounds as doubles that include all values, the number of missing values, and the total of the others."""
    present = values.drop_null()
    if not len(present):
        return np.inf, -np.inf, len(values), 0.0
    is_time = pa.types.is_timestamp(present.type)
    flat = (present.view(pa.int64()) if is_time else present).to_numpy(zero_copy_only=False)
    low, high = float(flat.min()), float(flat.max())
    total: float | None = None
    if flat.dtype.kind == "f":
        found = float(flat.sum(dtype=np.float64))
        total = found if np.isfinite(found) else None
    elif max(abs(low), abs(high)) * len(flat) < _EXACT and not is_time:
        total = float(flat.sum(dtype=np.int64))
    if flat.dtype.kind in "iu" and max(abs(low), abs(high)) >= _EXACT:
        low, high = float(np.nextafter(low, -np.inf)), float(np.nextafter(high, np.inf))
    return low, high, values.null_count, total


def measure_chunks(variable: Variable, blocks: Iterable[tuple[int, npt.NDArray[Any]]]) -> pa.Table:
    """Return rows for chunks, given by number with their stored values. `keep_rows` adds their references."""
    measured = MEASURED.empty_table()
    found = []
    for number, stored in blocks:
        low, high, missing, total = _summary(variable.coding.decode(stored))
        found.append((number, low, high, missing, stored.size, total))
    if found:
        columns = zip(*found, strict=True)
        measured = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, MEASURED, strict=True)], schema=MEASURED)
    return measured


def fetch_rows(storage: Storage, node: ArrayNode) -> pa.Table | None:
    """Return all stored rows of an array, newest files last, or None if there are none."""
    return run_blocking(_fetch(storage, _folder(node)))


def _folder(node: ArrayNode) -> str:
    return f"{FOLDER}/{encode_base32(node.id)}/"


async def _fetch(storage: Storage, folder: str) -> pa.Table | None:
    return await _fetch_files(storage, folder, await _list_files(storage, folder))


async def _list_files(storage: Storage, folder: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in await storage.list_names(folder) if name.endswith(".parquet")))


async def _fetch_files(storage: Storage, folder: str, names: Sequence[str]) -> pa.Table | None:
    found = await asyncio.gather(*(_fetch_file(storage, folder + name) for name in names))
    tables = [table for table in found if table is not None]
    return pa.concat_tables(tables) if tables else None


async def _fetch_file(storage: Storage, key: str) -> pa.Table | None:
    try:
        data = await storage.get(key)
    except ObjectNotFoundError:
        # It was merged into another file since the listing.
        return None
    return await asyncio.to_thread(_parse, data)


def _parse(data: bytes) -> pa.Table:
    table = pq.read_table(io.BytesIO(data))
    if "total" not in table.schema.names:
        table = table.append_column("total", pa.nulls(len(table), pa.float64()))
    return table.select(SCHEMA.names).cast(SCHEMA)


def keep_rows(session: Session, variable: Variable, measured: pa.Table) -> int:
    """Store the statistics of chunks of this session. Return the number of rows."""
    node = session.state.tree.array(variable.path)
    table, numbers = _chunks(session, variable)
    chunk = measured.column("chunk").to_numpy().astype(np.int64)
    row = np.minimum(np.searchsorted(numbers, chunk), max(0, len(numbers) - 1))
    here = numbers[row] == chunk if len(numbers) else np.zeros(len(chunk), dtype=bool)
    prints, _ = fingerprints(take(table, row[here]))
    flat = pa.FixedSizeBinaryArray.from_buffers(pa.binary(WIDTH), len(prints), [None, pa.py_buffer(prints.tobytes())])
    rows = measured.filter(pa.array(here)).append_column("reference", flat).select(SCHEMA.names)
    if len(rows):
        run_blocking(_keep(session.state.context.storage, _folder(node), rows))
    return len(rows)


async def _keep(storage: Storage, folder: str, rows: pa.Table) -> None:
    names = await _list_files(storage, folder)
    if len(names) >= _MOST_FILES:
        older = await _fetch(storage, folder)
        rows = rows if older is None else pa.concat_tables([older, rows])
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd")
    number = int(names[-1].partition("-")[0]) + 1 if names else 0
    await storage.put(f"{folder}{number:08d}-{secrets.token_hex(6)}.parquet", sink.getvalue())
    if len(names) >= _MOST_FILES:
        await storage.delete([folder + name for name in names])


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of an array's values that are not missing.

    A field is None if the statistics do not define it exactly.
    """

    count: int
    total: float | None
    low: float | None
    high: float | None
    """Both extremes are NaN if there is no value."""


def summarise_array(session: Session, path: str) -> Summary | None:
    """Return the summary of an array, or None if some chunks have no statistics."""
    array = open_array(session, path)
    if array.dtype.kind not in "iuf" or not has_one_missing_value(array.attrs):
        return None
    chunks = chunk_lengths(session.state.tree.array(path))
    coding = coding_of(array.dtype, array.attrs)
    if coding.times is not None:
        return None
    ranges = load_ranges(session, Variable(path.rpartition("/")[2], path, chunks, coding))
    if ranges is None or not ranges.known.all():
        return None
    count = int((ranges.count - ranges.missing).sum())
    total = None if np.isnan(ranges.total).any() else float(ranges.total.sum())
    if pa.types.is_integer(coding.type) and total is not None and float(np.abs(ranges.total).sum()) >= _EXACT:
        total = None
    if not count:
        return Summary(0, total, np.nan, np.nan)
    there = ranges.missing < ranges.count
    low, high = float(ranges.low[there].min()), float(ranges.high[there].max())
    exact = max(abs(low), abs(high)) < _EXACT or array.dtype.kind == "f"
    return Summary(count, total, low if exact else None, high if exact else None)
