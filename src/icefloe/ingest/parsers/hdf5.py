"""NetCDF4 and HDF5 files, read with h5py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from icefloe.errors import IcefloeError, InvalidInputError, UnsupportedError
from icefloe.hdf5_codec import Hdf5Codec
from icefloe.ingest.access import SourceAccess, local_errors, local_path
from icefloe.ingest.cf import decoded_dtype
from icefloe.ingest.chunk_grids import (
    ChunkRegion,
    all_coords,
    contiguous_chunks,
    contiguous_references,
    grid_shape,
    region_shape,
    virtual_table,
)
from icefloe.ingest.parsers.registry import OpenSource, broken, check_inside
from icefloe.ingest.source_model import (
    Coordinate,
    References,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.ingest.zarr_documents import TEXT_CODECS, attribute_pairs, bytes_codec, fill_value_document, json_value
from icefloe.model.chunk_table import empty_table

NOT_A_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def name_dimensions(datasets: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Dimension names per dataset of one group."""
    names: dict[str, tuple[str, ...]] = {}
    phony: dict[tuple[int, int], str] = {}
    for name, dataset in datasets.items():
        if dataset.shape is not None:
            names[name] = _names(name, dataset, phony)
    return names


def _names(name: str, dataset: Any, phony: dict[tuple[int, int], str]) -> tuple[str, ...]:
    attributes = dataset.attrs
    if "DIMENSION_LIST" in attributes:
        lists, file = attributes["DIMENSION_LIST"], dataset.file.id
        found = [_scale_name(file, scales) if len(scales) else None for scales in lists]
    elif dataset.ndim == 1 and _is_scale(attributes):
        found = [name]
    elif dataset.ndim > 1 and _is_scale(attributes) and "_Netcdf4Coordinates" in attributes:
        # A coordinate variable with several dimensions is only the scale of its first dimension.
        sizes = np.asarray(attributes["_Netcdf4Coordinates"]).reshape(-1)
        found = [name] + [None] * (len(sizes) - 1)
    else:
        found = [None] * dataset.ndim
    used: dict[int, int] = {}
    for axis, label in enumerate(found):
        if label is None:
            size = int(dataset.shape[axis])
            repeat = used.get(size, 0)
            used[size] = repeat + 1
            found[axis] = phony.setdefault((size, repeat), f"phony_dim_{len(phony)}")
    return tuple(str(label) for label in found)


def _is_scale(attributes: Any) -> bool:
    return bool(attributes.get("CLASS", b"") in (b"DIMENSION_SCALE", "DIMENSION_SCALE"))


def _scale_name(file: Any, scales: Any) -> str:
    path = h5py.h5r.get_name(scales[0], file)
    return str(path.decode()).rsplit("/", 1)[-1]


_UNSUPPORTED = {5: "nbit", 32013: "zfp", 32017: "SZ", 32024: "SZ3"}
_FILTERS = {4: "szip", 6: "scaleoffset", 32000: "lzf", 32004: "lz4", 32008: "bitshuffle"}
"""Filters that `icefloe.hdf5` undoes."""

_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def codecs_of(plist: Any, dtype: str, size_bytes: int) -> tuple[tuple[Mapping[str, Any], ...], str | None]:
    """The codecs that decode a dataset's filters, and the reason if there are none.

    `size_bytes` is the size of a chunk without filters.
    """
    if dtype == "string":
        return TEXT_CODECS, None
    codecs: list[Mapping[str, Any]] = [bytes_codec(dtype)]
    size: int | None = size_bytes
    for position in range(plist.get_nfilters()):
        number, _, values, name = plist.get_filter(position)
        codec = _codec(number, values) if number != 2 or size is not None else None
        if codec is None:
            codec = _own_codec(number, values, size)
        if codec is None:
            label = _UNSUPPORTED.get(number, f"number {number} ({name.decode(errors='replace')})")
            return (codecs[0],), f"Zarr has no codec for the HDF5 filter {label}"
        if number != 2 or values[0] > 1:
            codecs.append(codec)
        if number == 3 and size is not None:
            size += 4
        elif number != 2:
            size = None
    return tuple(codecs), None


def _own_codec(number: int, values: tuple[int, ...], size: int | None) -> Mapping[str, Any] | None:
    """The codec `icefloe.hdf5` for a filter whose result has this size, or whose size is not fixed."""
    name = "shuffle" if number == 2 else _FILTERS.get(number)
    kept = {"szip": values, "scaleoffset": values, "shuffle": values[:1]}.get(name or "", ())
    if name == "bitshuffle" and len(values) > 2:
        # Two numbers of the version, element size, block size, compression, and the level of the compression.
        kept = (*values[2:5], 0, 0)[:3]
    try:
        return None if name is None else Hdf5Codec(name, kept, size).to_dict()
    except InvalidInputError:
        return None


