"""Branches that are reset, deleted and rebased, commits amended, history expired, by either library in its turn."""

from __future__ import annotations

import copy
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.icechunk.test_turns import OFFICIAL, SPECS, icechunk, play
from tests.ledger.test_turns_of_both_libraries import MODEL, BranchTurns

import icefloe

pytestmark = pytest.mark.compat
NOTHING = ["Repository initialized"]


class RefTurns(BranchTurns):
    """Turns that also do to branches whatever can be done to them; every snapshot has a model of its own."""

    def __init__(self, folder: Path, spec: int, seed: int) -> None:
        super().__init__(folder, spec, seed)
        self.past: dict[str, dict[str, Any]] = {}
        self.remember("main", self.theirs().lookup_branch("main"))

    def remember(self, branch: str, snapshot_id: str) -> None:
        self.past[snapshot_id] = copy.deepcopy(self.models[branch])

    def turn(self, number: int) -> None:
        super().turn(number)
        for branch in self.models:
            self.remember(branch, self.theirs().lookup_branch(branch))
        library = self.chance.choice([icefloe, icechunk])
        repo = self.ours() if library is icefloe else self.theirs()
        branch = self.chance.choice(sorted(self.models))
        for name, value in self.models[branch].items():
            setattr(self, name, value)
        acts = [self.reset, self.delete, self.rebase, self.expire]
        if self.spec == 2 or library is icefloe:
            acts.append(self.amend)
        if self.messages == NOTHING:
            return
        act = self.chance.choice(acts)
        act(repo, library, branch)
        self.compare_all(act.__name__)

    def reset(self, repo: Any, library: Any, branch: str) -> None:
        """To any snapshot that history knows and that has a root group."""
        known = [info.id for info in repo.ancestry(branch=branch) if info.parent_id is not None]
        target = self.chance.choice([snapshot_id for snapshot_id in known if snapshot_id in self.past])
        repo.reset_branch(branch, target)
        self.models[branch] = copy.deepcopy(self.past[target])

    def delete(self, repo: Any, library: Any, branch: str) -> None:
        if branch != "main":
            repo.delete_branch(branch)
            del self.models[branch]

    def amend(self, repo: Any, library: Any, branch: str) -> None:
        if library is icechunk and moved_last(repo, branch):
            return  # the official library amends such a commit with further moves only
        session = repo.writable_session(branch)
        zarr.open_group(session.store, mode="a").attrs["amended"] = len(self.past)
        self.attributes[""]["amended"] = len(self.past)
        self.remember_tip(branch, session.amend("better", metadata={"better": True}), "better")
        del self.messages[1]
        self.past[repo.lookup_branch(branch)] = copy.deepcopy(self.models[branch])

    def rebase(self, repo: Any, library: Any, branch: str) -> None:
        """Both libraries start from one tip; whoever comes second moves his change on top."""
        first, second = (self.ours(), self.theirs()) if library is icefloe else (self.theirs(), self.ours())
        other = icechunk if library is icefloe else icefloe
        sessions = [first.writable_session(branch), second.writable_session(branch)]
        for session in sessions:
            path = self.name()
            root = zarr.open_group(session.store, mode="a")
            root.create_array(path, shape=(3,), chunks=(2,), dtype="i4")[:] = [1, 2, 3]
            self.arrays[path], self.chunks[path] = np.array([1, 2, 3], dtype="i4"), (2,)
            self.attributes[path] = {}
        sessions[0].commit("earlier")
        self.messages.insert(0, "earlier")
        tip = sessions[1].commit("later", rebase_with=other.ConflictDetector(), rebase_tries=3)
        self.remember_tip(branch, tip, "later")

    def expire(self, repo: Any, library: Any, branch: str) -> None:
        """Everything but the tips and the first snapshot, and then what nobody needs any more."""
        cutoff = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        repo.expire_snapshots(older_than=cutoff)
        repo.garbage_collect(cutoff)
        seen = self.theirs()
        kept = set()
        for name in self.models:
            infos = list(seen.ancestry(branch=name))
            self.models[name]["messages"][:] = [info.message for info in infos]
            kept |= {info.id for info in infos}
        self.past = {key: model for key, model in self.past.items() if key in kept}
        for name in self.models:
            for info in seen.ancestry(branch=name):
                if info.id in self.past:
                    self.past[info.id]["messages"] = [i.message for i in seen.ancestry(snapshot_id=info.id)]

    def remember_tip(self, branch: str, tip: str, message: str) -> None:
        self.messages.insert(0, message)
        self.remember(branch, tip)

    def compare_all(self, act: str) -> None:
        ours, theirs = self.ours(), self.theirs()
        assert ours.list_branches() == theirs.list_branches() == set(self.models), act
        assert ours.list_tags() == theirs.list_tags() == self.tags, act
        if self.spec == 2 and OFFICIAL >= 2:
            mine, other = ([describe(update) for update in repo.ops_log()] for repo in (ours, theirs))
            assert mine == other, act
        for branch, model in self.models.items():
            assert ours.lookup_branch(branch) == theirs.lookup_branch(branch), act
            for name in MODEL:
                setattr(self, name, model[name])
            for repo in (ours, theirs):
                assert [info.message for info in repo.ancestry(branch=branch)] == self.messages, act
                if self.messages == NOTHING:
                    continue
                root = zarr.open_group(repo.readonly_session(branch).store, mode="r")
                found = dict(root.members(max_depth=None))
                assert set(found) == set(self.attributes) - {""}, act
                for path, values in self.arrays.items():
                    np.testing.assert_array_equal(found[path][...], values)


def moved_last(repo: Any, branch: str) -> bool:
    """Whether the newest commit of a branch moved something."""
    tip, parent, *_ = repo.ancestry(branch=branch)
    return bool(repo.diff(from_snapshot_id=parent.id, to_snapshot_id=tip.id).moved_nodes)


def describe(update: Any) -> tuple[str, Any, dict[str, Any]]:
    """An entry of the operations log in words that both libraries share."""
    kind = update.kind
    names = ("name", "branch", "new_snap_id", "previous_snap_id", "new_commit_id")
    fields = {name: getattr(kind, name) for name in names if hasattr(kind, name)}
    return type(kind).__name__, update.updated_at, fields


@pytest.mark.long
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("block", range(4))
def test_both_libraries_agree_whatever_is_done_to_branches(tmp_path: Path, spec: int, block: int) -> None:
    for seed in range(9000 + 6 * block, 9006 + 6 * block):
        play(RefTurns(tmp_path / str(seed), spec, seed), turns=4)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("block", range(8))
def test_both_libraries_agree_in_long_games_of_branches(tmp_path: Path, spec: int, block: int) -> None:
    for seed in range(9500 + 6 * block, 9506 + 6 * block):
        play(RefTurns(tmp_path / str(seed), spec, seed), turns=10)
