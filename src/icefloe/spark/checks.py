"""Checks of a dataset before it is published, each a small Spark job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.session.session import Session
from icefloe.spark.places import open_dataset
from icefloe.spark.reduction import reduce


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    passed: bool
    details: str


class Check(Protocol):
    """Looks at a snapshot and says what it found."""

    def run(self, spark: SparkSession, session: Session) -> Finding: ...


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Every value of a variable that is not missing lies between two bounds."""

    variable: str
    low: float
    high: float
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        found = [
            float(reduce(spark, session, how, group=self.group, variables=[self.variable])[self.variable])
            for how in ("min", "max")
        ]
        passed = bool(found[0] >= self.low and found[1] <= self.high) or bool(np.isnan(found).all())
        return Finding(
            f"{self.variable} within {self.low:g} .. {self.high:g}", passed, f"found {found[0]:g} .. {found[1]:g}"
        )


@dataclass(frozen=True, slots=True)
class MissingShare:
    """At most a share of the values of a variable is missing."""

    variable: str
    most: float
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        there = int(reduce(spark, session, "count", group=self.group, variables=[self.variable])[self.variable])
        size = open_dataset(session, self.group, [self.variable])[self.variable].size
        share = 1 - there / size if size else 0.0
        check = f"at most {self.most:.2%} of {self.variable} missing"
        return Finding(check, share <= self.most, f"{share:.2%} of {size:,} values are")


@dataclass(frozen=True, slots=True)
class Monotone:
    """A coordinate only grows, or only falls."""

    coordinate: str
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        values = open_dataset(session, self.group)[self.coordinate].values
        steps = np.diff(values)
        zero = np.zeros(1, steps.dtype)
        passed = bool((steps > zero).all() or (steps < zero).all())
        details = f"{len(values):,} values"
        if not passed:
            turn = int(np.argmax(np.sign(steps.astype(np.float64)) != np.sign(steps[:1].astype(np.float64))))
            details += f", {values[turn]} is followed by {values[turn + 1]} at {turn + 1}"
        return Finding(f"{self.coordinate} is monotone", passed, details)


@dataclass(frozen=True, slots=True)
class ExpectedSizes:
    """Dimensions have the lengths they should have."""

    sizes: Mapping[str, int]
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        found = {str(dim): int(n) for dim, n in open_dataset(session, self.group).sizes.items()}
        wrong = {dim: found.get(dim) for dim, n in self.sizes.items() if found.get(dim) != n}
        check = ", ".join(f"{dim}={n}" for dim, n in self.sizes.items())
        return Finding(f"sizes {check}", not wrong, f"found {wrong or found}")


@dataclass(frozen=True, slots=True)
class Holds:
    """A function of the caller says yes: it gets the lazy dataset and returns a bool, or a bool and details."""

    name: str
    function: Callable[[xr.Dataset], bool | tuple[bool, str]]
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        answer = self.function(open_dataset(session, self.group))
        passed, details = answer if isinstance(answer, tuple) else (answer, "")
        return Finding(self.name, bool(passed), details)
