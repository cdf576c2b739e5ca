"""The verbs of maintenance: expire, gc, compact, materialize, rewrite-manifests, verify."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from icefloe.cli.options import (
    ArrayPattern,
    ChunkBox,
    DryRun,
    Json,
    Place,
    StorageOptions,
    WorkBranch,
    find_snapshot,
    open_repository,
    parse_age,
    parse_span,
    storage_at,
)
from icefloe.cli.output import Bars, print_json, stdout
from icefloe.display.card import format_count
from icefloe.errors import FormatError, InvalidInputError, RepositoryNotFoundError
from icefloe.maintenance.compact import CompactionPlan
from icefloe.maintenance.expire import RetentionRule
from icefloe.maintenance.verify_checks import Damage, VerifyReport
from icefloe.repository import Repository


def register_expire(app: typer.Typer) -> None:
    app.command("expire")(expire)


def expire(
    place: Place,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="30d, 12h, 2w, or a time.")
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", metavar="COUNT", min=1, help="Keep so many of every ref.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="REF=KEEP",
            help="What is kept of some refs: branch:main=90d, rel-*=last:10, tag:v*=forever; can be repeated.",
        ),
    ] = None,
    snapshot: Annotated[
        list[str] | None,
        typer.Option("--snapshot", "-s", metavar="ID", help="Exactly this one, or a range OLD..NEW; can be repeated."),
    ] = None,
    delete_branches: Annotated[bool, typer.Option("--delete-branches", help="Expired branches go, too.")] = False,
    delete_tags: Annotated[bool, typer.Option("--delete-tags", help="Expired tags go, too.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Take old snapshots out of history; `gc` then frees their files."""
    repository = open_repository(place, options)
    plan = repository.plan_expiry(
        parse_age(older_than) if older_than else None,
        retain_last=retain_last,
        rules=[parse_rule(each) for each in rule or ()],
        snapshots=[each for text in snapshot or () for each in _named(repository, text)],
        delete_expired_branches=delete_branches,
        delete_expired_tags=delete_tags,
    )
    if not dry_run:
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
        stdout().print(str(plan), markup=False)


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
    raise typer.BadParameter(f"{old} is no ancestor of {new}", param_hint="--snapshot")


def register_gc(app: typer.Typer) -> None:
    app.command("gc")(gc)


def gc(
    place: Place,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Judge objects of this age by the store's clock: longer than any writer is under way.",
        ),
    ] = "1d",
    created_after: Annotated[
        str | None, typer.Option("--created-after", metavar="TIME", help="Leave older objects alone.")
    ] = None,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Go on where the last incremental run ended.")
    ] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Delete what no branch or tag leads to and what is old enough."""
    repository = open_repository(place, options)
    after = None if created_after is None else parse_age(created_after)
    if isinstance(after, dt.timedelta):
        raise typer.BadParameter(f"{created_after!r} is not a time", param_hint="--created-after")
    age = parse_age(older_than)
    with Bars() as bars:
        if dry_run:
            plan = repository.plan_garbage_collection(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            summary, told = plan.summary(), str(plan)
        else:
            summary = repository.garbage_collect(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            told = f"Deleted {summary}\n{summary.judged()}"
    if json:
        facts = dataclasses.asdict(summary)
        facts["cutoff"] = None if summary.cutoff is None else summary.cutoff.astimezone(dt.UTC).isoformat()
        print_json({"dry_run": dry_run, **facts})
    else:
        stdout().print(told, markup=False)


def register_compact(app: typer.Typer) -> None:
    app.command("compact")(compact)


def compact(
    place: Place,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    hilbert: Annotated[bool, typer.Option("--hilbert", help="Lay chunks out along a Hilbert curve.")] = False,
    unpack: Annotated[bool, typer.Option("--unpack", help="Make packed chunks objects of their own.")] = False,
    materialize: Annotated[bool, typer.Option("--materialize", help="Copy virtual chunks in instead.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Pack small chunks together, drop dead bytes, or undo that; data stay as they are."""
    repository = open_repository(place, options)
    plan = repository.plan_compaction(
        branch,
        arrays=arrays,
        region=None if region is None else parse_region(region),
        order="hilbert" if hilbert else "chunk",
        unpack=unpack,
        materialize=materialize,
    )
    carry_out(repository, plan, dry_run=dry_run, json=json)


