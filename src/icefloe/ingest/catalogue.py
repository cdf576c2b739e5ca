"""The catalogue of a synced group: which version of which source is where in its arrays.

A catalogue is stored in objects that the metadata of a commit name. A sync writes one more object with the sources that
it added, replaced or removed. Sources behind an inserted or a removed one have new positions. The object has the cells
from which on positions change, and by how much, instead of these sources. Small objects are joined with their
neighbours, so that their number grows with the logarithm of the number of sources.

An object is compressed JSON. Sources that differ only in their file, in their position, and in the values of their
coordinates along joined dimensions are one batch. A batch has their common schema once, and a column for everything
else, so that reading the catalogue of an archive with many equal files makes no Python object for each of them.
Objects of version 1 have an entry for each source. They are read, and the next sync writes them as version 2.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import itertools
import json
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError
from icefloe.formats.header import decompress
from icefloe.ingest.source_files import take_rows
from icefloe.ingest.source_model import (
    VARIABLE_FIELDS,
    Coordinate,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.model.snapshot import CATALOGUE_KEY, INGESTED_FOLDER
from icefloe.repository import Repository

_CATALOGUE_VERSION = 2
_FIRST_VERSION = 1
_MOST_EDGES = 100
"""The largest number of cells at which positions change that is stored instead of the sources that moved."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a source is in a group: its first cell and length by joined dimension, and its variables by array path."""

    extent: Mapping[str, tuple[int, int]]
    fills: Mapping[str, str]
    first: Mapping[str, int] = field(default_factory=dict)
    """The first of these cells in the source by dimension, if only a part of the source is used."""
    more: tuple[Placement, ...] = ()
    """Other parts of the source."""

    def parts(self) -> tuple[Placement, ...]:
        return (self, *self.more)


@dataclass(frozen=True, slots=True)
class CataloguedSource:
    """A source, as it was when it was synced."""

    file: SourceFile
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """By group."""
    schema: SourceSchema | None = None
    """None if it cannot be stored. The source is then parsed again."""
    digest: str | None = None
    """The hash of the content, if it was read."""
    listed: int = 0
    """When its version was asked for, in seconds since 1970."""

    @property
    def version(self) -> tuple[Any, ...]:
        """What tells two contents of one URL apart."""
        return (self.file.url, self.digest) if self.digest else version_of(self.file)


def version_of(file: SourceFile) -> tuple[Any, ...]:
    """Return what the storage says about the version of a file."""
    return file.url, file.size_bytes, file.etag or file.version or file.last_modified


