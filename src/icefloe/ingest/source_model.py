"""The content of a source file as values, and the report of the differences between files."""

from __future__ import annotations

import hashlib
import io
import itertools
import operator
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from icefloe.display.card import format_count
from icefloe.errors import InvalidInputError, printable
from icefloe.model.chunk_table import ChunkTable

Layout: TypeAlias = Literal["chunked", "contiguous", "records", "opaque", "named"]
"""The layout of a variable's bytes in its file. `opaque` variables can only be read by value.

A `named` variable is not in the file. The name of the file, or a function, gives its value.
"""

KEPT_COORDINATE_CELLS = 1 << 16
"""Longer coordinates are only summarised in the schema. They are read again when they are written."""

GRIB_PRODUCT_KEYS = (
    "derivedForecast",
    "percentileValue",
    "quantileValue",
    "totalNumberOfQuantiles",
    "probabilityType",
    "lowerLimit",
    "upperLimit",
    "clusterNumber",
    "constituentType",
    "aerosolType",
    "sourceSinkChemicalPhysicalProcess",
    "firstSize",
    "secondSize",
    "firstWavelength",
    "secondWavelength",
    "satelliteSeries",
    "satelliteNumber",
    "instrumentType",
    "centralWaveNumber",
    "directionNumber",
    "frequencyNumber",
    "typeOfWavePeriodInterval",
    "tileIndex",
    "tileAttribute",
    "localType",
    "hindcastDate",
    "systemNumber",
    "methodNumber",
)
"""Keys of GRIB messages, beyond parameter, level, step, member and time, that make two fields different."""

