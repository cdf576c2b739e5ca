"""The files of refs in the generation `repository`: their names and their content."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import ObjectId, decode_base32, encode_base32
from icefloe.ledger.ledger import RefFiles, StoredRef
from icefloe.model.zarr_document import SMALL_FILE_BYTES

CONFIG_KEY, EARLY_CONFIG_KEY = "config.json", "config.yaml"
GENERATION_KEY, GENERATION = "generation", "repository"
"""Stored in `config.json`, so that one request returns the generation and the configuration."""
REFS = "refs/"
TAG_FILE = "ref.json"
TAG_TOMBSTONE = "ref.json.deleted"
_SUFFIX = ".json"
_NEW_PARENTS = "new_parents"
_MOST_NEW_PARENTS = 4096
"""Every commit repeats them. Icefloe records some 64, and a few more if other branches are amended at the same time."""
_NAME = re.compile(r"([0-9A-Z]{8}|[0-9A-Z]{13})\.json")


@dataclass(frozen=True, slots=True)
class RefStyle:
    """The naming of refs: `branch.main`, or `branch:main` in the earliest files. Numbers have 5 or 8 bytes."""

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
    """The name of the branch or tag of a folder of `refs/`. Empty for other folders."""
    if folder[: len(kind)] != kind or folder[len(kind) : len(kind) + 1] not in (".", ":") or folder[-1] != "/":
        return ""
    return folder[len(kind) + 1 : -1]


@functools.lru_cache(maxsize=64)
def encode_sequence(sequence: int, number_bytes: int = 5) -> str:
    """The file name of a sequence number. The newest sorts first."""
    largest = (1 << 8 * number_bytes) - 1
    if not 0 <= sequence <= largest:
        raise InvalidInputError(
            f"sequence number {sequence} is outside of 0..{largest}. The branch cannot have more commits"
        )
    return encode_base32((largest - sequence).to_bytes(number_bytes, "big")) + _SUFFIX


def parse_sequence(name: str) -> tuple[int, int] | None:
    """Sequence number and bytes per number of a file name. None for other files."""
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
    """The content of a ref file. The last file of a deleted branch marks the deletion."""

    snapshot_id: ObjectId
    deleted: bool = False
    collection: str | None = None
    """The last garbage collection before this file was written. Every later file of the branch repeats it."""
    new_parents: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    """The recorded expiries, in files of `main`: new parents of kept snapshots. Every later file repeats them."""
    token: str | None = None
    """A random text. With it, no other writer writes the same bytes, so that only one of them succeeds."""

    def encode(self) -> bytes:
        document: dict[str, Any] = {"snapshot": self.snapshot_id}
        if self.collection is not None:
            document["collection"] = self.collection
        if self.new_parents:
            document[_NEW_PARENTS] = dict(self.new_parents)
        if self.deleted:
            document["deleted"] = True
        if self.token is not None:
            document["token"] = self.token
        return json.dumps(document, separators=(",", ":")).encode()


class TornRefError(FormatError):
    """A branch file is truncated, because a power loss interrupted its commit."""


def is_torn(data: bytes) -> bool:
    """Whether a JSON file is truncated: it is empty, or zeros, or the beginning of an object."""
    written = data.strip(b"\0 \r\n")
    return not written or (written.startswith(b"{") and not written.endswith(b"}"))


def parse_ref(data: bytes, key: str) -> RefContent:
    """Parse a ref file. Raises TornRefError if it is truncated."""
    if is_torn(data):
        raise TornRefError(
            f"{key} is truncated, as after a power loss: it has {len(data)} bytes. `icefloe verify --repair` restores "
            "the previous state"
        )
    try:
        if len(data) > SMALL_FILE_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        document = json.loads(data)
        snapshot_id = document["snapshot"]
        if not isinstance(snapshot_id, str):
            raise TypeError(f"the snapshot is {snapshot_id!r}")
        decode_base32(snapshot_id, 12)
        new_parents = document.get(_NEW_PARENTS, {})
        if len(new_parents) > _MOST_NEW_PARENTS:
            raise ValueError(f"it has {len(new_parents)} new parents, expected at most {_MOST_NEW_PARENTS}")
        for each in (*new_parents.keys(), *new_parents.values()):
            decode_base32(each, 12)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f'{key} is not a ref file: {error}. Expected {{"snapshot": "<20 characters>"}}') from error
    collection = document.get("collection")
    return RefContent(
        snapshot_id,
        document.get("deleted") is True,
        collection if isinstance(collection, str) else None,
        new_parents,
    )


class RepositoryRefFiles(RefFiles):
    """Numbered branch files in `refs/branch.NAME/`, tags in `refs/tag.NAME/ref.json`."""

    folder = REFS
    config_key = CONFIG_KEY
    empty_config: ClassVar[Mapping[str, Any]] = {GENERATION_KEY: GENERATION}

    def first_key(self, branch: str) -> str:
        return DOTTED.branch_key(branch, 0)

    def next_key(self, key: str) -> str:
        folder, _, name = key.rpartition("/")
        found = parse_sequence(name)
        assert found is not None
        return f"{folder}/{encode_sequence(found[0] + 1, found[1])}"

    def group(self, keys: Iterable[str]) -> list[StoredRef]:
        refs: list[StoredRef] = []
        for folder, names in group_by_folder(keys).items():
            branch, tag = parse_folder("branch", folder), parse_folder("tag", folder)
            if branch:
                numbers = {name: found[0] for name in names if (found := parse_sequence(name)) is not None}
                newest_first = sorted(numbers, key=lambda name: numbers[name], reverse=True)
                refs.append(StoredRef("branch", branch, tuple(f"{REFS}{folder}{name}" for name in newest_first)))
            elif tag and TAG_FILE in names and TAG_TOMBSTONE not in names:
                refs.append(StoredRef("tag", tag, (f"{REFS}{folder}{TAG_FILE}",)))
        return refs

    def parse(self, data: bytes, key: str) -> tuple[ObjectId, bool]:
        content = parse_ref(data, key)
        return content.snapshot_id, content.deleted

    def encode(self, target: ObjectId) -> bytes:
        return RefContent(target).encode()

    def encode_after(self, before: bytes | None, target: ObjectId) -> bytes:
        if before is None:
            return self.encode(target)
        return replace(parse_ref(before, "the last readable file"), snapshot_id=target, deleted=False).encode()


REF_FILES = RepositoryRefFiles()


def group_by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    """The names of the files in each folder of `refs/`. Folders end with a slash."""
    folders: dict[str, list[str]] = {}
    for key in keys:
        folder, _, name = key.removeprefix(REFS).rpartition("/")
        folders.setdefault(f"{folder}/", []).append(name)
    return folders
