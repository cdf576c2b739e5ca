"""The command `info`. It imports no more than it needs, because it is short and called often."""

from __future__ import annotations

from typing import Any

from icefloe.blocking import run_blocking
from icefloe.cli.options import Json, Repo, RevisionOptions, StorageOptions, open_repository
from icefloe.cli.output import Pieces, commit_json, print_facts, print_json
from icefloe.display.card import first_line, format_bytes, format_count, format_time
from icefloe.formats.config_document import encode_config
from icefloe.model.snapshot import ArrayNode
from icefloe.repository import Repository
from icefloe.session.session import Session

_MOST_NAMES = 8


def info(
    repo: Repo, at: RevisionOptions = RevisionOptions(), options: StorageOptions = None, json: Json = False
) -> None:
    """Show a summary of a repository.

    Examples
    --------
    icefloe info weather
    icefloe info s3://bucket/weather --tag v1 -o region=eu-west-1
    """
    repository = open_repository(repo, options)
    facts = _facts(repository, at.session(repository))
    print_json(facts) if json else print_facts(_rows(facts))


def _facts(repository: Repository, session: Session) -> dict[str, Any]:
    base = run_blocking(session.state.fetch_base())
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


def _rows(facts: dict[str, Any]) -> list[tuple[str, Pieces]]:
    commit = facts["snapshot"]
    content = f"{format_count(facts['groups'], 'group')}, {format_count(facts['arrays'], 'array')}"
    manifests = (
        f"{format_count(facts['manifests'], 'manifest')}, {format_bytes(facts['manifest_bytes'])}, "
        f"{format_count(facts['chunk_refs'], 'chunk reference')}"
    )
    rows: list[tuple[str, Pieces]] = [
        ("repository", [(facts["url"], "bold")]),
        ("generation", [(facts["spec_version"], "")]),
        ("branches", _names(facts["branches"], "green")),
        ("tags", _names(facts["tags"], "cyan")),
        ("snapshot", [(commit["id"], "yellow"), (f"  {first_line(commit['message'])}", "")]),
        ("written", [(format_time(commit["written_at"]), "")]),
        ("content", [(content, "")]),
        ("manifests", [(manifests, "")]),
    ]
    if facts["virtual_chunk_containers"]:
        rows.append(("containers", [("\n".join(facts["virtual_chunk_containers"]), "")]))
    if facts["config"]:
        rows.append(("configured", [(", ".join(sorted(facts["config"])), "")]))
    return rows


def _names(names: list[str], style: str) -> Pieces:
    shown = ", ".join(names[:_MOST_NAMES]) or "none"
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
    return [(shown, style if names else "dim"), (more, "dim")]
