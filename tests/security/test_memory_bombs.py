"""Small files never become large in memory: every decoder of every generation bounds sizes before it takes memory."""

from __future__ import annotations

import contextlib
import io
import resource
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.errors import FormatError, IcefloeError
from icefloe.formats.dataset.coord import encode_coord
from icefloe.formats.dataset.manifest_file import manifest_schema
from icefloe.formats.dataset.structure_schema import structure_schema
from icefloe.formats.registry import get_format
from icefloe.model.capabilities import SpecVersion

MOST_BYTES = 600 << 20
"""What a decoder may take for a bomb before it refuses, besides the process itself."""

Decoder = Callable[[bytes], Any]


def decoders(version: SpecVersion) -> dict[str, Decoder]:
    layout = get_format(version)
    return {
        "snapshot": layout.decode_snapshot,
        "manifest": layout.decode_manifest,
        "attributes": layout.decode_attributes,
        "transaction log": layout.decode_transaction_log,
    }


def _limited(version: SpecVersion, kind: str, data: bytes, out: Any) -> None:
    """In a process of its own: memory of Arrow and zstd is not Python's to count."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        decoders(version)[kind](data)
        told = "decoded"
    except IcefloeError as error:
        told = type(error).__name__
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
    out.put((told, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10))


def decode_apart(version: SpecVersion, kind: str, data: bytes) -> tuple[str, int]:
    """What a decoder says of a file, and how many bytes it took."""
    context = get_context("fork")
    out = context.SimpleQueue()
    process = context.Process(target=_limited, args=(version, kind, data, out))
    process.start()
    process.join(120)
    assert process.exitcode == 0, "the decoder was killed or did not end"
    told, taken = out.get()
    return str(told), int(taken)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    settings = {"compression": "zstd", "data_page_size": 1 << 30, "dictionary_pagesize_limit": 1 << 28} | options
    pq.write_table(table, sink, write_statistics=False, store_schema=False, **settings)
    return sink.getvalue()


def _rows(count: int) -> dict[str, pa.Array]:
    return {
        "id": pa.array(np.arange(count, dtype="u4")),
        "array_id": pa.array(np.ones(count, "u4")),
        "coord": pa.array([n.to_bytes(4, "big") for n in range(count)], pa.binary()),
        "inline_data": pa.nulls(count, pa.binary()),
        "chunk_file": pa.nulls(count, pa.string()),
        "offset": pa.array(np.zeros(count, "u8")),
        "length": pa.array(np.ones(count, "u4")),
    }


def _repeated(value: bytes, count: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, "i4")), pa.array([value], pa.binary()).cast(kind))


def _manifest_bomb(column: str, size: int, count: int, **options: Any) -> bytes:
    kind = pa.binary() if column in ("inline_data", "coord") else pa.string()
    columns = _rows(count) | {column: _repeated(b"a" * size, count, kind)}
    return _parquet(pa.table(columns), **options)


def _nested_bomb(size: int, elements: int) -> bytes:
    """A structure file with one row, whose list of codecs is long and repeats one long name."""
    schema = structure_schema()
    row = dict.fromkeys(schema.names) | {"id": 1, "type": "array", "path": "/a"}
    row["array_metadata"] = {
        "shape": [1], "data_type": "int8", "fill_value": b"0", "dimension_names": None,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "x" * size, "configuration": None}] * elements,
    }  # fmt: skip
    return _parquet(pa.Table.from_pylist([row], schema=schema))


def _nulls(count: int) -> bytes:
    table = pa.table({name: pa.nulls(count, field.type) for name, field in zip(_rows(1), manifest_schema())})
    return _parquet(table, row_group_size=count)


def _prefixes(count: int, size: int) -> bytes:
    columns = _rows(count)
    columns["chunk_file"] = pa.array([f"{'a' * size}{n:06}" for n in range(count)])
    return _parquet(pa.table(columns), use_dictionary=False, column_encoding={"chunk_file": "DELTA_BYTE_ARRAY"})


DATASET_BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "repeated inline data": ("manifest", lambda: _manifest_bomb("inline_data", 4 << 20, 2000)),
    "repeated names": ("manifest", lambda: _manifest_bomb("chunk_file", 4 << 20, 2000)),
    "repeated coordinates": ("manifest", lambda: _manifest_bomb("coord", 4 << 20, 2000)),
    "snappy": ("manifest", lambda: _manifest_bomb("inline_data", 1 << 20, 8000, compression="snappy")),
    "pages of version 2": ("manifest", lambda: _manifest_bomb("inline_data", 4 << 20, 2000, data_page_version="2.0")),
    "plain pages": ("manifest", lambda: _manifest_bomb("inline_data", 1 << 20, 1000, use_dictionary=False)),
    "shared prefixes": ("manifest", lambda: _prefixes(1000, 1 << 20)),
    "nulls": ("manifest", lambda: _nulls(100_000_000)),
    "nested names": ("snapshot", lambda: _nested_bomb(1 << 20, 1500)),
    "attributes": (
        "attributes",
        lambda: _parquet(pa.table({"attrs": _repeated(b"x" * (4 << 20), 2000, pa.binary())})),
    ),
}


@pytest.mark.parametrize("name", sorted(DATASET_BOMBS))
def test_parquet_that_would_become_large_is_refused(name: str) -> None:
    kind, make = DATASET_BOMBS[name]
    data = make()
    assert len(data) < 4 << 20
    told, taken = decode_apart(SpecVersion.DATASET, kind, data)
    assert told == "FormatError" and taken < MOST_BYTES, (told, taken >> 20)


def test_parquet_whose_values_repeat_a_little_is_read() -> None:
    """A dictionary that grows within what is believed is no bomb, even where its longest value alone looks like one."""
    values = [b"a" * (1 << 20), *(bytes([n]) for n in range(200))]
    indices = np.r_[0, np.tile(np.arange(1, 201), 50)].astype("i4")
    columns = _rows(len(indices)) | {
        "inline_data": pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values, pa.binary())),
        "length": pa.array([1 << 20, *([1] * (len(indices) - 1))], pa.uint32()),
        "offset": pa.nulls(len(indices), pa.uint64()),
        "coord": pa.array([encode_coord((n,)) for n in range(len(indices))], pa.binary()),
    }
    (found,) = get_format(SpecVersion.DATASET).decode_manifest(_parquet(pa.table(columns))).tables.values()
    assert len(found) == len(indices) and len(found.inline) == (1 << 20) + len(indices) - 1


def test_a_footer_with_wrong_sizes_gives_a_format_error() -> None:
    data = _manifest_bomb("inline_data", 1 << 10, 10)
    layout = get_format(SpecVersion.DATASET)
    for position in range(len(data) - 800, len(data) - 8, 3):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        with contextlib.suppress(FormatError):
            layout.decode_manifest(bytes(broken))
