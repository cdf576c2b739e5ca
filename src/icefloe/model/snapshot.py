"""Nodes, snapshots, transaction logs, and the differences between two snapshots."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from icefloe.blocking import current_time
from icefloe.display.card import (
    Card,
    CardMixin,
    Fact,
    Listing,
    ShownField,
    Styled,
    WithFields,
    format_bytes,
    format_count,
    format_time,
)
from icefloe.errors import FormatError, InvalidInputError, InvalidTypeError, printable
from icefloe.ids import NodeId, ObjectId
from icefloe.model.chunk_table import NO_TABLES, ChunkTable, ChunkTables, widen

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
_CLOCK_DIFFERENCE = dt.timedelta(minutes=5)
"""The largest expected difference between the clocks of two machines."""


def to_microseconds(time: dt.datetime) -> int:
    """A time as files store it. A time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return (time - _EPOCH) // dt.timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> dt.datetime:
    """A time of a file, in UTC."""
    if not 0 <= microseconds <= _LAST:
        raise FormatError(f"a file has the invalid time {microseconds} microseconds after 1970")
    return _EPOCH + dt.timedelta(microseconds=microseconds)


def check_zone(moment: dt.datetime, name: str) -> dt.datetime:
    """Check that a time has a time zone. Raises InvalidTypeError otherwise."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidTypeError(
            f"{name}={moment.isoformat()} has no time zone. Give one, for example datetime.now(timezone.utc) or "
            "datetime(2024, 5, 1, tzinfo=timezone.utc)"
        )
    return moment


def check_past(moment: dt.datetime, name: str, now: dt.datetime) -> dt.datetime:
    """Check that a time has a zone and is not in the future, except for differences between clocks."""
    if check_zone(moment, name) > now + _CLOCK_DIFFERENCE:
        raise InvalidInputError(
            f"{name}={moment.isoformat()} is in the future. The time is {now.isoformat()}. Check the time zone, or "
            "give a time span such as timedelta(days=1)"
        )
    return moment


def later_than(previous: dt.datetime | None, now: dt.datetime | None = None) -> dt.datetime:
    """The recorded time of a commit: the current time, but at least a microsecond after its parent.

    Official libraries refuse to commit a snapshot that is not later than its parent.
    """
    now = now or current_time()
    return now if previous is None or now > previous else previous + dt.timedelta(microseconds=1)


Extents: TypeAlias = tuple[tuple[int, int], ...]
"""[first, end) of chunk indices per dimension. The empty tuple covers everything."""


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest with chunks of an array, and the box of the grid that it covers."""

    manifest_id: ObjectId
    extents: Extents


@dataclass(frozen=True, slots=True)
class RefColumns:
    """Manifests of an array: their ids, and int64[n, ndim, 2] with the box of each."""

    ids: Sequence[ObjectId]
    boxes: npt.NDArray[np.int64]


