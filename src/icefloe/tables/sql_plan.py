"""The plan of a SQL query: for each table, the snapshot, columns and conditions, and aggregates that chunks can answer.

The dialect is that of Spark, with one difference: names stand in double quotes or in backticks, and text stands in
single quotes. A plan contains the query with one relation for each mention of a table. An engine (DuckDB or Spark) gets
the relations and runs the query. It evaluates all conditions again, so conditions of a relation only reduce what is
read. The exception are aggregates by chunk: their conditions are exact, and the relation contains the groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.lazy_exports import lazy_module

if TYPE_CHECKING:
    from icefloe.tables import predicates
    from icefloe.tables.views import Table
else:
    # A query with a wrong syntax is reported before Arrow and Zarr are imported.
    predicates = lazy_module("icefloe.tables.predicates")

# It warns of statements that it does not know. They are refused anyway.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class IcefloeDialect(Spark):
    """Spark SQL with names in double quotes or backticks."""

    class Tokenizer(Spark.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012 - as in sqlglot
        IDENTIFIERS = ["`", '"']  # noqa: RUF012 - as in sqlglot


def parse_query(text: str) -> exp.Query:
    """Parse one SELECT statement."""
    try:
        statements = [each for each in sqlglot.parse(text, dialect=IcefloeDialect) if each is not None]
    except (sqlglot.ParseError, sqlglot.TokenError) as error:
        raise InvalidInputError(_syntax_error(error)) from error
    if len(statements) != 1:
        raise InvalidInputError(f"expected one SELECT statement, got {len(statements)}")
    [query] = statements
    if not isinstance(query, exp.Query):
        raise _refuse(query)
    inner = query.find(exp.Insert, exp.Update, exp.Delete, exp.Merge)
    if inner is not None:
        raise _refuse(inner)
    if any(select.args.get("into") for select in query.find_all(exp.Select)):
        raise _not_supported("SELECT INTO", _CREATING)
    return query


_CHANGING = (
    "To set cells, write rows with icefloe.spark.write (mode='append' or mode='upsert'), or write to the array in a "
    "session: repo.writable_session"
)
_CREATING = (
    "To create arrays, use icefloe.spark.write, icefloe.xarray.to_icechunk or zarr. To keep the rows of a query, "
    "use .arrow(), .pandas() or .polars() of its result, or icefloe sql --parquet FILE"
)
_REMOVING = "To delete or move an array, use a session: del group[name] with zarr, or session.move"
_ADVICE = {
    **dict.fromkeys(("INSERT", "MERGE", "UPDATE", "DELETE", "LOAD"), _CHANGING),
    **dict.fromkeys(("CREATE", "COPY", "CACHE"), _CREATING),
    **dict.fromkeys(("DROP", "ALTER", "TRUNCATE"), _REMOVING),
    "EXPLAIN": "To see what a query reads, use .explain() of its result, or icefloe sql --explain",
    **dict.fromkeys(("SHOW", "DESCRIBE"), "icefloe sql REPO lists the tables. Their columns are dimensions and values"),
    **dict.fromkeys(("USE", "SET"), "Give branch, tag, snapshot_id, as_of or time_zone as an argument or an option"),
    "ANALYZE": "To store statistics of chunks, use icefloe.spark.analyze or icefloe analyze",
}
"""What to do instead of a statement, by its first word."""


def _refuse(statement: exp.Expr) -> UnsupportedError | InvalidInputError:
    """Return the error for a statement that is not a query."""
    if isinstance(statement, exp.Column | exp.Alias | exp.Condition):
        text = statement.sql(dialect=IcefloeDialect)
        return InvalidInputError(f"expected one SELECT statement, got {text[:40]!r}")
    named = {"truncatetable": "truncate", "loaddata": "load"}.get(statement.key, statement.key)
    word = str(statement.this) if isinstance(statement, exp.Command) else named
    return _not_supported(word.upper(), _ADVICE.get(word.upper(), "Only SELECT statements are"))


def _not_supported(what: str, advice: str) -> UnsupportedError:
    return UnsupportedError(f"SQL only reads here: {what} is not supported. {advice}")


def _syntax_error(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return f"the query cannot be parsed: {str(error).partition(chr(10))[0]}"
    first = details[0]
    before, word = first["start_context"][-20:], first["highlight"]
    return f"the query cannot be parsed at line {first['line']}, near {(before + word).strip()!r}"


_FUNCTIONS_OF_COLUMNS = (
    "Column Identifier Literal Null Boolean Paren Neg Cast DataType DataTypeParam And Or Not Is In "
    "Between Case If Coalesce Add Sub Mul Div IntDiv Mod Abs Round Floor Ceil Sign EQ NEQ LT LTE GT GTE "
    "NullSafeEQ Like Greatest Least Nullif Year Month Day DayOfMonth DayOfWeek DayOfYear WeekOfYear "
    "Quarter Hour Minute Second TimestampTrunc DateTrunc Var Extract Date TsOrDsToDate Upper Lower "
    "Substring Length Interval"
)
_DETERMINISTIC = tuple(getattr(exp, name) for name in _FUNCTIONS_OF_COLUMNS.split())
"""Expressions whose value depends on their columns and on the settings of the session only."""
DROPS_FRACTION = "drops_fraction"
"""The note at a cast of a float to a whole number."""


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Paren) and isinstance(node.this, exp.And | exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]


def own_nodes(select: exp.Select, *kinds: type[Any]) -> Iterator[Any]:
    """Yield nodes of a SELECT that are not in FROM, JOIN, WHERE or in a subquery."""
    for name in ("expressions", "group", "having", "order", "qualify"):
        roots = select.args.get(name)
        pending = list(roots) if isinstance(roots, list) else [roots] if roots is not None else []
        while pending:
            node = pending.pop()
            if isinstance(node, exp.Query):
                continue
            if isinstance(node, kinds):
                yield node
            pending.extend(node.iter_expressions())


def canonical(node: exp.Expr) -> str:
    """Return the text of an expression without qualifiers and case, to compare expressions of one table."""
    copy = node.copy()
    for column in list(copy.find_all(exp.Column)):
        if not isinstance(column.this, exp.Star):
            plain = exp.column(exp.to_identifier(column.name.lower(), quoted=True))
            if column is copy:
                copy = plain
            else:
                column.replace(plain)
    return copy.sql(dialect=IcefloeDialect, comments=False)


def is_deterministic(node: exp.Expr) -> bool:
    return all(isinstance(each, _DETERMINISTIC) for each in node.walk())


def duckdb_text(query: exp.Expr) -> str:
    """Return a query or an expression in the dialect of DuckDB."""
    return query.copy().transform(_to_duckdb).sql(dialect="duckdb", comments=False)


def _to_duckdb(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.DayOfWeek):
        # Sunday is 1 in Spark and 0 in DuckDB.
        return exp.paren(exp.Add(this=exp.func("dayofweek", node.this), expression=exp.Literal.number(1)))
    if isinstance(node, exp.Anonymous) and node.name.lower() == "weekday":
        # Monday is 0 in Spark. DuckDB has a function where it is 1.
        return exp.paren(exp.Sub(this=exp.func("isodow", *node.expressions), expression=exp.Literal.number(1)))
    if isinstance(node, exp.CurrentDate | exp.CurrentTimestamp) and node.this is None:
        # The result has a column of this name, and DuckDB would read it.
        return exp.func("today" if isinstance(node, exp.CurrentDate) else "now")
    if isinstance(node, exp.Quantile):
        return exp.func("quantile_cont", node.this, node.args["quantile"])
    if isinstance(node, exp.First):
        return exp.func("any_value", node.this)
    if isinstance(node, exp.Cast) and node.meta.get(DROPS_FRACTION):
        # DuckDB rounds. Spark drops the fraction.
        return exp.Cast(this=exp.func("trunc", node.this), to=node.to)
    if isinstance(node, exp.Mod):
        return exp.Mod(this=node.this, expression=_not_zero(node.expression))
    if isinstance(node, exp.Div) and not node.args.get("safe"):
        return exp.Div(this=node.this, expression=_not_zero(node.expression), typed=False, safe=True)
    return node


def _not_zero(node: exp.Expr) -> exp.Expr:
    if _is_not_zero(node) or isinstance(node, exp.Nullif):
        return node
    return exp.Nullif(this=node, expression=exp.Literal.number(0))


def _is_not_zero(node: exp.Expr) -> bool:
    number = node.this if isinstance(node, exp.Cast | exp.Paren | exp.Neg) else node
    return isinstance(number, exp.Literal) and not number.is_string and float(number.this) != 0


def spark_text(query: exp.Expr) -> str:
    """Return a query or an expression in the dialect of Spark."""
    return query.copy().transform(_to_spark).sql(dialect="spark", comments=False)


def _to_spark(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Div | exp.Mod) and not _is_not_zero(node.expression):
        # Division by zero is null in DuckDB and an error in Spark.
        return exp.func("try_divide" if isinstance(node, exp.Div) else "try_mod", node.this, node.expression)
    return node


@dataclass(frozen=True, slots=True)
class Condition:
    """A part of a WHERE or ON clause that all rows of a relation must satisfy to matter."""

    text: str
    expression: exp.Expr
    """The condition with plain names of columns."""
    predicate: predicates.Predicate
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

    def predicate(self, evaluated: Mapping[str, predicates.Predicate] | None = None) -> predicates.Predicate | None:
        """Return the condition on cells. `evaluated` has conditions that an engine evaluated on coordinates."""
        done = evaluated or {}
        parts = [done.get(condition.text, condition.predicate) for condition in self.conditions]
        known = tuple(part for part in parts if not isinstance(part, predicates.Unknown))
        return predicates.And(known) if known else None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query and its relations."""

    query: exp.Query
    relations: tuple[Relation, ...]
    zone: str

    def describe(self) -> str:
        """Describe what is read from each table, with an empty line between tables."""
        return "\n\n".join(_describe(relation) for relation in self.relations)


