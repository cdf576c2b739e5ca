"""GRIB edition 1 and 2, read with ecCodes.

Every message is one field: a grid of values for one parameter, level, forecast step, ensemble member and reference
time. Messages of one parameter become one array with a dimension for each of these, even if a file has only one value
of it. So the dimensions do not depend on how an archive is split into files. Names are those of cfgrib. Latitudes,
longitudes and values are those that ecCodes computes, in the order in which it returns them.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import eccodes
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, IcefloeError
from icefloe.grib_codec import GribCodec, count_fields, parameter_numbers, read_values
from icefloe.ingest.access import SourceAccess, local_errors, local_path
from icefloe.ingest.chunk_grids import ChunkRegion, all_coords, grid_shape, virtual_table
from icefloe.ingest.parsers.grib_grid import Grid, describe_grid
from icefloe.ingest.parsers.registry import OpenSource, broken
from icefloe.ingest.source_model import (
    GRIB_PRODUCT_KEYS,
    References,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.ingest.zarr_documents import bytes_codec, fill_attribute, fill_value_document
from icefloe.model.chunk_table import empty_table

_COMPUTED = "it is computed from the messages"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "D": 24.0}

_SCALED = frozenset(
    {"lowerLimit", "upperLimit", "firstSize", "secondSize", "firstWavelength", "secondWavelength", "centralWaveNumber"}
)
"""Product keys that GRIB 2 stores as a scaled value and a scale factor."""
_PLAIN_TEMPLATES = {0, 1, 8, 11}
"""Product definition templates without any product keys."""
# Keys that are only used if two messages have the same cell. Each value then has a separate variable.
_LAST_KEYS = (
    "dataType",
    "marsType",
    "stream",
    "marsStream",
    "class",
    "marsClass",
    "experimentVersionNumber",
    "expver",
    "typeOfProcessedData",
    "typeOfGeneratingProcess",
    "generatingProcessIdentifier",
    "backgroundProcess",
    "productionStatusOfProcessedData",
    "typeOfEnsembleForecast",
    "typeOfSecondFixedSurface",
    "centre",
    "subCentre",
)
_WITHOUT_VALUE = frozenset(
    {
        "surface",
        "meanSea",
        "entireAtmosphere",
        "atmosphere",
        "entireOcean",
        "nominalTop",
        "tropopause",
        "maxWind",
        "cloudBase",
        "cloudTop",
        "isothermZero",
        "adiabaticCondensation",
        "mostUnstableParcel",
        "lowCloudLayer",
        "middleCloudLayer",
        "highCloudLayer",
        "lakeBottom",
        "iceTopOnWater",
        "oceanSurface",
        "unknown",
    }
)
"""Kinds of level that have only one level."""
_ATTRIBUTES = (
    "paramId",
    "dataType",
    "numberOfPoints",
    "typeOfLevel",
    "stepType",
    "gridType",
    "uvRelativeToGrid",
    "shortName",
    "name",
    "cfName",
    "cfVarName",
    "units",
)


@dataclass(frozen=True, slots=True)
class Message:
    """The location of a field in the file, and its keys."""

    index: int
    """Position among the fields of the file."""
    offset: int
    length: int
    part: int | None
    """The number of the field in a GRIB 2 message with several. None for a message with one field."""
    name: str
    step_type: str
    level_type: str
    level: tuple[float, float]
    """Top and bottom. Equal for a single level."""
    time: float
    start: float
    step: float
    member: int | None
    grid: str
    keys: tuple[tuple[str, float], ...]
    parameter: str
    """The edition and the numbers of the parameter."""

    def cell(self) -> tuple[Any, ...]:
        return (self.time, self.step, self.member or 0, self.level, self.keys)

    def __str__(self) -> str:
        when = (EPOCH + dt.timedelta(hours=self.time)).strftime("%Y-%m-%d %H:%M")
        layer = f"{self.level[0]:g}" if self.level[0] == self.level[1] else f"{self.level[0]:g}-{self.level[1]:g}"
        steps = f"{self.step:g}" if self.start == self.step else f"{self.start:g}-{self.step:g}"
        member = "" if self.member is None else f", number {self.member}"
        return f"{self.name} at {when}, step {steps} h, {self.level_type} {layer}{member}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dimension of a variable: a key, and its sorted values in the messages."""

    kind: str
    """time, step, number, level, or the name of a product key."""
    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    """One variable: its messages by their values on the axes."""

    axes: tuple[_Axis, ...]
    cells: Mapping[tuple[Any, ...], Message]
    grid: str
    attributes: Mapping[str, Any]
    bounds: npt.NDArray[np.float64] | None = None
    """Start and end of the period of each forecast step."""


