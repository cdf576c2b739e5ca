"""How a commit is told, to people and to machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from icefloe.display.amounts import format_time
from icefloe.model.snapshot import SnapshotInfo


def commit_json(info: SnapshotInfo) -> dict[str, Any]:
    """A commit as JSON."""
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at,
        "message": info.message,
        "metadata": dict(info.metadata),
    }


def print_commit(console: Console, info: SnapshotInfo, names: Sequence[str] = ()) -> None:
    """A commit as git shows one: id and names, time, metadata, message."""
    head = Text.assemble(("snapshot ", "yellow"), (info.id, "yellow"))
    if names:
        head.append(f" ({', '.join(names)})", style="bold green")
    console.print(head, soft_wrap=True)
    console.print(Text.assemble(("Date:", "dim"), f"  {format_time(info.written_at)}"))
    for key, value in sorted(info.metadata.items()):
        told = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        console.print(Text.assemble((f"{key}:", "dim"), f"  {told}"), soft_wrap=True)
    console.print()
    for line in info.message.strip().splitlines():
        console.print(Text("    " + line), soft_wrap=True)
