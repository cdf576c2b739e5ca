"""The commands for maintenance: expire, gc, compact, materialize, rewrite-manifests, verify."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from icefloe.cli.console import Bars, stdout
from icefloe.cli.options import (
    ArrayPattern,
    Authorize,
    ChunkBox,
    DryRun,
    Json,
    Message,
    Repo,
    SparkOptions,
    StorageOptions,
    Texts,
    WorkBranch,
    Yes,
    confirm,
    find_snapshot,
    open_repository,
    parse_age,
    parse_chunk_box,
    parse_numbers,
    parse_span,
    storage_at,
)
from icefloe.cli.output import print_json
from icefloe.display.card import format_count
from icefloe.errors import FormatError, InvalidInputError, RepositoryNotFoundError
from icefloe.maintenance.compact import CompactionPlan
from icefloe.maintenance.expire import RetentionRule
from icefloe.maintenance.verify_checks import VerifyReport
from icefloe.model.status import Damage
from icefloe.repository import Repository


def expire(
    repo: Repo,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Expire snapshots older than this: 30d, 12h, 2w, or a time."),
    ] = None,
    retain_last: Annotated[
        int | None,
        typer.Option("--retain-last", metavar="COUNT", min=1, help="Keep this many snapshots of each branch and tag."),
    ] = None,
    rule: Annotated[
        Texts,
        typer.Option(
            "--rule",
            metavar="REF=KEEP",
            help="What to keep of matching refs: branch:main=90d, rel-*=last:10, tag:v*=forever. Can be repeated.",
        ),
    ] = None,
    snapshot: Annotated[
        Texts,
        typer.Option(
            "--snapshot", "-s", metavar="ID", help="Expire this snapshot, or the range OLD..NEW. Can be repeated."
        ),
    ] = None,
    delete_branches: Annotated[bool, typer.Option("--delete-branches", help="Also delete expired branches.")] = False,
    delete_tags: Annotated[bool, typer.Option("--delete-tags", help="Also delete expired tags.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Remove old snapshots from history.

    The files of expired snapshots stay until `gc` deletes them.

    Examples
    --------
    icefloe expire weather --older-than 90d --dry-run
    icefloe expire weather --rule 'main=last:10+90d'
    """
    repository = open_repository(repo, options)
    plan = repository.plan_expiry(
        parse_age(older_than) if older_than else None,
        retain_last=retain_last,
        rules=[parse_rule(each) for each in rule or ()],
        snapshots=[each for text in snapshot or () for each in _named(repository, text)],
        delete_expired_branches=delete_branches,
        delete_expired_tags=delete_tags,
    )
    if not dry_run:
        if plan.expired:
            count = format_count(len(plan.expired), "snapshot")
            confirm(f"Remove {count} from the history of {repository.storage.url}?", yes=yes, json=json)
        with Bars() as bars:
            repository.apply_expiry(plan, progress=bars.report)
    if json:
        print_json(
            {
                "dry_run": dry_run,
                "expired": [info.id for info in plan.expired],
                "kept": plan.kept,
                "deleted_branches": sorted(plan.change.branches),
                "deleted_tags": sorted(plan.change.tags),
            }
        )
    else:
        stdout().print(str(plan) if dry_run else str(plan).replace(" to expire", " expired"), markup=False)


def parse_rule(text: str) -> RetentionRule:
    """A rule as REF=KEEP, where KEEP is `forever`, `last:10`, `90d`, or several joined by `+`."""
    pattern, equals, keep = text.rpartition("=")
    if not equals or not pattern or not keep:
        raise typer.BadParameter(f"{text!r} is not REF=KEEP", param_hint="--rule")
    keep_for, keep_last, forever = None, None, False
    for part in keep.split("+"):
        if part == "forever":
            forever = True
        elif part.startswith("last:") and part[5:].isdigit():
            keep_last = int(part[5:])
        else:
            keep_for = parse_span(part)
    return RetentionRule(pattern, keep_for, keep_last, forever)


def _named(repository: Repository, text: str) -> list[str]:
    old, dots, new = text.partition("..")
    if not dots:
        return [find_snapshot(repository, text)]
    oldest, newest = find_snapshot(repository, old), find_snapshot(repository, new)
    found = []
    for info in repository.ancestry(snapshot_id=newest):
        found.append(info.id)
        if info.id == oldest:
            return found
    raise typer.BadParameter(f"{old} is not an ancestor of {new}", param_hint="--snapshot")


