"""GRIB edition 1 and 2, read with ecCodes."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import eccodes
import numpy as np
import numpy.typing as npt

from icefloe.ingest.access import SourceAccess, local_errors, local_path
from icefloe.ingest.chunk_grids import Region, all_coords, grid_shape
from icefloe.ingest.parsers.contract import OpenSource, broken
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable, summarise_coordinate
from icefloe.ingest.zarr_documents import bytes_codec, fill_attribute, fill_value_document
from icefloe.model.chunk_table import empty_table

_NO_CODEC = "GRIB packs its values in a way that Zarr has no codec for"
_MISSING = 9.999e20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIME = {"standard_name": "forecast_reference_time", "units": "hours since 1970-01-01", "calendar": "standard"}
_STEP = {"standard_name": "forecast_period", "units": "hours"}


@dataclass(frozen=True, slots=True)
class _Message:
    """Where a field lies in the file, and what it is."""

    offset: int
    name: str
    level_type: str
    level: float
    time: float
    step: float
    member: int
    grid: tuple[Any, ...]
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Field:
    """The messages of one variable by their place on the axes around the field."""

    axes: dict[str, list[float]]
    cells: dict[tuple[float, ...], _Message]


class GribSource(OpenSource):
    """Fields gathered into arrays over time, step, level and ensemble member; values only, no references."""

    format = "grib"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        path = local_path(file.url)
        # ecCodes reads from a file of the operating system only.
        if path is not None:
            with local_errors(file.url):
                self._stream: Any = path.open("rb")
        else:
            self._stream = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source
            self._stream.write(access.read(file.url))
            self._stream.seek(0)
        self._schema: SourceSchema | None = None
        try:
            self._fields = _gather(self._scan())
        except (eccodes.CodesInternalError, OSError) as error:
            self._stream.close()
            raise broken(file, "GRIB", error) from error
        if not self._fields:
            self._stream.close()
            raise broken(file, "GRIB", "it holds no message (truncated?)")

    def _scan(self) -> Iterator[_Message]:
        while True:
            with self._message() as handle:
                if handle is None:
                    return
                yield _describe_message(handle)

    @contextmanager
    def _message(self, offset: int | None = None) -> Iterator[Any]:
        if offset is not None:
            self._stream.seek(offset)
        handle = eccodes.codes_grib_new_from_file(self._stream)
        try:
            yield handle
        finally:
            if handle is not None:
                eccodes.codes_release(handle)

    def schema(self) -> SourceSchema:
        if self._schema is not None:
            return self._schema
        variables: dict[str, SourceVariable] = {}
        coordinates = {}
        for name, field in self._fields.items():
            first, axes = next(iter(field.cells.values())), field.axes
            inner, ground = _ground(first.grid)
            shape = (*(len(v) for v in axes.values()), *inner.values())
            attributes: dict[str, Any] = {**dict(first.attributes), "_FillValue": fill_attribute("<f4", np.nan)}
            variables[name] = SourceVariable(
                path=name, dims=(*axes, *inner), shape=shape, dtype="<f4",
                chunks=(*(1 for _ in axes), *inner.values()), attributes=attributes,
                fill_value=fill_value_document("<f4", np.nan), codecs=(bytes_codec("<f4"),), layout="opaque",
                not_virtual=_NO_CODEC,
            )  # fmt: skip
            found = {d: np.asarray(v, "<f8") for d, v in axes.items()} | ground
            for dim, values in found.items():
                variables[dim] = _axis(dim, values)
                coordinates[dim] = summarise_coordinate(values)
        self._schema = SourceSchema(self.file, self.format, variables, coordinates, {"": {"Conventions": "CF-1.8"}})
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        coords = all_coords(grid_shape(variable.shape, variable.chunks))
        return References(empty_table(len(variable.shape)), coords)

    def values(self, variable: SourceVariable, region: Region) -> npt.NDArray[Any]:
        if variable.path not in self._fields:
            return np.asarray(self.schema().coordinates[variable.path].values)[region[0]]
        field = self._fields[variable.path]
        axes = list(field.axes.values())
        outer, inner = region[: len(axes)], region[len(axes) :]
        result = np.full([s.stop - s.start for s in region], np.nan, dtype="<f4")
        field_shape = variable.shape[len(axes) :]
        for index in np.ndindex(*[s.stop - s.start for s in outer]):
            key = tuple(axis[s.start + i] for axis, s, i in zip(axes, outer, index, strict=True))
            message = field.cells.get(key)
            if message is not None:
                result[index] = self._field(message, field_shape)[inner]
        return result

    def _field(self, message: _Message, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        try:
            with self._message(message.offset) as handle:
                eccodes.codes_set(handle, "missingValue", _MISSING)
                values = eccodes.codes_get_values(handle).reshape(shape)
        except (eccodes.CodesInternalError, ValueError) as error:
            raise broken(self.file, "GRIB", error) from error
        return np.where(values == _MISSING, np.nan, values)

    def close(self) -> None:
        self._stream.close()


def _describe_message(handle: Any) -> _Message:
    def get(key: str, default: Any = None) -> Any:
        return eccodes.codes_get(handle, key) if eccodes.codes_is_defined(handle, key) else default

    date, clock = int(get("dataDate")), int(get("dataTime"))
    when = dt.datetime(date // 10000, date // 100 % 100, date % 100, clock // 100, clock % 100, tzinfo=dt.UTC)
    attributes = {"long_name": str(get("name", "")), "units": str(get("units", ""))}
    if get("cfName") not in (None, "unknown"):
        attributes["standard_name"] = str(get("cfName"))
    return _Message(
        offset=int(eccodes.codes_get_message_offset(handle)), name=str(get("shortName")),
        level_type=str(get("typeOfLevel")), level=float(get("level", 0)),
        time=(when - _EPOCH).total_seconds() / 3600, step=float(get("endStep", 0)),
        member=int(get("number", 0) or 0), grid=_grid(handle, get), attributes=tuple(attributes.items()),
    )  # fmt: skip


def _grid(handle: Any, get: Any) -> tuple[Any, ...]:
    """What tells two grids apart, and what coordinates are computed from."""
    if get("gridType") in ("regular_ll", "regular_gg"):
        count_x, count_y = int(get("Ni")), int(get("Nj"))
        lat = np.asarray(eccodes.codes_get_array(handle, "distinctLatitudes"), dtype=np.float64)
        if int(get("jScansPositively")) == 0:
            lat = lat[::-1] if lat[0] < lat[-1] else lat
        lon = float(get("longitudeOfFirstGridPointInDegrees")) + np.arange(count_x) * float(
            get("iDirectionIncrementInDegrees", 360 / count_x)
        )
        return "latlon", count_y, count_x, lat.tobytes(), lon.tobytes()
    return "points", int(get("numberOfValues"))


def _ground(grid: tuple[Any, ...]) -> tuple[dict[str, int], dict[str, npt.NDArray[np.float64]]]:
    """The dimensions of a field, and their coordinates."""
    if grid[0] == "points":
        return {"values": grid[1]}, {}
    return (
        {"latitude": grid[1], "longitude": grid[2]},
        {"latitude": np.frombuffer(grid[3]), "longitude": np.frombuffer(grid[4])},
    )


def _gather(messages: Iterator[_Message]) -> dict[str, _Field]:
    """Fields by name; a name on several kinds of level or grids is told apart by the kind of level."""
    kinds: dict[tuple[str, str, tuple[Any, ...]], list[_Message]] = {}
    for message in messages:
        kinds.setdefault((message.name, message.level_type, message.grid), []).append(message)
    names = [name for name, _, _ in kinds]
    known: dict[str, list[float]] = {}
    fields: dict[str, _Field] = {}
    for (name, level_type, _), found in kinds.items():
        label = name if names.count(name) == 1 else f"{name}_{level_type}"
        while label in fields:
            label += "_"
        fields[label] = _arrange(found, level_type, known)
    return fields


def _arrange(messages: list[_Message], level_type: str, known: dict[str, list[float]]) -> _Field:
    """Messages on a grid of their own; dimensions with one value are left out, but for time, to join files along.

    `known` are the dimensions of other fields: one with other values gets another name.
    """
    keys = [(m.time, m.step, float(m.member), m.level) for m in messages]
    kept = [i for i in range(4) if i == 0 or len({key[i] for key in keys}) > 1]
    axes: dict[str, list[float]] = {}
    for i in kept:
        values = sorted({key[i] for key in keys})
        name = label = ("time", "step", "number", level_type)[i]
        number = 2
        while known.setdefault(label, values) != values:
            label, number = f"{name}_{number}", number + 1
        axes[label] = values
    return _Field(axes, {tuple(key[i] for i in kept): m for key, m in zip(keys, messages, strict=True)})


def _axis(name: str, values: npt.NDArray[np.float64]) -> SourceVariable:
    attributes = {
        "time": _TIME, "step": _STEP, "latitude": {"standard_name": "latitude", "units": "degrees_north"},
        "longitude": {"standard_name": "longitude", "units": "degrees_east"},
    }.get(name.partition("_")[0], {})  # fmt: skip
    return SourceVariable(
        path=name, dims=(name,), shape=values.shape, dtype="<f8", chunks=values.shape, attributes=attributes,
        codecs=(bytes_codec("<f8"),), layout="opaque", not_virtual=_NO_CODEC,
    )  # fmt: skip
