"""`icefloe rewrite-manifests`: pack the manifests of a branch anew."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun, WorkBranch
from icefloe.cli.opening import open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars


def register(app: typer.Typer) -> None:
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
