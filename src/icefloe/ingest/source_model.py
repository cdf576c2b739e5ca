"""What a source file holds, as values, and the report of what differs between files."""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.display.card import format_count
from icefloe.errors import InvalidInputError, printable
from icefloe.model.chunk_table import ChunkTable

Layout: TypeAlias = Literal["chunked", "contiguous", "records", "opaque"]
"""How a variable's bytes lie in its file; `opaque` ones can only be read by value."""

KEPT_COORDINATE_CELLS = 1 << 16
"""Longer coordinates travel as a summary and are read from their files again when they are written."""

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
"""Attributes that must be the same in all files of one array: with other values, the numbers are of something else."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file (or Zarr store, or reference set) to ingest, and which state of it was seen."""

    url: str
    size_bytes: int = 0
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970."""

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class SourceVariable:
    """One array of a source, as its file stores it and as Zarr v3 would describe the same bytes."""

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    """numpy's spelling with byte order, or "string" for text of any length."""
    chunks: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None
    """As zarr.json spells it; None asks for the type's zero."""
    codecs: tuple[Mapping[str, Any], ...] = ()
    layout: Layout = "chunked"
    not_virtual: str | None = None
    """Why its bytes cannot be referenced where they are; None when they can."""
    is_stacked: bool = False
    """The first dimension, of length one, is not in the file: files are stacked along it."""
    decoded_dtype: str | None = None
    """The type in which xarray decodes its packed or missing numbers; None where its attributes tell as they are."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def nbytes(self) -> int:
        """Size of the decoded values; texts are guessed at 16 bytes each."""
        item = 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape, dtype=np.int64)) * item

    def in_file(self) -> SourceVariable:
        """The variable as the file has it, without the dimension it is stacked along."""
        if not self.is_stacked:
            return self
        return replace(self, dims=self.dims[1:], shape=self.shape[1:], chunks=self.chunks[1:], is_stacked=False)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A one-dimensional (or scalar) coordinate: enough to put files in order, and its values when they are few."""

    size: int
    digest: str
    first: Any
    last: Any
    direction: int
    """1 ascending, -1 descending, 0 neither (or a single value)."""
    step: float | None = None
    """The common difference where the values are equally spaced."""
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """A source without its chunk references; small, and all a plan needs."""

    file: SourceFile
    format: str
    variables: Mapping[str, SourceVariable]
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes per group path; the root is the empty path."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Members of the file that Zarr cannot hold, and why."""
    referenced: tuple[str, ...] = ()
    """Folders of the files it refers to, where those are not its own."""

    def dimension_sizes(self) -> dict[str, int]:
        """The length of every named dimension."""
        sizes: dict[str, int] = {}
        for variable in self.variables.values():
            sizes.update(zip(variable.dims, variable.shape, strict=True))
        return sizes


@dataclass(frozen=True, slots=True)
class References:
    """Where the chunks of a variable lie; chunks that cannot be referenced are named to be written by value."""

    table: ChunkTable
    by_value: npt.NDArray[np.uint32]
    """uint32[n, ndim] chunk coordinates."""


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """A source with the chunk references of its variables."""

    schema: SourceSchema
    references: Mapping[str, References]


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that cannot be read, and why."""

    file: SourceFile
    reason: str
    error: str
    """Name of the error's class."""


def summarise_coordinate(values: npt.NDArray[Any]) -> Coordinate:
    """Order, spacing and fingerprint of a coordinate's values."""
    flat = np.ascontiguousarray(values).reshape(-1)
    direction, step = 0, None
    if flat.size > 1 and flat.dtype.kind in "iuf":
        # Neighbours are compared, not subtracted: differences of wide integers may overflow.
        direction = 1 if bool((flat[1:] > flat[:-1]).all()) else -1 if bool((flat[1:] < flat[:-1]).all()) else 0
        wide = flat.astype(np.float64)
        mean = float(wide[-1] - wide[0]) / (flat.size - 1)
        if direction and bool((np.abs(np.diff(wide) - mean) <= 1e-3 * abs(mean)).all()):
            step = mean
    return Coordinate(
        size=int(flat.size),
        digest=_digest(flat),
        first=flat[0].item() if flat.size else None,
        last=flat[-1].item() if flat.size else None,
        direction=direction,
        step=step,
        values=flat if flat.size <= KEPT_COORDINATE_CELLS else None,
    )