def gc(
    repo: Repo,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Only delete objects older than this. Choose a value longer than your longest-running write.",
        ),
    ] = "1d",
    created_after: Annotated[
        str | None,
        typer.Option(
            "--created-after", metavar="TIME", help="Only delete objects newer than this time, for example 2024-05-01."
        ),
    ] = None,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Continue where the last incremental run ended.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Delete unreachable objects.

    An object is unreachable if it cannot be reached from a branch or tag.

    Examples
    --------
    icefloe gc weather --dry-run
    icefloe gc s3://bucket/weather --older-than 7d --incremental
    """
    repository = open_repository(repo, options)
    after = None if created_after is None else parse_age(created_after)
    if isinstance(after, dt.timedelta):
        raise typer.BadParameter(f"{created_after!r} is not a time", param_hint="--created-after")
    age = parse_age(older_than)
    if not dry_run:
        question = f"Delete unreachable objects of {repository.storage.url}? --dry-run lists how many."
        confirm(question, yes=yes, json=json)
    with Bars() as bars:
        if dry_run:
            plan = repository.plan_garbage_collection(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            summary, text = plan.summary(), str(plan)
        else:
            summary = repository.garbage_collect(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            text = f"Deleted {summary}\n{summary.judged()}"
    if json:
        facts = dataclasses.asdict(summary)
        facts["cutoff"] = None if summary.cutoff is None else summary.cutoff.astimezone(dt.UTC).isoformat()
        print_json({"dry_run": dry_run, **facts})
    else:
        stdout().print(text, markup=False)


def compact(
    repo: Repo,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    hilbert: Annotated[bool, typer.Option("--hilbert", help="Order chunks along a Hilbert curve.")] = False,
    unpack: Annotated[bool, typer.Option("--unpack", help="Store each packed chunk as a separate object.")] = False,
    materialize: Annotated[
        bool, typer.Option("--materialize", help="Copy virtual chunks into the repository instead.")
    ] = False,
    merge: Annotated[
        str | None,
        typer.Option("--merge", metavar="DIM=LENGTH", help="Merge small chunks along a dimension, up to this length."),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", metavar="CELLS", help="Do not merge the chunks of this number of last cells.")
    ] = 0,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Pack small chunks into larger objects, or merge them into larger chunks.

    Packs with unused bytes are rewritten. The values of arrays do not change.

    Examples
    --------
    icefloe compact weather --dry-run
    icefloe compact weather --merge time=720 --keep 48
    """
    repository = open_repository(repo, options)
    plan = repository.plan_compaction(
        branch,
        arrays=arrays,
        region=parse_chunk_box(region),
        order="hilbert" if hilbert else "chunk",
        unpack=unpack,
        materialize=materialize,
        merge=None if merge is None else parse_numbers([merge], "--merge"),
        keep=keep,
    )
    _apply_compaction(repository, plan, dry_run=dry_run, json=json)


def _apply_compaction(repository: Repository, plan: CompactionPlan, *, dry_run: bool, json: bool) -> None:
    """Print the plan, or apply it and print the result."""
    if dry_run:
        if json:
            print_json({"dry_run": True, "chunks": plan.chunks, "bytes": plan.size_bytes})
        else:
            stdout().print(str(plan), markup=False)
        return
    with Bars() as bars:
        summary = repository.apply_compaction(plan, progress=bars.report)
    if json:
        print_json({"dry_run": False, **dataclasses.asdict(summary)})
    else:
        stdout().print(f"Wrote {summary}", markup=False)


