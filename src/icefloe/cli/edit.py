"""The commands that change nodes and the administration of a repository: mv, rm, attrs, status, flags."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any, Literal

import typer
import zarr

from icefloe.blocking import run_blocking
from icefloe.cli.console import stdout, table
from icefloe.cli.options import (
    Json,
    Message,
    Repo,
    StorageOptions,
    Texts,
    WorkBranch,
    complete_path,
    open_repository,
)
from icefloe.cli.output import print_json
from icefloe.display.card import format_time
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model.administration import RepoAvailability, RepoStatus
from icefloe.repository import Repository
from icefloe.session.session import Session

_Node = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Path of a group or an array.", show_default=False, autocompletion=complete_path
    ),
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
