"""Names of tables in SQL: the views of a snapshot, and how a name or a revision of a query is found."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, NodeNotFoundError, suggest
from icefloe.lazy_exports import lazy_module
from icefloe.model.snapshot import ArrayNode, GroupNode
from icefloe.repository import Repository
from icefloe.repository.repository import resolve_revision
from icefloe.session.session import Session
from icefloe.tables.grids import dimensions_of, list_grids, parse_instant, session_zone, to_microseconds
from icefloe.tables.table_options import (
    METADATA_TABLES,
    RepositoryAddress,
    Revision,
    TableOptions,
    address_of,
    session_at,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.tables import metadata_tables, scans
else:
    # A wrong name is reported before Arrow and Zarr are imported.
    metadata_tables = lazy_module("icefloe.tables.metadata_tables")
    scans = lazy_module("icefloe.tables.scans")

ROOT_VIEW = "cells"


@dataclass(frozen=True, slots=True)
class View:
    """A view to create: arrays of a group, or a table of metadata."""

    name: str
    group: str = "/"
    variables: tuple[str, ...] = ()
    table: str | None = None
    shares: str | None = None
    """The ambiguous name that this view shares with others."""

    @property
    def holds(self) -> str:
        """The content of the view, for messages."""
        if self.table is not None:
            return f"the table {self.table} of metadata"
        return f"{', '.join(self.variables)} in {self.group}"


def list_views(session: Session) -> list[View]:
    """Every view of a snapshot: arrays by their path with `_` for `/`, grids by their group, metadata by its name.

    In SQL, `q` and `Q` are the same name, and so are the names of `/a/b` and `/a_b`. A name that several views would
    share is not used. Each of them has a name that ends with a hash of its path instead.
    """
    found: dict[str, list[View]] = {}
    for node in session.state.tree.nodes():
        if isinstance(node, ArrayNode):
            group, _, name = node.path.rpartition("/")
            view = View(view_name(node.path), group or "/", (name,))
            found.setdefault(view.name.lower(), []).append(view)
    for node in session.state.tree.nodes():
        if isinstance(node, GroupNode):
            for view in _grids(session, node.path):
                name = view.name if view.name != ROOT_VIEW or ROOT_VIEW not in found else f"icefloe_{ROOT_VIEW}"
                found.setdefault(name.lower(), []).append(replace(view, name=name))
    views = {view.name.lower(): view for alike in found.values() for view in _with_distinct_names(alike)}
    for table in METADATA_TABLES:
        name = table if table not in found else f"icefloe_{table}"
        views.setdefault(name, View(name, table=table))
    return list(views.values())


def _with_distinct_names(alike: Sequence[View]) -> list[View]:
    if len(alike) == 1:
        return list(alike)
    return [replace(view, name=f"{view.name}_{_digits(view)}", shares=view.name) for view in alike]


def _digits(view: View) -> str:
    text = "/".join((view.group.rstrip("/"), *view.variables))
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _grids(session: Session, group: str) -> list[View]:
    grids = [names for names in list_grids(session, group) if len(names) > 1]
    return [View(view_name(group) or ROOT_VIEW, group, grids[0])] if len(grids) == 1 else []


def view_name(path: str) -> str:
    """A path as a name in SQL."""
    return re.sub(r"\W", "_", path.strip("/"))


def refuse_shared(views: Sequence[View], read: Set[str]) -> None:
    for name in sorted(read):
        alike = [view for view in views if view.shares is not None and view.shares.lower() == name]
        if alike:
            names = ", ".join(f"{view.name} for {view.holds}" for view in alike)
            raise InvalidInputError(f"the name {name} is ambiguous: {len(alike)} arrays have it. Use {names}")


def find_view(session: Session, name: str, *, quoted: bool = False) -> View:
    """Return the view with a name, in any case. A quoted name can also be the exact path of an array or a group."""
    tree = session.state.tree
    path = "/" + name.strip("/")
    if quoted and path != "/":
        node = tree.find(path)
        if isinstance(node, ArrayNode):
            group, _, variable = path.rpartition("/")
            return View(name, group or "/", (variable,))
        if isinstance(node, GroupNode) and "/" in name.strip("/"):
            return next(iter(_grids(session, path)), None) or _no_view(session, name)
    alike = [node for node in tree.nodes() if (view_name(node.path) or ROOT_VIEW).lower() == name.lower()]
    if len(alike) == 1 and isinstance(alike[0], ArrayNode):
        group, _, variable = alike[0].path.rpartition("/")
        return View(name, group or "/", (variable,))
    views = list_views(session)
    for view in views:
        if view.name.lower() == name.lower():
            return view
    refuse_shared(views, {name.lower()})
    return _no_view(session, name)


def _no_view(session: Session, name: str) -> View:
    names = [view.name for view in list_views(session) if view.table is None]
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    near = suggest(name.lower(), [*names, *METADATA_TABLES])
    raise NodeNotFoundError(f"there is no table {name!r}{near}. There are: {listed or 'only tables of metadata'}")


_MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a query reads: arrays of a group or metadata, at a snapshot."""

    view: View
    address: RepositoryAddress
    snapshot_id: str
    names: tuple[str, ...]
    """Of the columns."""
    dimensions: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""
        if self.view.table is not None:
            return metadata_tables.SCHEMAS[self.view.table]
        return scans.grid_at(self.address, self.snapshot_id, self.view.group, self.view.variables, False).schema()

    def find_column(self, name: str) -> str | None:
        """Return the column with a name, in any case."""
        lowered = name.lower()
        return next((known for known in self.names if known.lower() == lowered), None)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables of a repository, at the snapshot of a query or at another one that the query names."""

    repository: Repository
    address: RepositoryAddress
    snapshot_id: str
    zone: str = "UTC"
    """The time zone of times without a zone."""

    @classmethod
    def of(cls, repository: Repository, session: Session, zone: str = "UTC") -> Catalog:
        """Return the catalog of a repository at the snapshot of a session."""
        return cls(repository, address_of(repository), session.snapshot_id, zone)

    def find(self, name: str, *, quoted: bool = False, version: str | None = None, at: str | None = None) -> Table:
        """Return the table with a name, at a version (a branch, tag or snapshot) or at a time of the branch `main`."""
        snapshot_id = self.snapshot_id
        if version is not None:
            snapshot_id = resolve_revision(self.repository, version)
        elif at is not None:
            snapshot_id = self._at_time(at)
        session = session_at(self.address, snapshot_id)
        view = find_view(session, name, quoted=quoted)
        if view.table is not None:
            names = tuple(metadata_tables.SCHEMAS[view.table].names)
            return Table(view, self.address, snapshot_id, names)
        dimensions = dimensions_of(session, f"{view.group.rstrip('/')}/{view.variables[0]}")
        return Table(view, self.address, snapshot_id, (*dimensions, *view.variables), dimensions)

    def options(self, table: Table, variables: Sequence[str] | None = None) -> TableOptions:
        """Return the options that read a table."""
        names = tuple(variables) if variables else table.view.variables or None
        revision = Revision(snapshot_id=table.snapshot_id)
        return TableOptions(self.address, revision, table.view.group, names, table=table.view.table)

    def _at_time(self, text: str) -> str:
        moment = parse_instant(text)
        zone = session_zone(self.zone)
        if moment is None or zone is None:
            raise InvalidInputError(f"TIMESTAMP AS OF {text!r} is not a time such as '2024-05-01 12:00:00'")
        micro = to_microseconds(moment, zone)
        as_of = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micro)
        return self.repository.readonly_session(as_of=as_of).snapshot_id
