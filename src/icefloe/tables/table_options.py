"""The options of a table (repository, snapshot, selection, layout), and opening the repository in a task."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError, suggest
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.repository.url import RepositoryUrl
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url
from icefloe.tables.grids import parse_instant, session_zone

if TYPE_CHECKING:
    import yaml
else:
    yaml = lazy_module("yaml")

DRIVER_VARIABLE = "ICEFLOE_DRIVER_PID"
"""The environment variable in which processes that Spark starts find the process id of the driver."""
_SECRETS = ("secret", "token", "password", "access_key", "account_key", "service_account_key", "bearer")


@dataclass(frozen=True, slots=True)
class RepositoryAddress:
    """What another process needs to open a repository. Credentials are never shown."""

    url: str
    storage_options: tuple[tuple[str, Any], ...] = ()
    authorize: tuple[str, ...] = ()
    packed: bytes | None = None
    """A pickled repository, including its credentials."""

    def __repr__(self) -> str:
        return f"RepositoryAddress({self.url!r})"

    def __post_init__(self) -> None:
        for name, _ in self.storage_options:
            if any(word in name.lower() for word in _SECRETS):
                raise InvalidInputError(
                    f"the option storage.{name} would be shown in query plans and stored in tables. Set the "
                    "credentials in the environment of every process, or pass an open repository to icefloe.spark.table"
                )


def address_of(repository: Repository | str | os.PathLike[str]) -> RepositoryAddress:
    """Return the address with which another process opens a repository.

    The address of an open repository includes its configuration and credentials.
    """
    if not isinstance(repository, Repository):
        return RepositoryAddress(absolute_address(os.fspath(repository)))
    return RepositoryAddress(repository.storage.url, packed=pickle.dumps(repository))


def absolute_address(address: str) -> str:
    """Return a URL as it is, and a path as absolute path.

    Relative paths start at the working directory of the driver.
    """
    if "://" in address:
        return address
    path = os.path.expanduser(address.removeprefix("file:"))
    return os.path.abspath(path if os.path.isabs(path) else os.path.join(_driver_folder(path), path))


def _driver_folder(path: str) -> str:
    """Return the working directory of the driver.

    Spark plans the reads and writes of a data source in a Python process that the JVM starts. Its working directory is
    the one that the driver had when the session started, or that of a server.
    """
    started_as = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) or ""
    if not started_as.startswith("pyspark."):
        return os.getcwd()
    try:
        return os.readlink(f"/proc/{os.environ.get(DRIVER_VARIABLE) or _driver_process(path)}/cwd")
    except OSError:
        # Without /proc, the directory in which the session started is what Spark's own data sources use.
        return os.getcwd()


def _driver_process(path: str) -> int:
    """Return the process of the driver, for a session that this library did not start.

    A driver in Python starts the JVM as `pyspark-shell`. The JVM of `spark-submit` runs in the directory of its driver.
    """
    process = os.getppid()
    while process > 1 and Path(f"/proc/{process}/comm").read_text().strip() != "java":
        process = _parent_process(process)
    command = Path(f"/proc/{process}/cmdline").read_bytes()
    if b"SparkConnectServer" in command:
        raise InvalidInputError(
            f"give an absolute path instead of {path!r}. A Spark Connect server does not know the working directory of "
            "its clients"
        )
    return _parent_process(process) if b"pyspark-shell" in command else process


def _parent_process(process: int) -> int:
    # The name of the command stands in parentheses and may contain anything.
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@lru_cache(maxsize=8)
def open_address(address: RepositoryAddress) -> Repository:
    """Open the repository once per process."""
    if address.packed is not None:
        repository: Repository = pickle.loads(address.packed)
        return repository
    storage = storage_from_url(address.url, **dict(address.storage_options))
    return Repository.open(storage, authorize_virtual_chunk_access=dict.fromkeys(address.authorize))


@lru_cache(maxsize=8)
def session_at(address: RepositoryAddress, snapshot_id: str) -> Session:
    """Return a read-only session at a snapshot. It is opened once per process."""
    return open_address(address).readonly_session(snapshot_id=snapshot_id)


LAYOUTS = ("cells", "rows", "chunks")
METADATA_TABLES = ("snapshots", "refs", "nodes", "manifests", "chunks", "files", "history", "changes")
READ_OPTIONS: Mapping[str, str] = {
    "path": "path or URL of the repository, also with a ref: REPO|icechunk://tag.v1/group (or the argument of load())",
    "url": "the same, for tables whose path Spark would resolve itself",
    "branch": "a branch, at its tip when the query is planned",
    "tag": "a tag",
    "snapshot_id": "a snapshot",
    "as_of": "the branch as it was at this time, such as 2024-05-01T12:00:00Z",
    "group": "the group of the arrays",
    "variables": "arrays, separated by commas",
    "region": "ranges of coordinates, ends included: time=2020-01-01:2020-02-01,lat=-10:10",
    "region_index": "ranges of positions, ends excluded: time=0:24,lat=10:20",
    "where": "an SQL condition on columns; a condition that cannot be evaluated is an error",
    "time_zone": "the zone of times without one in where and region; the zone of the session if it is not given",
    "layout": "one of " + ", ".join(LAYOUTS),
    "tensor": "bytes or list: the form of values in the layout `chunks`",
    "decode": "true: decode times, packed and missing values; false: values as stored",
    "statistics": "true: use value ranges of chunks to skip chunks",
    "partition_bytes": "bytes of decoded data that one task reads",
    "table": "a table of metadata: " + ", ".join(METADATA_TABLES),
    "from_snapshot_id": "for the table `changes`: the older snapshot",
    "authorize": "prefixes of virtual chunk containers that may be read, separated by commas",
}
STREAM_OPTIONS: Mapping[str, str] = {
    "starting_snapshot": "earliest (all data, then changes), latest, or a snapshot id",
    "max_commits_per_batch": "largest number of commits in a batch",
    "max_chunks_per_batch": "largest number of changed chunks in a batch; a single commit can have more",
    "emit": "chunks: every cell of changed chunks; new_cells: only cells beyond the former shape",
    "deletions": "error: stop if cells were removed; ignore: continue with the remaining cells",
}
WRITE_OPTIONS: Mapping[str, str] = {
    "message": "message of the commit",
    "metadata": "JSON object: metadata of the commit",
    "dims": "columns that are dimensions, in order, separated by commas",
    "append_dim": "dimension that new coordinates extend",
    "chunks": "chunk lengths of new arrays: time=24,lat=180",
    "coordinates": "JSON object: coordinates of new arrays by dimension",
    "duplicates": "error, any, min, max, sum or mean: how several rows of one cell are combined",
    "off_grid": "error or drop: what happens to rows outside of the grid",
    "any_order": "true: new coordinates may be before existing ones",
    "create": "true: create the repository if it does not exist",
    "query": "name of a stream in its commits; the default is its checkpoint",
    "checkpointlocation": "Spark's own",
    "queryname": "Spark's own",
}
_OF_CATALOGS = ("location", "owner", "provider", "external", "is_managed_location", "comment", "transient_lastddltime")
_YES_NO = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Revision:
    """The branch, tag, snapshot or time of the options."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    as_of: dt.datetime | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("branch", "tag", "snapshot_id") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInputError(f"the options {' and '.join(given)} select two points in history. Give one of them")
        if self.as_of is not None and (self.tag or self.snapshot_id):
            raise InvalidInputError(
                "the option as_of needs a branch. A tag or a snapshot id selects one snapshot already"
            )

    def session(self, repository: Repository) -> Session:
        return repository.readonly_session(self.branch, tag=self.tag, snapshot_id=self.snapshot_id, as_of=self.as_of)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """All options of a read."""

    address: RepositoryAddress
    revision: Revision
    group: str = "/"
    variables: tuple[str, ...] | None = None
    region: str = ""
    region_index: str = ""
    where: str | None = None
    layout: str = "cells"
    tensor: str = "bytes"
    raw: bool = False
    statistics: bool = True
    partition_bytes: int = 64 << 20
    table: str | None = None
    from_snapshot_id: str | None = None
    zone: dt.tzinfo | None = None
    """The zone of times without one, if it was given."""

    def pin(self) -> Session:
        """Return a session at the snapshot of the options."""
        if self.revision.snapshot_id is not None:
            return session_at(self.address, self.revision.snapshot_id)
        return self.revision.session(open_address(self.address))


