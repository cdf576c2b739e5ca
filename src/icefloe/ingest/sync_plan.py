"""Plan a sync: compare where every source is in a new ingest of all sources with where the last sync put it.

A chunk that consists of the same cells of the same versions of sources is kept. If it is at another position, its
reference is moved. Only the other chunks are written.

Unchanged sources are planned in runs (`icefloe.ingest.runs`) where that gives the same plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.codec_pipeline import check_grid
from icefloe.errors import InvalidInputError
from icefloe.ingest.array_plan import (
    ArrayChanges,
    ArrayPlan,
    MovedSpan,
    ValueWrite,
    can_keep,
    changed_part,
    compare_chunks,
    joined_lengths,
)
from icefloe.ingest.catalogue import Catalogue, CataloguedSource, Placement, SourceBatch, SourceRun, SourceTable
from icefloe.ingest.chunk_grids import ChunkRegion, Index, SourceBox, cover, find_recipes
from icefloe.ingest.local_ingest import Archive, allows_variable_grids
from icefloe.ingest.members import join_path
from icefloe.ingest.placement import Existing
from icefloe.ingest.plan import DatasetPlan, IngestPlan, plan_ingest
from icefloe.ingest.record import FoundSources, SourceChanges
from icefloe.ingest.runs import can_be_divided, choose_runs
from icefloe.ingest.source_files import in_natural_order
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.write_tasks import Extent, IngestTask, PlacedFile, plan_native_tasks, plan_virtual_tasks
from icefloe.model.zarr_document import parse_grid


@dataclass(frozen=True, slots=True)
class CellCopy:
    """Cells of a source that vanished. They are copied within the array."""

    path: str
    old: ChunkRegion
    new: ChunkRegion


@dataclass(frozen=True, slots=True, repr=False)
class SyncPlan:
    """The plan of a sync.

    Attributes
    ----------
    sources
        What happened to the sources.
    ingest
        The plan of a new ingest of all sources.
    arrays
        What happens to each array, by path.
    deleted
        The paths of arrays that no source has any more.
    documents
        The zarr.json documents that change, by path.
    values
        The parts of coordinates that change.
    tasks
        The tasks that write the chunks that are not kept.
    copies
        Cells of vanished sources that are copied within an array.
    catalogue
        The catalogue after the sync.

    Examples
    --------
    >>> SyncPlan(SourceChanges(unchanged=2), None)
    SyncPlan(2 unchanged: 0 chunk positions kept, 0 moved, 0 written)
    """

    sources: SourceChanges
    ingest: IngestPlan | None
    arrays: Mapping[str, ArrayChanges] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    documents: Mapping[str, bytes] = field(default_factory=dict)
    values: tuple[ValueWrite, ...] = ()
    tasks: tuple[IngestTask, ...] = ()
    copies: tuple[CellCopy, ...] = ()
    catalogue: Catalogue = field(default_factory=Catalogue)

    @property
    def kept(self) -> int:
        """The number of chunk positions that stay as they are."""
        return sum(each.kept for each in self.arrays.values())

    @property
    def moved(self) -> int:
        """The number of chunk positions whose references move."""
        return sum(len(each.moved) for each in self.arrays.values())

    @property
    def written(self) -> int:
        """The number of chunk positions that are written."""
        return sum(len(each.written) for each in self.arrays.values())

    @property
    def is_empty(self) -> bool:
        """Whether the archive is equal to its sources already."""
        has_work = self.deleted or self.documents or self.values or self.tasks or self.copies
        return not has_work and all(each.is_unchanged for each in self.arrays.values())

    def __repr__(self) -> str:
        chunks = f"{self.kept:,} chunk positions kept, {self.moved:,} moved, {self.written:,} written"
        return f"SyncPlan({self.sources}: {chunks})"


def _boxes(sources: Iterable[CataloguedSource], group: str, path: str, joined: Sequence[str]) -> list[SourceBox]:
    """Return the cells of every source in an array, as the placements say."""
    found = []
    for source in sources:
        placed = source.placed.get(group)
        for part in placed.parts() if placed is not None else ():
            if path not in part.fills:
                continue
            extents = [part.extent.get(dim, (0, 0)) for dim in joined]
            start, size = tuple(first for first, _ in extents), tuple(length for _, length in extents)
            first = tuple(part.first.get(dim, 0) for dim in joined) if part.first else ()
            found.append(SourceBox(source.file.url, source.version, part.fills[path], start, size, first))
    return found


@dataclass(frozen=True, slots=True)
class _PlacedSources:
    """The sources of the last sync and of this one. Those of runs are in neither list."""

    old: Sequence[CataloguedSource]
    new: Sequence[CataloguedSource]
    runs: Sequence[tuple[SourceRun, PlacedFile]] = ()
    unreadable: frozenset[str] = frozenset()
    """The URLs of sources that vanished and stay in the archive."""

    def is_unreadable(self, run: SourceRun) -> bool:
        return run.batch.urls[0] in self.unreadable


def plan_sync(found: FoundSources, options: IngestOptions, archive: Archive, *, in_runs: bool = True) -> SyncPlan:
    """Plan a sync. Nothing is read from the sources.

    `in_runs`: unchanged sources are planned in runs where possible. The plan is the same without them.

    Raises an error if the sources do not fit together, or if cells of a source that vanished cannot be kept.
    """
    before = archive.catalogue or Catalogue()
    if not found.sources:
        return SyncPlan(found.changes, None, deleted=tuple(sorted(before.arrays)), catalogue=Catalogue())
    settings = options.recorded()
    if archive.catalogue is not None and dict(before.settings) != settings:
        # The cells of unchanged sources are used in another way.
        archive = replace(archive, all_foreign=True)
    chunks = _kept_chunks(before, archive, options)
    existing = Existing(chunks=chunks, variable_grids=allows_variable_grids(archive.session))
    is_regular = all(isinstance(each, int) for lengths in chunks.values() for each in lengths)
    can_run = in_runs and is_regular and not archive.all_foreign
    fresh, runs = _plan_fresh(found, before, options, existing, can_run=can_run)
    for path in fresh.arrays:
        # An ingest may have written the archive before the first sync. It is written again only if that is asked for.
        if archive.documents.get(path, {}).get("node_type") == "array" and path not in archive.former:
            check_grid(path, archive.documents[path])
    sources = _place(found, fresh.datasets)
    together = {url for run in runs for url in run.urls}
    old = [before.sources[url] for url in before.sources if url not in together]
    new = [sources[url] for url in sources if url not in together]
    arrays: dict[str, ArrayChanges] = {}
    tasks: list[IngestTask] = []
    copies: list[CellCopy] = []
    for dataset in fresh.datasets:
        own = [(file.run, file) for file in dataset.files if file.run is not None]
        placed = _PlacedSources(old, new, own, found.unreadable)
        changes = [
            _compare(array, dataset.group, before, placed, archive)
            for array in dataset.arrays
            if array.kind != "values"
        ]
        arrays.update({each.array.path: each for each in changes})
        copies += _plan_copies(changes, dataset.group, placed, archive)
        tasks += _plan_tasks(changes, dataset, found.unreadable, options, len(tasks))
    values = {write.path: write for write in fresh.values}
    documents, kept_values = _plan_documents(fresh, before, archive, arrays)
    former = {*before.arrays, *archive.former}
    deleted = sorted(path for path in former if path not in fresh.arrays and path in archive.documents)
    catalogue = Catalogue(
        sources,
        {path: (array.kind, array.joined) for path, array in sorted(fresh.arrays.items())},
        {path: _hash(each) for path, each in fresh.documents.items() if path not in fresh.arrays},
        dict(options.chunks),
        settings,
        options.identity(),
    )
    unmoved = _find_unmoved(fresh, options)
    writes = tuple(
        changed
        for path, write in sorted(values.items())
        for changed in (_changed_values(write, archive, unmoved.get(path, [])) if path in kept_values else [write])
    )
    return SyncPlan(
        found.changes, fresh, arrays, tuple(deleted), documents, writes, tuple(tasks), tuple(copies), catalogue
    )


def _plan_fresh(
    found: FoundSources, before: Catalogue, options: IngestOptions, existing: Existing, *, can_run: bool
) -> tuple[IngestPlan, Sequence[SourceRun]]:
    """Plan a new ingest of all sources. Unchanged ones are planned in runs where that gives the same plan."""
    is_same = can_run and before.planned_with is not None and before.planned_with == options.identity()
    runs = choose_runs(found, before, options) if is_same else []
    urls, size = _list_sources(found)
    while True:
        in_runs = {url for run in runs for url in run.urls}
        leaders = {run.batch.urls[run.leader]: run for run in runs}
        single = [url for url in found.sources if url not in in_runs or url in leaders]
        schemas = [schema for url in single if (schema := found.sources[url].schema) is not None]
        try:
            fresh = plan_ingest(schemas, options, existing=existing, runs=leaders)
            fresh.report.raise_on_errors()
        except InvalidInputError:
            # Errors name the sources that do not fit, which may be anywhere in a run.
            if not runs:
                raise
        else:
            if all(_has_same_plan(dataset, in_runs, before) for dataset in fresh.datasets):
                return replace(fresh, sources=urls, source_bytes=size), runs
        runs = []


def _list_sources(found: FoundSources) -> tuple[tuple[str, ...], int]:
    """Return the URLs of all sources in their natural order, and their size."""
    urls = list(found.order)
    if found.unreadable:
        urls = in_natural_order(list(found.sources))
    size = sum(source.file.size_bytes for source in found.sources.singles.values())
    return tuple(urls), size + sum(sum(batch.columns[1]) for batch in found.sources.batches)


def _has_same_plan(dataset: DatasetPlan, in_runs: set[str], before: Catalogue) -> bool:
    """Return whether the plan of runs of a group is the plan of their sources."""
    arrays = {array.path: array for array in dataset.arrays}
    has_runs = any(file.run is not None for file in dataset.files)
    own = [dims for path, (_, dims) in before.arrays.items() if path.rpartition("/")[0] == dataset.group]
    if has_runs and dataset.extent.bounds.keys() != {dim for dims in own for dim in dims}:
        return False
    for path, array in arrays.items() if has_runs else ():
        # Chunks of different lengths, and whether an array is referenced, depend on the number of files of a kind.
        if not array.is_regular or before.arrays.get(path, (array.kind,))[0] != array.kind:
            return False
    for file in dataset.files:
        run = file.run
        if run is None:
            if file.file.url in in_runs:
                return False
            continue
        if any(
            path in arrays and run.dim not in arrays[path].dims for path in run.batch.template.placed[run.group].fills
        ):
            return False
        if not can_be_divided(file, run, arrays):
            return False
    return True


def _hash(document: bytes) -> str:
    return hashlib.blake2b(document, digest_size=8).hexdigest()


def _text_of(document: Any) -> str:
    # NaN is not equal to itself, but its text is.
    return json.dumps(document, sort_keys=True)


def _kept_chunks(
    before: Catalogue, archive: Archive, options: IngestOptions
) -> dict[str, tuple[int | tuple[int, ...], ...]]:
    """Return the chunk lengths of the arrays of the archive, unless the caller asks for others."""
    if dict(before.chunks) != dict(options.chunks):
        return {}
    found = {}
    for path in before.arrays:
        document = archive.documents.get(path)
        if document is not None and document.get("node_type") == "array":
            check_grid(path, document)
            found[path] = tuple(lengths.each for lengths in parse_grid(document))
    return found


def _place(found: FoundSources, datasets: Sequence[DatasetPlan]) -> SourceTable:
    """Return the sources with their placements in the plan. A source that stays where it is, stays as it is."""
    placed: dict[str, dict[str, Placement]] = {}
    moved: dict[int, dict[tuple[str, str], npt.NDArray[np.int64]]] = {}
    in_runs: dict[int, npt.NDArray[np.bool_]] = {}
    for dataset in datasets:
        named = {each.path: each for each in dataset.arrays}
        for file in dataset.files:
            own = {path: variable.path for path, variable in file.variables.items() if path in named}
            if (run := file.run) is not None and dict(run.batch.template.placed[run.group].fills) == own:
                starts = moved.setdefault(id(run.batch), {key: each.copy() for key, each in run.batch.starts.items()})
                for (group, dim), firsts in starts.items():
                    firsts[run.rows] = file.origin[dim]
                    if dim == run.dim:
                        firsts[run.rows] += run.length * np.arange(len(run))
                    assert group == run.group
                in_runs.setdefault(id(run.batch), np.zeros(len(run.batch), dtype=bool))[run.rows] = True
                continue
            for each in file.files({}):
                sizes = {d: n for v in each.variables.values() for d, n in zip(v.dims, v.shape, strict=True)}
                extent = {d: (start, sizes[d]) for d, start in each.origin.items() if d in sizes}
                first = {d: f for v in each.variables.values() for d, f in zip(v.dims, v.first, strict=False)}
                part = Placement(extent, own, {d: f for d, f in first.items() if d in extent})
                groups = placed.setdefault(each.file.url, {})
                known = groups.get(dataset.group)
                groups[dataset.group] = part if known is None else replace(known, more=(*known.more, part))
    batches: list[SourceBatch] = []
    singles: list[CataloguedSource] = []
    for batch in found.sources.batches:
        is_placed = in_runs.get(id(batch), np.zeros(len(batch), dtype=bool))
        stays = is_placed.copy()
        starts = moved.get(id(batch), {})
        for key, firsts in starts.items():
            stays &= firsts == batch.starts[key]
        for row in np.flatnonzero(~is_placed).tolist():
            source, now = found.sources[batch.urls[row]], placed.get(batch.urls[row], {})
            stays[row] = dict(source.placed) == now
            singles += [] if stays[row] else [replace(source, placed=now)]
        batches.append(batch.take(np.flatnonzero(stays)))
        if len(away := np.flatnonzero(is_placed & ~stays)):
            batches.append(replace(batch, starts=starts, is_stored=False, moved_from=batch.starts).take(away))
    for url, source in found.sources.singles.items():
        now = placed.get(url, {})
        singles.append(source if dict(source.placed) == now else replace(source, placed=now))
    return SourceTable(batches, singles)


def _compare(array: ArrayPlan, group: str, before: Catalogue, placed: _PlacedSources, archive: Archive) -> ArrayChanges:
    kind, joined = before.arrays.get(array.path, ("", ()))
    document = archive.documents.get(array.path)
    new = _boxes(placed.new, group, array.path, array.joined)
    if (
        document is None
        or archive.all_foreign
        or (kind, joined) != (array.kind, array.joined)
        or (array.path in archive.foreign and archive.foreign[array.path] is None)
        or not can_keep(document, array)
    ):
        grid = joined_lengths(array)
        every = {*find_recipes(new, grid)}
        for run, file in placed.runs:
            if (box := _new_box(run, file, array)) is not None:
                every.update(box.positions(grid))
        return ArrayChanges(array, True, frozenset(every))
    coords = archive.foreign.get(array.path)
    axes = [axis for axis, dim in enumerate(array.dims) if dim in array.joined]
    dirty = frozenset(() if coords is None else map(tuple, coords[:, axes].tolist()))
    old = _boxes(placed.old, group, array.path, joined)
    blocks: dict[tuple[int, int, int], list[tuple[SourceRun, PlacedFile]]] = {}
    for run, file in placed.runs:
        if array.path in run.batch.template.placed[group].fills or array.path in file.variables:
            blocks.setdefault((run.start, file.origin[run.dim], len(run) * run.length), []).append((run, file))
    spans: list[MovedSpan] = []
    for block in blocks.values():
        found, former, now = _compare_block(block, array)
        spans += found
        old += former
        new += now
    return compare_chunks(array, old, new, document, dirty, spans)


def _compare_block(
    block: Sequence[tuple[SourceRun, PlacedFile]], array: ArrayPlan
) -> tuple[list[MovedSpan], list[SourceBox], list[SourceBox]]:
    """Compare the cells of runs with the same coordinates along their dimension.

    Return the chunks that only have cells of these runs and consist of the same cells as before, and the cells of their
    sources in other chunks, old and new. No other source has or had cells between those of the runs.
    """
    run, file = block[0]
    axis, grid = array.joined.index(run.dim), joined_lengths(array)
    chunk, start, cells = grid[axis].longest, file.origin[run.dim], len(run) * run.length
    shift = start - run.start
    first, end = -(-start // chunk), (start + cells) // chunk
    others = [*grid[:axis], *grid[axis + 1 :]]
    # The runs are compared like single sources along the other dimensions.
    had = {id(each): box for each, _ in block if (box := _old_box(each, array)) is not None}
    has = {id(each): box for each, own in block if (box := _new_box(each, own, array)) is not None}
    before, after = (find_recipes([_without(box, axis) for box in boxes.values()], others) for boxes in (had, has))
    matched: dict[Index, Index] = {}
    if end > first and shift % chunk == 0:
        positions = {recipe: position for position, recipe in before.items()}
        for position, recipe in after.items():
            source = position if before.get(position) == recipe else positions.get(recipe)
            if source is not None:
                matched[position] = source
    spans = [MovedSpan(axis, first, end, shift // chunk, each, source) for each, source in matched.items()]
    kept, taken = matched.keys(), {*matched.values()}
    edges = dict.fromkeys((*run.between(0, first * chunk - start), *run.between(end * chunk - start, cells)))
    old, new = [], []
    for each, _ in block:
        former, now = had.get(id(each)), has.get(id(each))
        is_matched = former is None or taken >= {*_without(former, axis).positions(others)}
        is_matched = is_matched and (now is None or kept >= {*_without(now, axis).positions(others)})
        for index in edges if is_matched else range(len(each)):
            old += [_source_box(each, index, former, axis)] if former is not None else []
            new += [_source_box(each, index, now, axis)] if now is not None else []
    return spans, old, new


def _old_box(run: SourceRun, array: ArrayPlan) -> SourceBox | None:
    """Return the cells of a run in an array in the last sync."""
    name = run.batch.template.placed[run.group].fills.get(array.path)
    if name is None:
        return None
    former = {dim: run.former(dim) for dim in array.joined}
    former[run.dim] = run.start, len(run) * run.length
    start, size = (tuple(former[dim][i] for dim in array.joined) for i in (0, 1))
    url = run.batch.urls[run.leader]
    return SourceBox(url, (url,), name, start, size)


def _new_box(run: SourceRun, file: PlacedFile, array: ArrayPlan) -> SourceBox | None:
    """Return the cells of a run in an array."""
    variable = file.variables.get(array.path)
    if variable is None:
        return None
    lengths = dict(zip(variable.dims, variable.shape, strict=True))
    start, size = (tuple(each[dim] for dim in array.joined) for each in (file.origin, lengths))
    url = run.batch.urls[run.leader]
    return SourceBox(url, (url,), variable.path, start, size)


def _without(box: SourceBox, axis: int) -> SourceBox:
    """Return a box without one of its dimensions."""
    start, size = ((*each[:axis], *each[axis + 1 :]) for each in (box.start, box.size))
    return replace(box, start=start, size=size)


def _source_box(run: SourceRun, index: int, box: SourceBox, axis: int) -> SourceBox:
    """Return the cells of a source of a run, which has the cells of a box."""
    start = (*box.start[:axis], box.start[axis] + index * run.length, *box.start[axis + 1 :])
    size = (*box.size[:axis], run.length, *box.size[axis + 1 :])
    return SourceBox(run.file(index).url, run.version(index), box.variable, start, size)


def _plan_documents(
    fresh: IngestPlan, before: Catalogue, archive: Archive, arrays: Mapping[str, ArrayChanges]
) -> tuple[dict[str, bytes], set[str]]:
    """Return the documents that change, and the paths of coordinates whose stored values can be compared."""
    documents: dict[str, bytes] = {}
    comparable: set[str] = set()
    for path, document in fresh.documents.items():
        stored = archive.documents.get(path)
        if path not in fresh.arrays:
            # Attributes of groups may have been added by hand. They stay until the sources say something else.
            if stored is None or before.groups.get(path) not in (None, _hash(document)):
                documents[path] = document
            continue
        change = arrays.get(path)
        is_kept = not change.is_rewritten if change is not None else False
        if change is None and stored is not None and not archive.all_foreign and path in before.arrays:
            is_kept = can_keep(stored, fresh.arrays[path])
        if is_kept and change is None:
            comparable.add(path)
        if not is_kept or _text_of(json.loads(document)) != _text_of(stored):
            documents[path] = document
    return documents, comparable


def _find_unmoved(fresh: IngestPlan, options: IngestOptions) -> dict[str, list[tuple[int, int]]]:
    """Return the cells of runs that stayed where they were, by path of the coordinates that their sources have."""
    found: dict[str, list[tuple[int, int]]] = {}
    for dataset in fresh.datasets:
        for file in dataset.files:
            run = file.run
            if run is None or file.origin[run.dim] != run.start:
                continue
            names = {path.rpartition("/")[2] for path in run.batch.values}
            names = {options.rename.get(name, name) for name in names}
            # The names of files have the same values as in the last sync. A function may return others.
            names |= {run.dim} if isinstance(options.pattern, str) else set()
            for path in {join_path(run.group, name) for name in names}:
                if path in fresh.arrays and fresh.arrays[path].dims == (run.dim,):
                    found.setdefault(path, []).append((run.start, run.start + len(run) * run.length))
    return found


def _changed_values(write: ValueWrite, archive: Archive, unmoved: Sequence[tuple[int, int]]) -> list[ValueWrite]:
    """Return the part of a coordinate that differs from the stored one. Cells that did not move are not read."""
    array = zarr.open_array(archive.session.store, path=write.path, mode="r")
    grid = parse_grid(archive.documents[write.path])
    if not unmoved or write.path in archive.foreign or write.values.dtype != array.dtype:
        return changed_part(write, np.asarray(array[...]), grid)
    stored: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
    end = 0
    for first, last in [*sorted(unmoved), (array.shape[0], array.shape[0])]:
        if first > end:
            stored[end:first] = array[end:first]
        stored[first:last] = write.values[first:last]
        end = max(end, last)
    return changed_part(write, stored, grid)


def _cells(box: Sequence[tuple[int, int]], array: ArrayPlan) -> dict[str, tuple[int, int]]:
    """Return the cells of a box of chunk positions, by joined dimension."""
    names = [(d, c, n) for d, c, n in zip(array.dims, array.grid, array.shape, strict=True) if d in array.joined]
    return {d: (c.start(lo), min(c.start(hi), n)) for (lo, hi), (d, c, n) in zip(box, names, strict=True)}


def _plan_tasks(
    changes: Sequence[ArrayChanges],
    dataset: DatasetPlan,
    unreadable: frozenset[str],
    options: IngestOptions,
    first: int,
) -> list[IngestTask]:
    """Return tasks that write the chunks of a group that are not kept."""
    layers: dict[tuple[Any, ...], list[ArrayChanges]] = {}
    for each in changes:
        if each.written:
            grid = tuple(joined_lengths(each.array))
            key = (each.array.kind, each.is_rewritten, each.array.joined, grid, each.written)
            layers.setdefault(key, []).append(each)
    files = [file for file in dataset.files if file.file.url not in unreadable]
    tasks: list[IngestTask] = []
    for layer in layers.values():
        arrays = [each.array for each in layer]
        extents = [Extent(_cells(box, arrays[0])) for box in cover(layer[0].written)]
        if arrays[0].kind == "native":
            for extent in extents:
                near = [each for file in files for each in file.files(extent.bounds)]
                for paths, window, chosen, size in plan_native_tasks(arrays, near, extent, options.task_bytes):
                    tasks.append(IngestTask(first + len(tasks), "native", paths, window, chosen, size))
            continue
        found = {each.key: each for file in files for x in extents for each in file.files(x.bounds)}.values()
        chosen_files = [file for file in found if _meets(file, arrays, layer[0].written)]
        # Tasks have files that follow each other among the sorted names.
        names = {url: n for n, url in enumerate(in_natural_order({file.file.url for file in chosen_files}))}
        chosen_files.sort(key=lambda file: names[file.file.url])
        for paths, window, chosen, size in plan_virtual_tasks(arrays, chosen_files, options.files_per_task):
            tasks.append(IngestTask(first + len(tasks), "virtual", paths, window, chosen, size))
    return tasks


def _meets(file: PlacedFile, arrays: Sequence[ArrayPlan], written: frozenset[Index]) -> bool:
    """Return whether a file has cells in chunks that are written."""
    for array in arrays:
        variable = file.variables.get(array.path)
        if variable is None:
            continue
        lengths = dict(zip(variable.dims, variable.shape, strict=True))
        start = tuple(file.origin.get(d, 0) for d in array.dims if d in array.joined)
        size = tuple(lengths[d] for d in array.dims if d in array.joined)
        if any(p in written for p in SourceBox("", (), "", start, size).positions(joined_lengths(array))):
            return True
    return False


def _plan_copies(
    changes: Sequence[ArrayChanges], group: str, placed: _PlacedSources, archive: Archive
) -> list[CellCopy]:
    """Return the cells of vanished sources in chunks that are written again."""
    copies: list[CellCopy] = []
    if not placed.unreadable:
        return copies
    former_gone = [source for source in placed.old if source.file.url in placed.unreadable]
    gone = [source for source in placed.new if source.file.url in placed.unreadable]
    for each in changes:
        array, grid = each.array, joined_lengths(each.array)
        old: dict[str, list[SourceBox]] = {}
        former_boxes = _boxes(former_gone, group, array.path, array.joined)
        boxes = _boxes(gone, group, array.path, array.joined)
        for run, file in placed.runs if each.written else ():
            if placed.is_unreadable(run):
                former_cells, now = _run_boxes(run, file, array, each.written)
                former_boxes += former_cells
                boxes += now
        for box in former_boxes:
            old.setdefault(box.url, []).append(box)
        for box in boxes:
            positions = [p for p in box.positions(grid) if p in each.written]
            if not positions:
                continue
            is_foreign = array.path in archive.foreign or archive.all_foreign
            former = next((b for b in old.get(box.url, ()) if b.holds(box)), None)
            if each.is_rewritten or former is None or array.kind != "native" or is_foreign:
                raise InvalidInputError(
                    f"{box.url} no longer exists, and /{array.path} must be written again. Restore the file, or use "
                    "vanished='remove' (--vanished remove)",
                    url=box.url,
                    path=array.path,
                )
            for position in positions:
                low = [max(s, c.start(i)) for s, i, c in zip(box.start, position, grid, strict=True)]
                high = [
                    min(s + n, c.start(i + 1)) for s, n, i, c in zip(box.start, box.size, position, grid, strict=True)
                ]
                shift = [a - b for a, b in zip(former.origin, box.origin, strict=True)]
                copies.append(
                    CellCopy(
                        array.path,
                        _region(array, [(a + s, b + s) for a, b, s in zip(low, high, shift, strict=True)]),
                        _region(array, list(zip(low, high, strict=True))),
                    )
                )
    return copies


def _run_boxes(
    run: SourceRun, file: PlacedFile, array: ArrayPlan, written: frozenset[Index]
) -> tuple[list[SourceBox], list[SourceBox]]:
    """Return the old and the new cells of the sources of a run that have cells in chunks that are written."""
    now, former = _new_box(run, file, array), _old_box(run, array)
    if now is None:
        return [], []
    axis = array.joined.index(run.dim)
    chunk, start = joined_lengths(array)[axis].longest, file.origin[run.dim]
    indexes: dict[int, None] = {}
    for low, high in {box[axis] for box in cover(written)}:
        indexes.update(dict.fromkeys(run.between(low * chunk - start, high * chunk - start)))
    old = [] if former is None else [_source_box(run, index, former, axis) for index in indexes]
    return old, [_source_box(run, index, now, axis) for index in indexes]


def _region(array: ArrayPlan, bounds: Sequence[tuple[int, int]]) -> ChunkRegion:
    joined = iter(bounds)
    return tuple(
        slice(*next(joined)) if dim in array.joined else slice(0, length)
        for dim, length in zip(array.dims, array.shape, strict=True)
    )