IDENTITY_ATTRIBUTES = frozenset(
    {
        "crs",
        "GeoTransform",
        "enum_members",
        "ground_control_points",
        "scales",
        "offsets",
        "GRIB_paramId",
        "GRIB_stepType",
        "GRIB_typeOfLevel",
        "GRIB_level",
        "GRIB_md5GridSection",
    }
    | {f"GRIB_{key}" for key in GRIB_PRODUCT_KEYS}
)
"""Attributes that must be the same in all files of one array. With other values, the numbers have another meaning."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, Zarr store or reference set to ingest, and its version.

    Parameters
    ----------
    url
        The absolute URL.
    size_bytes
        The size.
    etag
        The ETag, if the storage has one.
    last_modified
        The modification time in seconds since 1970.
    version
        What identifies the content more precisely than the time: nanoseconds of a local file, or a hash of the listing
        of a Zarr store.

    Examples
    --------
    >>> SourceFile("s3://bucket/day1.nc", 1024).name
    'day1.nc'
    """

    url: str
    size_bytes: int = 0
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970."""
    version: str | None = None
    """The modification time of a local file in nanoseconds, or a hash of the listing of a Zarr store."""

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class SourceVariable:
    """An array of a source, as the file stores it and as Zarr v3 describes the same bytes.

    Parameters
    ----------
    path
        The path in the file.
    dims
        The names of the dimensions.
    shape
        The length of each dimension.
    dtype
        The NumPy data type with byte order, or `string` for text of any length.
    chunks
        The chunk length of each dimension.
    attributes
        The attributes.
    fill_value
        The fill value as in zarr.json. None is the zero of the type.
    codecs
        The codecs as in zarr.json.
    layout
        How the bytes are arranged in the file. `opaque` variables can only be read by value.
    not_virtual
        Why the bytes cannot be referenced. None if they can.
    stacked
        The number of first dimensions, of length one, that are not in the file. Files are stacked along them.
    decoded_dtype
        The type to which xarray decodes packed or missing numbers. None if the attributes define it.
    has_missing_text
        Some cells contain the text that the file declares as missing.
    whole
        The variable as it is in the file, if only a part of it is used.
    first
        The first cell of the part in the whole variable.
    order
        The cells of the file by dimension, in the order in which they are used. Other dimensions are as in the file.
    added
        Numbers that are added to the values of the file along a dimension, in the order in which they are used.

    Examples
    --------
    >>> SourceVariable("/t", ("x",), (4,), "<f4", (2,)).nbytes
    16
    """

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    """The NumPy data type with byte order, or "string" for text of any length."""
    chunks: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None
    """As in zarr.json. None is the zero of the type."""
    codecs: tuple[Mapping[str, Any], ...] = ()
    layout: Layout = "chunked"
    not_virtual: str | None = None
    """Why its bytes cannot be referenced. None if they can."""
    stacked: int = 0
    """The number of first dimensions, of length one, that are not in the file. Files are stacked along them."""
    decoded_dtype: str | None = None
    """The type to which xarray decodes packed or missing numbers. None if the attributes define it."""
    has_missing_text: bool = False
    """Some cells contain the text that the file declares as missing."""
    whole: SourceVariable | None = None
    """The variable as it is in the file, if only a part of it is used."""
    first: tuple[int, ...] = ()
    """The first cell of the part in the whole variable."""
    order: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The cells of the file by dimension, in the order in which they are used."""
    added: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Numbers that are added to the values of the file along a dimension."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def nbytes(self) -> int:
        """The size of the decoded values. Text is estimated at 16 bytes per value."""
        item = 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape, dtype=np.int64)) * item

    def cut(self, dim: str, first: int, end: int) -> SourceVariable:
        """Return the part [first, end) along a dimension. It can only be read by value.

        Parameters
        ----------
        dim
            The dimension.
        first
            The first cell.
        end
            The cell after the last one.

        Returns
        -------
        SourceVariable
            The part.

        Examples
        --------
        >>> SourceVariable("/t", ("x",), (4,), "<f4", (2,)).cut("x", 1, 3).shape
        (2,)
        """
        axis = self.dims.index(dim)
        return replace(
            self,
            shape=(*self.shape[:axis], end - first, *self.shape[axis + 1 :]),
            whole=self,
            first=tuple(first if i == axis else 0 for i in range(len(self.dims))),
            not_virtual=self.not_virtual or "another file has some of its cells too, and only a part of it is used",
        )

    def in_file(self) -> SourceVariable:
        """Return the variable as it is in the file, without the dimensions along which files are stacked.

        Returns
        -------
        SourceVariable
            The variable.

        Examples
        --------
        >>> stacked = SourceVariable("/t", ("time", "x"), (1, 4), "<f4", (1, 4), stacked=1)
        >>> stacked.in_file().dims
        ('x',)
        """
        if not self.stacked:
            return self
        n = self.stacked
        return replace(self, dims=self.dims[n:], shape=self.shape[n:], chunks=self.chunks[n:], stacked=0)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The summary of a one-dimensional or scalar coordinate, with its values if they are few."""

    size: int
    digest: str
    first: Any
    last: Any
    direction: int
    """1 ascending, -1 descending, 0 neither (or a single value)."""
    step: float | None = None
    """The common difference, if the values are equally spaced."""
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """A source without its chunk references. It is small and sufficient for planning.

    Parameters
    ----------
    file
        The source file.
    format
        The name of the format.
    variables
        The variables by path.
    coordinates
        Summaries of the coordinates by path.
    groups
        Attributes by group path. The path of the root is empty.
    skipped
        Members of the file that Zarr cannot represent, and the reasons.
    referenced
        Directories of the files that it refers to, if they are not its own.
    digests
        Hashes of the stored values of small variables that files usually share, by path.
    left_out
        Parts of the file that are not data of their own, such as overviews, and what they are.

    Examples
    --------
    >>> variable = SourceVariable("/t", ("x",), (4,), "<f4", (2,))
    >>> SourceSchema(SourceFile("file:///a.nc"), "netcdf3", {"/t": variable}).dimension_sizes()
    {'x': 4}
    """

    file: SourceFile
    format: str
    variables: Mapping[str, SourceVariable]
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes by group path. The path of the root is empty."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Members of the file that Zarr cannot represent, and the reasons."""
    referenced: tuple[str, ...] = ()
    """Directories of the files that it refers to, if they are not its own."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the stored values of small variables that files usually share, by path."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Parts of the file that are not data of their own, such as overviews, and what they are."""

    def dimension_sizes(self) -> dict[str, int]:
        """Return the length of every named dimension.

        Returns
        -------
        dict
            Lengths by name.

        Examples
        --------
        >>> variable = SourceVariable("/t", ("x",), (4,), "<f4", (2,))
        >>> SourceSchema(SourceFile("file:///a.nc"), "netcdf3", {"/t": variable}).dimension_sizes()
        {'x': 4}
        """
        sizes: dict[str, int] = {}
        for variable in self.variables.values():
            sizes.update(zip(variable.dims, variable.shape, strict=True))
        return sizes


@dataclass(frozen=True, slots=True)
class References:
    """The chunk references of a variable, and the chunks that must be written by value."""

    table: ChunkTable
    by_value: npt.NDArray[np.uint32]
    """uint32[n, ndim] chunk coordinates."""


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """A source with the chunk references of its variables.

    Parameters
    ----------
    schema
        The schema of the source.
    references
        The references by variable path.

    Examples
    --------
    >>> ParsedSource(SourceSchema(SourceFile("file:///a.nc"), "netcdf3", {}), {}).schema.format
    'netcdf3'
    """

    schema: SourceSchema
    references: Mapping[str, References]


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that cannot be read.

    Parameters
    ----------
    file
        The source file.
    reason
        The message of the error.
    error
        The name of the error class.

    Examples
    --------
    >>> SourceFailure(SourceFile("file:///a.nc"), "the file is empty", "FormatError").reason
    'the file is empty'
    """

    file: SourceFile
    reason: str
    error: str
    """Name of the error's class."""


