"""How the values of a table column become stored values of an array, and what new arrays are like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.cf import Packing, TimeUnits
from icefloe.ingest.zarr_documents import fill_attribute
from icefloe.tables.columns import TIMESTAMP, ColumnCoding, coding_of

_UNITS = {1_000_000: "seconds", 1: "microseconds"}
_EPOCH = "since 1970-01-01"


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """What a new array for a column is like."""

    dtype: str
    fill_value: Any
    attributes: Mapping[str, Any]

    def coding(self) -> ColumnCoding:
        dtype = np.dtype(object) if self.dtype == "string" else np.dtype(self.dtype)
        return coding_of(dtype, self.attributes)


def kind_of_column(
    name: str, type: pa.DataType, *, is_coordinate: bool = False, whole_seconds: bool = False
) -> ArrayKind:
    """The array for a column: missing values are NaN, or the lowest number of an integer type."""
    if pa.types.is_timestamp(type):
        unit = _UNITS[1_000_000 if whole_seconds else 1]
        attributes: dict[str, Any] = {"units": f"{unit} {_EPOCH}", "calendar": "proleptic_gregorian"}
        lowest = int(np.iinfo(np.int64).min)
        if not is_coordinate:
            attributes["_FillValue"] = lowest
        return ArrayKind("<i8", 0 if is_coordinate else lowest, attributes)
    if pa.types.is_date(type):
        return ArrayKind("<i8", 0, {"units": f"days {_EPOCH}", "calendar": "proleptic_gregorian"})
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return ArrayKind("string", "", {})
    if pa.types.is_boolean(type):
        return ArrayKind("|b1", False, {})
    if pa.types.is_floating(type):
        dtype = np.dtype(type.to_pandas_dtype()).newbyteorder("<").str
        return ArrayKind(dtype, np.nan, {"_FillValue": fill_attribute(dtype, np.nan)})
    if pa.types.is_integer(type):
        dtype = np.dtype(type.to_pandas_dtype()).newbyteorder("<").str
        lowest = int(np.iinfo(np.dtype(dtype)).min)
        return ArrayKind(dtype, 0, {}) if is_coordinate else ArrayKind(dtype, lowest, {"_FillValue": lowest})
    raise UnsupportedError(f"the column {name} is of type {type}, which no array holds; cast it first")


def encode_column(name: str, coding: ColumnCoding, values: pa.Array, fill_value: Any) -> npt.NDArray[Any]:
    """Column values as the array stores them; nulls become its missing value."""
    column = _as_decoded(name, coding, values)
    nulls = np.asarray(column.is_null())
    packing = coding.packing or Packing()
    missing = packing.fill
    if coding.dtype == "string":
        return np.array(column.fill_null("").to_pylist(), dtype=object)
    stored = np.dtype(coding.dtype)
    if nulls.any() and missing is None and stored.kind not in "fM":
        raise InvalidInputError(
            f"the column {name} has nulls, and its array has no missing value (_FillValue) for them"
        )
    if coding.times is not None:
        result = _encode_times(name, column, coding.times, stored)
    elif stored.kind == "M":
        micro = column.view(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy()
        return np.asarray(micro.view("M8[us]").astype(stored))
    elif coding.packing is not None and not coding.packing.is_plain:
        result = _pack(name, column, coding, stored)
    else:
        result = _numbers(column, packing.meant_dtype(stored)).view(stored)
    if stored.kind in "iu" and (taken := packing.missing(result)) is not None and bool((taken & ~nulls).any()):
        raise InvalidInputError(f"the column {name} holds a number that means missing in its array: {packing.fills}")
    if nulls.any():
        result[nulls] = np.nan if missing is None else packing.stored(missing, stored)
    return result


def _as_decoded(name: str, coding: ColumnCoding, values: pa.Array) -> pa.Array:
    if values.type == coding.type:
        return values
    try:
        if pa.types.is_date(values.type) and coding.type == TIMESTAMP:
            return values.cast(pa.timestamp("us")).cast(pa.int64()).view(TIMESTAMP)
        if pa.types.is_timestamp(values.type) and coding.type == TIMESTAMP and values.type.tz is None:
            return values.cast(pa.timestamp("us")).cast(pa.int64()).view(TIMESTAMP)
        # A float column of doubles loses digits; that is what storing it in a float array means.
        cast = values.cast(coding.type, safe=not pa.types.is_floating(coding.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the column {name} ({values.type}) does not fit its array ({coding.type}): {error}"
        ) from error
    if pa.types.is_floating(coding.type) and pa.types.is_floating(values.type):
        beyond = pc.and_(pc.is_inf(cast), pc.is_finite(values))
        if pc.any(beyond).as_py():
            number = values.filter(beyond)[0]
            raise InvalidInputError(
                f"the column {name} holds {number}, which is too large for its array ({coding.type})"
            )
    return cast


def _numbers(column: pa.Array, stored: np.dtype[Any]) -> npt.NDArray[Any]:
    filled = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    return np.array(filled.to_numpy(zero_copy_only=False)).astype(stored)


def _encode_times(name: str, column: pa.Array, units: TimeUnits, stored: np.dtype[Any]) -> npt.NDArray[Any]:
    micro = column.view(pa.int64()).fill_null(units.reference_us).to_numpy().astype(np.int64) - units.reference_us
    if stored.kind in "iu":
        if bool((micro % units.unit_us).any()):
            raise InvalidInputError(
                f"the column {name} holds times that are no whole {units.text!r}, as its array counts"
            )
        return np.asarray((micro // units.unit_us).astype(stored))
    return np.asarray((micro / units.unit_us).astype(stored))


def _pack(name: str, column: pa.Array, coding: ColumnCoding, stored: np.dtype[Any]) -> npt.NDArray[Any]:
    assert coding.packing is not None
    numbers = (_numbers(column, np.dtype(np.float64)) - coding.packing.offset) / coding.packing.scale
    if stored.kind not in "iu":
        return numbers.astype(stored)
    rounded = np.rint(numbers)
    meant = coding.packing.meant_dtype(stored)
    limits = np.iinfo(meant)
    if len(rounded) and (rounded.min() < limits.min or rounded.max() > limits.max):
        raise InvalidInputError(f"the column {name} holds values beyond what its packed array ({stored}) can hold")
    return rounded.astype(meant).view(stored)
