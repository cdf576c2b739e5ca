"""Random snapshots and manifests that the generations `dataset` and `store` can hold."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from hypothesis import strategies as st

from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import (
    ArrayNode,
    AttributesRef,
    GroupNode,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
)
from icefloe.model.zarr_document import parse_array_shape, split_attributes

BYTES12, BYTES16 = st.binary(min_size=12, max_size=12), st.binary(min_size=16, max_size=16)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.integers(10**15, 7 * 10**15).map(
    lambda microseconds: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ATTRIBUTES = st.dictionaries(TEXT, JSON_VALUES | st.floats(), max_size=3)
METADATA = st.dictionaries(TEXT | st.sampled_from(["message", "icefloe", "icefloe.metadata"]), JSON_VALUES, max_size=3)

_FILLS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16).map(lambda v: v if v == v and abs(v) != float("inf") else "NaN"),
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.sampled_from(["NaN", "Infinity", "0x7fc00001"]),
    "float64": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["-Infinity", 0]),
    "complex64": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
    "complex128": st.just([1.5, "NaN"]),
    "string": TEXT,
    "r16": st.lists(st.integers(0, 255), min_size=2, max_size=2),
    "variable_length_bytes": st.just("AAA="),
}
_SIZES = st.integers(0, 9) | st.integers(65530, 65540) | st.just(2**40)


@st.composite
def array_documents(draw: st.DrawFn) -> bytes:
    """An array's zarr.json as zarr-python writes it, or in one of many other ways."""
    shape = draw(st.lists(_SIZES, max_size=3))
    data_type: Any = draw(st.sampled_from(sorted(_FILLS)))
    fill = draw(_FILLS[data_type])
    if draw(st.booleans()) and data_type == "float64":
        data_type = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
    grid: Any = {"name": "regular", "configuration": {"chunk_shape": [draw(st.integers(1, 2**20)) for _ in shape]}}
    if draw(st.integers(0, 5)) == 0:
        grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[n] for n in shape]}}
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    document: dict[str, Any] = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": grid,
        "chunk_key_encoding": {
            "name": "default",
            "configuration": {"separator": draw(st.sampled_from(["/", "/", "."]))},
        },
        "fill_value": fill,
        "codecs": codecs,
        "attributes": draw(ATTRIBUTES),
    }
    if draw(st.booleans()):
        document["dimension_names"] = [draw(st.none() | TEXT) for _ in shape]
    document |= {"zarr_format": 3, "node_type": "array", "storage_transformers": []}
    for key in draw(st.sets(st.sampled_from(["attributes", "storage_transformers"]))):
        if draw(st.booleans()):
            del document[key]
    if draw(st.integers(0, 5)) == 0:
        document["unknown"] = draw(JSON_VALUES)
    return json.dumps(document, indent=draw(st.sampled_from([2, 2, 2, None]))).encode()


@st.composite
def group_documents(draw: st.DrawFn) -> bytes:
    document: dict[str, Any] = {"attributes": draw(ATTRIBUTES), "zarr_format": 3, "node_type": "group"}
    if draw(st.booleans()):
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {}}
    return json.dumps(document, indent=draw(st.sampled_from([2, 2, None]))).encode()


def object_ids(width: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=width, max_size=width).map(encode_base32)


@st.composite
def nodes(draw: st.DrawFn, number: int, path: str, width: int) -> Node:
    is_array = draw(st.booleans())
    document = draw(array_documents() if is_array else group_documents())
    attributes = None
    split = split_attributes(document)
    if split is not None and draw(st.booleans()):
        document, attributes = split[0], AttributesRef(draw(object_ids(width)), draw(st.integers(0, 70000)))
    node_id = number.to_bytes(8, "big")
    if not is_array:
        return GroupNode(node_id, path, document, attributes)
    shape = parse_array_shape(json.loads(document))
    ranges = st.tuples(st.integers(0, 70000), st.integers(0, 2**32)).map(lambda ends: (min(ends), max(ends)))
    extents = st.tuples(*[ranges for _ in shape.shape])
    references = draw(st.lists(st.builds(ManifestRef, object_ids(width), extents), max_size=3))
    return ArrayNode(
        node_id, path, document, shape.shape, shape.grid, shape.dimension_names, tuple(references), attributes
    )


