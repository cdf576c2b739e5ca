"""What a generation of the format can do, asked instead of its name."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SpecVersion(enum.Enum):
    """The on-disk generations, by the name a user gives when creating a repository."""

    DATASET = "dataset"
    STORE = "store"
    REPOSITORY = "repository"
    ICECHUNK1 = "icechunk1"
    ICECHUNK2 = "icechunk2"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities and limits the engine above the format room asks for."""

    object_id_bytes: int = 12
    node_id_is_counter: bool = False
    """Node ids are numbers below 2**32 (as 8 big-endian bytes), small where possible, instead of random bytes."""
    attributes_files: bool = False
    transaction_logs: bool = True
    """False: diff and conflicts come from comparing snapshots."""
    boxes_in_logs: bool = False
    """Logs can name boxes of chunks; False: every coordinate of a distributed write has to be listed."""
    history_in_snapshot: bool = False
    """Snapshots carry their newest ancestors."""
    deletable_tags: bool = False
    branch_reset_keeps_history: bool = True
    repository_metadata: bool = False
    repository_status: bool = False
    operations_log: bool = False
    feature_flags: bool = False
    moves_need_own_commit: bool = False
    """The generation's own readers expect a commit with moves to hold nothing else."""
    any_chunk_grid: bool = True
    """False: only regular chunk grids can be stored."""
    compressed_locations: bool = False
    checksums: bool = True
    """Virtual references can carry an ETag or a last-modified time."""
    configuration: bool = True
    """The repository can keep its configuration."""
    max_chunk_index: int = 2**32 - 1
