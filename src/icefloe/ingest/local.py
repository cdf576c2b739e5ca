"""A whole ingest in one process, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from icefloe.blocking import run_blocking
from icefloe.errors import VirtualChunkError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.execution import TaskResult, run_task
from icefloe.ingest.existing import Existing, ExistingArray
from icefloe.ingest.ingested import ingested_sources, keep_record
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.parsers.registry import check_format, try_schema
from icefloe.ingest.plan import IngestPlan, check_free, check_plan, plan_ingest
from icefloe.ingest.record import ingest_metadata, not_ingested
from icefloe.ingest.session_sink import SessionSink
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.sources import Sources, expand_sources
from icefloe.ingest.virtual_places import store_containers, with_stored_containers
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.session.session import Session

PARSE_THREADS = 8


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did; `snapshot_id` is None for a dry run or when there was nothing new."""

    plan: IngestPlan | None
    snapshot_id: str | None
    tasks: tuple[TaskResult, ...] = ()
    already_there: int = 0
    """Sources that earlier commits had ingested."""


def read_schemas(
    files: Sequence[SourceFile], access: SourceAccess, format: str | None = None
) -> tuple[list[SourceSchema], list[SourceFailure]]:
    """The first pass over all files, several at a time; those that cannot be read are told apart."""
    with ThreadPoolExecutor(PARSE_THREADS) as pool:
        found = list(pool.map(lambda file: try_schema(file, access, format=format), files))
    schemas = [schema for schema in found if isinstance(schema, SourceSchema)]
    return schemas, [failure for failure in found if isinstance(failure, SourceFailure)]


def read_existing(session: Session) -> Existing:
    """The arrays and groups of a session, with the values of its one-dimensional coordinates."""
    documents = run_blocking(_documents(session))
    arrays: dict[str, ExistingArray] = {}
    groups: set[str] = set()
    unreadable: dict[str, str] = {}
    for path, content in documents.items():
        document = parse_document(content, f"{path}/zarr.json")
        if document["node_type"] == "group":
            groups.add(path)
            continue
        values = None
        if document.get("dimension_names") == [path.rpartition("/")[2]]:
            try:
                values = np.asarray(zarr.open_array(session.store, path=path, mode="r")[...])
            except VirtualChunkError as error:
                unreadable[path] = str(error).partition("\n")[0]
        arrays[path] = ExistingArray(path, document, values)
    return Existing(arrays, frozenset(groups), unreadable)


async def _documents(session: Session) -> dict[str, bytes]:
    """Every zarr.json by path, straight from the tree: chunk keys are not listed for it."""
    found: dict[str, bytes] = {}
    for path in list(session.workspace.tree.paths()):
        content = await session.workspace.fetch_document(path)
        if content is not None:
            found[path.strip("/")] = content
    return found


def ingest_local(
    sources: Sources,
    repository: Repository,
    options: IngestOptions | None = None,
    *,
    branch: str = "main",
    message: str | None = None,
    access: SourceAccess | None = None,
    containers: Sequence[VirtualChunkContainer] = (),
    skip_ingested: bool = False,
    dry_run: bool = False,
    progress: Callable[[TaskResult], None] | None = None,
    metadata: dict[str, Any] | None = None,
) -> IngestResult:
    """Ingest sources into a branch with one commit, in this process.

    Parameters
    ----------
    sources
        Paths, globs, folders, URLs, or text files of them.
    repository
        Where to. A virtual or mixed ingest adds the containers it needs to its configuration.
    options
        Mode, combining, encoding: see IngestOptions.
    containers
        How readers reach the virtual chunks, where the ordinary settings of the store do not do.
    skip_ingested
        Leave out sources that earlier commits of the branch ingested in the same state.
    dry_run
        Only plan; nothing is written.

    Examples
    --------
    >>> ingest_local("weather/*.nc", repository, IngestOptions(mode="virtual"))  # doctest: +SKIP
    """
    options = options or IngestOptions()
    access = access or SourceAccess()
    check_format(options.format)
    files = expand_sources(sources, access)
    known = len(files)
    if skip_ingested:
        files = not_ingested(files, ingested_sources(repository, branch))
        if not files:
            return IngestResult(None, None, already_there=known)
    schemas, failures = read_schemas(files, access, options.format)
    repository = with_stored_containers(repository)
    existing = read_existing(repository.readonly_session(branch))
    plan = plan_ingest(schemas, options, failures=failures, existing=existing)
    if dry_run:
        check_free(plan, existing)
        return IngestResult(plan, None, already_there=known - len(files))
    check_plan(plan, existing)
    writer = store_containers(repository, plan.containers, containers)
    session = writer.writable_session(branch)
    sink = SessionSink(session)
    sink.begin(plan)
    results = []
    for task in plan.tasks:
        results.append(run_task(task, plan.arrays, sink, access=access, format=options.format))
        if progress is not None:
            progress(results[-1])
    facts = {**keep_record(repository, ingest_metadata(plan, files)), **(metadata or {})}
    snapshot_id = session.commit(message or f"Ingest {len(plan.sources)} sources", facts)
    return IngestResult(plan, str(snapshot_id), tuple(results), known - len(files))
