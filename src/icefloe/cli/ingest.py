"""The commands `ingest` and `sync`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from icefloe.cli.console import Bars, stderr, stdout
from icefloe.cli.options import (
    Authorize,
    Chunks,
    DryRun,
    Json,
    Message,
    SparkOptions,
    StorageOptions,
    Texts,
    Variables,
    WorkBranch,
    parse_names,
    parse_numbers,
    parse_options,
    parse_pairs,
    parse_region,
    storage_at,
)
from icefloe.cli.output import print_json
from icefloe.display.card import format_bytes, format_count
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.plan import IngestPlan, PlanView
from icefloe.ingest.record import Vanished, explain_authorisation
from icefloe.ingest.source_model import GAP, SourceFailure
from icefloe.ingest.sources import IngestOptions, Longitudes, Mode, OnError, Overlap
from icefloe.ingest.sync import SyncResult, sync_local
from icefloe.repository import Repository
from icefloe.storage.build import in_memory_storage

if TYPE_CHECKING:
    from icefloe.spark.ingest import IngestOutcome


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


SourcesArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCES", help="Files, folders, globs, URLs, or .txt files that list them.", show_default=False
    ),
]
RepoArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Path or URL of the repository. It is created if it does not exist.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class CombineOptions:
    """The option group of commands that make arrays of sources. Its fields become those of `IngestOptions`."""

    mode: Annotated[Mode, typer.Option("--mode", help="How to store chunks.")] = "native"
    append_dim: Annotated[
        str | None, typer.Option("--append-dim", metavar="DIM", help="Append along this dimension.")
    ] = None
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="PATH", help="Group to write to.  [default: the root group]", show_default=False
        ),
    ] = ""
    group_pattern: Annotated[
        str | None,
        typer.Option(
            "--group-pattern", metavar="REGEX", help="The first capture group in a URL is the name of a group."
        ),
    ] = None
    variables: Variables = None
    drop_variables: Annotated[
        Texts, typer.Option("--drop-variables", metavar="NAMES", help="Ignore these variables, separated by commas.")
    ] = None
    rename: Annotated[
        Texts, typer.Option("--rename", metavar="OLD=NEW", help="Rename variables, for example t=temp,p=pressure.")
    ] = None
    concat_dims: Annotated[
        Texts,
        typer.Option(
            "--concat-dims",
            metavar="DIMS",
            help="Concatenate along these dimensions.  [default: found from the coordinates]",
        ),
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="PATTERN",
            help="Coordinates in the names of files, for example 't2m_{time:%Y%m%d}.nc' or '{member:d}/{step:d}h.nc'.",
        ),
    ] = None
    preprocess: Annotated[
        str | None,
        typer.Option(
            "--preprocess", metavar="MODULE:FUNCTION", help="Function that changes the xarray.Dataset of every file."
        ),
    ] = None
    sort: Annotated[
        Texts,
        typer.Option(
            "--sort", metavar="DIM[=DIRECTION]", help="Sort files along dimensions, for example lat=descending."
        ),
    ] = None
    flip: Annotated[Texts, typer.Option("--flip", metavar="DIMS", help="Reverse files along these dimensions.")] = None
    longitudes: Annotated[
        Longitudes | None, typer.Option("--longitudes", help="Convert longitudes to this range, and sort them.")
    ] = None
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", metavar="NUMBER", help="Coordinates of files that differ by no more are the same."),
    ] = None
    overlap: Annotated[
        Overlap, typer.Option("--overlap", help="Which file to use for cells that several files have.")
    ] = "error"
    overlap_by: Annotated[
        str,
        typer.Option(
            "--overlap-by",
            metavar="ORDER",
            help="Order of overlapping files: name, time, or a regular expression with a group that orders URLs.",
        ),
    ] = "name"
    chunks: Chunks = None
    unpack: Annotated[bool, typer.Option("--unpack", help="Apply scale_factor and add_offset.")] = False
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept files without some of the variables.")
    ] = False
    container_prefix: Annotated[
        str | None,
        typer.Option(
            "--container", metavar="PREFIX", help="URL prefix of virtual chunks.  [default: the longest common prefix]"
        ),
    ] = None
    format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Format of the sources.  [default: detected]")
    ] = None

    def as_options(self) -> dict[str, Any]:
        """The arguments of `IngestOptions`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("variables", "drop_variables", "concat_dims", "flip"):
            given[name] = parse_names(given[name])
        sort = [each if "=" in each else f"{each}=ascending" for each in parse_names(self.sort) or ()]
        given["sort"] = parse_pairs(sort, "--sort") or None
        given["rename"] = parse_pairs(self.rename, "--rename") or None
        given["chunks"] = parse_numbers(self.chunks, "--chunks") or None
        return without_none(given)


