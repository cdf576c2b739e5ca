"""What a repository holds that another generation has no place for."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from icefloe.conversion.commit_words import unfit_words
from icefloe.conversion.survey import Survey
from icefloe.errors import InvalidInputError, UnsupportedError, VirtualChunkError, printable
from icefloe.formats.contract import Format
from icefloe.formats.icechunk2.repo_info import Availability, UpdateKind
from icefloe.ledger.contract import Ledger
from icefloe.ledger.dataset import DatasetLedger
from icefloe.ledger.names import check_new_name
from icefloe.ledger.store import StoreLedger
from icefloe.ledger.whole_history import keeps_deleted_tags
from icefloe.model.capabilities import SpecVersion
from icefloe.model.chunk_keys import key_encoding
from icefloe.model.nodes import ArrayNode
from icefloe.model.zarr_document import parse_document

RELATIVE = "vcc://"
_TOLD_BY_HISTORY = frozenset({
    UpdateKind.REPO_INITIALIZED, UpdateKind.REPO_MIGRATED, UpdateKind.NEW_COMMIT, UpdateKind.NEW_DETACHED_SNAPSHOT,
    UpdateKind.BRANCH_CREATED, UpdateKind.TAG_CREATED, UpdateKind.TAG_DELETED,
})  # fmt: skip
"""Entries of an operations log that can be told again from snapshots, refs and the names of deleted tags."""
_NAMED_EXAMPLES = 10


class LossKind(enum.Enum):
    """What can be dropped when told to, by the word that says so."""

    CHUNK_GRIDS = "chunk-grids"
    """Arrays whose chunk grid is not regular are left out."""
    KEY_ENCODINGS = "key-encodings"
    """Arrays whose chunk key encoding is not the default one are left out."""
    CHECKSUMS = "checksums"
    """Virtual references lose their ETag or last-modified time."""
    DELETED_TAGS = "deleted-tags"
    """Names of deleted tags become free again."""
    REFS = "refs"
    """Branches and tags whose name cannot be spelled are left out."""
    METADATA = "metadata"
    """Metadata of the repository as a whole is left out."""
    FLAGS = "feature-flags"
    """Features that were switched off are on again."""
    STATUS = "status"
    """A repository that took no writes takes them."""
    OPERATIONS = "operations-log"
    """When branches were reset or deleted, commits amended, settings changed and garbage collected is forgotten."""
    COMMIT_WORDS = "commit-metadata"
    """Values of commit metadata, and characters of messages, that cannot be written are left out."""
    LOCATIONS = "locations"
    """Virtual references by the name of a container that nobody knows are left out."""


_LOST = {
    LossKind.CHUNK_GRIDS: "arrays whose chunks are not all of one shape",
    LossKind.KEY_ENCODINGS: "arrays with another chunk key encoding than the default",
    LossKind.CHECKSUMS: "ETags and times of the files of virtual chunks, so that changed files are not noticed",
    LossKind.DELETED_TAGS: "names of deleted tags, which can be given again",
    LossKind.REFS: "branches and tags whose names cannot be spelled",
    LossKind.METADATA: "metadata of the repository",
    LossKind.FLAGS: "features that were switched off",
    LossKind.STATUS: "the status that lets nobody write",
    LossKind.OPERATIONS: "entries of the operations log",
    LossKind.COMMIT_WORDS: "values of commit metadata and characters of messages",
    LossKind.LOCATIONS: "virtual references by the name of an unknown container",
}
"""What a loss is, in the words of who owns the repository."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that does not fit, with how often it is met and where."""

    kind: LossKind
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        return printable(f"{self.kind.value}: {_LOST[self.kind]} ({self.count:,}: {', '.join(self.examples)}{more})")


def parse_drops(given: Iterable[LossKind | str]) -> frozenset[LossKind]:
    """What a caller allows to be dropped."""
    if isinstance(given, str):
        raise InvalidInputError(f"drop={given!r}: give a list of words")
    try:
        return frozenset(LossKind(each) for each in given)
    except ValueError as error:
        allowed = ", ".join(kind.value for kind in LossKind)
        raise InvalidInputError(f"drop: {error}; there are {allowed}") from error


def check_losses(losses: Collection[Loss], drops: Collection[LossKind], target: SpecVersion) -> None:
    """UnsupportedError that names everything which does not fit and may not be dropped."""
    refused = [loss for loss in losses if loss.kind not in drops]
    if refused:
        listed = "; ".join(map(str, refused))
        words = ", ".join(repr(loss.kind.value) for loss in refused)
        raise UnsupportedError(
            f"generation {target.value!r} has no place for {listed}; nothing was written. drop=[{words}] converts "
            "without",
            losses=tuple(refused),
        )


def join_losses(first: tuple[Loss, ...], then: tuple[Loss, ...]) -> tuple[Loss, ...]:
    """Losses of two steps, each kind told once."""
    known = {loss.kind for loss in first}
    return first + tuple(loss for loss in then if loss.kind not in known)


