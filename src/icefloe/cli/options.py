"""Arguments and options that several commands share, and the values that commands make of them.

Typer wants one parameter for each option. A command here may also have a parameter whose type is an option group: a
dataclass such as `RevisionOptions` or `SparkOptions`. `app.expand_groups` replaces it by the fields of the group before
Typer sees the command.
"""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.errors import IcefloeError, UnsupportedError
from icefloe.model.capabilities import SpecVersion
from icefloe.repository import Repository
from icefloe.repository.repository import find_snapshot as find_snapshot
from icefloe.repository.repository import resolve_revision as resolve_revision
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url
from icefloe.storage.contract import Storage

if TYPE_CHECKING:
    from icefloe.spark.connect import SparkSession

Texts = list[str] | None


# Completion in the shell. A repository that cannot be opened has nothing to offer.


def _offer(context: typer.Context, incomplete: str, find: Callable[[Repository], Iterable[str]]) -> list[str]:
    repo = context.params.get("repo")
    if not isinstance(repo, str):
        return []
    try:
        found = sorted(find(open_repository(repo, context.params.get("options"))))
    except (IcefloeError, OSError, ValueError, TypeError, typer.BadParameter):
        return []
    return [name for name in found if name.startswith(incomplete)]


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the branches of the repository."""
    return _offer(context, incomplete, lambda repository: repository.list_branches())


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the tags of the repository."""
    return _offer(context, incomplete, lambda repository: repository.list_tags())


def complete_revision(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the branches and the tags of the repository."""
    return _offer(context, incomplete, lambda repository: repository.list_branches() | repository.list_tags())


def complete_path(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the nodes of the branch, with a leading slash if the user began with one."""

    def paths(repository: Repository) -> Iterable[str]:
        session = repository.readonly_session(context.params.get("branch"), tag=context.params.get("tag"))
        slash = "/" if incomplete.startswith("/") else ""
        return [slash + path.strip("/") for path in session.state.base.nodes if path != "/"]

    return _offer(context, incomplete, paths)


def complete_generation(incomplete: str) -> list[str]:
    """Offer the generations."""
    return [version.value for version in SpecVersion if version.value.startswith(incomplete)]


# The repository and its storage.

Repo = Annotated[str, typer.Argument(metavar="REPO", help="Path or URL of the repository.", show_default=False)]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Path or URL to write to.", show_default=False)]
StorageOptions = Annotated[
    Texts,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Storage option, for example region=eu-west-1 or anonymous=true. Can be repeated.",
    ),
]
TargetOptions = Annotated[
    Texts, typer.Option("--target-option", metavar="NAME=VALUE", help="Storage option of TARGET. Can be repeated.")
]
Authorize = Annotated[
    Texts,
    typer.Option("--authorize", metavar="PREFIX", help="Allow reading virtual chunks below this URL. Can be repeated."),
]

# What to print, and whether to write.

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, metavar="COUNT", help="Maximum number of entries. 0 shows all.")
]
ListChunks = Annotated[bool, typer.Option("--chunks", help="List the coordinates of all changed chunks.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan. Do not write.")]

# What to work on.

NodePath = Annotated[
    str, typer.Argument(metavar="PATH", help="Path of a group or an array.", autocompletion=complete_path)
]
WorkBranch = Annotated[
    str,
    typer.Option("--branch", "-b", metavar="NAME", help="Branch to commit to.", autocompletion=complete_branch),
]
Message = Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="Commit message.")]
ArrayPattern = Annotated[
    str, typer.Option("--arrays", metavar="PATTERN", help="Paths of the arrays. * matches any text.")
]
ChunkBox = Annotated[
    str | None,
    typer.Option("--region", metavar="0:4,2:8", help="Only these chunks: a range of the chunk grid per dimension."),
]
Variables = Annotated[
    Texts, typer.Option("--variables", metavar="NAMES", help="Only these variables, separated by commas.")
]
Chunks = Annotated[
    Texts,
    typer.Option(
        "--chunks", metavar="DIM=LENGTH", help="New chunk lengths, for example time=24. -1 is the whole dimension."
    ),
]
Generation = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="NAME",
        help="Generation: repository, dataset, store, icechunk1 or icechunk2.",
        autocompletion=complete_generation,
    ),
]


