"""What a generation of the format can do, asked instead of its name."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SpecVersion(enum.Enum):
    """The on-disk generations, oldest first, by the name a user gives when creating a repository.

    The official package numbers the ones it writes: `SpecVersion.v2`, `SpecVersion(2)` and `spec_version >= 2` mean
    what they mean there; every earlier generation is below 1.
    """

    DATASET = "dataset"
    STORE = "store"
    REPOSITORY = "repository"
    ICECHUNK1 = "icechunk1"
    ICECHUNK2 = "icechunk2"

    v1 = ICECHUNK1
    v2 = ICECHUNK2

    @classmethod
    def _missing_(cls, value: object) -> SpecVersion | None:
        return next((version for version in cls if version.number == value), None)

    @staticmethod
    def current() -> SpecVersion:
        """The newest generation that the official package writes."""
        return SpecVersion.ICECHUNK2

    @property
    def number(self) -> int | None:
        """The number that the official package gives to the generation, if it knows it."""
        return {"icechunk1": 1, "icechunk2": 2}.get(self.value)

    @property
    def _order(self) -> int:
        return list(SpecVersion).index(self) - 2

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SpecVersion):
            return self is other
        return self.number == other if isinstance(other, int) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value if self.number is None else self.number)

    def __lt__(self, other: object) -> bool:
        return self._order < _order_of(other) if isinstance(other, SpecVersion | int) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._order <= _order_of(other) if isinstance(other, SpecVersion | int) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._order > _order_of(other) if isinstance(other, SpecVersion | int) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._order >= _order_of(other) if isinstance(other, SpecVersion | int) else NotImplemented


def _order_of(version: SpecVersion | int) -> int:
    return version if isinstance(version, int) else version._order


def supported_spec_versions() -> list[SpecVersion]:
    """Every generation that is read and written, newest first."""
    return list(reversed(SpecVersion))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities and limits of a generation. Packages above `formats` ask for these instead of its name."""

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
    repository_metadata: bool = False
    repository_status: bool = False
    operations_log: bool = False
    feature_flags: bool = False
    any_chunk_grid: bool = True
    """False: only regular chunk grids can be stored."""
    any_key_encoding: bool = True
    """False: the generation's own readers find chunks only under keys of the default encoding, such as `a/c/0/1`."""
    container_locations: bool = True
    """Virtual references can name a container instead of spelling out its address."""
    checksums: bool = True
    """Virtual references can carry an ETag or a last-modified time."""
    max_chunks_per_dimension: int = 2**32 - 1
    """Chunk coordinates are 32 bits wide in every generation."""
