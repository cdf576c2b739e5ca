"""Write, audit, publish: checks of a staging branch before its changes reach the target branch."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
import yaml
import zarr
from pyspark.sql import SparkSession

from icefloe.errors import ConflictError, InvalidInputError, suggest
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.spark.jobs import Target, existing_repository, open_dataset, reading_session
from icefloe.spark.map_blocks import plan_blocks
from icefloe.spark.reduce import reduce
from icefloe.spark.tasks import SparkJob, run_tasks


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    passed: bool
    details: str


class Check(Protocol):
    """Checks a snapshot and returns a finding."""

    def run(self, spark: SparkSession, session: Session) -> Finding: ...


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Checks that all values of a variable that are not missing are between two bounds."""

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
    """Checks that at most a share of the values of a variable is missing."""

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
    """Checks that a coordinate only increases, or only decreases."""

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
class NoDuplicates:
    """Checks that a coordinate has every value once, and no missing value."""

    coordinate: str
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        values = np.asarray(open_dataset(session, self.group)[self.coordinate].values).reshape(-1)
        missing = values != values
        distinct, counts = np.unique(values[~missing], return_counts=True)
        again = distinct[counts > 1]
        details = f"{len(values):,} values"
        if len(again):
            details += f", {len(again):,} of them several times, for example {again[0]}"
        if missing.any():
            details += f", {int(missing.sum()):,} missing"
        return Finding(f"{self.coordinate} has no duplicates", not len(again) and not missing.any(), details)


@dataclass(frozen=True, slots=True)
class Regular:
    """Checks that the values of a coordinate are equally spaced.

    `tolerance` is the largest deviation from the median step, as a share of it.
    """

    coordinate: str
    tolerance: float = 1e-3
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        values = np.asarray(open_dataset(session, self.group)[self.coordinate].values).reshape(-1)
        check = f"{self.coordinate} is regular"
        if len(values) < 3:
            return Finding(check, not (values != values).any(), f"{len(values)} values")
        steps = np.diff(values)
        wide = steps.astype(np.int64 if steps.dtype.kind == "m" else np.float64).astype(np.float64)
        usual = float(np.median(wide))
        # NaN is not within any distance.
        wrong = np.flatnonzero(~(np.abs(wide - usual) <= self.tolerance * abs(usual)))
        if steps.dtype.kind == "m":
            wrong = np.union1d(wrong, np.flatnonzero(np.isnat(steps)))
        if usual == 0:
            return Finding(check, False, "most values equal the previous one")
        if not len(wrong):
            return Finding(check, True, f"{len(values):,} values")
        first = int(wrong[0])
        details = f"{len(wrong):,} steps differ, for example from {values[first]} to {values[first + 1]}"
        return Finding(check, False, details)


@dataclass(frozen=True, slots=True)
class Units:
    """Checks the attribute `units` of a variable, as it is stored."""

    variable: str
    units: str
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        path = f"{self.group.strip('/')}/{self.variable}".strip("/")
        found = zarr.open_array(session.store, path=path, mode="r").attrs.get("units")
        return Finding(f"{self.variable} is in {self.units}", found == self.units, f"found {found}")


@dataclass(frozen=True, slots=True)
class ExpectedSizes:
    """Checks the lengths of dimensions."""

    sizes: Mapping[str, int]
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        found = {str(dim): int(n) for dim, n in open_dataset(session, self.group).sizes.items()}
        wrong = {dim: found.get(dim) for dim, n in self.sizes.items() if found.get(dim) != n}
        check = ", ".join(f"{dim}={n}" for dim, n in self.sizes.items())
        return Finding(f"sizes {check}", not wrong, f"found {wrong or found}")


SEASONS = ("dayofyear", "month", "season", "hour")
"""Dimensions of a reference that stand for a part of the time coordinate, as xarray's `groupby("time.month")` names
them."""


