"""The verb `ingest`, and the Spark session of the verbs that need one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.options import Json, StorageOptions, parse_options, storage_at
from icefloe.cli.output import print_json, stderr, stdout
from icefloe.display.card import format_bytes, format_count
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.plan import PlanView
from icefloe.ingest.source_model import GAP, SourceFailure
from icefloe.ingest.sources import Mode, OnError
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.spark.connect import SparkSession
    from icefloe.spark.ingest import IngestOutcome

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master, or sc://HOST:PORT of a Connect server [local cores]."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Setting of the Spark session; can be repeated."),
]


def spark_session(master: str | None, settings: Sequence[str] | None, *, quick_start: bool = False) -> SparkSession:
    """The session that the options ask for; `quick_start` for verbs that leave the work to Python."""
    try:
        from icefloe.spark.connect import connect  # noqa: PLC0415 - Spark is an extra
    except ImportError as error:
        raise UnsupportedError(f"this verb needs Spark: pip install 'icefloe[spark]' ({error})") from error
    if master is not None and master.startswith("sc://"):
        return connect(remote=master)
    return connect(master, quick_start=quick_start, settings=parse_pairs(settings, "--conf"))


def parse_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE as a dictionary; several may stand behind one option, separated by commas."""
    parsed: dict[str, str] = {}
    for text in pairs or ():
        for pair in text.split(",") if option != "--conf" else [text]:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
            parsed[name.strip()] = value.strip()
    return parsed


def parse_numbers(pairs: Sequence[str] | None, option: str) -> dict[str, int]:
    """DIM=LENGTH as a dictionary."""
    try:
        return {name: int(value) for name, value in parse_pairs(pairs, option).items()}
    except ValueError as error:
        raise typer.BadParameter(f"a length is a whole number ({error})", param_hint=option) from error


def parse_region(pairs: Sequence[str] | None, option: str = "--region") -> dict[str, tuple[int, int]]:
    """DIM=FIRST:END as bounds."""
    bounds: dict[str, tuple[int, int]] = {}
    for name, value in parse_pairs(pairs, option).items():
        first, colon, end = value.partition(":")
        if not colon or not first.isdigit() or not end.isdigit():
            raise typer.BadParameter(f"{name}={value} is not DIM=FIRST:END", param_hint=option)
        bounds[name] = (int(first), int(end))
    return bounds


