"""What a generation of the format can do. Code asks for capabilities, not for names of generations."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SpecVersion(enum.Enum):
    """The on-disk generations, oldest first, by the name that is given when a repository is created.

    The official package has numbers for the generations that it writes: `SpecVersion.v2`, `SpecVersion(2)` and
    `spec_version >= 2` have the same meaning here. Every earlier generation is below 1.
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

    def __repr__(self) -> str:
        if self.number is None:
            return f"<SpecVersion.{self.name}: {self.value!r}>"
        return f"SpecVersion.v{self.number}{' (current)' if self is SpecVersion.current() else ''}"

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
    """Return the generations that this library reads and writes.

    Returns
    -------
    list of SpecVersion
        The generations, newest first.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.supported_spec_versions()[0].value
    'icechunk2'
    """
    return list(reversed(SpecVersion))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features and limits of a generation of the format.

    Parameters
    ----------
    object_id_bytes
        The length of the ids of objects.
    node_id_is_counter
        Whether node ids are small numbers below 2**32, as 8 big-endian bytes. Otherwise they are random bytes.
    attributes_files
        Whether large attributes are stored in files of their own.
    transaction_logs
        Whether every commit has a transaction log. Otherwise diffs and conflicts are found by comparing snapshots.
    boxes_in_logs
        Whether transaction logs can list boxes of chunks. Otherwise they list every chunk of a distributed write.
    history_in_snapshot
        Whether a snapshot contains information about its latest ancestors.
    manifest_lists
        Whether the manifests of large arrays are stored in files of their own.
    deletable_tags
        Whether tags can be deleted.
    repository_metadata
        Whether the repository as a whole has metadata.
    repository_status
        Whether the repository has a status, such as read-only.
    operations_log
        Whether the repository has an operations log.
    feature_flags
        Whether features of the repository can be disabled.
    any_chunk_grid
        Whether every kind of chunk grid can be stored. Otherwise only regular grids.
    any_key_encoding
        Whether every chunk key encoding can be stored. Otherwise only the default, with keys such as `a/c/0/1`.
    container_locations
        Whether virtual references can refer to a container by name. Otherwise they contain absolute URLs.
    checksums
        Whether virtual references can have an ETag or a last-modified time.
    max_chunks_per_dimension
        The largest number of chunks along a dimension.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repo.context.capabilities.transaction_logs
    True
    """

    object_id_bytes: int = 12
    node_id_is_counter: bool = False
    attributes_files: bool = False
    transaction_logs: bool = True
    boxes_in_logs: bool = False
    history_in_snapshot: bool = False
    manifest_lists: bool = False
    deletable_tags: bool = False
    repository_metadata: bool = False
    repository_status: bool = False
    operations_log: bool = False
    feature_flags: bool = False
    any_chunk_grid: bool = True
    any_key_encoding: bool = True
    container_locations: bool = True
    checksums: bool = True
    max_chunks_per_dimension: int = 2**32 - 1