def _codec(number: int, values: tuple[int, ...]) -> Mapping[str, Any] | None:
    match number:
        case 1:
            return {"name": "numcodecs.zlib", "configuration": {"level": values[0]}}
        case 2:
            return {"name": "numcodecs.shuffle", "configuration": {"elementsize": values[0]}}
        case 3:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case 307:
            return {"name": "numcodecs.bz2", "configuration": {"level": values[0] if values else 9}}
        case 32015:
            return {"name": "zstd", "configuration": {"level": values[0] if values else 3, "checksum": False}}
        case 32001 if len(values) >= 7:
            return {
                "name": "blosc",
                "configuration": {
                    "typesize": max(1, values[2]),
                    "cname": _BLOSC_NAMES[values[6]],
                    "clevel": values[4],
                    "shuffle": _BLOSC_SHUFFLES[values[5]],
                    "blocksize": 0,
                },
            }
    return None


HIDDEN_ATTRIBUTES = frozenset(
    [
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "DIMENSION_LABELS",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    ]
)


class Hdf5Source(OpenSource):
    """A file with groups and datasets, and with the dimensions of NetCDF4 if it has them."""

    format = "hdf5"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        path = local_path(file.url)
        self._handle: Any = None
        self._schema: SourceSchema | None = None
        with self._translated():
            if path is not None:
                with local_errors(file.url):
                    path.open("rb").close()
                # Do not lock files: sources are only read, and many cluster file systems have no locks.
                self._hdf5 = h5py.File(path, "r", locking=False, rdcc_nbytes=8 << 20)
            else:
                self._handle = access.open(file)
                self._hdf5 = h5py.File(self._handle, "r", rdcc_nbytes=8 << 20)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            if isinstance(error, IcefloeError):
                raise
            raise broken(self.file, "NetCDF4/HDF5", error) from error

    def schema(self) -> SourceSchema:
        if self._schema is None:
            with self._translated():
                self._schema = self._read_schema()
        return self._schema

    def _read_schema(self) -> SourceSchema:
        groups: dict[str, dict[str, Any]] = {}
        variables: dict[str, SourceVariable] = {}
        coordinates: dict[str, Coordinate] = {}
        skipped: dict[str, str] = {}
        left_out: dict[str, str] = {}
        growing: dict[str, tuple[tuple[str, ...], tuple[int, ...], tuple[int | None, ...]]] = {}
        for group_path, group, datasets in _walk(self._hdf5):
            groups[group_path] = _attributes(group)
            dimensions = name_dimensions(datasets)
            for name, dataset in datasets.items():
                path = f"{group_path}/{name}" if group_path else name
                attributes = dataset.attrs
                keys = list(attributes)
                most = dataset.maxshape if dataset.chunks is not None else ()
                if None in most:
                    growing[path] = dimensions.get(name, ()), dataset.shape, most
                if "NAME" in keys and _is_only_dimension(attributes["NAME"]):
                    continue
                if h5py.check_ref_dtype(dataset.dtype) is not None:
                    left_out[path] = "references to other members of the file"
                    continue
                try:
                    variable = _describe(path, dataset, dimensions.get(name, ()), keys)
                except UnsupportedError as error:
                    skipped[path] = str(error)
                    continue
                variables[path] = variable
                if variable.dims in ((), (name,)):
                    found = dataset.asstr()[()] if variable.dtype == "string" else dataset[()]
                    coordinates[path] = summarise_coordinate(np.atleast_1d(found))
        for path, shape in _full_shapes(growing).items():
            if path in variables:
                variables[path] = variable = replace(variables[path], shape=shape)
                if path in coordinates:
                    coordinates[path] = summarise_coordinate(self.values(variable, (slice(0, shape[0]),)))
        return SourceSchema(self.file, self.format, variables, coordinates, groups, skipped, left_out=left_out)

    def references(self, variable: SourceVariable) -> References:
        with self._translated():
            dataset = self._hdf5[variable.path]
            return self._references(dataset, variable)

    def _references(self, dataset: Any, variable: SourceVariable) -> References:
        ndim = len(variable.shape)
        none = np.zeros((0, ndim), dtype=np.uint32)
        layout = dataset.id.get_create_plist().get_layout()
        if layout == h5py.h5d.CHUNKED:
            coords, masks, offsets, lengths = _chunk_index(dataset)
            check_inside(self.file, "NetCDF4/HDF5", offsets, lengths)
            # HDF5 skips a filter for a chunk that it does not make smaller. The array's codecs cannot decode such a
            # chunk.
            plain = masks == 0
            if dataset.shape != variable.shape:
                # A chunk also contains bytes after the end of its dataset. NetCDF4 reads fill values there.
                chunks = dataset.chunks
                ends = [
                    have if have < full else full + chunk
                    for have, full, chunk in zip(dataset.shape, variable.shape, chunks, strict=True)
                ]
                plain &= ((coords.astype(np.int64) + 1) * np.array(chunks) <= np.array(ends)).all(axis=1)
            return References(self._table(coords[plain], offsets[plain], lengths[plain]), coords[~plain])
        begin = dataset.id.get_offset()
        if layout == h5py.h5d.CONTIGUOUS and begin is None:
            return References(empty_table(ndim), none)
        if layout == h5py.h5d.CONTIGUOUS:
            coords, offsets, lengths, cut = contiguous_references(
                variable.shape, variable.chunks, dataset.dtype.itemsize, begin
            )
            check_inside(self.file, "NetCDF4/HDF5", offsets, lengths)
            return References(self._table(coords, offsets, lengths), cut)
        return References(empty_table(ndim), all_coords(grid_shape(variable.shape, variable.chunks)))

    def _table(self, coords: Any, offsets: Any, lengths: Any) -> Any:
        return virtual_table(
            coords, offsets, lengths, self.file.url, etag=self.file.etag, last_modified=self.file.last_modified
        )

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        with self._translated():
            dataset = self._hdf5[variable.path]
            is_text = variable.dtype == "string"
            stored = dataset.asstr() if is_text else dataset
            if variable.shape == dataset.shape:
                return np.asarray(stored[region or ()], dtype=object if is_text else None)
            # NetCDF4 reads the fill value between the end of a dataset and the end of its dimension.
            ends = [max(part.start, min(part.stop, n)) for part, n in zip(region, dataset.shape, strict=True)]
            inside = tuple(slice(part.start, end) for part, end in zip(region, ends, strict=True))
            fill, dtype = ("", object) if is_text else (dataset.fillvalue, dataset.dtype)
            found = np.full(region_shape(region), fill, dtype)
            found[tuple(slice(0, n) for n in region_shape(inside))] = stored[inside]
            return found

    def close(self) -> None:
        self._hdf5.close()
        if self._handle is not None:
            self._handle.close()


