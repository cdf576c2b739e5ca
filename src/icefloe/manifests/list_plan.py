"""Plan the manifest lists of a snapshot: which stay, and which are written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.ids import ObjectId, new_object_id
from icefloe.manifests.cells import overlapping_pairs
from icefloe.model.manifest_lists import (
    EditedList,
    ListContent,
    ListedFiles,
    ListedRefs,
    ListSummary,
    ManifestList,
    is_in_order,
    lists_of,
    missing_lists,
)
from icefloe.model.snapshot import (
    ArrayNode,
    ManifestFileInfo,
    ManifestRef,
    ManifestRefs,
    Node,
    RefColumns,
    Snapshot,
    find_nodes,
    manifest_ids,
)


@dataclass(frozen=True, slots=True)
class ListSizes:
    """How manifests are divided into lists.

    A commit of one chunk writes one list (about 35 bytes for each of its manifests) and the summaries of all lists
    (about 80 bytes each). With 256 manifests in a list, the sum is smaller than 64 KiB up to a million manifests.
    """

    listed_from: int = 513
    """Arrays with so many manifests have lists."""
    most_unlisted: int = 1024
    """If a snapshot would have more manifests outside of lists, arrays with fewer manifests have lists too."""
    listed_if_many_from: int = 5
    """Those arrays have at least so many. The summary of a list takes as many bytes as two or three manifests."""
    usual: int = 256
    """The number of manifests in a new list."""
    largest: int = 512
    """A list with more manifests is split."""


SIZES = ListSizes()


Infos = Mapping[ObjectId, ManifestFileInfo]


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot whose long lists of manifests are in files, and the lists that have to be written for it."""

    snapshot: Snapshot
    new: tuple[ManifestList, ...] = ()
    reused: tuple[ManifestList, ...] = ()
    """Lists with the same manifests that an earlier try has written."""


def plan_lists(
    snapshot: Snapshot, base: Snapshot | None = None, written: Mapping[tuple[ObjectId, ...], ManifestList] | None = None
) -> ListedSnapshot:
    """Divide the manifests of large arrays into lists. Lists of the base that did not change are used again.

    `written` are lists that an earlier try wrote, by their manifests. An array whose manifests overlap, or that has
    some of unknown size or extents, keeps its manifests in the snapshot.
    """
    own = snapshot.manifests.own if isinstance(snapshot.manifests, ListedFiles) else snapshot.manifests
    planner = _Planner(snapshot.manifests, SIZES, written or {}, has_many=len(own) > SIZES.most_unlisted)
    changed: dict[str, Node] = {}
    # By identity: every one of them is to be loaded, also if another one is equal.
    listed: dict[int, ManifestList] = {}
    long = [
        node
        for node in snapshot.nodes.values()
        if isinstance(node, ArrayNode) and (isinstance(node.manifests, ListedRefs) or planner.is_long(node))
    ]
    if not long:
        return ListedSnapshot(snapshot)
    before = {} if base is None else find_nodes(base.nodes, {node.id for node in long})
    for node in long:
        refs = planner.divide(node, before.get(node.id))
        if refs is None:
            continue
        if isinstance(refs, ListedRefs):
            listed |= {id(each): each for each in refs.lists if isinstance(each, ManifestList)}
        if refs is not node.manifests:
            changed[node.path] = node.with_manifests(refs)
    lists = tuple(listed.values())
    if not changed and lists == lists_of(snapshot):
        return ListedSnapshot(snapshot)
    nodes = {**snapshot.nodes, **changed}
    plain = [
        node.manifests
        for node in nodes.values()
        if isinstance(node, ArrayNode) and not isinstance(node.manifests, ListedRefs)
    ]
    own = _own_files(snapshot.manifests, plain, planner.listed)
    files = ListedFiles(own, lists) if lists else own
    return ListedSnapshot(replace(snapshot, nodes=nodes, manifests=files), tuple(planner.new), tuple(planner.reused))


def _own_files(files: Infos, plain: Sequence[Sequence[ManifestRef]], listed: set[ObjectId]) -> Infos:
    """The manifest files that are in no list."""
    used = {each for refs in {id(refs): refs for refs in plain}.values() for each in manifest_ids(refs)}
    own = files.own if isinstance(files, ListedFiles) else files
    found = {key: info for key, info in own.items() if key in used or key not in listed}
    # Those of an array that has lists no longer.
    return found | {key: files[key] for key in sorted(used - found.keys()) if key in files}


