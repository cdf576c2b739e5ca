"""Conditions on columns: the values of a WHERE clause, parsed from SQL.

sqlglot parses the text. AND, OR, NOT and comparisons of a column with constants become values of this module. A part
that is not understood is `Unknown`. It only means that more data is read.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import UnsupportedError
from icefloe.lazy_exports import lazy_module
from icefloe.tables.grids import parse_instant

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlglot
    from sqlglot import expressions as exp
else:
    # A wrong name in a query is reported before Arrow is imported.
    pa = lazy_module("pyarrow")
    # Tasks get conditions as values. Only the driver parses text.
    sqlglot = lazy_module("sqlglot")
    exp = lazy_module("sqlglot.expressions")

_SQL_TYPES = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bool": "BOOLEAN",
}


def has_literals(type: pa.DataType) -> bool:
    """Return whether values of a type have a SQL literal."""
    return str(type) in _SQL_TYPES or pa.types.is_timestamp(type)


def sql_name(name: str) -> str:
    """Quote the name of a column."""
    return "`" + name.replace("`", "``") + "`"


def sql_lookup(values: pa.Array, index: str) -> str:
    """Return an expression for the value at a position of a constant array.

    The array is one text that Spark's optimizer folds into a constant. A list of literals would add a node per value to
    the plan, and every rule of the analyzer would visit it.
    """
    if pa.types.is_timestamp(values.type):
        return f"timestamp_micros({_parsed(values.view(pa.int64()), 'BIGINT')}[{index}])"
    return f"{_parsed(values, _SQL_TYPES[str(values.type)])}[{index}]"


def _parsed(values: pa.Array, type: str) -> str:
    # Python writes NaN and Infinity, which JSON does not have, as Spark reads them.
    text = json.dumps(values.to_pylist(), separators=(",", ":"))
    # Escapes in quoted text depend on settings. Bytes do not.
    constant = f"decode(unhex('{text.encode().hex()}'), 'UTF-8')" if type == "STRING" else f"'{text}'"
    return f"from_json({constant}, 'ARRAY<{type}>')"


Operator: TypeAlias = Literal["<", "<=", ">", ">=", "=", "!="]
NEGATED: dict[Operator, Operator] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Instant:
    """A time from text or a date. Without a zone, it is in the zone of the session."""

    moment: dt.datetime


Value: TypeAlias = int | float | Decimal | str | bool | Instant


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`. Rows with a null column do not match."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """`column [NOT] IN (values)`."""

    column: str
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class NullTest:
    """`column IS [NOT] NULL`."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Indices:
    """Positions [first, end) along a dimension."""

    column: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Some positions along a dimension, as a mask. A query engine evaluated a condition on the coordinate."""

    column: str
    mask: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class And:
    """All conditions hold."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any condition holds."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that only a SQL engine understands. Every row can match."""

    text: str = ""


Leaf: TypeAlias = Comparison | Membership | NullTest | Indices | Positions
Predicate: TypeAlias = Leaf | And | Or | Unknown


def negate(predicate: Predicate) -> Predicate:
    """Negate a condition with three-valued logic. Rows that are neither true nor false do not match."""
    if isinstance(predicate, Comparison):
        return replace(predicate, operator=NEGATED[predicate.operator])
    if isinstance(predicate, Membership | NullTest):
        return replace(predicate, negated=not predicate.negated)
    if isinstance(predicate, And):
        return Or(tuple(negate(part) for part in predicate.parts))
    if isinstance(predicate, Or):
        return And(tuple(negate(part) for part in predicate.parts))
    return Unknown()


def find_unknown(predicate: Predicate) -> str | None:
    """Return the text of a condition that was not understood, or None."""
    if isinstance(predicate, Unknown):
        return predicate.text or "NOT of it"
    if isinstance(predicate, And | Or):
        return next((text for part in predicate.parts if (text := find_unknown(part)) is not None), None)
    return None


def columns_of(predicate: Predicate) -> set[str]:
    """Return the names of all columns in parsed conditions, in lower case."""
    if isinstance(predicate, And | Or):
        return set().union(*(columns_of(part) for part in predicate.parts))
    return set() if isinstance(predicate, Unknown) else {predicate.column.lower()}


def find_column(node: exp.Expr) -> str | None:
    """Return the name of a column without a qualifier. A name without quotes is in lower case."""
    if not isinstance(node, exp.Column) or node.table or isinstance(node.this, exp.Star):
        return None
    return node.name if node.this.args.get("quoted") else node.name.lower()


def parse_predicate(text: str) -> Predicate:
    """Parse a condition in the dialect of Spark, for pruning."""
    # Whether a backslash escapes is a setting of Spark. Comments can be hints.
    if any(mark in text for mark in ("\\", "--", "/*", ";")):
        return Unknown(text)
    try:
        node = sqlglot.parse_one(text, dialect="spark")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"conditions need sqlglot. Install it with: pip install 'icefloe[sql]' ({error})"
        ) from error
    except (sqlglot.ParseError, sqlglot.TokenError):
        return Unknown(text)
    return predicate_of(node)


def predicate_of(node: exp.Expr, column_of: Callable[[exp.Expr], str | None] | None = None) -> Predicate:
    """Convert a parsed condition. `column_of` returns the name of a column, or None for other expressions."""
    return _Conversion(column_of or find_column).predicate(node)


@dataclass(frozen=True, slots=True)
class _Conversion:
    column_of: Callable[[exp.Expr], str | None]

    def predicate(self, node: exp.Expr) -> Predicate:
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            parts = tuple(self.predicate(part) for part in node.flatten())
            return And(parts) if isinstance(node, exp.And) else Or(parts)
        if isinstance(node, exp.Not):
            return negate(self.predicate(node.this))
        return self._leaf(node) or Unknown(node.sql(dialect="spark"))

    def _leaf(self, node: exp.Expr) -> Predicate | None:
        operator = _OPERATORS.get(node.key)
        if operator is not None:
            return self._comparison(operator, node.this, node.expression)
        column = self.column_of(node.this) if isinstance(node, exp.Is | exp.In | exp.Between) else None
        if column is None:
            return None
        if isinstance(node, exp.Is):
            return NullTest(column) if isinstance(node.expression, exp.Null) else None
        if isinstance(node, exp.Between):
            low, high = _constant(node.args["low"]), _constant(node.args["high"])
            if low is None or high is None or node.args.get("symmetric"):
                return None
            return And((Comparison(column, ">=", low), Comparison(column, "<=", high)))
        values = [_constant(each) for each in node.expressions]
        known = tuple(value for value in values if value is not None)
        return Membership(column, known) if known and len(known) == len(values) else None

    def _comparison(self, operator: Operator, left: exp.Expr, right: exp.Expr) -> Predicate | None:
        column, value = self.column_of(left), _constant(right)
        if column is None:
            column, value, operator = self.column_of(right), _constant(left), MIRRORED[operator]
        return None if column is None or value is None else Comparison(column, operator, value)


_OPERATORS: dict[str, Operator] = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">=", "eq": "=", "neq": "!="}
"""Operators by the key of their class in sqlglot."""


def _constant(node: exp.Expr) -> Value | None:
    if isinstance(node, exp.Paren):
        return _constant(node.this)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(node.this)
    if isinstance(node, exp.Neg):
        value = _constant(node.this)
        return -value if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else None
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
        return _cast(node.this, node.to)
    return None


def _cast(literal: exp.Literal, to: Any) -> Value | None:
    """Return the value of a typed literal: `timestamp '...'`, `date '...'`, `10L`, `1.5D` or `1.5BD`.

    A literal with single precision is refused, because comparing it with doubles needs another rounding.
    """
    kind, text = to.this.name, str(literal.this)
    if literal.is_string and kind in ("TIMESTAMPTZ", "TIMESTAMPLTZ", "DATE"):
        moment = parse_instant(text, date_only=kind == "DATE")
        return None if moment is None else Instant(moment)
    if literal.is_string:
        whole, _, fraction = text.partition(".")
        exact = [len(whole + fraction), len(fraction)] == [int(each.name) for each in to.expressions or ()]
        return Decimal(text) if kind == "DECIMAL" and exact and (whole + fraction).isdigit() else None
    if kind == "DOUBLE":
        return float(text)
    return int(text) if kind == "BIGINT" and text.isdigit() else None


def _number(text: str) -> Value:
    if text.isdigit():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)
