"""A long ingest in batches: each is committed to a branch of its own, so that a run that died is gone on with.

The branch that the ingest is for moves once, when all batches are there: its readers see everything or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from icefloe.errors import ConflictError, InvalidInputError
from icefloe.ingest.ingested import ingested_sources
from icefloe.ingest.local import read_existing
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.plan import IngestPlan, check_plan
from icefloe.ingest.record import fingerprint, not_ingested
from icefloe.ingest.source_model import SourceFile
from icefloe.ingest.sources import natural_key
from icefloe.repository import Repository
from icefloe.spark.landing import FirstPass, IngestJob, Landed, land, plan_first_pass

PREFIX = "ingest-"


def check_batches(batch: int, options: IngestOptions) -> None:
    """Refuse what cannot be done in batches."""
    if batch < 1:
        raise InvalidInputError(f"batch is {batch}; a batch has at least 1 source")
    if options.append_dim is None:
        raise InvalidInputError("batch needs append_dim: every batch is appended to the one before it")


def staging_branch(
    repository: Repository, branch: str, files: Sequence[SourceFile], options: IngestOptions
) -> tuple[str, list[SourceFile]]:
    """The branch for the batches of this very ingest, made if it is not there, and the sources that it lacks.

    Its name stands for the sources, the options and where the target stands: the same call finds it again.
    """
    tip = repository.lookup_branch(branch)
    told = hashlib.blake2b(f"{branch}\0{tip}\0{options!r}\0".encode(), digest_size=6)
    for mark in sorted(map(fingerprint, files)):
        told.update(mark)
    name = f"{PREFIX}{told.hexdigest()}"
    if name not in repository.list_branches():
        repository.create_branch(name, tip)
        return name, list(files)
    return name, not_ingested(files, ingested_sources(repository, name))


def land_in_batches(spark: SparkSession, job: IngestJob, staging: str, batch: int) -> Landed:
    """Land every batch on the staging branch, then move the branch of the job there."""
    existing = read_existing(job.repository.readonly_session(staging), job.named)
    whole = plan_first_pass(spark, job.first_pass, existing, job.options)
    # Everything is checked before the first batch: differences between files are told all at once.
    check_plan(whole, existing)
    parts = _cut(job.first_pass, whole, batch)
    landed = [land(spark, replace(job, branch=staging, first_pass=part)) for part in parts]
    return Landed(
        snapshot_id=publish_batches(job.repository, job.branch, staging),
        plan=whole,
        reports=tuple(report for each in landed for report in each.reports),
        references=sum(each.references for each in landed),
        attempts=sum(each.attempts for each in landed) - len(landed) + 1,
    )


def publish_batches(repository: Repository, branch: str, staging: str) -> str:
    """Move a branch to its batches; returns where it stands then."""
    tip = str(repository.lookup_branch(staging))
    try:
        repository.fast_forward(branch, tip)
    except ConflictError as error:
        raise ConflictError(
            f"branch {branch} got other commits while batches were ingested; they are complete on branch {staging}: "
            "merge it, or delete it and ingest again",
            expected_parent=tip,
            actual_parent=str(repository.lookup_branch(branch)),
        ) from error
    repository.delete_branch(staging)
    return tip


def _cut(found: FirstPass, whole: IngestPlan, batch: int) -> list[FirstPass]:
    """The first pass in batches along the dimension that is appended to; sources of one place stay together."""
    dimension = str(whole.options.append_dim)
    origins: dict[str, int] = {}
    for placed in (placed for task in whole.tasks for placed in task.files):
        origin = placed.origin.get(dimension, 0)
        origins[placed.file.url] = min(origin, origins.get(placed.file.url, origin))
    schemas = sorted(found.schemas, key=lambda s: (origins.get(s.file.url, 0), natural_key(s.file.url)))
    edges = [0]
    for index in range(1, len(schemas)):
        moved_on = origins.get(schemas[index].file.url) != origins.get(schemas[index - 1].file.url)
        if moved_on and index - edges[-1] >= batch:
            edges.append(index)
    parts = []
    for first, end in zip(edges, [*edges[1:], len(schemas)], strict=True):
        chosen = schemas[first:end]
        urls = {schema.file.url for schema in chosen}
        files = tuple(file for file in found.files if file.url in urls)
        parts.append(replace(found, files=files, schemas=tuple(chosen), failures=()))
    # Broken sources, where they are left out, belong to the batch whose sources surround their names.
    for failure in found.failures:
        key = natural_key(failure.file.url)
        index = next((i for i, p in enumerate(parts) if key <= natural_key(p.schemas[-1].file.url)), len(parts) - 1)
        part = parts[index]
        parts[index] = replace(part, files=(*part.files, failure.file), failures=(*part.failures, failure))
    return parts