def _digest(flat: npt.NDArray[Any]) -> str:
    """A fingerprint of values: numbers that are equal have the same one, whatever their type and byte order."""
    kind = "number" if flat.dtype.kind in "iuf" else flat.dtype.kind
    if kind == "number":
        wide = flat.astype(np.float64) + 0.0
        # Integers beyond 2**53 have no exact double; they keep their own bytes.
        is_exact = flat.dtype.kind == "f" or flat.dtype.itemsize < 8 or bool((np.abs(wide) < 2.0**53).all())
        flat = wide if is_exact else flat.astype(flat.dtype.newbyteorder("<"))
    digest = hashlib.blake2b(f"{kind}{flat.shape}".encode(), digest_size=16)
    digest.update(flat.tobytes() if flat.dtype != object else repr(flat.tolist()).encode())
    return digest.hexdigest()


_FIELDS = operator.attrgetter(*(each.name for each in fields(SourceVariable)))
"""The values of a variable. Pickling the variable itself would look each of them up in Python."""


def intern_schemas(schemas: Iterable[SourceSchema]) -> list[SourceSchema]:
    """The same schemas, sharing equal variables, coordinates and groups, so that many alike files cost little."""
    variables: dict[bytes, SourceVariable] = {}
    coordinates: dict[tuple[str, str], Coordinate] = {}
    mappings: dict[bytes, Any] = {}

    def share(value: Any) -> Any:
        return mappings.setdefault(pickle.dumps(value), value)

    shared: list[SourceSchema] = []
    for schema in schemas:
        shared.append(
            replace(
                schema,
                variables={p: variables.setdefault(pickle.dumps(_FIELDS(v)), v) for p, v in schema.variables.items()},
                coordinates={p: _shared_coordinate(c, coordinates) for p, c in schema.coordinates.items()},
                groups=share(dict(schema.groups)),
                skipped=share(dict(schema.skipped)),
            )
        )
    return shared


def _shared_coordinate(coordinate: Coordinate, known: dict[tuple[str, str], Coordinate]) -> Coordinate:
    dtype = "" if coordinate.values is None else coordinate.values.dtype.str
    return known.setdefault((coordinate.digest, dtype), coordinate)


GAP = "gap"
"""The facet of a difference that is nobody's fault: values missing between neighbours of a joined dimension."""

Severity: TypeAlias = Literal["error", "handled", "note"]


@dataclass(frozen=True, slots=True)
class SchemaIssue:
    """One difference: in which file and variable, what was expected and found, and what is done about it."""

    severity: Severity
    file: str
    variable: str
    facet: str
    expected: str
    found: str
    resolution: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.variable) if part)
        told = f"{self.facet}: expected {self.expected}, found {self.found}; {self.resolution}"
        return printable(f"{place}: {told}" if place else f"{self.found}; {self.resolution}")


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """Every difference found in the first pass."""

    issues: tuple[SchemaIssue, ...] = ()

    @property
    def errors(self) -> tuple[SchemaIssue, ...]:
        return tuple(issue for issue in self.issues if issue.severity == "error")

    def raise_on_errors(self) -> None:
        """Refuse the ingest if a difference cannot be dealt with."""
        errors = self.errors
        if errors:
            shown = "\n".join(f"  {issue}" for issue in errors[:20])
            more = f"\n  and {len(errors) - 20} more" if len(errors) > 20 else ""
            count = format_count(len(errors), "difference")
            raise InvalidInputError(
                f"the sources do not fit together ({count}); nothing was written:\n{shown}{more}", report=self
            )

    def rows(self) -> list[tuple[str, ...]]:
        """For tables: severity, file, variable, facet, expected, found, resolution."""
        return [(i.severity, i.file, i.variable, i.facet, i.expected, i.found, i.resolution) for i in self.issues]


def join_reports(reports: Sequence[SchemaReport]) -> SchemaReport:
    """One report of several, the worst first."""
    rank = {"error": 0, "handled": 1, "note": 2}
    issues = sorted((i for report in reports for i in report.issues), key=lambda i: rank[i.severity])
    return SchemaReport(tuple(issues))