@dataclass(frozen=True, slots=True)
class _Extra:
    """A variable that is computed from the messages: its description and its values."""

    variable: SourceVariable
    values: npt.NDArray[Any]
    is_coordinate: bool = True


class GribSource(OpenSource):
    """Fields combined into arrays over time, step, level and ensemble member. A chunk is one message."""

    format = "grib"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self.data = file
        """The file with the messages."""
        self._schema: SourceSchema | None = None
        self._grids: dict[str, Grid] = {}
        self._descriptions: dict[tuple[str, ...], dict[str, Any]] = {}
        self._global: dict[str, Any] | None = None
        self._extras: dict[str, _Extra] = {}
        self._open()
        try:
            self._fields = self._gather(list(self._scan()))
        except (eccodes.CodesInternalError, OSError, TypeError, ValueError) as error:
            self.close()
            raise broken(file, "GRIB", error) from error
        except IcefloeError:
            self.close()
            raise
        if not self._fields:
            self.close()
            raise broken(file, "GRIB", "it contains no message (truncated?)")

    # Messages

    def _open(self) -> None:
        path = local_path(self.file.url)
        # ecCodes can only read local files.
        if path is not None:
            with local_errors(self.file.url):
                self._stream: Any = path.open("rb")
        else:
            self._stream = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source
            self._stream.write(self.access.read(self.file.url))
            self._stream.seek(0)

    def _scan(self) -> Iterator[Message]:
        """The keys of every field of the file."""
        index = itertools.count()
        while (handle := eccodes.codes_grib_new_from_file(self._stream)) is not None:
            try:
                offset = int(eccodes.codes_get_message_offset(handle))
                length = int(eccodes.codes_get(handle, "totalLength"))
                parts = count_fields(partial(self._content, offset), length)
                if parts == 1:
                    yield self._describe(handle, next(index), offset, length, None)
                    continue
            finally:
                eccodes.codes_release(handle)
            for part in range(parts):
                with self._open_message(offset, length, part) as single:
                    yield self._describe(single, next(index), offset, length, part)

    def _content(self, offset: int, start: int, size: int) -> bytes:
        """Bytes of the message at an offset."""
        return os.pread(self._stream.fileno(), size, offset + start)

    @contextmanager
    def _open_message(self, offset: int, length: int, part: int | None) -> Iterator[Any]:
        content = self._content(offset, 0, length)
        handle = eccodes.codes_new_from_message(content if part is None else _single_field(content, part))
        try:
            yield handle
        finally:
            eccodes.codes_release(handle)

    def _describe(self, handle: Any, index: int, offset: int, length: int, part: int | None) -> Message:
        message = _describe_message(handle, index, offset, length, part)
        if message.grid not in self._grids:
            self._grids[message.grid] = describe_grid(handle)
        kind = (message.name, message.step_type, message.level_type)
        if kind not in self._descriptions:
            self._descriptions[kind] = _describe_parameter(handle)
        facts = _describe_centre(handle)
        known = facts if self._global is None else self._global
        self._global = {k: v for k, v in known.items() if facts.get(k) == v}
        return message

    def _decode(self, message: Message) -> npt.NDArray[Any]:
        """The values of a message in the shape of its grid. Missing values are NaN."""
        try:
            with self._open_message(message.offset, message.length, message.part) as handle:
                return self._grids[message.grid].shaped(read_values(handle))
        except (eccodes.CodesInternalError, ValueError) as error:
            raise broken(self.file, "GRIB", error) from error

    # Variables

    def _gather(self, messages: Sequence[Message]) -> dict[str, _Field]:
        """Variables by name: one per parameter, kind of step, kind of level and grid."""
        kinds: dict[tuple[str, str, str, str], list[Message]] = {}
        for message in messages:
            kinds.setdefault((message.name, message.step_type, message.level_type, message.grid), []).append(message)
        groups: list[tuple[str, list[Message]]] = []
        for _, same in itertools.groupby(sorted(kinds, key=_by_name), key=lambda kind: kind[0]):
            alike = list(same)
            for kind in alike:
                label = _label(kind, alike)
                for suffix, part in self._split(kinds[kind]):
                    while any(label + suffix == other for other, _ in groups):
                        suffix += "_"
                    groups.append((label + suffix, part))
        names = _AxisNames()
        arranged = {label: _arrange(found) for label, found in groups}
        for axes in arranged.values():
            names.learn(axes)
        return {
            label: self._field(found, names.named(arranged[label]))
            for label, found in sorted(groups, key=lambda group: group[1][0].index)
        }

    def _split(self, messages: list[Message]) -> list[tuple[str, list[Message]]]:
        """Groups of messages that share no cell, by the suffix of their variable's name."""
        found = [("", messages)]
        if _meet(messages) or not _is_function([(m.step, m.start) for m in messages]):
            found = [(s, list(p)) for s, p in _split_by(messages, _range_label)]
        for key in _LAST_KEYS:
            if not any(_meet(part) for _, part in found):
                break
            found = [
                (suffix + more, kept)
                for suffix, part in found
                for more, kept in (self._split_by_key(part, key) if _meet(part) else [("", part)])
            ]
        return [(suffix, self._without_repeats(part)) for suffix, part in found]

    def _split_by_key(self, messages: list[Message], key: str) -> list[tuple[str, list[Message]]]:
        values: dict[int, str] = {}
        for message in messages:
            with self._open_message(message.offset, message.length, message.part) as handle:
                values[message.index] = str(_get(handle, key, ""))
        parts = _split_by(messages, lambda message: f"_{values[message.index]}" if values[message.index] else "")
        # A key that does not distinguish the messages is not part of the names.
        return parts if sum(_meet(p) for _, p in parts) < _meet(messages) else [("", messages)]

    def _without_repeats(self, messages: list[Message]) -> list[Message]:
        """The messages, each cell once.

        A repeated message is left out if its values are the same, and refused otherwise.
        """
        kept: dict[tuple[Any, ...], Message] = {}
        for message in messages:
            other = kept.setdefault(message.cell(), message)
            if other is not message and not np.array_equal(self._decode(other), self._decode(message), equal_nan=True):
                raise FormatError(
                    f"{self.file.url} has two messages with different values for one cell: {message} (messages "
                    f"{other.index + 1} and {message.index + 1}, at bytes {other.offset} and {message.offset}). Split "
                    "the file with grib_copy, and leave one of them out",
                    url=self.file.url,
                    format="GRIB",
                    reason="two messages for one cell",
                )
        return list(kept.values())

    def _field(self, messages: list[Message], axes: Sequence[_Axis]) -> _Field:
        first = messages[0]
        attributes: dict[str, Any] = dict(self._descriptions[first.name, first.step_type, first.level_type])
        attributes.update(
            {f"GRIB_{key}": value for key, value in first.keys if all((key, value) in m.keys for m in messages)}
        )
        if _is_level_known(messages):
            attributes["GRIB_level"] = first.level[0]
        attributes.update(self._grids[first.grid].attributes)
        bounds = None
        if any(m.start != m.step for m in messages):
            starts = {m.step: m.start for m in messages}
            bounds = np.array([(starts[s], s) for s in sorted(starts)], dtype=np.float64)
        cells = {tuple(_value(m, axis.kind) for axis in axes): m for m in messages}
        return _Field(tuple(axes), cells, first.grid, attributes, bounds)

    # The interface of a source

    def schema(self) -> SourceSchema:
        if self._schema is not None:
            return self._schema
        variables: dict[str, SourceVariable] = {}
        grids = {key: number for number, key in enumerate(dict.fromkeys(f.grid for f in self._fields.values()))}
        for name, found in self._fields.items():
            grid = self._grids[found.grid].numbered(grids[found.grid])
            for extra in _coordinates(name, found, grid):
                self._extras.setdefault(extra.variable.path, extra)
            variables[name] = _data_variable(name, found, grid)
        variables.update({path: extra.variable for path, extra in self._extras.items()})
        coordinates = {p: summarise_coordinate(e.values) for p, e in self._extras.items() if e.is_coordinate}
        attributes = {"Conventions": "CF-1.8", **(self._global or {})}
        self._schema = SourceSchema(self.file, self.format, variables, coordinates, {"": attributes})
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        rank = len(variable.shape)
        if variable.path not in self._fields:
            return References(empty_table(rank), all_coords(grid_shape(variable.shape, variable.chunks)))
        found = self._fields[variable.path]
        places = [{value: i for i, value in enumerate(axis.values)} for axis in found.axes]
        coords = np.zeros((len(found.cells), rank), dtype=np.uint32)
        for column, place in enumerate(places):
            coords[:, column] = [place[cell[column]] for cell in found.cells]
        messages = found.cells.values()
        # A reference is to a whole message. One with several fields is several chunks.
        is_whole = np.array([message.part is None for message in messages], dtype=bool)
        offsets = np.array([message.offset for message in messages], dtype=np.int64)
        lengths = np.array([message.length for message in messages], dtype=np.int64)
        table = virtual_table(
            coords[is_whole],
            offsets[is_whole],
            lengths[is_whole],
            self.data.url,
            etag=self.data.etag,
            last_modified=self.data.last_modified,
        )
        return References(table, coords[~is_whole])

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        self.schema()
        if variable.path in self._extras:
            return np.asarray(self._extras[variable.path].values)[region]
        found = self._fields[variable.path]
        outer, inner = region[: len(found.axes)], region[len(found.axes) :]
        result = np.full([s.stop - s.start for s in region], np.nan, dtype="<f8")
        for index in np.ndindex(*[s.stop - s.start for s in outer]):
            cell = tuple(axis.values[s.start + i] for axis, s, i in zip(found.axes, outer, index, strict=True))
            message = found.cells.get(cell)
            if message is not None:
                result[index] = self._decode(message)[inner]
        return result

    def close(self) -> None:
        self._stream.close()