def normalise_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options in lower case, without those that Spark catalogs add."""
    kept = {key.lower(): value for key, value in options.items() if not key.lower().startswith("option.")}
    return {key: value for key, value in kept.items() if key not in _OF_CATALOGS}


def is_from_catalog(options: Mapping[str, str]) -> bool:
    """Return whether these are the options of a table that a Spark catalog is about to store."""
    return "provider" in {key.lower() for key in options}


def parse_address(options: Mapping[str, str]) -> RepositoryAddress:
    """Return the address of the repository from normalised options."""
    url = options.get("url") or options.get("path")
    if not url:
        raise InvalidInputError("the option `path` is missing. Give the path or URL of the repository")
    storage = tuple(
        sorted(
            (key[len("storage.") :], yaml.safe_load(value))
            for key, value in options.items()
            if key.startswith("storage.")
        )
    )
    return RepositoryAddress(absolute_address(url), storage, split_names(options.get("authorize", "")))


def parse_options(options: Mapping[str, str], further: Mapping[str, str] | None = None) -> TableOptions:
    """Check normalised options. The error contains the option and the allowed values."""
    check_names(options, {**READ_OPTIONS, **(further or {})})
    options = _expand_url(options)
    return TableOptions(
        address=parse_address(options),
        revision=parse_revision(options),
        group="/" + options.get("group", "/").strip("/"),
        variables=split_names(options["variables"]) if "variables" in options else None,
        region=options.get("region", ""),
        region_index=options.get("region_index", ""),
        where=options.get("where"),
        layout=choose(options, "layout", LAYOUTS),
        tensor=choose(options, "tensor", ("bytes", "list")),
        raw=not parse_flag(options, "decode", True),
        statistics=parse_flag(options, "statistics", True),
        partition_bytes=parse_number(options, "partition_bytes", 64 << 20),
        table=choose(options, "table", METADATA_TABLES) if "table" in options else None,
        from_snapshot_id=options.get("from_snapshot_id"),
        zone=parse_zone(options["time_zone"]) if "time_zone" in options else None,
    )


def parse_zone(name: str) -> dt.tzinfo:
    """Return the time zone with a name or an offset."""
    zone = session_zone(name)
    if zone is None:
        raise InvalidInputError(
            f"the time zone {name!r} is unknown. Use a name such as Europe/Berlin, or an offset such as +02:00"
        )
    return zone


def _expand_url(options: Mapping[str, str]) -> Mapping[str, str]:
    """Replace a URL such as `s3://bucket/repo|icechunk://tag.v1/group` by the options that it contains."""
    key = "url" if options.get("url") else "path"
    url = RepositoryUrl.parse(options.get(key, ""))
    names = ("branch", "tag", "snapshot_id", "as_of")
    revision = url.choose({name: options[name] for name in names if name in options})
    group = url.choose_path(options.get("group"))
    return {**options, key: url.location, **revision, **({"group": group} if group is not None else {})}


def parse_revision(options: Mapping[str, str]) -> Revision:
    """Return the branch, tag, snapshot or time of normalised options."""
    as_of = None
    if "as_of" in options:
        moment = parse_instant(options["as_of"])
        if moment is None:
            raise InvalidInputError(
                f"the option as_of is {options['as_of']!r}, expected an ISO time such as 2024-05-01T12:00:00Z"
            )
        as_of = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return Revision(options.get("branch"), options.get("tag"), options.get("snapshot_id"), as_of)


def check_names(options: Mapping[str, str], allowed: Mapping[str, str]) -> None:
    """Raise an error for unknown options. It lists the known ones."""
    for name in options:
        if name not in allowed and not name.startswith("storage."):
            listed = "; ".join(f"{key}: {text}" for key, text in allowed.items())
            near = suggest(name, allowed)
            raise InvalidInputError(
                f"unknown option {name!r}{near}. Known: {listed}, and storage.NAME for options of the storage"
            )


def choose(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0]).lower()
    if value not in allowed:
        raise InvalidInputError(f"the option {name} is {value!r}, expected one of {', '.join(allowed)}")
    return value


def parse_flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = _YES_NO.get(options.get(name, str(default)).lower())
    if value is None:
        raise InvalidInputError(f"the option {name} is {options[name]!r}, expected true or false")
    return value


def parse_number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        raise InvalidInputError(f"the option {name} is {text!r}, expected a whole number above 0")
    return int(text)


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def options_document(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as text, for callers with Python values."""
    return {
        key: value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }
