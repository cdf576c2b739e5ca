"""Sessions on a repository and on a plain model of it: edited alike, step by step, and compared."""

from __future__ import annotations

import json
import pickle
import random
import secrets
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.session.model import (
    Chunk,
    Coords,
    Delete,
    Document,
    Hierarchy,
    ModelNode,
    Move,
    Operation,
    Put,
    apply,
    array_document,
    group_document,
    inside,
    keys_of,
    new_uid,
    subtree,
)

import icefloe
from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.storage.build import in_memory_storage
from icefloe.testing.storages import FaultKind, FaultPlan, FaultyStorage

NAMES = ("a", "b", "c")
SIZES = (1, 8, 40, 120, 900, 2500)
"""Chunk sizes: inline, packed (packs close at 1,000 bytes), objects of their own."""
MOST_SESSIONS = 3
INDEX = st.integers(0, 200)
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple)
CONFIG = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=16,
    attributes_threshold_bytes=200,
    chunk_packing=icefloe.ChunkPackingConfig(threshold_bytes=400, target_bytes=1000),
)
KINDS = ("create", "array", "group", "chunks", "chunks", "unset", "shift", "delete", "move", "move", "workers")
Edit: TypeAlias = tuple[str, int, int, Coords, int, bool]
EDITS = st.tuples(st.sampled_from(KINDS), INDEX, INDEX, SHAPES, st.sampled_from(SIZES), st.booleans())
FAULTS = st.tuples(
    st.sampled_from([FaultKind.FAIL_BEFORE, FaultKind.LOSE_ANSWER]), st.integers(1, 12), st.sampled_from([1, 2, 4, 50])
)


@dataclass
class Work:
    """A writable session and its model."""

    session: icefloe.Session
    branch: str
    base: str
    tree: Hierarchy
    operations: list[Operation] = field(default_factory=list)
    linked: set[tuple[int, Coords]] = field(default_factory=set)
    """Chunks that tasks of a distributed write left: no later task may write them in this session."""

    def do(self, operation: Operation) -> None:
        self.tree = apply(self.tree, operation)
        self.operations.append(operation)

    def write(self, key: str, data: bytes) -> None:
        run_blocking(self.session.keyspace.write(key, data))


def fetch_all(session: icefloe.Session) -> dict[str, Any]:
    """Every key of a session with its content, documents parsed."""
    found: dict[str, Any] = {}
    for key in list(iterate_blocking(session.keyspace.keys())):
        data = run_blocking(session.keyspace.fetch(key))
        assert data is not None, f"{key} is listed and cannot be read"
        found[key] = json.loads(bytes(data)) if key.endswith("zarr.json") else bytes(data)
    return found


def compare(found: dict[str, Any], told: dict[str, Any]) -> None:
    differing = {
        key: (found.get(key, "nothing"), told.get(key, "nothing"))
        for key in found.keys() | told.keys()
        if found.get(key) != told.get(key)
    }
    assert not differing, f"the repository and the model differ (found, told): {differing}"


def key_of(path: str, coords: Coords | None = None) -> str:
    folder = path.strip("/")
    start = f"{folder}/" if folder else ""
    return f"{start}zarr.json" if coords is None else "/".join([f"{start}c", *map(str, coords)])


