"""NetCDF4 and HDF5 files, read with h5py.

Schemas are read with the low-level interface of h5py, which takes a third of the time. The files of an archive describe
their variables with the same bytes, so the description of a variable is made once for equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

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


class _Attributes:
    """The attributes of a group or dataset, in the order in which h5py lists them."""

    def __init__(self, owner: Any, created: Any) -> None:
        """`created` is the list of properties with which the owner was created."""
        self._owner = owner
        is_tracked = created.get_attr_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
        found: list[bytes] = []
        # A callback that returns something else than None ends the iteration.
        h5py.h5a.iterate(
            owner,
            lambda name, *_: found.append(name),
            index_type=h5py.h5.INDEX_CRT_ORDER if is_tracked else h5py.h5.INDEX_NAME,
        )
        self._names = {_attribute_name(name): name for name in found}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def get(self, name: str) -> Any:
        """The value as h5py reads it, or None if there is no such attribute."""
        return self.read(name)[0] if name in self._names else None

    def visible(self) -> list[str]:
        """The names of the attributes that are not a part of the format."""
        return [name for name in self._names if name not in HIDDEN_ATTRIBUTES]

    def read(self, name: str) -> tuple[Any, Hashable | None]:
        """The value as h5py reads it, and a key. Attributes with the same key have equal values of the same type.

        Values that are neither plain numbers nor texts have no key.
        """
        attribute = h5py.h5a.open(self._owner, self._names[name])
        known = _memory_type(attribute.get_type())
        shape = attribute.shape
        if shape is None:
            return h5py.Empty(known.dtype), (known.encoded, None)
        if known.kind == "other":
            return h5py.AttributeManager(self)[self._names[name]], None
        values = np.zeros(shape, dtype=known.dtype)
        attribute.read(values, mtype=known.in_memory)
        if known.kind == "plain":
            return values if shape else values[()], (known.encoded, shape, values.tobytes())
        if known.kind == "references":
            return values, None
        texts = tuple(text.decode("utf-8", "surrogateescape") for text in values.flat)
        value = np.array(texts, dtype=known.dtype).reshape(shape) if shape else texts[0]
        return value, (known.encoded, shape, texts)

    @property
    def id(self) -> Any:
        """The owner, as h5py's own class for attributes looks for it."""
        return self._owner


@dataclass(frozen=True, slots=True)
class _KnownType:
    """A type of HDF5, as NumPy has it."""

    dtype: np.dtype[Any]
    in_memory: Any
    """The type of HDF5 that its values have in memory."""
    encoded: bytes
    """The bytes that describe it."""
    kind: Literal["plain", "text", "references", "other"]
    """Whether values are plain numbers or texts of a fixed length, texts of any length, or lists of references."""


_KNOWN_TYPES: dict[bytes, _KnownType] = {}
_MOST_KNOWN_TYPES = 1024


def _memory_type(stored: Any) -> _KnownType:
    encoded = stored.encode()
    known = _KNOWN_TYPES.get(encoded)
    if known is None:
        if len(_KNOWN_TYPES) >= _MOST_KNOWN_TYPES:
            _KNOWN_TYPES.clear()
        dtype = stored.dtype
        known = _KNOWN_TYPES[encoded] = _KnownType(dtype, h5py.h5t.py_create(dtype), encoded, _kind_of(dtype))
    return known


def _kind_of(dtype: np.dtype[Any]) -> Literal["plain", "text", "references", "other"]:
    if dtype.kind in "biufcS" and dtype.subdtype is None and h5py.check_enum_dtype(dtype) is None:
        return "plain"
    text, listed = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
    if text is not None and text.length is None:
        return "text"
    is_list = isinstance(listed, np.dtype) and h5py.check_ref_dtype(listed) is not None
    return "references" if is_list else "other"


def _attribute_name(name: bytes) -> Any:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


@dataclass(frozen=True, slots=True)
class _Dataset:
    """An open dataset, and what its group says about it."""

    name: str
    id: Any
    created: Any
    """The properties with which it was created."""
    attributes: _Attributes
    shape: tuple[int, ...] | None
    largest: tuple[int | None, ...]
    """How far it may grow along each dimension. Empty without chunks."""
    layout: int
    stored_type: Any
    dtype: np.dtype[Any]
    encoded_type: bytes

    @property
    def chunks(self) -> tuple[int, ...]:
        return tuple(int(c) for c in self.created.get_chunk())


def _open_dataset(name: str, dataset: Any) -> _Dataset:
    created, space, stored_type = dataset.get_create_plist(), dataset.get_space(), dataset.get_type()
    shape: tuple[int, ...] | None = None
    largest: tuple[int | None, ...] = ()
    layout = created.get_layout()
    if space.get_simple_extent_type() != h5py.h5s.NULL:
        shape = tuple(int(n) for n in space.get_simple_extent_dims())
        if layout == h5py.h5d.CHUNKED:
            most = space.get_simple_extent_dims(True)
            largest = tuple(None if n == h5py.h5s.UNLIMITED else n for n in most)
    known = _memory_type(stored_type)
    attributes = _Attributes(dataset, created)
    return _Dataset(name, dataset, created, attributes, shape, largest, layout, stored_type, known.dtype, known.encoded)


