"""A machine that does to a repository, step by step, what it does to a plain model, and compares them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hypothesis.strategies as st
from hypothesis.stateful import rule
from tests.session.editing_machine import EDITS, FAULTS, INDEX, SIZES, Edit, EditingMachine, Work, key_of
from tests.session.model import (
    Chunk,
    Coords,
    Hierarchy,
    ReplayError,
    carry_over,
    difference,
    inside,
    touched_by,
)

import icefloe
from icefloe import BasicConflictSolver, ConflictDetector
from icefloe.blocking import run_blocking
from icefloe.testing.storages import Fault, FaultKind


class RepositoryMachine(EditingMachine):
    """Sessions, commits, rebases, refs, forks and parts, under storage faults."""

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
            self.seal_packs(work, parent)
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

    def seal_packs(self, work: Work, parent: str) -> None:
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
