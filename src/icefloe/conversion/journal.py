"""The object that tells of a conversion under way, so that a second run goes on where the first one ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from icefloe.errors import AlreadyExistsError, ConflictError, FormatError, ObjectNotFoundError
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.retirement import JOURNAL_KEY
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class Journal:
    """Which conversion is under way, and the numbers it gave to nodes."""

    source: SpecVersion
    target: SpecVersion
    root: ObjectId
    """The first snapshot of the source's history."""
    dropped: tuple[str, ...] = ()
    node_numbers: Mapping[NodeId, int] = field(default_factory=dict)
    salt: str = ""
    """What the names of new files are derived with, where files of an earlier conversion have the plain names."""

    def is_same_work(self, other: Journal) -> bool:
        """Whether another run does the same thing."""
        return (self.source, self.target, self.root, self.dropped) == (
            other.source, other.target, other.root, other.dropped,
        )  # fmt: skip

    def encode(self) -> bytes:
        document = {
            "what": "a conversion is under way here; `icefloe convert` with the same source and target finishes it",
            "from": self.source.value,
            "to": self.target.value,
            "root": self.root,
            "dropped": list(self.dropped),
            "salt": self.salt,
            "node_numbers": {node.hex(): number for node, number in self.node_numbers.items()},
        }
        return json.dumps(document, indent=1).encode()


def parse_journal(data: bytes) -> Journal:
    """The journal of bytes."""
    try:
        document = json.loads(data)
        return Journal(
            SpecVersion(document["from"]),
            SpecVersion(document["to"]),
            document["root"],
            tuple(document["dropped"]),
            {bytes.fromhex(node): int(number) for node, number in document["node_numbers"].items()},
            str(document.get("salt", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{JOURNAL_KEY} does not tell of a conversion: {error!r}") from error


async def find_journal(storage: Storage) -> Journal | None:
    """The conversion that is under way at a place, if any."""
    try:
        return parse_journal(await storage.get(JOURNAL_KEY))
    except ObjectNotFoundError:
        return None


async def keep_journal(storage: Storage, journal: Journal) -> None:
    """Begin a conversion, or go on with the same one; ConflictError when another one is under way."""
    try:
        await storage.create(JOURNAL_KEY, journal.encode(), unique=False)
        return
    except AlreadyExistsError:
        found = await storage.get_versioned(JOURNAL_KEY)
    known = parse_journal(found.data)
    if not known.is_same_work(journal):
        raise other_conversion(storage, known)
    if known != journal:
        await storage.swap(JOURNAL_KEY, journal.encode(), found.version, unique=False)


def other_conversion(storage: Storage, known: Journal) -> ConflictError:
    """Somebody began something else here."""
    return ConflictError(
        f"{storage.url} holds an unfinished conversion of {known.source.value!r} (first snapshot {known.root}) to "
        f"{known.target.value!r}; finish that one, or delete {JOURNAL_KEY} and everything it left",
        expected_parent=None,
        actual_parent=known.root,
    )


async def end_journal(storage: Storage) -> None:
    """The conversion is done."""
    await storage.delete([JOURNAL_KEY])
