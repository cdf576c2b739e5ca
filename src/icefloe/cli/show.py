"""`icefloe show`: one commit and what it changed."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import AsOf, Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.commit_facts import commit_json, print_commit
from icefloe.cli.diff_facts import diff_json, print_diff
from icefloe.cli.opening import Point, open_repository, resolve_revision
from icefloe.cli.output import print_json, stdout, styled
from icefloe.display.amounts import format_bytes, format_count
from icefloe.model.diff import Diff


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    place: Place,
    revision: Annotated[
        str | None, typer.Argument(metavar="[REVISION]", help="Branch, tag or snapshot id (default: main).")
    ] = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="List the coordinates of every changed chunk.")] = False,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """One commit: who, when, why, and what it changed."""
    repository = open_repository(place, options)
    if revision is not None:
        snapshot_id = resolve_revision(repository, revision)
    else:
        snapshot_id = Point(branch, tag, snapshot, as_of).snapshot_id(repository)
    info = repository.lookup_snapshot(snapshot_id)
    manifests = repository.list_manifest_files(snapshot_id)
    # What a file says of its parent may be outdated: histories can be rewritten when snapshots expire.
    parent = next(repository.ancestry(snapshot_id=snapshot_id)).parent_id
    changes = Diff() if parent is None else repository.diff(from_snapshot_id=parent, to_snapshot_id=snapshot_id)
    total_bytes = sum(manifest.size_bytes for manifest in manifests)
    total_refs = sum(manifest.num_chunk_refs for manifest in manifests)
    if json:
        about = {"files": len(manifests), "bytes": total_bytes, "chunk_refs": total_refs}
        changed = diff_json(changes, chunks=chunks)
        print_json({**commit_json(info), "parent_id": parent, "manifests": about, "changes": changed})
        return
    console = stdout()
    print_commit(console, info)
    console.print(
        styled(
            f"\n[dim]{format_count(len(manifests), 'manifest')}, {format_bytes(total_bytes)}, "
            f"{format_count(total_refs, 'chunk')}; parent {parent or 'none'}[/]\n"
        )
    )
    print_diff(console, changes, chunks=chunks)
