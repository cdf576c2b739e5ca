"""Survey a repository before a conversion: history, refs, nodes, and what the target generation cannot store."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from icefloe.errors import (
    IcefloeError,
    InvalidInputError,
    SnapshotNotFoundError,
    UnsupportedError,
    VirtualChunkError,
    printable,
)
from icefloe.formats.format import Format
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.ledger import MAIN, Administration, Ledger, check_new_name
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import ArrayNode, Snapshot, SnapshotInfo
from icefloe.model.zarr_document import key_encoding, parse_document
from icefloe.session.open_repository import RepositoryContext, fetch_stored_config

Grid = tuple[int, ...]
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Refs:
    """The snapshot of every branch and tag."""

    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId]
    deleted_tags: frozenset[str]
    new_parents: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    """The recorded expiries, see `Ledger.records_expiries`."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The content of a repository before its conversion."""

    context: RepositoryContext
    stored_refs: Refs
    """The refs as stored."""
    refs: Refs
    """The same refs, with the ids of the history."""
    history: tuple[SnapshotInfo, ...]
    """Every snapshot that refs reach or the repository lists, parents first, with the ids of the history."""
    files: Mapping[ObjectId, ObjectId | None]
    """The file of each snapshot. In early repositories, the first one has another name, or no file (None)."""
    config: RepositoryConfig | None
    administration: Administration | None
    manifests: Mapping[ObjectId, Mapping[NodeId, Grid]] = field(default_factory=dict)
    """The arrays that refer to each manifest, with their largest grid."""
    nodes: tuple[NodeId, ...] = ()
    """In the order in which they were found."""
    attribute_files: tuple[ObjectId, ...] = ()

    @property
    def root(self) -> ObjectId:
        """The first snapshot of the main branch. It identifies the repository."""
        return self.history[0].id

    async def fetch_snapshot(self, info: SnapshotInfo) -> Snapshot:
        """A snapshot with the parent, message and metadata of the history."""
        file = self.files[info.id]
        if file is None:
            return Snapshot(
                info.id,
                info.parent_id,
                info.written_at,
                info.message,
                info.metadata,
                {},
                {},
            )
        snapshot = await self.context.metadata_files.fetch_snapshot(file)
        return replace(
            snapshot,
            id=info.id,
            parent_id=info.parent_id,
            written_at=info.written_at,
            message=info.message,
            metadata=info.metadata,
        )

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Iterate over all snapshots, parents first. Several are fetched ahead."""
        waiting: list[asyncio.Task[Snapshot]] = []
        remaining = iter(self.history)
        try:
            while True:
                for info in remaining:
                    waiting.append(asyncio.ensure_future(self.fetch_snapshot(info)))
                    if len(waiting) >= _AT_ONCE:
                        break
                if not waiting:
                    return
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()


async def fetch_refs(context: RepositoryContext) -> Refs:
    """Fetch the current refs."""
    ledger = context.ledger
    branches, tags = await asyncio.gather(ledger.list_branches(), ledger.list_tags())
    ordered = sorted(branches, key=lambda name: (name != MAIN, name))
    return Refs(
        {name: (await ledger.fetch_tip(name)).snapshot_id for name in ordered},
        {name: await ledger.fetch_tag(name) for name in sorted(tags)},
        await ledger.fetch_deleted_tags(),
        await ledger.fetch_new_parents(),
    )


async def survey(context: RepositoryContext) -> Survey:
    """Read every snapshot once. Chunks and references are not read."""
    refs = await fetch_refs(context)
    history, files, named = await _walk(context, refs)
    found = Survey(
        context,
        refs,
        Refs(
            {name: named[tip] for name, tip in refs.branches.items()},
            {name: named[target] for name, target in refs.tags.items()},
            refs.deleted_tags,
        ),
        history,
        files,
        await fetch_stored_config(context.storage),
        await context.ledger.export_administration(),
    )
    manifests: dict[ObjectId, dict[NodeId, Grid]] = {}
    nodes: dict[NodeId, None] = {}
    attributes: dict[ObjectId, None] = {}
    async for snapshot in found.snapshots():
        for node in snapshot.nodes.values():
            nodes.setdefault(node.id)
            if node.attributes is not None:
                attributes.setdefault(node.attributes.object_id)
            if isinstance(node, ArrayNode):
                for ref in node.manifests:
                    _note(manifests.setdefault(ref.manifest_id, {}), node)
    return replace(found, manifests=manifests, nodes=tuple(nodes), attribute_files=tuple(attributes))


def _note(users: dict[NodeId, Grid], node: ArrayNode) -> None:
    known = users.get(node.id)
    if known is None or len(known) != len(node.grid):
        users[node.id] = node.grid
    elif known != node.grid:
        users[node.id] = tuple(map(max, known, node.grid))


async def _walk(
    context: RepositoryContext, refs: Refs
) -> tuple[tuple[SnapshotInfo, ...], dict[ObjectId, ObjectId | None], dict[ObjectId, ObjectId]]:
    """History, parents first, the file of each snapshot, and the id in history of each ref's snapshot."""
    ordered: dict[ObjectId, SnapshotInfo] = {}
    files: dict[ObjectId, ObjectId | None] = {}
    named: dict[ObjectId, ObjectId] = {}
    tips = dict.fromkeys([*refs.branches.values(), *refs.tags.values()])
    # Without a list of snapshots, an unreachable snapshot looks the same as one of a failed commit.
    listed = await context.ledger.fetch_listed() or {}
    for start in dict.fromkeys([*tips, *listed]):
        if start not in tips and (start in ordered or not await _has_file(context, start)):
            continue
        fresh: list[SnapshotInfo] = []
        first = True
        async for info in context.ledger.shown_history(start, refs.new_parents):
            if first:
                named[start], files[info.id] = info.id, start
                first = False
            if info.id in ordered:
                break
            fresh.append(replace(info, manifests=()))
        for info in reversed(fresh):
            ordered[info.id] = info
            files.setdefault(info.id, info.id)
    for info in ordered.values():
        if info.parent_id is None and files[info.id] == info.id and not await _has_file(context, info.id):
            files[info.id] = None
    return tuple(ordered.values()), files, named


