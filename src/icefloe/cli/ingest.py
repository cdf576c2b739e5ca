"""The command `ingest`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.console import stderr, stdout
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
from icefloe.ingest.plan import PlanView
from icefloe.ingest.source_model import GAP, SourceFailure
from icefloe.ingest.sources import Mode, OnError
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.spark.ingest import IngestOutcome


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def ingest(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES", help="Files, folders, globs, URLs, or .txt files that list them.", show_default=False
        ),
    ],
    repo: Annotated[
        str,
        typer.Argument(
            metavar="REPO",
            help="Path or URL of the repository. It is created if it does not exist.",
            show_default=False,
        ),
    ],
    mode: Annotated[Mode, typer.Option("--mode", help="How to store chunks.")] = "native",
    append_dim: Annotated[
        str | None, typer.Option("--append-dim", metavar="DIM", help="Append along this dimension.")
    ] = None,
    region: Annotated[
        Texts,
        typer.Option(
            "--region",
            metavar="DIM=FIRST:END",
            help="Overwrite this range of existing arrays. 'auto' finds it from the coordinates.",
        ),
    ] = None,
    branch: WorkBranch = "main",
    message: Message = None,
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="PATH", help="Group to write to.  [default: the root group]", show_default=False
        ),
    ] = "",
    group_pattern: Annotated[
        str | None,
        typer.Option(
            "--group-pattern", metavar="REGEX", help="The first capture group in a URL is the name of a group."
        ),
    ] = None,
    variables: Variables = None,
    drop: Annotated[
        Texts, typer.Option("--drop-variables", metavar="NAMES", help="Ignore these variables, separated by commas.")
    ] = None,
    rename: Annotated[
        Texts, typer.Option("--rename", metavar="OLD=NEW", help="Rename variables. Separate several pairs with commas.")
    ] = None,
    concat: Annotated[
        Texts,
        typer.Option(
            "--concat-dims",
            metavar="DIMS",
            help="Concatenate along these dimensions.  [default: found from the coordinates]",
        ),
    ] = None,
    chunks: Chunks = None,
    unpack: Annotated[bool, typer.Option("--unpack", help="Apply scale_factor and add_offset.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept files without some of the variables.")
    ] = False,
    container: Annotated[
        str | None,
        typer.Option(
            "--container", metavar="PREFIX", help="URL prefix of virtual chunks.  [default: the longest common prefix]"
        ),
    ] = None,
    parser: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Format of the sources.  [default: detected]")
    ] = None,
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
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    source_options: Annotated[
        Texts,
        typer.Option("--source-option", metavar="NAME=VALUE", help="Storage option of the sources. Can be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Ingest NetCDF, HDF5, Zarr or other files, on Spark.

    All sources are combined and written with one commit. The repository is the last argument.
    """
    connection = spark.session(quick_start=True)
    from icefloe.spark.ingest import ingest as run  # noqa: PLC0415 - Spark is an extra

    storage = storage_at(repo, options)
    repository: Any = repo
    if not dry_run or Repository.exists(storage):
        repository = Repository.open_or_create(
            storage, authorize_virtual_chunk_access=dict.fromkeys(authorize or ()) or None
        )
    more = without_none(
        {
            "repo_options": parse_options(options or ()) if repository is repo else None,
            "variables": parse_names(variables),
            "drop_variables": parse_names(drop),
            "container_prefix": container,
            "concat_dims": parse_names(concat),
            "group_pattern": group_pattern,
            "format": parser,
            "rename": parse_pairs(rename, "--rename") or None,
            "chunks": parse_numbers(chunks, "--chunks") or None,
            "region": "auto" if region == ["auto"] else parse_region(region) or None,
        }
    )
    try:
        outcome = run(
            connection,
            sources,
            repository,
            mode=mode,
            append_dim=append_dim,
            branch=branch,
            message=message,
            group=group,
            on_error=on_error,
            dry_run=dry_run,
            skip_ingested=skip_ingested,
            unpack=unpack,
            allow_missing=allow_missing,
            unchecked=unchecked,
            batch=batch,
            statistics=statistics,
            source_options=parse_options(source_options or ()),
            **more,
        )
    except KeyboardInterrupt:
        stderr().print(
            f"interrupted: {branch} did not change; `icefloe gc` deletes the objects that were written", markup=False
        )
        raise
    if json:
        print_json(outcome_facts(outcome))
    else:
        _show(outcome, dry_run=dry_run)


def outcome_facts(outcome: IngestOutcome) -> dict[str, Any]:
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
            f"/{path}": {"shape": array.shape, "chunks": array.chunks, "dtype": array.dtype, "stored": array.kind}
            for path, array in (plan.arrays.items() if plan is not None else ())
        },
    }


def _show(outcome: IngestOutcome, *, dry_run: bool) -> None:
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