@dataclass(frozen=True, slots=True)
class RevisionOptions:
    """The option group that selects a revision. The default is the branch `main`."""

    branch: Annotated[
        str | None,
        typer.Option(
            "--branch", "-b", metavar="NAME", help="Read this branch.  [default: main]", autocompletion=complete_branch
        ),
    ] = None
    tag: Annotated[
        str | None,
        typer.Option("--tag", "-t", metavar="NAME", help="Read this tag.", autocompletion=complete_tag),
    ] = None
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", "-s", metavar="ID", help="Read this snapshot. The first characters are enough."),
    ] = None
    as_of: Annotated[
        dt.datetime | None,
        typer.Option(
            "--as-of",
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
            metavar="TIME",
            help="Read the branch as it was at this time, for example 2024-05-01T12:00. Without an offset, the time is "
            "UTC.",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any of the options was used."""
        return bool(self.branch or self.tag or self.snapshot or self.as_of)

    def session(self, repository: Repository) -> Session:
        """Open a read-only session at this revision."""
        found = find_snapshot(repository, self.snapshot) if self.snapshot is not None else None
        as_of = self.as_of
        if as_of is not None and as_of.tzinfo is None:
            as_of = as_of.replace(tzinfo=dt.UTC)  # as the option's help says
        return repository.readonly_session(self.branch, tag=self.tag, snapshot_id=found, as_of=as_of)

    def snapshot_id(self, repository: Repository) -> str:
        """The snapshot at this revision."""
        if self.snapshot is not None and not (self.branch or self.tag or self.as_of):
            return find_snapshot(repository, self.snapshot)
        return self.session(repository).snapshot_id


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The option group of commands that run on Spark."""

    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark master, or sc://HOST:PORT of a Spark Connect server.  [default: all local cores]",
        ),
    ] = None
    conf: Annotated[
        Texts, typer.Option("--conf", metavar="NAME=VALUE", help="Setting of the Spark session. Can be repeated.")
    ] = None

    def session(self, *, quick_start: bool = False) -> SparkSession:
        """Connect to Spark. `quick_start` is for commands whose work runs in Python."""
        return self.starter(quick_start=quick_start)()

    def starter(self, *, quick_start: bool = False) -> Callable[[], SparkSession]:
        """Return a function that connects to Spark. Raise an error at once if Spark or Java is missing."""
        try:
            from icefloe.spark.connect import connect, ensure_java  # noqa: PLC0415 - Spark is an extra
        except ImportError as error:
            raise UnsupportedError(
                f"this command needs Spark. Install it with: pip install 'icefloe[spark]' ({error})"
            ) from error
        if self.master is not None and self.master.startswith("sc://"):
            return partial(connect, remote=self.master)
        ensure_java()
        return partial(connect, self.master, quick_start=quick_start, settings=parse_pairs(self.conf, "--conf"))


METRICS = "ICEFLOE_METRICS"
"""The environment variable with the file to which a command appends its metrics, as a line of JSON."""


def storage_at(location: str, options: Sequence[str] | None) -> Storage:
    """The storage at a path or URL, with options as NAME=VALUE."""
    return storage_from_url(location, **parse_options(options or ()))


def open_repository(
    repo: str, options: Sequence[str] | None = None, authorize: Sequence[str] | None = None
) -> Repository:
    """Open the repository at a path or URL, with the virtual chunk prefixes that may be read."""
    allowed = dict.fromkeys(authorize) if authorize else None
    repository = Repository.open(storage_at(repo, options), authorize_virtual_chunk_access=allowed)
    return report_metrics(repository) if os.environ.get(METRICS) else repository


def report_metrics(repository: Repository) -> Repository:
    """The repository with metrics, which are appended to the file in ICEFLOE_METRICS when the process exits."""
    observed: Repository = repository.observed()
    before, path = observed.metrics, os.environ[METRICS]

    def report() -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps((observed.metrics - before).as_dict()) + "\n")

    atexit.register(report)
    return observed


def confirm(question: str, *, yes: bool, json: bool) -> None:
    """Ask before a change that cannot be undone. Scripts are not asked: their standard input is no terminal."""
    if yes or json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    typer.confirm(question, abort=True, err=True)


def parse_options(options: Sequence[str]) -> Mapping[str, Any]:
    """NAME=VALUE options of a storage. Values are parsed as YAML, so `true` is a boolean and `8` is a number."""
    if not options:
        return {}
    import yaml  # noqa: PLC0415 - slow to import, and few commands get options

    parsed = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--option")
        parsed[name] = yaml.safe_load(value)
    return parsed


def parse_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE as a dictionary. Except for --conf, one option can have several pairs, separated by commas."""
    parsed: dict[str, str] = {}
    for text in pairs or ():
        for pair in text.split(",") if option != "--conf" else [text]:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
            parsed[name.strip()] = value.strip()
    return parsed


def parse_numbers(pairs: Sequence[str] | None, option: str) -> dict[str, int]:
    """DIM=LENGTH as a dictionary."""
    try:
        return {name: int(value) for name, value in parse_pairs(pairs, option).items()}
    except ValueError as error:
        raise typer.BadParameter(f"a length is a whole number ({error})", param_hint=option) from error


def parse_region(pairs: Sequence[str] | None, option: str = "--region") -> dict[str, tuple[int, int]]:
    """DIM=FIRST:END as bounds per dimension."""
    bounds: dict[str, tuple[int, int]] = {}
    for name, value in parse_pairs(pairs, option).items():
        first, colon, end = value.partition(":")
        if not colon or not first.isdigit() or not end.isdigit():
            raise typer.BadParameter(f"{name}={value} is not DIM=FIRST:END", param_hint=option)
        bounds[name] = (int(first), int(end))
    return bounds


def parse_chunk_box(text: str | None) -> list[tuple[int, int]] | None:
    """FIRST:END per dimension of a chunk grid, separated by commas."""
    if text is None:
        return None
    try:
        pairs = [each.split(":") for each in text.split(",")]
        return [(int(first), int(end)) for first, end in pairs]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not FIRST:END per dimension", param_hint="--region") from error


def parse_names(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names, repeated or separated by commas. None if there are none."""
    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    return tuple(names) or None


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def parse_age(text: str) -> dt.datetime | dt.timedelta:
    """A time span such as `12h`, `30d` or `2w`, or a time in ISO 8601 with its time zone."""
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return dt.timedelta(seconds=float(span.group(1)) * _UNITS[span.group(2)])
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a time span (12h, 30d, 2w) nor a time (2024-05-01T12:00Z)"
        ) from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone. Write {text}Z for UTC, or an offset such as +09:00")
    return moment


def parse_span(text: str) -> dt.timedelta:
    """A time span such as `12h`, `30d` or `2w`."""
    span = parse_age(text)
    if not isinstance(span, dt.timedelta):
        raise typer.BadParameter(f"{text!r} is not a time span such as 12h, 30d or 2w")
    return span