async def _has_file(context: RepositoryContext, snapshot_id: ObjectId) -> bool:
    try:
        await context.metadata_files.fetch_snapshot(snapshot_id)
    except SnapshotNotFoundError:
        return False
    return True


def unstorable_fields(info: SnapshotInfo, target: Format) -> list[str]:
    """What the target cannot store of a commit: `message`, or keys of its metadata."""
    if not info.metadata and info.message.isascii():
        return []
    if _survives_round_trip(info, target):
        return []
    unfit = [] if _survives_round_trip(replace(info, metadata={}), target) else ["message"]
    plain = replace(info, message="")
    return unfit + [
        f"metadata {key!r}"
        for key, value in info.metadata.items()
        if not _survives_round_trip(replace(plain, metadata={key: value}), target)
    ]


def without_unstorable_fields(info: SnapshotInfo, target: Format) -> SnapshotInfo:
    """The commit without what the target cannot store. Unsupported characters are removed from the message."""
    unfit = unstorable_fields(info, target)
    if not unfit:
        return info
    metadata = {key: value for key, value in info.metadata.items() if f"metadata {key!r}" not in unfit}
    message = info.message.encode(errors="replace").decode() if "message" in unfit else info.message
    return replace(info, message=message, metadata=metadata)


def _survives_round_trip(info: SnapshotInfo, target: Format) -> bool:
    try:
        message, metadata = target.read_back_commit(replace(info, parent_id=None, manifests=()))
    except IcefloeError:
        return False
    return message == info.message and json_equal(dict(metadata), dict(info.metadata))


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values. NaN equals NaN, and 1.0 does not equal 1."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(json_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(json_equal, a, b))
    return bool(a == b) or (a != a and b != b)


RELATIVE = "vcc://"
_NAMED_EXAMPLES = 10


class LossKind(enum.Enum):
    """What a conversion can drop. The values are the words for `drop`."""

    CHUNK_GRIDS = "chunk-grids"
    """Arrays whose chunk grid is not regular are left out."""
    KEY_ENCODINGS = "key-encodings"
    """Arrays whose chunk key encoding is not the default one are left out."""
    CHECKSUMS = "checksums"
    """Virtual references lose their ETag or last-modified time."""
    DELETED_TAGS = "deleted-tags"
    """Names of deleted tags become free again."""
    REFS = "refs"
    """Branches and tags with unsupported names are left out."""
    METADATA = "metadata"
    """Metadata of the repository as a whole is left out."""
    FLAGS = "feature-flags"
    """Disabled features are enabled again."""
    STATUS = "status"
    """A read-only repository becomes writable."""
    OPERATIONS = "operations-log"
    """The records of branch resets, deletions, amended commits, changed settings and garbage collection are lost."""
    COMMIT_METADATA = "commit-metadata"
    """Unsupported values of commit metadata and characters of messages are left out."""
    LOCATIONS = "locations"
    """Virtual references with the name of an unknown container are left out."""


_LOST = {
    LossKind.CHUNK_GRIDS: "arrays with an irregular chunk grid",
    LossKind.KEY_ENCODINGS: "arrays with a chunk key encoding that is not the default",
    LossKind.CHECKSUMS: "ETags and times of the files of virtual chunks, which detect changed files",
    LossKind.DELETED_TAGS: "names of deleted tags, which can then be created again",
    LossKind.REFS: "branches and tags whose names are not supported",
    LossKind.METADATA: "metadata of the repository",
    LossKind.FLAGS: "disabled features",
    LossKind.STATUS: "the read-only status",
    LossKind.OPERATIONS: "entries of the operations log",
    LossKind.COMMIT_METADATA: "values of commit metadata and characters of messages",
    LossKind.LOCATIONS: "virtual references with the name of an unknown container",
}
"""Descriptions of the losses."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the target cannot store, with the number of occurrences and examples."""

    kind: LossKind
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        return printable(f"{self.kind.value}: {_LOST[self.kind]} ({self.count:,}: {', '.join(self.examples)}{more})")