SourceOptions: TypeAlias = Annotated[
    Texts,
    typer.Option("--source-option", metavar="NAME=VALUE", help="Storage option of the sources. Can be repeated."),
]


Engine: TypeAlias = Annotated[
    Literal["local", "spark"],
    typer.Option("--engine", help="Where to run: in this process, without Java, or as Spark tasks."),
]


@dataclass(frozen=True, slots=True)
class LocalOutcome:
    """The outcome of an ingest in this process, with the fields of an ingest on Spark."""

    plan: IngestPlan | None
    snapshot_id: str | None
    already_there: int
    references: int
    decoded_bytes: int
    seconds: float
    failures: tuple[SourceFailure, ...] = ()
    attempts: int = 1
    job_id: None = None

    @property
    def authorisation(self) -> str:
        return explain_authorisation(self.plan.containers) if self.plan is not None else ""


def ingest(
    sources: SourcesArgument,
    repo: RepoArgument,
    combine: CombineOptions = CombineOptions(),
    region: Annotated[
        Texts,
        typer.Option(
            "--region",
            metavar="DIM=FIRST:END",
            help="Overwrite this range of existing arrays, such as time=0:24. 'auto' finds it from the coordinates.",
        ),
    ] = None,
    branch: WorkBranch = "main",
    message: Message = None,
    on_error: Annotated[OnError, typer.Option("--on-error", help="What to do if a file cannot be read.")] = "fail",
    skip_ingested: Annotated[
        bool, typer.Option("--skip-ingested", help="Skip sources that were ingested before.")
    ] = False,
    authorize: Authorize = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Continue without comparing coordinates and masks.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", metavar="N", help="Commit N sources at a time. A repeated run continues after the last commit."
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Compute statistics of the new chunks, like `icefloe analyze`.")
    ] = False,
    dry_run: DryRun = False,
    engine: Engine = "spark",
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    source_options: SourceOptions = None,
    json: Json = False,
) -> None:
    """Ingest NetCDF, HDF5, Zarr or other files.

    All sources are combined and written with one commit. The repository is the last argument.

    Examples
    --------
    icefloe ingest 'files/*.nc' weather
    icefloe ingest s3://bucket/new/ weather --mode virtual --append-dim time
    """
    start = spark.starter(quick_start=True) if engine == "spark" else None
    storage = storage_at(repo, options)
    repository: Any = repo
    if not dry_run or Repository.exists(storage):
        repository = Repository.open_or_create(
            storage, authorize_virtual_chunk_access=dict.fromkeys(authorize or ()) or None
        )
    chosen = combine.as_options() | {"on_error": on_error, "unchecked": unchecked}
    if region:
        chosen["region"] = "auto" if region == ["auto"] else parse_region(region)
    common: dict[str, Any] = {"branch": branch, "message": message, "dry_run": dry_run, "skip_ingested": skip_ingested}
    common["source_options"] = parse_options(source_options or ())
    try:
        outcome: IngestOutcome | LocalOutcome
        if start is None:
            if batch is not None or statistics:
                raise InvalidInputError("--batch and --statistics need Spark. Leave out --engine local")
            empty = repository is repo  # a dry run, and there is no repository
            target = Repository.create(in_memory_storage()) if empty else repository
            outcome = _ingest_here(sources, target, IngestOptions(**chosen), common)
        else:
            from icefloe.spark.ingest import ingest as run  # noqa: PLC0415 - Spark is an extra

            if repository is repo:
                common["repo_options"] = parse_options(options or ())
            common |= {"batch": batch, "statistics": statistics}
            outcome = run(start, sources, repository, **common, **chosen)
    except KeyboardInterrupt:
        stderr().print(
            f"interrupted: {branch} did not change; `icefloe gc` deletes the objects that were written", markup=False
        )
        raise
    if json:
        print_json(outcome_facts(outcome))
    else:
        _show(outcome, dry_run=dry_run)