def summarise_coordinate(values: npt.NDArray[Any]) -> Coordinate:
    """Return the order, the spacing and a hash of the values of a coordinate."""
    flat = np.ascontiguousarray(values).reshape(-1)
    direction, step = 0, None
    if flat.size > 1 and flat.dtype.kind in "iuf":
        # Compare neighbours instead of subtracting them, because differences of wide integers may overflow.
        direction = 1 if bool((flat[1:] > flat[:-1]).all()) else -1 if bool((flat[1:] < flat[:-1]).all()) else 0
        wide = flat.astype(np.float64)
        mean = float(wide[-1] - wide[0]) / (flat.size - 1)
        if direction and bool((np.abs(np.diff(wide) - mean) <= 1e-3 * abs(mean)).all()):
            step = mean
    elif flat.size > 1 and flat.dtype.kind in "OUST":
        texts = flat.tolist()
        pairs = list(itertools.pairwise(texts))
        direction = 1 if all(a < b for a, b in pairs) else -1 if all(a > b for a, b in pairs) else 0
    ends = flat[[0, -1]].tolist() if flat.size else [None, None]
    return Coordinate(
        size=int(flat.size),
        digest=digest_values(flat),
        first=ends[0],
        last=ends[1],
        direction=direction,
        step=step,
        values=flat if flat.size <= KEPT_COORDINATE_CELLS else None,
    )


NAMING_ATTRIBUTES = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "ancillary_variables",
    "cell_measures",
    "formula_terms",
)
"""Attributes whose words are names of other variables."""


def named_by(variable: SourceVariable) -> set[str]:
    """Return the names of the variables that the attributes of another one refer to."""
    texts = [str(variable.attributes[a]) for a in NAMING_ATTRIBUTES if a in variable.attributes]
    return {word.rstrip(":") for text in texts for word in text.split()}


def digest_values(flat: npt.NDArray[Any]) -> str:
    """Return a hash of values. Equal numbers have the same hash for all types and byte orders."""
    kind = "number" if flat.dtype.kind in "iuf" else flat.dtype.kind
    if kind == "number":
        wide = flat.astype(np.float64) + 0.0
        # Integers beyond 2**53 have no exact double, so hash their own bytes.
        is_exact = flat.dtype.kind == "f" or flat.dtype.itemsize < 8 or bool((np.abs(wide) < 2.0**53).all())
        flat = wide if is_exact else flat.astype(flat.dtype.newbyteorder("<"))
    digest = hashlib.blake2b(f"{kind}{flat.shape}".encode(), digest_size=16)
    digest.update(flat.tobytes() if flat.dtype != object else repr(flat.tolist()).encode())
    return digest.hexdigest()


VARIABLE_FIELDS = operator.attrgetter(*(each.name for each in fields(SourceVariable)))
"""The values of a variable. Pickling the variable itself would look each of them up in Python."""


def intern_schemas(schemas: Iterable[SourceSchema], files: Iterable[SourceFile] = ()) -> list[SourceSchema]:
    """Return the same schemas, sharing equal variables, coordinates, groups and files to save memory.

    What is shared already stays the same object. Files are shared with `files` too. Schemas that are made while they
    are read are dropped soon after, so that a long list is never in memory without sharing.
    """
    interner, source = SchemaInterner(files), iter(schemas)
    shared: list[SourceSchema] = []
    while part := list(itertools.islice(source, _INTERNED_AT_ONCE)):
        shared += interner.share(part)
    return shared


T = TypeVar("T")
_INTERNED_AT_ONCE = 256