FILE_COLUMNS = ("url", "size_bytes", "etag", "last_modified", "version", "digest", "listed")
"""The columns of the files of a batch."""
_VARIES = Coordinate(0, "", None, None, 0)
"""Stands for a coordinate of which every source of a batch has other values."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Sources with equal schemas. Everything that differs between them is a column with one row for each."""

    template: CataloguedSource
    """What they have in common. Its file and its positions do not matter."""
    columns: tuple[Sequence[Any], ...]
    """`FILE_COLUMNS`."""
    starts: Mapping[tuple[str, str], npt.NDArray[np.int64]] = field(default_factory=dict)
    """The first cell by group and joined dimension. Without them, the template has the positions of a single source."""
    values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """The values of coordinates along joined dimensions, by path: one row of the table for each source."""
    hashes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Hashes of small variables along joined dimensions, by path."""
    is_stored: bool = False
    """The sources are in the catalogue of the last sync with the same positions."""
    moved_from: Mapping[tuple[str, str], npt.NDArray[np.int64]] = field(default_factory=dict)
    """The positions in the catalogue of the last sync, if the sources are in it with other positions."""

    @property
    def urls(self) -> Sequence[str]:
        return self.columns[0]

    def __len__(self) -> int:
        return len(self.urls)

    def take(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> SourceBatch:
        """Return some of the sources."""
        chosen = np.asarray(rows, dtype=np.intp)
        if len(chosen) == len(self) and bool((chosen == np.arange(len(self))).all()):
            return self
        return replace(
            self,
            columns=tuple(take_rows(column, chosen) for column in self.columns),
            starts={key: each[chosen] for key, each in self.starts.items()},
            moved_from={key: each[chosen] for key, each in self.moved_from.items()},
            values={path: each[chosen] for path, each in self.values.items()},
            hashes={path: take_rows(each, chosen) for path, each in self.hashes.items()},
        )

    def file(self, row: int) -> SourceFile:
        """Return the file of a source."""
        return SourceFile(*(column[row] for column in self.columns[:5]))

    def source(self, row: int) -> CataloguedSource:
        """Return one of the sources."""
        file, schema = self.file(row), self.template.schema
        if schema is not None:
            made = {path: summarise_coordinate(each[row]) for path, each in self.values.items()}
            hashes = {path: each[row] for path, each in self.hashes.items()}
            schema = replace(
                schema,
                file=file,
                coordinates={path: made.get(path, each) for path, each in schema.coordinates.items()},
                digests={**schema.digests, **hashes},
            )
        return CataloguedSource(file, self.placed(row), schema, self.columns[5][row], self.columns[6][row])

    def placed(self, row: int) -> Mapping[str, Placement]:
        """Return where one of the sources is, by group."""
        if not self.starts:
            return self.template.placed
        return {
            group: replace(each, extent={d: (int(self.starts[group, d][row]), n) for d, (_, n) in each.extent.items()})
            for group, each in self.template.placed.items()
        }

    def key(self) -> str:
        """Return a text that is equal for batches that can be one."""
        tables = _new_tables()
        entry = _encode_template(self.template, tables)
        varying = [sorted(map(str, each)) for each in (self.starts, self.values, self.hashes)]
        shapes = {path: [each.dtype.str, each.shape[1]] for path, each in self.values.items()}
        own = [] if self.starts else list(self.urls)
        return json.dumps([entry, {n: t.values for n, t in tables.items()}, varying, shapes, own], default=_plain)


def join_batches(batches: Iterable[SourceBatch]) -> list[SourceBatch]:
    """Join batches of equal schemas."""
    alike: dict[str, list[SourceBatch]] = {}
    for batch in batches:
        if len(batch):
            alike.setdefault(batch.key(), []).append(batch)
    return [_join_batch(each) if len(each) > 1 else each[0] for each in alike.values()]


def _join_batch(batches: Sequence[SourceBatch]) -> SourceBatch:
    first = batches[0]
    return replace(
        first,
        columns=tuple(list(itertools.chain(*each)) for each in zip(*(batch.columns for batch in batches), strict=True)),
        starts={key: np.concatenate([batch.starts[key] for batch in batches]) for key in first.starts},
        moved_from={},
        values={path: np.concatenate([batch.values[path] for batch in batches]) for path in first.values},
        hashes={path: list(itertools.chain(*(batch.hashes[path] for batch in batches))) for path in first.hashes},
    )


def batch_sources(sources: Iterable[CataloguedSource], rename: Mapping[str, str]) -> list[SourceBatch]:
    """Put sources with equal schemas into batches. `rename` has the new names of dimensions."""
    alike: dict[Any, tuple[SourceBatch, list[CataloguedSource]]] = {}
    known: dict[bytes, int] = {}
    for source in sources:
        template, key = _split(source, rename, known)
        alike.setdefault(key, (template, []))[1].append(source)
    return join_batches(_fill(template, each) for template, each in alike.values())


def _split(
    source: CataloguedSource, rename: Mapping[str, str], known: dict[bytes, int]
) -> tuple[SourceBatch, tuple[Any, ...]]:
    """Return a batch without rows for a source, and a key that is equal for sources of the same batch."""

    def number(value: Any) -> int:
        return known.setdefault(pickle.dumps(value), len(known))

    file, schema, placed = source.file, source.schema, source.placed
    is_regular = bool(placed) and not any(each.first or each.more for each in placed.values())
    starts = [(group, dim) for group, each in placed.items() for dim in each.extent] if is_regular else []
    if not starts:
        template = replace(source, digest=None, listed=0)
        return SourceBatch(template, ()), ("alone", file.url)
    joined = {dim for _, dim in starts}
    placed = {
        group: replace(each, extent={dim: (0, size) for dim, (_, size) in each.extent.items()})
        for group, each in placed.items()
    }
    own = [(group, sorted(each.extent.items()), sorted(each.fills.items())) for group, each in placed.items()]
    values: dict[str, npt.NDArray[Any]] = {}
    hashes: dict[str, Sequence[str]] = {}
    parts: tuple[Any, ...] = ()
    if schema is not None:
        along = joined_variables(schema, joined, rename)
        for path, each in schema.coordinates.items():
            if path in along and each.values is not None and each.values.dtype.kind in "biuf":
                values[path] = each.values[None, :0]
        hashes = {path: () for path in schema.digests if path in along}
        coordinates = {path: _VARIES if path in values else each for path, each in schema.coordinates.items()}
        fixed = {path: digest for path, digest in schema.digests.items() if path not in along}
        parts = (
            tuple((path, number(VARIABLE_FIELDS(each))) for path, each in schema.variables.items()),
            tuple(
                (path, path in values, each.size if path in values else each.digest, dtype_of(each))
                for path, each in schema.coordinates.items()
            ),
            number([schema.format, schema.groups, schema.skipped, schema.referenced, schema.left_out]),
            number([fixed, list(hashes)]),
        )
        schema = replace(schema, coordinates=coordinates, digests=fixed)
    template = CataloguedSource(file, placed, schema)
    batch = SourceBatch(template, (), dict.fromkeys(starts, np.zeros(0, np.int64)), values, hashes)
    return batch, (schema is None, number(own), parts)


def joined_variables(schema: SourceSchema, joined: set[str], rename: Mapping[str, str]) -> set[str]:
    """Return the paths of variables along joined dimensions. Those that files do not have are added to all data."""
    dims = {path: {rename.get(d, d) for d in v.dims} for path, v in schema.variables.items()}
    found = {path for path, own in dims.items() if own & joined}
    if stacked := joined.difference(*dims.values()):
        found |= {path for path, own in dims.items() if own and path not in schema.coordinates}
        names = {path: path.rpartition("/")[2] for path, own in dims.items() if not own}
        found |= {path for path, name in names.items() if rename.get(name, name) in stacked}
    return found


def dtype_of(coordinate: Coordinate) -> str:
    """Return the type of the values of a coordinate. Empty if they are not known."""
    return "" if coordinate.values is None else coordinate.values.dtype.str


def _fill(empty: SourceBatch, sources: Sequence[CataloguedSource]) -> SourceBatch:
    """Return a batch with these sources as its rows."""
    rows = [
        (f.url, f.size_bytes, f.etag, f.last_modified, f.version, each.digest, each.listed)
        for each in sources
        for f in (each.file,)
    ]
    schemas = [each.schema for each in sources if each.schema is not None]
    values: dict[str, npt.NDArray[Any]] = {}
    for path in empty.values:
        values[path] = np.stack([v for s in schemas if (v := s.coordinates[path].values) is not None])
    return replace(
        empty,
        columns=tuple(list(column) for column in zip(*rows, strict=True)),
        starts={
            (group, dim): np.array([each.placed[group].extent[dim][0] for each in sources], dtype=np.int64)
            for group, dim in empty.starts
        },
        values=values,
        hashes={path: [schema.digests[path] for schema in schemas] for path in empty.hashes},
    )


class SourceTable(Mapping[str, CataloguedSource]):
    """Sources by URL: batches, and single sources. A source of a batch becomes an object when it is asked for."""

    def __init__(self, batches: Iterable[SourceBatch] = (), singles: Iterable[CataloguedSource] = ()) -> None:
        self.batches = tuple(batch for batch in batches if len(batch))
        self.singles = {source.file.url: source for source in singles}
        self._ends = list(itertools.accumulate(len(batch) for batch in self.batches))
        self._numbers: dict[str, int] | None = None
        self._made: dict[str, CataloguedSource] = {}

    @property
    def _rows(self) -> dict[str, int]:
        """The number of the row by URL."""
        if self._numbers is None:
            urls = itertools.chain.from_iterable(batch.urls for batch in self.batches)
            self._numbers = {url: number for number, url in enumerate(urls)}
        return self._numbers

    def __getitem__(self, url: str) -> CataloguedSource:
        if (source := self.singles.get(url) or self._made.get(url)) is not None:
            return source
        number = self._rows[url]
        index = bisect.bisect_right(self._ends, number)
        batch = self.batches[index]
        self._made[url] = batch.source(number - self._ends[index] + len(batch))
        return self._made[url]

    def __contains__(self, url: object) -> bool:
        return url in self.singles or url in self._rows

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.singles, *(batch.urls for batch in self.batches))

    def __len__(self) -> int:
        return len(self.singles) + sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Sources of a batch that follow each other along a dimension of a group. They are planned like one source.

    They have the same cells along the other joined dimensions.
    """

    batch: SourceBatch
    rows: npt.NDArray[np.intp]
    """Rows of the batch, in the order of their positions."""
    group: str
    dim: str
    values: npt.NDArray[Any]
    """The coordinate along the dimension, as the sources have it: one row of the table for each of them."""
    leader: int
    """The row of the batch whose source is the first one among the sorted names."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """The number of cells of each source along the dimension."""
        return int(self.values.shape[1])

    @property
    def start(self) -> int:
        """The first cell in the last sync."""
        return int(self.batch.starts[self.group, self.dim][self.rows[0]])

    def former(self, dim: str) -> tuple[int, int]:
        """Return the first cell of each source along another joined dimension in the last sync, and its cells."""
        length = self.batch.template.placed[self.group].extent[dim][1]
        return int(self.batch.starts[self.group, dim][self.rows[0]]), length

    @property
    def urls(self) -> Sequence[str]:
        return take_rows(self.batch.urls, self.rows)

    def file(self, index: int) -> SourceFile:
        """Return the file of a source of the run."""
        return self.batch.file(int(self.rows[index]))

    def version(self, index: int) -> tuple[Any, ...]:
        """Return what tells two contents of the URL of a source apart."""
        file, digest = self.file(index), self.batch.columns[5][int(self.rows[index])]
        return (file.url, digest) if digest else version_of(file)

    def take(self, first: int, end: int) -> SourceRun:
        """Return the sources [first, end) of the run."""
        rows = self.rows[first:end]
        return replace(self, rows=rows, values=self.values[first:end], leader=int(rows[0]))

    def __reduce__(self) -> tuple[Any, ...]:
        # A task needs the files of the run. It does not need their schema, nor the rest of the batch.
        known = self.batch.take(self.rows)
        bare = SourceBatch(replace(self.batch.template, schema=None), known.columns, known.starts)
        leader = self.rows.tolist().index(self.leader)
        return SourceRun, (bare, np.arange(len(self)), self.group, self.dim, self.values, leader)

    def between(self, first: int, end: int) -> range:
        """Return the indexes of the sources that have some of the cells [first, end) of the run."""
        if end <= first:
            return range(0)
        return range(max(0, first) // self.length, max(0, min(len(self), -(-end // self.length))))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The sources of a group of the repository.

    `arrays` has, by path, whether an array is native or virtual, and its joined dimensions. `groups` has the hash of
    the document of every group that the sync wrote.
    """

    sources: SourceTable = field(default_factory=lambda: SourceTable())
    arrays: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    """The chunk lengths that the caller asked for."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`IngestOptions.recorded`."""
    planned_with: str | None = None
    """`IngestOptions.identity`."""