class _Found:
    """Losses as they are met."""

    def __init__(self) -> None:
        self._counts: Counter[LossKind] = Counter()
        self._examples: dict[LossKind, dict[str, None]] = {}

    def add(self, kind: LossKind, example: str, count: int = 1) -> None:
        self._counts[kind] += count
        examples = self._examples.setdefault(kind, {})
        if len(examples) < _NAMED_EXAMPLES:
            examples.setdefault(example)

    def losses(self) -> tuple[Loss, ...]:
        return tuple(Loss(kind, count, tuple(self._examples[kind])) for kind, count in self._counts.items())


async def find_losses(survey: Survey, target: Format, ledger: Ledger) -> tuple[Loss, ...]:
    """Everything that the target cannot express; references are read only where they can hold such a thing."""
    found = _Found()
    _look_at_refs(survey, ledger, found)
    _look_at_administration(survey, target, found)
    for info in survey.history:
        for word in unfit_words(info, target):
            found.add(LossKind.COMMIT_WORDS, f"{word} of {info.id}")
    if not target.capabilities.any_chunk_grid and survey.engine.capabilities.any_chunk_grid:
        await _look_at_arrays(survey, found, LossKind.CHUNK_GRIDS, is_regular)
    if not target.capabilities.any_key_encoding and survey.engine.capabilities.any_key_encoding:
        await _look_at_arrays(survey, found, LossKind.KEY_ENCODINGS, has_default_keys)
    checksums = survey.engine.capabilities.checksums and not target.capabilities.checksums
    locations = expands_locations(target)
    if checksums or locations:
        await _look_at_references(survey, found, checksums=checksums, locations=locations)
    return found.losses()


def expands_locations(target: Format) -> bool:
    """Whether references by the name of a container have to be spelled out: official 1.x does not know them."""
    return target.spec_version is SpecVersion.ICECHUNK1


def is_regular(node: ArrayNode) -> bool:
    """Whether the chunks of an array are all of one shape."""
    grid = parse_document(node.document, node.path)["chunk_grid"]
    return bool(grid["name"] == "regular")


def has_default_keys(node: ArrayNode) -> bool:
    """Whether the chunks of an array have keys of the default encoding."""
    return key_encoding(node.document).is_default


def unspeakable_refs(survey: Survey, ledger: Ledger) -> frozenset[tuple[str, str]]:
    """Kind and name of refs that the target cannot hold."""
    found = set()
    for kind, names in (("branch", survey.refs.branches), ("tag", survey.refs.tags)):
        for name in names:
            try:
                check_new_name(name, kind)
            except InvalidInputError:
                found.add((kind, name))
    if isinstance(ledger, DatasetLedger):
        found |= {("tag", name) for name in survey.refs.tags if name in survey.refs.branches}
    if isinstance(ledger, StoreLedger):
        found |= {("branch", name) for name in survey.refs.branches if name.endswith(".json")}
    return frozenset(found)


def _look_at_refs(survey: Survey, ledger: Ledger, found: _Found) -> None:
    for kind, name in sorted(unspeakable_refs(survey, ledger)):
        found.add(LossKind.REFS, f"{kind} {name!r}")
    if not keeps_deleted_tags(ledger):
        for name in sorted(survey.refs.deleted_tags):
            found.add(LossKind.DELETED_TAGS, repr(name))


def _look_at_administration(survey: Survey, target: Format, found: _Found) -> None:
    said = survey.administration
    if said is None:
        return
    if said.metadata and not target.capabilities.repository_metadata:
        for key in said.metadata:
            found.add(LossKind.METADATA, repr(key))
    if not target.capabilities.feature_flags:
        for name, value in said.flags.items():
            if value is False:
                found.add(LossKind.FLAGS, name)
    online = said.status is None or said.status.availability is Availability.ONLINE
    if not online and not target.capabilities.repository_status:
        assert said.status is not None
        found.add(LossKind.STATUS, said.status.availability.name.lower())

    if not target.capabilities.operations_log:
        for update in said.updates:
            if update.kind not in _TOLD_BY_HISTORY:
                found.add(LossKind.OPERATIONS, update.kind.name.lower().replace("_", " "))


async def _look_at_arrays(survey: Survey, found: _Found, kind: LossKind, fits: Callable[[ArrayNode], bool]) -> None:
    async for snapshot in survey.snapshots():
        for node in snapshot.nodes.values():
            if isinstance(node, ArrayNode) and not fits(node):
                found.add(kind, node.path)


async def _look_at_references(survey: Survey, found: _Found, *, checksums: bool, locations: bool) -> None:
    containers = survey.engine.containers
    for manifest_id, users in survey.manifests.items():
        manifest = await survey.engine.archive.fetch_manifest(manifest_id)
        for node_id, table in manifest.tables.items():
            if node_id not in users or table.location is None:
                continue
            if checksums:
                has_etag = np.zeros(len(table), dtype=bool) if table.etag is None else table.etag >= 0
                has_time = np.zeros(len(table), dtype=bool) if table.last_modified is None else table.last_modified > 0
                codes, counts = np.unique(table.location[has_etag | has_time], return_counts=True)
                for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                    found.add(LossKind.CHECKSUMS, table.locations[code], count)
            if locations:
                for text in table.locations:
                    if text.startswith(RELATIVE) and not _is_known(containers, text):
                        found.add(LossKind.LOCATIONS, text)


def _is_known(containers: object, location: str) -> bool:
    try:
        containers.absolute(location)  # type: ignore[attr-defined]
    except VirtualChunkError:
        return False
    return True