class ManifestRefs(Sequence[ManifestRef]):
    """The manifests of a large array, as a snapshot stores them. They are decoded when they are asked for.

    `load` returns columns, or objects if they have no common form. Raises FormatError.
    """

    __slots__ = ("_count", "_load", "_loaded", "_refs")

    def __init__(self, count: int, load: Callable[[], RefColumns | tuple[ManifestRef, ...]]) -> None:
        self._count, self._load = count, load
        self._loaded: RefColumns | tuple[ManifestRef, ...] | None = None
        self._refs: tuple[ManifestRef, ...] | None = None

    @classmethod
    def of(cls, columns: RefColumns) -> ManifestRefs:
        """Return manifests that are columns already."""
        return cls(len(columns.ids), lambda: columns)

    def columns(self) -> RefColumns | None:
        """Return the manifests as columns. None if they have no common form."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded if isinstance(self._loaded, RefColumns) else None

    def _objects(self) -> tuple[ManifestRef, ...]:
        if self._refs is None:
            columns = self.columns()
            if columns is None:
                assert isinstance(self._loaded, tuple)
                self._refs = self._loaded
            else:
                extents = [tuple(map(tuple, box)) for box in columns.boxes.tolist()]
                self._refs = tuple(map(ManifestRef, columns.ids, extents))
        return self._refs

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ManifestRef]:
        return iter(self._objects())

    @overload
    def __getitem__(self, index: int) -> ManifestRef: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ManifestRef, ...]: ...

    def __getitem__(self, index: int | slice) -> ManifestRef | tuple[ManifestRef, ...]:
        columns = self.columns()
        if isinstance(index, slice) or columns is None or self._refs is not None:
            return self._objects()[index]
        return ManifestRef(columns.ids[index], tuple(map(tuple, columns.boxes[index].tolist())))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self._objects() == tuple(other) if isinstance(other, ManifestRefs | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._objects())

    def __repr__(self) -> str:
        return repr(self._objects())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._objects(),)


def columns_of(refs: Sequence[ManifestRef]) -> RefColumns | None:
    """Return manifests as columns, if they are that already."""
    return refs.columns() if isinstance(refs, ManifestRefs) else None


def manifest_ids(refs: Sequence[ManifestRef]) -> Sequence[ObjectId]:
    """Return the ids of manifests."""
    columns = columns_of(refs)
    return [ref.manifest_id for ref in refs] if columns is None else columns.ids


def join_refs(refs: Sequence[ManifestRef], added: Sequence[ManifestRef]) -> Sequence[ManifestRef]:
    """Return the manifests of an array with others, in the order of their boxes."""
    columns = columns_of(refs)
    if columns is None or not all(len(ref.extents) == columns.boxes.shape[1] for ref in added):
        return tuple(sorted((*refs, *added), key=attrgetter("extents", "manifest_id")))
    boxes = np.concatenate([columns.boxes, np.array([ref.extents for ref in added], dtype=np.int64)])
    ids = [*columns.ids, *(ref.manifest_id for ref in added)]
    # The last key of `lexsort` is the first one.
    order = np.lexsort(boxes.reshape(len(boxes), -1).T[::-1])
    boxes = boxes[order]
    if bool((boxes[1:] == boxes[:-1]).all(axis=(1, 2)).any()):
        return tuple(sorted((*refs, *added), key=attrgetter("extents", "manifest_id")))
    return ManifestRefs.of(RefColumns([ids[index] for index in order.tolist()], boxes))


@dataclass(frozen=True, slots=True)
class AttributesRef:
    """The location of the attributes of a node, if they are not in its document."""

    object_id: ObjectId
    row: int


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A group: its id, path, and zarr.json as written.

    If `attributes` is set, the document has `{}` for its attributes, and the real ones are in that file.
    """

    id: NodeId
    path: str
    document: bytes
    attributes: AttributesRef | None = None


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """An array: the same as a group, plus its grid and the manifests with its chunks."""

    id: NodeId
    path: str
    document: bytes
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    """Number of chunks per dimension."""
    dimension_names: tuple[str | None, ...] | None = None
    manifests: Sequence[ManifestRef] = field(default=())
    attributes: AttributesRef | None = None

    def with_manifests(self, manifests: Sequence[ManifestRef]) -> ArrayNode:
        """The same array with other manifests."""
        # For speed: the constructor of a frozen class takes twice as long as setting its slots,
        # `dataclasses.replace` several times.
        twin = object.__new__(ArrayNode)
        _set_id(twin, self.id)
        _set_path(twin, self.path)
        _set_document(twin, self.document)
        _set_shape(twin, self.shape)
        _set_grid(twin, self.grid)
        _set_dimension_names(twin, self.dimension_names)
        _set_manifests(twin, manifests)
        _set_attributes(twin, self.attributes)
        return twin


_set_id, _set_path, _set_document, _set_shape, _set_grid, _set_dimension_names, _set_manifests, _set_attributes = (
    ArrayNode.__dict__[name].__set__ for name in ArrayNode.__slots__
)


Node: TypeAlias = GroupNode | ArrayNode


class StoredNodes(Mapping[str, Node]):
    """The nodes of a snapshot file by path. A node is decoded at its first use."""

    @abstractmethod
    def paths_by_id(self) -> Mapping[NodeId, str]:
        """Return the path of every node. No other part of a node is decoded."""


def find_nodes(nodes: Mapping[str, Node], ids: Set[NodeId]) -> dict[NodeId, Node]:
    """Return the nodes with some ids. Those that are not there are left out."""
    if not isinstance(nodes, StoredNodes):
        return {node.id: node for node in nodes.values() if node.id in ids}
    paths = nodes.paths_by_id()
    return {node_id: nodes[paths[node_id]] for node_id in ids if node_id in paths}


