"""How branches and tags are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.commit_facts import commit_json
from icefloe.cli.output import print_json, stderr, stdout, table
from icefloe.display.amounts import first_line, format_time
from icefloe.display.graph import Ref
from icefloe.model.snapshot import SnapshotInfo
from icefloe.repository import Repository
from icefloe.repository.graph import fetch_refs


def print_refs(repository: Repository, kind: Literal["branch", "tag"], json: bool) -> None:
    """All branches or all tags, each with the commit it points at."""
    refs = [ref for ref in run_blocking(fetch_refs(repository.engine)) if ref.kind == kind]
    infos = run_blocking(_fetch_infos(repository, refs))
    if json:
        print_json([{"name": ref.name, "snapshot_id": ref.snapshot_id, "commit": commit_json(info)}
                    for ref, info in zip(refs, infos, strict=True)])  # fmt: skip
        return
    if not refs:
        stderr().print(Text(f"no {kind}", style="dim"))
        return
    listing = table("name", "snapshot", "written", "message")
    for ref, info in zip(refs, infos, strict=True):
        name = Text(ref.name, style="bold green" if ref.kind == "branch" else "bold cyan")
        message = Text(first_line(info.message))
        listing.add_row(name, Text(ref.snapshot_id, style="yellow"), Text(format_time(info.written_at), "dim"), message)
    stdout().print(listing)


async def _fetch_infos(repository: Repository, refs: Sequence[Ref]) -> list[SnapshotInfo]:
    return await asyncio.gather(*(repository.engine.ledger.fetch_info(ref.snapshot_id) for ref in refs))