def parse_drops(given: Iterable[LossKind | str]) -> frozenset[LossKind]:
    """The losses that the caller allows."""
    if isinstance(given, str):
        raise InvalidInputError(f"drop={given!r}: expected a list of words")
    try:
        return frozenset(LossKind(each) for each in given)
    except ValueError as error:
        allowed = ", ".join(kind.value for kind in LossKind)
        raise InvalidInputError(f"drop: {error}. Allowed: {allowed}") from error


def check_losses(losses: Collection[Loss], drops: Collection[LossKind], target: SpecVersion) -> None:
    """Raise UnsupportedError with all losses that the caller does not allow."""
    refused = [loss for loss in losses if loss.kind not in drops]
    if refused:
        listed = "; ".join(map(str, refused))
        words = ", ".join(repr(loss.kind.value) for loss in refused)
        raise UnsupportedError(
            f"generation {target.value!r} cannot store {listed}. Nothing was written. To convert without them, pass "
            f"drop=[{words}]",
            losses=tuple(refused),
        )


def join_losses(first: tuple[Loss, ...], then: tuple[Loss, ...]) -> tuple[Loss, ...]:
    """The losses of two steps, each kind once."""
    known = {loss.kind for loss in first}
    return first + tuple(loss for loss in then if loss.kind not in known)


class _Found:
    """Collects losses."""

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
    """Find everything that the target cannot store. References are read only if necessary."""
    found = _Found()
    _look_at_refs(survey, ledger, found)
    _look_at_administration(survey, target, found)
    for info in survey.history:
        for word in unstorable_fields(info, target):
            found.add(LossKind.COMMIT_METADATA, f"{word} of {info.id}")
    if not target.capabilities.any_chunk_grid and survey.context.capabilities.any_chunk_grid:
        await _look_at_arrays(survey, found, LossKind.CHUNK_GRIDS, is_regular)
    if not target.capabilities.any_key_encoding and survey.context.capabilities.any_key_encoding:
        await _look_at_arrays(survey, found, LossKind.KEY_ENCODINGS, has_default_keys)
    checksums = survey.context.capabilities.checksums and not target.capabilities.checksums
    locations = expands_locations(target)
    if checksums or locations:
        await _look_at_references(survey, found, checksums=checksums, locations=locations)
    return found.losses()


def expands_locations(target: Format) -> bool:
    """Whether relative references must become URLs. Official 1.x does not support relative references."""
    return not target.capabilities.container_locations


def is_regular(node: ArrayNode) -> bool:
    """Whether the chunk grid of an array is regular."""
    grid = parse_document(node.document, node.path)["chunk_grid"]
    return bool(grid["name"] == "regular")


def has_default_keys(node: ArrayNode) -> bool:
    """Whether an array has the default chunk key encoding."""
    return key_encoding(node.document).is_default


def unrepresentable_refs(survey: Survey, ledger: Ledger) -> frozenset[tuple[str, str]]:
    """Kind and name of the refs that the target cannot store."""
    found = set()
    for kind, names in (("branch", survey.refs.branches), ("tag", survey.refs.tags)):
        for name in names:
            try:
                check_new_name(name, kind, is_file_name=ledger.refs_are_files)
            except InvalidInputError:
                found.add((kind, name))
    found |= ledger.unstorable_refs(survey.refs.branches, survey.refs.tags)
    return frozenset(found)


def _look_at_refs(survey: Survey, ledger: Ledger, found: _Found) -> None:
    for kind, name in sorted(unrepresentable_refs(survey, ledger)):
        found.add(LossKind.REFS, f"{kind} {name!r}")
    if not ledger.keeps_deleted_tags:
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
    if said.restricted is not None and not target.capabilities.repository_status:
        found.add(LossKind.STATUS, said.restricted)
    if not target.capabilities.operations_log:
        for operation in said.operations_beyond_history:
            found.add(LossKind.OPERATIONS, operation)


async def _look_at_arrays(survey: Survey, found: _Found, kind: LossKind, fits: Callable[[ArrayNode], bool]) -> None:
    async for snapshot in survey.snapshots():
        for node in snapshot.nodes.values():
            if isinstance(node, ArrayNode) and not fits(node):
                found.add(kind, node.path)


async def _look_at_references(survey: Survey, found: _Found, *, checksums: bool, locations: bool) -> None:
    containers = survey.context.containers
    for manifest_id, users in survey.manifests.items():
        manifest = await survey.context.metadata_files.fetch_manifest(manifest_id)
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
