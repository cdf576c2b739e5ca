"""The state file of the generation `dataset`: all snapshots and refs. Unknown keys are kept.

Keys that this library does not know are kept at every level, so that rewriting the file loses nothing that others
wrote.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from icefloe.errors import FormatError
from icefloe.formats.dataset.snapshot import EXTENSION
from icefloe.formats.json_documents import dump_json
from icefloe.ids import ObjectId
from icefloe.model.snapshot import SnapshotInfo
from icefloe.model.zarr_document import load_object
from icefloe.storage.contract import Storage

STATE_KEY = "state.json"
STATE_CONFIG_KEY = "icefloe-config"
UPDATE_KEY = "icefloe-update"
_MICROSECONDS_KEY = "icefloe-timestamp-us"
_METADATA_KEY = "icefloe.metadata"
_MESSAGE_KEY = "message"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST_MS = 253_402_300_799_999
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NONE: Mapping[str, Any] = {}
RefType = Literal["branch", "tag"]


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A snapshot as the state file lists it."""

    snapshot_id: ObjectId
    timestamp_ms: int
    structure_file: str
    parent_id: ObjectId | None = None
    properties: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def info(self) -> SnapshotInfo:
        """The entry as history shows it."""
        properties = dict(self.properties or {})
        message = properties.pop(_MESSAGE_KEY, "")
        metadata = properties.pop(_METADATA_KEY, properties)
        microseconds = self.extra.get(_MICROSECONDS_KEY)
        if type(microseconds) is not int or microseconds // 1000 != self.timestamp_ms:
            microseconds = self.timestamp_ms * 1000
        return SnapshotInfo(
            id=self.snapshot_id,
            parent_id=self.parent_id,
            written_at=_EPOCH + dt.timedelta(microseconds=microseconds),
            message=message if isinstance(message, str) else json.dumps(message),
            metadata=metadata if isinstance(metadata, dict) else {},
        )


@dataclass(frozen=True, slots=True)
class StateRef:
    """A branch or tag. Its name is its key in the file."""

    snapshot_id: ObjectId
    type: RefType
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """The content of a state file. Snapshots are ordered oldest first."""

    id: str
    generation: int
    snapshots: tuple[StateSnapshot, ...] = ()
    refs: Mapping[str, StateRef] = field(default_factory=dict)
    store_root: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def find_snapshot(self, snapshot_id: ObjectId) -> StateSnapshot | None:
        # Newest last. Most lookups are for new ones.
        return next((entry for entry in reversed(self.snapshots) if entry.snapshot_id == snapshot_id), None)

    def with_ref(self, name: str, ref: StateRef | None) -> State:
        """The state with a ref set, or removed."""
        refs = {key: value for key, value in self.refs.items() if key != name}
        if ref is not None:
            refs[name] = ref
        return dataclasses.replace(self, refs=refs)

    def with_snapshot(self, entry: StateSnapshot) -> State:
        return dataclasses.replace(self, snapshots=(*self.snapshots, entry))

    def with_extra(self, key: str, value: Any) -> State:
        return dataclasses.replace(self, extra={**self.extra, key: value})


def snapshot_entry(info: SnapshotInfo) -> StateSnapshot:
    """The entry of the state file for a snapshot."""
    microseconds = (info.written_at - _EPOCH) // dt.timedelta(microseconds=1)
    reserved = {_MESSAGE_KEY, _METADATA_KEY} & info.metadata.keys()
    metadata = {_METADATA_KEY: dict(info.metadata)} if reserved else dict(info.metadata)
    return StateSnapshot(
        snapshot_id=info.id,
        timestamp_ms=microseconds // 1000,
        structure_file=info.id + EXTENSION,
        parent_id=info.parent_id,
        properties={_MESSAGE_KEY: info.message, **metadata},
        extra={_MICROSECONDS_KEY: microseconds} if microseconds % 1000 else {},
    )


def encode_state(state: State) -> bytes:
    """The bytes of a state file."""
    document: dict[str, Any] = {"id": state.id, "generation": state.generation}
    if state.store_root is not None:
        document["store_root"] = state.store_root
    document["snapshots"] = [_plain_snapshot(entry) for entry in state.snapshots]
    document["refs"] = {
        name: {**ref.extra, "name": name, "snapshot-id": ref.snapshot_id, "type": ref.type}
        for name, ref in state.refs.items()
    }
    return dump_json({**document, **state.extra})