INGESTED_KEY = "icefloe.ingested"
"""Metadata that a commit inherits from its parent: a list of texts that records which sources were ingested.

History may be expired, squashed or converted. So the list of the sources of a snapshot is in the snapshot itself.
"""

INGEST_KEY = "icefloe.ingest"
"""The record of the ingest that created a commit."""

CATALOGUE_KEY = "icefloe.catalogue"
"""Metadata that a commit inherits from its parent: the objects that describe the sources of synced groups.

The labels of objects are `NUMBER:GROUP`. `changed:GROUP` lists the nodes that commits changed since the last sync.
"""
MOST_CHANGED = 64
"""More changed nodes are recorded as `*`."""

INGESTED_FOLDER = "icefloe-ingested/"
"""The folder of objects that texts of the list refer to."""

INLINE_SOURCES, REMOVED_SOURCES = "=", "-"
"""Prefixes of texts of the list: fingerprints in base64, and sources that were removed."""

REWRITTEN_PARENT_KEY = "icefloe_rewritten_parent"
"""Metadata of a compaction: the snapshot whose chunks it contains, in other objects.

It has no meaning after expiry gave the commit another parent. No other commit can have this key.
"""


def inherit_metadata(
    parent: Mapping[str, Any], own: Mapping[str, Any], changed: Callable[[], Iterable[str]] = tuple
) -> Mapping[str, Any]:
    """The metadata of a commit: its own, and what it inherits from its parent.

    A commit adds to the list with a list, or changes it with a mapping of texts to `add` and to `drop`. Later texts
    take precedence, so new texts are last. `changed` returns the paths of the nodes that the commit changes.
    """
    if REWRITTEN_PARENT_KEY in own:
        own = {key: value for key, value in own.items() if key != REWRITTEN_PARENT_KEY}
    if CATALOGUE_KEY in parent and CATALOGUE_KEY not in own:
        own = {**own, CATALOGUE_KEY: _with_changed(parent[CATALOGUE_KEY], changed())}
    if INGESTED_KEY not in parent and INGESTED_KEY not in own:
        return own
    change = own.get(INGESTED_KEY)
    added, dropped = change, ()
    if isinstance(change, Mapping):
        added, dropped = change.get("add"), change.get("drop") or ()
    more = _texts(added)
    kept = [text for text in ingested_texts(parent) if text not in dropped and text not in more]
    return {**own, INGESTED_KEY: [*kept, *more]}


def _with_changed(entry: Any, changed: Iterable[str]) -> Any:
    """The catalogues of a commit that changes nodes of synced groups."""
    if not isinstance(entry, Mapping):
        return entry
    paths = [path.strip("/") for path in changed]
    found = dict(entry)
    for group in {str(label).partition(":")[2] for label in entry}:
        own = {path for path in paths if not group or path == group or path.startswith(f"{group}/")}
        label = f"changed:{group}"
        if own:
            known = own | set(_texts(entry.get(label)))
            found[label] = sorted(known) if len(known) <= MOST_CHANGED and "*" not in known else ["*"]
    return found


def ingested_texts(metadata: Mapping[str, Any]) -> list[str]:
    """The list of a commit. Empty if there is none."""
    return _texts(metadata.get(INGESTED_KEY))


def _texts(value: Any) -> list[str]:
    # Metadata may come from any writer.
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []


