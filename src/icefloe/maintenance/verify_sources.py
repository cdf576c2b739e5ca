"""Check every virtual reference against its file, and report by file.

The references of a manifest are grouped by file with NumPy. Groups of many manifests are joined with Arrow. Then each
file needs one request: it must exist, be unchanged since it was referenced, and be long enough for its references. Some
chunks of each array in each file are decoded.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.codec_pipeline import check_grid
from icefloe.display.card import format_count
from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError, VirtualChunkError, printable
from icefloe.ids import ObjectId
from icefloe.maintenance.inventory import fetch_all_refs, open_uncached, report_each, stream_bounded
from icefloe.maintenance.verify_checks import ManifestUse, ManifestUses, SharedUses, uses_in
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest
from icefloe.model.zarr_document import parse_document
from icefloe.session.open_repository import RepositoryContext
from icefloe.session.session import Session
from icefloe.storage.requests import check_unchanged

GROUPED = pa.schema(
    [
        ("location", pa.string()),
        ("etag", pa.string()),
        ("modified", pa.int64()),
        ("path", pa.string()),
        ("references", pa.int64()),
        ("end", pa.int64()),
        ("sample", pa.string()),
    ]
)
"""References of one array to one file in one recorded state. `sample` is JSON: some of its chunks."""

FILES = pa.schema(
    [
        *(each for each in GROUPED if each.name not in ("path", "sample")),
        pa.field("samples", pa.list_(pa.string())),
    ]
)
"""References of all arrays to one file in one recorded state, with the samples of all arrays."""

CHECKED = pa.schema(
    [
        ("location", pa.string()),
        ("status", pa.string()),
        ("references", pa.int64()),
        ("size_bytes", pa.int64()),
        ("decoded", pa.int64()),
        ("detail", pa.string()),
    ]
)
"""The report: one row per file in one recorded state."""

OK, MISSING, CHANGED, TOO_SHORT, UNDECODABLE, UNCHECKED = (
    "ok",
    "missing",
    "changed",
    "too short",
    "undecodable",
    "not checked",
)
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The state of every file that virtual references point to.

    Attributes
    ----------
    files
        An Arrow table with one row per file: `location`, `status`, `references`, `size_bytes`, `decoded`, `detail`. The
        status is `ok`, `missing`, `changed`, `too short`, `undecodable`, or `not checked`. A job on Spark returns only
        files that are not `ok`.
    counts
        The number of files by status.
    references
        The number of references by status of their file.

    Examples
    --------
    >>> SourceReport(CHECKED.empty_table(), {"ok": 3}, {"ok": 120}).is_clean
    True
    """

    files: pa.Table
    counts: Mapping[str, int] = field(default_factory=dict)
    references: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether every file was checked and is ok."""
        return set(self.counts) <= {OK}

    def problems(self) -> list[dict[str, Any]]:
        """Return the files that are not ok.

        Returns
        -------
        list of dict
            One dictionary per file, with the columns of `files`.

        Examples
        --------
        >>> SourceReport(CHECKED.empty_table()).problems()
        []
        """
        rows: list[dict[str, Any]] = self.files.filter(pc.not_equal(self.files["status"], OK)).to_pylist()
        return rows

    def __str__(self) -> str:
        total = format_count(sum(self.counts.values()), "file")
        parts = [f"{count:,} {status}" for status, count in sorted(self.counts.items())]
        lines = [f"checked {format_count(sum(self.references.values()), 'virtual reference')} to {total}"]
        lines[0] += f": {', '.join(parts)}" if parts else ""
        problems = self.problems()
        lines += [f"  {row['status']}: {row['location']} ({_explain(row)})" for row in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"  ... and {len(problems) - _SHOWN:,} more")
        return printable("\n".join(lines))


def _explain(row: Mapping[str, Any]) -> str:
    count = format_count(row["references"], "reference")
    return f"{count}: {row['detail']}" if row["detail"] else count


def report_of(checked: pa.Table) -> SourceReport:
    """A report of checked files."""
    grouped = checked.group_by("status").aggregate([("location", "count"), ("references", "sum")]).to_pylist()
    return SourceReport(
        checked.sort_by("location"),
        {row["status"]: row["location_count"] for row in grouped},
        {row["status"]: row["references_sum"] for row in grouped},
    )


@dataclass(frozen=True, slots=True)
class SourceWork:
    """The manifests of an audit, and how arrays use them."""

    uses: Mapping[ObjectId, SharedUses]
    """By manifest: the arrays that use it, and a snapshot of each."""


async def plan_sources(context: RepositoryContext, branch: str | None = None) -> SourceWork:
    """Find the manifests of the tips of all branches and tags, or of one branch."""
    uncached = open_uncached(context)
    refs = await fetch_all_refs(uncached.ledger)
    if branch is not None and branch not in refs.branches:
        raise InvalidInputError(f"there is no branch {branch!r}. Branches: {', '.join(sorted(refs.branches))}")
    starts = sorted(refs.targets()) if branch is None else [refs.branches[branch]]
    uses = ManifestUses()
    async for snapshot in stream_bounded(uncached.metadata_files.fetch_snapshot, starts):
        uses.add(snapshot)
    return SourceWork(uses.by_manifest)


def group_references(manifest: Manifest, uses: Mapping[ManifestUse, ObjectId], sample: int) -> pa.Table:
    """Return the virtual references of a manifest by file. `sample` chunks of each file are chosen."""
    parts: list[pa.Table] = []
    for use, snapshot_id in uses.items():
        table = manifest.tables.get(use.node_id)
        if table is not None and table.location is not None and table.ndim == len(use.grid):
            parts.append(_group_table(table, use, snapshot_id, sample))
    return pa.concat_tables(parts) if parts else GROUPED.empty_table()


def _group_table(table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, sample: int) -> pa.Table:
    assert table.location is not None
    # Rows outside of the array, or of the part that the array takes from the manifest, are never read.
    low = np.array([first for first, _ in use.extents] or [0] * table.ndim, dtype=np.int64)
    high = np.array([end for _, end in use.extents] or use.grid, dtype=np.int64)
    high = np.minimum(high, np.array(use.grid, dtype=np.int64))
    inside = ((table.coords >= low) & (table.coords < high)).all(axis=1)
    rows = np.flatnonzero((table.kind == ChunkKind.VIRTUAL) & inside)
    if not len(rows):
        return GROUPED.empty_table()
    states = np.zeros((len(rows), 3), dtype=np.int64)
    states[:, 0] = table.location[rows]
    states[:, 1] = -1 if table.etag is None else table.etag[rows]
    states[:, 2] = 0 if table.last_modified is None else table.last_modified[rows]
    distinct, group, counts = np.unique(states, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    ends = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(ends, group, (table.offset[rows] + table.length[rows]).astype(np.int64))
    chosen = _choose_rows(group, counts, sample)
    locations = [str(table.locations[code]) for code in distinct[:, 0].tolist()]
    etags = [None if code < 0 else str(table.etags[code]) for code in distinct[:, 1].tolist()]
    samples = [
        json.dumps([snapshot_id, use.path, table.coords[rows[picked]].tolist()]) if sample else None
        for picked in chosen
    ]
    columns = [locations, etags, distinct[:, 2], [use.path] * len(distinct), counts, ends, samples]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, GROUPED, strict=True)], schema=GROUPED)


def _choose_rows(
    group: npt.NDArray[np.intp], counts: npt.NDArray[np.intp], sample: int
) -> Iterator[npt.NDArray[np.intp]]:
    """For each group, some of its rows at equal distances."""
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(counts) - counts
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        taken = min(sample, count)
        yield order[start + (2 * np.arange(taken) + 1) * count // (2 * taken)] if taken else order[:0]


_FILE = ["location", "etag", "modified"]


def join_groups(parts: Sequence[pa.Table]) -> pa.Table:
    """Join groups of several manifests: one row per file, recorded state and array."""
    joined = pa.concat_tables(parts) if parts else GROUPED.empty_table()
    found = joined.group_by([*_FILE, "path"]).aggregate([("references", "sum"), ("end", "max"), ("sample", "one")])
    columns = [found[name] for name in (*_FILE, "path", "references_sum", "end_max", "sample_one")]
    return pa.table(columns, schema=GROUPED)


def join_arrays(groups: pa.Table) -> pa.Table:
    """Join the groups of all arrays: one row per file and recorded state."""
    found = groups.group_by(_FILE).aggregate([("references", "sum"), ("end", "max"), ("sample", "list")])
    columns = [found[name] for name in (*_FILE, "references_sum", "end_max", "sample_list")]
    return pa.table(columns, schema=FILES)


async def group_manifests(context: RepositoryContext, work: SourceWork, sample: int) -> pa.Table:
    """Fetch manifests and return their virtual references by file."""
    files = open_uncached(context).metadata_files
    parts: list[pa.Table] = []

    async def group(manifest_id: ObjectId) -> pa.Table:
        manifest = await files.fetch_manifest(manifest_id)
        return group_references(manifest, uses_in(manifest, work.uses[manifest_id]), sample)

    found = stream_bounded(group, sorted(work.uses))
    async for part in report_each("group references", found, len(work.uses)):
        parts.append(part)
        # Most files have references in many manifests.
        if len(parts) >= _JOINED_AT_ONCE:
            parts = [join_groups(parts)]
    return join_groups(parts)


_JOINED_AT_ONCE = 256


async def check_sources(context: RepositoryContext, files: pa.Table) -> pa.Table:
    """Check files with one request each, and decode the chosen chunks."""
    decoder = _Decoder(context)

    async def check(row: Mapping[str, Any]) -> dict[str, Any]:
        return await _check_source(context, decoder, row)

    rows = (row for batch in files.to_batches() for row in batch.to_pylist())
    found = [row async for row in report_each("check files", stream_bounded(check, rows), len(files))]
    return pa.Table.from_pylist(found, schema=CHECKED)


async def verify_sources(context: RepositoryContext, *, branch: str | None = None, sample: int = 1) -> SourceReport:
    """Check every virtual reference of branches and tags against its file."""
    if sample < 0:
        raise InvalidInputError(f"sample is the number of chunks of each array to decode per file, not {sample}")
    work = await plan_sources(context, branch)
    groups = await group_manifests(context, work, sample)
    return report_of(await check_sources(context, join_arrays(groups)))


async def _check_source(context: RepositoryContext, decoder: _Decoder, row: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"location": row["location"], "references": row["references"], "decoded": 0, "detail": ""}
    try:
        source = context.containers.resolve(row["location"])
        info = await source.storage.head(source.key)
    except VirtualChunkError as error:
        return {**result, "status": UNCHECKED, "detail": _first_line(error)}
    except ObjectNotFoundError:
        return {**result, "status": MISSING, "detail": "there is no such file"}
    except IcefloeError as error:
        return {**result, "status": UNCHECKED, "detail": f"{type(error).__name__}: {_first_line(error)}"}
    result["size_bytes"] = info.size_bytes
    recorded = dt.datetime.fromtimestamp(row["modified"], tz=dt.UTC) if row["modified"] else None
    try:
        check_unchanged(
            "it",
            etag=row["etag"],
            found_etag=info.version.etag,
            not_modified_after=recorded,
            found_modified=info.last_modified,
        )
    except VirtualChunkError as error:
        return {**result, "status": CHANGED, "detail": _first_line(error)}
    if info.size_bytes < row["end"]:
        detail = f"it has {info.size_bytes} bytes, but references end at byte {row['end']}"
        return {**result, "status": TOO_SHORT, "detail": detail}
    for snapshot_id, path, coords in _parse_samples(row["samples"]):
        reason = await decoder.decode(snapshot_id, path, coords)
        if reason is not None:
            return {**result, "status": UNDECODABLE, "detail": f"chunk {list(coords)} of {path}: {reason}"}
        result["decoded"] += 1
    return {**result, "status": OK}


def _parse_samples(texts: Sequence[str | None]) -> Iterator[tuple[ObjectId, str, tuple[int, ...]]]:
    for text in texts:
        if text is None:
            continue
        snapshot_id, path, chosen = json.loads(text)
        for coords in chosen:
            yield snapshot_id, path, tuple(coords)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _Decoder:
    """Decodes single chunks. Arrays stay open."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._arrays: dict[tuple[ObjectId, str], asyncio.Future[Any]] = {}

    async def decode(self, snapshot_id: ObjectId, path: str, coords: Sequence[int]) -> str | None:
        """Decode one chunk. Returns why it cannot be decoded."""
        key = (snapshot_id, path)
        if key not in self._arrays:
            # If zarr does not use the grid here, the chunks may still be fine.
            nodes = (await self._context.metadata_files.fetch_snapshot(snapshot_id)).nodes
            check_grid(path.strip("/"), parse_document(nodes[path].document))
        try:
            if key not in self._arrays:
                self._arrays[key] = asyncio.ensure_future(self._open(*key))
            array = await self._arrays[key]
            await asyncio.to_thread(lambda: array.blocks[tuple(coords)] if coords else array[()])
        except IcefloeError as error:
            return _first_line(error)
        except Exception as error:  # noqa: BLE001 - codecs raise whatever their libraries do
            return f"{type(error).__name__}: {_first_line(error)}"
        return None

    async def _open(self, snapshot_id: ObjectId, path: str) -> Any:
        session = Session(self._context, await self._context.metadata_files.fetch_snapshot(snapshot_id))
        return await asyncio.to_thread(zarr.open_array, session.store, path=path.strip("/"), mode="r")