@dataclass(frozen=True, slots=True)
class Climatology:
    """Checks that the values of a variable agree with a reference, cell by cell.

    The reference has a mean and a standard deviation (`mean`, `std`) or a smallest and a largest value (`low`, `high`).
    Its arrays have some of the dimensions of the variable, with equal coordinates, and may have one of the dimensions
    dayofyear, month, season or hour in place of the time. Values without a reference are not checked. A part of the
    year that the reference does not have at all is an error.

    `reference` is the path or URL of the repository of the reference. It is empty if the reference is in the
    repository that is checked. `sigmas` is the largest distance from the mean in standard deviations. `most` is the
    share of the values that may be outside.
    """

    variable: str
    mean: str = ""
    std: str = ""
    low: str = ""
    high: str = ""
    reference: str = ""
    reference_group: str = ""
    sigmas: float = 5.0
    most: float = 0.0
    time: str = "time"
    group: str = ""

    def __post_init__(self) -> None:
        pairs = [bool(self.mean and self.std), bool(self.low and self.high)]
        names = [name for name in (self.mean, self.std, self.low, self.high) if name]
        if sum(pairs) != 1 or len(names) != 2:
            raise InvalidInputError(
                f"a climatology needs the arrays mean and std, or low and high, found {', '.join(names) or 'none'}"
            )

    def run(self, spark: SparkSession, session: Session) -> Finding:
        data = open_dataset(session, self.group, [self.variable])
        source = reading_session(self.reference) if self.reference else session
        reference = open_dataset(source, self.reference_group, self._names)
        self._check_grids(data, reference)
        work = _ComparedBlock(self, session, source)
        windows = plan_blocks(data).windows()
        parts = run_tasks(spark, SparkJob(work, f"compare {self.variable} with its climatology"), windows)
        checked, outside = sum(part.checked for part in parts), sum(part.outside for part in parts)
        share = outside / checked if checked else 0.0
        check = f"at most {self.most:.2%} of {self.variable} outside its climatology"
        details = f"{outside:,} of {checked:,} values are ({share:.2%})"
        unchecked = sum(part.unchecked for part in parts)
        if unchecked:
            details += f", {unchecked:,} have no reference"
        if outside:
            worst = max(parts, key=lambda part: part.distance)
            details += f". The farthest: {worst.where}"
        return Finding(check, checked > 0 and share <= self.most, details)

    @property
    def _names(self) -> list[str]:
        return [name for name in (self.mean, self.std, self.low, self.high) if name]

    def _check_grids(self, data: xr.Dataset, reference: xr.Dataset) -> None:
        known = set(data[self.variable].dims)
        for name in self._names:
            for dim in map(str, reference[name].dims):
                if dim in SEASONS and self.time in known:
                    _check_seasons(data[self.time], reference, dim)
                elif dim not in known:
                    raise InvalidInputError(
                        f"the reference {name} has the dimension {dim}, which {self.variable} does not have. Allowed: "
                        f"{', '.join([*map(str, data[self.variable].dims), *SEASONS])}"
                    )
                elif not _same_coordinate(data, reference, dim):
                    raise InvalidInputError(
                        f"the coordinate {dim} of {self.variable} and of its reference {name} differ. Interpolate the "
                        "reference to the grid of the data first"
                    )


def _check_seasons(time: xr.DataArray, reference: xr.Dataset, dim: str) -> None:
    if dim not in reference.coords:
        raise InvalidInputError(f"the reference has the dimension {dim} without a coordinate, so its days are unknown")
    lacking = sorted(set(getattr(time.dt, dim).values.tolist()) - set(reference[dim].values.tolist()))
    if lacking:
        raise InvalidInputError(f"the reference has no {dim} {lacking[0]}, which occurs in the data")