def named_objects(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The objects that the metadata of a commit refers to, in an entry or inside of one."""
    texts: list[Any] = []
    for value in metadata.values():
        texts += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    named = (text.removeprefix(REMOVED_SOURCES) for text in texts if isinstance(text, str))
    return tuple(dict.fromkeys(text for text in named if text.startswith(INGESTED_FOLDER)))


def own_sources(metadata: Mapping[str, Any]) -> list[str]:
    """The new text of the list for an ingest: the name of an object, or the fingerprints themselves."""
    entry = metadata.get(INGEST_KEY)
    if not isinstance(entry, Mapping):
        return []
    key, inline = entry.get("fingerprints_object"), entry.get("fingerprints")
    if isinstance(key, str):
        return [key]
    return [INLINE_SOURCES + inline] if isinstance(inline, str) and inline else []


def added_sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The sources ingested between two commits, as list entries."""
    before = set(ingested_texts(old))
    return [text for text in ingested_texts(new) if text not in before]


def reverted_sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The list entries that undo what the commit `new` on top of `old` added to the list of ingested sources."""
    # The commit of an ingest may also have joined texts of others. Its entry contains its own sources.
    done = own_sources(new) or added_sources(old, new)
    sign = REMOVED_SOURCES
    return [text.removeprefix(sign) if text.startswith(sign) else sign + text for text in done]


@dataclass(frozen=True, slots=True, repr=False)
class ManifestFileInfo(WithFields):
    """A manifest file of a snapshot.

    Parameters
    ----------
    id
        The id of the manifest.
    size_bytes
        The size of the file.
    num_chunk_refs
        The number of chunk references in it.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repo.list_manifest_files(repo.lookup_branch("main"))
    []
    """

    _full_name = "icechunk.snapshots.ManifestFileInfo"

    id: ObjectId
    size_bytes: int
    num_chunk_refs: int


class ManifestFiles(Mapping[ObjectId, ManifestFileInfo]):
    """Many manifest files by their ids. They are decoded when they are asked for."""

    def __init__(self, load: Callable[[], dict[ObjectId, ManifestFileInfo]]) -> None:
        self._load = load
        self._loaded: dict[ObjectId, ManifestFileInfo] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all files are known without another request."""
        return True

    def _files(self) -> dict[ObjectId, ManifestFileInfo]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def __getitem__(self, manifest_id: ObjectId) -> ManifestFileInfo:
        return self._files()[manifest_id]

    def __iter__(self) -> Iterator[ObjectId]:
        return iter(self._files())

    def __len__(self) -> int:
        return len(self._files())

    def values(self) -> ValuesView[ManifestFileInfo]:
        return self._files().values()

    def items(self) -> ItemsView[ObjectId, ManifestFileInfo]:
        return self._files().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._files(),)


class _ListedFiles(Sequence[ManifestFileInfo]):
    """The same files in their order."""

    def __init__(self, files: ManifestFiles) -> None:
        self._files = files

    def _tuple(self) -> tuple[ManifestFileInfo, ...]:
        return tuple(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[ManifestFileInfo]:
        return iter(self._files.values())

    @overload
    def __getitem__(self, index: int) -> ManifestFileInfo: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ManifestFileInfo, ...]: ...

    def __getitem__(self, index: int | slice) -> ManifestFileInfo | tuple[ManifestFileInfo, ...]:
        return self._tuple()[index]

    def __repr__(self) -> str:
        return repr(self._tuple())

    def __eq__(self, other: object) -> bool:
        return self._tuple() == tuple(other) if isinstance(other, _ListedFiles | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._tuple())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._tuple(),)


