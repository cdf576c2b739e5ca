"""`icefloe verify`: check that everything is there and is what it should be."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun
from icefloe.cli.opening import open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars
from icefloe.display.amounts import format_count


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    place: Place,
    decode: Annotated[bool, typer.Option("--decode", help="Read and decode every chunk at branches and tags.")] = False,
    logs: Annotated[bool, typer.Option(help="Compare transaction logs with what their snapshots changed.")] = True,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what needs no guess.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Check that all a repository holds is there and is whole; exits with 1 when it is not."""
    repository = open_repository(place, options)
    with Bars() as bars:
        report = repository.verify(logs=logs, decode=decode, repair=repair and not dry_run, progress=bars.report)
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
        })  # fmt: skip
    else:
        stdout().print(str(report), markup=False)
        repairable = sum(damage.repairable for damage in report.damages)
        if repair and dry_run and repairable:
            stdout().print(f"{format_count(repairable, 'damage')} to repair", markup=False)
    if not report.is_clean:
        raise typer.Exit(1)
