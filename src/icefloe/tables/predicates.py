"""Conditions on columns as values: what a WHERE clause says, as far as it is understood."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeAlias

Operator: TypeAlias = Literal["<", "<=", ">", ">=", "=", "!="]
NEGATED: dict[Operator, Operator] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Instant:
    """A time as text or date said it; without a zone it means the session's."""

    moment: dt.datetime


Value: TypeAlias = int | float | Decimal | str | bool | Instant


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; rows where the column is null do not match."""

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


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of them."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that only an SQL engine understands: any row may match."""

    text: str = ""


Leaf: TypeAlias = Comparison | Membership | NullTest | Indices
Predicate: TypeAlias = Leaf | And | Or | Unknown


def negate(predicate: Predicate) -> Predicate:
    """NOT of a condition, with three-valued logic: what is neither true nor false stays out on both sides."""
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
    """The text of a condition that was not understood, or None."""
    if isinstance(predicate, Unknown):
        return predicate.text or "NOT of it"
    if isinstance(predicate, And | Or):
        return next((text for part in predicate.parts if (text := find_unknown(part)) is not None), None)
    return None


def columns_of(predicate: Predicate) -> set[str]:
    """Names of all columns that understood conditions speak of, in lower case."""
    if isinstance(predicate, And | Or):
        return set().union(*(columns_of(part) for part in predicate.parts))
    return set() if isinstance(predicate, Unknown) else {predicate.column.lower()}
