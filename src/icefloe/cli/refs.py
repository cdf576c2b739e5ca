"""The commands that change branches, tags, nodes and the status of a repository."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json as json_text
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
import zarr
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.console import stderr, stdout, table
from icefloe.cli.options import (
    DryRun,
    Json,
    Limit,
    Message,
    Repo,
    StorageOptions,
    Texts,
    WorkBranch,
    Yes,
    complete_branch,
    complete_path,
    complete_revision,
    confirm,
    find_snapshot,
    open_repository,
    resolve_revision,
)
from icefloe.cli.output import commit_json, print_json
from icefloe.display.card import first_line, format_count, format_time
from icefloe.display.graph import Ref
from icefloe.errors import InvalidInputError, NodeNotFoundError, NotFoundError, RebaseFailedError
from icefloe.maintenance.merge import FastForwardPlan, MergePlan, SquashPlan
from icefloe.model.snapshot import SnapshotInfo
from icefloe.model.status import RepoAvailability, RepoStatus
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs
from icefloe.session.rebase import BasicConflictSolver, Conflict, ConflictDetector, ConflictSolver, VersionSelection
from icefloe.session.session import Session

Revision = Annotated[
    str, typer.Argument(metavar="REVISION", help="Branch, tag or snapshot id.", autocompletion=complete_revision)
]


def branch(
    repo: Repo,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Branch to create.")] = None,
    start: Revision = "main",
    delete: Annotated[
        Texts, typer.Option("--delete", "-D", metavar="NAME", help="Delete this branch. Can be repeated.")
    ] = None,
    yes: Yes = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete branches.

    Without NAME and --delete, all branches are listed.

    Examples
    --------
    icefloe branch weather
    icefloe branch weather experiment v1
    """
    _manage_refs("branch", open_repository(repo, options), name, start, delete or [], yes=yes, json=json)