@dataclass(frozen=True, slots=True)
class PlainSelection:
    """A query that selects columns of one relation by some of its conditions, and nothing else."""

    columns: Mapping[str, str]
    """The columns of the relation by their name in the result."""
    conditions: tuple[Condition, ...]


def plain_selection(plan: QueryPlan) -> PlainSelection | None:
    """Return the selection that a query consists of, or None if an engine must evaluate the query."""
    query = plan.query
    if not isinstance(query, exp.Select) or len(plan.relations) != 1:
        return None
    [relation] = plan.relations
    if any(value for name, value in query.args.items() if name not in ("expressions", "from_", "where")):
        return None
    table = query.args["from_"].this if query.args.get("from_") else None
    alias = table.args.get("alias") if isinstance(table, exp.Table) else None
    if table is None or alias is None or table.name != relation.name:
        return None
    if any(v for n, v in table.args.items() if n not in ("this", "alias")) or alias.args.get("columns"):
        return None
    columns = _selected_columns(query, relation, alias.name)
    where = query.args.get("where")
    texts = [each.sql(dialect=IcefloeDialect, comments=False) for each in conjuncts(where.this)] if where else []
    known = {condition.text: condition for condition in relation.conditions}
    if columns is None or not all(text in known for text in texts):
        return None
    return PlainSelection(columns, tuple(known[text] for text in texts))


