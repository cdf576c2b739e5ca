"""The hierarchy as a session sees it: its base snapshot with the change set laid over."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from icefloe.errors import NodeNotFoundError
from icefloe.model.nodes import ArrayNode, GroupNode, Node
from icefloe.model.paths import parent_path, subtree_bounds
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet


class Tree:
    """Nodes by path over a base and a change set.

    Every question is answered as of one moment: whoever changes the change set holds the lock meanwhile.
    """

    def __init__(self, base: Snapshot, changes: ChangeSet, lock: threading.RLock | None = None) -> None:
        self.base = base
        self.changes = changes
        self._lock = lock or threading.RLock()
        self._base_paths: Sequence[str] | None = None

    def find(self, path: str) -> Node | None:
        """The node at a path, or None."""
        changes = self.changes
        if changes.added or changes.removed:
            with self._lock:
                node = changes.added.get(path)
                if node is not None:
                    return node
                if path in changes.removed:
                    return None
        return self.base.nodes.get(path)

    def find_array(self, path: str) -> ArrayNode | None:
        """The array at a path, or None when there is nothing or a group."""
        node = self.find(path)
        return node if isinstance(node, ArrayNode) else None

    def array(self, path: str) -> ArrayNode:
        """The array at a path; NodeNotFoundError otherwise."""
        node = self.find(path)
        if isinstance(node, ArrayNode):
            return node
        found = "there is a group" if node is not None else f"nearest group above: {self._nearest(path)}"
        raise NodeNotFoundError(f"no array at {path!r}; {found}", path=path)

    def node(self, path: str) -> Node:
        """The node at a path; NodeNotFoundError otherwise."""
        node = self.find(path)
        if node is None:
            raise NodeNotFoundError(
                f"no array or group at {path!r}; nearest group above: {self._nearest(path)}", path=path
            )
        return node

    def _nearest(self, path: str) -> str:
        above = parent_path(path)
        while above is not None and self.find(above) is None:
            above = parent_path(above)
        return repr(above) if above is not None else "none (the hierarchy is empty)"

    def paths(self) -> Iterator[str]:
        """Every path, in order."""
        with self._lock:
            found = list(self._merged(0, len(self._sorted_base()), sorted(self.changes.added)))
        yield from found

    def nodes(self) -> Iterator[Node]:
        """Every node, in order of path."""
        if not self.changes.added and not self.changes.removed:
            yield from self.base.nodes.values()
            return
        with self._lock:
            added, paths = dict(self.changes.added), list(self.paths())
        base = self.base.nodes
        for path in paths:
            node = added.get(path)
            yield base[path] if node is None else node

    def subtree(self, path: str) -> list[Node]:
        """The nodes at and below a path, in order."""
        first, end = subtree_bounds(path)
        base = self._sorted_base()
        with self._lock:
            added = sorted(p for p in self.changes.added if first <= p < end and p != path)
            here = self.find(path)
            below = [
                self.node(p) for p in self._merged(bisect_left(base, first), bisect_left(base, end), added) if p != path
            ]
        return ([here] if here is not None else []) + below

    def child_names(self, path: str) -> list[str]:
        """Names directly below a path, whether or not a node stands at each."""
        with self._lock:
            return self._child_names(path)

    def _child_names(self, path: str) -> list[str]:
        first, end = subtree_bounds(path)
        names = {p[len(first) :].partition("/")[0] for p in self.changes.added if first <= p < end and p != "/"}
        base = self._sorted_base()
        removed = self.changes.removed
        position = bisect_left(base, first)
        while position < len(base) and base[position] < end:
            found = base[position]
            if found in removed or found == "/":
                position += 1
                continue
            name = found[len(first) :].partition("/")[0]
            names.add(name)
            # Jump over the rest of that child's subtree; siblings such as `a-b` sort between `a` and `a/b`.
            position += 1
            if found != first + name:
                position = bisect_left(base, subtree_bounds(first + name)[1], position)
        return sorted(names)

    def has_children(self, path: str) -> bool:
        """Whether anything stands below a path."""
        return bool(self.child_names(path))

    def enclosing_array(self, path: str) -> ArrayNode | None:
        """The array that a path would lie inside of, where nothing may be created."""
        above = parent_path(path)
        while above is not None:
            node = self.find(above)
            if isinstance(node, ArrayNode):
                return node
            if isinstance(node, GroupNode):
                return None
            above = parent_path(above)
        return None

    def _sorted_base(self) -> Sequence[str]:
        if self._base_paths is None:
            self._base_paths = list(self.base.nodes)
        return self._base_paths

    def _merged(self, start: int, end: int, added: list[str]) -> Iterator[str]:
        if start == end:
            yield from added
            return
        removed, fresh = self.changes.removed, self.changes.added
        base = (p for p in self._sorted_base()[start:end] if p not in removed and p not in fresh)
        pending = iter(added)
        nearest = next(pending, None)
        for path in base:
            while nearest is not None and nearest < path:
                yield nearest
                nearest = next(pending, None)
            yield path
        while nearest is not None:
            yield nearest
            nearest = next(pending, None)
