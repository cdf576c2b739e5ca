"""What a verification found: damage by kind, object, ref and snapshot."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from icefloe.display.amounts import format_bytes, format_count
from icefloe.errors import printable
from icefloe.ids import ObjectId

_SHOWN = 50


class DamageKind(enum.Enum):
    """What is wrong with an object."""

    MISSING = "missing"
    """Something names it, and it is not there."""
    UNREADABLE = "unreadable"
    """It is there, and is not what its name says."""
    WRONG_ID = "wrong id"
    """It says that it is another one."""
    WRONG_SIZE = "wrong size"
    """It has another size, or number of references, than a snapshot says."""
    TOO_SHORT = "too short"
    """References point behind its end."""
    WRONG_EXTENTS = "wrong extents"
    """A manifest holds chunks where the snapshot says it holds none: they are never found."""
    MISQUOTED = "misquoted"
    """Snapshots quote an ancestor that is no longer there."""
    LOG_DIFFERS = "log differs"
    """A transaction log does not tell what its snapshot changed."""
    UNDECODABLE = "undecodable"
    """The bytes of a chunk do not decode."""
    NO_CONTAINER = "no container"
    """Virtual chunks lie where no configured container is."""
    CHANGED = "changed"
    """A file of virtual chunks is no longer the one that they were made for."""


REPAIRABLE = frozenset({DamageKind.WRONG_SIZE, DamageKind.MISQUOTED, DamageKind.LOG_DIFFERS})


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong."""

    kind: DamageKind
    what: str
    """snapshot, manifest, attributes, transaction log, chunk, virtual file, list, ref"""
    key: str
    """The object in the storage, or the name of the ref."""
    detail: str
    snapshot_id: ObjectId | None = None
    """A snapshot that it is part of."""
    array: str | None = None
    refs: tuple[str, ...] = ()
    """Branches and tags that lead to it."""
    repairable: bool = False

    def __str__(self) -> str:
        where = f" of {self.array}" if self.array else ""
        which = f", snapshot {self.snapshot_id}" if self.snapshot_id and self.snapshot_id not in self.key else ""
        refs = f" ({', '.join(self.refs)})" if self.refs else ""
        return printable(f"{self.what} {self.kind.value}: {self.key}{where}{which}{refs}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Files of virtual chunks that could not be looked at, for one reason."""

    reason: str
    files: int
    chunks: int
    example: str

    def __str__(self) -> str:
        what = f"{format_count(self.files, 'virtual file')} with {format_count(self.chunks, 'chunk')}"
        return printable(f"not checked: {what}, {self.example} among them: {self.reason}")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Everything that was looked at, and what is wrong with it."""

    damages: tuple[Damage, ...]
    checked: Mapping[str, int]
    orphans: Mapping[str, int] = field(default_factory=dict)
    """Objects that nothing names, per kind: garbage, or the work of a writer that is under way."""
    orphan_bytes: int = 0
    unchecked: tuple[Unchecked, ...] = ()
    """Files of virtual chunks whose containers are not authorised, or that could not be reached."""

    @property
    def is_clean(self) -> bool:
        return not self.damages

    def of_kind(self, kind: DamageKind) -> Sequence[Damage]:
        """Damage of one kind."""
        return [damage for damage in self.damages if damage.kind is kind]

    def __str__(self) -> str:
        looked = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self.checked.items() if count)
        lines = [f"checked {looked}: {'clean' if self.is_clean else format_count(len(self.damages), 'damage')}"]
        lines += [f"  {damage}" for damage in self.damages[:_SHOWN]]
        if len(self.damages) > _SHOWN:
            lines.append(f"  ... and {len(self.damages) - _SHOWN:,} more")
        lines += [str(each) for each in self.unchecked]
        unused = sum(self.orphans.values())
        if unused:
            lines.append(
                f"{format_count(unused, 'object')} ({format_bytes(self.orphan_bytes)}) that nothing names; "
                "garbage collection removes them when they are old enough"
            )
        return "\n".join(lines)