@dataclass(frozen=True, slots=True)
class BranchPosition:
    """A snapshot that a branch pointed to.

    Parameters
    ----------
    snapshot_id
        The snapshot.
    since
        The time when the branch was moved to it.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> [position.snapshot_id == repo.lookup_branch("main") for position in repo.reflog("main")]
    [True]
    """

    snapshot_id: ObjectId
    since: dt.datetime


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo(CardMixin, WithFields):
    """A commit in the history of a repository.

    Parameters
    ----------
    id
        The id of the snapshot.
    parent_id
        The id of the previous snapshot. None for the first one.
    written_at
        The time of the commit.
    message
        The message of the commit.
    metadata
        The metadata of the commit.
    manifests
        The manifest files of the snapshot.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> [info.message for info in repo.ancestry(branch="main")]
    ['Repository initialized']
    """

    _full_name = "icechunk.snapshots.SnapshotInfo"

    id: ObjectId
    parent_id: ObjectId | None
    written_at: dt.datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    manifests: Sequence[ManifestFileInfo] = field(default=(), compare=False)

    def _shown_fields(self) -> Iterator[ShownField]:
        for name in ("id", "parent_id", "written_at", "message", "metadata"):
            yield ShownField(name, getattr(self, name))

    def _card(self) -> Card:
        size = sum(manifest.size_bytes for manifest in self.manifests)
        refs = sum(manifest.num_chunk_refs for manifest in self.manifests)
        metadata: list[Fact] = [(key, str(value)) for key, value in sorted(self.metadata.items())]
        content = (
            f"{format_count(len(self.manifests), 'manifest')}, {format_bytes(size)}, {format_count(refs, 'chunk')}"
        )
        manifests: list[Fact] = [("holds", content)] if self.manifests else []
        return Card(
            "Snapshot",
            Styled(self.id, "code"),
            [
                ("message", self.message),
                ("written", format_time(self.written_at)),
                ("parent", Styled(self.parent_id, "code") if self.parent_id else "none: the first one"),
                *metadata,
                *manifests,
            ],
            path=self._full_name,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a snapshot file. `nodes` is ordered by path (raw UTF-8 bytes)."""

    id: ObjectId
    parent_id: ObjectId | None
    written_at: dt.datetime
    message: str
    metadata: Mapping[str, Any]
    nodes: Mapping[str, Node]
    manifests: Mapping[ObjectId, ManifestFileInfo]
    attribute_files: tuple[ObjectId, ...] = ()
    history: tuple[SnapshotInfo, ...] = ()
    """Newest ancestors, newest first, if the generation stores them in the file. The list may be incomplete."""
    total_ancestors: int | None = None
    started_at: dt.datetime | None = None

    @property
    def info(self) -> SnapshotInfo:
        """A description. It has no manifests if manifest lists are not loaded, like that of a quoted ancestor."""
        files = self.manifests
        listed: Sequence[ManifestFileInfo]
        if isinstance(files, ManifestFiles):
            listed = _ListedFiles(files) if files.is_complete else ()
        else:
            listed = tuple(files.values())
        return SnapshotInfo(self.id, self.parent_id, self.written_at, self.message, self.metadata, listed)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The chunk references of one or several arrays, in one file."""

    id: ObjectId
    tables: Mapping[NodeId, ChunkTable]

    def __len__(self) -> int:
        if isinstance(self.tables, ChunkTables):
            return len(self.tables.rows)
        return sum(len(table) for table in self.tables.values())

    @property
    def nbytes(self) -> int:
        """Memory used, for caches."""
        if isinstance(self.tables, ChunkTables):
            return self.tables.nbytes
        return sum(table.nbytes for table in self.tables.values())


@dataclass(frozen=True, slots=True)
class Move:
    """A node with a new path. Descendants have separate entries."""

    from_path: str
    to_path: str
    node_id: NodeId
    is_array: bool


@dataclass(frozen=True, slots=True, eq=False)
class WrittenChunks(Mapping[NodeId, npt.NDArray[np.uint32]]):
    """Coordinates by array. Those of many arrays are in common columns. No array is in both."""

    together: ChunkTables
    alone: Mapping[NodeId, npt.NDArray[np.uint32]]

    def __getitem__(self, node_id: NodeId) -> npt.NDArray[np.uint32]:
        found = self.alone.get(node_id)
        return self.together[node_id].coords if found is None else found

    def __iter__(self) -> Iterator[NodeId]:
        yield from self.alone
        yield from self.together

    def __len__(self) -> int:
        return len(self.alone) + len(self.together)


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """The coordinates of some arrays, concatenated.

    They have the largest rank, and are zero beyond the rank of an array.
    """

    nodes: list[NodeId]
    counts: npt.NDArray[np.int64]
    ndims: npt.NDArray[np.int64]
    coords: npt.NDArray[np.uint32]


def join_written(chunks: Mapping[NodeId, npt.NDArray[np.uint32]]) -> WrittenColumns:
    """The coordinates of all arrays in one column."""
    together, alone = (chunks.together, chunks.alone) if isinstance(chunks, WrittenChunks) else (NO_TABLES, chunks)
    listed = list(alone.values())
    ndims = np.concatenate([together.ndims, np.array([each.shape[1] for each in listed], dtype=np.int64)])
    width = int(ndims.max(initial=0))
    parts = [*([together.rows.coords] if len(together) else []), *listed]
    return WrittenColumns(
        [*together.nodes, *alone],
        np.concatenate([together.counts, np.array([len(each) for each in listed], dtype=np.int64)]),
        ndims,
        np.concatenate([np.zeros((0, width), dtype=np.uint32), *[widen(part, width) for part in parts]]),
    )


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """Sets of node ids, and the coordinates of the chunks that were set, replaced or deleted.

    A snapshot shows whether an updated node is an array or a group, because early files do not distinguish them.
    """

    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, npt.NDArray[np.uint32]] = field(default_factory=dict)
    """uint32[n, ndim] per array, unique rows in lexicographic order."""
    moves: tuple[Move, ...] = ()
    updated_boxes: Mapping[NodeId, tuple[Extents, ...]] = field(default_factory=dict)
    """Boxes of the chunk grid in which a distributed write set chunks. Its manifests contain which ones."""

    def is_empty(self) -> bool:
        return not (
            self.new_groups
            or self.new_arrays
            or self.deleted_groups
            or self.deleted_arrays
            or self.updated_groups
            or self.updated_arrays
            or self.updated_chunks
            or self.moves
            or self.updated_boxes
        )

    @property
    def only_adds(self) -> bool:
        """Whether the change did nothing but create nodes and write chunks."""
        return not (
            self.deleted_groups or self.deleted_arrays or self.updated_groups or self.updated_arrays or self.moves
        )


