"""Write, audit, publish: checks of a staging branch before its changes reach the target branch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.errors import ConflictError, InvalidInputError
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.spark.jobs import Target, existing_repository, open_dataset
from icefloe.spark.reduce import reduce


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
class ExpectedSizes:
    """Checks the lengths of dimensions."""

    sizes: Mapping[str, int]
    group: str = ""

    def run(self, spark: SparkSession, session: Session) -> Finding:
        found = {str(dim): int(n) for dim, n in open_dataset(session, self.group).sizes.items()}
        wrong = {dim: found.get(dim) for dim, n in self.sizes.items() if found.get(dim) != n}
        check = ", ".join(f"{dim}={n}" for dim, n in self.sizes.items())
        return Finding(f"sizes {check}", not wrong, f"found {wrong or found}")


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
    checks: Sequence[Check],
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
        Checks of `icefloe.spark.publish` (ValueRange, MissingShare, Monotone, ExpectedSizes, Holds) or your own.
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
