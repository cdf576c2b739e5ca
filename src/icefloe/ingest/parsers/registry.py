"""Detect the format of a source and choose its parser."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import IcefloeError, ObjectNotFoundError, UnknownFormatError, UnsupportedError
from icefloe.ingest.access import SourceAccess, local_path
from icefloe.ingest.parsers.contract import OpenSource
from icefloe.ingest.source_model import (
    ParsedSource,
    SourceFailure,
    SourceFile,
    SourceSchema,
    SourceVariable,
    digest_values,
    named_by,
)
from icefloe.ingest.zarr_documents import parse_missing_texts

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
        module_name, class_name, library = "icefloe.ingest.parsers.virtualizarr", "VirtualiZarrSource", "virtualizarr"
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
    return source


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
