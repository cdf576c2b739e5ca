"""The verbs that change branches and tags: branch, tag, reset, merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from icefloe.cli.describe import print_refs
from icefloe.cli.options import DryRun, Json, Place, StorageOptions, find_snapshot, open_repository, resolve_revision
from icefloe.cli.output import print_json, stderr, stdout
from icefloe.display.card import format_count
from icefloe.errors import RebaseFailedError
from icefloe.maintenance.merge import FastForwardPlan, MergePlan, SquashPlan
from icefloe.session.rebase import BasicConflictSolver, Conflict, ConflictDetector, ConflictSolver, VersionSelection


def register_branch(app: typer.Typer) -> None:
    app.command("branch")(branch)


def branch(
    place: Place,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The branch to create.")] = None,
    start: Annotated[str, typer.Argument(metavar="[START]", help="Where: branch, tag or snapshot id.")] = "main",
    delete: Annotated[
        list[str] | None, typer.Option("--delete", "-D", metavar="NAME", help="Delete this branch; can be repeated.")
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete branches."""
    repository = open_repository(place, options)
    if delete and name is not None:
        raise typer.BadParameter("create or delete, not both at once", param_hint="--delete")
    if delete:
        for each in delete:
            repository.delete_branch(each)
        print_json({"deleted": delete}) if json else stdout().print(f"Deleted {', '.join(delete)}", markup=False)
    elif name is not None:
        snapshot_id = resolve_revision(repository, start)
        repository.create_branch(name, snapshot_id)
        if json:
            print_json({"created": name, "snapshot_id": snapshot_id})
        else:
            stdout().print(f"Branch {name} at {snapshot_id}", markup=False)
    else:
        print_refs(repository, "branch", json)


def register_tag(app: typer.Typer) -> None:
    app.command("tag")(tag)


def tag(
    place: Place,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The tag to create.")] = None,
    revision: Annotated[
        str, typer.Argument(metavar="[REVISION]", help="Branch, tag or snapshot id that it names for ever.")
    ] = "main",
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", "-D", metavar="NAME", help="Delete this tag, where the generation allows it."),
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete tags."""
    repository = open_repository(place, options)
    if delete and name is not None:
        raise typer.BadParameter("create or delete, not both at once", param_hint="--delete")
    if delete:
        for each in delete:
            repository.delete_tag(each)
        print_json({"deleted": delete}) if json else stdout().print(f"Deleted {', '.join(delete)}", markup=False)
    elif name is not None:
        snapshot_id = resolve_revision(repository, revision)
        repository.create_tag(name, snapshot_id)
        if json:
            print_json({"created": name, "snapshot_id": snapshot_id})
        else:
            stdout().print(f"Tag {name} at {snapshot_id}", markup=False)
    else:
        print_refs(repository, "tag", json)


def register_reset(app: typer.Typer) -> None:
    app.command("reset")(reset)


def reset(
    place: Place,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to move.", show_default=False)],
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="Where to: branch, tag or snapshot id.", show_default=False)
    ],
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="ID", help="Only if the branch is at this snapshot now.")
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Point a branch at another snapshot.

    The commits it leaves behind stay until they are collected; the old snapshot is printed, so that the way back is
    known. A commit that lands while this runs is never thrown away: the command then fails.
    """
    repository = open_repository(place, options)
    old = repository.lookup_branch(branch)
    new = resolve_revision(repository, revision)
    guard = old if expect is None else find_snapshot(repository, expect)
    repository.reset_branch(branch, new, from_snapshot_id=guard)
    if json:
        print_json({"branch": branch, "from": old, "to": new})
    else:
        stdout().print(f"{branch}: {old} → {new}", markup=False)


_SOLVERS: dict[str, ConflictSolver] = {
    "fail": ConflictDetector(),
    "source": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "branch": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
}


def register_merge(app: typer.Typer) -> None:
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
    print_json(
        {
            "dry_run": True,
            "branch": plan.branch,
            "target": plan.target,
            "source": plan.source,
            "base": plan.base,
            "fast_forward": plan.fast_forward,
            "up_to_date": plan.up_to_date,
            "conflicts": _conflicts(plan.conflicts),
        }
    )