def _plain_snapshot(entry: StateSnapshot) -> dict[str, Any]:
    plain: dict[str, Any] = {
        **entry.extra,
        "snapshot-id": entry.snapshot_id,
        "parent-snapshot-id": entry.parent_id,
        "timestamp-ms": entry.timestamp_ms,
        "structure-file": entry.structure_file,
    }
    if entry.properties is not None:
        plain["properties"] = entry.properties
    return plain


def parse_state(data: bytes) -> State:
    """Parse a state file. A FormatError contains the name of the wrong field."""
    document = load_object(data, STATE_KEY)
    store_root = _take(document, "store_root", str, STATE_KEY, optional=True)
    snapshots = _take(document, "snapshots", list, STATE_KEY)
    refs = _take(document, "refs", dict, STATE_KEY, optional=True)
    generation = _take(document, "generation", int, STATE_KEY)
    if generation < 0:
        raise FormatError(f"{STATE_KEY}: the generation is {generation}, expected at least 0")
    state = State(
        id=_take(document, "id", str, STATE_KEY),
        generation=generation,
        snapshots=tuple(_parse_snapshot(entry, f"{STATE_KEY}: snapshots[{i}]") for i, entry in enumerate(snapshots)),
        refs={name: _parse_ref(value, f"{STATE_KEY}: refs[{name!r}]") for name, value in (refs or {}).items()},
        store_root=store_root or None,
        extra=document,
    )
    known = {entry.snapshot_id for entry in state.snapshots}
    if len(known) != len(state.snapshots):
        raise FormatError(f"{STATE_KEY} lists a snapshot twice")
    for name, ref in state.refs.items():
        if ref.snapshot_id not in known:
            raise FormatError(f"{STATE_KEY}: the {ref.type} {name!r} points at {ref.snapshot_id}, which is not listed")
    return state


def _parse_snapshot(value: Any, where: str) -> StateSnapshot:
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be an object, found {type(value).__name__}")
    rest = dict(value)
    timestamp_ms = _take(rest, "timestamp-ms", int, where)
    if not 0 <= timestamp_ms <= _LAST_MS:
        raise FormatError(f"{where}: timestamp-ms {timestamp_ms} is not between 1970 and 9999")
    return StateSnapshot(
        snapshot_id=_take(rest, "snapshot-id", str, where),
        timestamp_ms=timestamp_ms,
        structure_file=_take(rest, "structure-file", str, where),
        parent_id=_take(rest, "parent-snapshot-id", str, where, optional=True),
        properties=_take(rest, "properties", dict, where, optional=True),
        extra=rest,
    )


def _parse_ref(value: Any, where: str) -> StateRef:
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be an object, found {type(value).__name__}")
    rest = dict(value)
    rest.pop("name", None)
    kind = rest.pop("type", None)
    if kind not in ("branch", "tag"):
        raise FormatError(f'{where}: "type" must be "branch" or "tag", found {kind!r}')
    return StateRef(_take(rest, "snapshot-id", str, where), kind, rest)


def _take(document: dict[str, Any], key: str, kind: type, where: str, *, optional: bool = False) -> Any:
    """Remove and return a member of the right type. Null means absent if the member is optional."""
    value = document.pop(key, None)
    if value is None and optional:
        return None
    if type(value) is not kind:
        found = "nothing" if value is None else type(value).__name__
        raise FormatError(f"{where}: {key!r} must be of type {kind.__name__}, found {found}")
    return value


def resolve_data_root(state: State, state_storage: Storage) -> str | None:
    """The location of the files of a dataset: the URL in its state, or None for the folder of the state file.

    A `store_root` without a scheme is relative to the folder of the state file.
    """
    root = (state.store_root or "").rstrip("/")
    if not root:
        return None
    if not _URL.match(root) and not root.startswith("/"):
        root = f"{state_storage.url.rstrip('/')}/{root}"
    return None if root == state_storage.url.rstrip("/") else root


def load_state_schema() -> dict[str, Any]:
    """The JSON Schema of state files that ships with the package."""
    text = resources.files("icefloe.formats.dataset").joinpath("state.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
