"""`icefloe info`: what a repository is and holds, at a glance."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from icefloe.cli.arguments import AsOf, Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.commit_facts import commit_json
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.display.amounts import first_line, format_bytes, format_count, format_time
from icefloe.formats.config_document import encode_config
from icefloe.model.nodes import ArrayNode
from icefloe.repository import Repository
from icefloe.session.session import Session

_MOST_NAMES = 8


def register(app: typer.Typer) -> None:
    app.command("info")(info)


def info(
    place: Place,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """What a repository is and holds, at a glance."""
    repository = open_repository(place, options)
    facts = _facts(repository, Point(branch, tag, snapshot, as_of).session(repository))
    if json:
        print_json(facts)
    else:
        stdout().print(_grid(facts))


def _facts(repository: Repository, session: Session) -> dict[str, Any]:
    base = session.workspace.base
    arrays = sum(isinstance(node, ArrayNode) for node in base.nodes.values())
    containers = repository.config.virtual_chunk_containers or {}
    return {
        "url": repository.storage.url,
        "spec_version": repository.spec_version.value,
        "branches": sorted(repository.list_branches(), key=lambda name: (name != "main", name)),
        "tags": sorted(repository.list_tags()),
        "snapshot": commit_json(base.info),
        "groups": len(base.nodes) - arrays,
        "arrays": arrays,
        "manifests": len(base.manifests),
        "manifest_bytes": sum(manifest.size_bytes for manifest in base.manifests.values()),
        "chunk_refs": sum(manifest.num_chunk_refs for manifest in base.manifests.values()),
        "virtual_chunk_containers": sorted(containers),
        "config": encode_config(repository.config),
    }


def _grid(facts: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    commit = facts["snapshot"]
    content = f"{format_count(facts['groups'], 'group')}, {format_count(facts['arrays'], 'array')}"
    manifests = (
        f"{format_count(facts['manifests'], 'manifest')}, {format_bytes(facts['manifest_bytes'])}, "
        f"{format_count(facts['chunk_refs'], 'chunk reference')}"
    )
    grid.add_row("repository", Text(facts["url"], style="bold"))
    grid.add_row("generation", facts["spec_version"])
    grid.add_row("branches", _names(facts["branches"], "green"))
    grid.add_row("tags", _names(facts["tags"], "cyan"))
    grid.add_row("snapshot", Text.assemble((commit["id"], "yellow"), f"  {first_line(commit['message'])}"))
    grid.add_row("written", format_time(commit["written_at"]))
    grid.add_row("content", content)
    grid.add_row("manifests", manifests)
    if facts["virtual_chunk_containers"]:
        grid.add_row("containers", Text("\n".join(facts["virtual_chunk_containers"])))
    if facts["config"]:
        grid.add_row("configured", Text(", ".join(sorted(facts["config"]))))
    return grid


def _names(names: list[str], style: str) -> Text:
    shown = ", ".join(names[:_MOST_NAMES]) or "none"
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
    return Text.assemble((shown, style if names else "dim"), (more, "dim"))
