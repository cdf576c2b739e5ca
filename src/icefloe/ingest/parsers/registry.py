"""What every parser offers (a schema, chunk references, values), and which parser reads a source."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    ObjectNotFoundError,
    StorageError,
    UnknownFormatError,
    UnsupportedError,
)
from icefloe.ingest.access import SourceAccess, local_path
from icefloe.ingest.chunk_grids import ChunkRegion
from icefloe.ingest.source_model import (
    ParsedSource,
    References,
    SourceFailure,
    SourceFile,
    SourceSchema,
    SourceVariable,
    digest_values,
    named_by,
    summarise_coordinate,
)
from icefloe.ingest.zarr_documents import (
    array_document,
    attribute_pairs,
    fill_value_document,
    json_value,
    parse_fill_attribute,
    parse_missing_texts,
)
from icefloe.model.chunk_table import ChunkKind, ChunkTable


def variable_document(variable: SourceVariable) -> bytes:
    """The zarr.json that describes a variable's bytes in the source."""
    fill = variable.fill_value if variable.fill_value is not None else fill_value_document(variable.dtype, None)
    return array_document(
        shape=variable.shape,
        dtype=variable.dtype,
        chunks=variable.chunks,
        codecs=variable.codecs,
        fill_value=fill,
        attributes={},
        dims=None,
    )


def fetch_rows(table: ChunkTable, rows: npt.NDArray[np.intp], access: SourceAccess) -> list[bytes]:
    """The bytes of some rows of a table, with one request (or few) per file."""
    found: list[bytes] = [b""] * len(rows)
    kinds = table.kind[rows]
    for position in np.flatnonzero(kinds == ChunkKind.INLINE):
        start, length = int(table.offset[rows[position]]), int(table.length[rows[position]])
        found[position] = bytes(table.inline[start : start + length])
    if table.location is None:
        return found
    places = np.where(kinds == ChunkKind.VIRTUAL, table.location[rows], -1)
    for place in np.unique(places[places >= 0]):
        chosen = np.flatnonzero(places == place)
        starts = table.offset[rows[chosen]].astype(np.int64)
        ends = starts + table.length[rows[chosen]].astype(np.int64)
        url = table.locations[int(place)]
        parts = access.read_ranges(url, starts.tolist(), ends.tolist())
        for position, part, start, end in zip(chosen, parts, starts, ends, strict=True):
            if len(part) != end - start:
                raise StorageError(f"cannot read bytes {start} to {end} of {url}: the file is shorter", url=url)
            found[position] = part
    return found


