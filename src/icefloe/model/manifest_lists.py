"""Manifest lists: files with neighbouring manifests of an array that has very many of them.

A snapshot file contains a summary of each list instead of its manifests. So neither the file nor a small commit grows
with the number of manifests. A commit rewrites the lists that it changes. Snapshots share the others. The lists of an
array are in the order of their manifests, and the manifests are in the order of their boxes, which do not overlap.

The content of a list is loaded on demand, with a request. Code that needs it does not wait by itself: it raises
`ListsNotLoadedError`, and its caller loads the lists and tries again. So a manifest in a list that is not loaded is
never mistaken for one that does not exist.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.ids import ObjectId
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    ManifestRefs,
    Node,
    RefColumns,
    Snapshot,
)

Boxes: TypeAlias = npt.NDArray[np.int64]
"""int64[n, ndim, 2]: [first, end) per dimension."""


class ListsNotLoadedError(RuntimeError):
    """Manifest lists were used before they were loaded. `MetadataFiles.load_lists` loads them."""

    def __init__(self, lists: Iterable[ManifestList]) -> None:
        self.lists = tuple(lists)
        super().__init__(
            f"{len(self.lists)} manifest lists were used before they were loaded, for example {self.lists[0].id}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class ListContent:
    """The manifests of a list, with the size and the number of references of each."""

    columns: RefColumns
    sizes: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def infos(self) -> Iterator[ManifestFileInfo]:
        """The manifest files."""
        return map(ManifestFileInfo, self.columns.ids, self.sizes.tolist(), self.counts.tolist())


@dataclass(frozen=True, slots=True)
class ListSummary:
    """What a snapshot file contains of a list."""

    id: ObjectId
    count: int
    """The number of manifests."""
    chunk_refs: int
    size_bytes: int
    """Of the manifests together."""
    bounds: Extents
    """The box around all manifests."""
    first: Extents
    """The box of the first manifest."""
    last: Extents
    """The box of the last manifest."""
    crossing: tuple[int, ...]
    """Per dimension, the bits in which the first and the last chunk of a manifest differ, for all manifests together.

    They show how large the cells of an array are.
    """

    @classmethod
    def of(cls, list_id: ObjectId, content: ListContent) -> ListSummary:
        """Summarise a list."""
        boxes = content.columns.boxes
        bounds = np.stack([boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)], axis=1)
        return cls(
            list_id,
            len(boxes),
            int(content.counts.sum()),
            int(content.sizes.sum()),
            _extents(bounds),
            _extents(boxes[0]),
            _extents(boxes[-1]),
            tuple(crossing_bits(boxes).tolist()),
        )


def crossing_bits(boxes: Boxes) -> npt.NDArray[np.int64]:
    """Per dimension, the bits in which the first and the last chunk of a box differ, for all boxes together."""
    last = np.maximum(boxes[:, :, 1] - 1, boxes[:, :, 0])
    found: npt.NDArray[np.int64] = np.bitwise_or.reduce(boxes[:, :, 0] ^ last, axis=0)
    return found


def is_in_order(boxes: Boxes) -> bool:
    """Whether boxes are sorted as their extents are. No two of them are equal."""
    numbers = boxes.reshape(len(boxes), -1)
    differs = numbers[1:] != numbers[:-1]
    rows, column = np.arange(len(boxes) - 1), differs.argmax(axis=1)
    return bool((numbers[:-1][rows, column] < numbers[1:][rows, column]).all())


def _extents(box: npt.NDArray[np.int64]) -> Extents:
    return tuple(map(tuple, box.tolist()))


class ManifestList:
    """A manifest list of a snapshot. Its content never changes, and is kept once it is loaded."""

    __slots__ = ("_by_id", "_content", "summary")

    def __init__(self, summary: ListSummary, content: ListContent | None = None) -> None:
        self.summary = summary
        self._content = content
        self._by_id: dict[ObjectId, ManifestFileInfo] | None = None

    @property
    def id(self) -> ObjectId:
        return self.summary.id

    @property
    def is_loaded(self) -> bool:
        """Whether the content is in memory."""
        return self._content is not None

    @property
    def content(self) -> ListContent:
        """The content. Raises ListsNotLoadedError."""
        if self._content is None:
            raise ListsNotLoadedError([self])
        return self._content

    @property
    def columns(self) -> RefColumns:
        """The manifests. Raises ListsNotLoadedError."""
        return self.content.columns

    @property
    def first(self) -> Extents:
        return self.summary.first

    def fill(self, content: ListContent) -> None:
        """Keep the content. Raises FormatError if it is that of another list."""
        if self._content is not None:
            return
        if ListSummary.of(self.id, content) != self.summary:
            raise FormatError(f"the manifest list {self.id} differs from what the snapshot records of it")
        self._content = content

    def by_id(self) -> Mapping[ObjectId, ManifestFileInfo]:
        """The manifest files by their ids. Raises ListsNotLoadedError."""
        if self._by_id is None:
            self._by_id = {info.id: info for info in self.content.infos()}
        return self._by_id

    def __len__(self) -> int:
        return self.summary.count

    def __eq__(self, other: object) -> bool:
        return self.summary == other.summary if isinstance(other, ManifestList) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.summary.id)

    def __repr__(self) -> str:
        return f"ManifestList({self.summary!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ManifestList, (self.summary, self._content)


@dataclass(frozen=True, slots=True, eq=False)
class EditedList:
    """The manifests of a list after a change. They are not written yet."""

    columns: RefColumns
    first: Extents
    """The box of the first manifest before the change. Later ones belong to this list, or to one after it."""

    def __len__(self) -> int:
        return len(self.columns.ids)


class ListedRefs(ManifestRefs):
    """The manifests of an array that are in lists. Using those of a list needs it to be loaded."""

    __slots__ = ("_bounds", "lists")

    def __init__(self, lists: Iterable[ManifestList | EditedList]) -> None:
        self.lists = tuple(lists)
        self._bounds: Boxes | None = None
        super().__init__(sum(map(len, self.lists)), self._join)

    def _join(self) -> RefColumns:
        if missing := missing_lists(self.lists):
            raise ListsNotLoadedError(missing)
        columns = [each.columns for each in self.lists]
        ids = tuple(itertools.chain.from_iterable(each.ids for each in columns))
        return RefColumns(ids, np.concatenate([each.boxes for each in columns]))

    @property
    def bounds(self) -> Boxes:
        """The box around the manifests of each list."""
        if self._bounds is None:
            assert all(isinstance(each, ManifestList) for each in self.lists), "lists are written before they are used"
            self._bounds = np.array(
                [each.summary.bounds for each in self.lists if isinstance(each, ManifestList)], dtype=np.int64
            )
        return self._bounds

    def meeting(self, *boxes: Extents | Boxes) -> list[ManifestList]:
        """The lists that may have manifests in one of some boxes of the grid."""
        found = np.zeros(len(self.lists), dtype=bool)
        for box in boxes:
            sides = np.asarray(box, dtype=np.int64).reshape(-1, 2)
            found |= ((self.bounds[:, :, 0] < sides[:, 1]) & (self.bounds[:, :, 1] > sides[:, 0])).all(axis=1)
        return self.select(np.flatnonzero(found))

    def holding(self, coords: npt.NDArray[np.uint32]) -> list[ManifestList]:
        """The lists that may have manifests with some of these chunks."""
        near = self.meeting(np.stack([coords.min(axis=0), coords.max(axis=0).astype(np.int64) + 1], axis=1))
        found = []
        for each in near:
            first, end = np.array(each.summary.bounds, dtype=np.int64).T
            if ((coords >= first) & (coords < end)).all(axis=1).any():
                found.append(each)
        return found

    def at(self, coords: Sequence[int]) -> list[ManifestList]:
        """The lists that may have manifests with a chunk."""
        point = np.asarray(coords, dtype=np.int64)
        inside = ((self.bounds[:, :, 0] <= point) & (point < self.bounds[:, :, 1])).all(axis=1)
        return self.select(np.flatnonzero(inside))

    def select(self, positions: npt.NDArray[np.intp]) -> list[ManifestList]:
        """The lists at some positions."""
        chosen = [self.lists[position] for position in positions.tolist()]
        return [each for each in chosen if isinstance(each, ManifestList)]

    def without(self, rows: Mapping[int, Sequence[int]]) -> ListedRefs:
        """The same lists without some manifests: their rows, by the position of the list."""
        lists: list[ManifestList | EditedList] = list(self.lists)
        for position, gone in rows.items():
            edited = lists[position]
            stays = np.ones(len(edited), dtype=bool)
            stays[list(gone)] = False
            lists[position] = EditedList(_select(edited.columns, stays), edited.first)
        return ListedRefs(lists)

    def joined(self, added: Iterable[ManifestRef]) -> ListedRefs:
        """The same lists with other manifests, in the order of their boxes. Raises ListsNotLoadedError."""
        firsts = [each.first for each in self.lists]
        places: dict[int, list[ManifestRef]] = {}
        for ref in added:
            position = max(bisect.bisect_right(firsts, ref.extents) - 1, 0)
            places.setdefault(self._prefer_edited(position, ref.extents), []).append(ref)
        if missing := missing_lists(self.lists[position] for position in places):
            raise ListsNotLoadedError(missing)
        lists: list[ManifestList | EditedList] = list(self.lists)
        for position, refs in places.items():
            edited = lists[position]
            first = min(edited.first, *(ref.extents for ref in refs))
            lists[position] = EditedList(_insert(edited.columns, refs), first)
        return ListedRefs(lists)

    def _prefer_edited(self, position: int, box: Extents) -> int:
        """The list after this one, if it has to be written anyway and the order allows it."""
        own, following = self.lists[position], self.lists[position + 1 : position + 2]
        is_after = isinstance(own, ManifestList) and own.summary.last < box
        return position + 1 if is_after and following and isinstance(following[0], EditedList) else position

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ListedRefs) and self.lists == other.lists:
            return True
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"ListedRefs({len(self)} manifests in {len(self.lists)} lists)"

    def __reduce__(self) -> tuple[Any, ...]:
        return ListedRefs, (self.lists,)


def _select(columns: RefColumns, rows: npt.NDArray[np.bool_]) -> RefColumns:
    return RefColumns([*itertools.compress(columns.ids, rows.tolist())], columns.boxes[rows])


def _insert(columns: RefColumns, refs: Sequence[ManifestRef]) -> RefColumns:
    boxes = np.concatenate([columns.boxes, np.array([ref.extents for ref in refs], dtype=np.int64)])
    ids = [*columns.ids, *(ref.manifest_id for ref in refs)]
    # The last key of `lexsort` is the first one.
    order = np.lexsort(boxes.reshape(len(boxes), -1).T[::-1])
    return RefColumns([ids[row] for row in order.tolist()], boxes[order])


def missing_lists(lists: Iterable[ManifestList | EditedList]) -> list[ManifestList]:
    """The lists that are not loaded."""
    return [each for each in lists if isinstance(each, ManifestList) and not each.is_loaded]


class ListedFiles(ManifestFiles):
    """The manifest files of a snapshot, where some are in manifest lists.

    Parameters
    ----------
    own
        The files that are in no list.
    lists
        The lists of all arrays.
    """

    def __init__(self, own: Mapping[ObjectId, ManifestFileInfo], lists: Iterable[ManifestList]) -> None:
        super().__init__(self._join)
        self.own = own
        self.lists = tuple(lists)
        self._found: dict[ObjectId, ManifestFileInfo] = {}
        """The files of lists in which one was found."""
        self._next = 0
        """The list after the last of these."""

    @property
    def is_complete(self) -> bool:
        return not missing_lists(self.lists)

    def _join(self) -> dict[ObjectId, ManifestFileInfo]:
        if missing := missing_lists(self.lists):
            raise ListsNotLoadedError(missing)
        files = dict(self.own.items())
        for each in self.lists:
            files |= each.by_id()
        return files

    def __getitem__(self, manifest_id: ObjectId) -> ManifestFileInfo:
        found = self._found.get(manifest_id)
        if found is None and self._loaded is None:
            found = self.own.get(manifest_id) or self._find_in_lists(manifest_id)
        return super().__getitem__(manifest_id) if found is None else found

    def _find_in_lists(self, manifest_id: ObjectId) -> ManifestFileInfo | None:
        # A commit looks up all manifests of a list or two, not one of every list. They are in order.
        for position in itertools.chain(range(self._next, len(self.lists)), range(self._next)):
            each = self.lists[position]
            if each.is_loaded and manifest_id in each.by_id():
                self._found |= each.by_id()
                self._next = position + 1
                return self._found[manifest_id]
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return ListedFiles, (dict(self.own.items()), self.lists)


def lists_of(snapshot: Snapshot) -> tuple[ManifestList, ...]:
    """The manifest lists of all arrays of a snapshot."""
    return snapshot.manifests.lists if isinstance(snapshot.manifests, ListedFiles) else ()


def known_files(snapshot: Snapshot) -> Mapping[ObjectId, ManifestFileInfo]:
    """The manifest files of a snapshot, without those in lists that are not loaded."""
    files = snapshot.manifests
    if not isinstance(files, ListedFiles):
        return files
    return ListedFiles(files.own, [each for each in files.lists if each.is_loaded])


def known_refs(node: ArrayNode) -> Sequence[ManifestRef]:
    """The manifests of an array, without those in lists that are not loaded."""
    if not isinstance(node.manifests, ListedRefs) or not missing_lists(node.manifests.lists):
        return node.manifests
    return _refs_in(each for each in node.manifests.lists if not missing_lists([each]))


def without_lists(snapshot: Snapshot) -> Mapping[str, Node]:
    """The nodes of a snapshot with their manifests in no list, so that new lists are written for them."""
    nodes: dict[str, Node] = {}
    for path, node in snapshot.nodes.items():
        if isinstance(node, ArrayNode) and isinstance(node.manifests, ListedRefs):
            columns = node.manifests.columns()
            assert columns is not None, "manifests in lists are columns"
            node = node.with_manifests(ManifestRefs.of(columns))
        nodes[path] = node
    return nodes


def without_common_lists(was: ArrayNode, now: ArrayNode) -> tuple[ArrayNode, ArrayNode]:
    """An array in two snapshots without the lists of both. They have the same manifests."""
    old, new = was.manifests, now.manifests
    if not isinstance(old, ListedRefs) or not isinstance(new, ListedRefs):
        return was, now
    common = {*old.lists} & {*new.lists}
    if not common:
        return was, now
    return (
        was.with_manifests(_refs_in(each for each in old.lists if each not in common)),
        now.with_manifests(_refs_in(each for each in new.lists if each not in common)),
    )


def _refs_in(lists: Iterable[ManifestList | EditedList]) -> Sequence[ManifestRef]:
    """The manifests in some lists."""
    chosen = tuple(lists)
    return ListedRefs(chosen) if chosen else ()


def may_differ(old: Sequence[ManifestRef], new: Sequence[ManifestRef]) -> bool:
    """Whether an array may have other manifests in another snapshot. Lists are not loaded for that."""
    if isinstance(old, ListedRefs) or isinstance(new, ListedRefs):
        return not (isinstance(old, ListedRefs) and isinstance(new, ListedRefs) and old.lists == new.lists)
    return old != new