@dataclass(frozen=True, slots=True)
class PositionShift:
    """Positions that a sync changed: those from the cell `firsts[i]` to the next one are `cells[i]` further."""

    group: str
    dim: str
    firsts: tuple[int, ...]
    cells: tuple[int, ...]

    def apply(self, batch: SourceBatch) -> SourceBatch:
        """Return a batch with the new positions."""
        key = (self.group, self.dim)
        if key not in batch.starts:
            return batch
        return replace(batch, starts={**batch.starts, key: self.shifted(batch.starts[key])})

    def shifted(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        index = np.searchsorted(np.array(self.firsts), starts, side="right") - 1
        further: npt.NDArray[np.int64] = np.array(self.cells, dtype=np.int64)[np.maximum(index, 0)]
        return starts + further


@dataclass(frozen=True, slots=True)
class CatalogueObject:
    """An object of a catalogue: the sources that a sync added or replaced, and the URLs of those it removed."""

    key: str
    size_bytes: int
    sources: SourceTable
    """With their present positions."""
    removed: tuple[str, ...]
    version: int = _CATALOGUE_VERSION
    shifts: tuple[PositionShift, ...] = ()
    """The new positions of sources of earlier objects."""


@dataclass(frozen=True, slots=True)
class StoredCatalogue:
    """A catalogue, and the objects that hold it, in the order in which they were written."""

    catalogue: Catalogue
    objects: tuple[CatalogueObject, ...] = ()


def _labels(metadata: Mapping[str, Any], group: str) -> list[tuple[int, str]]:
    """Return the objects of a group in the metadata of a commit, with their numbers."""
    entry = metadata.get(CATALOGUE_KEY)
    found = []
    for label, key in entry.items() if isinstance(entry, Mapping) else ():
        number, _, path = str(label).partition(":")
        if path == group and number.isdigit() and isinstance(key, str):
            found.append((int(number), key))
    return sorted(found)


def changed_nodes(metadata: Mapping[str, Any], group: str) -> frozenset[str]:
    """Return the paths of nodes of a group that commits changed since the last sync. `*` is all of them."""
    entry = metadata.get(CATALOGUE_KEY)
    found = entry.get(f"changed:{group}") if isinstance(entry, Mapping) else None
    return frozenset(map(str, found)) if isinstance(found, list | tuple) else frozenset()


def has_catalogue(metadata: Mapping[str, Any], group: str) -> bool:
    """Return whether the metadata of a commit name a catalogue of a group."""
    return bool(_labels(metadata, group))


def read_catalogue(repository: Repository, metadata: Mapping[str, Any], group: str) -> StoredCatalogue | None:
    """Return the catalogue that the metadata of a commit name, or None if the group was never synced.

    Raises
    ------
    FormatError
        An object of the catalogue is missing or damaged.
    """
    labels = _labels(metadata, group)
    if not labels:
        return None
    documents = [_fetch_segment(repository, key) for _, key in labels]
    objects = _apply_shifts(
        [_decode_segment(key, size, document) for (_, key), (document, size) in zip(labels, documents, strict=True)]
    )
    newest = documents[-1][0]
    arrays = {path: (str(kind), tuple(joined)) for path, (kind, joined) in newest["arrays"].items()}
    sources = _newest_sources(objects)
    catalogue = Catalogue(sources, arrays, newest["groups"], newest["chunks"], *_options_of(newest))
    return StoredCatalogue(catalogue, objects)


def _apply_shifts(objects: Sequence[CatalogueObject]) -> tuple[CatalogueObject, ...]:
    """Move the sources of every object as later objects say."""
    found: list[CatalogueObject] = []
    shifts: list[PositionShift] = []
    for each in reversed(objects):
        found.append(replace(each, sources=_shifted(each.sources, shifts)) if shifts else each)
        shifts = [*each.shifts, *shifts]
    return tuple(reversed(found))


def _shifted(sources: SourceTable, shifts: Iterable[PositionShift]) -> SourceTable:
    batches = sources.batches
    for shift in shifts:
        batches = tuple(shift.apply(batch) for batch in batches)
    return SourceTable(batches, sources.singles.values())


def _find_shifts(now: SourceTable, known: SourceTable) -> list[PositionShift] | None:
    """Return how the sources of the last catalogue moved, or None if each of them must be stored again."""
    moves: dict[tuple[str, str], list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]] = {}
    for batch in now.batches:
        for key, starts in batch.starts.items():
            moves.setdefault(key, []).append((starts if batch.is_stored else batch.moved_from[key], starts))
    for url, source in now.singles.items():
        if source is known.get(url):
            is_regular = not any(each.first or each.more for each in source.placed.values())
            for group, placed in source.placed.items() if is_regular else ():
                for dim, (start, _) in placed.extent.items():
                    moves.setdefault((group, dim), []).append((np.array([start]), np.array([start])))
    shifts: list[PositionShift] = []
    for (group, dim), pairs in moves.items():
        before, after = (np.concatenate(each) for each in zip(*pairs, strict=True))
        order = np.argsort(before, kind="stable")
        before, cells = before[order], (after - before)[order]
        edges = np.concatenate([[0], np.flatnonzero(np.diff(cells)) + 1])
        shift = PositionShift(group, dim, tuple(before[edges].tolist()), tuple(cells[edges].tolist()))
        if len(edges) > _MOST_EDGES or not np.array_equal(shift.shifted(before), before + cells):
            return None
        shifts += [shift] if cells.any() else []
    return shifts


