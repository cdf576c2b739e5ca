"""Temporary views of a repository for SQL: one per array, one per grid, one per table of metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import UnsupportedError
from icefloe.model.nodes import ArrayNode, GroupNode
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.spark.cells import metadata_frame, plan_table, scan_frame
from icefloe.spark.registration import register
from icefloe.tables.grids import list_grids
from icefloe.tables.options import METADATA_TABLES, Point, TableOptions
from icefloe.tables.places import Place, place_of

ROOT_VIEW = "cells"


@dataclass(frozen=True, slots=True)
class View:
    """A view before it is made: arrays of a group, or a table of metadata."""

    name: str
    group: str = "/"
    variables: tuple[str, ...] = ()
    table: str | None = None


def list_views(session: Session) -> list[View]:
    """Every view of a snapshot: arrays by their path with `_` for `/`, grids by their group, metadata by its name."""
    views: dict[str, View] = {}
    for node in session.workspace.tree.nodes():
        if isinstance(node, ArrayNode):
            group, _, name = node.path.rpartition("/")
            _add(views, View(view_name(node.path), group or "/", (name,)))
        elif isinstance(node, GroupNode):
            _add_grids(views, session, node.path)
    for table in METADATA_TABLES:
        name = table if table not in views else f"icefloe_{table}"
        _add(views, View(name, table=table))
    return list(views.values())


def _add_grids(views: dict[str, View], session: Session, group: str) -> None:
    grids = [names for names in list_grids(session, group) if len(names) > 1]
    if len(grids) == 1:
        _add(views, View(view_name(group) or ROOT_VIEW, group, grids[0]))


def _add(views: dict[str, View], view: View) -> None:
    views.setdefault(view.name.lower(), view)


def view_name(path: str) -> str:
    """A path as a name in SQL."""
    return re.sub(r"\W", "_", path.strip("/"))


def register_views(
    spark: SparkSession, repository: Repository, point: Point | None = None, query: str | None = None
) -> Mapping[str, View]:
    """Make the views that a query mentions, or all of them; returns those that were made, by name.

    All of them stand at one snapshot.
    """
    register(spark)
    session = (point or Point()).session(repository)
    wanted = None if query is None else {word.lower() for word in re.findall(r"\w+", query)}
    place = place_of(repository)
    made: dict[str, View] = {}
    for view in list_views(session):
        if wanted is None or view.name.lower() in wanted:
            frame = _frame(spark, place, session.snapshot_id, view)
            if frame is not None:
                frame.createOrReplaceTempView(view.name)
                made[view.name] = view
    return made


def _frame(spark: SparkSession, place: Place, snapshot_id: str, view: View) -> DataFrame | None:
    options = TableOptions(place, Point(snapshot_id=snapshot_id), view.group, view.variables or None)
    if view.table is not None:
        return metadata_frame(spark, replace(options, table=view.table))
    try:
        return scan_frame(spark, plan_table(spark, options, None))
    except UnsupportedError:
        # Types that no table has (complex numbers, structures): the other views are still there.
        return None