@dataclass(frozen=True)
class Diff(CardMixin):
    """The differences between two snapshots.

    Parameters
    ----------
    new_groups, new_arrays
        The paths of new nodes.
    deleted_groups, deleted_arrays
        The paths of deleted nodes.
    updated_groups, updated_arrays
        The paths of nodes with changed metadata.
    chunk_coords
        The coordinates of written chunks by array, as rows of an array.
    moved_nodes
        The old and the new path of moved nodes.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="t", shape=3, dtype="f4")
    >>> first = list(repo.ancestry(branch="main"))[-1].id
    >>> repo.diff(from_snapshot_id=first, to_branch="main").new_arrays
    {'/t'}
    """

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    chunk_coords: Mapping[str, npt.NDArray[np.uint32]] = field(default_factory=dict)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """The coordinates of written chunks by array, as lists."""
        return {path: coords.tolist() for path, coords in self.chunk_coords.items()}

    @property
    def replaced_arrays(self) -> set[str]:
        """The paths at which an array was deleted and another one was created."""
        return self.new_arrays & self.deleted_arrays

    def is_empty(self) -> bool:
        """Return whether there is no difference.

        Returns
        -------
        bool
            Whether both snapshots are the same.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.diff(from_branch="main", to_branch="main").is_empty()
        True
        """
        return not (
            self.new_groups
            or self.new_arrays
            or self.deleted_groups
            or self.deleted_arrays
            or self.updated_groups
            or self.updated_arrays
            or self.chunk_coords
            or self.moved_nodes
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Diff):
            return NotImplemented
        names = (
            "new_groups",
            "new_arrays",
            "deleted_groups",
            "deleted_arrays",
            "updated_groups",
            "updated_arrays",
            "moved_nodes",
            "updated_chunks",
        )
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def _card(self) -> Card:
        chunks = [f"{path}: {format_count(len(found), 'chunk')}" for path, found in sorted(self.chunk_coords.items())]
        listings = (
            Listing("new groups", "added", sorted(self.new_groups)),
            Listing("new arrays", "added", sorted(self.new_arrays - self.replaced_arrays)),
            Listing("deleted groups", "removed", sorted(self.deleted_groups)),
            Listing("deleted arrays", "removed", sorted(self.deleted_arrays - self.replaced_arrays)),
            Listing("replaced arrays", "changed", sorted(self.replaced_arrays)),
            Listing("updated groups", "changed", sorted(self.updated_groups)),
            Listing("updated arrays", "changed", sorted(self.updated_arrays)),
            Listing("moved", "tag", [f"{old} → {new}" for old, new in self.moved_nodes]),
            Listing("updated chunks", "changed", chunks),
        )
        filled = [each for each in listings if each.entries]
        return Card("Diff", "no changes" if self.is_empty() else "", (), filled, path="icechunk.snapshots.Diff")

    def __repr__(self) -> str:
        lines = []
        for title, paths in (
            ("Groups created", self.new_groups),
            ("Arrays created", self.new_arrays),
            ("Group definitions updated", self.updated_groups),
            ("Array definitions updated", self.updated_arrays),
            ("Groups deleted", self.deleted_groups),
            ("Arrays deleted", self.deleted_arrays),
        ):
            if paths:
                lines += [f"{title}:", *(f"    {path}" for path in sorted(paths)), ""]
        if self.moved_nodes:
            lines += ["Nodes moved/renamed:", *(f"    {old} -> {new}" for old, new in self.moved_nodes), ""]
        if self.chunk_coords:
            lines.append("Chunks updated:")
            for path in sorted(self.chunk_coords):
                coords = self.chunk_coords[path]
                lines.append(f"    {path}:")
                lines += [f"        {row}" for row in coords[:10].tolist()]
                if len(coords) > 10:
                    lines.append(f"        ... {len(coords) - 10} more")
        return printable("".join(f"{line}\n" for line in lines)) or "(no changes)"
