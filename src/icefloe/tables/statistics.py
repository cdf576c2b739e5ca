"""Ranges of values per chunk, kept beside the repository's own files, and trusted only for unchanged chunks.

A row speaks of a chunk *reference*, not of a snapshot: it holds for every branch, tag and later snapshot whose array
still points at the same bytes, and for no other. Readers that know nothing of the folder do not look into it, and
collecting garbage leaves it alone.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.blocking import run_blocking
from icefloe.errors import ObjectNotFoundError
from icefloe.ids import encode_base32
from icefloe.manifests.columns import take
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.nodes import ArrayNode
from icefloe.session.session import Session
from icefloe.storage.contract import Storage
from icefloe.tables.columns import ColumnCoding
from icefloe.tables.grids import Variable, open_array
from icefloe.tables.references import WIDTH, fingerprints
from icefloe.tables.value_ranges import ValueRanges

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
    ]
)
SCHEMA = pa.schema([*MEASURED, ("reference", pa.binary(WIDTH))])
"""Columns of a file: a chunk's number in C order of the grid, what its values are like, which bytes that is true of."""


def has_ranges(coding: ColumnCoding) -> bool:
    """Whether values of a column have a range that is worth keeping."""
    kind = coding.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind))


def load_ranges(session: Session, variable: Variable) -> ValueRanges | None:
    """The ranges that are known of an array's chunks; None where none are kept."""
    if not has_ranges(variable.coding):
        return None
    node = session.workspace.tree.array(variable.path)
    kept = fetch_rows(session.workspace.engine.storage, node)
    if kept is None:
        return None
    table = run_blocking(session.workspace.chunk_table(node))
    return _join(session, node, variable, table, kept)


def missing_chunks(session: Session, variable: Variable) -> npt.NDArray[np.int64]:
    """Numbers of the chunks (in C order of the grid) whose range is not known yet and can be kept."""
    node = session.workspace.tree.array(variable.path)
    table = run_blocking(session.workspace.chunk_table(node))
    numbers = _numbers(node, table)
    _, sure = fingerprints(table)
    kept = fetch_rows(session.workspace.engine.storage, node)
    if kept is None:
        return numbers[sure]
    known = _join(session, node, variable, table, kept).known.reshape(-1)
    return numbers[sure & ~known[numbers]]


def _numbers(node: ArrayNode, table: ChunkTable) -> npt.NDArray[np.int64]:
    if not node.grid:
        return np.zeros(len(table), dtype=np.int64)
    numbers: npt.NDArray[np.int64] = np.ravel_multi_index(tuple(table.coords.T.astype(np.int64)), node.grid)
    return numbers.astype(np.int64)


def _join(session: Session, node: ArrayNode, variable: Variable, table: ChunkTable, kept: pa.Table) -> ValueRanges:
    total = int(np.prod(node.grid, dtype=np.int64))
    numbers = _numbers(node, table)
    prints, sure = fingerprints(table)
    row_of = np.full(total, -1, dtype=np.int64)
    row_of[numbers] = np.arange(len(table))
    known = np.zeros(total, dtype=bool)
    low, high = np.full(total, -np.inf), np.full(total, np.inf)
    count, missing = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    _never_written(session, variable, np.setdiff1d(np.arange(total), numbers), (known, low, high, count, missing))
    chunk = kept.column("chunk").to_numpy().astype(np.int64)
    inside = chunk < total
    rows = np.where(inside, row_of[np.where(inside, chunk, 0)], -1)
    stored = np.frombuffer(b"".join(kept.column("reference").to_pylist()), dtype=np.uint8).reshape(-1, WIDTH)
    valid = rows >= 0
    valid[valid] &= sure[rows[valid]] & (prints[rows[valid]] == stored[valid]).all(axis=1)
    at = chunk[valid]
    known[at] = True
    for name, column in (("low", low), ("high", high), ("count", count), ("missing", missing)):
        column[at] = kept.column(name).to_numpy()[valid]
    shape = node.grid
    return ValueRanges(
        known.reshape(shape), low.reshape(shape), high.reshape(shape), count.reshape(shape), missing.reshape(shape)
    )