def _newest_sources(objects: Sequence[CatalogueObject]) -> SourceTable:
    """Return every source as the newest object with it describes it."""
    batches: list[SourceBatch] = []
    singles: list[CataloguedSource] = []
    hidden: set[str] = set()
    for each in reversed(objects):
        singles += [source for url, source in each.sources.singles.items() if url not in hidden]
        for batch in each.sources.batches:
            is_hidden = hidden and not hidden.isdisjoint(batch.urls)
            batches.append(
                batch.take([row for row, url in enumerate(batch.urls) if url not in hidden]) if is_hidden else batch
            )
        hidden.update(each.sources, each.removed)
    return SourceTable(batches, singles)


def _options_of(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the options of the last sync. Earlier releases did not store them."""
    return document.get("settings", {}), document.get("planned_with")


def _fetch_segment(repository: Repository, key: str) -> tuple[Mapping[str, Any], int]:
    try:
        if not key.startswith(INGESTED_FOLDER):
            raise ValueError("it is not the name of such an object")
        data = run_blocking(repository.storage.get(key))
        document = json.loads(decompress(data))
        version = document["version"]
        if version not in (_FIRST_VERSION, _CATALOGUE_VERSION):
            raise ValueError(f"it has version {version}, this release reads versions 1 to {_CATALOGUE_VERSION}")
        return document, len(data)
    except (IcefloeError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(key, error) from error


def _unreadable(key: str, error: Exception) -> FormatError:
    return FormatError(
        f"the catalogue of the sources ({key}) cannot be read: {error}. Use rebuild=True (--rebuild) to write the "
        "archive again from the sources",
        key=key,
    )


def _decode_segment(key: str, size: int, document: Mapping[str, Any]) -> CatalogueObject:
    try:
        removed = tuple(document["removed"])
        if document["version"] == _FIRST_VERSION:
            return CatalogueObject(key, size, SourceTable((), _decode_sources(document)), removed, _FIRST_VERSION)
        shared = _Shared(document["tables"])
        batches = [_decode_batch(entry, shared, document["tables"]["placements"]) for entry in document["batches"]]
        shifts = tuple(_decode_shift(*each) for each in document["shifts"])
        return CatalogueObject(key, size, SourceTable(batches), removed, shifts=shifts)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _unreadable(key, error) from error


def _decode_shift(group: str, dim: str, firsts: Sequence[int], cells: Sequence[int]) -> PositionShift:
    if not firsts or len(firsts) != len(cells):
        raise ValueError("its shifts have no cells")
    return PositionShift(str(group), str(dim), tuple(map(int, firsts)), tuple(map(int, cells)))


def write_catalogue(
    repository: Repository,
    metadata: Mapping[str, Any],
    group: str,
    before: StoredCatalogue | None,
    now: Catalogue,
    rename: Mapping[str, str],
) -> dict[str, Any]:
    """Store what changed, and return the metadata entry of the commit. The entries of other groups are kept.

    `rename` has the new names of dimensions.
    """
    known = before.catalogue.sources if before is not None else SourceTable()
    objects = list(before.objects) if before is not None else []
    removed = [url for url in known if url not in now.sources]
    if any(each.version < _CATALOGUE_VERSION for each in objects):
        objects, removed, known = [], [], SourceTable()
    found = _find_shifts(now.sources, known) if objects else []
    shifts, is_stored = found or [], [batch.is_stored or found is not None for batch in now.sources.batches]
    changed = [b for b, is_known in zip(now.sources.batches, is_stored, strict=True) if not (is_known and objects)]
    changed += batch_sources((s for url, s in now.sources.singles.items() if s is not known.get(url)), rename)
    data = _encode_segment(now, changed, removed, shifts)
    # Objects of a similar size are joined. Each source is written again a logarithmic number of times.
    while objects and objects[-1].size_bytes < 2 * len(data):
        last = objects.pop()
        again = {url for batch in changed for url in batch.urls}
        for batch in _shifted(last.sources, found or ()).batches:
            rows = [r for r, url in enumerate(batch.urls) if url not in again and url in now.sources]
            changed.append(batch.take(rows))
        changed = join_batches(changed)
        removed = [*(url for url in last.removed if url not in now.sources), *removed]
        shifts = [*last.shifts, *shifts]
        data = _encode_segment(now, changed, *((removed, shifts) if objects else ((), ())))
    key = f"{INGESTED_FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, data))
    entry = metadata.get(CATALOGUE_KEY)
    others = dict(entry) if isinstance(entry, Mapping) else {}
    others = {label: each for label, each in others.items() if str(label).partition(":")[2] != group}
    own = {f"{number}:{group}": each for number, each in enumerate([*(each.key for each in objects), key])}
    return {CATALOGUE_KEY: {**others, **own}}


class _Table:
    """Values that many sources share. Each is stored once and named by its number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[str, int] = {}

    def number(self, value: Any) -> int:
        text = json.dumps(value, sort_keys=True, default=_plain)
        if text not in self._known:
            self._known[text] = len(self.values)
            self.values.append(json.loads(text))
        return self._known[text]


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biufUS":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _new_tables() -> dict[str, _Table]:
    return {name: _Table() for name in ("variables", "coordinates", "groups", "placements", "rest")}


def _encode_segment(
    catalogue: Catalogue, batches: Sequence[SourceBatch], removed: Iterable[str], shifts: Iterable[PositionShift]
) -> bytes:
    tables = _new_tables()
    document = {
        "version": _CATALOGUE_VERSION,
        "arrays": {path: [kind, list(joined)] for path, (kind, joined) in catalogue.arrays.items()},
        "groups": dict(catalogue.groups),
        "chunks": dict(catalogue.chunks),
        "settings": dict(catalogue.settings),
        "planned_with": catalogue.planned_with,
        "removed": list(removed),
        "shifts": [[each.group, each.dim, each.firsts, each.cells] for each in shifts],
        "batches": [_encode_batch(batch, tables) for batch in join_batches(batches)],
        "tables": {name: table.values for name, table in tables.items()},
    }
    return zstandard.compress(json.dumps(document).encode())


def _encode_batch(batch: SourceBatch, tables: Mapping[str, _Table]) -> dict[str, Any]:
    starts: dict[str, dict[str, list[int]]] = {}
    for (group, dim), each in batch.starts.items():
        starts.setdefault(group, {})[dim] = each.tolist()
    entry = _encode_template(batch.template, tables)
    has_schema = entry[1] is not None
    return {
        "template": entry,
        "columns": [_encode_column(column) for column in batch.columns],
        "starts": starts,
        "values": {
            path: [each.dtype.str, each.shape[1], base64.b64encode(np.ascontiguousarray(each).tobytes()).decode()]
            for path, each in batch.values.items()
            if has_schema
        },
        "hashes": {path: list(each) for path, each in batch.hashes.items() if has_schema},
    }


def _encode_column(column: Sequence[Any]) -> Any:
    """Return a column. One value for all rows is stored once."""
    is_one = all(each == column[0] for each in column)
    return {"rows": len(column), "value": column[0]} if is_one else list(column)


def _count_rows(column: Any) -> int:
    return int(column["rows"]) if isinstance(column, Mapping) else len(column)


def _decode_batch(entry: Mapping[str, Any], shared: _Shared, fills: Sequence[Any]) -> SourceBatch:
    placed, schema = entry["template"]
    stored = entry["columns"]
    count = 1 if isinstance(stored[0], Mapping) else len(stored[0])
    if len(stored) != len(FILE_COLUMNS) or any(_count_rows(column) != count for column in stored):
        raise ValueError("its columns differ in length")
    columns = tuple([each["value"]] * count if isinstance(each, Mapping) else each for each in stored)
    file = SourceFile(*(column[0] for column in columns[:5]))
    template = CataloguedSource(
        file,
        {group: _decode_placement(each, fills) for group, each in placed.items()},
        None if schema is None else shared.schema(file, schema),
    )
    starts = {
        (group, dim): np.array(each, dtype=np.int64)
        for group, dims in entry["starts"].items()
        for dim, each in dims.items()
    }
    values: dict[str, npt.NDArray[Any]] = {}
    for path, (dtype, length, text) in entry["values"].items():
        values[path] = np.frombuffer(base64.b64decode(text), dtype=np.dtype(dtype)).reshape(count, length)
    return SourceBatch(template, columns, starts, values, entry["hashes"], is_stored=True)


def _encode_template(source: CataloguedSource, tables: Mapping[str, _Table]) -> list[Any]:
    """Return what the sources of a batch have in common. Without a JSON form, a schema is parsed by the next sync."""
    placed = {group: _encode_placement(each, tables) for group, each in source.placed.items()}
    schema = None
    if source.schema is not None:
        with contextlib.suppress(TypeError, ValueError):
            schema = encode_schema(source.schema, tables)
    return [placed, schema]


def _encode_placement(placed: Placement, tables: Mapping[str, _Table]) -> list[Any]:
    own = [dict(placed.extent), tables["placements"].number(dict(placed.fills))]
    if not placed.first:
        return own
    return [*own, dict(placed.first), *(_encode_placement(each, tables) for each in placed.more)]


def _decode_placement(entry: Sequence[Any], fills: Sequence[Any]) -> Placement:
    extent, number, *rest = entry
    own = {dim: (start, size) for dim, (start, size) in extent.items()}
    more = tuple(_decode_placement(each, fills) for each in rest[1:])
    return Placement(own, fills[number], rest[0] if rest else {}, more)


def encode_schema(schema: SourceSchema, tables: Mapping[str, _Table]) -> list[Any]:
    """Return a schema without its file as JSON. What files share is in the tables."""
    coordinates = {
        path: None if each is _VARIES else tables["coordinates"].number(_encode_coordinate(each))
        for path, each in schema.coordinates.items()
    }
    return [
        {path: tables["variables"].number(_encode_variable(each)) for path, each in schema.variables.items()},
        coordinates,
        tables["groups"].number(schema.groups),
        tables["rest"].number([schema.format, schema.skipped, schema.referenced, schema.left_out]),
        dict(schema.digests),
    ]


def _encode_variable(variable: SourceVariable) -> list[Any]:
    return [
        variable.path,
        variable.dims,
        variable.shape,
        variable.dtype,
        variable.chunks,
        variable.attributes,
        variable.fill_value,
        variable.codecs,
        variable.layout,
        variable.not_virtual,
        variable.stacked,
        variable.decoded_dtype,
    ]


def _encode_coordinate(coordinate: Coordinate) -> list[Any]:
    values = coordinate.values
    if values is None:
        summary = [coordinate.first, coordinate.last, coordinate.direction, coordinate.step]
        return ["summary", coordinate.size, coordinate.digest, summary]
    if values.dtype.kind in "biuf":
        return ["numbers", values.dtype.str, base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()]
    if values.dtype.kind in "OUT":
        return ["texts", [str(each) for each in values.reshape(-1).tolist()]]
    raise TypeError(f"a coordinate of type {values.dtype} has no JSON form")


def _decode_sources(document: Mapping[str, Any]) -> list[CataloguedSource]:
    """Return the sources of an object of version 1."""
    shared, fills = _Shared(document["tables"]), document["tables"]["placements"]
    found = []
    for entry in document["sources"]:
        file = SourceFile(*entry["file"])
        placed = {group: _decode_placement(each, fills) for group, each in entry["placed"].items()}
        schema = shared.schema(file, entry["schema"]) if "schema" in entry else None
        found.append(CataloguedSource(file, placed, schema, entry.get("digest"), entry["listed"]))
    return found


class _Shared:
    """Decodes every value of the tables once."""

    def __init__(self, tables: Mapping[str, Sequence[Any]]) -> None:
        self._tables = tables
        self._decoded: dict[tuple[str, int], Any] = {}

    def _value(self, table: str, number: int, decode: Callable[[Any], Any]) -> Any:
        if (table, number) not in self._decoded:
            self._decoded[table, number] = decode(self._tables[table][number])
        return self._decoded[table, number]

    def schema(self, file: SourceFile, entry: Sequence[Any]) -> SourceSchema:
        variables, coordinates, groups, rest, digests = entry
        name, skipped, referenced, *left_out = self._tables["rest"][rest]
        return SourceSchema(
            file,
            name,
            {path: self._value("variables", number, _decode_variable) for path, number in variables.items()},
            {
                path: _VARIES if number is None else self._value("coordinates", number, _decode_coordinate)
                for path, number in coordinates.items()
            },
            self._tables["groups"][groups],
            skipped,
            tuple(referenced),
            digests,
            *left_out,
        )


def _decode_variable(entry: Sequence[Any]) -> SourceVariable:
    path, dims, shape, dtype, chunks, attributes, fill, codecs, layout, reason, stacked, decoded = entry
    return SourceVariable(
        path,
        tuple(dims),
        tuple(shape),
        dtype,
        tuple(chunks),
        attributes,
        fill,
        tuple(codecs),
        layout,
        reason,
        int(stacked),
        decoded,
    )


def _decode_coordinate(entry: Sequence[Any]) -> Coordinate:
    kind, *rest = entry
    if kind == "summary":
        size, digest, (first, last, direction, step) = rest
        return Coordinate(size, digest, first, last, direction, step)
    if kind == "numbers":
        return summarise_coordinate(np.frombuffer(base64.b64decode(rest[1]), dtype=np.dtype(rest[0])))
    values: npt.NDArray[Any] = np.array(rest[0], dtype=object)
    return summarise_coordinate(values)


def as_stored(schema: SourceSchema) -> SourceSchema | None:
    """Return a schema as it is read from a catalogue, or None if it has no JSON form.

    Schemas of new and of catalogued sources are planned together. They must not differ by what JSON cannot tell.
    """
    tables = {name: _Table() for name in ("variables", "coordinates", "groups", "rest")}
    try:
        entry = json.loads(json.dumps(encode_schema(schema, tables), default=_plain))
    except (TypeError, ValueError):
        return None
    return _Shared({name: table.values for name, table in tables.items()}).schema(schema.file, entry)
