"""Filters and limits that Spark pushes into a Python data source: whether this Spark does it right, and what they mean.

Spark 4.1 to 4.3 keeps the planned partitions of a read in an object that all scans of one DataFrame, view or table
share. After a query with a pushed filter, other queries of the same DataFrame read the partitions of that filter: they
lose rows. `find_pushdown` looks at the interface of Spark and asks a source of eight rows. The data source `icefloe`
pushes only if all answers are right.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from icefloe.tables.predicates import (
    And,
    Comparison,
    Instant,
    Membership,
    NullTest,
    Operator,
    Or,
    Predicate,
    Unknown,
    Value,
    negate,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

PUSHDOWN = "spark.icefloe.pushdown.enabled"
"""The setting of a session for the data source `icefloe`: `false` turns pushdown off, `true` asks every version."""
FILTERS = "spark.sql.python.filterPushdown.enabled"
LIMITS = "spark.sql.python.limitPushdown.enabled"
_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that Spark runs to plan a read with filters."""
_log = logging.getLogger("icefloe.spark")


@dataclass(frozen=True, slots=True)
class Pushdown:
    """What a Spark session pushes into Python data sources without losing rows."""

    filters: bool
    limits: bool
    reason: str
    """Why not, in one sentence. It is empty if both are pushed."""


_found: WeakKeyDictionary[SparkSession, Pushdown] = WeakKeyDictionary()


def find_pushdown(spark: SparkSession) -> Pushdown:
    """Find out whether a session pushes filters and limits right.

    The interface of limits came with the correction of the filters. Without it, the session is asked only if the
    setting `PUSHDOWN` is true, because the first question starts Python processes. A session is asked once.
    """
    wanted = str(spark.conf.get(PUSHDOWN, "")).lower()
    for name, value in ((PUSHDOWN, wanted), (FILTERS, str(spark.conf.get(FILTERS, None)).lower())):
        if value == "false":
            return Pushdown(False, False, f"the setting {name} is false")
    if not hasattr(DataSourceReader, "pushFilters") or importlib.util.find_spec(_PLANNER) is None:
        return Pushdown(False, False, "this version of Spark has no filter pushdown for Python data sources")
    if wanted != "true" and not hasattr(DataSourceReader, "pushLimit"):
        return Pushdown(False, False, "this version of Spark mixes up pushed filters")
    found = _found.get(spark)
    if found is None:
        found = _found[spark] = _probe(spark)
        _log.info("pushdown into the data source icefloe: %s", found)
    return found


def enable_pushdown(spark: SparkSession) -> Pushdown:
    """Turn on what the session pushes right. A setting that the user turned off stays off."""
    found = find_pushdown(spark)
    for name, right in ((FILTERS, found.filters), (LIMITS, found.limits)):
        if right and spark.conf.get(name, None) is None:
            spark.conf.set(name, "true")
    return found


def plans_pushdown() -> bool:
    """Return whether this process plans a read with filters or a limit.

    Spark does so in a process of its own. In the process that plans reads without filters, it refuses a reader with
    `pushFilters` if the session has pushdown turned off, and does not tell the reader about the setting.
    """
    started_as = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    return started_as == _PLANNER or _PLANNER in sys.modules


class ProbeReader(DataSourceReader):
    """Reads the numbers from 0 to 7 in two partitions, and says in each row what was pushed."""

    def __init__(self) -> None:
        self.first, self.end, self.limit = 0, 8, 0
        self.pushed = 0

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(half) for half in (range(4), range(4, 8))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int, int]]:
        chosen = [number for number in partition.value if self.first <= number < self.end]
        for number in chosen[: self.limit or None]:
            yield number, self.pushed, self.limit


