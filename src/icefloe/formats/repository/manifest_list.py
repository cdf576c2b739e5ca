"""Manifest lists of the generation `repository`: their files, and their summaries in snapshots.

The file of a list is a MessagePack map of columns: `ids` (texts), `extents` (for each manifest, the first and the end
per dimension), `sizes` and `references`. A snapshot has a property with the summaries of the lists by array. Those
arrays have a kind of their own, so that a reader that does not know lists refuses the snapshot.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.formats.repository.wire_values import MALFORMED, are_canonical_ids, decode_or_refuse
from icefloe.ids import ObjectId
from icefloe.model.manifest_lists import ListContent, ListedRefs, ListSummary, ManifestList, is_in_order
from icefloe.model.snapshot import ArrayNode, Extents, Node, RefColumns

_MAX_INDEX = 2**32 - 1
_MAX_INTEGER = 2**63 - 1
_MAX_RANK = 1024
_MAX_COUNT = 1 << 24

Lists: TypeAlias = Mapping[str, ListedRefs]
"""The manifest lists of arrays, by path."""

_WireSummary = tuple[str, int, int, int, list[int], list[int], list[int], list[int]]
"""id, manifests, references, bytes, bounds, box of the first, box of the last, crossing bits."""


class _WireList(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]
    extents: list[int]
    sizes: list[int]
    references: list[int]


_LIST = msgspec.msgpack.Decoder(_WireList)
_ENCODER = msgspec.msgpack.Encoder()


def encode_list_body(content: ListContent) -> bytes:
    """The MessagePack body of the file of a list."""
    columns = content.columns
    return _ENCODER.encode(
        _WireList(
            list(columns.ids), columns.boxes.reshape(-1).tolist(), content.sizes.tolist(), content.counts.tolist()
        )
    )


def decode_list_body(body: bytes) -> ListContent:
    """Decode the file of a list."""
    found = decode_or_refuse(_LIST, body, "manifest list")
    count = len(found.ids)
    if not count or not are_canonical_ids(found.ids) or not len(found.sizes) == len(found.references) == count:
        raise FormatError("a manifest list has invalid ids, or columns of different lengths")
    try:
        flat = np.array(found.extents, dtype=np.int64)
        sizes, counts = np.array(found.sizes, dtype=np.int64), np.array(found.references, dtype=np.int64)
    except (OverflowError, ValueError) as error:
        raise FormatError(f"a manifest list has a number that is too large: {error}") from error
    if len(flat) == 0 or len(flat) % (2 * count) or (sizes < 0).any() or (counts < 0).any():
        raise FormatError("a manifest list has invalid extents, sizes or numbers of references")
    boxes = flat.reshape(count, -1, 2)
    if not _are_boxes(boxes):
        raise FormatError("a manifest list has a manifest with invalid extents")
    if not is_in_order(boxes):
        raise FormatError("a manifest list has manifests that repeat, or are not in the order of their extents")
    return ListContent(RefColumns(tuple(found.ids), boxes), sizes, counts)


def _are_boxes(boxes: npt.NDArray[np.int64]) -> bool:
    first, end = boxes[:, :, 0], boxes[:, :, 1]
    return bool(((first >= 0) & (first < end) & (end <= _MAX_INDEX + 1)).all())


def encode_summaries(nodes: Mapping[str, Node]) -> dict[str, Any]:
    """The property of a snapshot with the summaries of lists by the path of their array. Empty without lists."""
    found: dict[str, Any] = {}
    for path, node in nodes.items():
        if isinstance(node, ArrayNode) and isinstance(node.manifests, ListedRefs):
            lists = node.manifests.lists
            written = [_encode_summary(each.summary) for each in lists if isinstance(each, ManifestList)]
            assert len(written) == len(lists), "lists are written before the snapshot is encoded"
            found[path] = written
    return found


def _encode_summary(summary: ListSummary) -> list[Any]:
    boxes = (summary.bounds, summary.first, summary.last)
    flat = [[number for side in box for number in side] for box in boxes]
    return [summary.id, summary.count, summary.chunk_refs, summary.size_bytes, *flat, list(summary.crossing)]


def decode_summaries(wire: Any) -> dict[str, ListedRefs]:
    """The manifest lists of arrays by path. They are not loaded."""
    try:
        found = msgspec.convert(wire, dict[str, list[_WireSummary]])
    except MALFORMED as error:
        raise FormatError(f"a snapshot has invalid manifest lists: {error}") from error
    known: dict[ObjectId, ManifestList] = {}
    shared: dict[tuple[ObjectId, ...], ListedRefs] = {}
    refs: dict[str, ListedRefs] = {}
    for path, summaries in found.items():
        lists = _decode_lists(path, summaries, known)
        ids = tuple(each.id for each in lists)
        # Arrays with the same lists share one value, so that their manifests are joined once.
        refs[path] = shared[ids] if ids in shared else shared.setdefault(ids, ListedRefs(lists))
    return refs


def _decode_lists(path: str, wire: list[_WireSummary], known: dict[ObjectId, ManifestList]) -> list[ManifestList]:
    lists = []
    for list_id, count, chunk_refs, size_bytes, bounds, first, last, crossing in wire:
        numbers = (count, chunk_refs, size_bytes, *crossing)
        if (
            not are_canonical_ids([list_id])
            or not 1 <= count <= _MAX_COUNT
            or not all(0 <= number <= _MAX_INTEGER for number in numbers)
            or not all(number <= _MAX_INDEX for number in crossing)
            or {len(bounds), len(first), len(last)} != {2 * len(crossing)}
        ):
            raise FormatError(f"the array {path!r:.80} has an invalid manifest list {list_id!r:.40}")
        boxes = (_parse_box(path, bounds), _parse_box(path, first), _parse_box(path, last))
        made = ManifestList(ListSummary(list_id, count, chunk_refs, size_bytes, *boxes, tuple(crossing)))
        # Arrays with the same manifests have the same lists.
        if known.setdefault(list_id, made) != made:
            raise FormatError(f"a snapshot describes the manifest list {list_id} in two ways")
        lists.append(known[list_id])
    ranks = {len(each.summary.crossing) for each in lists}
    if len(ranks) != 1 or not 1 <= min(ranks) <= _MAX_RANK:
        raise FormatError(f"the array {path!r:.80} has manifest lists of different ranks, or none")
    # A list that a snapshot names many times would be joined as often.
    are_sorted = all(each.first <= each.summary.last for each in lists)
    if not are_sorted or not all(one.summary.last < other.first for one, other in itertools.pairwise(lists)):
        raise FormatError(f"the array {path!r:.80} has manifest lists that repeat, or are not in order")
    return lists


def _parse_box(path: str, wire: list[int]) -> Extents:
    box = tuple(zip(wire[::2], wire[1::2], strict=True))
    if not all(0 <= first < end <= _MAX_INDEX + 1 for first, end in box):
        raise FormatError(f"the array {path!r:.80} has a manifest list with the invalid extents {wire!s:.120}")
    return box
