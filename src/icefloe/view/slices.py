"""Slices of arrays for a screen: what to read, how to thin it out, and how values and coordinates are decoded.

A slice has one or two axes, and an index for every other dimension. A window of it is read with strides, so that the
answer has about as many values as the screen has pixels. Zarr reads only the chunks that hold a selected value. If
these chunks would decode to more than `BUDGET_BYTES`, the strides grow beyond the length of a chunk, so that fewer
chunks are read. The answer then says that it is `reduced`, and the page asks for smaller windows one after the other.

A map can be read from an overview that `pyramid` built: from the level whose cells are about as large as a pixel. The
level is used only if the array did not change after the level was built. Positions in the answer are those of the
array.

The answer is binary: the length of a JSON header (uint32, little-endian), the header, padding to 8 bytes, and the
values as float32 or float64, also little-endian. Missing values are NaN.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.codec_pipeline import prefer_fast_pipeline
from icefloe.errors import IcefloeError, InvalidInputError, UnsupportedError
from icefloe.ingest.cf import CIVIL_CALENDARS, find_time_units, format_coordinate, packing_of, unpack, unpacked_dtype
from icefloe.ingest.derived_arrays import PYRAMID_KEY
from icefloe.model.snapshot import ArrayNode, GroupNode
from icefloe.model.zarr_document import ChunkLengths, as_lengths
from icefloe.session.session import Session
from icefloe.tables.grids import chunk_lengths
from icefloe.view.revisions import (
    Cache,
    ViewedRepository,
    coordinate_paths,
    fetch_document,
    find_array,
    plain,
)

BUDGET_BYTES = 128 << 20
"""Decoded bytes of all chunks that one answer reads."""
LARGEST_CHUNK_BYTES = 1 << 30
MOST_PIXELS = 4096
"""Values per axis of an answer."""
MOST_TABLE_CELLS = 20_000
_SLAB_BYTES = 48 << 20
"""Values that are kept for further steps of a slider, of one array."""
_CACHE_BYTES = 256 << 20
_READS_AT_ONCE = 3
_MOST_CELL_TEXT = 200
_MOST_LEVELS = 32
_TEXT_BYTES = 64
"""Assumed size of a text of variable length."""


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """Which part of an array is wanted, and how large the screen is."""

    axes: tuple[int, ...]
    """The dimensions of the answer: y and x, or x alone."""
    index: tuple[int, ...]
    """An index for every dimension. Those of `axes` are not used."""
    window: tuple[tuple[int, int], ...]
    """[first, end) for each of the axes."""
    pixels: tuple[int, ...]
    """How many values are wanted at most, for each of the axes."""
    overviews: bool = False
    """Whether values may be read from an overview."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A level of an array: each of its cells stands for 2 ** `level` cells along both axes."""

    level: int
    path: str
    method: str
    axes: tuple[int, ...]

    def request(self, request: SliceRequest) -> SliceRequest | None:
        """The same slice of the level: the cells whose centre is in the window. None if there are none."""
        size, middle = 1 << self.level, self.cell(0)
        window = tuple((-((middle - first) // size), -((middle - end) // size)) for first, end in request.window)
        # The level has fewer than two cells per pixel. All of them are read.
        pixels = tuple(max(1, end - first) for first, end in window)
        if any(first >= end for first, end in window):
            return None
        return SliceRequest(request.axes, request.index, window, pixels)

    def cell(self, index: int) -> int:
        """The cell of the array in the middle of a cell of the level."""
        return (index << self.level) + ((1 << self.level) - 1) // 2


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What is read for a slice."""

    axes: tuple[int, ...]
    selection: tuple[slice, ...]
    """A range for every dimension. Other dimensions than the axes may have more than the wanted index."""
    within: tuple[int, ...]
    """The position of the wanted index in the range, for every dimension. 0 for the axes."""
    steps: tuple[int, ...]
    wanted_steps: tuple[int, ...]
    chunks: int
    """How many chunks are read."""
    decoded_bytes: int

    @property
    def is_reduced(self) -> bool:
        """Whether fewer values are read than the screen can show."""
        return self.steps != self.wanted_steps


def touched(first: int, end: int, step: int, chunks: ChunkLengths) -> int:
    """How many chunks of one dimension hold a value of a range.

    >>> ten = ChunkLengths(10)
    >>> touched(0, 100, 1, ten), touched(5, 15, 1, ten), touched(0, 100, 25, ten), touched(0, 0, 1, ten)
    (10, 2, 4, 0)
    >>> touched(0, 90, 30, ChunkLengths((31, 28, 31)))
    2
    """
    if end <= first:
        return 0
    if step >= chunks.longest:
        return len(range(first, end, step))
    last = first + (end - 1 - first) // step * step
    if step > 1 and not chunks.is_regular:
        return len(np.unique(chunks.indices(np.arange(first, end, step))))
    return chunks.index(last) - chunks.index(first) + 1


def plan_slice(
    shape: Sequence[int],
    chunks: Sequence[ChunkLengths],
    item_bytes: int,
    request: SliceRequest,
    budget: int = BUDGET_BYTES,
) -> SlicePlan:
    """Decide what to read. Raises InvalidInputError if a single chunk is too large."""
    chunk_bytes = math.prod(min(n, c.longest) for n, c in zip(shape, chunks, strict=True)) * item_bytes
    if chunk_bytes > LARGEST_CHUNK_BYTES:
        raise InvalidInputError(
            f"one chunk of this array has {chunk_bytes:,} bytes when it is decoded. The viewer reads chunks of at most "
            f"{LARGEST_CHUNK_BYTES:,} bytes"
        )
    wanted = tuple(
        max(1, -(-(end - first) // pixels)) for (first, end), pixels in zip(request.window, request.pixels, strict=True)
    )
    steps = list(wanted)

    def counts() -> list[int]:
        return [
            touched(first + _middle(step, first, end), end, step, chunks[axis])
            for axis, (first, end), step in zip(request.axes, request.window, steps, strict=True)
        ]

    while math.prod(counts()) * chunk_bytes > budget and math.prod(counts()) > 1:
        found = counts()
        largest = found.index(max(found))
        # A step shorter than a chunk reads every chunk. The next one reads fewer.
        steps[largest] = max(steps[largest] * 2, chunks[request.axes[largest]].longest + 1)
    return _finish_plan(shape, chunks, item_bytes, request, tuple(steps), wanted, math.prod(counts()), chunk_bytes)


def _middle(step: int, first: int, end: int) -> int:
    """The offset of the value that stands for the first `step` values."""
    return min((step - 1) // 2, max(end - first - 1, 0))


def _finish_plan(
    shape: Sequence[int],
    chunks: Sequence[ChunkLengths],
    item_bytes: int,
    request: SliceRequest,
    steps: tuple[int, ...],
    wanted: tuple[int, ...],
    count: int,
    chunk_bytes: int,
) -> SlicePlan:
    selection: list[slice] = []
    within = [0] * len(shape)
    by_axis = dict(zip(request.axes, zip(request.window, steps, strict=True), strict=True))
    for axis, length in enumerate(shape):
        if axis in by_axis:
            (first, end), step = by_axis[axis]
            selection.append(slice(min(first + _middle(step, first, end), length), end, step))
        else:
            selection.append(slice(request.index[axis], request.index[axis] + 1, 1))
    values = math.prod(len(range(*each.indices(n))) for each, n in zip(selection, shape, strict=True))
    # The chunks are decoded anyway, so the neighbours along a slider are kept as far as they are in the same chunk.
    for axis in range(len(shape)):
        number = chunks[axis].index(request.index[axis])
        start, length = chunks[axis].start(number), chunks[axis].length(number)
        if axis in by_axis or length < 2 or not values:
            continue
        room = _SLAB_BYTES // (values * item_bytes)
        if room < 2:
            break
        part = min(room, length)
        begin = start + (request.index[axis] - start) // part * part
        end = min(begin + part, start + length, shape[axis])
        selection[axis], within[axis] = slice(begin, end, 1), request.index[axis] - begin
        values *= end - begin
    return SlicePlan(request.axes, tuple(selection), tuple(within), steps, wanted, count, count * chunk_bytes)


class SliceReader:
    """Reads slices of a viewed repository and keeps what sliders ask for next."""

    def __init__(self, viewed: ViewedRepository) -> None:
        # Zarr chooses its codec pipeline when an array is opened. The first slice should not wait for its import.
        prefer_fast_pipeline()
        self._viewed = viewed
        self._arrays = Cache(64)
        self._slabs = Cache(_CACHE_BYTES)
        self._slots = threading.Semaphore(_READS_AT_ONCE)

    # -- arrays ---------------------------------------------------------------------------------------------------

    def open(self, snapshot_id: str, path: str) -> OpenArray:
        """An array of a snapshot, with its attributes."""
        session = self._viewed.session(snapshot_id)
        node = find_array(session, path)
        return self._arrays.get((snapshot_id, node.path), lambda: _open(session, node))

    def read(self, opened: OpenArray, selection: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Stored values of a selection, from memory if they were read before."""
        key = opened.snapshot_id, opened.node.path, tuple((s.start, s.stop, s.step) for s in selection)

        def load() -> npt.NDArray[Any]:
            with self._slots:
                try:
                    return np.asarray(opened.array[selection])
                except (IcefloeError, MemoryError):
                    raise
                except Exception as error:  # a codec of a foreign chunk may raise anything
                    raise InvalidInputError(
                        f"values of {opened.node.path} cannot be read: {type(error).__name__}: {error}"
                    ) from error

        return self._slabs.get(key, load, lambda values: max(int(values.nbytes), 1))

    # -- answers --------------------------------------------------------------------------------------------------

    def read_slice(self, snapshot_id: str, path: str, request: SliceRequest) -> bytes:
        """The values of a slice with a header, as described at the top of this module."""
        opened = self.open(snapshot_id, path)
        if not opened.is_numeric:
            raise UnsupportedError(f"{opened.node.path} has values of type {opened.type_text}. The table shows them")
        shape = opened.node.shape
        plan = plan_slice(shape, opened.chunks, opened.item_bytes, request)
        overview = self._choose_overview(opened, request, plan)
        if overview is not None:
            return self._read_overview(opened, request, plan, overview)
        stored = self.read(opened, plan.selection)
        picked = tuple(slice(None) if axis in plan.axes else plan.within[axis] for axis in range(len(shape)))
        values = stored[picked]
        if len(plan.axes) == 2 and plan.axes[0] > plan.axes[1]:
            values = values.T
        decoded, kind = decode_numbers(values, opened.attributes)
        header = {
            "shape": list(decoded.shape),
            "data_type": decoded.dtype.str.lstrip("<"),
            "kind": kind,
            "starts": [plan.selection[axis].start for axis in plan.axes],
            "steps": list(plan.steps),
            "wanted_steps": list(plan.wanted_steps),
            "reduced": plan.is_reduced,
            "window": [list(bounds) for bounds in request.window],
            "chunks_read": plan.chunks,
            "decoded_bytes": plan.decoded_bytes,
            "budget_bytes": BUDGET_BYTES,
            "chunk_shape": [opened.chunks[axis].longest for axis in plan.axes],
            "axes": [self.coordinate(opened, axis, plan.selection[axis]) | {"dimension": axis} for axis in plan.axes],
            "others": [
                {"dimension": axis, "index": request.index[axis]}
                | {"label": self.label(opened, axis, request.index[axis])}
                for axis in range(len(shape))
                if axis not in plan.axes
            ],
            "statistics": statistics(decoded),
            "overview": None,
        }
        return encode_answer(header, decoded)

    def _choose_overview(self, opened: OpenArray, request: SliceRequest, plan: SlicePlan) -> Overview | None:
        """The coarsest overview that has as many values as the screen. None if the array itself is needed."""
        most = min(plan.wanted_steps, default=1).bit_length() - 1
        if not request.overviews or len(request.axes) != 2 or most < 1:
            return None
        key = "overviews", opened.snapshot_id, opened.node.path
        known = self._viewed.facts.get(key, lambda: find_overviews(self._viewed, opened))
        fitting = [each for each in known if each.level <= most and set(each.axes) == set(request.axes)]
        return max(fitting, key=lambda each: each.level, default=None)

    def _read_overview(self, opened: OpenArray, request: SliceRequest, base: SlicePlan, overview: Overview) -> bytes:
        """The same answer as that of the array, with values of an overview."""
        inner = overview.request(request)
        if inner is None:
            return self.read_slice(opened.snapshot_id, opened.node.path, replace(request, overviews=False))
        level = self.open(opened.snapshot_id, overview.path)
        plan = plan_slice(level.node.shape, level.chunks, level.item_bytes, inner)
        header, values = parse_answer(self.read_slice(opened.snapshot_id, overview.path, inner))
        size = 1 << overview.level
        starts = [overview.cell(plan.selection[axis].start) for axis in plan.axes]
        steps = [step * size for step in plan.steps]
        cells = [
            slice(start, start + (count - 1) * step + 1, step)
            for start, step, count in zip(starts, steps, header["shape"], strict=True)
        ]
        header |= {
            "starts": starts,
            "steps": steps,
            "wanted_steps": [size, size],
            "window": [list(bounds) for bounds in request.window],
            "chunk_shape": [level.chunks[axis].longest * size for axis in plan.axes],
            "axes": [
                self.coordinate(opened, axis, cell) | {"dimension": axis}
                for axis, cell in zip(plan.axes, cells, strict=True)
            ],
            "overview": {"level": overview.level, "path": overview.path, "method": overview.method},
        }
        return encode_answer(header, values)

    def read_table(self, snapshot_id: str, path: str, request: SliceRequest) -> dict[str, Any]:
        """Values as texts, of any type of array."""
        opened = self.open(snapshot_id, path)
        sizes = [end - first for first, end in request.window]
        if math.prod(sizes) > MOST_TABLE_CELLS:
            raise InvalidInputError(
                f"a table of {math.prod(sizes):,} cells was asked for, at most {MOST_TABLE_CELLS:,}"
            )
        plan = plan_slice(opened.node.shape, opened.chunks, opened.item_bytes, request)
        if plan.is_reduced:
            raise InvalidInputError("these cells are in too many large chunks. Ask for a smaller part of the table")
        stored = self.read(opened, plan.selection)
        values = stored[tuple(slice(None) if a in plan.axes else plan.within[a] for a in range(stored.ndim))]
        if len(plan.axes) == 2 and plan.axes[0] > plan.axes[1]:
            values = values.T
        return {
            "window": [list(bounds) for bounds in request.window],
            "axes": [
                self.coordinate(opened, axis, plan.selection[axis], labels=True) | {"dimension": axis}
                for axis in plan.axes
            ],
            "rows": format_values(values, opened.attributes),
            "data_type": opened.type_text,
        }

    def coordinate(self, opened: OpenArray, axis: int, selection: slice, *, labels: bool = False) -> dict[str, Any]:
        """The coordinates of a selection along one dimension: numbers for drawing, and texts if they say more."""
        node = opened.node
        name = node.dimension_names[axis] if node.dimension_names else None
        indices = np.arange(*selection.indices(node.shape[axis]))
        facts: dict[str, Any] = {"name": name or f"dimension {axis}", "length": node.shape[axis], "kind": "index"}
        path = opened.coordinates[axis]
        if path is not None and path != node.path:
            try:
                found = self._coordinate(opened, path, selection)
            except IcefloeError:
                found = None
            if found is not None:
                return facts | found
        facts["values"] = indices.tolist()
        return facts | ({"labels": [str(each) for each in indices.tolist()]} if labels else {})

    def _coordinate(self, opened: OpenArray, path: str, selection: slice) -> dict[str, Any] | None:
        coordinate = self.open(opened.snapshot_id, path)
        plan = plan_slice(
            coordinate.node.shape,
            coordinate.chunks,
            coordinate.item_bytes,
            SliceRequest((0,), (0,), ((selection.start, selection.stop),), (MOST_PIXELS,)),
        )
        if plan.is_reduced:
            return None
        stored = self.read(coordinate, (selection,))
        attributes = coordinate.attributes
        facts: dict[str, Any] = {
            "units": _text(attributes.get("units")),
            "standard_name": _text(attributes.get("standard_name")),
            "long_name": _text(attributes.get("long_name")),
        }
        if not coordinate.is_numeric:
            texts = [text if text is not None else "" for text in format_values(stored, attributes)]
            return facts | {
                "kind": "text",
                "values": np.arange(*selection.indices(coordinate.node.shape[0])).tolist(),
                "labels": texts,
            }
        numbers, kind = decode_numbers(stored, attributes)
        if not np.isfinite(numbers).all():
            return None
        facts |= {"kind": kind, "values": numbers.astype(np.float64).tolist()}
        units = find_time_units(attributes)
        if kind == "time":
            facts["labels"] = time_texts(numbers)
        elif units is not None:
            text, calendar = str(attributes.get("units")), str(attributes.get("calendar") or "standard")
            facts["labels"] = [format_coordinate(each, text, calendar) for each in stored.tolist()]
        return facts

    def label(self, opened: OpenArray, axis: int, index: int) -> str:
        """The coordinate of one position as text."""
        found = self.coordinate(opened, axis, slice(index, index + 1, 1))
        if found.get("labels"):
            return str(found["labels"][0])
        if not found["values"]:
            return str(index)
        value, units = found["values"][0], (found.get("units") or "") if found["kind"] == "number" else ""
        for name, above, below in (("degrees_north", "N", "S"), ("degrees_east", "E", "W")):
            if units == name:
                # Longitudes may go up to 360.
                value = value - 360 if name == "degrees_east" and value > 180 else value
                return f"{abs(value):.8g}°{above if value > 0 else below if value < 0 else ''}"
        return f"{value:.8g} {units}".rstrip()


@dataclass(frozen=True, slots=True)
class OpenArray:
    """An array with what is needed to read and decode it."""

    snapshot_id: str
    node: ArrayNode
    array: zarr.Array[Any]
    attributes: Mapping[str, Any]
    chunks: tuple[ChunkLengths, ...]
    """The lengths of what is decoded at once: the inner chunks of shards."""
    coordinates: tuple[str | None, ...]

    @property
    def is_numeric(self) -> bool:
        return self.array.dtype.kind in "biufcMm" and self.array.dtype.names is None

    @property
    def item_bytes(self) -> int:
        kind = self.array.dtype.kind
        return _TEXT_BYTES if kind in "OT" else max(self.array.dtype.itemsize, 1)

    @property
    def type_text(self) -> str:
        return str(self.array.dtype)


def find_overviews(viewed: ViewedRepository, opened: OpenArray) -> tuple[Overview, ...]:
    """The levels of an array in the group that `pyramid` makes by default. None if the array changed after that."""
    session, node = viewed.session(opened.snapshot_id), opened.node
    group = session.state.tree.find(f"{node.path}_levels")
    if not isinstance(group, GroupNode):
        return ()
    known = (fetch_document(session, group).get("attributes") or {}).get(PYRAMID_KEY)
    # Attributes are data of somebody else.
    if not isinstance(known, Mapping) or known.get("array") != node.path or known.get("shape") != list(node.shape):
        return ()
    axes, levels, built = known.get("axes"), known.get("levels"), known.get("snapshot_id")
    if not isinstance(axes, list) or type(levels) is not int or not isinstance(built, str) or len(axes) != 2:
        return ()
    try:
        if not _is_unchanged(viewed, node, built, opened.snapshot_id):
            return ()
    except IcefloeError:
        # The snapshot has expired.
        return ()
    name = node.path.rpartition("/")[2]
    found: list[Overview] = []
    for level in range(1, min(levels, _MOST_LEVELS) + 1):
        path = f"{group.path}/{level}/{name}"
        shape = tuple(-(-n >> level) if axis in axes else n for axis, n in enumerate(node.shape))
        each = session.state.tree.find(path)
        if not isinstance(each, ArrayNode) or each.shape != shape:
            return ()
        found.append(Overview(level, path, str(known.get("method")), tuple(axes)))
    return tuple(found)


def _is_unchanged(viewed: ViewedRepository, node: ArrayNode, built: str, snapshot_id: str) -> bool:
    """Whether an array has the values that it had in an earlier snapshot."""
    before = viewed.session(built).state.tree.find(node.path)
    if before == node:
        return True
    if not isinstance(before, ArrayNode) or before.id != node.id or before.document != node.document:
        return False
    # Its manifests were written again, perhaps with the same chunks.
    diff = viewed.repository.diff(from_snapshot_id=built, to_snapshot_id=snapshot_id)
    moved = {each for pair in diff.moved_nodes for each in pair}
    return not ({node.path} & {*diff.new_arrays, *diff.deleted_arrays, *diff.chunk_coords, *moved})


def _open(session: Session, node: ArrayNode) -> OpenArray:
    try:
        array = zarr.open_array(session.store, path=node.path.strip("/"), mode="r", zarr_format=3)
    except IcefloeError:
        raise
    except Exception as error:  # zarr has no common error for metadata that it does not know
        raise UnsupportedError(f"{node.path} cannot be opened: {type(error).__name__}: {error}") from error
    return OpenArray(
        session.snapshot_id,
        node,
        array,
        fetch_document(session, node).get("attributes") or {},
        _decoded_chunks(array, node),
        tuple(coordinate_paths(session, node)),
    )


def _decoded_chunks(array: zarr.Array[Any], node: ArrayNode) -> tuple[ChunkLengths, ...]:
    """The lengths of what is decoded at once. Shards of several lengths are decoded as a whole."""
    lengths = chunk_lengths(node)
    if all(each.is_regular for each in lengths):
        return as_lengths(max(1, int(length)) for length in array.chunks)
    return lengths


def _text(value: Any) -> str | None:
    return None if value is None else str(plain(value))[:200]


# -- values -------------------------------------------------------------------------------------------------------


def decode_numbers(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> tuple[npt.NDArray[Any], str]:
    """Stored numbers as the floats that they mean, and whether they are numbers or times (milliseconds since 1970)."""
    kind = values.dtype.kind
    if kind in "Mm":
        numbers = values.astype(f"{kind}8[us]").view(np.int64).astype(np.float64) / 1000
        return np.where(np.isnat(values), np.nan, numbers), "time" if kind == "M" else "number"
    if kind == "b":
        return values.astype("<f4"), "number"
    if kind == "c":
        return np.abs(values).astype("<f8"), "number"
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    try:
        packing = packing_of(attributes, native.dtype.str)
    except InvalidInputError:
        packing = packing_of({}, native.dtype.str)
    missing = packing.missing(native)
    small = native.dtype.itemsize <= 2 or (kind == "f" and native.dtype.itemsize == 4)
    if not packing.is_plain:
        width = unpacked_dtype(native.dtype.str, {} if packing.offset == 0.0 else {"add_offset": packing.offset})
        numbers = unpack(np.ascontiguousarray(native), packing, width)
    else:
        numbers = packing.meant(np.ascontiguousarray(native)).astype("<f4" if small else "<f8")
        if missing is not None:
            numbers[missing] = np.nan
    units = find_time_units(attributes)
    if units is not None and units.unit_us and units.calendar in CIVIL_CALENDARS:
        with np.errstate(invalid="ignore", over="ignore"):
            times: npt.NDArray[Any] = (numbers.astype("<f8") * units.unit_us + units.reference_us) / 1000
        return times, "time"
    width = "<f4" if numbers.dtype.itemsize <= 4 else "<f8"
    return numbers.astype(width, copy=False), "number"


def time_texts(milliseconds: npt.NDArray[Any]) -> list[str]:
    """Times as short texts: without seconds or hours that are all zero."""
    with np.errstate(invalid="ignore"):
        instants = np.rint(np.where(np.isfinite(milliseconds), milliseconds, 0)).astype(np.int64).astype("M8[ms]")
    for unit, length in (("D", 10), ("m", 16), ("s", 19)):
        if (instants.astype(f"M8[{unit}]") == instants).all():
            texts = np.datetime_as_string(instants, unit=unit)  # type: ignore[call-overload]
            return [
                str(text).replace("T", " ")[:length] if ok else "" for text, ok in zip(texts, np.isfinite(milliseconds))
            ]
    return [str(text).replace("T", " ") for text in np.datetime_as_string(instants, unit="ms")]


def format_values(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> Any:
    """Values of any type as nested lists of texts. Missing values are None."""
    if values.dtype.kind in "biufMm" and values.dtype.names is None:
        packed = any(name in attributes for name in ("scale_factor", "add_offset"))
        numbers, kind = decode_numbers(values, attributes)
        if kind == "time":
            flat = [text or None for text in time_texts(numbers.ravel())]
        elif values.dtype.kind in "iu" and not packed:
            flat = [
                None if math.isnan(number) else str(stored)
                for number, stored in zip(numbers.ravel().tolist(), values.ravel().tolist(), strict=True)
            ]
        elif values.dtype.kind == "b":
            flat = [str(bool(each)).lower() for each in values.ravel().tolist()]
        else:
            digits = 7 if numbers.dtype.itemsize <= 4 else 12
            flat = [None if math.isnan(each) else f"{each:.{digits}g}" for each in numbers.ravel().tolist()]
    else:
        flat = [_cell(each) for each in values.ravel().tolist()]
    shaped = np.empty(len(flat), dtype=object)
    shaped[:] = flat
    return shaped.reshape(values.shape).tolist()


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_CELL_TEXT else text[:_MOST_CELL_TEXT] + "…"


def statistics(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Smallest and largest finite value, the range of most values, and the number of missing values."""
    finite = values[np.isfinite(values)]
    facts: dict[str, Any] = {"count": int(values.size), "missing": int(np.count_nonzero(np.isnan(values)))}
    if not finite.size:
        return facts | {"min": None, "max": None, "low": None, "high": None}
    # A sample is enough for colours.
    sample = finite[:: max(1, finite.size // 50_000)].astype(np.float64)
    low, high = np.percentile(sample, (2, 98))
    return facts | {"min": float(finite.min()), "max": float(finite.max()), "low": float(low), "high": float(high)}


def parse_answer(answer: bytes) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """The header and the values of an answer."""
    length = int.from_bytes(answer[:4], "little")
    header = json.loads(answer[4 : 4 + length])
    values = np.frombuffer(answer, dtype="<" + header["data_type"], offset=-(-(4 + length) // 8) * 8)
    return header, values.reshape(header["shape"])


def encode_answer(header: Mapping[str, Any], values: npt.NDArray[Any]) -> bytes:
    """A header and values as one binary answer."""
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % 8)
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return len(text).to_bytes(4, "little") + text + little.tobytes()