def materialize(
    repo: Repo,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    authorize: Authorize = None,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Copy virtual chunks into the repository.

    Afterwards, the branch no longer needs the files of these chunks.

    Examples
    --------
    icefloe materialize weather --authorize s3://archive/era5/
    """
    repository = open_repository(repo, options, authorize)
    plan = repository.plan_compaction(branch, arrays=arrays, region=parse_chunk_box(region), materialize=True)
    _apply_compaction(repository, plan, dry_run=dry_run, json=json)


def rewrite_manifests(
    repo: Repo,
    branch: WorkBranch = "main",
    message: Message = "Rewrite manifests",
    amend: Annotated[
        bool, typer.Option("--amend", help="Replace the newest commit instead of adding a commit.")
    ] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Rewrite the manifests of a branch.

    The new manifests follow the current configuration.

    Examples
    --------
    icefloe rewrite-manifests weather --dry-run
    icefloe rewrite-manifests weather --branch experiment --amend
    """
    repository = open_repository(repo, options)
    if dry_run:
        plan = repository.plan_rewrite_manifests(branch)
        if json:
            print_json({"dry_run": True, "to_write": len(plan.outputs), "to_read": len(plan.fetch)})
        else:
            stdout().print(str(plan), markup=False)
        return
    method: Literal["amend", "new_commit"] = "amend" if amend else "new_commit"
    with Bars() as bars:
        snapshot_id = repository.rewrite_manifests(
            message or "", branch=branch, commit_method=method, progress=bars.report
        )
    if json:
        print_json({"dry_run": False, "snapshot_id": snapshot_id})
    else:
        stdout().print(f"Branch {branch} at {snapshot_id}", markup=False)


def verify(
    repo: Repo,
    decode: Annotated[bool, typer.Option("--decode", help="Read and decode every chunk at branches and tags.")] = False,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Compare transaction logs with snapshots.")] = True,
    virtual: Annotated[bool, typer.Option("--virtual/--no-virtual", help="Check the files of virtual chunks.")] = True,
    sources: Annotated[
        bool, typer.Option("--sources", help="Check every virtual reference against its file, and report by file.")
    ] = False,
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", help="With --sources, how many chunks per array and file to decode."),
    ] = 1,
    branch: Annotated[
        str | None,
        typer.Option("--branch", help="With --sources, only this branch.  [default: all branches and tags]"),
    ] = None,
    engine: Annotated[
        Literal["local", "spark"],
        typer.Option(
            "--engine",
            help="With --sources, run in this process or as Spark tasks.  [default: local]",
            show_default=False,
        ),
    ] = "local",
    spark: SparkOptions = SparkOptions(),
    authorize: Authorize = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair damage that has only one possible repair.")] = False,
    tip: Annotated[
        Texts,
        typer.Option(
            "--tip",
            metavar="BRANCH=SNAPSHOT",
            help="With --repair, the position of a branch whose file is lost. Can be repeated.",
        ),
    ] = None,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Check that all files exist and are intact.

    The exit code is 1 if a file is missing or damaged.

    Examples
    --------
    icefloe verify weather
    icefloe verify weather --repair --tip main=7QX4
    """
    if sources:
        _verify_sources(open_repository(repo, options, authorize), branch, sample, json, engine, spark)
        return
    storage = storage_at(repo, options)
    try:
        repository = open_repository(repo, options, authorize)
        found: tuple[Damage, ...] = ()
        if tip and repair and not dry_run:
            found = Repository.recover(storage, parse_tips(tip))
    except (FormatError, RepositoryNotFoundError) as error:
        # The file with the positions of the branches cannot be read. It must be recovered first.
        found = Repository.recover(storage, parse_tips(tip or ()), dry_run=dry_run or not repair)
        if not found:
            raise
        if not repair or dry_run or not all(damage.repairable for damage in found):
            _print(VerifyReport(found, {"refs": len(found)}), json)
            raise typer.Exit(1) from error
        repository = open_repository(repo, options, authorize)
    with Bars() as bars:
        report = repository.verify(
            logs=logs, decode=decode, virtual=virtual, repair=repair and not dry_run, progress=bars.report
        )
    if found and not json:
        stdout().print(f"recovered: {VerifyReport(found, {'refs': len(found)})}", markup=False)
    _print(report, json)
    repairable = sum(damage.repairable for damage in report.damages)
    if repair and dry_run and repairable and not json:
        stdout().print(f"{format_count(repairable, 'damage')} to repair", markup=False)
    if not report.is_clean:
        raise typer.Exit(1)


def _verify_sources(
    repository: Repository, branch: str | None, sample: int, json: bool, engine: str, spark: SparkOptions
) -> None:
    if engine == "spark" or spark.master is not None:
        from icefloe.spark.maintenance import verify_sources  # noqa: PLC0415 - it loads Spark

        report = verify_sources(spark.session(quick_start=True), repository, branch=branch, sample=sample)
    else:
        with Bars() as bars:
            report = repository.verify_sources(branch=branch, sample=sample, progress=bars.report)
    if json:
        files = report.files.to_pylist()
        print_json({"clean": report.is_clean, "files": files, "counts": report.counts, "references": report.references})
    else:
        stdout().print(str(report), markup=False)
    if not report.is_clean:
        raise typer.Exit(1)


def _print(report: VerifyReport, json: bool) -> None:
    if json:
        print_json(
            {
                "clean": report.is_clean,
                "checked": report.checked,
                "damages": [
                    {
                        "kind": damage.kind.value,
                        "what": damage.what,
                        "key": damage.key,
                        "detail": damage.detail,
                        "snapshot_id": damage.snapshot_id,
                        "array": damage.array,
                        "refs": list(damage.refs),
                        "repairable": damage.repairable,
                    }
                    for damage in report.damages
                ],
                "orphans": report.orphans,
                "orphan_bytes": report.orphan_bytes,
                "unchecked": [
                    {"reason": each.reason, "files": each.files, "chunks": each.chunks, "example": each.example}
                    for each in report.unchecked
                ],
            }
        )
    else:
        stdout().print(str(report), markup=False)


def parse_tips(given: Sequence[str]) -> dict[str, str]:
    """BRANCH=SNAPSHOT as a dictionary."""
    tips = {}
    for each in given:
        branch, equals, snapshot = each.rpartition("=")
        if not equals or not branch or not snapshot:
            raise InvalidInputError(f"--tip {each!r}: expected BRANCH=SNAPSHOT")
        tips[branch] = snapshot
    return tips
