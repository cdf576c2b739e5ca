"""The plan of a SQL query: for each table, the snapshot, columns and conditions, and aggregates that chunks can answer.

A plan contains the query with one relation for each mention of a table. An engine (DuckDB or Spark) gets the relations
and runs the query. It evaluates all conditions again, so conditions of a relation only reduce what is read. The
exception are aggregates by chunk: their conditions are exact, and the relation contains the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from icefloe.tables.predicates import And, Predicate, Unknown
from icefloe.tables.sql_dialect import IcefloeDialect
from icefloe.tables.views import Table


@dataclass(frozen=True, slots=True)
class Condition:
    """A part of a WHERE or ON clause that all rows of a relation must satisfy to matter."""

    text: str
    expression: exp.Expr
    """The condition with plain names of columns."""
    predicate: Predicate
    """The same for the selection of chunks."""
    dimension: str | None = None
    """The only column of the condition, if it is a dimension. An engine can evaluate it on the coordinate."""
    is_exact: bool = False
    """Whether an aggregation by chunk applies the condition. The query does not contain it any more."""


@dataclass(frozen=True, slots=True)
class Key:
    """An expression of GROUP BY: a function of one dimension."""

    name: str
    expression: exp.Expr
    dimension: str


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate function of a column. Without a column, it counts rows."""

    name: str
    function: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A grouping that is computed chunk by chunk. The relation has a column per key and measure, a row per group."""

    keys: tuple[Key, ...]
    measures: tuple[Measure, ...]
    is_grouped: bool
    """Without GROUP BY, there is one row, even if no cell matches."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One mention of a table in a query."""

    name: str
    """Its name in the planned query."""
    text: str
    """As it is written in the query."""
    table: Table
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    aggregation: Aggregation | None = None
    fallback: str | None = None
    """Why an aggregate is not computed by chunk."""

    def predicate(self, evaluated: Mapping[str, Predicate] | None = None) -> Predicate | None:
        """Return the condition on cells. `evaluated` has conditions that an engine evaluated on coordinates."""
        done = evaluated or {}
        parts = [done.get(condition.text, condition.predicate) for condition in self.conditions]
        known = tuple(part for part in parts if not isinstance(part, Unknown))
        return And(known) if known else None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query and its relations."""

    query: exp.Query
    relations: tuple[Relation, ...]
    zone: str

    def describe(self) -> str:
        """Describe what is read from each table, with an empty line between tables."""
        return "\n\n".join(_describe(relation) for relation in self.relations)


def _describe(relation: Relation) -> str:
    table = relation.table
    lines = [f"{relation.text}: {table.view.holds} at {table.snapshot_id}"]
    lines.append(f"  columns: {', '.join(relation.columns) or 'none'}")
    by_dimension = [condition.text for condition in relation.conditions if condition.dimension is not None]
    others = [each for each in relation.conditions if each.dimension is None]
    pruning = [each.text for each in others if not isinstance(each.predicate, Unknown)]
    if by_dimension:
        lines.append(f"  coordinates: {' AND '.join(by_dimension)}")
    if pruning:
        lines.append(f"  values: {' AND '.join(pruning)}")
    if relation.aggregation is not None:
        keys = ", ".join(key.expression.sql(dialect=IcefloeDialect) for key in relation.aggregation.keys)
        measures = ", ".join(map(str, relation.aggregation.measures)) or "groups only"
        lines.append(f"  aggregated by chunk: {measures}" + (f" grouped by {keys}" if keys else ""))
    elif relation.fallback is not None:
        lines.append(f"  aggregated by the engine: {relation.fallback}")
    return "\n".join(lines)
