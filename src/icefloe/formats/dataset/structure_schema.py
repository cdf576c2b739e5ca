"""The Arrow schema of structure files, with the fields that widen when a value does not fit."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

NARROW = pa.uint16()
WIDE = {
    "id": pa.uint32(),
    "row": pa.uint32(),
    "shape": pa.uint64(),
    "chunk_shape": pa.uint64(),
    "extent": pa.uint64(),
}
"""What a field becomes, for the whole file, when one value does not fit the seed's uint16."""
LARGEST = {name: 2**kind.bit_width - 1 for name, kind in WIDE.items()}


def structure_schema(widened: Collection[str] = ()) -> pa.Schema:
    """The seed's schema; the named fields are wider."""

    def number(name: str) -> pa.DataType:
        return WIDE[name] if name in widened else NARROW

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    grid = pa.struct([required("chunk_shape", pa.list_(number("chunk_shape")))])
    keys = pa.struct([required("separator", pa.string())])
    array_metadata = pa.struct(
        [
            required("shape", pa.list_(number("shape"))),
            required("data_type", pa.string()),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field("chunk_grid", pa.struct([required("name", pa.string()), required("configuration", grid)])),
            pa.field("chunk_key_encoding", pa.struct([required("name", pa.string()), required("configuration", keys)])),
            pa.field(
                "codecs", pa.list_(pa.struct([required("name", pa.string()), pa.field("configuration", pa.binary())]))
            ),
        ]
    )
    attrs_reference = pa.struct(
        [required("attrs_file", pa.string()), required("row", number("row")), pa.field("flags", NARROW)]
    )
    inventory = pa.struct(
        [
            required("inventory_file", pa.string()),
            required("row", number("row")),
            required("extent", pa.list_(pa.list_(number("extent"), 2))),
            pa.field("flags", NARROW),
        ]
    )
    return pa.schema(
        [
            _described(required("id", number("id")), "unique identifier for the node"),
            _described(required("type", pa.string()), "array or group"),
            _described(required("path", pa.string()), "path to the node within the store"),
            _described(pa.field("array_metadata", array_metadata), "All the Zarr array metadata"),
            _described(pa.field("inline_attrs", pa.binary()), "user-defined attributes, stored inline with this entry"),
            _described(
                pa.field("attrs_reference", attrs_reference),
                "user-defined attributes, stored in a separate attributes file",
            ),
            pa.field("inventories", pa.list_(inventory)),
        ]
    )


def _described(field: pa.Field, description: str) -> pa.Field:
    return field.with_metadata({"description": description})