def tag(
    repo: Repo,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Tag to create.")] = None,
    revision: Revision = "main",
    delete: Annotated[
        Texts,
        typer.Option(
            "--delete", "-D", metavar="NAME", help="Delete this tag, if the generation allows it. Can be repeated."
        ),
    ] = None,
    yes: Yes = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete tags.

    Without NAME and --delete, all tags are listed. A tag cannot be moved to another snapshot.

    Examples
    --------
    icefloe tag weather v1
    icefloe tag weather --delete v1
    """
    _manage_refs("tag", open_repository(repo, options), name, revision, delete or [], yes=yes, json=json)


def _manage_refs(
    kind: Literal["branch", "tag"],
    repository: Repository,
    name: str | None,
    revision: str,
    delete: list[str],
    *,
    yes: bool,
    json: bool,
) -> None:
    """List, create or delete refs of one kind."""
    is_branch = kind == "branch"
    if delete and name is not None:
        raise typer.BadParameter("NAME and --delete exclude each other", param_hint="--delete")
    if delete:
        confirm(f"Delete the {kind} {', '.join(delete)} of {repository.storage.url}?", yes=yes, json=json)
        for each in delete:
            repository.delete_branch(each) if is_branch else repository.delete_tag(each)
        print_json({"deleted": delete}) if json else stdout().print(f"Deleted {', '.join(delete)}", markup=False)
    elif name is not None:
        snapshot_id = resolve_revision(repository, revision)
        repository.create_branch(name, snapshot_id) if is_branch else repository.create_tag(name, snapshot_id)
        if json:
            print_json({"created": name, "snapshot_id": snapshot_id})
        else:
            stdout().print(f"{kind.capitalize()} {name} at {snapshot_id}", markup=False)
    else:
        _print_refs(repository, kind, json)


def reset(
    repo: Repo,
    branch: Annotated[
        str,
        typer.Argument(metavar="BRANCH", help="Branch to change.", show_default=False, autocompletion=complete_branch),
    ],
    revision: Annotated[
        str,
        typer.Argument(
            metavar="REVISION",
            help="New position: branch, tag, snapshot id, or BRANCH@{1} for where a branch was before.",
            show_default=False,
            autocompletion=complete_revision,
        ),
    ],
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="ID", help="Fail if the branch is not at this snapshot.")
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Point a branch at another snapshot.

    Commits that no branch or tag reaches any more stay until `gc` deletes them. The command prints the old snapshot,
    so that you can return to it. `reset BRANCH BRANCH@{1}` undoes a reset. It fails if another process commits to the
    branch at the same time.

    Examples
    --------
    icefloe reset weather main v1
    icefloe reset weather main 7QX4 --expect 1CEC
    """
    repository = open_repository(repo, options)
    old = repository.lookup_branch(branch)
    new = resolve_revision(repository, revision)
    guard = old if expect is None else find_snapshot(repository, expect)
    repository.reset_branch(branch, new, from_snapshot_id=guard)
    if json:
        print_json({"branch": branch, "from": old, "to": new})
    else:
        stdout().print(f"{branch}: {old} → {new}", markup=False)


def reflog(
    repo: Repo,
    branch: Annotated[
        str, typer.Argument(metavar="BRANCH", help="Branch to look at.", autocompletion=complete_branch)
    ] = "main",
    operations: Annotated[
        bool, typer.Option("--operations", help="Show the operations log of the whole repository, in icechunk2.")
    ] = False,
    limit: Limit = 50,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show where a branch was, newest first.

    `icefloe reset REPO BRANCH BRANCH@{1}` returns to the position before. The generations repository, store and
    icechunk2 record positions.

    Examples
    --------
    icefloe reflog weather
    icefloe reflog weather experiment --limit 10
    """
    repository = open_repository(repo, options)
    if operations:
        _print_operations(repository, limit, json=json)
        return
    positions = repository.reflog(branch, limit=limit or sys.maxsize)
    messages = [_message(repository, position.snapshot_id) for position in positions]
    if json:
        rows = [
            {"position": number, "snapshot_id": each.snapshot_id, "since": each.since, "message": message}
            for number, (each, message) in enumerate(zip(positions, messages, strict=True))
        ]
        print_json({"branch": branch, "positions": rows})
        return
    listing = table("position", "snapshot", "since", "message")
    for number, (each, message) in enumerate(zip(positions, messages, strict=True)):
        shown = "deleted by garbage collection" if message is None else first_line(message)
        listing.add_row(f"{branch}@{{{number}}}", each.snapshot_id, format_time(each.since), Text(shown))
    stdout().print(listing)


def _message(repository: Repository, snapshot_id: str) -> str | None:
    """The message of a snapshot. None if it does not exist any more."""
    try:
        return repository.lookup_snapshot(snapshot_id).message
    except NotFoundError:
        return None


def _print_operations(repository: Repository, limit: int, *, json: bool) -> None:
    updates = list(itertools.islice(repository.ops_log(), limit or None))
    rows = [
        {"at": update.updated_at, "operation": type(update.kind).__name__, **dataclasses.asdict(update.kind)}  # type: ignore[call-overload]
        for update in updates
    ]
    if json:
        print_json({"operations": rows})
        return
    listing = table("time", "operation", "details")
    for row in rows:
        details = ", ".join(f"{name}={value}" for name, value in row.items() if name not in ("at", "operation"))
        listing.add_row(format_time(row["at"]), row["operation"], Text(details))
    stdout().print(listing)


_SOLVERS: dict[str, ConflictSolver] = {
    "fail": ConflictDetector(),
    "source": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "branch": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
}


def merge(
    repo: Repo,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Branch to merge. With --pick or --revert, a commit.", show_default=False
        ),
    ],
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="Branch to merge into.")] = "main",
    pick: Annotated[bool, typer.Option("--pick", help="Apply the changes of this commit only.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Revert the changes of this commit.")] = False,
    squash: Annotated[bool, typer.Option("--squash", help="Combine all commits of BRANCH after SOURCE.")] = False,
    only_move: Annotated[
        bool, typer.Option("--only-fast-forward", help="Move BRANCH to SOURCE. Fail if BRANCH has other commits.")
    ] = False,
    prefer: Annotated[
        Literal["fail", "source", "branch"],
        typer.Option("--prefer", help="Which chunk to keep if both sides wrote it."),
    ] = "fail",
    message: Message = None,
    fast_forward: Annotated[
        bool,
        typer.Option(
            "--fast-forward/--no-fast-forward", help="Move BRANCH without a commit if it has no other commits."
        ),
    ] = True,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Merge a branch, or apply or revert commits.

    Examples
    --------
    icefloe merge weather experiment --dry-run
    icefloe merge weather 7QX4 main --revert
    """
    if pick + revert + squash + only_move > 1:
        raise typer.BadParameter("--pick, --revert, --squash and --only-fast-forward exclude each other")
    repository = open_repository(repo, options)
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
            apply = repository.cherry_pick if pick else repository.revert
            done = apply(revision, branch, solver=solver, message=message)
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
    """Print all conflicts, by array and chunk."""
    if json:
        print_json({"dry_run": False, "branch": branch, "snapshot_id": None, "conflicts": _conflicts(conflicts)})
        return
    console = stderr()
    console.print(f"{format_count(len(conflicts), 'conflict')}; branch {branch} did not change:", markup=False)
    for conflict in conflicts:
        console.print(f"  {conflict}", markup=False, soft_wrap=True)
    console.print("`--prefer source` or `--prefer branch` resolves conflicts of chunks", markup=False)


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


def _print_refs(repository: Repository, kind: Literal["branch", "tag"], json: bool) -> None:
    """Print all branches or all tags with their commits."""
    refs = [ref for ref in run_blocking(fetch_refs(repository.context)) if ref.kind == kind]
    infos = run_blocking(_fetch_infos(repository, refs))
    if json:
        print_json(
            [
                {"name": ref.name, "snapshot_id": ref.snapshot_id, "commit": commit_json(info)}
                for ref, info in zip(refs, infos, strict=True)
            ]
        )
        return
    if not refs:
        stderr().print(Text(f"no {'branches' if kind == 'branch' else 'tags'}", style="dim"))
        return
    listing = table("name", "snapshot", "written", "message")
    for ref, info in zip(refs, infos, strict=True):
        name = Text(ref.name, style="bold green" if ref.kind == "branch" else "bold cyan")
        message = Text(first_line(info.message))
        listing.add_row(name, Text(ref.snapshot_id, style="yellow"), Text(format_time(info.written_at), "dim"), message)
    stdout().print(listing)


async def _fetch_infos(repository: Repository, refs: Sequence[Ref]) -> list[SnapshotInfo]:
    return await asyncio.gather(*(repository.context.ledger.fetch_info(ref.snapshot_id) for ref in refs))


_Node = Annotated[
    str, typer.Argument(metavar="PATH", help="Path of a group or an array.", autocompletion=complete_path)
]


def mv(
    repo: Repo,
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="Path of the node.", show_default=False, autocompletion=complete_path),
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="New path.", show_default=False)],
    branch: WorkBranch = "main",
    message: Message = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Move or rename a group or an array.

    No data is copied. The move is one commit.

    Examples
    --------
    icefloe mv weather t2m temperature
    icefloe mv weather /raw/a /checked/a -b quality
    """
    session = open_repository(repo, options).writable_session(branch)
    session.move(_absolute(source), _absolute(target))
    _commit(session, message or f"Move {_absolute(source)} to {_absolute(target)}", json=json)


def rm(
    repo: Repo,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS", help="Paths of groups or arrays.", show_default=False, autocompletion=complete_path
        ),
    ],
    branch: WorkBranch = "main",
    message: Message = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Delete groups or arrays with one commit.

    Earlier snapshots still have them. `expire` and `gc` free their space.

    Examples
    --------
    icefloe rm weather t2m
    icefloe rm weather a b/c -m 'Not needed'
    """
    session = open_repository(repo, options).writable_session(branch)
    named = [_absolute(path) for path in paths]
    for path in named:
        if path == "/":
            raise InvalidInputError("the root group cannot be deleted. Name the nodes below it")
        session.get_node_id(path)  # an error if there is no such node
        run_blocking(session.store.delete_dir(path.strip("/")))
    _commit(session, message or f"Delete {', '.join(named)}", json=json)