# Reading a message


def _get(handle: Any, key: str, default: Any = None, kind: Any = None) -> Any:
    if not eccodes.codes_is_defined(handle, key):
        return default
    try:
        return eccodes.codes_get(handle, key, kind) if kind else eccodes.codes_get(handle, key)
    except eccodes.CodesInternalError:
        return default


def _describe_message(handle: Any, index: int, offset: int, length: int, part: int | None) -> Message:
    date, clock = int(_get(handle, "dataDate")), int(_get(handle, "dataTime", 0))
    second = int(_get(handle, "second", 0) or 0) if _get(handle, "edition") == 2 else 0
    try:
        when = dt.datetime(
            date // 10000, date // 100 % 100, date % 100, clock // 100, clock % 100, second % 60, tzinfo=dt.UTC
        )
    except ValueError as error:
        raise ValueError(
            f"message {index + 1} has the date {date} and the time {clock:04d}, which do not exist"
        ) from error
    member = _get(handle, "number")
    if member == 0 and _get(handle, "edition") == 1 and _get(handle, "dataType") not in ("cf", "pf"):
        # In GRIB 1, every message of some centres has the key.
        member = None
    return Message(
        index=index,
        offset=offset,
        length=length,
        part=part,
        name=_parameter_name(handle),
        step_type=str(_get(handle, "stepType", "instant")),
        level_type=str(_get(handle, "typeOfLevel", "unknown")),
        level=_level(handle),
        time=(when - EPOCH).total_seconds() / 3600,
        start=_hours(handle, "startStep"),
        step=_hours(handle, "endStep"),
        member=None if member is None else int(member),
        grid=str(_get(handle, "md5GridSection")),
        keys=_product_keys(handle),
        parameter=parameter_numbers(handle),
    )