def decode_references(
    variable: SourceVariable, table: ChunkTable, region: ChunkRegion, access: SourceAccess
) -> npt.NDArray[Any]:
    """The values of a region, from references. Chunks without one have the fill value."""
    low = np.array([s.start // c for s, c in zip(region, variable.chunks, strict=True)], dtype=np.int64)
    high = np.array([-(-s.stop // c) for s, c in zip(region, variable.chunks, strict=True)], dtype=np.int64)
    coords = table.coords.astype(np.int64)
    rows = np.flatnonzero(((coords >= low) & (coords < high)).all(axis=1))
    prototype = default_buffer_prototype()
    contents = {"zarr.json": prototype.buffer.from_bytes(variable_document(variable))}
    keys = ("/".join(itertools.chain(["c"], map(str, row))) for row in table.coords[rows].tolist())
    for key, data in zip(keys, fetch_rows(table, rows, access), strict=True):
        contents[key] = prototype.buffer.from_bytes(data)
    array = zarr.open_array(MemoryStore(contents), mode="r")
    return np.asarray(array[region] if region else array[...])


class OpenSource(ABC):
    """An open source. It is a context manager. Values are as stored: packed values stay packed."""

    format: str

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        self.file = file
        self.access = access

    @abstractmethod
    def schema(self) -> SourceSchema:
        """Everything but the chunk references."""

    @abstractmethod
    def references(self, variable: SourceVariable) -> References:
        """The chunk references of a variable.

        `variable.chunks` is used if the layout of the file allows a choice (contiguous and record variables).
        """

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        """The stored values of a region. By default, zarr's codecs decode them from the references."""
        if variable.not_virtual is not None:
            raise UnsupportedError(
                f"{variable.path} of {self.file.url} cannot be read: {variable.not_virtual}",
                url=self.file.url,
                variable=variable.path,
            )
        return decode_references(variable, self.references(variable).table, region, self.access)

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> OpenSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def overviews(self, path: str) -> Sequence[SourceVariable]:
        """The overviews of a variable, from fine to coarse. `references` and `values` read them like variables."""
        return ()

    def find_variable(self, path: str) -> SourceVariable:
        """A variable by its path in the file."""
        variables = self.schema().variables
        if path not in variables:
            raise NodeNotFoundError(f"{self.file.url} has no variable {path!r}. It has {sorted(variables)}")
        return variables[path]


def broken(file: SourceFile, format_name: str, reason: object) -> FormatError:
    """The error for an invalid file."""
    return FormatError(
        f"{file.url} is not a readable {format_name} file: {reason}",
        url=file.url,
        format=format_name,
        reason=str(reason),
    )


def check_inside(
    file: SourceFile, format_name: str, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> None:
    """Refuse references beyond the end of the file."""
    if len(offsets) == 0 or file.size_bytes == 0:
        return
    end = int((offsets.astype(np.int64) + lengths.astype(np.int64)).max())
    if end > file.size_bytes:
        raise broken(
            file, format_name, f"its data ends at byte {end}, but the file ends at byte {file.size_bytes} (truncated?)"
        )


# Modules are imported on demand, because each needs another library.
_PARSERS: Mapping[str, tuple[str, str, str]] = {
    "hdf5": ("icefloe.ingest.parsers.hdf5", "Hdf5Source", "h5py"),
    "netcdf3": ("icefloe.ingest.parsers.netcdf3", "NetCDF3Source", ""),
    "zarr": ("icefloe.ingest.parsers.zarr", "ZarrSource", ""),
    "kerchunk": ("icefloe.ingest.parsers.kerchunk", "KerchunkSource", ""),
    "tiff": ("icefloe.ingest.parsers.geotiff", "GeoTiffSource", "tifffile"),
    "grib": ("icefloe.ingest.parsers.grib", "GribSource", "eccodes"),
    "grib-index": ("icefloe.ingest.parsers.grib_index", "GribIndexSource", "eccodes"),
}

FORMATS = tuple(_PARSERS)

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_INVENTORY_LINE = re.compile(rb"\d+(\.\d+)?:\d+:[dD]=\d{10}")
"""The start of an index of wgrib2: number, offset and date of the first message."""
_INDEX_LINE = re.compile(rb'\s*\{[^{}\n]*"_offset":')
"""The start of an index of ECMWF: a JSON object in one line."""
_TIFF_MAGICS = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")


def find_format(file: SourceFile, access: SourceAccess) -> str:
    """Return the format of a source by its first bytes, or by the files in its directory."""
    path = local_path(file.url)
    if file.url.endswith("/") or (path is not None and path.is_dir()):
        return _format_of_folder(file, access)
    try:
        start = access.read_ranges(file.url, [0], [min(file.size_bytes or 512, 512)])[0]
    except ObjectNotFoundError:
        return _format_of_folder(file, access)
    if start.startswith(_HDF5_MAGIC):
        return "hdf5"
    if start[:3] == b"CDF" and start[3:4] in (b"\x01", b"\x02", b"\x05"):
        return "netcdf3"
    if start[:4] in _TIFF_MAGICS:
        return "tiff"
    if b"GRIB" in start[:64]:
        return "grib"
    if start.lstrip()[:1] == b"{":
        return "grib-index" if _INDEX_LINE.match(start) else "kerchunk"
    if _INVENTORY_LINE.match(start):
        return "grib-index"
    if _has_user_block(file, access):
        return "hdf5"
    shown = start[:8]
    raise UnknownFormatError(
        f"{file.url} starts with {shown!r}. It is none of the formats {', '.join(FORMATS)}"
        + ("; the file is empty" if not start else ""),
        url=file.url,
        reason="unknown format",
    )


def _format_of_folder(file: SourceFile, access: SourceAccess) -> str:
    root = file.url.rstrip("/")
    if any(access.exists(f"{root}/{name}") for name in ("zarr.json", ".zgroup", ".zarray")):
        return "zarr"
    if access.exists(f"{root}/.zmetadata"):
        return "kerchunk"
    raise UnknownFormatError(
        f"{file.url} is neither a file nor a Zarr store nor a Kerchunk reference set",
        url=file.url,
        reason="unknown format",
    )


def _has_user_block(file: SourceFile, access: SourceAccess) -> bool:
    """Return whether HDF5 starts after a user block, at 512 bytes or a power of two times that."""
    places = [512 << shift for shift in range(8) if (512 << shift) + 8 <= file.size_bytes]
    if not places:
        return False
    return _HDF5_MAGIC in access.read_ranges(file.url, places, [p + 8 for p in places])


def open_source(file: SourceFile, access: SourceAccess | None = None, *, format: str | None = None) -> OpenSource:
    """Open a source with the parser of its format.

    Parameters
    ----------
    file
        The source file.
    access
        How sources are read. The default uses the environment.
    format
        A name of `FORMATS`, or `module:name` of a VirtualiZarr parser. None detects the format from the bytes.

    Returns
    -------
    OpenSource
        The open source. Use it as a context manager.

    Raises
    ------
    UnsupportedError
        The parser does not exist, or its package is not installed.
    UnknownFormatError
        The format is not recognised.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest.access import normalise_url
    >>> xarray.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf("open.nc")
    >>> file = SourceAccess().describe(normalise_url("open.nc"))
    >>> with open_source(file) as source:
    ...     sorted(source.schema().variables)
    ['t']
    """
    access = access or SourceAccess()
    chosen = format or find_format(file, access)
    if ":" in chosen:
        module_name, class_name, library = "icefloe.ingest.parsers.kerchunk", "VirtualiZarrSource", "virtualizarr"
    elif chosen in _PARSERS:
        module_name, class_name, library = _PARSERS[chosen]
    else:
        raise UnsupportedError(f"unknown parser {chosen!r}. Known: {', '.join(FORMATS)}", url=file.url)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UnsupportedError(
            f"{file.url} is a {chosen} source. To read it, install the package {library}: "
            "pip install 'icefloe[ingest]'",
            url=file.url,
            format=chosen,
            reason=f"the package {library} is not installed",
        ) from error
    opener = getattr(module, class_name)
    source: OpenSource = opener(file, access, chosen) if ":" in chosen else opener(file, access)
    return source if access.preprocess is None else PreprocessedSource(source, access.preprocess)


class PreprocessedSource(OpenSource):
    """A source as a function changes it. The function gets the dataset that xarray reads, and returns another one.

    The variables have the values that xarray shows: packed numbers are unpacked. Times keep the units of the source.
    """

    def __init__(self, source: OpenSource, function: Callable[[Any], Any]) -> None:
        super().__init__(source.file, source.access)
        self.format = source.format
        self._source = source
        try:
            self._schema, self._encoded = _preprocess(source, function)
        except BaseException:
            source.close()
            raise

    def schema(self) -> SourceSchema:
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        raise UnsupportedError(f"{variable.path} of {self.file.url} is made by a function and has no references")

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        found = np.asarray(self._encoded[variable.path][region].values)
        return found.astype(object) if variable.dtype == "string" else found

    def close(self) -> None:
        self._source.close()


_TIME_ENCODING = ("units", "calendar")
_RELATED = (
    "bounds",
    "grid_mapping",
    "climatology",
    "geometry",
    "cell_measures",
    "formula_terms",
    "ancillary_variables",
)
"""Attributes that xarray may keep in the encoding of a variable."""


def _preprocess(source: OpenSource, function: Callable[[Any], Any]) -> tuple[SourceSchema, dict[str, Any]]:
    """Call a function with the dataset of a source. Return the schema of its result, and the encoded variables."""
    import xarray as xr  # noqa: PLC0415 - an extra, and slow to import

    schema = source.schema()
    nested = next((path for path in schema.variables if "/" in path), None)
    if nested is not None:
        raise UnsupportedError(
            f"{source.file.url} has variables in groups, such as {nested}. preprocess needs files without groups",
            url=source.file.url,
        )
    variables = {name: _as_xarray(source, variable) for name, variable in schema.variables.items()}
    opened = xr.decode_cf(xr.Dataset(variables, attrs=dict(schema.groups.get("", {}))))
    found = function(opened)
    if not isinstance(found, xr.Dataset):
        raise InvalidInputError(
            f"preprocess returned {type(found).__name__} for {source.file.url}, expected an xarray.Dataset",
            url=source.file.url,
        )
    related, attributes = xr.conventions.encode_dataset_coordinates(found)
    plain: dict[Any, Any] = {}
    coded: dict[Any, Any] = {}
    for name, variable in related.items():
        copied = variable.copy(deep=False)
        copied.encoding = {key: value for key, value in variable.encoding.items() if key in _RELATED}
        if variable.dtype.kind in "iufc":
            # They are stored as they are. xarray would load them to encode them.
            copied.attrs = {**variable.attrs, **copied.encoding}
            copied.attrs |= {"_FillValue": np.nan} if variable.dtype.kind == "f" else {}
            plain[name] = copied
            continue
        if variable.dtype.kind in "mM" or (variable.dtype == object and not _is_text(variable)):
            copied.encoding |= {key: variable.encoding[key] for key in _TIME_ENCODING if key in variable.encoding}
        coded[name] = copied
    coded, attributes = xr.conventions.cf_encoder(coded, attributes)
    encoded = {name: (coded if name in coded else plain)[name] for name in related}
    described = {str(name): _describe(str(name), each, schema.variables) for name, each in encoded.items()}
    coordinates = {
        name: summarise_coordinate(np.atleast_1d(np.asarray(encoded[name].values)))
        for name, variable in described.items()
        if variable.dims in ((), (name,))
    }
    own = replace(
        schema,
        variables=described,
        coordinates=coordinates,
        groups={**schema.groups, "": {str(key): json_value(value) for key, value in attributes.items()}},
        digests={},
    )
    return own, {str(name): each for name, each in encoded.items()}


def _is_text(variable: Any) -> bool:
    return variable.size == 0 or isinstance(np.asarray(variable[(0,) * variable.ndim].values).item(), str)


def _as_xarray(source: OpenSource, variable: SourceVariable) -> Any:
    """Return a variable that reads its values when they are needed."""
    import xarray as xr  # noqa: PLC0415 - an extra, and slow to import
    from xarray.backends import BackendArray  # noqa: PLC0415
    from xarray.core import indexing  # noqa: PLC0415

    class Values(BackendArray):
        shape = variable.shape
        dtype = np.dtype(object) if variable.dtype == "string" else np.dtype(variable.dtype)

        def __getitem__(self, key: Any) -> Any:
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

        def _read(self, key: tuple[Any, ...]) -> Any:
            spans, taken = [], []
            for part, length in zip(key, self.shape, strict=True):
                cells = range(length)[part] if isinstance(part, slice) else range(part, part + 1)
                first, end = (min(cells), max(cells) + 1) if len(cells) else (0, 0)
                spans.append(slice(first, end))
                taken.append(slice(None, None, cells.step) if isinstance(part, slice) else 0)
            return np.asarray(source.values(variable, tuple(spans)))[tuple(taken)]

    attributes = dict(variable.attributes)
    if "_FillValue" in attributes:
        attributes["_FillValue"] = parse_fill_attribute(variable.dtype, attributes["_FillValue"])
    if variable.decoded_dtype is not None:
        # The type of the factors decides about the type of the values.
        factor = np.dtype(variable.decoded_dtype).type
        attributes |= {name: factor(attributes[name]) for name in ("scale_factor", "add_offset") if name in attributes}
    return xr.Variable(variable.dims, indexing.LazilyIndexedArray(Values()), attributes)


def _describe(name: str, encoded: Any, before: Mapping[str, SourceVariable]) -> SourceVariable:
    """Return the description of a variable that a function returned."""
    kind = encoded.dtype.kind
    dtype = (
        "string" if kind in "OUT" else encoded.dtype.newbyteorder("<").str if kind not in "bS" else encoded.dtype.str
    )
    former = before.get(name)
    chunks = former.chunks if former is not None and former.shape == encoded.shape else encoded.shape
    return SourceVariable(
        name,
        tuple(map(str, encoded.dims)),
        tuple(encoded.shape),
        dtype,
        tuple(max(1, length) for length in chunks),
        attribute_pairs(encoded.attrs, dtype),
        layout="opaque",
        not_virtual="a preprocess function makes its values",
    )


def check_format(format: str | None) -> None:
    """Check the name of a parser once, instead of for every file."""
    if format is None or format in _PARSERS:
        return
    if ":" not in format:
        raise UnsupportedError(
            f"unknown parser {format!r}. Known: {', '.join(FORMATS)}, and module:Parser for VirtualiZarr"
        )
    if importlib.util.find_spec("virtualizarr") is None:
        raise UnsupportedError(f"the parser {format} needs the package virtualizarr: pip install virtualizarr")


def parse_schema(file: SourceFile, access: SourceAccess | None = None, *, format: str | None = None) -> SourceSchema:
    """Read the schema of one file.

    Parameters
    ----------
    file
        The source file.
    access
        How sources are read. The default uses the environment.
    format
        The parser, see `open_source`.

    Returns
    -------
    SourceSchema
        The schema.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest.access import normalise_url
    >>> xarray.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf("schema.nc")
    >>> parse_schema(SourceAccess().describe(normalise_url("schema.nc"))).dimension_sizes()
    {'x': 2}
    """
    with open_source(file, access, format=format) as source:
        schema = _find_missing_texts(source, source.schema())
        digests = _digest_shared(source, schema)
        return replace(schema, digests=digests) if digests else schema


def _find_missing_texts(source: OpenSource, schema: SourceSchema) -> SourceSchema:
    """Return the schema without missing values of text. Variables that have such cells say so.

    xarray reads these cells as NaN. It cannot read a `_FillValue` of text beside a Zarr v3 array.
    """
    changed: dict[str, SourceVariable] = {}
    for path, variable in schema.variables.items():
        is_text = variable.dtype == "string" or variable.dtype[1:2] in ("S", "U")
        if is_text and not variable.attributes.keys().isdisjoint(_MISSING_TEXT):
            attributes = {k: v for k, v in variable.attributes.items() if k not in _MISSING_TEXT}
            values = source.values(variable, tuple(slice(0, n) for n in variable.shape))
            has_missing = _has_text(np.asarray(values), parse_missing_texts(variable.attributes))
            changed[path] = replace(variable, attributes=attributes, has_missing_text=has_missing)
    return replace(schema, variables={**schema.variables, **changed}) if changed else schema


_MISSING_TEXT = ("_FillValue", "missing_value")


def _has_text(values: npt.NDArray[Any], texts: Sequence[bytes]) -> bool:
    if values.dtype.kind == "S":
        if values.dtype.itemsize == 1 and values.ndim and values.shape[-1]:
            # xarray joins characters to texts along the last dimension.
            values = np.ascontiguousarray(values).view(f"S{values.shape[-1]}")
        # NumPy leaves out zeros at the end of both.
        return bool(np.isin(values.reshape(-1), np.array(texts, dtype="S")).any())
    known = {text.decode("utf-8", "replace") for text in texts}
    return any(str(text) in known for text in values.reshape(-1).tolist())


DIGESTED_BYTES = 1 << 16
"""Larger variables have no hash in the schema."""


def _digest_shared(source: OpenSource, schema: SourceSchema) -> dict[str, str]:
    """Return hashes of the small variables that the files of an archive usually share, such as bounds and masks.

    These are the variables that others name, and those without the first dimension of the largest variable. Files are
    usually joined along it. Others are read when the plan shows that they have to be compared.
    """
    named: set[str] = set()
    leading: dict[str, tuple[int, str]] = {}
    for path, variable in schema.variables.items():
        named |= named_by(variable)
        if variable.dims:
            group = path.rpartition("/")[0]
            leading[group] = max(leading.get(group, (-1, "")), (variable.nbytes, variable.dims[0]))
    found: dict[str, str] = {}
    for path, variable in schema.variables.items():
        if path in schema.coordinates or not 0 < variable.nbytes <= DIGESTED_BYTES:
            continue
        first = leading.get(path.rpartition("/")[0])
        if variable.name in named or (first is not None and first[1] not in variable.dims):
            values = source.values(variable, tuple(slice(0, n) for n in variable.shape))
            found[path] = digest_values(np.ascontiguousarray(values).reshape(-1))
    return found


def parse_source(
    file: SourceFile,
    access: SourceAccess | None = None,
    *,
    variables: Iterable[str] | None = None,
    format: str | None = None,
) -> ParsedSource:
    """Read the schema and the chunk references of one file.

    Parameters
    ----------
    file
        The source file.
    access
        How sources are read. The default uses the environment.
    variables
        Paths of variables. None is all.
    format
        The parser, see `open_source`.

    Returns
    -------
    ParsedSource
        The schema and the references. Variables that cannot be referenced have none.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest.access import normalise_url
    >>> xarray.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf("source.nc")
    >>> parsed = parse_source(SourceAccess().describe(normalise_url("source.nc")))
    >>> len(parsed.references["t"].table)
    1
    """
    with open_source(file, access, format=format) as source:
        schema = source.schema()
        wanted = schema.variables if variables is None else {p: source.find_variable(p) for p in variables}
        found = {path: source.references(v) for path, v in wanted.items() if v.not_virtual is None}
        return ParsedSource(schema, found)


def try_schema(
    file: SourceFile, access: SourceAccess | None = None, *, format: str | None = None
) -> SourceSchema | SourceFailure:
    """Read the schema of one file, or return why it cannot be read.

    Parameters
    ----------
    file
        The source file.
    access
        How sources are read. The default uses the environment.
    format
        The parser, see `open_source`.

    Returns
    -------
    SourceSchema or SourceFailure
        The schema, or the failure.

    Examples
    --------
    >>> try_schema(SourceFile("file:///nowhere/a.nc", 10)).error
    'UnknownFormatError'
    """
    try:
        return parse_schema(file, access, format=format)
    except IcefloeError as error:
        return SourceFailure(file, str(error), type(error).__name__)
