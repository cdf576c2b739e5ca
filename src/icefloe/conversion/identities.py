"""How ids of one generation are spelled in another one: kept where possible, widened, folded or derived otherwise.

Every answer depends on nothing but the id itself, so that an interrupted conversion finds its own files again. Only
small numbers for nodes are handed out in turn; the journal keeps them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from icefloe.formats.contract import Format
from icefloe.ids import NODE_ID_BYTES, NodeId, ObjectId, decode_base32, encode_base32

_MIX = np.uint32(0x9E3779B1)
"""Odd, so that multiplying by it loses nothing."""
Ids = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Identities:
    """Ids of the source and what they are in the target."""

    source_bytes: int
    target_bytes: int
    salt: str = ""
    """Set where other files have the names already: files of the target then get names of their own."""
    node_numbers: Mapping[NodeId, int] = field(default_factory=dict)
    """Set where the target keeps small numbers for nodes."""

    def file(self, object_id: ObjectId) -> ObjectId:
        """The id of a snapshot, manifest or attributes file."""
        data = decode_base32(object_id, self.source_bytes)
        if self.salt:
            digest = hashlib.sha256(self.salt.encode() + b"\0" + data).digest()
            return encode_base32(digest[: self.target_bytes])
        return encode_base32(self.chunks(np.frombuffer(data, dtype=np.uint8).reshape(1, -1)).tobytes())

    def chunks(self, ids: Ids) -> Ids:
        """A column of chunk ids; what was widened comes back as it was."""
        if self.source_bytes == self.target_bytes:
            return ids
        if self.source_bytes < self.target_bytes:
            return np.pad(ids, ((0, 0), (0, self.target_bytes - self.source_bytes)))
        folded = np.ascontiguousarray(ids[:, : self.target_bytes]).copy()
        tail = np.zeros((len(ids), 4), dtype=np.uint8)
        tail[:, : self.source_bytes - self.target_bytes] = ids[:, self.target_bytes :]
        mixed = tail.view("<u4") * _MIX
        folded[:, -4:] ^= mixed.view(np.uint8).reshape(len(ids), 4)
        return folded

    def chunk(self, chunk_id: bytes) -> bytes:
        """One chunk id."""
        return self.chunks(np.frombuffer(chunk_id, dtype=np.uint8).reshape(1, -1)).tobytes()

    def node(self, node_id: NodeId) -> NodeId:
        """The id of a node."""
        if not self.node_numbers:
            return node_id
        return self.node_numbers[node_id].to_bytes(NODE_ID_BYTES, "big")


def shares_names(source: Format, target: Format) -> bool:
    """Whether both keep files under the same names."""
    return source.snapshots_folder == target.snapshots_folder and source.metadata_extension == target.metadata_extension


def plan_identities(
    source: Format,
    target: Format,
    *,
    same_root: bool,
    nodes: Iterable[NodeId],
    known: Mapping[NodeId, int],
    salt: str = "",
) -> Identities:
    """How the ids of one generation are spelled in another; `known` are numbers given out by an earlier run."""
    if not salt and same_root and shares_names(source, target):
        salt = f"{source.spec_version.value}>{target.spec_version.value}"
    numbers: dict[NodeId, int] = {}
    if target.capabilities.node_id_is_counter and not source.capabilities.node_id_is_counter:
        numbers = dict(known)
        following = max(numbers.values(), default=0) + 1
        for node in nodes:
            if node not in numbers:
                numbers[node] = following
                following += 1
    return Identities(
        source.capabilities.object_id_bytes,
        target.capabilities.object_id_bytes,
        salt,
        numbers,
    )