def _name_dimensions(file: Any, datasets: Mapping[str, _Dataset]) -> dict[str, tuple[str, ...]]:
    """Dimension names per dataset of one group."""
    names: dict[str, tuple[str, ...]] = {}
    phony: dict[tuple[int, int], str] = {}
    for name, dataset in datasets.items():
        if dataset.shape is not None:
            names[name] = _names(file, dataset, dataset.shape, phony)
    return names


def _names(file: Any, dataset: _Dataset, shape: tuple[int, ...], phony: dict[tuple[int, int], str]) -> tuple[str, ...]:
    attributes = dataset.attributes
    found: list[str | None] = [None] * len(shape)
    if "DIMENSION_LIST" in attributes:
        found = [_scale_name(file, scales) if len(scales) else None for scales in attributes.get("DIMENSION_LIST")]
    elif len(shape) == 1 and _is_scale(attributes):
        found = [dataset.name]
    elif len(shape) > 1 and _is_scale(attributes) and "_Netcdf4Coordinates" in attributes:
        # A coordinate variable with several dimensions is only the scale of its first dimension.
        sizes = np.asarray(attributes.get("_Netcdf4Coordinates")).reshape(-1)
        found = [dataset.name] + [None] * (len(sizes) - 1)
    used: dict[int, int] = {}
    for axis, label in enumerate(found):
        if label is None:
            size = shape[axis]
            repeat = used.get(size, 0)
            used[size] = repeat + 1
            found[axis] = phony.setdefault((size, repeat), f"phony_dim_{len(phony)}")
    return tuple(str(label) for label in found)


def _is_scale(attributes: _Attributes) -> bool:
    return bool(attributes.get("CLASS") in (b"DIMENSION_SCALE", "DIMENSION_SCALE"))


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
        for group_path, group, datasets in _walk(self._hdf5["/"].id):
            attributes = _Attributes(group, group.get_create_plist())
            groups[group_path] = {key: json_value(attributes.get(key)) for key in attributes.visible()}
            dimensions = _name_dimensions(self._hdf5.id, datasets)
            for name, dataset in datasets.items():
                path = f"{group_path}/{name}" if group_path else name
                if None in dataset.largest and dataset.shape is not None:
                    growing[path] = dimensions.get(name, ()), dataset.shape, dataset.largest
                if _is_only_dimension(dataset.attributes.get("NAME")):
                    continue
                if h5py.check_ref_dtype(dataset.dtype) is not None:
                    left_out[path] = "references to other members of the file"
                    continue
                try:
                    variable = _describe(path, dataset, dimensions.get(name, ()))
                except UnsupportedError as error:
                    skipped[path] = str(error)
                    continue
                variables[path] = variable
                if variable.dims in ((), (name,)):
                    stored = h5py.Dataset(dataset.id, readonly=True)
                    found = stored.asstr()[()] if variable.dtype == "string" else stored[()]
                    coordinates[path] = summarise_coordinate(np.atleast_1d(found))
        for path, shape in _full_shapes(growing).items():
            if path in variables:
                variables[path] = variable = replace(variables[path], shape=shape)
                if path in coordinates:
                    coordinates[path] = summarise_coordinate(self.values(variable, (slice(0, shape[0]),)))
        return SourceSchema(self.file, self.format, variables, coordinates, groups, skipped, left_out=left_out)

    def references(self, variable: SourceVariable) -> References:
        with self._translated():
            dataset = h5py.h5d.open(self._hdf5.id, variable.path.encode())
            return self._references(dataset, variable)

    def _references(self, dataset: Any, variable: SourceVariable) -> References:
        ndim = len(variable.shape)
        none = np.zeros((0, ndim), dtype=np.uint32)
        created, shape = dataset.get_create_plist(), dataset.shape
        layout = created.get_layout()
        if layout == h5py.h5d.CHUNKED:
            chunks = created.get_chunk()
            coords, masks, offsets, lengths = _chunk_index(dataset, shape, chunks)
            check_inside(self.file, "NetCDF4/HDF5", offsets, lengths)
            # HDF5 skips a filter for a chunk that it does not make smaller. The array's codecs cannot decode such a
            # chunk.
            plain = masks == 0
            if shape != variable.shape:
                # A chunk also contains bytes after the end of its dataset. NetCDF4 reads fill values there.
                ends = [
                    have if have < full else full + chunk
                    for have, full, chunk in zip(shape, variable.shape, chunks, strict=True)
                ]
                plain &= ((coords.astype(np.int64) + 1) * np.array(chunks) <= np.array(ends)).all(axis=1)
            if plain.all():
                return References(self._table(coords, offsets, lengths), none)
            return References(self._table(coords[plain], offsets[plain], lengths[plain]), coords[~plain])
        begin = dataset.get_offset()
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