def _parameter_name(handle: Any) -> str:
    """The short name, or the parameter's numbers if ecCodes has no name for it."""
    name = str(_get(handle, "shortName", "unknown"))
    if name not in ("unknown", "~", ""):
        return name
    centre = _get(handle, "centre", kind=int)
    if _get(handle, "edition") == 1:
        numbers = [_get(handle, "table2Version", 0), _get(handle, "indicatorOfParameter", 0)]
        is_local = max(numbers) >= 128
    else:
        numbers = [_get(handle, k, 0) for k in ("discipline", "parameterCategory", "parameterNumber")]
        is_local = max(numbers) >= 192
    # Local numbers have a different meaning at every centre.
    return "_".join(["unknown", *map(str, numbers), *([f"centre{centre}"] if is_local else [])])


def _hours(handle: Any, key: str) -> float:
    """A forecast step in hours. ecCodes returns it with a unit if it is not in whole hours: `90m`, `45s`."""
    if not eccodes.codes_is_defined(handle, key):
        return 0.0
    try:
        value = eccodes.codes_get(handle, key)
    except eccodes.CodesInternalError:
        eccodes.codes_set(handle, "stepUnits", "s")
        value = eccodes.codes_get(handle, key)
    text = str(value)
    if text[-1:] in _HOURS:
        number, unit = float(text[:-1]), text[-1]
        return number / 60 if unit == "m" else number / 3600 if unit == "s" else number * _HOURS[unit]
    return float(text)