def _walk(root: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every group with its path and its datasets. Each object of the file is opened once."""
    pending = [("", root)]
    while pending:
        path, group = pending.pop()
        links = group.id.links
        # Skip soft and external links, which are duplicates or data of other files.
        names = [n for n in group if links.get_info(n.encode()).type == h5py.h5l.TYPE_HARD]
        members = {name: group[name] for name in names}
        yield path, group, {n: m for n, m in members.items() if isinstance(m, h5py.Dataset)}
        pending += [(f"{path}/{n}" if path else n, m) for n, m in members.items() if isinstance(m, h5py.Group)]


def _full_shapes(
    growing: Mapping[str, tuple[tuple[str, ...], tuple[int, ...], tuple[int | None, ...]]],
) -> dict[str, tuple[int, ...]]:
    """Shapes of the datasets that end before their dimension does.

    An unlimited dimension of NetCDF4 is as long as the longest of its datasets. `growing` has the dimensions, the shape
    and the largest shape of every dataset that may grow, by path.
    """
    scales: dict[tuple[str, int], str] = {}
    lengths: dict[str, int] = {}
    for path, (dims, own, largest) in growing.items():
        for axis, (dim, size, most) in enumerate(zip(dims, own, largest, strict=True)):
            scale = _find_scale(path, dim, growing) if most is None else None
            if scale is not None:
                scales[path, axis] = scale
                lengths[scale] = max(lengths.get(scale, 0), size)
    found: dict[str, tuple[int, ...]] = {}
    for path, (_, own, _) in growing.items():
        shape = tuple(lengths.get(scales.get((path, axis), ""), n) for axis, n in enumerate(own))
        if shape != own:
            found[path] = shape
    return found


def _find_scale(path: str, dim: str, growing: Mapping[str, Any]) -> str | None:
    """The dataset of a dimension, in the same group or in a parent group."""
    folder = path.rpartition("/")[0]
    while True:
        scale = f"{folder}/{dim}" if folder else dim
        if scale in growing:
            return scale
        if not folder:
            return None
        folder = folder.rpartition("/")[0]


def _is_only_dimension(name: Any) -> bool:
    """Whether the attribute `NAME` marks a dataset as a dimension without a coordinate variable."""
    return isinstance(name, bytes) and name.startswith(NOT_A_VARIABLE)


def _attributes(node: Any) -> dict[str, Any]:
    attributes = node.attrs
    return {key: json_value(attributes[key]) for key in attributes if key not in HIDDEN_ATTRIBUTES}


def _describe(path: str, dataset: Any, dims: tuple[str, ...], keys: Sequence[str]) -> SourceVariable:
    dtype, not_virtual = _data_type(dataset)
    attributes = dataset.attrs
    raw = {key: attributes[key] for key in keys if key not in HIDDEN_ATTRIBUTES}
    raw = {key: value for key, value in raw.items() if not isinstance(value, h5py.Empty)}
    if (members := _enum_members(dataset.dtype)) is not None:
        raw["enum_members"] = members
    # Unwritten cells have the dataset's own fill value, whatever the attribute `_FillValue` is.
    fill = dataset.fillvalue if dtype != "string" else None
    plist = dataset.id.get_create_plist()
    layout = plist.get_layout()
    shape = tuple(int(n) for n in dataset.shape)
    if layout == h5py.h5d.CHUNKED:
        chunks, kind = tuple(int(c) for c in dataset.chunks), "chunked"
    elif layout == h5py.h5d.CONTIGUOUS and plist.get_external_count() == 0:
        chunks, kind = contiguous_chunks(shape, dataset.dtype.itemsize), "contiguous"
    elif layout == h5py.h5d.COMPACT:
        chunks, kind = tuple(max(1, n) for n in shape), "opaque"
    else:
        chunks, kind = tuple(max(1, n) for n in shape), "opaque"
        not_virtual = not_virtual or "its data is in other files"
    codecs, filter_reason = codecs_of(plist, dtype, math.prod(chunks) * dataset.dtype.itemsize)
    return SourceVariable(
        path=path,
        dims=dims,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        attributes=attribute_pairs(raw, dtype),
        fill_value=fill_value_document(dtype, fill),
        codecs=codecs,
        layout=kind,  # type: ignore[arg-type]
        not_virtual=not_virtual or filter_reason,
        decoded_dtype=decoded_dtype(dtype, raw) if dtype != "string" else None,
    )


def _enum_members(dtype: np.dtype[Any]) -> str | None:
    """The names and numbers of an enumeration, in the order of the numbers. h5py reads booleans as such."""
    members = h5py.check_enum_dtype(dtype)
    if members is None or dtype == np.dtype(bool):
        return None
    return ", ".join(f"{name}={number}" for name, number in sorted(members.items(), key=lambda item: item[1]))


def _data_type(dataset: Any) -> tuple[str, str | None]:
    if dataset.shape is None:
        raise UnsupportedError("a dataset without values (null dataspace)")
    kind = h5py.check_string_dtype(dataset.dtype)
    if kind is not None and kind.length is None:
        return "string", "HDF5 stores text of variable length outside of its dataset"
    dtype = dataset.dtype
    enumeration = h5py.check_enum_dtype(dtype)
    if enumeration is not None and dtype != np.dtype(bool):
        dtype = np.dtype(dtype.str)
    if dtype.kind not in "biufcS" or (dtype.itemsize > 16 and dtype.kind != "S"):
        raise UnsupportedError(f"Zarr v3 has no data type for {dataset.dtype}")
    if dtype.kind == "f" and dtype.itemsize not in (2, 4, 8):
        raise UnsupportedError(f"Zarr v3 has no data type for {dataset.dtype}")
    return dtype.str, _unusual_bits(dataset.id.get_type(), dtype)


def _unusual_bits(stored: Any, dtype: np.dtype[Any]) -> str | None:
    """Why the bytes of numbers in the file are not those of their type. None if they are.

    HDF5 has integers that use only some of their bits, and floats with any number of bits for each part. The library
    converts them.
    """
    if isinstance(stored, h5py.h5t.TypeEnumID):
        stored = stored.get_super()
    if dtype.kind in "biu" and isinstance(stored, h5py.h5t.TypeAtomicID):
        bits = stored.get_precision()
        if bits != 8 * stored.get_size() or stored.get_offset() != 0:
            return f"its integers use {bits} of {8 * stored.get_size()} bits"
    if dtype.kind == "f" and not stored.equal(h5py.h5t.py_create(dtype)):
        return "its floats are not those of IEEE 754"
    return None


def _chunk_index(dataset: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Coordinates, filter masks, offsets and lengths of the chunks that were written."""
    found: list[Any] = []
    collect: Callable[[Any], None] = found.append
    dataset.id.chunk_iter(collect)
    shape, chunks = dataset.shape, dataset.chunks
    starts, masks, offsets, lengths = zip(*found, strict=True) if found else ((), (), (), ())
    coords = np.array(starts, dtype=np.int64).reshape(len(found), len(shape)) // np.array(chunks, dtype=np.int64)
    # Chunks beyond the shape stay in the file after a dataset was made smaller.
    inside = (coords < np.array(grid_shape(shape, chunks), dtype=np.int64)).all(axis=1)
    columns = [np.array(column, dtype=np.int64)[inside] for column in (masks, offsets, lengths)]
    return coords[inside].astype(np.uint32), columns[0], columns[1], columns[2]