def _ingest_here(
    sources: list[str], repository: Repository, options: IngestOptions, common: Mapping[str, Any]
) -> LocalOutcome:
    """Ingest in this process, with a bar that counts tasks."""
    started, done = time.monotonic(), itertools.count(1)
    with Bars() as bars:
        result = ingest_local(
            sources, repository, options, **common, progress=lambda _: bars.report("ingesting", next(done), 0)
        )
    return LocalOutcome(
        result.plan,
        result.snapshot_id,
        result.already_there,
        references=sum(task.references + task.blocks for task in result.tasks),
        decoded_bytes=sum(task.bytes for task in result.tasks),
        seconds=time.monotonic() - started,
        failures=result.failures,
    )


def outcome_facts(outcome: IngestOutcome | LocalOutcome) -> dict[str, Any]:
    """The outcome of an ingest as JSON."""
    plan = outcome.plan
    return {
        "job": outcome.job_id,
        "snapshot_id": outcome.snapshot_id,
        "sources": len(plan.sources) if plan is not None else 0,
        "already_there": outcome.already_there,
        "tasks": len(plan.tasks) if plan is not None else 0,
        "references": outcome.references,
        "decoded_bytes": outcome.decoded_bytes,
        "attempts": outcome.attempts,
        "seconds": round(outcome.seconds, 3),
        "containers": list(plan.containers) if plan is not None else [],
        "failures": [{"url": failure.file.url, "reason": failure.reason} for failure in outcome.failures],
        "differences": [list(row) for row in plan.report.rows()] if plan is not None else [],
        "arrays": {
            f"/{path}": {
                "shape": array.shape,
                "chunks": [lengths.each for lengths in array.grid],
                "dtype": array.dtype,
                "stored": array.kind,
            }
            for path, array in (plan.arrays.items() if plan is not None else ())
        },
    }


def _show(outcome: IngestOutcome | LocalOutcome, *, dry_run: bool) -> None:
    console = stdout()
    plan = outcome.plan
    if outcome.already_there:
        were = "was" if outcome.already_there == 1 else "were"
        console.print(f"{format_count(outcome.already_there, 'source')} {were} ingested before")
    if plan is None:
        console.print("No new sources")
        return
    if dry_run:
        console.print(PlanView(plan))
        for failure in outcome.failures:
            console.print(f"cannot be read: {_named(failure)}", markup=False)
        if plan.report.errors:
            raise InvalidInputError(
                f"this ingest would fail: {format_count(len(plan.report.errors), 'difference')} between the sources, "
                "listed above"
            )
        return
    for failure in outcome.failures:
        console.print(f"skipped: {_named(failure)}", markup=False)
    for issue in plan.report.issues:
        if issue.facet == GAP:
            console.print(str(issue), markup=False)
    if handled := sum(issue.severity == "handled" for issue in plan.report.issues) - len(plan.skipped):
        console.print(f"{format_count(handled, 'difference')} between the sources resolved; --dry-run shows them")
    what = [format_count(len(plan.sources), "source"), format_count(outcome.references, "chunk reference")]
    if outcome.decoded_bytes:
        what.append(f"{format_bytes(outcome.decoded_bytes)} decoded")
    console.print(f"{', '.join(what)} in {outcome.seconds:.1f} s: snapshot {outcome.snapshot_id}")
    if outcome.attempts > 1:
        console.print(f"{outcome.attempts} attempts, because of concurrent commits")
    if outcome.authorisation:
        console.print(outcome.authorisation, markup=False)


def _named(failure: SourceFailure) -> str:
    """The reason why a source cannot be read, with its URL."""
    return failure.reason if failure.file.url in failure.reason else f"{failure.file.url}: {failure.reason}"


