"""Conditions on columns: the values of a WHERE clause, parsed from SQL.

A condition is split at OR, AND and NOT outside of parentheses. Each part is parsed completely or not at all. A part
that is not understood is never misread. It only means that more data is read.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeAlias

import pyarrow as pa

from icefloe.tables.grids import parse_instant

_SQL_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
}


def has_literals(type: pa.DataType) -> bool:
    """Return whether values of a type have a SQL literal."""
    return type in _SQL_TYPES or pa.types.is_timestamp(type)


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
    return f"{_parsed(values, _SQL_TYPES[values.type])}[{index}]"


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


Leaf: TypeAlias = Comparison | Membership | NullTest | Indices
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


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?![\w.]))
      | (?P<text>'(?:[^'\\])*'|"(?:[^"\\])*")
      | (?P<quoted>`(?:[^`])+`)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<symbol><=>|<=|>=|<>|!=|==|->|::|\|\||[-+*/%<>=(),.!&|^~?:\[\]])
    )""",
    re.VERBOSE,
)
_OPERATORS: dict[str, Operator] = {
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
}
_OPENING, _CLOSING = {"(", "[", "case"}, {")", "]", "end"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    """The text of the token. Words are in lower case."""


def parse_predicate(text: str) -> Predicate:
    """Parse a condition for pruning."""
    tokens = _tokens(text)
    return Unknown(text) if tokens is None else _disjunction(tokens)


def _tokens(text: str) -> list[_Token] | None:
    if "--" in text or "/*" in text:
        return None
    tokens = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            return None
        found = match[match.lastgroup]
        tokens.append(_Token(match.lastgroup, found.lower() if match.lastgroup == "word" else found))
        position = match.end()
    return tokens


def _disjunction(tokens: Sequence[_Token]) -> Predicate:
    parts = _split(tokens, "or")
    return Or(tuple(_conjunction(part) for part in parts)) if len(parts) > 1 else _conjunction(tokens)


def _conjunction(tokens: Sequence[_Token]) -> Predicate:
    parts = _split(tokens, "and")
    return And(tuple(_negation(part) for part in parts)) if len(parts) > 1 else _negation(tokens)


def _negation(tokens: Sequence[_Token]) -> Predicate:
    if tokens and _is_word(tokens[0], "not"):
        return negate(_negation(tokens[1:]))
    if _is_wrapped(tokens):
        return _disjunction(tokens[1:-1])
    return _leaf(tokens) or Unknown(" ".join(token.text for token in tokens))


def _split(tokens: Sequence[_Token], word: str) -> list[Sequence[_Token]]:
    """Split tokens at the given words, outside of parentheses and CASE. The AND of a BETWEEN does not count."""
    parts: list[Sequence[_Token]] = []
    depth = start = open_betweens = 0
    for index, token in enumerate(tokens):
        name = token.text if token.kind in ("word", "symbol") else ""
        depth += (name in _OPENING) - (name in _CLOSING)
        if depth or token.kind != "word":
            continue
        if name == "between":
            open_betweens += 1
        elif name == "and" and open_betweens:
            open_betweens -= 1
        elif name == word:
            parts.append(tokens[start:index])
            start = index + 1
    parts.append(tokens[start:])
    return parts


def _is_wrapped(tokens: Sequence[_Token]) -> bool:
    if len(tokens) < 2 or tokens[0].text != "(" or tokens[-1].text != ")":
        return False
    depth = 0
    for index, token in enumerate(tokens):
        if token.kind == "symbol":
            depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return index == len(tokens) - 1
    return False


def _is_word(token: _Token, *words: str) -> bool:
    return token.kind == "word" and token.text in words


def _leaf(tokens: Sequence[_Token]) -> Predicate | None:
    column = _column(tokens[0]) if tokens else None
    if column is None or len(tokens) < 3:
        return _mirrored(tokens)
    rest = tokens[1:]
    if _is_word(rest[0], "is"):
        return _null_test(column, rest[1:])
    negated = _is_word(rest[0], "not")
    if negated:
        rest = rest[1:]
    found: Predicate | None = None
    if rest and _is_word(rest[0], "between"):
        found = _between(column, rest[1:])
    elif rest and _is_word(rest[0], "in"):
        found = _membership(column, rest[1:])
    elif not negated and rest[0].kind == "symbol" and rest[0].text in _OPERATORS:
        value = _value(rest[1:])
        found = None if value is None else Comparison(column, _OPERATORS[rest[0].text], value)
    return negate(found) if found is not None and negated else found


def _mirrored(tokens: Sequence[_Token]) -> Predicate | None:
    """Return the operator for `value operator column`."""
    if len(tokens) < 3 or tokens[-2].text not in _OPERATORS or tokens[-2].kind != "symbol":
        return None
    column, value = _column(tokens[-1]), _value(tokens[:-2])
    if column is None or value is None:
        return None
    return Comparison(column, MIRRORED[_OPERATORS[tokens[-2].text]], value)


def _column(token: _Token) -> str | None:
    if token.kind == "quoted":
        return token.text[1:-1]
    reserved = ("not", "null", "true", "false", "case", "exists", "timestamp", "date", "interval", "timestamp_ntz")
    return token.text if token.kind == "word" and token.text not in reserved else None


def _null_test(column: str, rest: Sequence[_Token]) -> Predicate | None:
    words = [token.text if token.kind == "word" else "" for token in rest]
    return {"null": NullTest(column), "not null": NullTest(column, negated=True)}.get(" ".join(words))


def _between(column: str, rest: Sequence[_Token]) -> Predicate | None:
    middle = next((i for i, token in enumerate(rest) if _is_word(token, "and")), None)
    if middle is None:
        return None
    low, high = _value(rest[:middle]), _value(rest[middle + 1 :])
    if low is None or high is None:
        return None
    return And((Comparison(column, ">=", low), Comparison(column, "<=", high)))


def _membership(column: str, rest: Sequence[_Token]) -> Predicate | None:
    if not _is_wrapped(rest) or len(rest) < 3:
        return None
    values: list[Value] = []
    start = 1
    for index in range(1, len(rest)):
        if rest[index].text == "," or index == len(rest) - 1:
            value = _value(rest[start:index])
            if value is None:
                return None
            values.append(value)
            start = index + 1
    return Membership(column, tuple(values))


def _value(tokens: Sequence[_Token]) -> Value | None:
    sign = 1
    if tokens and tokens[0].kind == "symbol" and tokens[0].text in "+-":
        sign = -1 if tokens[0].text == "-" else 1
        tokens = tokens[1:]
        if len(tokens) != 1 or tokens[0].kind != "number":
            return None
    if len(tokens) == 1:
        return _literal(tokens[0], sign)
    if len(tokens) == 2 and _is_word(tokens[0], "timestamp", "date") and tokens[1].kind == "text":
        moment = parse_instant(tokens[1].text[1:-1], date_only=tokens[0].text == "date")
        return None if moment is None else Instant(moment)
    return None


def _literal(token: _Token, sign: int) -> Value | None:
    if token.kind == "text":
        return token.text[1:-1]
    if token.kind == "word":
        return {"true": True, "false": False}.get(token.text)
    if token.kind != "number":
        return None
    text = token.text
    if text.endswith("BD"):
        return sign * Decimal(text[:-2])
    if text[-1] in "LSY":
        return sign * int(text[:-1]) if text[:-1].isdigit() else None
    if text[-1] == "F":
        # Refuse single-precision literals, because comparing them with doubles needs another rounding.
        return None
    if text[-1] == "D":
        return sign * float(text[:-1])
    if text.isdigit():
        return sign * int(text)
    return sign * float(text) if "e" in text.lower() else sign * Decimal(text)