def _same_coordinate(data: xr.Dataset, reference: xr.Dataset, dim: str) -> bool:
    if data.sizes[dim] != reference.sizes[dim]:
        return False
    if dim not in data.coords or dim not in reference.coords:
        return True
    first, second = data[dim].values, reference[dim].values
    if first.dtype.kind == "f" and second.dtype.kind == "f":
        # One of them may be stored with single precision.
        return bool(np.allclose(first, second, rtol=1e-6, atol=1e-6))
    return bool(np.array_equal(first, second))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The values of a block that were compared with a reference."""

    checked: int
    outside: int
    unchecked: int
    distance: float
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class _ComparedBlock:
    check: Climatology
    session: Session
    reference: Session

    def __call__(self, window: Mapping[str, slice]) -> _Comparison:
        check = self.check
        data = open_dataset(self.session, check.group, [check.variable])[check.variable].isel(window).load()
        reference = open_dataset(self.reference, check.reference_group, check._names)
        wanted = {dim: part for dim, part in window.items() if dim in reference.dims}
        reference = reference.isel(wanted)
        for dim in [dim for dim in SEASONS if dim in reference.dims]:
            reference = reference.sel({dim: getattr(data[check.time].dt, dim)})
        # Coordinates were compared before. Those that differ in the last digit must not be aligned again.
        bounds = reference.load().drop_vars(list(reference.coords)).astype(np.float64)
        values = data.drop_vars(list(data.coords)).astype(np.float64)
        if check.mean:
            low = bounds[check.mean] - check.sigmas * bounds[check.std]
            high = bounds[check.mean] + check.sigmas * bounds[check.std]
        else:
            low, high = bounds[check.low], bounds[check.high]
        below, above = (low - values).transpose(*data.dims), (values - high).transpose(*data.dims)
        distance = np.maximum(below.values, above.values)
        present = ~np.isnan(values.values)
        comparable = present & ~np.isnan(distance)
        outside = comparable & (distance > 0)
        farthest, where = 0.0, ""
        if outside.any():
            index = np.unravel_index(int(np.argmax(np.where(outside, distance, -np.inf))), distance.shape)
            farthest = float(distance[index])
            cell = {str(dim): data[dim].values[i] if dim in data.coords else i for dim, i in zip(data.dims, index)}
            at = ", ".join(f"{dim}={value}" for dim, value in cell.items())
            limits = [float(each.broadcast_like(values).transpose(*data.dims).values[index]) for each in (low, high)]
            where = f"{values.values[index]:g} at {at}, expected {limits[0]:g} .. {limits[1]:g}"
        return _Comparison(
            int(comparable.sum()), int(outside.sum()), int((present & ~comparable).sum()), farthest, where
        )


@dataclass(frozen=True, slots=True)
class Holds:
    """Calls a function with the lazy dataset. The function returns a bool, or a bool and details."""

    name: str
    function: Callable[[xr.Dataset], bool | tuple[bool, str]]
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        result = self.function(open_dataset(session, self.group))
        passed, details = result if isinstance(result, tuple) else (result, "")
        return Finding(self.name, bool(passed), details)


_CHECKS: Mapping[str, type[Any]] = {
    "range": ValueRange,
    "missing_share": MissingShare,
    "no_duplicates": NoDuplicates,
    "monotone": Monotone,
    "regular": Regular,
    "units": Units,
    "sizes": ExpectedSizes,
    "climatology": Climatology,
}
"""The checks that a YAML file can have, by name."""


def parse_checks(text: str) -> list[Check]:
    """Parse checks in YAML: a list, or a mapping with the key `checks`. Every entry is a name and its arguments.

    Parameters
    ----------
    text
        The YAML document. Its checks are `range`, `missing_share`, `no_duplicates`, `monotone`, `regular`, `units`,
        `sizes` and `climatology`.

    Returns
    -------
    list of Check
        The checks.

    Raises
    ------
    InvalidInputError
        It is not valid YAML, or a check or an argument is not known or has the wrong type.

    Examples
    --------
    >>> parse_checks("- range: {variable: t2m, low: 180, high: 340}")
    [ValueRange(variable='t2m', low=180.0, high=340.0, group='')]
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInputError(f"the checks are not valid YAML: {error}") from error
    entries = document.get("checks") if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        raise InvalidInputError("the checks must be a list, or a mapping with the key `checks` and a list")
    return [_parse_check(entry) for entry in entries]


def read_checks(path: str | os.PathLike[str]) -> list[Check]:
    """Read checks from a YAML file, see `parse_checks`."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise InvalidInputError(f"the checks in {os.fspath(path)} cannot be read: {error}") from error
    return parse_checks(text)


def _parse_check(entry: Any) -> Check:
    if not isinstance(entry, Mapping) or len(entry) != 1 or not isinstance(next(iter(entry.values())), Mapping):
        raise InvalidInputError(f"expected a check such as `monotone: {{coordinate: time}}`, found {entry!r}")
    [(name, given)] = entry.items()
    if name not in _CHECKS:
        raise InvalidInputError(f"unknown check {name!r}{suggest(str(name), _CHECKS)}. Known: {', '.join(_CHECKS)}")
    known = {each.name: each for each in fields(_CHECKS[name])}
    for key in given:
        if key not in known:
            raise InvalidInputError(f"the check {name} has no argument {key!r}{suggest(str(key), known)}")
    lacking = [key for key, each in known.items() if each.default is MISSING and key not in given]
    if lacking:
        raise InvalidInputError(f"the check {name} needs the argument {lacking[0]!r}")
    check: Check = _CHECKS[name](**{key: _parse_argument(name, key, known[key].type, v) for key, v in given.items()})
    return check


def _parse_argument(name: str, key: str, kind: Any, value: Any) -> Any:
    """An argument of the right type. YAML reads `1e-3` as a text, and `no` as a boolean."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    if kind == "float" and is_number:
        return float(value)
    if kind == "str" and isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(k, str) and type(n) is int for k, n in value.items()):
        return dict(value)
    expected = {"float": "a number", "str": "a text"}.get(kind, "a mapping of names to whole numbers")
    raise InvalidInputError(f"the argument {key} of the check {name} must be {expected}, found {value!r}")