class PushingProbeReader(ProbeReader):
    """Evaluates `n >= VALUE` and `n < VALUE` itself, and leaves other filters to Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            kind = type(each).__name__
            if kind == "GreaterThanOrEqual":
                self.first = each.value  # type: ignore[attr-defined]
            elif kind == "LessThan":
                self.end = each.value  # type: ignore[attr-defined]
            else:
                yield each
                continue
            self.pushed += 1

    def pushLimit(self, limit: int) -> bool:  # noqa: N802 - Spark's name
        self.limit = limit
        return True


class ProbeSource(DataSource):
    """A source of eight rows, which uses the interfaces of Spark as the data source `icefloe` does."""

    @classmethod
    def name(cls) -> str:
        return "icefloe_pushdown_probe"

    def schema(self) -> str:
        return "n BIGINT, pushed BIGINT, most BIGINT"

    def reader(self, schema: Any) -> DataSourceReader:
        return PushingProbeReader() if plans_pushdown() else ProbeReader()


def _probe(spark: SparkSession) -> Pushdown:
    has_limits = hasattr(DataSourceReader, "pushLimit")
    try:
        with _settings(spark, {FILTERS: "true", **({LIMITS: "true"} if has_limits else {})}):
            spark.dataSource.register(ProbeSource)
            numbers = spark.read.format(ProbeSource.name()).load()
            wrong = _wrong_filters(numbers)
            if wrong is not None:
                return Pushdown(False, False, wrong)
            wrong = _wrong_limits(numbers) if has_limits else "this version of Spark has no limit pushdown"
            return Pushdown(True, wrong is None, wrong or "")
    except PySparkException as error:
        return Pushdown(False, False, f"the probe failed: {str(error).partition(chr(10))[0]}")


def _wrong_filters(numbers: DataFrame) -> str | None:
    """Ask one DataFrame with different filters, in several queries and in one, and return what is wrong."""
    if {(row["n"], row["pushed"]) for row in numbers.where("n >= 6").collect()} != {(6, 1), (7, 1)}:
        return "Spark does not push a filter into the probe"
    parts = [numbers, numbers.where("n < 2"), numbers.where("n >= 5"), numbers.where("n = 3")]
    mixed, *others = [part.selectExpr(f"{number} AS part", "n") for number, part in enumerate(parts)]
    for other in others:
        mixed = mixed.union(other)
    expected = [(0, n) for n in range(8)] + [(1, 0), (1, 1), (2, 5), (2, 6), (2, 7), (3, 3)]
    if sorted((row["part"], row["n"]) for row in mixed.collect()) != expected:
        return "Spark mixes up the pushed filters of queries that share a DataFrame or a view"
    return None


def _wrong_limits(numbers: DataFrame) -> str | None:
    limited = numbers.limit(1).collect()
    if [row["most"] for row in limited] != [1]:
        return "Spark does not push a limit into the probe"
    if len(numbers.collect()) != 8 or len(numbers.where("n = 6").limit(1).collect()) != 1:
        return "Spark mixes up the pushed limits of queries that share a DataFrame or a view"
    return None


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for some queries."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


_OPERATORS: Mapping[str, Operator] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def filters_predicate(filters: Iterable[Filter], schema: pa.Schema) -> Predicate:
    """Convert the filters of Spark, of which all must hold, to a condition on the columns of a schema.

    Filters that are not understood are `Unknown`: every row can match.
    """
    return And(tuple(_predicate(each, schema) for each in filters))


def _predicate(given: Any, schema: pa.Schema) -> Predicate:
    kind = type(given).__name__
    if kind == "Not":
        child = given.child
        if type(child).__name__ == "EqualNullSafe":
            # It also holds for null.
            column, value = _column(child.attribute, schema), _value(child.value)
            if column is None or value is None:
                return Unknown()
            return Or((Comparison(column, "!=", value), NullTest(column)))
        return negate(_predicate(child, schema))
    column = _column(given.attribute, schema)
    if column is None:
        return Unknown()
    if kind in ("IsNull", "IsNotNull"):
        return NullTest(column, negated=kind == "IsNotNull")
    if kind == "In":
        values = [_value(each) for each in given.value]
        known = tuple(value for value in values if value is not None)
        return Membership(column, known) if known and len(known) == len(values) else Unknown()
    operator, value = _OPERATORS.get(kind), _value(getattr(given, "value", None))
    return Unknown() if operator is None or value is None else Comparison(column, operator, value)


def _column(path: tuple[str, ...], schema: pa.Schema) -> str | None:
    """Return the column of a filter. Conditions find columns in any case, so a name must not differ by case only."""
    alike = [name for name in schema.names if len(path) == 1 and name.lower() == path[0].lower()]
    return alike[0] if len(alike) == 1 and alike[0] == path[0] else None


def _value(given: Any) -> Value | None:
    """Return a constant of a filter, or None if conditions do not have it. NaN equals itself in Spark only."""
    if isinstance(given, dt.datetime):
        return Instant(given) if given.tzinfo is not None else None
    if isinstance(given, bool | int | str) or (isinstance(given, Decimal | float) and given == given):
        return given
    return None
