"""`icefloe convert`: a repository of one generation made one of another."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from icefloe.cli.arguments import Json, Place, StorageOptions, TargetOptions
from icefloe.cli.opening import open_repository, storage_at
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars
from icefloe.conversion.convert import convert as convert_repository
from icefloe.conversion.convert import upgrade
from icefloe.conversion.losses import LossKind
from icefloe.conversion.running import Conversion
from icefloe.conversion.verification import Verify
from icefloe.display.amounts import format_bytes, format_count


def register(app: typer.Typer) -> None:
    app.command("convert")(convert)


def convert(
    place: Place,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Empty place for the new repository.", show_default=False)
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="Generation: repository, dataset, store, icechunk1 or icechunk2."),
    ] = "icechunk2",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Convert the repository where it is; nobody else may write meanwhile.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="WORD",
            help=f"What may be lost where it does not fit: {', '.join(kind.value for kind in LossKind)}.",
        ),
    ] = None,
    verify: Annotated[
        str, typer.Option("--verify", metavar="HOW", help="model: all references; spot: also some chunks; all chunks.")
    ] = Verify.SPOT.value,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Make a repository of another generation, with all its history, elsewhere or in its place."""
    if (target is None) != in_place:
        raise typer.BadParameter("give a TARGET, or --in-place", param_hint="TARGET")
    repository = open_repository(place, options)
    words = drop or []
    with Bars() as bars:
        if target is None:
            done = upgrade(repository, to, drop=words, verify=verify, progress=bars.report, dry_run=dry_run)
        else:
            storage = storage_at(target, target_options)
            done = convert_repository(
                repository, storage, to, drop=words, verify=verify, progress=bars.report, dry_run=dry_run
            )
    if json:
        print_json(_facts(done))
    else:
        _show(done)


def _facts(done: Conversion) -> dict[str, object]:
    return {
        "source": done.source,
        "target": done.target,
        "from": done.from_version.value,
        "to": done.to_version.value,
        "converted": done.repository is not None,
        "branches": done.branches,
        "tags": done.tags,
        "snapshots": done.snapshots,
        "manifests": done.manifests,
        "chunk_objects": done.chunk_objects,
        "copied_objects": done.copied_objects,
        "copied_bytes": done.copied_bytes,
        "losses": [{"what": loss.kind.value, "count": loss.count, "examples": loss.examples} for loss in done.losses],
    }


def _show(done: Conversion) -> None:
    console = stdout()
    counted = ", ".join(
        [
            format_count(done.snapshots, "snapshot"),
            format_count(done.branches, "branch", "branches"),
            format_count(done.tags, "tag"),
            format_count(done.manifests, "manifest"),
        ]
    )
    verb = "Would convert" if done.repository is None else "Converted"
    console.print(f"{verb} {done.from_version.value} to {done.to_version.value}: {counted}")
    if done.repository is not None:
        copied = f"{format_count(done.copied_objects, 'object')} ({format_bytes(done.copied_bytes)}) copied"
        console.print(f"Chunks: {format_count(done.chunk_objects, 'object')}, {copied}. {done.target}")
    for loss in done.losses:
        console.print(Text.assemble(("lost" if done.repository else "no place for", "yellow"), f" {loss}"))
