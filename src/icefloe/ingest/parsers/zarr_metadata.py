"""Zarr v2 and v3 array documents as source variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from zarr.dtype import parse_dtype

from icefloe.errors import UnsupportedError
from icefloe.ingest.source_model import SourceVariable
from icefloe.ingest.zarr_documents import attribute_pairs, bytes_codec, fill_value_document, json_value

_V3_NAMES = {"zstd", "gzip", "blosc"}
_BLOSC_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def variable_of_v2(path: str, document: Mapping[str, Any], attributes: Mapping[str, Any]) -> SourceVariable:
    """A Zarr v2 array as v3 describes the same chunk bytes."""
    shape = tuple(int(n) for n in document["shape"])
    spelled = document["dtype"]
    not_virtual = None
    filters = list(document.get("filters") or [])
    if spelled == "|O":
        if [f.get("id") for f in filters] != ["vlen-utf8"]:
            raise UnsupportedError("objects of any kind have no Zarr v3 data type")
        dtype, filters = "string", []
        codecs: list[Mapping[str, Any]] = [{"name": "vlen-utf8"}]
    elif not isinstance(spelled, str) or np.dtype(spelled).kind not in "biufcSUmM":
        raise UnsupportedError(f"Zarr v3 has no data type for {spelled}")
    else:
        dtype = np.dtype(spelled).str
        codecs = [bytes_codec(dtype)]
    leading: list[Mapping[str, Any]] = []
    if document.get("order", "C") == "F" and len(shape) > 1:
        leading.append({"name": "transpose", "configuration": {"order": list(range(len(shape)))[::-1]}})
    for entry in filters:
        options = {k: v for k, v in entry.items() if k != "id"}
        codec = {"name": f"numcodecs.{entry['id']}", "configuration": options}
        if entry["id"] in ("shuffle", "fletcher32", "crc32", "adler32"):
            codecs.append(codec)
        elif entry["id"] in ("delta", "fixedscaleoffset", "bitround", "quantize", "packbits", "astype"):
            leading.append(codec)
        else:
            not_virtual = f"Zarr v3 has no codec for the filter {entry['id']}"
    compressor = document.get("compressor")
    if compressor is not None:
        codecs.append(_compressor(compressor, dtype))
    raw_fill = document.get("fill_value")
    attributes = dict(attributes)
    dims = attributes.pop("_ARRAY_DIMENSIONS", None)
    if dtype != "string" and np.dtype(dtype).kind in "iuf":
        # xarray takes the fill value of a Zarr v2 array for its `_FillValue`.
        attributes.pop("_FillValue", None)
        if raw_fill is not None:
            attributes = {**attributes, **attribute_pairs({"_FillValue": _v2_fill(raw_fill, dtype)}, dtype)}
    return SourceVariable(
        path=path,
        dims=_dims(dims, shape),
        shape=shape,
        dtype=dtype,
        chunks=tuple(int(c) for c in document["chunks"]),
        attributes={str(k): json_value(v) for k, v in attributes.items()},
        fill_value=fill_value_document(dtype, _v2_fill(raw_fill, dtype)),
        codecs=(*leading, *codecs),
        not_virtual=not_virtual,
    )


def _v2_fill(value: Any, dtype: str) -> Any:
    if isinstance(value, str) and dtype != "string" and np.dtype(dtype).kind in "fc":
        return float(value.replace("Infinity", "inf"))
    return value


def _compressor(compressor: Mapping[str, Any], dtype: str) -> Mapping[str, Any]:
    name = compressor["id"]
    options = {k: v for k, v in compressor.items() if k != "id"}
    if name == "blosc":
        itemsize = 1 if dtype == "string" else np.dtype(dtype).itemsize
        shuffle = options.get("shuffle", 1)
        if shuffle == -1:
            shuffle = 2 if itemsize == 1 else 1
        options = {
            "typesize": itemsize,
            "cname": options.get("cname", "lz4"),
            "clevel": options.get("clevel", 5),
            "shuffle": _BLOSC_SHUFFLES[shuffle],
            "blocksize": options.get("blocksize", 0),
        }
    elif name == "zstd":
        options = {"level": options.get("level", 0), "checksum": bool(options.get("checksum", False))}
    elif name == "gzip":
        options = {"level": options.get("level", 5)}
    return {"name": name if name in _V3_NAMES else f"numcodecs.{name}", "configuration": options}


def variable_of_v3(path: str, document: Mapping[str, Any]) -> SourceVariable:
    """A Zarr v3 array, as it is; a sharded one is referenced shard by shard."""
    grid = document["chunk_grid"]
    if grid["name"] != "regular":
        raise UnsupportedError(f"the chunk grid {grid['name']!r} cannot be combined with others")
    shape = tuple(int(n) for n in document["shape"])
    dtype = _v3_type(document["data_type"])
    dims = document.get("dimension_names")
    codecs = tuple(document["codecs"])
    if dtype != "string":
        dtype = np.dtype(dtype).newbyteorder(_byte_order(codecs)).str
    return SourceVariable(
        path=path,
        dims=_dims(dims, shape),
        shape=shape,
        dtype=dtype,
        chunks=tuple(int(c) for c in grid["configuration"]["chunk_shape"]),
        attributes={str(k): json_value(v) for k, v in (document.get("attributes") or {}).items()},
        fill_value=document.get("fill_value"),
        codecs=codecs,
    )


def _v3_type(spelled: Any) -> str:
    if spelled == "string":
        return "string"
    try:
        # zarr's own reading of the name, so that extension types are known as far as zarr knows them.
        native = parse_dtype(spelled, zarr_format=3).to_native_dtype()
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedError(f"unknown Zarr v3 data type {spelled}") from error
    return str(native.str) if native.kind in "biufcSUmM" else _refuse_type(spelled)


def _refuse_type(spelled: Any) -> str:
    raise UnsupportedError(f"arrays of {spelled} cannot be combined")


def _byte_order(codecs: tuple[Mapping[str, Any], ...]) -> Literal["<", ">"]:
    for codec in codecs:
        if codec["name"] == "bytes" and (codec.get("configuration") or {}).get("endian") == "big":
            return ">"
    return "<"


def _dims(names: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    given = list(names) if names else [None] * len(shape)
    return tuple(f"dim_{axis}" if name is None else str(name) for axis, name in enumerate(given))