class SchemaInterner:
    """Finds an equal value that was seen before. A value that is the same object again is not compared."""

    def __init__(self, files: Iterable[SourceFile] = ()) -> None:
        self._same: dict[int, Any] = {}
        self._equal: dict[Any, Any] = {file: file for file in files}

    def share(self, schemas: Sequence[SourceSchema]) -> list[SourceSchema]:
        """Return the same schemas, sharing what they and earlier ones have in common."""
        # Objects are known by their identity only while the caller holds them: another may have it afterwards.
        self._same = {}
        return [self._schema(schema) for schema in schemas]

    def _schema(self, schema: SourceSchema) -> SourceSchema:
        shared = {
            "file": self._share(schema.file, lambda file: file),
            "variables": self._mapping(schema.variables, self._variable),
            "coordinates": self._mapping(schema.coordinates, self._coordinate),
            **{name: self._share(getattr(schema, name), hash_value) for name in _PLAIN_MAPPINGS},
        }
        is_shared = all(getattr(schema, name) is value for name, value in shared.items())
        return schema if is_shared else replace(schema, **shared)

    def _share(self, value: Any, key: Callable[[Any], Any]) -> Any:
        found = self._same.get(id(value))
        if found is None:
            found = self._same[id(value)] = self._equal.setdefault(key(value), value)
        return found

    def _variable(self, variable: SourceVariable) -> SourceVariable:
        shared: SourceVariable = self._share(variable, lambda each: hash_value(VARIABLE_FIELDS(each)))
        return shared

    def _coordinate(self, coordinate: Coordinate) -> Coordinate:
        shared: Coordinate = self._share(coordinate, _coordinate_key)
        return shared

    def _mapping(self, found: Mapping[str, T], share: Callable[[T], T]) -> Mapping[str, T]:
        known: Mapping[str, T] | None = self._same.get(id(found))
        if known is None:
            shared = {path: share(value) for path, value in found.items()}
            is_shared = all(shared[path] is value for path, value in found.items())
            key = tuple((path, id(value)) for path, value in shared.items())
            known = self._same[id(found)] = self._equal.setdefault(key, found if is_shared else shared)
        return known


def pack_value(value: Any) -> bytes:
    """Pickle a value. Unlike that of `pickle.dumps`, the result does not depend on which of its parts are shared."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.fast = True
    pickler.dump(value)
    return stream.getvalue()


def hash_value(value: Any) -> bytes:
    """Hash a value that can be pickled."""
    return hashlib.blake2b(pack_value(value), digest_size=16).digest()


_PLAIN_MAPPINGS = ("groups", "skipped", "digests", "left_out")


def _coordinate_key(coordinate: Coordinate) -> tuple[str, str]:
    return coordinate.digest, "" if coordinate.values is None else coordinate.values.dtype.str


GAP = "gap"
"""The facet of a gap: values are missing between neighbours of a joined dimension."""

Severity: TypeAlias = Literal["error", "handled", "note"]


@dataclass(frozen=True, slots=True)
class SchemaIssue:
    """A difference between sources.

    Parameters
    ----------
    severity
        `error` prevents the ingest. `handled` is resolved. `note` is information.
    file
        The URL of the file.
    variable
        The name of the variable.
    facet
        What differs, such as `dtype`.
    expected
        The expected value.
    found
        The value of the file.
    resolution
        What happens, or what to do.

    Examples
    --------
    >>> print(SchemaIssue("error", "a.nc", "t", "units", "K", "degC", "convert the file"))
    a.nc: t: units: expected K, found degC; convert the file
    """

    severity: Severity
    file: str
    variable: str
    facet: str
    expected: str
    found: str
    resolution: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.variable) if part)
        difference = f"{self.facet}: expected {self.expected}, found {self.found}; {self.resolution}"
        return printable(f"{place}: {difference}" if place else f"{self.found}; {self.resolution}")


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """All differences between the sources.

    Parameters
    ----------
    issues
        The differences.

    Examples
    --------
    >>> SchemaReport().errors
    ()
    """

    issues: tuple[SchemaIssue, ...] = ()

    @property
    def errors(self) -> tuple[SchemaIssue, ...]:
        """The differences that prevent the ingest."""
        return tuple(issue for issue in self.issues if issue.severity == "error")

    def raise_on_errors(self) -> None:
        """Raise an error if a difference prevents the ingest.

        Raises
        ------
        InvalidInputError
            There are errors. The message lists the first 20.

        Examples
        --------
        >>> SchemaReport().raise_on_errors()
        """
        errors = self.errors
        if errors:
            shown = "\n".join(f"  {issue}" for issue in errors[:20])
            more = f"\n  and {len(errors) - 20} more" if len(errors) > 20 else ""
            count = format_count(len(errors), "difference")
            raise InvalidInputError(
                f"the sources do not fit together ({count}); nothing was written:\n{shown}{more}", report=self
            )

    def rows(self) -> list[tuple[str, ...]]:
        """Return the differences as rows of a table.

        Returns
        -------
        list of tuple
            Severity, file, variable, facet, expected, found, resolution.

        Examples
        --------
        >>> SchemaReport().rows()
        []
        """
        return [(i.severity, i.file, i.variable, i.facet, i.expected, i.found, i.resolution) for i in self.issues]


def join_reports(reports: Sequence[SchemaReport]) -> SchemaReport:
    """Combine reports, errors first."""
    rank = {"error": 0, "handled": 1, "note": 2}
    issues = sorted((i for report in reports for i in report.issues), key=lambda i: rank[i.severity])
    return SchemaReport(tuple(issues))