def _never_written(
    session: Session, variable: Variable, chunks: npt.NDArray[np.int64], columns: Sequence[npt.NDArray[Any]]
) -> None:
    """Chunks that were never written hold the fill value in every cell."""
    if not len(chunks):
        return
    array = open_array(session, variable.path)
    one = variable.coding.decode(np.array([array.fill_value], dtype=array.dtype))
    low, high, missing = _bounds(one)
    for column, value in zip(columns, (True, low, high, 1, missing), strict=True):
        column[chunks] = value


def _bounds(values: pa.Array) -> tuple[float, float, int]:
    """Bounds as doubles that are never tighter than the values, and how many are missing."""
    present = values.drop_null()
    if not len(present):
        return np.inf, -np.inf, len(values)
    numbers = present.view(pa.int64()) if pa.types.is_timestamp(present.type) else present
    flat = numbers.to_numpy(zero_copy_only=False)
    low, high = float(flat.min()), float(flat.max())
    if flat.dtype.kind in "iu" and max(abs(low), abs(high)) >= _EXACT:
        low, high = float(np.nextafter(low, -np.inf)), float(np.nextafter(high, np.inf))
    return low, high, values.null_count


def measure_chunks(variable: Variable, blocks: Iterable[tuple[int, npt.NDArray[Any]]]) -> pa.Table:
    """Rows for chunks, given by number with their stored values; `keep_rows` adds what they refer to."""
    measured = MEASURED.empty_table()
    found = [(number, *_bounds(variable.coding.decode(stored)), stored.size) for number, stored in blocks]
    if found:
        columns = zip(*found, strict=True)
        measured = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, MEASURED, strict=True)], schema=MEASURED)
    return measured


def fetch_rows(storage: Storage, node: ArrayNode) -> pa.Table | None:
    """All rows kept of an array, newest files last; None where there are none."""
    return run_blocking(_fetch(storage, _folder(node)))


def _folder(node: ArrayNode) -> str:
    return f"{FOLDER}/{encode_base32(node.id)}/"


async def _fetch(storage: Storage, folder: str) -> pa.Table | None:
    names = sorted(name for name in await storage.list_names(folder) if name.endswith(".parquet"))
    found = await asyncio.gather(*(_fetch_file(storage, folder + name) for name in names))
    tables = [table for table in found if table is not None]
    return pa.concat_tables(tables) if tables else None


async def _fetch_file(storage: Storage, key: str) -> pa.Table | None:
    try:
        data = await storage.get(key)
    except ObjectNotFoundError:
        # Put together with others since it was listed.
        return None
    return await asyncio.to_thread(lambda: pq.read_table(io.BytesIO(data), schema=SCHEMA))


def keep_rows(session: Session, variable: Variable, measured: pa.Table) -> int:
    """Keep what was measured of chunks as this session sees them; returns how many rows that were."""
    node = session.workspace.tree.array(variable.path)
    table = run_blocking(session.workspace.chunk_table(node))
    numbers = _numbers(node, table)
    chunk = measured.column("chunk").to_numpy().astype(np.int64)
    row = np.minimum(np.searchsorted(numbers, chunk), max(0, len(numbers) - 1))
    here = numbers[row] == chunk if len(numbers) else np.zeros(len(chunk), dtype=bool)
    prints, _ = fingerprints(take(table, row[here]))
    flat = pa.FixedSizeBinaryArray.from_buffers(pa.binary(WIDTH), len(prints), [None, pa.py_buffer(prints.tobytes())])
    rows = measured.filter(pa.array(here)).append_column("reference", flat).select(SCHEMA.names)
    if len(rows):
        run_blocking(_keep(session.workspace.engine.storage, _folder(node), rows))
    return len(rows)


async def _keep(storage: Storage, folder: str, rows: pa.Table) -> None:
    names = sorted(name for name in await storage.list_names(folder) if name.endswith(".parquet"))
    if len(names) >= _MOST_FILES:
        older = await _fetch(storage, folder)
        rows = rows if older is None else pa.concat_tables([older, rows])
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd")
    number = int(names[-1].partition("-")[0]) + 1 if names else 0
    await storage.put(f"{folder}{number:08d}-{secrets.token_hex(6)}.parquet", sink.getvalue())
    if len(names) >= _MOST_FILES:
        await storage.delete([folder + name for name in names])