def attrs(
    repo: Repo,
    path: _Node = "/",
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Attribute to show or change.", show_default=False)
    ] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="New value: JSON, or text.", show_default=False)
    ] = None,
    remove: Annotated[
        Texts, typer.Option("--remove", metavar="NAME", help="Remove this attribute. Can be repeated.")
    ] = None,
    branch: WorkBranch = "main",
    message: Message = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show or change the attributes of a node.

    Examples
    --------
    icefloe attrs weather t2m
    icefloe attrs weather t2m units K
    """
    repository = open_repository(repo, options)
    if value is None and not remove:
        _show_attributes(_open_node(repository.readonly_session(branch), path, "r"), path, name, json=json)
        return
    session = repository.writable_session(branch)
    node = _open_node(session, path, "r+")
    if name is not None and value is not None:
        node.attrs[name] = _parse(value)
    for each in remove or ():
        if each not in node.attrs:
            raise NodeNotFoundError(f"{_absolute(path)} has no attribute {each!r}", path=_absolute(path))
        del node.attrs[each]
    changed = [*([name] if value is not None and name is not None else []), *(remove or ())]
    _commit(session, message or f"Change attributes of {_absolute(path)}: {', '.join(changed)}", json=json)


def _show_attributes(node: Any, path: str, name: str | None, *, json: bool) -> None:
    found = dict(node.attrs)
    if name is not None and name not in found:
        raise NodeNotFoundError(f"{_absolute(path)} has no attribute {name!r}", path=_absolute(path))
    shown = found if name is None else found[name]
    if json:
        print_json(shown)
        return
    for key, value in found.items() if name is None else ():
        stdout().print(f"{key}: {json_text.dumps(value, ensure_ascii=False)}", markup=False)
    if name is not None:
        text = shown if isinstance(shown, str) else json_text.dumps(shown, ensure_ascii=False)
        stdout().print(text, markup=False)


def _open_node(session: Session, path: str, mode: Literal["r", "r+"]) -> Any:
    session.get_node_id(_absolute(path))
    return zarr.open(session.store, path=path.strip("/"), mode=mode, zarr_format=3)


def _parse(text: str) -> Any:
    """A value of the command line: JSON if it is JSON, otherwise text."""
    try:
        return json_text.loads(text)
    except ValueError:
        return text


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def _commit(session: Session, message: str, *, json: bool) -> None:
    branch = session.branch
    snapshot_id = session.commit(message)
    if json:
        print_json({"branch": branch, "snapshot_id": snapshot_id, "message": message})
    else:
        stdout().print(f"{branch}: {snapshot_id} {message}", markup=False)


def status(
    repo: Repo,
    availability: Annotated[
        Literal["online", "read-only", "offline"] | None,
        typer.Argument(metavar="STATE", help="New state: online, read-only or offline.", show_default=False),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why it cannot be written to.")] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show or set whether a repository accepts writes, in icechunk2.

    Examples
    --------
    icefloe status weather
    icefloe status weather read-only --reason archived
    """
    repository = open_repository(repo, options)
    if availability is not None:
        state = RepoAvailability[availability.replace("-", "_")]
        repository.set_status(RepoStatus(state, limited_availability_reason=reason))
    found = repository.get_status()
    facts = {
        "status": found.availability.name.replace("_", "-"),
        "set_at": found.set_at,
        "reason": found.limited_availability_reason,
    }
    if json:
        print_json(facts)
    else:
        why = f": {found.limited_availability_reason}" if found.limited_availability_reason else ""
        stdout().print(f"{facts['status']} since {format_time(found.set_at)}{why}", markup=False)


def flags(
    repo: Repo,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Feature to change.", show_default=False)] = None,
    value: Annotated[
        Literal["on", "off", "default"] | None,
        typer.Argument(metavar="VALUE", help="on, off or default.", show_default=False),
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show or set the feature flags of a repository, in icechunk2.

    Examples
    --------
    icefloe flags weather
    icefloe flags weather delete_tag off
    """
    if (name is None) != (value is None):
        raise typer.BadParameter("give NAME and VALUE, or neither", param_hint="VALUE")
    repository = open_repository(repo, options)
    if name is not None:
        repository.set_feature_flag(name, {"on": True, "off": False}.get(value or "default"))
    _print_flags(repository, json=json)


def _print_flags(repository: Repository, *, json: bool) -> None:
    found = repository.feature_flags()
    if json:
        print_json([{"name": flag.name, "enabled": flag.enabled, "setting": flag.setting} for flag in found])
        return
    listing = table("feature", "state", "set")
    for flag in found:
        setting = "" if flag.setting is None else "on" if flag.setting else "off"
        listing.add_row(flag.name, "on" if flag.enabled else "off", setting)
    stdout().print(listing)