def carry_out(repository: Repository, plan: CompactionPlan, *, dry_run: bool, json: bool) -> None:
    """Show a plan, or do it and tell what was done."""
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


def parse_region(text: str) -> list[tuple[int, int]]:
    try:
        pairs = [each.split(":") for each in text.split(",")]
        return [(int(first), int(end)) for first, end in pairs]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not FIRST:END per dimension", param_hint="--region") from error


def register_materialize(app: typer.Typer) -> None:
    app.command("materialize")(materialize)


def materialize(
    place: Place,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    authorize: Annotated[
        list[str] | None,
        typer.Option("--authorize", metavar="PREFIX", help="Container that may be read; can be repeated."),
    ] = None,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Copy virtual chunks into a repository, so that it no longer needs the files they lie in."""
    repository = open_repository(place, options, dict.fromkeys(authorize or ()))
    box = None if region is None else parse_region(region)
    plan = repository.plan_compaction(branch, arrays=arrays, region=box, materialize=True)
    carry_out(repository, plan, dry_run=dry_run, json=json)


def register_rewrite_manifests(app: typer.Typer) -> None:
    app.command("rewrite-manifests")(rewrite_manifests)


def rewrite_manifests(
    place: Place,
    branch: WorkBranch = "main",
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="Of the commit.")
    ] = "Rewrite manifests",
    amend: Annotated[bool, typer.Option("--amend", help="Replace the newest commit instead of adding one.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Pack the manifests of a branch anew, after the configuration."""
    repository = open_repository(place, options)
    if dry_run:
        plan = repository.plan_rewrite_manifests(branch)
        if json:
            print_json({"dry_run": True, "to_write": len(plan.outputs), "to_read": len(plan.fetch)})
        else:
            stdout().print(str(plan), markup=False)
        return
    method: Literal["amend", "new_commit"] = "amend" if amend else "new_commit"
    with Bars() as bars:
        snapshot_id = repository.rewrite_manifests(message, branch=branch, commit_method=method, progress=bars.report)
    if json:
        print_json({"dry_run": False, "snapshot_id": snapshot_id})
    else:
        stdout().print(f"Branch {branch} at {snapshot_id}", markup=False)


def register_verify(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    place: Place,
    decode: Annotated[bool, typer.Option("--decode", help="Read and decode every chunk at branches and tags.")] = False,
    logs: Annotated[bool, typer.Option(help="Compare transaction logs with what their snapshots changed.")] = True,
    virtual: Annotated[bool, typer.Option(help="Look whether files of virtual chunks are there and unchanged.")] = True,
    authorize: Annotated[
        list[str] | None,
        typer.Option("--authorize", metavar="PREFIX", help="Look at the files of virtual chunks below it."),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what needs no guess.")] = False,
    tip: Annotated[
        list[str] | None,
        typer.Option("--tip", metavar="BRANCH=SNAPSHOT", help="Where a branch is to stand whose files do not tell."),
    ] = None,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Check that all a repository holds is there and is whole; exits with 1 when it is not."""
    storage = storage_at(place, options)
    try:
        repository = open_repository(place, options, dict.fromkeys(authorize or ()) or None)
        found: tuple[Damage, ...] = ()
        if tip and repair and not dry_run:
            found = Repository.recover(storage, parse_tips(tip))
    except (FormatError, RepositoryNotFoundError) as error:
        # What says where branches stand cannot be read: that comes first.
        found = Repository.recover(storage, parse_tips(tip or ()), dry_run=dry_run or not repair)
        if not found:
            raise
        if not repair or dry_run or not all(damage.repairable for damage in found):
            _print(VerifyReport(found, {"refs": len(found)}), json)
            raise typer.Exit(1) from error
        repository = open_repository(place, options, dict.fromkeys(authorize or ()) or None)
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
    """Branches and where they are to stand."""
    tips = {}
    for each in given:
        branch, equals, snapshot = each.rpartition("=")
        if not equals or not branch or not snapshot:
            raise InvalidInputError(f"--tip {each!r}: expected BRANCH=SNAPSHOT")
        tips[branch] = snapshot
    return tips