def _level(handle: Any) -> tuple[float, float]:
    """Top and bottom of a layer with their decimals, or a level twice."""
    level = float(_get(handle, "level", 0.0, float) or 0.0)
    if str(_get(handle, "typeOfLevel", "")).endswith("Layer"):
        top, bottom = (_get(handle, key, level, float) for key in ("topLevel", "bottomLevel"))
        return float(top), float(bottom)
    return level, level


def _product_keys(handle: Any) -> tuple[tuple[str, float], ...]:
    if _get(handle, "edition") == 2 and _get(handle, "productDefinitionTemplateNumber") in _PLAIN_TEMPLATES:
        return ()
    found: list[tuple[str, float]] = []
    for key in GRIB_PRODUCT_KEYS:
        if key in _SCALED:
            suffix = key[0].upper() + key[1:]
            scaled = _get(handle, f"scaledValueOf{suffix}", kind=int)
            factor = _get(handle, f"scaleFactorOf{suffix}", kind=int)
            if scaled is not None and factor is not None and abs(factor) < 128 and abs(scaled) < 2**31 - 1:
                found.append((key, float(scaled) / 10.0**factor))
            continue
        value = _get(handle, key, kind=float)
        if value is not None:
            found.append((key, float(value)))
    return tuple(found)


def _describe_parameter(handle: Any) -> dict[str, Any]:
    facts = {f"GRIB_{key}": value for key in _ATTRIBUTES if (value := _get(handle, key)) is not None}
    attributes = {"long_name": str(_get(handle, "name", "")), "units": str(_get(handle, "units", ""))}
    if _get(handle, "cfName") not in (None, "unknown"):
        attributes["standard_name"] = str(_get(handle, "cfName"))
    return {**facts, **attributes}


def _describe_centre(handle: Any) -> dict[str, Any]:
    facts = {f"GRIB_{key}": _get(handle, key) for key in ("edition", "centre", "centreDescription", "subCentre")}
    return {**{k: v for k, v in facts.items() if v is not None}, "institution": facts["GRIB_centreDescription"]}


# GRIB 2 messages with several fields


