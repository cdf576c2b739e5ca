"""`icefloe merge`: bring changes from branch to branch, or take one back."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun
from icefloe.cli.opening import open_repository, resolve_revision
from icefloe.cli.output import print_json, stdout
from icefloe.maintenance.merge_plan import MergePlan
from icefloe.session.conflicts import BasicConflictSolver, ConflictDetector, ConflictSolver, VersionSelection

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
    if pick + revert + squash > 1:
        raise typer.BadParameter("choose one of --pick, --revert and --squash")
    repository = open_repository(place, options)
    solver = _SOLVERS[prefer]
    if squash:
        onto = resolve_revision(repository, source)
        if dry_run:
            stdout().print(str(repository.plan_squash(branch, onto)), markup=False)
            return
        done = repository.squash(branch, onto, message=message or f"Commits after {onto}")
    elif pick or revert:
        commit = resolve_revision(repository, source)
        if dry_run:
            plans = repository.plan_cherry_pick if pick else repository.plan_revert
            return _show(plans(commit, branch, solver=solver), json)
        verb = repository.cherry_pick if pick else repository.revert
        done = verb(commit, branch, solver=solver, message=message)
    else:
        if dry_run:
            return _show(repository.plan_merge(source, branch, solver=solver, fast_forward=fast_forward), json)
        done = repository.merge(source, branch, solver=solver, message=message, fast_forward=fast_forward)
    if json:
        print_json({"dry_run": False, "branch": branch, "snapshot_id": done})
    else:
        stdout().print(f"Branch {branch} at {done}", markup=False)


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
        "conflicts": [
            {"type": c.conflict_type.name, "path": c.path, "chunks": c.conflicted_chunks} for c in plan.conflicts
        ],
    })  # fmt: skip
