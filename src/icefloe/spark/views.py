"""Temporary views of a repository for SQL: one per array, one per grid, one per table of metadata."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.model.nodes import ArrayNode, GroupNode
from icefloe.session.session import Session
from icefloe.spark.cells import metadata_frame, plan_table, scan_frame
from icefloe.spark.connection import quieten_failed_queries
from icefloe.spark.places import Target, existing_repository
from icefloe.spark.registration import register
from icefloe.spark.tasks import reason_of
from icefloe.tables.grids import list_grids
from icefloe.tables.options import METADATA_TABLES, Point, TableOptions
from icefloe.tables.places import Place, place_of

ROOT_VIEW = "cells"
_READ_FROM = re.compile(r"\b(?:from|join)\s+`?(\w+)`?", re.IGNORECASE)
_log = logging.getLogger("icefloe.spark")


@dataclass(frozen=True, slots=True)
class View:
    """A view before it is made: arrays of a group, or a table of metadata."""

    name: str
    group: str = "/"
    variables: tuple[str, ...] = ()
    table: str | None = None
    shares: str | None = None
    """The name that this view and others would have had."""

    @property
    def holds(self) -> str:
        """What the view shows, as people name it."""
        if self.table is not None:
            return f"the table {self.table} of metadata"
        return f"{', '.join(self.variables)} in {self.group}"


def list_views(session: Session) -> list[View]:
    """Every view of a snapshot: arrays by their path with `_` for `/`, grids by their group, metadata by its name.

    SQL does not tell `q` from `Q`, nor the name of `/a/b` from that of `/a_b`. A name that several would share
    stands for none of them: each then has a name of its own, which ends with a few digits that its path gives.
    """
    found: dict[str, list[View]] = {}
    for node in session.workspace.tree.nodes():
        if isinstance(node, ArrayNode):
            group, _, name = node.path.rpartition("/")
            view = View(view_name(node.path), group or "/", (name,))
            found.setdefault(view.name.lower(), []).append(view)
    for node in session.workspace.tree.nodes():
        if isinstance(node, GroupNode):
            for view in _grids(session, node.path):
                name = view.name if view.name != ROOT_VIEW or ROOT_VIEW not in found else f"icefloe_{ROOT_VIEW}"
                found.setdefault(name.lower(), []).append(replace(view, name=name))
    views = {view.name.lower(): view for alike in found.values() for view in _told_apart(alike)}
    for table in METADATA_TABLES:
        name = table if table not in found else f"icefloe_{table}"
        views.setdefault(name, View(name, table=table))
    return list(views.values())


def _told_apart(alike: Sequence[View]) -> list[View]:
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


def register_views(
    spark: SparkSession, repo: Target, point: Point | None = None, query: str | None = None
) -> Mapping[str, View]:
    """Make the views that a query mentions, or all of them; returns those that were made, by name.

    All of them stand at one snapshot. An array that no table can show has no view; that is an error only for a query
    that reads from it, as is a name that several arrays would share.
    """
    register(spark)
    repository = existing_repository(repo)
    session = (point or Point()).session(repository)
    wanted = None if query is None else {word.lower() for word in re.findall(r"\w+", query)}
    read = {word.lower() for word in _READ_FROM.findall(query or "")}
    place = place_of(repository)
    made: dict[str, View] = {}
    views = list_views(session)
    _refuse_shared(views, read)
    for view in views:
        if wanted is None or view.name.lower() in wanted:
            try:
                _frame(spark, place, session.snapshot_id, view).createOrReplaceTempView(view.name)
            except (IcefloeError, PySparkException) as error:
                if view.name.lower() in read:
                    raise
                # Types that no table has, names that columns cannot have: the other views are still there.
                _log.warning("there is no view of %s: %s", view.holds, str(error).partition("\n")[0])
                continue
            made[view.name] = view
    return made


def _refuse_shared(views: Sequence[View], read: Set[str]) -> None:
    for name in sorted(read):
        alike = [view for view in views if view.shares is not None and view.shares.lower() == name]
        if alike:
            told = ", ".join(f"{view.name} for {view.holds}" for view in alike)
            raise InvalidInputError(f"the name {name} could mean {len(alike)} arrays; write {told}")


def _frame(spark: SparkSession, place: Place, snapshot_id: str, view: View) -> DataFrame:
    options = TableOptions(place, Point(snapshot_id=snapshot_id), view.group, view.variables or None)
    if view.table is not None:
        return metadata_frame(spark, replace(options, table=view.table))
    return scan_frame(spark, plan_table(spark, options, None))


def run_query(spark: SparkSession, query: str, limit: int | None = None) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows of a query; one that fails is told in one line."""
    quieten_failed_queries()
    try:
        frame = spark.sql(query)
        return frame.columns, (frame.limit(limit) if limit else frame).toArrow().to_pylist()
    except PySparkException as error:
        # The plan and the traces of Java that follow are for those who look at the cause.
        told = str(error)
        raise InvalidInputError(reason_of(error) if "Traceback" in told else told.partition("\n")[0]) from error