def _sections(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the sections of a GRIB 2 message, without the first and the last."""
    start = 16
    while start + 5 <= len(content) - 4:
        size = int.from_bytes(content[start : start + 4], "big")
        if size < 5 or start + size > len(content) - 4:
            raise ValueError(f"a section of {size} bytes at byte {start} does not fit into its message")
        yield content[start + 4], start, start + size
        start += size


def _single_field(content: bytes, wanted: int) -> bytes:
    """One field of a GRIB 2 message as a separate message.

    Sections 2 to 7 may repeat. A field has the latest of each. A bitmap section with the value 254 means the bitmap of
    the previous field.
    """
    latest: dict[int, bytes] = {}
    bitmap = b""
    seen = 0
    for number, start, end in _sections(content):
        latest[number] = content[start:end]
        if number == 6:
            if content[start + 5] == 254:
                latest[6] = bitmap
            else:
                bitmap = latest[6]
        if number == 7:
            if seen == wanted:
                body = b"".join(latest[k] for k in sorted(latest)) + content[-4:]
                return content[:8] + (16 + len(body)).to_bytes(8, "big") + body
            seen += 1
    raise ValueError(f"the message has {seen} fields, not {wanted + 1}")


# Messages to variables


def _by_name(kind: tuple[str, str, str, str]) -> tuple[str, bool, str, str, str]:
    return kind[0], kind[1] != "instant", kind[1], kind[2], kind[3]


def _label(kind: tuple[str, str, str, str], alike: Sequence[tuple[str, str, str, str]]) -> str:
    """A variable's name: that of the parameter, with a suffix that distinguishes it from others of the same name.

    Instantaneous fields keep the plain name, so that files with and without averages of a parameter can be joined.
    """
    name, step_type, level_type, _ = kind
    label = name if len({k[2] for k in alike}) == 1 else f"{name}_{level_type}"
    types = {k[1] for k in alike if k[2] == level_type}
    if len(types) > 1 and step_type != min(types, key=lambda t: (t != "instant", t)):
        label = f"{label}_{step_type}"
    return label


def _split_by(messages: Sequence[Message], label: Any) -> list[tuple[str, list[Message]]]:
    parts: dict[str, list[Message]] = {}
    for message in messages:
        parts.setdefault(label(message), []).append(message)
    return sorted(parts.items())


def _range_label(message: Message) -> str:
    """Fields over the time since the start of the forecast keep the plain name.

    Others have a suffix with their length.
    """
    if message.start == 0.0 or message.step_type == "instant":
        return ""
    minutes = round((message.step - message.start) * 60)
    return f"_{minutes // 60}h" if minutes % 60 == 0 else f"_{minutes}m"


def _meet(messages: Sequence[Message]) -> int:
    """How many messages would share a cell with another one."""
    return len(messages) - len({message.cell() for message in messages})


def _is_function(pairs: Sequence[tuple[float, float]]) -> bool:
    return len({a for a, _ in pairs}) == len(set(pairs))


def _value(message: Message, kind: str) -> Any:
    match kind:
        case "time":
            return message.time
        case "step":
            return message.step
        case "number":
            return message.member or 0
        case "level":
            return message.level
    return dict(message.keys).get(kind, float("-inf"))


def _arrange(messages: Sequence[Message]) -> list[_Axis]:
    """The axes of a variable, without names. Keys that depend on others are not axes."""
    kinds = ["time", "step"]
    if any(message.member is not None for message in messages):
        kinds.append("number")
    if not _is_level_known(messages):
        kinds.append("level")
    varying = [k for k in GRIB_PRODUCT_KEYS if len({_value(m, k) for m in messages}) > 1]
    axes = []
    for kind in (*kinds, *varying):
        name = messages[0].level_type if kind == "level" else kind
        axes.append(_Axis(kind, name, tuple(sorted({_value(m, kind) for m in messages}))))
    return axes


def _is_level_known(messages: Sequence[Message]) -> bool:
    """Whether the kind of level has only one level, or the parameter's name contains the level, as in `2t`, `10u`."""
    levels = {message.level for message in messages}
    if len(levels) > 1:
        return False
    level = levels.pop()
    if messages[0].level_type in _WITHOUT_VALUE and level == (0.0, 0.0):
        return True
    numbers = re.findall(r"\d+", messages[0].name)
    return messages[0].level_type == "heightAboveGround" and f"{level[0]:g}" in numbers


class _AxisNames:
    """Names of axes over all variables of a file: variables with the same values share a dimension.

    If a key has several dimensions, the longest has the plain name and the others are numbered. The name of a dimension
    with a single value contains that value, so that it does not depend on the other variables of the file.
    """

    def __init__(self) -> None:
        self._values: dict[str, set[tuple[Any, ...]]] = {}

    def learn(self, axes: Sequence[_Axis]) -> None:
        for axis in axes:
            self._values.setdefault(axis.name, set()).add(axis.values)

    def named(self, axes: Sequence[_Axis]) -> list[_Axis]:
        return [replace(axis, name=self._name(axis)) for axis in axes]

    def _name(self, axis: _Axis) -> str:
        every = sorted(self._values[axis.name], key=lambda values: (-len(values), values))
        if len(every) == 1:
            return axis.name
        if len(axis.values) == 1 and axis.kind != "time":
            value = axis.values[0]
            return f"{axis.name}_at_{_shown(value)}"
        place = every.index(axis.values)
        return axis.name if place == 0 else f"{axis.name}_{place + 1}"


def _shown(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value:g}"
    return f"{value[0]:g}" if value[0] == value[1] else f"{value[0]:g}_to_{value[1]:g}"


# Variables of the schema


_AXIS_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "time": {"standard_name": "forecast_reference_time", "units": "hours since 1970-01-01", "calendar": "standard"},
    "step": {"standard_name": "forecast_period", "units": "hours"},
    "number": {"standard_name": "realization", "units": "1", "long_name": "ensemble member numerical id"},
}
_LEVEL_UNITS = {
    "isobaricInhPa": "hPa",
    "isobaricInPa": "Pa",
    "isobaricLayer": "hPa",
    "heightAboveGround": "m",
    "heightAboveSea": "m",
    "heightAboveGroundLayer": "m",
    "heightAboveSeaLayer": "m",
    "depthBelowLand": "m",
    "depthBelowSea": "m",
    "potentialVorticity": "10-9 K m2 kg-1 s-1",
    "theta": "K",
}


