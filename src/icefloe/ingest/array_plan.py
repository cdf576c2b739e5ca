"""An array of the target: its zarr.json, and how source values become its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import convert_times, is_time_units, packing_of, parse_time_units, unpack
from icefloe.ingest.chunk_grids import grid_shape
from icefloe.ingest.source_model import SourceVariable

ArrayKind: TypeAlias = Literal["native", "virtual", "values"]

CHUNK_BYTES = 8 << 20
"""Native chunks are brought to about this size where nothing else was asked for."""


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One array of the target, new or extended.

    kind       native: tasks write values; virtual: tasks write references; values: the plan holds its few values
    joined     its joined dimensions
    template   the variable as the sources have it, with the chunks to reference it by
    """

    path: str
    kind: ArrayKind
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any]
    fill_value: Any
    document: bytes
    joined: tuple[str, ...]
    template: SourceVariable
    is_new: bool = True
    notes: tuple[str, ...] = field(default=())

    @property
    def itemsize(self) -> int:
        return 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def chunk_count(self) -> int:
        return math.prod(grid_shape(self.shape, self.chunks))

    def fill(self) -> Any:
        """The fill value as a scalar of the array's type."""
        if self.dtype == "string":
            return str(self.fill_value or "")
        return parse_fill_document(self.dtype, self.fill_value)


def parse_fill_document(dtype: str, value: Any) -> Any:
    """The scalar that a `fill_value` of zarr.json stands for."""
    numpy_type = np.dtype(dtype)
    if numpy_type.kind == "S":
        return np.zeros(1, numpy_type)[0]
    if numpy_type.kind == "c" and isinstance(value, (list, tuple)):
        return numpy_type.type(complex(float(value[0]), float(value[1])))
    if isinstance(value, str) and numpy_type.kind == "f":
        if value.startswith("0x"):
            return np.array([int(value, 16)], dtype=f"u{numpy_type.itemsize}").view(numpy_type.newbyteorder("="))[0]
        return numpy_type.type(float(value.replace("Infinity", "inf")))
    return np.asarray(0 if value is None else value).astype(numpy_type)[()]


def choose_chunks(
    variable: SourceVariable, shape: Sequence[int], joined: Sequence[str], asked: Mapping[str, int]
) -> tuple[int, ...]:
    """Native chunk lengths: those asked for; else the source's, longer or shorter to a good size."""
    chunks = [max(1, min(c, n)) for c, n in zip(variable.chunks, shape, strict=True)]
    fixed = [dim in asked for dim in variable.dims]
    for axis, dim in enumerate(variable.dims):
        if dim in asked:
            chunks[axis] = max(1, min(asked[dim], max(1, shape[axis])))
    itemsize = 16 if variable.dtype == "string" else np.dtype(variable.dtype).itemsize

    def size() -> int:
        return math.prod(chunks) * itemsize

    order = sorted(range(len(chunks)), key=lambda a: variable.dims[a] in joined)
    # Short chunks grow along the grid first, then along the joined dimensions, by doubling.
    for axis in order:
        while not fixed[axis] and chunks[axis] < shape[axis] and size() * 2 <= CHUNK_BYTES:
            chunks[axis] = min(chunks[axis] * 2, shape[axis])
    for axis in range(len(chunks)):
        while not fixed[axis] and chunks[axis] > 1 and size() > 4 * CHUNK_BYTES:
            chunks[axis] = -(-chunks[axis] // 2)
    return tuple(chunks)


def native_codecs(dtype: str) -> tuple[Mapping[str, Any], ...]:
    """What native chunks are encoded with unless codecs are given: bytes shuffled, then zstd."""
    if dtype == "string":
        return {"name": "vlen-utf8"}, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    itemsize = np.dtype(dtype).itemsize
    settings = {
        "typesize": itemsize,
        "cname": "zstd",
        "clevel": 3,
        "shuffle": "shuffle" if itemsize > 1 else "noshuffle",
        "blocksize": 0,
    }
    head: dict[str, Any] = {"name": "bytes"}
    if itemsize > 1 and np.dtype(dtype).kind != "S":
        head["configuration"] = {"endian": "little"}
    return head, {"name": "blosc", "configuration": settings}


def convert_values(
    values: npt.NDArray[Any], variable: SourceVariable, array: ArrayPlan, units: str | None, calendar: str
) -> npt.NDArray[Any]:
    """Stored values of one file as the array holds them. `units` are the file's own, for times."""
    if array.dtype == "string":
        return values.astype(object)
    target_units = array.attributes.get("units")
    if units is not None and is_time_units(units) and is_time_units(target_units) and units != target_units:
        target = parse_time_units(str(target_units), str(array.attributes.get("calendar", calendar)))
        return convert_times(values, parse_time_units(units, calendar), target, array.dtype)
    source, target_packing = packing_of(variable.attributes, variable.dtype), packing_of(array.attributes, array.dtype)
    wanted = np.dtype(array.dtype)
    if (source.scale, source.offset) != (target_packing.scale, target_packing.offset):
        if not target_packing.is_plain:
            raise InvalidInputError(
                f"{variable.path} is packed with {source}, the array {array.path} with {target_packing}"
            )
        result = unpack(values, source, array.dtype)
        if target_packing.fill is not None and not math.isnan(float(target_packing.fill)):
            result[np.isnan(result)] = target_packing.fill
        return result
    result = values.astype(wanted, copy=False)
    if source.fill is not None and target_packing.fill is not None and not _same(source.fill, target_packing.fill):
        is_missing = np.isnan(values) if _is_nan(source.fill) else values == values.dtype.type(source.fill)
        if bool(is_missing.any()):
            result = result.copy() if result is values or np.shares_memory(result, values) else result
            result[is_missing] = target_packing.fill
    return result


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) or (_is_nan(left) and _is_nan(right))
