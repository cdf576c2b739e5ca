"""The repository and the point of its history that a command line names."""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
import yaml

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icefloe.ids import text_length
from icefloe.repository import Repository
from icefloe.repository.graph import fetch_refs, newest_commits
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url
from icefloe.storage.contract import Storage

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
