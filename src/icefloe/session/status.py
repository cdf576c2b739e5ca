"""The uncommitted changes of a session, as a diff."""

from __future__ import annotations

from icefloe.model.diff import Diff
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet, summarise
from icefloe.session.compare import paths_of


def diff_of_changes(base: Snapshot, changes: ChangeSet) -> Diff:
    """What a change set does to its base, by path."""
    summary = summarise(base, changes)
    present = {node.id: node.path for node in changes.added.values()}
    return Diff(
        new_groups=paths_of(summary.new.values(), arrays=False),
        new_arrays=paths_of(summary.new.values(), arrays=True),
        deleted_groups=paths_of(summary.deleted.values(), arrays=False),
        deleted_arrays=paths_of(summary.deleted.values(), arrays=True),
        updated_groups=paths_of(summary.updated.values(), arrays=False),
        updated_arrays=paths_of(summary.updated.values(), arrays=True),
        chunk_coords={
            present.get(node_id) or changes.origin[node_id]: coords for node_id, coords in summary.chunks.items()
        },
        moved_nodes=sorted(((old, node.path) for old, node in summary.moved.values()), key=lambda m: m[1].split("/")),
    )