class _Planner:
    def __init__(
        self, infos: Infos, sizes: ListSizes, written: Mapping[tuple[ObjectId, ...], ManifestList], *, has_many: bool
    ) -> None:
        self._infos = infos
        self._long = sizes.listed_if_many_from if has_many else sizes.listed_from
        self._written = written
        self.reused: list[ManifestList] = []
        self._sizes = sizes
        self._known: dict[int, tuple[Sequence[ManifestRef], Sequence[ManifestRef] | None]] = {}
        self.new: list[ManifestList] = []
        self.listed: set[ObjectId] = set()
        """The manifests of arrays that got new lists."""

    def is_long(self, node: ArrayNode) -> bool:
        return len(node.manifests) >= self._long

    def divide(self, node: ArrayNode, before: Node | None) -> Sequence[ManifestRef] | None:
        """The manifests of an array in lists. None if they cannot be in lists.

        Arrays that share the value of their manifests share the lists.
        """
        refs = node.manifests
        known = self._known.get(id(refs))
        if known is None:
            # Keep the value too: while it exists, no other object has its id().
            known = self._known[id(refs)] = refs, self._divide(node, before)
        return known[1]

    def _divide(self, node: ArrayNode, before: Node | None) -> Sequence[ManifestRef] | None:
        refs = node.manifests
        pieces: Iterable[ManifestList | EditedList]
        if isinstance(refs, ListedRefs):
            edited = [each for each in refs.lists if isinstance(each, EditedList)]
            if not edited:
                return refs
            self.listed.update(itertools.chain.from_iterable(each.columns.ids for each in edited))
            pieces = refs.lists
        else:
            columns = _find_columns(refs)
            if columns is None or not self._can_be_listed(columns, node):
                return None
            self.listed.update(columns.ids)
            earlier = before.manifests if isinstance(before, ArrayNode) else ()
            pieces = _reuse(columns, earlier) if isinstance(earlier, ListedRefs) else [EditedList(columns, ())]
        joined = _join_small(pieces, self._sizes.usual // 2)
        return ListedRefs(itertools.chain.from_iterable(map(self._write, joined))) if joined else ()

    def _can_be_listed(self, columns: RefColumns, node: ArrayNode) -> bool:
        boxes = columns.boxes
        if boxes.shape[1] != len(node.grid) or not ((boxes[:, :, 0] < boxes[:, :, 1]).all() and is_in_order(boxes)):
            return False
        is_inside = bool((boxes[:, :, 1] <= np.array(node.grid)).all())
        return is_inside and not len(overlapping_pairs(boxes)) and all(each in self._infos for each in columns.ids)

    def _write(self, each: ManifestList | EditedList) -> Iterator[ManifestList]:
        """A list that stays, or the new lists for a changed one."""
        if isinstance(each, ManifestList):
            yield each
            return
        columns, count = each.columns, len(each)
        parts = 1 if count <= self._sizes.largest else -(-count // self._sizes.usual)
        for part in range(parts):
            rows = slice(count * part // parts, count * (part + 1) // parts)
            yield self._write_one(RefColumns(tuple(columns.ids[rows]), columns.boxes[rows]))

    def _write_one(self, columns: RefColumns) -> ManifestList:
        written = self._written.get(tuple(columns.ids))
        if written is not None and np.array_equal(written.columns.boxes, columns.boxes):
            self.reused.append(written)
            return written
        assert is_in_order(columns.boxes), "a list in which manifests repeat could not be read"
        infos = [self._infos[each] for each in columns.ids]
        content = ListContent(
            columns,
            np.array([info.size_bytes for info in infos], dtype=np.int64),
            np.array([info.num_chunk_refs for info in infos], dtype=np.int64),
        )
        made = ManifestList(ListSummary.of(new_object_id(), content), content)
        self.new.append(made)
        return made


def _find_columns(refs: Sequence[ManifestRef]) -> RefColumns | None:
    """Manifests as columns. None if some have no extents, or extents of another rank."""
    if isinstance(refs, ManifestRefs):
        columns = refs.columns()
        if columns is not None:
            return columns
    if len({len(ref.extents) for ref in refs}) != 1 or not refs[0].extents:
        return None
    boxes = np.array([ref.extents for ref in refs], dtype=np.int64)
    return RefColumns(tuple(ref.manifest_id for ref in refs), boxes)


def _join_small(pieces: Iterable[ManifestList | EditedList], small: int) -> list[ManifestList | EditedList]:
    """The same manifests, where a small changed list is joined with a neighbour, if that is loaded."""
    joined: list[ManifestList | EditedList] = []
    for each in pieces:
        previous = joined[-1] if joined else None
        if not len(each):
            continue
        if (
            previous is None
            or missing_lists([previous, each])
            or not (_is_small(previous, small) or _is_small(each, small))
        ):
            joined.append(each)
            continue
        ids = (*previous.columns.ids, *each.columns.ids)
        joined[-1] = EditedList(RefColumns(ids, np.concatenate([previous.columns.boxes, each.columns.boxes])), ())
    return joined


def _is_small(each: ManifestList | EditedList, small: int) -> bool:
    return isinstance(each, EditedList) and len(each) <= small


def _reuse(columns: RefColumns, earlier: ListedRefs) -> Iterator[ManifestList | EditedList]:
    """The earlier lists whose manifests are still there side by side, and the other manifests between them."""
    ids = tuple(columns.ids)
    places = {manifest_id: place for place, manifest_id in enumerate(ids)}
    done = 0
    for each in earlier.lists:
        if not isinstance(each, ManifestList) or not each.is_loaded:
            continue
        own = tuple(each.columns.ids)
        first = places.get(own[0], -1)
        end = first + len(own)
        if first < done or ids[first:end] != own or not np.array_equal(columns.boxes[first:end], each.columns.boxes):
            continue
        if done < first:
            yield EditedList(RefColumns(ids[done:first], columns.boxes[done:first]), ())
        yield each
        done = end
    if done < len(ids):
        yield EditedList(RefColumns(ids[done:], columns.boxes[done:]), ())