@st.composite
def snapshots(draw: st.DrawFn, width: int, history: bool = False) -> Snapshot:
    """A snapshot with object ids of that many bytes."""
    segment = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/."), min_size=1, max_size=4)
    paths = draw(st.sets(st.lists(segment, max_size=3).map(lambda parts: "/" + "/".join(parts)), max_size=4))
    numbers = draw(st.lists(st.integers(1, 2**32 - 1), min_size=len(paths), max_size=len(paths), unique=True))
    held = {
        path: draw(nodes(number, path, width))
        for path, number in zip(sorted(paths, key=str.encode), numbers, strict=True)
    }
    named = [ref.manifest_id for node in held.values() if isinstance(node, ArrayNode) for ref in node.manifests]
    sizes = st.integers(0, 2**40)
    ancestors: list[SnapshotInfo] = []
    if history:
        ids = draw(st.lists(object_ids(width), max_size=3, unique=True))
        root = draw(st.none() | object_ids(width)) if ids else None
        for index, ancestor in enumerate(ids):
            parent = ids[index + 1] if index + 1 < len(ids) else root
            ancestors.append(SnapshotInfo(ancestor, parent, draw(TIMES), draw(TEXT), draw(METADATA)))
    return Snapshot(
        id=draw(object_ids(width)),
        parent_id=(ancestors[0].id if ancestors else None) if history else draw(st.none() | object_ids(width)),
        written_at=draw(TIMES),
        message=draw(TEXT),
        metadata=draw(METADATA),
        nodes=held,
        manifests={name: ManifestFileInfo(name, draw(sizes), draw(sizes)) for name in named},
        attribute_files=tuple(sorted({n.attributes.object_id for n in held.values() if n.attributes is not None})),
        history=tuple(ancestors),
        total_ancestors=len(ancestors) + draw(st.integers(0, 2)) if history else None,
        started_at=draw(TIMES) if history else draw(st.none() | TIMES),
    )


@st.composite
def chunk_refs(draw: st.DrawFn, width: int, checksums: bool) -> ChunkRef:
    kind = draw(st.sampled_from([ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL]))
    if kind is ChunkKind.INLINE:
        data = draw(st.binary(max_size=20))
        return ChunkRef(kind, 0, len(data), data=data)
    offset, length = draw(st.integers(0, 2**64 - 1)), draw(st.integers(1, 1000) | st.integers(2**32 - 2, 2**64 - 1))
    if kind is ChunkKind.NATIVE:
        return ChunkRef(kind, offset, length, object_id=draw(st.binary(min_size=width, max_size=width)))
    location = draw(st.sampled_from(["s3://bucket/a.nc", 'file:///tmp/x"y\\z.h5']) | TEXT.map("gs://b/{}".format))
    etag = draw(st.none() | TEXT) if checksums else None
    modified = draw(st.none() | st.integers(1, 2**32 - 1)) if checksums and etag is None else None
    return ChunkRef(kind, offset, length, location=location, etag=etag, last_modified=modified)


@st.composite
def tables(draw: st.DrawFn, width: int, checksums: bool = False) -> ChunkTable:
    rank = draw(st.integers(0, 3))
    number = st.integers(0, 3) | st.integers(245, 260) | st.integers(65534, 65537) | st.integers(0, 2**32 - 1)
    rows = draw(st.dictionaries(st.tuples(*[number] * rank), chunk_refs(width, checksums), min_size=1, max_size=12))
    return table_from_rows(list(rows.items()), rank)


@st.composite
def manifests(draw: st.DrawFn, width: int, checksums: bool = False) -> Manifest:
    """A manifest with chunk ids of that many bytes."""
    numbers = draw(st.sets(st.integers(1, 5) | st.integers(1, 2**32 - 1), max_size=3))
    held = {number.to_bytes(8, "big"): draw(tables(width, checksums)) for number in sorted(numbers)}
    return Manifest(draw(object_ids(width)), held)
