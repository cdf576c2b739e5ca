"""Zarr v2 and v3 stores in a folder or bucket."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from zarr.dtype import parse_dtype

from icefloe.errors import FormatError, UnsupportedError
from icefloe.ingest.access import SourceAccess, listing_version
from icefloe.ingest.chunk_grids import grid_shape, lexicographic_order
from icefloe.ingest.parsers.registry import OpenSource, broken
from icefloe.ingest.source_model import (
    Coordinate,
    References,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.ingest.zarr_documents import attribute_pairs, bytes_codec, fill_value_document, json_value
from icefloe.model.chunk_table import ChunkKind, ChunkTable

_V3_NAMES = {"zstd", "gzip", "blosc"}
_BLOSC_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def variable_of_v2(path: str, document: Mapping[str, Any], attributes: Mapping[str, Any]) -> SourceVariable:
    """The Zarr v3 description of the chunks of a Zarr v2 array."""
    shape = tuple(int(n) for n in document["shape"])
    spelled = document["dtype"]
    not_virtual = None
    filters = list(document.get("filters") or [])
    if spelled == "|O":
        if [f.get("id") for f in filters] != ["vlen-utf8"]:
            raise UnsupportedError("Python objects have no Zarr v3 data type")
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
    fill = _v2_fill(raw_fill, dtype)
    # xarray takes the fill value of a Zarr v2 array for its `_FillValue`. It does not do so for dates.
    if dtype != "string" and np.dtype(dtype).kind in "biufc":
        attributes.pop("_FillValue", None)
    if fill is not None and (dtype == "string" or np.dtype(dtype).kind in "biufcSU"):
        attributes = {**attributes, **attribute_pairs({"_FillValue": fill}, dtype)}
    return SourceVariable(
        path=path,
        dims=_dims(dims, shape),
        shape=shape,
        dtype=dtype,
        chunks=tuple(int(c) for c in document["chunks"]),
        attributes={str(k): json_value(v) for k, v in attributes.items()},
        fill_value=fill_value_document(dtype, fill),
        codecs=(*leading, *codecs),
        not_virtual=not_virtual,
    )


def _v2_fill(value: Any, dtype: str) -> Any:
    kind = "" if dtype == "string" else np.dtype(dtype).kind
    if kind == "c" and isinstance(value, (list, tuple)):
        return complex(*(_v2_fill(part, "<f8") for part in value))
    if isinstance(value, str) and kind and kind in "fc":
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, str) and kind == "S":
        return base64.standard_b64decode(value)
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
    """A Zarr v3 array. A sharded array is referenced by shard."""
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
        # Let zarr parse the name, so that its extension types are supported.
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


DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs")


class ZarrSource(OpenSource):
    """A Zarr hierarchy. Every chunk (or shard) is a separate object."""

    format = "zarr"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self._root = file.url.rstrip("/") + "/"
        self._schema: SourceSchema | None = None
        self._keys: dict[str, tuple[str, str]] = {}
        """Per array: the prefix of its chunk keys below its folder, and the separator."""

    def schema(self) -> SourceSchema:
        if self._schema is None:
            files = self.access.list_files(self.file.url)
            # The store is listed again before the commit: chunks may be replaced while others are read.
            self.file = replace(self.file, version=listing_version(files))
            names = [f.url[len(self._root) :] for f in files]
            documents = [n for n in names if n.rsplit("/", 1)[-1] in DOCUMENTS]
            contents = {name: self._parse(name) for name in documents}
            if not contents:
                raise broken(self.file, "Zarr", "it contains no zarr.json, .zarray or .zgroup")
            self._check_consolidated(contents, has_v2=".zmetadata" in names)
            self._schema = self._build(contents)
        return self._schema

    def _check_consolidated(self, contents: Mapping[str, dict[str, Any]], *, has_v2: bool) -> None:
        """Refuse consolidated metadata that differ from the nodes. xarray reads the consolidated ones."""
        if "zarr.json" in contents:
            found = contents["zarr.json"].get("consolidated_metadata")
            given = found.get("metadata") if isinstance(found, dict) else None
            kept = {f"{path}/zarr.json": document for path, document in (given or {}).items()}
            nodes = {name: d for name, d in contents.items() if name.endswith("/zarr.json")}
        else:
            given = self._parse(".zmetadata").get("metadata") if has_v2 else None
            kept, nodes = dict(given or {}), dict(contents)
        if given is None:
            return
        for name in sorted(kept.keys() | nodes.keys()):
            # Empty attributes may be left out of either.
            if _content(kept.get(name, {})) != _content(nodes.get(name, {})):
                raise FormatError(
                    f"{self.file.url} has consolidated metadata that differs from the metadata of its nodes, at "
                    f"{name}. xarray reads the consolidated metadata. Write it again with zarr.consolidate_metadata, "
                    "or remove it",
                    url=self.file.url,
                    format="Zarr",
                    reason="stale consolidated metadata",
                )

    def _parse(self, name: str) -> dict[str, Any]:
        try:
            parsed = json.loads(self.access.read(self._root + name))
        except ValueError as error:
            raise broken(self.file, "Zarr", f"{name} is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise broken(self.file, "Zarr", f"{name} is not a JSON object")
        return parsed

    def _build(self, contents: Mapping[str, dict[str, Any]]) -> SourceSchema:
        variables: dict[str, SourceVariable] = {}
        groups: dict[str, dict[str, Any]] = {"": {}}
        skipped: dict[str, str] = {}
        for name, document in contents.items():
            folder, _, last = name.rpartition("/")
            is_v3 = last == "zarr.json"
            attributes = document.get("attributes") if is_v3 else contents.get(f"{folder}/.zattrs".lstrip("/"), {})
            if last == ".zgroup" or (is_v3 and document.get("node_type") == "group"):
                groups[folder] = {str(k): json_value(v) for k, v in (attributes or {}).items()}
            elif last == ".zarray" or is_v3:
                try:
                    variables[folder] = (
                        variable_of_v3(folder, document)
                        if is_v3
                        else variable_of_v2(folder, document, attributes or {})
                    )
                    self._keys[folder] = _key_style(document, is_v3)
                except UnsupportedError as error:
                    skipped[folder] = str(error)
                except (KeyError, TypeError, ValueError) as error:
                    raise broken(self.file, "Zarr", f"{name} is not an array document: {error!r}") from error
        schema = SourceSchema(self.file, self.format, variables, {}, groups, skipped)
        return SourceSchema(self.file, self.format, variables, self._coordinates(schema), groups, skipped)

    def _coordinates(self, schema: SourceSchema) -> dict[str, Coordinate]:
        return {
            path: summarise_coordinate(self.values(v, tuple(slice(0, n) for n in v.shape)))
            for path, v in schema.variables.items()
            if v.dims in ((), (v.name,)) and v.not_virtual is None
        }

    def references(self, variable: SourceVariable) -> References:
        if variable.path not in self._keys:
            self.schema()
        prefix, separator = self._keys[variable.path]
        folder = self._root + (variable.path + "/" if variable.path else "")
        files = [f for f in self.access.list_files(folder) if f.url.rsplit("/", 1)[-1] not in DOCUMENTS]
        keys = pa.array([f.url[len(folder) :] for f in files], pa.string())
        coords, chosen = _parse_keys(keys, prefix, separator, variable)
        found = [files[i] for i in chosen]
        count = len(found)
        order = lexicographic_order(coords)
        found = [found[i] for i in order]
        etags = sorted({f.etag for f in found if f.etag})
        positions = {etag: index for index, etag in enumerate(etags)}
        table = ChunkTable(
            coords=coords[order],
            kind=np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
            offset=np.zeros(count, dtype=np.uint64),
            length=np.array([f.size_bytes for f in found], dtype=np.uint64),
            location=np.arange(count, dtype=np.int32),
            locations=[f.url for f in found],
            etag=np.array([positions.get(f.etag or "", -1) for f in found], dtype=np.int32) if etags else None,
            etags=etags,
            last_modified=np.array([f.last_modified or 0 for f in found], dtype=np.uint32),
        )
        return References(table, np.zeros((0, coords.shape[1]), dtype=np.uint32))

    def close(self) -> None:
        self._keys.clear()


def _content(document: Any) -> str:
    """A document as text, without optional members."""
    if not isinstance(document, dict):
        return json.dumps(document)
    kept = {k: v for k, v in document.items() if k != "consolidated_metadata" and v not in (None, [], {})}
    return json.dumps(kept, sort_keys=True)


def _key_style(document: Mapping[str, Any], is_v3: bool) -> tuple[str, str]:
    if not is_v3:
        return "", document.get("dimension_separator", ".")
    encoding = document.get("chunk_key_encoding") or {"name": "default"}
    configuration = encoding.get("configuration") or {}
    if encoding["name"] == "v2":
        return "", configuration.get("separator", ".")
    separator = configuration.get("separator", "/")
    return "c" + separator, separator


def _parse_keys(
    keys: pa.StringArray, prefix: str, separator: str, variable: SourceVariable
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Chunk coordinates of the keys that are chunks, and which keys those are."""
    ndim = len(variable.shape)
    if ndim == 0:
        wanted = prefix.rstrip(separator) or "0"
        chosen = np.flatnonzero(pc.equal(keys, wanted).to_numpy(zero_copy_only=False))
        return np.zeros((len(chosen), 0), dtype=np.uint32), chosen
    part = r"[0-9]+"
    escaped = separator.replace(".", r"\.")
    pattern = "^" + prefix.replace(".", r"\.") + escaped.join([part] * ndim) + "$"
    chosen = np.flatnonzero(pc.match_substring_regex(keys, pattern).to_numpy(zero_copy_only=False))
    trimmed = pc.utf8_slice_codeunits(keys.take(pa.array(chosen)), len(prefix))
    flat = pc.list_flatten(pc.split_pattern(trimmed, separator)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    coords = flat.reshape(len(chosen), ndim)
    inside = (coords < np.array(grid_shape(variable.shape, variable.chunks))).all(axis=1)
    return coords[inside].astype(np.uint32), chosen[inside]