def _data_variable(name: str, found: _Field, grid: Grid) -> SourceVariable:
    axes = found.axes
    shape = (*(len(axis.values) for axis in axes), *grid.shape)
    beside = [c.name for c in grid.coordinates if c.dims != (c.name,)]
    if found.bounds is not None:
        beside.append(f"{name}_step_bounds")
    attributes = {**found.attributes, "_FillValue": fill_attribute("<f8", np.nan)}
    if grid.mapping is not None:
        attributes["grid_mapping"] = grid.mapping_name
    if beside:
        attributes["coordinates"] = " ".join(beside)
    parameters = {message.parameter for message in found.cells.values()}
    codec: dict[str, Any] = GribCodec(min(parameters), found.grid, grid.is_transposed).to_dict()
    return SourceVariable(
        path=name,
        dims=(*(axis.name for axis in axes), *grid.dims),
        shape=shape,
        dtype="<f8",
        chunks=(*(1 for _ in axes), *grid.shape),
        attributes=attributes,
        fill_value=fill_value_document("<f8", np.nan),
        codecs=({"name": codec["name"], "configuration": codec["configuration"]},),
        not_virtual=None
        if len(parameters) == 1
        else f"its messages have the parameters {', '.join(sorted(parameters))}",
    )


def _coordinates(name: str, found: _Field, grid: Grid) -> Iterator[_Extra]:
    for axis in found.axes:
        yield from _axis_variables(axis)
    for coordinate in grid.coordinates:
        yield _extra(coordinate.name, coordinate.dims, coordinate.values, coordinate.attributes)
    if found.bounds is not None:
        step = next(axis.name for axis in found.axes if axis.kind == "step")
        attributes = {"long_name": f"start and end of the forecast period of {name}", "units": "hours"}
        yield _extra(f"{name}_step_bounds", (step, "bounds"), found.bounds, attributes)
    if grid.mapping is not None:
        yield replace(_extra(grid.mapping_name, (), np.array(0, dtype="<i4"), grid.mapping), is_coordinate=False)


def _axis_variables(axis: _Axis) -> Iterator[_Extra]:
    attributes: dict[str, Any] = dict(_AXIS_ATTRIBUTES.get(axis.kind, {}))
    if axis.kind != "level":
        values = np.array(axis.values, dtype="<i8" if axis.kind == "number" else "<f8")
        yield _extra(axis.name, (axis.name,), values, attributes)
        return
    kind = axis.name.partition("_")[0]
    if kind in _LEVEL_UNITS:
        attributes["units"] = _LEVEL_UNITS[kind]
    if kind.startswith("isobaric"):
        attributes.update(standard_name="air_pressure", positive="down")
    layers = np.array(axis.values, dtype="<f8")
    if (layers[:, 0] != layers[:, 1]).any():
        attributes["bounds"] = f"{axis.name}_bounds"
        yield _extra(f"{axis.name}_bounds", (axis.name, "bounds"), layers, {})
    yield _extra(axis.name, (axis.name,), _distinct_levels(layers), attributes)


def _distinct_levels(layers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """One number per layer: its top, or its bottom or middle if layers have the same top."""
    for values in (layers[:, 0], layers[:, 1], layers.mean(axis=1)):
        if len(np.unique(values)) == len(values):
            return values
    return layers[:, 0]


def _extra(name: str, dims: tuple[str, ...], values: Any, attributes: Mapping[str, Any]) -> _Extra:
    array = np.asarray(values)
    dtype = array.dtype.newbyteorder("<").str
    return _Extra(
        SourceVariable(
            path=name,
            dims=dims,
            shape=array.shape,
            dtype=dtype,
            chunks=array.shape,
            attributes=dict(attributes),
            codecs=(bytes_codec(dtype),),
            layout="opaque",
            not_virtual=_COMPUTED,
        ),
        array.astype(dtype),
    )
