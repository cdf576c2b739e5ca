"""Sources that are references already: Kerchunk sets (JSON or Parquet), and any parser of the VirtualiZarr package."""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import InvalidInputError, ObjectNotFoundError, UnsupportedError
from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.chunk_grids import all_coords, grid_shape, lexicographic_order
from icefloe.ingest.parsers.registry import OpenSource, broken
from icefloe.ingest.parsers.zarr import variable_of_v2, variable_of_v3
from icefloe.ingest.source_model import (
    Coordinate,
    References,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.ingest.zarr_documents import json_value
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.zarr_document import parse_document


class KerchunkSource(OpenSource):
    """References to chunks of other files, in Zarr v2's key scheme."""

    format = "kerchunk"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self._schema: SourceSchema | None = None
        self._documents, self._record_size = self._load()

    def _load(self) -> tuple[dict[str, Any], int]:
        """The metadata documents by key. JSON sets contain the references too."""
        root = self.file.url.rstrip("/")
        self._refs: dict[str, dict[str, Any]] = defaultdict(dict)
        try:
            if not root.endswith(".json"):
                parsed = json.loads(self.access.read(root + "/.zmetadata"))
                return dict(parsed["metadata"]), int(parsed["record_size"])
            parsed = json.loads(self.access.read(root))
            if "gen" in parsed:
                raise UnsupportedError(f"{root} has generated references (`gen`). Expand them with kerchunk first")
            refs = parsed.get("refs", parsed)
            templates = parsed.get("templates", {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, UnsupportedError):
                raise
            raise broken(self.file, "Kerchunk", error) from error
        documents: dict[str, Any] = {}
        for key, value in refs.items():
            folder, _, last = key.rpartition("/")
            if last in (".zarray", ".zgroup", ".zattrs", ".zmetadata"):
                documents[key] = json.loads(value) if isinstance(value, str) else value
            else:
                self._refs[folder][last] = _fill_templates(value, templates)
        return documents, 0

    def schema(self) -> SourceSchema:
        if self._schema is not None:
            return self._schema
        variables: dict[str, SourceVariable] = {}
        groups: dict[str, Mapping[str, Any]] = {"": {}}
        skipped: dict[str, str] = {}
        for key, document in self._documents.items():
            folder, _, last = key.rpartition("/")
            attributes = self._documents.get(f"{folder}/.zattrs".lstrip("/"), {})
            if last == ".zgroup":
                groups[folder] = {str(k): json_value(v) for k, v in attributes.items()}
            elif last == ".zarray":
                try:
                    variables[folder] = variable_of_v2(folder, document, attributes)
                except UnsupportedError as error:
                    skipped[folder] = str(error)
                except (KeyError, TypeError, ValueError) as error:
                    raise broken(self.file, "Kerchunk", f"{key}: {error!r}") from error
        coordinates = {
            path: summarise_coordinate(self.values(v, tuple(slice(0, n) for n in v.shape)))
            for path, v in variables.items()
            if v.dims in ((), (v.name,)) and v.not_virtual is None
        }
        self._schema = SourceSchema(
            self.file, self.format, variables, coordinates, groups, skipped, self._referenced(variables)
        )
        return self._schema

    def _referenced(self, variables: Mapping[str, SourceVariable]) -> tuple[str, ...]:
        """The folders of the files that the references point into."""
        places = (url for v in variables.values() for url in self.references(v).table.locations)
        return tuple(sorted({url.rsplit("/", 1)[0] + "/" for url in places}))

    def references(self, variable: SourceVariable) -> References:
        try:
            table = self._from_parquet(variable) if self._record_size else self._from_json(variable)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise broken(self.file, "Kerchunk", f"references of {variable.path}: {error!r}") from error
        return References(table, np.zeros((0, len(variable.shape)), dtype=np.uint32))

    def _from_json(self, variable: SourceVariable) -> ChunkTable:
        refs = self._refs.get(variable.path, {})
        separator = self._documents[f"{variable.path}/.zarray"].get("dimension_separator", ".")
        ndim = len(variable.shape)
        keys = [key for key in refs if re.fullmatch(r"[0-9]+(?:[./][0-9]+)*", key)]
        coords = np.array([key.split(separator) if ndim else [] for key in keys], dtype=np.int64)
        coords = coords.reshape(len(keys), ndim)
        values = [refs[key] for key in keys]
        raw = [_inline_bytes(v) for v in values]
        paths = [None if isinstance(v, str) else v[0] for v in values]
        offsets = np.array([0 if isinstance(v, str) or len(v) < 2 else v[1] for v in values], dtype=np.int64)
        lengths = np.array([-1 if isinstance(v, str) or len(v) < 3 else v[2] for v in values], dtype=np.int64)
        return self._table(coords, paths, offsets, lengths, raw)

    def _from_parquet(self, variable: SourceVariable) -> ChunkTable:
        grid = grid_shape(variable.shape, variable.chunks)
        total = int(np.prod(grid, dtype=np.int64))
        tables = []
        for record in range(-(-total // self._record_size)):
            url = f"{self.file.url.rstrip('/')}/{variable.path}/refs.{record}.parq"
            try:
                tables.append(pq.read_table(pa.BufferReader(self.access.read(url))))
            except ObjectNotFoundError:
                # A record whose chunks are all missing is not written.
                tables.append(_empty_record(min(self._record_size, total - record * self._record_size)))
        joined = pa.concat_tables([_plain(t) for t in tables], promote_options="default").slice(0, total)
        paths, raw = joined["path"].to_pylist(), joined["raw"].to_pylist()
        present = np.flatnonzero(np.array([p is not None or r is not None for p, r in zip(paths, raw, strict=True)]))
        coords = np.stack(np.unravel_index(present, grid), axis=1) if grid else np.zeros((len(present), 0), np.int64)
        lengths = joined["size"].to_numpy()[present]
        # A size of zero means the whole file.
        return self._table(
            coords,
            [paths[i] for i in present],
            joined["offset"].to_numpy()[present],
            np.where(lengths == 0, -1, lengths),
            [raw[i] for i in present],
        )

    def _table(self, coords: Any, paths: list[Any], offsets: Any, lengths: Any, raw: list[Any]) -> ChunkTable:
        if len(paths) == 0:
            return empty_table(int(coords.shape[1]))
        is_inline = np.array([p is None for p in paths])
        words: dict[str, int] = {}
        location = np.array([-1 if p is None else words.setdefault(p, len(words)) for p in paths], dtype=np.int32)
        urls = [normalise_url(word) for word in words]
        whole = np.flatnonzero(~is_inline & (lengths < 0))
        for index in whole:
            offsets[index], lengths[index] = 0, self.access.describe(urls[location[index]]).size_bytes
        inline_lengths = np.array([0 if r is None else len(r) for r in raw], dtype=np.int64)
        order = lexicographic_order(coords.astype(np.uint32))
        inline = b"".join(raw[i] for i in order if is_inline[i])
        ordered_inline = np.where(is_inline, inline_lengths, 0)[order]
        starts = np.cumsum(ordered_inline) - ordered_inline
        return ChunkTable(
            coords=coords[order].astype(np.uint32),
            kind=np.where(is_inline, ChunkKind.INLINE, ChunkKind.VIRTUAL).astype(np.uint8)[order],
            offset=np.where(is_inline[order], starts, offsets[order]).astype(np.uint64),
            length=np.where(is_inline, inline_lengths, lengths)[order].astype(np.uint64),
            location=location[order] if words else None,
            locations=urls,
            inline=inline,
        )

    def close(self) -> None:
        self._refs.clear()


def _plain(table: pa.Table) -> pa.Table:
    """Columns without dictionary encoding, so that records with different dictionaries can be joined."""
    columns = {name: table[name] for name in ("path", "offset", "size", "raw")}
    return pa.table(
        {
            "path": columns["path"].cast(pa.string()),
            "offset": columns["offset"].cast(pa.int64()),
            "size": columns["size"].cast(pa.int64()),
            "raw": columns["raw"].cast(pa.binary()),
        }
    )


def _empty_record(count: int) -> pa.Table:
    return pa.table(
        {
            "path": pa.nulls(count, pa.string()),
            "offset": np.zeros(count, np.int64),
            "size": np.zeros(count, np.int64),
            "raw": pa.nulls(count, pa.binary()),
        }
    )


def _inline_bytes(value: Any) -> bytes | None:
    if not isinstance(value, str):
        return None
    return base64.b64decode(value[7:]) if value.startswith("base64:") else value.encode("latin-1")


def _fill_templates(value: Any, templates: Mapping[str, str]) -> Any:
    if not isinstance(value, list) or "{{" not in value[0]:
        return value
    place = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: templates.get(match[1], match[0]), value[0])
    if "{{" in place:
        raise UnsupportedError(f"the template in {value[0]!r} cannot be expanded. Expand it with kerchunk first")
    return [place, *value[1:]]


class VirtualiZarrSource(OpenSource):
    """A manifest store of a parser. Its manifests are already columns and are used directly.

    `name` is `module:parser`: a parser class (it is called without arguments), or a parser.
    """

    format = "virtualizarr"

    def __init__(self, file: SourceFile, access: SourceAccess, name: str) -> None:
        super().__init__(file, access)
        parser = load_parser(name)
        parts = urlsplit(file.url)
        root = f"{parts.scheme}://{parts.netloc}"
        # The stores of VirtualiZarr's registry are those of obstore, which it depends on.
        store = importlib.import_module("obstore.store").from_url(root if parts.netloc else f"{root}/")
        try:
            # Kerchunk sets are read without VirtualiZarr and what it depends on.
            registry = importlib.import_module("obspec_utils.registry").ObjectStoreRegistry({root: store})
            manifests = parser(url=file.url, registry=registry)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
            raise broken(file, name, error) from error
        except ImportError as error:
            raise UnsupportedError(
                f"{name} needs another package to read {file.url}: {' '.join(str(error).split())}"
            ) from error
        self._arrays: dict[str, Any] = {}
        self._groups: dict[str, dict[str, Any]] = {}
        for path, group in _walk(manifests._group):
            self._groups[path] = {str(k): json_value(v) for k, v in group.metadata.attributes.items()}
            self._arrays.update({f"{path}/{n}" if path else n: array for n, array in group.arrays.items()})
        self._schema: SourceSchema | None = None

    def schema(self) -> SourceSchema:
        if self._schema is not None:
            return self._schema
        variables: dict[str, SourceVariable] = {}
        skipped: dict[str, str] = {}
        for path, array in self._arrays.items():
            document = array.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
            try:
                variables[path] = variable_of_v3(path, parse_document(document))
            except UnsupportedError as error:
                skipped[path] = str(error)
        coordinates: dict[str, Coordinate] = {
            path: summarise_coordinate(self.values(v, tuple(slice(0, n) for n in v.shape)))
            for path, v in variables.items()
            if v.dims in ((), (v.name,))
        }
        places = (url for v in variables.values() for url in self.references(v).table.locations if url)
        folders = tuple(sorted({url.rsplit("/", 1)[0] + "/" for url in places}))
        self._schema = SourceSchema(self.file, self.format, variables, coordinates, self._groups, skipped, folders)
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        manifest = self._arrays[variable.path].manifest
        none = np.zeros((0, len(variable.shape)), dtype=np.uint32)
        return References(manifest_table(manifest, len(variable.shape)), none)

    def close(self) -> None:
        self._arrays.clear()


def load_parser(name: str) -> Any:
    """The parser of `module:name`, created with its defaults if it is a class."""
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"there is no parser {name!r}: {error}") from error
    return found() if isinstance(found, type) else found


def manifest_table(manifest: Any, ndim: int) -> ChunkTable:
    """The columns of a VirtualiZarr manifest as a chunk table."""
    paths = np.asarray(manifest._paths).reshape(-1)
    offsets = np.asarray(manifest._offsets).reshape(-1)
    lengths = np.asarray(manifest._lengths).reshape(-1)
    inlined: Mapping[tuple[int, ...], bytes] = getattr(manifest, "_inlined", {}) or {}
    grid = np.asarray(manifest._paths).shape
    is_inline = np.zeros(len(paths), dtype=bool)
    places = np.array([int(np.ravel_multi_index(key, grid)) if grid else 0 for key in inlined], dtype=np.int64)
    is_inline[places] = True
    present = np.flatnonzero((paths != "") | is_inline)
    if len(present) == 0:
        return empty_table(ndim)
    shown = paths[present]
    shown[is_inline[present]] = ""
    words, codes = np.unique(shown, return_inverse=True)
    urls = [normalise_url(str(word)) if word else "" for word in words]
    data = {int(place): content for place, content in zip(places, inlined.values(), strict=True)}
    contents = [data[int(p)] for p in present if is_inline[p]]
    sizes = np.zeros(len(present), dtype=np.int64)
    sizes[is_inline[present]] = [len(c) for c in contents]
    coords: npt.NDArray[np.uint32] = all_coords(grid)[present]
    return ChunkTable(
        coords=coords,
        kind=np.where(is_inline[present], ChunkKind.INLINE, ChunkKind.VIRTUAL).astype(np.uint8),
        offset=np.where(is_inline[present], np.cumsum(sizes) - sizes, offsets[present]).astype(np.uint64),
        length=np.where(is_inline[present], sizes, lengths[present]).astype(np.uint64),
        location=np.where(is_inline[present], -1, codes).astype(np.int32),
        locations=urls,
        inline=b"".join(contents),
    )


def _walk(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, child in group.groups.items():
        yield from _walk(child, f"{path}/{name}" if path else name)