def parse_names(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names, repeated or separated by commas; None when there are none."""
    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    return tuple(names) or None


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


Texts = list[str] | None


def register_ingest(app: typer.Typer) -> None:
    app.command("ingest")(ingest)


def ingest(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES...", help="Files, folders, globs, URLs, or .txt lists of them.", show_default=False
        ),
    ],
    place: Annotated[
        str,
        typer.Argument(metavar="REPO", help="Path or URL of the repository; made when missing.", show_default=False),
    ],
    mode: Annotated[Mode, typer.Option("--mode", help="How chunks are stored.")] = "native",
    append_dim: Annotated[str | None, typer.Option("--append-dim", metavar="DIM", help="Extend along it.")] = None,
    region: Annotated[
        Texts, typer.Option("--region", metavar="DIM=FIRST:END", help="Write into existing arrays; 'auto' finds it.")
    ] = None,
    branch: Annotated[str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to commit to.")] = "main",
    message: Annotated[str | None, typer.Option("--message", "-m", help="Message of the commit.")] = None,
    group: Annotated[str, typer.Option("--group", metavar="PATH", help="Group to put everything in.")] = "",
    group_pattern: Annotated[
        str | None, typer.Option("--group-pattern", metavar="REGEX", help="Its first (..) in a URL names a group.")
    ] = None,
    variables: Annotated[Texts, typer.Option("--variables", metavar="NAMES", help="Only these, by commas.")] = None,
    drop: Annotated[Texts, typer.Option("--drop-variables", metavar="NAMES", help="All but these.")] = None,
    rename: Annotated[Texts, typer.Option("--rename", metavar="OLD=NEW", help="New names, by commas.")] = None,
    concat: Annotated[
        Texts, typer.Option("--concat-dims", metavar="DIMS", help="Join along these instead of finding them.")
    ] = None,
    chunks: Annotated[Texts, typer.Option("--chunks", metavar="DIM=LENGTH", help="Native chunks.")] = None,
    unpack: Annotated[bool, typer.Option("--unpack", help="Apply scale_factor and add_offset.")] = False,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Files may lack variables.")] = False,
    container: Annotated[
        str | None, typer.Option("--container", metavar="PREFIX", help="URL prefix of virtual chunks [longest common].")
    ] = None,
    parser: Annotated[str | None, typer.Option("--format", metavar="NAME", help="Parser to use.")] = None,
    on_error: Annotated[OnError, typer.Option("--on-error", help="What a broken file does.")] = "fail",
    skip_ingested: Annotated[bool, typer.Option("--skip-ingested", help="Leave out what was ingested before.")] = False,
    authorize: Annotated[
        Texts, typer.Option("--authorize", metavar="PREFIX", help="Read the repository's virtual chunks below it.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Go on although coordinates of the repository cannot be read.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Land N sources at a time; a run that died goes on.")
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Keep statistics of the new chunks, as analyze does.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    master: Master = None,
    conf: Settings = None,
    options: StorageOptions = None,
    source_options: Annotated[
        Texts,
        typer.Option("--source-option", metavar="NAME=VALUE", help="Option of the storage of the sources."),
    ] = None,
    json: Json = False,
) -> None:
    """Ingest NetCDF, HDF5, Zarr and other files with one commit, on Spark."""
    spark = spark_session(master, conf, quick_start=True)
    from icefloe.spark.ingest import ingest as run  # noqa: PLC0415 - Spark is an extra

    storage = storage_at(place, options)
    repository: Any = place
    if not dry_run or Repository.exists(storage):
        repository = Repository.open_or_create(
            storage, authorize_virtual_chunk_access=dict.fromkeys(authorize or ()) or None
        )
    more = without_none(
        {
            "repo_options": parse_options(options or ()) if repository is place else None,
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
            spark,
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
        stderr().print(f"interrupted: {branch} is as it was; icefloe gc removes what was written", markup=False)
        raise
    if json:
        print_json(outcome_facts(outcome))
    else:
        _show(outcome, dry_run=dry_run)


def outcome_facts(outcome: IngestOutcome) -> dict[str, Any]:
    """An ingest as JSON tells it."""
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
        console.print("Nothing is new")
        return
    if dry_run:
        console.print(PlanView(plan))
        for failure in outcome.failures:
            console.print(f"cannot be read: {_named(failure)}", markup=False)
        if plan.report.errors:
            raise InvalidInputError(
                f"this ingest would be refused because of {format_count(len(plan.report.errors), 'difference')} "
                "between the sources, shown above"
            )
        return
    for failure in outcome.failures:
        console.print(f"left out: {_named(failure)}", markup=False)
    for issue in plan.report.issues:
        if issue.facet == GAP:
            console.print(str(issue), markup=False)
    if handled := sum(issue.severity == "handled" for issue in plan.report.issues) - len(plan.skipped):
        console.print(f"{format_count(handled, 'difference')} between the sources dealt with; --dry-run shows them")
    what = [format_count(len(plan.sources), "source"), format_count(outcome.references, "chunk reference")]
    if outcome.decoded_bytes:
        what.append(f"{format_bytes(outcome.decoded_bytes)} decoded")
    console.print(f"{', '.join(what)} in {outcome.seconds:.1f} s: snapshot {outcome.snapshot_id}")
    if outcome.attempts > 1:
        console.print(f"{outcome.attempts} attempts, because others committed meanwhile")
    if outcome.authorisation:
        console.print(outcome.authorisation, markup=False)


def _named(failure: SourceFailure) -> str:
    """Why a source cannot be read; most reasons name it already."""
    return failure.reason if failure.file.url in failure.reason else f"{failure.file.url}: {failure.reason}"