class EditingMachine(RuleBasedStateMachine):
    """Opens sessions and edits nodes and chunks; what becomes of the edits is for those who derive from it."""

    spec_version = "repository"

    def __init__(self) -> None:
        super().__init__()
        # The same steps must meet the same ids, or a failure could not be replayed and made smaller.
        chance = random.Random(0)
        self.chance = ExitStack()
        self.chance.enter_context(mock.patch.object(secrets, "token_bytes", chance.randbytes))
        self.chance.enter_context(mock.patch.object(secrets, "randbelow", chance.randrange))
        self.folder = Path(tempfile.mkdtemp())
        self.plan = FaultPlan()
        self.storage = FaultyStorage(in_memory_storage(), self.plan)
        (self.folder / "file").write_bytes(bytes(range(256)) * 8)
        prefix = f"file://{self.folder}/"
        container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(self.folder)))
        self.config = pickle.loads(pickle.dumps(CONFIG))
        self.config.set_virtual_chunk_container(container)
        self.authorized = icefloe.containers_credentials({prefix: None})
        self.location = f"{prefix}file"
        self.repo = icefloe.Repository.create(
            self.storage, self.config, self.authorized, spec_version=self.spec_version
        )
        first = self.repo.lookup_branch("main")
        documents = fetch_all(self.repo.readonly_session("main"))
        tree = {"/": ModelNode(new_uid(), json.dumps(documents["zarr.json"]).encode())} if documents else {}
        self.snapshots: dict[str, Hierarchy] = {first: tree}
        self.parents: dict[str, str | None] = {first: None}
        self.touched: dict[str, frozenset[int]] = {}
        self.branches = {"main": first}
        self.tags: dict[str, str] = {}
        self.works: list[Work] = []

    def teardown(self) -> None:
        try:
            self.check_repository()
        finally:
            self.chance.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- comparing ------------------------------------------------------------------------------------------------

    def check(self, work: Work) -> None:
        compare(fetch_all(work.session), keys_of(work.tree))
        assert work.session.snapshot_id == work.base

    def fresh(self) -> icefloe.Repository:
        """The repository as another process would open it."""
        return icefloe.Repository.open(self.storage, self.config, self.authorized)

    def check_snapshot(self, repo: icefloe.Repository, snapshot_id: str) -> None:
        compare(fetch_all(repo.readonly_session(snapshot_id=snapshot_id)), keys_of(self.snapshots[snapshot_id]))

    def check_repository(self) -> None:
        repo = self.fresh()
        assert {name: repo.lookup_branch(name) for name in repo.list_branches()} == self.branches
        assert {name: repo.lookup_tag(name) for name in repo.list_tags()} == self.tags
        for snapshot_id in {*self.branches.values(), *self.tags.values()}:
            assert [info.id for info in repo.ancestry(snapshot_id=snapshot_id)] == self.history(snapshot_id)
        for snapshot_id in self.snapshots:
            self.check_snapshot(repo, snapshot_id)
        for work in self.works:
            self.check(work)

    def history(self, snapshot_id: str) -> list[str]:
        found: list[str] = []
        current: str | None = snapshot_id
        while current is not None:
            found.append(current)
            current = self.parents[current]
        return found

    # -- choosing -------------------------------------------------------------------------------------------------

    def pick(self, index: int | Work) -> Work:
        if isinstance(index, Work):
            return index
        if not self.works:
            self.open_session(index)
        return self.works[index % len(self.works)]

    @staticmethod
    def choose(paths: list[str], index: int) -> str | None:
        return sorted(paths)[index % len(paths)] if paths else None

    def groups(self, work: Work) -> list[str]:
        return [path for path, node in work.tree.items() if node.grid is None]

    def array(self, work: Work, index: int) -> tuple[str, ModelNode] | None:
        path = self.choose([path for path, node in work.tree.items() if node.grid is not None], index)
        return None if path is None else (path, work.tree[path])

    @staticmethod
    def coords(node: ModelNode, index: int) -> Coords:
        assert node.grid is not None
        found = []
        for size in node.grid:
            found.append(index % size)
            index //= size
        return tuple(found)

    def free_path(self, work: Work, index: int) -> str | None:
        """A path below an existing group; nothing may be at it or below it."""
        group = self.choose(self.groups(work), index // 3)
        if group is None:
            return None if "/" in work.tree or work.tree else "/"
        path = f"{group.rstrip('/')}/{NAMES[index % 3]}"
        return None if path.count("/") > 3 or subtree(work.tree, path) else path

    # -- sessions -------------------------------------------------------------------------------------------------

    @initialize(index=INDEX)
    def start(self, index: int) -> None:
        self.open_session(0)
        self.create_node(0, 0, None, "")
        self.create_node(0, index, (3, 2), "")
        self.create_node(0, index + 1, None, "")
        self.create_node(0, index + 7, (4,), "x" * 300)

    @rule(index=INDEX)
    def open_session(self, index: int) -> None:
        if len(self.works) >= MOST_SESSIONS:
            return
        branch = sorted(self.branches)[index % len(self.branches)] if index % 4 == 0 else "main"
        tip = self.branches[branch]
        self.works.append(Work(self.repo.writable_session(branch), branch, tip, self.snapshots[tip]))

    @rule(who=INDEX, where=INDEX, shape=st.none() | SHAPES, text=st.sampled_from(["", "x" * 300]))
    def create_node(self, who: int | Work, where: int, shape: Coords | None, text: str) -> None:
        work = self.pick(who)
        path = self.free_path(work, where)
        if path is None:
            return
        attributes = {"text": text} if text else {}
        document = group_document(attributes) if shape is None or path == "/" else array_document(shape, attributes)
        work.write(key_of(path), document)
        work.do(Put(new_uid(), path, document, None if path == "/" else shape))
        self.check(work)

    @rule(who=INDEX, which=INDEX, shape=SHAPES, text=st.sampled_from(["", "y", "y" * 300]))
    def change_array(self, who: int | Work, which: int, shape: Coords, text: str) -> None:
        """Another shape or other attributes; another rank makes it another array."""
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        document = array_document(shape, {"text": text} if text else {})
        work.write(key_of(path), document)
        if len(shape) == len(node.grid or ()):
            work.do(Document(node.uid, document, shape))
        else:
            work.do(Delete(frozenset([node.uid])))
            work.do(Put(new_uid(), path, document, shape))
        self.check(work)

    @rule(who=INDEX, which=INDEX, text=st.sampled_from(["z", "z" * 300]))
    def change_group(self, who: int | Work, which: int, text: str) -> None:
        work = self.pick(who)
        path = self.choose(self.groups(work), which)
        if path is None:
            return
        document = group_document({"text": text})
        work.write(key_of(path), document)
        work.do(Document(work.tree[path].uid, document, None))
        self.check(work)

    @rule(
        who=INDEX,
        which=INDEX,
        where=INDEX,
        size=st.sampled_from(SIZES),
        fill=st.integers(1, 255),
        count=st.integers(1, 4),
    )
    def write_chunks(self, who: int | Work, which: int, where: int, size: int, fill: int, count: int) -> None:
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        for number in range(count):
            coords, data = self.coords(node, where + number), bytes([fill]) * (size + number)
            work.write(key_of(path, coords), data)
            work.do(Chunk(node.uid, coords, data))
        self.check(work)

    @rule(who=INDEX, which=INDEX, offset=st.integers(0, 1000), size=st.integers(1, 50))
    def write_virtual_columns(self, who: int | Work, which: int, offset: int, size: int) -> None:
        """References of a box of chunks into a file."""
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        assert node.grid is not None
        box = tuple(max(1, n - 1) for n in node.grid)
        count = 1
        for n in box:
            count *= n
        offsets = [offset + number for number in range(count)]
        work.session.store.set_virtual_refs_arr(path, box, [self.location] * count, offsets, [size] * count)
        data = (self.folder / "file").read_bytes()
        for number, at in enumerate(offsets):
            coords, rest = [], number
            for n in reversed(box):
                coords.append(rest % n)
                rest //= n
            work.do(Chunk(node.uid, tuple(reversed(coords)), data[at : at + size]))
        self.check(work)

    @rule(who=INDEX, which=INDEX, where=INDEX)
    def delete_chunk(self, who: int | Work, which: int, where: int) -> None:
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        coords = self.coords(node, where)
        run_blocking(work.session.keyspace.delete(key_of(path, coords)))
        # An explicit write is a change, also where no chunk was.
        work.do(Chunk(node.uid, coords, None))
        self.check(work)

    @rule(who=INDEX, which=INDEX, by=st.integers(-2, 2))
    def shift_array(self, who: int | Work, which: int, by: int) -> None:
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        assert node.grid is not None
        work.session.shift_array(path, (by,) + (0,) * (len(node.grid) - 1))
        for coords in node.chunks:
            work.do(Chunk(node.uid, coords, None))
        for coords, data in node.chunks.items():
            target = (coords[0] + by, *coords[1:])
            if target[0] >= 0 and inside(node.grid, target):
                work.do(Chunk(node.uid, target, data))
        self.check(work)

    @rule(who=INDEX, which=INDEX, folder=st.booleans())
    def delete_node(self, who: int | Work, which: int, folder: bool) -> None:
        """A node with all below it, or its document alone."""
        work = self.pick(who)
        path = self.choose([path for path in work.tree if path != "/"], which)
        if path is None:
            return
        if folder or len(subtree(work.tree, path)) == 1:
            # An empty group that goes is a folder that goes: what others put into it meanwhile goes with it.
            run_blocking(work.session.keyspace.delete_folder(path.strip("/")))
            uids = frozenset(work.tree[each].uid for each in subtree(work.tree, path))
            work.do(Delete(uids, work.tree[path].uid))
        else:
            run_blocking(work.session.keyspace.delete(key_of(path)))
            work.do(Delete(frozenset([work.tree[path].uid])))
        self.check(work)

    @rule(who=INDEX, which=INDEX, where=INDEX)
    def move(self, who: int | Work, which: int, where: int) -> None:
        work = self.pick(who)
        source = self.choose([path for path in work.tree if path != "/"], which)
        target = self.free_path(work, where)
        if source is None or target in (None, "/") or f"{target}/".startswith(f"{source}/"):
            return
        assert target is not None
        work.session.move(source, target)
        work.do(Move(work.tree[source].uid, target))
        self.check(work)

    @rule(who=INDEX)
    def discard(self, who: int | Work) -> None:
        work = self.pick(who)
        work.session.discard_changes()
        work.tree, work.operations = self.snapshots[work.base], []
        assert not work.session.has_uncommitted_changes
        self.check(work)
