"""Names and contents of sequence-numbered branch files and of tag files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.strict_json import SMALL_FILE_BYTES
from icefloe.ids import ObjectId, decode_base32, encode_base32

REFS = "refs/"
TAG_FILE = "ref.json"
TAG_TOMBSTONE = "ref.json.deleted"
FRESH_SECONDS = 1.0
"""A branch that was seen longer ago is looked at before the next of its files is created. Only a conversion in place
removes branch files, while nobody writes. After it, a writer that waited could create a file that nobody finds."""
_SUFFIX = ".json"
_NAME = re.compile(r"([0-9A-Z]{8}|[0-9A-Z]{13})\.json")


@dataclass(frozen=True, slots=True)
class RefStyle:
    """How refs are spelled: `branch.main` or, at the very beginning, `branch:main`; numbers of 5 or 8 bytes."""

    separator: str = "."
    number_bytes: int = 5

    def branch_folder(self, branch: str) -> str:
        return f"{REFS}branch{self.separator}{branch}/"

    def tag_folder(self, tag: str) -> str:
        return f"{REFS}tag{self.separator}{tag}/"

    def branch_key(self, branch: str, sequence: int) -> str:
        return self.branch_folder(branch) + encode_sequence(sequence, self.number_bytes)


DOTTED = RefStyle()
COLON = RefStyle(":")
STYLES = (DOTTED, COLON)


def parse_folder(kind: str, folder: str) -> str:
    """The name of the branch or tag that a folder of `refs/` belongs to; empty for other folders."""
    if folder[: len(kind)] != kind or folder[len(kind) : len(kind) + 1] not in (".", ":") or folder[-1] != "/":
        return ""
    return folder[len(kind) + 1 : -1]


def encode_sequence(sequence: int, number_bytes: int = 5) -> str:
    """The file name of a sequence number: the newest sorts first."""
    largest = (1 << 8 * number_bytes) - 1
    if not 0 <= sequence <= largest:
        raise InvalidInputError(f"sequence number {sequence} is outside 0..{largest}: the branch is full")
    return encode_base32((largest - sequence).to_bytes(number_bytes, "big")) + _SUFFIX


def parse_sequence(name: str) -> tuple[int, int] | None:
    """Sequence number and bytes per number of a file name; None for other files."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    number_bytes = 5 if len(match.group(1)) == 8 else 8
    try:
        value = int.from_bytes(decode_base32(match.group(1), number_bytes), "big")
    except InvalidInputError:
        return None
    return (1 << 8 * number_bytes) - 1 - value, number_bytes


@dataclass(frozen=True, slots=True)
class RefContent:
    """What a ref file says; a deleted branch ends with one that says so."""

    snapshot_id: ObjectId
    deleted: bool = False
    collection: str | None = None
    """The last garbage collection before this file was written; every later file of the branch repeats it."""

    def encode(self) -> bytes:
        document: dict[str, str | bool] = {"snapshot": self.snapshot_id}
        if self.collection is not None:
            document["collection"] = self.collection
        if self.deleted:
            document["deleted"] = True
        return json.dumps(document, separators=(",", ":")).encode()


class TornRefError(FormatError):
    """A branch file is what a power loss leaves of a commit that was never finished."""


def is_torn(data: bytes) -> bool:
    """Whether a JSON file was not written to its end: it is empty, or zeros, or the beginning of an object."""
    written = data.strip(b"\0 \r\n")
    return not written or (written.startswith(b"{") and not written.endswith(b"}"))


def parse_ref(data: bytes, key: str) -> RefContent:
    """The content of a ref file; TornRefError when it was not written to its end."""
    if is_torn(data):
        raise TornRefError(
            f"{key} was not written to its end, as after a power loss: {len(data)} bytes; "
            "`icefloe verify --repair` goes back to what is whole"
        )
    try:
        if len(data) > SMALL_FILE_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        document = json.loads(data)
        snapshot_id = document["snapshot"]
        if not isinstance(snapshot_id, str):
            raise TypeError(f"the snapshot is {snapshot_id!r}")
        decode_base32(snapshot_id, 12)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f'{key} is not a ref file: {error}; expected {{"snapshot": "<20 characters>"}}') from error
    collection = document.get("collection")
    return RefContent(snapshot_id, document.get("deleted") is True, collection if isinstance(collection, str) else None)
