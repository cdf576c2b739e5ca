"""Any parser of the VirtualiZarr package as a source."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from obspec_utils.registry import ObjectStoreRegistry  # type: ignore[import-not-found, unused-ignore]
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.chunk_grids import all_coords
from icefloe.ingest.parsers.contract import OpenSource, broken
from icefloe.ingest.parsers.zarr import variable_of_v3
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
            manifests = parser(url=file.url, registry=ObjectStoreRegistry({root: store}))
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