AUDIT_KEY = "icefloe.audit"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. It is also stored in the metadata of the commit `snapshot_id`.

    Attributes
    ----------
    passed
        Whether all checks passed.
    published
        Whether the target branch was moved.
    staging
        The name of the staging branch.
    snapshot_id
        The snapshot that was checked.
    findings
        The result of each check.

    Examples
    --------
    >>> print(AuditReport(True, True, "staging", "J0YW0WNV6JWY3RH21G7G", ()))
    published
    """

    passed: bool
    published: bool
    staging: str
    snapshot_id: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [
            f"{'ok ' if finding.passed else 'BAD'} {finding.check}: {finding.details}" for finding in self.findings
        ]
        state = "published" if self.published else f"not published; see branch {self.staging}"
        return "\n".join([*lines, state])


def write_audit_publish(
    spark: SparkSession,
    repo: Target,
    write: Callable[[str], Any],
    checks: Sequence[Check] | str | os.PathLike[str],
    *,
    branch: str = "main",
    staging: str | None = None,
    tries: int = 3,
) -> AuditReport:
    """Write to a staging branch, check it, and fast-forward the target branch if every check passes.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
    write
        A function that gets the name of the staging branch and commits to it.
    checks
        Checks of `icefloe.spark.publish` (ValueRange, MissingShare, NoDuplicates, Monotone, Regular, Units,
        ExpectedSizes, Climatology, Holds) or your own, or the path of a YAML file with checks (see `parse_checks`).
    branch
        The target branch.
    staging
        The name of the staging branch. It must not exist. It is deleted after publishing and kept if a check fails.
    tries
        How often to write and check if the target branch has new commits.

    Returns
    -------
    AuditReport
        The findings, and whether the branch was moved.

    Raises
    ------
    InvalidInputError
        The staging branch exists, or `tries` is less than 1.
    ConflictError
        The target branch had new commits in every attempt.

    Examples
    --------
    >>> write_audit_publish(
    ...     spark, repo, lambda staging: ingest(spark, "new/*.nc", repo, append_dim="time", branch=staging),
    ...     [ValueRange("t2m", 180, 340), Monotone("time")],
    ... )  # doctest: +SKIP
    """
    repo = existing_repository(repo)
    if isinstance(checks, str | os.PathLike):
        # Read before anything is written.
        checks = read_checks(checks)
    if staging is not None and staging in repo.list_branches():
        raise InvalidInputError(f"the staging branch {staging!r} exists. Delete it, or choose another name")
    for attempt in range(1, tries + 1):
        name = staging or f"staging-{secrets.token_hex(4)}"
        base = repo.lookup_branch(branch)
        repo.create_branch(name, base)
        write(name)
        report = _audit(spark, repo, name, checks)
        if not report.passed:
            return report
        try:
            repo.reset_branch(branch, report.snapshot_id, from_snapshot_id=base)
        except ConflictError:
            if attempt == tries:
                raise
            # There is a concurrent commit, so the checked data is not what would be published.
            repo.delete_branch(name)
            continue
        repo.delete_branch(name)
        return AuditReport(True, True, name, report.snapshot_id, report.findings)
    raise InvalidInputError(f"tries is {tries}, expected at least 1")


def _audit(spark: SparkSession, repo: Repository, staging: str, checks: Sequence[Check]) -> AuditReport:
    """Run the checks, and store the findings in a separate commit on the staging branch."""
    writer = repo.writable_session(staging)
    # Only checked data is published, so a concurrent commit is a conflict.
    session = repo.readonly_session(snapshot_id=writer.snapshot_id)
    findings = tuple(check.run(spark, session) for check in checks)
    passed = all(finding.passed for finding in findings)
    failed = sum(not finding.passed for finding in findings)
    message = f"Audit: {len(findings)} checks passed" if passed else f"Audit: {failed} of {len(findings)} checks failed"
    record = {"passed": passed, "snapshot": str(session.snapshot_id), "findings": [asdict(f) for f in findings]}
    snapshot = writer.commit(message, {AUDIT_KEY: record}, allow_empty=True)
    return AuditReport(passed, False, staging, str(snapshot), findings)