def sync(
    sources: SourcesArgument,
    repo: RepoArgument,
    combine: CombineOptions = CombineOptions(),
    branch: WorkBranch = "main",
    message: Message = None,
    vanished: Annotated[
        Vanished,
        typer.Option("--vanished", help="What to do with the data of files that no longer exist."),
    ] = "keep",
    authorize: Authorize = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Write everything again from the sources.")] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", metavar="N", help="Commit N sources at a time. A repeated run continues after the last commit."
        ),
    ] = None,
    dry_run: DryRun = False,
    engine: Engine = "local",
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    source_options: SourceOptions = None,
    json: Json = False,
) -> None:
    """Make an archive equal to its files.

    Name all files of the archive, not only new ones. New files are added where they belong, replaced files are read
    again, and equal chunks are kept. Repeat the command at any time, for example every night.

    Examples
    --------
    icefloe sync 'files/*.nc' weather --append-dim time
    icefloe sync 'files/*.nc' weather --vanished remove --dry-run
    """
    chosen = combine.as_options()
    common: dict[str, Any] = {
        "branch": branch,
        "vanished": vanished,
        "message": message,
        "rebuild": rebuild,
        "batch": batch,
    }
    common |= {"dry_run": dry_run, "source_options": parse_options(source_options or ())}
    connection = spark.session(quick_start=True) if engine == "spark" or spark.master is not None else None
    storage = storage_at(repo, options)
    authorized = dict.fromkeys(authorize or ()) or None
    if not dry_run or Repository.exists(storage):
        repository = Repository.open_or_create(storage, authorize_virtual_chunk_access=authorized)
    else:
        repository = Repository.create(in_memory_storage())  # nothing is written, so everything is new
    if connection is None:
        done = itertools.count(1)
        with Bars() as bars:
            common["progress"] = lambda _: bars.report("syncing", next(done), 0)
            result = sync_local(sources, repository, IngestOptions(**chosen), **common)
    else:
        from icefloe.spark.ingest import sync as run  # noqa: PLC0415 - Spark is an extra

        result = run(connection, sources, repository, **chosen, **common)
    if json:
        print_json(sync_facts(result))
    else:
        _show_sync(result, dry_run=dry_run)


def sync_facts(result: SyncResult) -> dict[str, Any]:
    """The result of a sync as JSON."""
    changes, plan = result.sources, result.plan
    return {
        "snapshot_id": result.snapshot_id,
        "added": list(changes.added),
        "replaced": list(changes.replaced),
        "touched": list(changes.touched),
        "vanished": list(changes.vanished),
        "unchanged": changes.unchanged,
        "chunks": {"kept": plan.kept, "moved": plan.moved, "written": plan.written},
        "deleted_arrays": [f"/{path}" for path in plan.deleted],
        "decoded_bytes": sum(task.bytes for task in result.tasks),
        "attempts": result.attempts,
        "seconds": round(result.seconds, 3),
    }


_MOST_NAMED = 10


def _show_sync(result: SyncResult, *, dry_run: bool) -> None:
    console, changes, plan = stdout(), result.sources, result.plan
    console.print(f"Sources: {changes}", markup=False)
    kinds = {"added": changes.added, "replaced": changes.replaced, "vanished": changes.vanished}
    for kind, urls in kinds.items():
        for url in urls[:_MOST_NAMED]:
            console.print(f"  {kind:<9} {url}", markup=False)
        if len(urls) > _MOST_NAMED:
            console.print(f"  and {len(urls) - _MOST_NAMED:,} more {kind}", markup=False)
    if plan.ingest is not None:
        for issue in plan.ingest.report.issues:
            if issue.facet == GAP:
                console.print(str(issue), markup=False)
    for path in plan.deleted:
        console.print(f"  deleted   the array /{path}, which no file has", markup=False)
    rewritten = [path for path, each in plan.arrays.items() if each.is_rewritten and each.written]
    if rewritten and plan.kept:
        console.print(f"Written as a whole: {', '.join(f'/{path}' for path in rewritten)}", markup=False)
    if plan.ingest is not None:
        console.print(f"Chunk positions: {plan.kept:,} kept, {plan.moved:,} moved, {plan.written:,} written")
    if dry_run:
        console.print("Nothing was written (--dry-run)")
    elif result.snapshot_id is None:
        console.print("The archive is equal to its files. There is nothing to do")
    else:
        console.print(f"Snapshot {result.snapshot_id}, {result.seconds:.1f} s")
        if plan.ingest is not None and plan.ingest.containers:
            console.print(explain_authorisation(plan.ingest.containers), markup=False)
