"""The plain model that a simulated repository is compared with: arrays as dicts, sessions as lists of changes.

Arrays have one dimension, one element per chunk, and one attribute. An array keeps its identity (`uid`) as long as it
is not deleted; an array that is deleted and created again is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from icefloe.model.snapshot import ArrayNode
from icefloe.session.session import Session

Uid: TypeAlias = bytes | str
"""The node id of an array that was committed, or a name of the model for one that was not."""


@dataclass(frozen=True, slots=True)
class ArrayState:
    """An array as a reader sees it."""

    uid: Uid
    grid: int
    note: str
    chunks: Mapping[int, bytes] = field(default_factory=dict)

    def same(self, other: ArrayState) -> bool:
        """Whether readers see the same; identities may differ."""
        return (self.grid, self.note, dict(self.chunks)) == (other.grid, other.note, dict(other.chunks))


Content: TypeAlias = Mapping[str, ArrayState]


@dataclass(frozen=True, slots=True)
class Put:
    """A new array, in place of what is at the path."""

    uid: Uid
    path: str
    grid: int
    note: str


@dataclass(frozen=True, slots=True)
class Document:
    """Another size or attribute; chunks outside the size are gone."""

    uid: Uid
    grid: int
    note: str


@dataclass(frozen=True, slots=True)
class Delete:
    """An array is gone."""

    uid: Uid


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk has these bytes; None reads as fill value."""

    uid: Uid
    index: int
    data: bytes | None


Change: TypeAlias = Put | Document | Delete | Chunk


