"""`icefloe verify`: check that everything is there and is what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun
from icefloe.cli.opening import open_repository, storage_at
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars
from icefloe.display.amounts import format_count
from icefloe.errors import FormatError, InvalidInputError, RepositoryNotFoundError
from icefloe.maintenance.verify_report import Damage, VerifyReport
from icefloe.repository import Repository


def register(app: typer.Typer) -> None:
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
        print_json({
            "clean": report.is_clean,
            "checked": report.checked,
            "damages": [
                {
                    "kind": damage.kind.value, "what": damage.what, "key": damage.key, "detail": damage.detail,
                    "snapshot_id": damage.snapshot_id, "array": damage.array, "refs": list(damage.refs),
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
        })  # fmt: skip
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
