"""What a merge, cherry-pick or revert would do to a branch, and what stands in its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from icefloe.display.amounts import format_count
from icefloe.ids import ObjectId
from icefloe.model.diff import Diff
from icefloe.session.conflicts import Conflict, ConflictSolver, VersionSelection


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The changes that come to a branch, and the conflicts that no solver settles.

    `base` is where both sides come from; in conflicts, *ours* is what comes to the branch, *theirs* what it has.
    """

    branch: str
    target: ObjectId
    source: ObjectId
    base: ObjectId
    diff: Diff
    conflicts: tuple[Conflict, ...] = ()
    fast_forward: bool = False
    """The branch only has to be moved: it has no commits of its own."""
    up_to_date: bool = False
    """The branch holds the changes already."""

    def __str__(self) -> str:
        if self.up_to_date:
            return f"branch {self.branch} holds {self.source} already"
        if self.fast_forward:
            return f"branch {self.branch} moves from {self.target} to {self.source}"
        lines = [f"{self.source} comes to branch {self.branch} at {self.target}; both come from {self.base}"]
        if self.conflicts:
            lines.append(f"{format_count(len(self.conflicts), 'conflict')}:")
            lines += [f"  {conflict}" for conflict in self.conflicts]
        else:
            lines.append(str(self.diff).rstrip() or "no changes")
        return "\n".join(lines)


@dataclass(slots=True)
class CollectingSolver(ConflictSolver):
    """Asks another solver; what that one fails is noted and given up, so that all conflicts are found in one pass."""

    inner: ConflictSolver
    unsolved: list[Conflict] = field(default_factory=list)

    def resolve(self, conflict: Conflict) -> VersionSelection:
        return self.resolve_all([conflict])[0]

    def resolve_all(self, conflicts: Sequence[Conflict]) -> list[VersionSelection]:
        answers = self.inner.resolve_all(conflicts)
        result = []
        for conflict, answer in zip(conflicts, answers, strict=True):
            if answer is VersionSelection.Fail:
                self.unsolved.append(conflict)
                answer = VersionSelection.UseTheirs
            result.append(answer)
        return result