def array_document(grid: int, note: str) -> bytes:
    """The zarr.json of an array of the model."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [grid],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {"note": note},
        }
    ).encode()


def apply_change(content: Content, change: Change) -> Content:
    """The content after a change; a change of an array that is not there does nothing."""
    result = dict(content)
    if isinstance(change, Put):
        result[change.path] = ArrayState(change.uid, change.grid, change.note)
        return result
    path = find_path(content, change.uid)
    if path is None:
        return content
    array = content[path]
    if isinstance(change, Delete):
        del result[path]
    elif isinstance(change, Document):
        chunks = {index: data for index, data in array.chunks.items() if index < change.grid}
        result[path] = replace(array, grid=change.grid, note=change.note, chunks=chunks)
    elif change.index < array.grid:
        chunks = {index: data for index, data in array.chunks.items() if index != change.index}
        if change.data is not None:
            chunks[change.index] = change.data
        result[path] = replace(array, chunks=chunks)
    return result


def find_path(content: Content, uid: Uid) -> str | None:
    """Where an array is, or None."""
    return next((path for path, array in content.items() if array.uid == uid), None)


def by_uid(content: Content) -> dict[Uid, tuple[str, ArrayState]]:
    return {array.uid: (path, array) for path, array in content.items()}


@dataclass(slots=True)
class Touched:
    """What changes are about: arrays by identity, their chunks, and paths that were taken."""

    documents: set[Uid] = field(default_factory=set)
    deleted: set[Uid] = field(default_factory=set)
    chunks: dict[Uid, set[int]] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)
    least_grid: dict[Uid, int] = field(default_factory=dict)
    """How small an array was made, if only for a while."""

    def uids(self) -> set[Uid]:
        return self.documents | self.deleted | self.chunks.keys() | self.least_grid.keys()

    def meets(self, other: Touched) -> bool:
        """Whether the changes could be about one thing."""
        if self.paths & other.paths:
            return True
        for uid in self.uids() & other.uids():
            if uid in self.deleted or uid in other.deleted or (uid in self.documents and uid in other.documents):
                return True
            if self.chunks.get(uid, set()) & other.chunks.get(uid, set()):
                return True
            # Where one side made the array smaller, chunks of the other may lie outside.
            for one, two in ((self, other), (other, self)):
                if uid in one.documents and (two.chunks.get(uid) or uid in two.least_grid):
                    return True
        return False

    def join(self, other: Touched) -> None:
        """Add what other changes are about."""
        self.documents |= other.documents
        self.deleted |= other.deleted
        self.paths |= other.paths
        for uid, chunks in other.chunks.items():
            self.chunks[uid] = self.chunks.get(uid, set()) | chunks
        for uid, grid in other.least_grid.items():
            self.least_grid[uid] = min(self.least_grid.get(uid, grid), grid)


def touched_by(base: Content, changes: Iterable[Change]) -> Touched:
    """What a list of changes is about."""
    touched = Touched()
    view = base
    for change in changes:
        here = None if isinstance(change, Put) else find_path(view, change.uid)
        if isinstance(change, Put):
            touched.paths.add(change.path)
            if change.path in view:
                touched.deleted.add(view[change.path].uid)
        elif here is None:
            continue
        elif isinstance(change, Delete):
            touched.deleted.add(change.uid)
            touched.paths.add(here)
        elif isinstance(change, Document):
            touched.documents.add(change.uid)
            if change.grid < view[here].grid:
                touched.least_grid[change.uid] = min(touched.least_grid.get(change.uid, change.grid), change.grid)
        else:
            touched.chunks.setdefault(change.uid, set()).add(change.index)
        view = apply_change(view, change)
    return touched


def difference(before: Content, after: Content) -> Touched:
    """What lies between two contents."""
    touched = Touched()
    old, new = by_uid(before), by_uid(after)
    for uid, (path, was) in old.items():
        if uid not in new:
            touched.deleted.add(uid)
            touched.paths.add(path)
            continue
        now = new[uid][1]
        if (was.grid, was.note) != (now.grid, now.note):
            touched.documents.add(uid)
        changed = {i for i in was.chunks.keys() | now.chunks.keys() if was.chunks.get(i) != now.chunks.get(i)}
        if changed:
            touched.chunks[uid] = changed
    touched.paths |= {path for uid, (path, _) in new.items() if uid not in old}
    return touched


def find_clashes(base: Content, changes: Sequence[Change], theirs: Content) -> list[tuple[Uid | str, int | None]]:
    """Where changes of `base` and what others made of it cannot both be right: an array, and a chunk if it is one.

    Only what can be told from the two states is listed, so that each of these must be reported as a conflict.
    """
    ours, view = touched_by(base, changes), base
    for change in changes:
        view = apply_change(view, change)
    old, mine, new = by_uid(base), by_uid(view), by_uid(theirs)
    clashes: list[tuple[Uid | str, int | None]] = []
    for uid in ours.uids() & old.keys():
        was = old[uid][1]
        if uid not in mine:
            if uid in new and not new[uid][1].same(was):
                clashes.append((uid, None))
            continue
        if uid not in new:
            # The chunks of an array that we made smaller and larger again may all have been gone before.
            if ours.chunks.get(uid) or (mine[uid][1].grid, mine[uid][1].note) != (was.grid, was.note):
                clashes.append((uid, None))
            continue
        now, done = new[uid][1], mine[uid][1]
        documents = [(array.grid, array.note) for array in (was, now, done)]
        if documents[0] not in documents[1:] and documents[1] != documents[2]:
            clashes.append((uid, None))
        least = ours.least_grid.get(uid)
        for index in sorted(ours.chunks.get(uid, set()) | now.chunks.keys() | was.chunks.keys()):
            is_written = index in ours.chunks.get(uid, ())
            is_ours = is_written or (least is not None and index >= least)
            differs = was.chunks.get(index) != now.chunks.get(index) and index < max(done.grid, now.grid)
            is_outside = is_written and now.grid <= index < was.grid and done.grid == was.grid
            # Both may have come to the same end: a chunk that both cleared is cleared.
            agree = done.chunks.get(index) == now.chunks.get(index)
            if (is_ours and differs and not agree) or is_outside:
                clashes.append((uid, index))
    for path, array in view.items():
        if array.uid not in old and path in theirs and theirs[path].uid not in ours.deleted:
            clashes.append((path, None))
    return clashes


def carry_over(
    base: Content, changes: Sequence[Change], theirs: Content, dropped: set[tuple[Uid, int]] | None = None
) -> Content:
    """What the changes make of `theirs`, which others made of `base` meanwhile; dropped chunks stay as they are."""
    view = base
    for change in changes:
        view = apply_change(view, change)
    old, mine, new = by_uid(base), by_uid(view), by_uid(theirs)
    result = {path: array for path, array in theirs.items() if array.uid in mine or array.uid not in old}
    for uid, (path, done) in mine.items():
        if uid not in old:
            result[path] = done
            continue
        if uid not in new:
            continue
        was, now = old[uid][1], new[uid][1]
        kept = done if (done.grid, done.note) != (was.grid, was.note) else now
        chunks = dict(now.chunks)
        for change in changes:
            if isinstance(change, Chunk) and change.uid == uid and (uid, change.index) not in (dropped or ()):
                chunks.pop(change.index, None)
                if change.data is not None:
                    chunks[change.index] = change.data
            elif isinstance(change, Document) and change.uid == uid:
                chunks = {index: data for index, data in chunks.items() if index < change.grid}
        chunks = {index: data for index, data in chunks.items() if index < kept.grid}
        result[new[uid][0]] = replace(kept, uid=uid, chunks=chunks)
    return result


def describe_merge(base: Content, theirs: Content, ours: Content, found: Content) -> str:
    """Where a merge of two contents with a common base is wrong, in words; empty when nothing can be said against it.

    What one side left alone must be as the other side has it. What both changed, each in another way, is a conflict,
    so that no merge should have been made.
    """
    texts = []
    old, new, mine, made = by_uid(base), by_uid(theirs), by_uid(ours), by_uid(found)
    for uid in old.keys() | mine.keys():
        states = [each[uid][1] if uid in each else None for each in (old, new, mine, made)]
        was, they, we, got = states
        if was is None or they is None or we is None or got is None:
            name = (old.get(uid) or mine[uid])[0]
            left_alone = they is was or (they is not None and was is not None and they.same(was))
            if left_alone and (we is None) != (got is None):
                texts.append(f"array {name} is {'missing' if got is None else 'there, and should not be'}")
            elif left_alone and we is not None and got is not None and not we.same(got):
                texts.append(f"array {name} changed, although only one side has it")
            elif they is None and was is not None and we is not None and we.same(was) and got is not None:
                texts.append(f"array {name} is there, although one side deleted it and the other left it alone")
            continue
        path = mine[uid][0]
        documents = [(array.grid, array.note) for array in (was, they, we, got)]
        if (text := _judge_merge(*documents)) is not None:
            texts.append(f"the document of {path} is {documents[3]}: {text}")
        for index in sorted(was.chunks.keys() | they.chunks.keys() | we.chunks.keys() | got.chunks.keys()):
            cells = [array.chunks.get(index) for array in (was, they, we, got)]
            if index < min(they.grid, we.grid) and (text := _judge_merge(*cells)) is not None:
                texts.append(f"chunk {index} of {path} is {cells[3]!r}: {text}")
    for uid, (path, array) in new.items():
        if uid not in old and path not in ours and (path not in found or not found[path].same(array)):
            texts.append(f"array {path}, which one side created, is not as it was made")
    return "; ".join(texts[:4])


def _judge_merge(was: object, they: object, we: object, got: object) -> str | None:
    if they in (was, we):
        return None if got == we else f"one side left it alone, the other has {we!r}"
    if we == was:
        return None if got == they else f"one side left it alone, the other has {they!r}"
    return f"one side made it {they!r} and the other {we!r}, without a conflict"


def describe_difference(expected: Content, found: Content) -> str:
    """The first things in which two contents differ, in words; empty when readers see the same."""
    texts = []
    for path in sorted(expected.keys() | found.keys()):
        want, got = expected.get(path), found.get(path)
        if want is None or got is None:
            texts.append(f"array {path} is {'missing' if got is None else 'there, and should not be'}")
            continue
        if (want.grid, want.note) != (got.grid, got.note):
            texts.append(f"{path} has {got.grid} chunks and note {got.note!r}, not {want.grid} and {want.note!r}")
        for index in sorted(want.chunks.keys() | got.chunks.keys()):
            if want.chunks.get(index) != got.chunks.get(index):
                texts.append(f"chunk {index} of {path} is {got.chunks.get(index)!r}, not {want.chunks.get(index)!r}")
    return "; ".join(texts[:4])


async def read_content(session: Session) -> Content:
    """Everything that a session shows."""
    work = session.state
    found: dict[str, ArrayState] = {}
    for node in list(work.tree.nodes()):
        if not isinstance(node, ArrayNode):
            continue
        note = json.loads(await work.fetch_document(node.path) or b"{}").get("attributes", {}).get("note", "")
        chunks = {}
        table = await work.chunk_table(node)
        for row, (index,) in enumerate(table.coords.tolist()):
            ref = table.row(row)
            data = ref.data if ref.data is not None else await work.reader.fetch(ref, 0, None, where=f"chunk {index}")
            chunks[index] = bytes(data)
        found[node.path[1:]] = ArrayState(node.id, node.grid[0], note, chunks)
    return found