def _selected_columns(query: exp.Select, relation: Relation, alias: str) -> dict[str, str] | None:
    """Return the columns of a relation by their name in the result. None for expressions and names that repeat."""
    made = relation.aggregation
    names = relation.columns if made is None else (*(k.name for k in made.keys), *(m.name for m in made.measures))
    columns: dict[str, str] = {}
    for projection in query.expressions:
        if isinstance(projection, exp.Star):
            if any(projection.args.values()) or made is not None:
                return None
            found = [(name, name) for name in names]
        else:
            column = projection.unalias()
            if not isinstance(column, exp.Column) or column.name not in names or column.args.get("db"):
                return None
            if column.table and column.table.lower() != alias.lower():
                return None
            found = [(projection.alias or column.name, column.name)]
        if {shown.lower() for shown, _ in found} & {shown.lower() for shown in columns}:
            return None
        columns |= found
    return columns


def _describe(relation: Relation) -> str:
    table = relation.table
    lines = [f"{relation.text}: {table.view.holds} at {table.snapshot_id}"]
    lines.append(f"  columns: {', '.join(relation.columns) or 'none'}")
    by_dimension = [condition.text for condition in relation.conditions if condition.dimension is not None]
    others = [each for each in relation.conditions if each.dimension is None]
    pruning = [each.text for each in others if not isinstance(each.predicate, predicates.Unknown)]
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
