"""A machine that does to a repository, step by step, what it does to a plain model, and compares them."""

from __future__ import annotations

import json
import pickle
import random
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.engine.model import (
    Chunk,
    Coords,
    Delete,
    Document,
    Hierarchy,
    ModelNode,
    Move,
    Operation,
    Put,
    ReplayError,
    apply,
    array_document,
    carry_over,
    difference,
    group_document,
    inside,
    keys_of,
    new_uid,
    subtree,
    touched_by,
)

import icefloe
from icefloe import BasicConflictSolver, ConflictDetector
from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.storage.build import in_memory_storage
from icefloe.storage.faulty import Fault, FaultKind, FaultPlan, FaultyStorage

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


class RepositoryMachine(RuleBasedStateMachine):
    """Sessions, commits, rebases, refs, forks and parts, under storage faults."""

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
        if coords in node.chunks:
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

    # -- commits --------------------------------------------------------------------------------------------------

    def landed(self, work: Work, snapshot_id: str, parent: str, tree: Hierarchy) -> None:
        self.snapshots[snapshot_id], self.parents[snapshot_id] = tree, parent
        # An amendment holds what the commit it replaces did, too.
        replaced = self.touched.get(work.base, frozenset()) if parent != work.base else frozenset()
        self.touched[snapshot_id] = touched_by(work.operations) | replaced
        self.works.remove(work)
        repo = self.fresh()
        self.check_snapshot(repo, snapshot_id)
        assert repo.lookup_snapshot(snapshot_id).parent_id == parent
        self.check_diff(repo, parent, snapshot_id)

    def check_diff(self, repo: icefloe.Repository, before: str, after: str) -> None:
        old = {node.uid: (path, node) for path, node in self.snapshots[before].items()}
        new = {node.uid: (path, node) for path, node in self.snapshots[after].items()}
        diff = repo.diff(from_snapshot_id=before, to_snapshot_id=after)
        fresh = {path for uid, (path, _) in new.items() if uid not in old}
        gone = {path for uid, (path, _) in old.items() if uid not in new}
        assert diff.new_arrays | diff.new_groups == fresh
        assert diff.deleted_arrays | diff.deleted_groups == gone
        for uid, (path, node) in new.items():
            was = old.get(uid)
            if was is None:
                continue
            changed = {
                coords
                for coords in node.chunks.keys() | was[1].chunks.keys()
                if node.chunks.get(coords) != was[1].chunks.get(coords) and inside(node.grid or (), coords)
            }
            reported = {tuple(coords) for coords in diff.updated_chunks.get(path, [])}
            assert changed <= reported, f"{path}: {changed - reported} changed and are not in the diff"

    @contextmanager
    def faults(self, given: tuple[FaultKind, int, int] | None) -> Iterator[None]:
        if given is not None:
            kind, at, times = given
            self.plan.faults = (Fault(kind, at=at, times=times),)
            self.plan._seen = [0]
        try:
            yield
        finally:
            self.plan.faults, self.plan._seen = (), []

    @rule(who=INDEX, faults=st.none() | FAULTS, amend=st.booleans())
    def commit(self, who: int | Work, faults: tuple[FaultKind, int, int] | None, amend: bool) -> None:
        """A commit or an amendment, with or without faults: it lands whole, or nothing happened."""
        work = self.pick(who)
        standing = self.branches.get(work.branch)
        parent = self.parents[work.base] if amend else work.base
        call = work.session.amend if amend else work.session.commit
        try:
            with self.faults(faults):
                snapshot_id = call("step")
        except icefloe.SessionStateError:
            assert parent is None or not work.session.has_uncommitted_changes
            assert parent is None or work.tree == self.snapshots[work.base]
        except (icefloe.ConflictError, icefloe.RefNotFoundError):
            assert standing != work.base
        except icefloe.OutcomeUnknownError:
            assert faults is not None
            assert parent is not None
            self.settle(work, parent)
        except icefloe.StorageError:
            assert faults is not None
            assert self.fresh().lookup_branch(work.branch) == standing
        else:
            assert standing == work.base
            assert parent is not None
            self.branches[work.branch] = snapshot_id
            self.landed(work, snapshot_id, parent, work.tree)
            return
        if work in self.works:
            self.check(work)

    def settle(self, work: Work, parent: str) -> None:
        """Nobody knows whether a commit landed: look, and go on from what is there."""
        found = self.fresh().lookup_branch(work.branch)
        if found == self.branches[work.branch]:
            self.works.remove(work)
        else:
            self.branches[work.branch] = found
            self.landed(work, found, parent, work.tree)

    @rule(who=INDEX, ours=st.booleans(), faults=st.none() | FAULTS, land=st.booleans())
    def rebase(self, who: int | Work, ours: bool, faults: tuple[FaultKind, int, int] | None, land: bool) -> None:
        """A rebase, alone or as part of a commit: what was done here is done again on what is there."""
        work = self.pick(who)
        standing = self.branches.get(work.branch)
        solver = BasicConflictSolver() if ours else ConflictDetector()
        snapshot_id = None
        try:
            with self.faults(faults):
                if land:
                    snapshot_id = work.session.commit("rebased", rebase_with=solver)
                else:
                    work.session.rebase(solver)
        except icefloe.SessionStateError:
            assert land and not work.session.has_uncommitted_changes
            return
        except icefloe.RefNotFoundError:
            assert standing is None
            return
        except icefloe.RebaseFailedError:
            assert standing is not None
            assert self.may_clash(work, standing), "a rebase failed although nothing meets"
            self.check(work)
            return
        except icefloe.ConflictError:
            assert standing is None or work.base not in self.history(standing)
            self.check(work)
            return
        except icefloe.OutcomeUnknownError:
            assert faults is not None
            self.settle_rebase(work)
            return
        except icefloe.StorageError:
            assert faults is not None
            assert self.fresh().lookup_branch(work.branch) == standing
            if work.session.snapshot_id != work.base:
                assert standing is not None
                self.carry_over(work, work.session.snapshot_id)
            self.check(work)
            return
        assert standing is not None
        assert work.base in self.history(standing)
        self.carry_over(work, standing)
        if snapshot_id is None:
            self.check(work)
        else:
            self.branches[work.branch] = snapshot_id
            self.landed(work, snapshot_id, standing, work.tree)

    def settle_rebase(self, work: Work) -> None:
        found = self.fresh().lookup_branch(work.branch)
        before = self.branches[work.branch]
        if found == before:
            self.works.remove(work)
            return
        self.carry_over(work, before)
        self.branches[work.branch] = found
        self.landed(work, found, before, work.tree)

    def carry_over(self, work: Work, onto: str) -> None:
        """Commit by commit, as history has it: what somebody else did too is no longer ours."""
        history = self.history(onto)
        for each in reversed(history[: history.index(work.base)]):
            try:
                work.tree = carry_over(self.snapshots[work.base], work.tree, self.snapshots[each], work.operations)
            except ReplayError as error:
                raise AssertionError(f"a rebase went through that makes no sense: {error}") from error
            work.base = each

    def may_clash(self, work: Work, standing: str) -> bool:
        """Whether what was done here meets what was committed since; steps that cancel out count too."""
        base = self.snapshots[work.base]
        ours = difference(base, work.tree).widened(touched_by(work.operations), base)
        history = self.history(standing)
        for each in history[: history.index(work.base)]:
            before = self.snapshots[self.parents[each] or each]
            theirs = difference(before, self.snapshots[each]).widened(self.touched[each], before)
            if ours.may_clash(theirs):
                return True
        return False

    @rule(who=INDEX)
    def flush(self, who: int | Work) -> None:
        """A snapshot that no branch points at."""
        work = self.pick(who)
        if work.session.has_uncommitted_changes:
            self.landed(work, work.session.flush("aside"), work.base, work.tree)

    @rule(
        who=INDEX,
        ours=st.lists(EDITS, min_size=1, max_size=4),
        theirs=st.lists(EDITS, min_size=1, max_size=3),
        solver=st.booleans(),
        faults=st.none() | FAULTS,
        land=st.booleans(),
    )
    def race(
        self,
        who: int,
        ours: list[Edit],
        theirs: list[Edit],
        solver: bool,
        faults: tuple[FaultKind, int, int] | None,
        land: bool,
    ) -> None:
        """Two sessions start from one snapshot; one commits, the other rebases over it."""
        work = self.pick(who)
        if self.branches.get(work.branch) != work.base:
            self.works.remove(work)
            return
        other = Work(self.repo.writable_session(work.branch), work.branch, work.base, self.snapshots[work.base])
        self.works.append(other)
        for edit in ours:
            self.edit(work, edit)
        for edit in theirs:
            self.edit(other, edit)
        self.commit(other, None, False)
        if other in self.works:
            self.works.remove(other)
        self.rebase(work, solver, faults, land)

    def edit(self, work: Work, edit: Edit) -> None:
        kind, which, where, shape, size, flag = edit
        if kind == "create":
            self.create_node(work, where, shape if flag else None, "")
        elif kind == "array":
            self.change_array(work, which, shape, "y" if flag else "")
        elif kind == "group":
            self.change_group(work, which, "z" * size)
        elif kind == "chunks":
            self.write_chunks(work, which, where, size, 1 + where % 255, 1 + flag)
        elif kind == "unset":
            self.delete_chunk(work, which, where)
        elif kind == "shift":
            self.shift_array(work, which, 1 if flag else -1)
        elif kind == "delete":
            self.delete_node(work, which, flag)
        elif kind == "move":
            self.move(work, which, where)
        else:
            self.write_by_workers(work, which, size, flag, 1 + where % 255)

    # -- workers --------------------------------------------------------------------------------------------------

    @rule(who=INDEX, which=INDEX, size=st.sampled_from(SIZES), parts=st.booleans(), fill=st.integers(1, 255))
    def write_by_workers(self, who: int | Work, which: int, size: int, parts: bool, fill: int) -> None:
        """Forks write a chunk each, and come back merged or as parts."""
        work = self.pick(who)
        found = self.array(work, which)
        if found is None:
            return
        path, node = found
        forks = []
        written: dict[Coords, bytes] = {}
        for number in range(2):
            coords = self.coords(node, which // 7 + number)
            if coords in written:
                continue
            fork = pickle.loads(pickle.dumps(work.session.fork()))
            written[coords] = bytes([fill, number]) * size
            run_blocking(fork.keyspace.write(key_of(path, coords), written[coords]))
            forks.append(fork)
        if parts:
            try:
                work.session.link_parts([fork.write_parts(str(number)) for number, fork in enumerate(forks)])
            except icefloe.InvalidInputError:
                assert work.linked & {(node.uid, coords) for coords in written}, "nobody wrote these chunks before"
                self.check(work)
                return
            work.linked |= {(node.uid, coords) for coords in written}
        else:
            work.session.merge(*(pickle.loads(pickle.dumps(fork)) for fork in forks))
        for coords, data in written.items():
            work.do(Chunk(node.uid, coords, data))
        self.check(work)

    # -- refs -----------------------------------------------------------------------------------------------------

    def attempt(self, faults: tuple[FaultKind, int, int] | None, call: Callable[[], object]) -> bool | None:
        """Whether a change of refs took place; None when the answer is not known."""
        try:
            with self.faults(faults):
                call()
        except icefloe.OutcomeUnknownError:
            assert faults is not None
            return None
        except icefloe.StorageError:
            assert faults is not None
            return False
        except icefloe.AlreadyExistsError:
            # Another maker of the same ref would have written the same bytes: nobody can tell them apart.
            assert faults is not None
            return None
        return True

    @rule(name=st.sampled_from(["dev", "old"]), index=INDEX, faults=st.none() | FAULTS)
    def create_branch(self, name: str, index: int, faults: tuple[FaultKind, int, int] | None) -> None:
        target = list(self.snapshots)[index % len(self.snapshots)]
        if name in self.branches:
            return
        done = self.attempt(faults, lambda: self.repo.create_branch(name, target))
        if done is None:
            done = name in self.fresh().list_branches()
        if done:
            self.branches[name] = target
        assert self.fresh().list_branches() == set(self.branches)

    @rule(name=st.sampled_from(["dev", "old"]), faults=st.none() | FAULTS)
    def delete_branch(self, name: str, faults: tuple[FaultKind, int, int] | None) -> None:
        if name not in self.branches:
            return
        done = self.attempt(faults, lambda: self.repo.delete_branch(name))
        if done is None:
            done = name not in self.fresh().list_branches()
        if done:
            del self.branches[name]
        assert self.fresh().list_branches() == set(self.branches)

    @rule(branch=INDEX, index=INDEX, guarded=st.booleans(), faults=st.none() | FAULTS)
    def reset_branch(self, branch: int, index: int, guarded: bool, faults: tuple[FaultKind, int, int] | None) -> None:
        name = sorted(self.branches)[branch % len(self.branches)]
        target = list(self.snapshots)[index % len(self.snapshots)]
        expected = self.branches[name] if guarded else None
        done = self.attempt(faults, lambda: self.repo.reset_branch(name, target, from_snapshot_id=expected))
        if done is None:
            done = self.fresh().lookup_branch(name) == target
        if done:
            self.branches[name] = target
        assert self.fresh().lookup_branch(name) == self.branches[name]

    @rule(name=st.sampled_from(["v1", "v2"]), index=INDEX, faults=st.none() | FAULTS)
    def create_tag(self, name: str, index: int, faults: tuple[FaultKind, int, int] | None) -> None:
        target = list(self.snapshots)[index % len(self.snapshots)]
        if name in self.tags:
            return
        done = self.attempt(faults, lambda: self.repo.create_tag(name, target))
        if done is None:
            done = name in self.fresh().list_tags()
        if done:
            self.tags[name] = target
        assert self.fresh().list_tags() == set(self.tags)

    @rule()
    def reopen(self) -> None:
        """Another process goes on; sessions that are open stay open."""
        self.repo = self.fresh()
