"""Write, audit, publish: work lands on a staging branch, and on the branch itself only when every check passes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from icefloe.errors import ConflictError, InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.checks import Check, Finding
from icefloe.spark.places import Target, existing_repository

AUDIT_KEY = "icefloe.audit"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found; it is also kept in the metadata of the commit `snapshot_id`."""

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
    """Write to a staging branch, check it, and fast-forward the branch if every check passes.

    Parameters
    ----------
    write
        Gets the name of the staging branch and commits to it, with an ingest or anything else.
    checks
        Of `icefloe.spark.checks`: ValueRange, MissingShare, Monotone, ExpectedSizes, Holds, or one's own.
    staging
        Name of the staging branch, which must not exist. It is removed after publishing, and kept when a check fails.
    tries
        How often to write and check again when the branch moved on meanwhile.

    Examples
    --------
    >>> write_audit_publish(
    ...     spark, repo, lambda staging: ingest(spark, "new/*.nc", repo, append_dim="time", branch=staging),
    ...     [ValueRange("t2m", 180, 340), Monotone("time")],
    ... )  # doctest: +SKIP
    """
    repo = existing_repository(repo)
    if staging is not None and staging in repo.list_branches():
        raise InvalidInputError(f"the staging branch {staging!r} exists; delete it or choose another name")
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
            # Somebody committed meanwhile: what was checked is not what would be published.
            repo.delete_branch(name)
            continue
        repo.delete_branch(name)
        return AuditReport(True, True, name, report.snapshot_id, report.findings)
    raise InvalidInputError(f"tries is {tries}; it is at least 1")


def _audit(spark: SparkSession, repo: Repository, staging: str, checks: Sequence[Check]) -> AuditReport:
    """Run the checks and keep what they found in a commit of its own on the staging branch."""
    writer = repo.writable_session(staging)
    # What is published is what was checked: a commit that lands meanwhile is a conflict.
    session = repo.readonly_session(snapshot_id=writer.snapshot_id)
    findings = tuple(check.run(spark, session) for check in checks)
    passed = all(finding.passed for finding in findings)
    failed = sum(not finding.passed for finding in findings)
    message = f"Audit: {len(findings)} checks passed" if passed else f"Audit: {failed} of {len(findings)} checks failed"
    record = {"passed": passed, "snapshot": str(session.snapshot_id), "findings": [asdict(f) for f in findings]}
    snapshot = writer.commit(message, {AUDIT_KEY: record}, allow_empty=True)
    return AuditReport(passed, False, staging, str(snapshot), findings)
