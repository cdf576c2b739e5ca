"""`icefloe merge`: bring changes from branch to branch, or take one back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun
from icefloe.cli.opening import open_repository, resolve_revision
from icefloe.cli.output import print_json, stderr, stdout
from icefloe.display.amounts import format_count
from icefloe.errors import RebaseFailedError
from icefloe.maintenance.merge import FastForwardPlan, SquashPlan
from icefloe.maintenance.merge_plan import MergePlan
from icefloe.session.conflicts import BasicConflictSolver, Conflict, ConflictDetector, ConflictSolver, VersionSelection

_SOLVERS: dict[str, ConflictSolver] = {
    "fail": ConflictDetector(),
    "source": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "branch": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
}


def register(app: typer.Typer) -> None:
    app.command("merge")(merge)


def merge(
    place: Place,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A branch; with --pick or --revert a commit.")],
    branch: Annotated[str, typer.Argument(metavar="[BRANCH]", help="Where it goes.")] = "main",
    pick: Annotated[bool, typer.Option("--pick", help="Bring the change of this one commit only.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Undo the change of this one commit.")] = False,
    squash: Annotated[bool, typer.Option("--squash", help="Join all commits of BRANCH after SOURCE to one.")] = False,
    only_move: Annotated[
        bool, typer.Option("--only-fast-forward", help="Move BRANCH to SOURCE, or fail if it has commits of its own.")
    ] = False,
    prefer: Annotated[
        Literal["fail", "source", "branch"],
        typer.Option("--prefer", help="Whose chunk counts where both wrote one."),
    ] = "fail",
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="Of the commit.")] = None,
    fast_forward: Annotated[
        bool, typer.Option("--fast-forward/--no-fast-forward", help="Only move a branch without commits of its own.")
    ] = True,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Merge a branch into another; pick, revert or squash commits."""
    if pick + revert + squash + only_move > 1:
        raise typer.BadParameter("choose one of --pick, --revert, --squash and --only-fast-forward")
    repository = open_repository(place, options)
    solver = _SOLVERS[prefer]
    revision = resolve_revision(repository, source) if pick or revert or squash or only_move else source
    if dry_run:
        if squash:
            return _show_squash(repository.plan_squash(branch, revision), json)
        if only_move:
            return _show_move(repository.plan_fast_forward(branch, revision), json)
        if pick or revert:
            plans = repository.plan_cherry_pick if pick else repository.plan_revert
            return _show(plans(revision, branch, solver=solver), json)
        return _show(repository.plan_merge(source, branch, solver=solver, fast_forward=fast_forward), json)
    try:
        if squash:
            done = repository.squash(branch, revision, message=message or f"Commits after {revision}")
        elif only_move:
            done = repository.fast_forward(branch, revision)
        elif pick or revert:
            verb = repository.cherry_pick if pick else repository.revert
            done = verb(revision, branch, solver=solver, message=message)
        else:
            done = repository.merge(source, branch, solver=solver, message=message, fast_forward=fast_forward)
    except RebaseFailedError as error:
        _show_conflicts(branch, error.conflicts, json)
        raise typer.Exit(1) from error
    if json:
        print_json({"dry_run": False, "branch": branch, "snapshot_id": done})
    else:
        stdout().print(f"Branch {branch} at {done}", markup=False)


def _show_conflicts(branch: str, conflicts: Sequence[Conflict], json: bool) -> None:
    """Everything that stands in the way, by array and chunk."""
    if json:
        print_json({"dry_run": False, "branch": branch, "snapshot_id": None, "conflicts": _conflicts(conflicts)})
        return
    console = stderr()
    console.print(f"{format_count(len(conflicts), 'conflict')}; branch {branch} is as it was:", markup=False)
    for conflict in conflicts:
        console.print(f"  {conflict}", markup=False, soft_wrap=True)
    console.print("`--prefer source` or `--prefer branch` settles chunks that both wrote", markup=False)


def _show_move(plan: FastForwardPlan, json: bool) -> None:
    if json:
        print_json({"dry_run": True, "branch": plan.branch, "target": plan.tip, "source": plan.target})
    else:
        stdout().print(str(plan), markup=False)


def _show_squash(plan: SquashPlan, json: bool) -> None:
    if not json:
        stdout().print(str(plan), markup=False)
        return
    commits = list(plan.commits)
    print_json({"dry_run": True, "branch": plan.branch, "target": plan.tip, "onto": plan.onto, "commits": commits})


def _conflicts(found: Sequence[Conflict]) -> list[dict[str, object]]:
    return [{"type": each.conflict_type.name, "path": each.path, "chunks": each.conflicted_chunks} for each in found]


def _show(plan: MergePlan, json: bool) -> None:
    if not json:
        stdout().print(str(plan), markup=False)
        return
    print_json({
        "dry_run": True,
        "branch": plan.branch,
        "target": plan.target,
        "source": plan.source,
        "base": plan.base,
        "fast_forward": plan.fast_forward,
        "up_to_date": plan.up_to_date,
        "conflicts": _conflicts(plan.conflicts),
    })  # fmt: skip