def _walk(root: Any) -> Iterator[tuple[str, Any, dict[str, _Dataset]]]:
    """Every group with its path and its datasets. Each object of the file is opened once."""
    pending = [("", root)]
    while pending:
        path, group = pending.pop()
        links = group.links
        datasets: dict[str, _Dataset] = {}
        groups: list[tuple[str, Any]] = []
        for raw in group:
            # Skip soft and external links, which are duplicates or data of other files.
            if links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                continue
            name, member = raw.decode(), h5py.h5o.open(group, raw)
            if isinstance(member, h5py.h5d.DatasetID):
                datasets[name] = _open_dataset(name, member)
            elif isinstance(member, h5py.h5g.GroupID):
                groups.append((f"{path}/{name}" if path else name, member))
        yield path, group, datasets
        pending += groups


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


_DESCRIBED: dict[Hashable, SourceVariable] = {}
_MOST_DESCRIBED = 4096
"""Descriptions that are kept for further files. An archive has one per variable, or a few."""


def _describe(path: str, dataset: _Dataset, dims: tuple[str, ...]) -> SourceVariable:
    """Describe a variable. Datasets with the same type, properties and attributes share a description."""
    read = {name: dataset.attributes.read(name) for name in dataset.attributes.visible()}
    attributes = {name: value for name, (value, _) in read.items()}
    fill = None
    if dataset.dtype.kind in "biufcS":
        fill = np.zeros((1,), dtype=dataset.dtype)
        dataset.created.get_fill_value(fill)
    keys = tuple((name, key) for name, (_, key) in read.items())
    if fill is None or any(key is None for _, key in keys):
        return _make_variable(path, dataset, dims, attributes, fill)
    created = dataset.created
    facts = (
        (path, dims, dataset.shape, dataset.encoded_type, dataset.layout, fill.tobytes(), keys),
        created.get_chunk() if dataset.layout == h5py.h5d.CHUNKED else created.get_external_count(),
        tuple(created.get_filter(position) for position in range(created.get_nfilters())),
    )
    known = _DESCRIBED.get(facts)
    if known is None:
        known = _make_variable(path, dataset, dims, attributes, fill)
        if len(_DESCRIBED) >= _MOST_DESCRIBED:
            _DESCRIBED.clear()
        _DESCRIBED[facts] = known
    return known


def _make_variable(
    path: str, dataset: _Dataset, dims: tuple[str, ...], attributes: Mapping[str, Any], fill: npt.NDArray[Any] | None
) -> SourceVariable:
    dtype, not_virtual = _data_type(dataset)
    raw = {key: value for key, value in attributes.items() if not isinstance(value, h5py.Empty)}
    if (members := _enum_members(dataset.dtype)) is not None:
        raw["enum_members"] = members
    layout, shape = dataset.layout, dataset.shape or ()
    if layout == h5py.h5d.CHUNKED:
        chunks, kind = dataset.chunks, "chunked"
    elif layout == h5py.h5d.CONTIGUOUS and dataset.created.get_external_count() == 0:
        chunks, kind = contiguous_chunks(shape, dataset.dtype.itemsize), "contiguous"
    elif layout == h5py.h5d.COMPACT:
        chunks, kind = tuple(max(1, n) for n in shape), "opaque"
    else:
        chunks, kind = tuple(max(1, n) for n in shape), "opaque"
        not_virtual = not_virtual or "its data is in other files"
    codecs, filter_reason = codecs_of(dataset.created, dtype, math.prod(chunks) * dataset.dtype.itemsize)
    return SourceVariable(
        path=path,
        dims=dims,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        attributes=attribute_pairs(raw, dtype),
        # Unwritten cells have the dataset's own fill value, whatever the attribute `_FillValue` is.
        fill_value=fill_value_document(dtype, None if fill is None or dtype == "string" else fill[0]),
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


def _data_type(dataset: _Dataset) -> tuple[str, str | None]:
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
    return dtype.str, _unusual_bits(dataset.stored_type, dtype)


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


def _chunk_index(
    dataset: Any, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Coordinates, filter masks, offsets and lengths of the chunks that were written."""
    found: list[Any] = []
    collect: Callable[[Any], None] = found.append
    dataset.chunk_iter(collect)
    starts, masks, offsets, lengths = zip(*found, strict=True) if found else ((), (), (), ())
    coords = np.array(starts, dtype=np.int64).reshape(len(found), len(shape)) // np.array(chunks, dtype=np.int64)
    columns = [np.array(column, dtype=np.int64) for column in (masks, offsets, lengths)]
    # Chunks beyond the shape stay in the file after a dataset was made smaller.
    inside = (coords < np.array(grid_shape(shape, chunks), dtype=np.int64)).all(axis=1)
    if not inside.all():
        coords, columns = coords[inside], [column[inside] for column in columns]
    return coords.astype(np.uint32), columns[0], columns[1], columns[2]
