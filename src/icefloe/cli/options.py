"""Arguments and options that several verbs share, and opening the repository that they name."""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import yaml

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icefloe.ids import text_length
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs, newest_commits
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url
from icefloe.storage.contract import Storage

Place = Annotated[str, typer.Argument(metavar="REPO", help="Path or URL of the repository.", show_default=False)]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the storage, as of s3_storage(...) for s3://: region=eu-west-1, anonymous=true.",
    ),
]
TargetOptions = Annotated[
    list[str] | None, typer.Option("--target-option", metavar="NAME=VALUE", help="Option of the storage of TARGET.")
]
Branch = Annotated[str | None, typer.Option("--branch", "-b", metavar="NAME", help="At the tip of this branch.")]
Tag = Annotated[str | None, typer.Option("--tag", "-t", metavar="NAME", help="At this tag.")]
Snapshot = Annotated[
    str | None, typer.Option("--snapshot", "-s", metavar="ID", help="At this snapshot; first characters do.")
]
AsOf = Annotated[
    dt.datetime | None,
    typer.Option(
        "--as-of",
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        metavar="TIME",
        help="As the branch was at this time (UTC unless it says otherwise).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="COUNT", help="Show at most so many; 0 shows all.")]


METRICS = "ICEFLOE_METRICS"
"""Names a file to which a command appends what it took, as a line of JSON."""
_MOST_CANDIDATES = 5


def storage_at(place: str, options: Sequence[str] | None) -> Storage:
    """The storage at a path or URL, with its options as NAME=VALUE."""
    return storage_from_url(place, **parse_options(options or ()))


def parse_options(options: Sequence[str]) -> Mapping[str, Any]:
    """Options of a storage; values are read as YAML, so that `true` and `8` are what they look like."""
    parsed = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--option")
        parsed[name] = yaml.safe_load(value)
    return parsed


def open_repository(
    place: str, options: Sequence[str] | None = None, authorize: Mapping[str, Any] | None = None
) -> Repository:
    """The repository at a path or URL."""
    repository = Repository.open(storage_at(place, options), authorize_virtual_chunk_access=authorize)
    return report_metrics(repository) if os.environ.get(METRICS) else repository


def report_metrics(repository: Repository) -> Repository:
    """The repository under observation; what the command took is appended to the file that ICEFLOE_METRICS names."""
    observed: Repository = repository.observed()
    before, path = observed.metrics, os.environ[METRICS]

    def report() -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps((observed.metrics - before).as_dict()) + "\n")

    atexit.register(report)
    return observed


@dataclass(frozen=True, slots=True)
class Point:
    """Where in history to look, as the options say; the branch `main` when they say nothing."""

    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: dt.datetime | None = None

    @property
    def is_given(self) -> bool:
        return bool(self.branch or self.tag or self.snapshot)

    def session(self, repository: Repository) -> Session:
        """A read-only session there."""
        found = find_snapshot(repository, self.snapshot) if self.snapshot is not None else None
        as_of = self.as_of
        if as_of is not None and as_of.tzinfo is None:
            as_of = as_of.replace(tzinfo=dt.UTC)  # as the option's help says
        return repository.readonly_session(self.branch, tag=self.tag, snapshot_id=found, as_of=as_of)

    def snapshot_id(self, repository: Repository) -> str:
        """The snapshot there."""
        if self.snapshot is not None and not (self.branch or self.tag or self.as_of):
            return find_snapshot(repository, self.snapshot)
        return self.session(repository).snapshot_id


def resolve_revision(repository: Repository, text: str) -> str:
    """The snapshot that a word names: a branch, a tag, or the first characters of a snapshot's id."""
    if text in repository.list_branches():
        return repository.lookup_branch(text)
    if text in repository.list_tags():
        return repository.lookup_tag(text)
    try:
        return find_snapshot(repository, text)
    except SnapshotNotFoundError as error:
        raise RefNotFoundError(
            f"{text!r} is no branch, no tag and no snapshot of {repository.storage.url}; "
            "`icefloe log --graph` shows what there is"
        ) from error


def find_snapshot(repository: Repository, text: str) -> str:
    """The id that starts with these characters, among the snapshots that branches and tags reach."""
    capabilities = repository.engine.capabilities
    wanted = text.upper()
    if len(wanted) == text_length(capabilities.object_id_bytes):
        return repository.lookup_snapshot(wanted).id
    refs = run_blocking(fetch_refs(repository.engine))
    starts = list(dict.fromkeys(ref.snapshot_id for ref in refs))
    known = run_blocking(newest_commits(repository.engine, starts, None))
    found = [info for info in known if info.id.startswith(wanted)] if wanted else []
    if not found:
        raise SnapshotNotFoundError(f"no snapshot id starts with {text!r}; `icefloe log` lists them", snapshot_id=text)
    if len(found) > 1:
        listed = ", ".join(info.id for info in found[:_MOST_CANDIDATES])
        raise InvalidInputError(f"{len(found)} snapshot ids start with {text!r} ({listed}, ...); give more characters")
    return found[0].id


DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan, change nothing.")]
WorkBranch = Annotated[str, typer.Option("--branch", "-b", metavar="NAME", help="The branch to work on.")]
ArrayPattern = Annotated[str, typer.Option("--arrays", metavar="PATTERN", help="Paths of arrays; * is anything.")]
ChunkBox = Annotated[
    str | None, typer.Option("--region", metavar="0:4,2:8", help="Chunks in this box of the chunk grid.")
]
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
        raise typer.BadParameter(f"{text!r} is neither a span (12h, 30d, 2w) nor a time (2024-05-01T12:00Z)") from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write {text}Z for UTC, or an offset such as +09:00")
    return moment


def parse_span(text: str) -> dt.timedelta:
    """A time span such as `12h`, `30d` or `2w`."""
    span = parse_age(text)
    if not isinstance(span, dt.timedelta):
        raise typer.BadParameter(f"{text!r} is not a span such as 12h, 30d or 2w")
    return span
