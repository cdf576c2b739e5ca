"""Stored values of arrays to values of table columns, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.cf import CIVIL_CALENDARS, Packing, TimeUnits, find_time_units, packing_of, unpack, unpacked_dtype
from icefloe.ingest.zarr_documents import fill_attribute

TIMESTAMP = pa.timestamp("us", tz="UTC")
_WIDENED = {"u1": pa.int16(), "u2": pa.int32(), "u4": pa.int64(), "u8": pa.decimal128(20, 0), "f2": pa.float32()}
"""Types of numbers that Spark does not have, and the narrowest type that contains all their values."""


def from_numpy(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers as an Arrow array, null where the mask is true. Numbers are not copied.

    `pyarrow.array` does the same for all types, but imports pandas, which takes longer than a small query.
    """
    if values.dtype.kind not in "iuf" or values.dtype == np.float16 or not values.dtype.isnative:
        return pa.array(values, mask=mask)
    flat = np.ascontiguousarray(values).reshape(-1)
    validity = None
    if mask is not None and mask.any():
        validity = pa.py_buffer(np.packbits(~mask.reshape(-1), bitorder="little").tobytes())
    kind = pa.from_numpy_dtype(flat.dtype)
    return pa.Array.from_buffers(kind, len(flat), [validity, pa.py_buffer(flat)])


def to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    """Return values without nulls as numpy values. Numbers are not copied. Times are microseconds since 1970.

    `pyarrow.Array.to_numpy` does the same for all types, but imports pandas.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        return to_numpy(values.view(pa.int64()))
    if values.null_count or not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return numbers
    first, count = values.offset, len(values)
    body = values.buffers()[1]
    if body is None:
        return np.zeros(count, dtype=kind.to_pandas_dtype())
    if pa.types.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8), count=first + count, bitorder="little")
        return bits[first:].view(np.bool_)
    return np.frombuffer(body, dtype=kind.to_pandas_dtype(), count=first + count)[first:]


@dataclass(frozen=True, slots=True)
class ColumnCoding:
    """The type of a column, and how stored values are converted to it."""

    dtype: str
    """The stored numpy type, or "string"."""
    type: pa.DataType
    times: TimeUnits | None = None
    packing: Packing | None = None
    raw: bool = False

    @property
    def missing_is_nan(self) -> bool:
        """Whether NaN can represent missing values, because the column has floats."""
        return not self.raw and self.times is None and pa.types.is_floating(self.type)

    @property
    def has_missing(self) -> bool:
        """Whether any value of the column can be missing."""
        if pa.types.is_floating(self.type) or pa.types.is_integer(self.type) or pa.types.is_boolean(self.type):
            return self.missing_is_nan or (self.packing is not None and bool(self.packing.fills))
        return True

    def decode(self, values: npt.NDArray[Any], *, as_nan: bool = False) -> pa.Array:
        """Stored values (any shape) as a flat column. Missing values are null unless the column is raw.

        With `as_nan`, missing floats stay NaN.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        if flat.dtype.kind in "OTU":
            return pa.array([_text(value) for value in flat.tolist()], type=self.type)
        if flat.dtype.kind == "S":
            return pa.array(flat.tolist(), type=self.type)
        if flat.dtype.byteorder == ">":
            flat = flat.astype(flat.dtype.newbyteorder("="))
        if flat.dtype.kind in "Mm":
            return _instants(flat, self.type)
        if self.times is not None:
            return _times(self._meant(flat), self.times, self._missing(flat))
        if self.packing is not None and not self.packing.is_plain:
            flat = unpack(flat, self.packing, unpacked_dtype(self.dtype, _packing_attributes(self.packing)))
        elif (missing := self._missing(flat)) is not None:
            if flat.dtype.kind == "f":
                flat = np.where(missing, flat.dtype.type(np.nan), flat)
            else:
                return from_numpy(_plain(self._meant(flat)), missing).cast(self.type)
        else:
            flat = self._meant(flat)
        return self._finish(flat, nulls=not as_nan)

    def with_nulls(self, column: pa.Array) -> pa.Array:
        """A column that was decoded with missing values as NaN, with nulls for them."""
        if not self.missing_is_nan or column.null_count:
            return column
        values = to_numpy(column)
        missing = np.isnan(values)
        return from_numpy(values, missing) if missing.any() else column

    def decode_tensor(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Stored values as unpacked little-endian numbers of the same shape. Missing floats are NaN."""
        if values.dtype.kind in "OTUS":
            raise UnsupportedError("texts and bytes cannot be read as tensors. Read them as rows or cells")
        if self.packing is not None and not self.raw and self.times is None:
            if not self.packing.is_plain:
                values = unpack(values, self.packing, unpacked_dtype(self.dtype, _packing_attributes(self.packing)))
            elif values.dtype.kind == "f" and (missing := self._missing(values)) is not None:
                values = np.where(missing, values.dtype.type(np.nan), values)
            else:
                values = self._meant(values)
        return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))

    def _missing(self, flat: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Which stored values are declared missing. NaN is always missing."""
        return None if self.packing is None else self.packing.missing(flat)

    def _meant(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return flat if self.packing is None else self.packing.meant(flat)

    def _finish(self, flat: npt.NDArray[Any], *, nulls: bool) -> pa.Array:
        mask = None
        if nulls and flat.dtype.kind == "f" and not self.raw:
            missing = np.isnan(flat)
            mask = missing if missing.any() else None
        made = from_numpy(_plain(flat), mask)
        return made if made.type == self.type else made.cast(self.type)


def _plain(flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return flat.astype(np.float32) if flat.dtype == np.float16 else flat


def _text(value: Any) -> str | None:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _packing_attributes(packing: Packing) -> Mapping[str, Any]:
    return {} if packing.offset == 0.0 else {"add_offset": packing.offset}


def _instants(flat: npt.NDArray[Any], type: pa.DataType) -> pa.Array:
    missing = np.isnat(flat)
    unit = "datetime64[us]" if flat.dtype.kind == "M" else "timedelta64[us]"
    micro = flat.astype(unit).view(np.int64)
    return from_numpy(micro, missing).view(type)


def _times(flat: npt.NDArray[Any], units: TimeUnits, missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    """CF times as instants. Whole numbers are exact, others are rounded to microseconds."""
    if flat.dtype.kind in "iu":
        micro = flat.astype(np.int64) * units.unit_us + units.reference_us
        return from_numpy(micro, missing).view(TIMESTAMP)
    wrong = ~np.isfinite(flat)
    if missing is not None:
        wrong |= missing
    numbers = np.where(wrong, 0, flat).astype(np.float64)
    whole = np.floor(numbers)
    # Scale the whole part as an integer, because a product of doubles is off by microseconds after some decades.
    rest = np.rint((numbers - whole) * units.unit_us).astype(np.int64)
    micro = whole.astype(np.int64) * units.unit_us + rest + units.reference_us
    return from_numpy(micro, wrong).view(TIMESTAMP)


def coding_of(dtype: np.dtype[Any], attributes: Mapping[str, Any], *, raw: bool = False) -> ColumnCoding:
    """The coding of an array from its type and CF attributes. `raw` keeps stored values."""
    kind = dtype.kind
    if kind in "OTU":
        return ColumnCoding("string", pa.string(), raw=raw)
    if kind == "S":
        return ColumnCoding(dtype.str, pa.binary(), raw=raw)
    if kind == "M":
        return ColumnCoding(dtype.str, TIMESTAMP, raw=raw)
    if kind == "m":
        return ColumnCoding(dtype.str, pa.duration("us"), raw=raw)
    if kind not in "biuf":
        raise UnsupportedError(f"arrays of type {dtype} cannot be columns of a table")
    plain = _column_type(dtype)
    if raw:
        return ColumnCoding(dtype.str, plain, raw=True)
    packing = packing_of(attributes, dtype.str) if kind in "iuf" else None
    times = _time_units(attributes) if kind in "iuf" else None
    if times is not None:
        return ColumnCoding(dtype.str, TIMESTAMP, times, packing)
    if packing is not None and not packing.is_plain:
        unpacked = np.dtype(unpacked_dtype(dtype.str, _packing_attributes(packing)))
        return ColumnCoding(dtype.str, _column_type(unpacked), None, packing)
    if packing is None or not (packing.fills or packing.sign):
        return ColumnCoding(dtype.str, plain)
    return ColumnCoding(dtype.str, _column_type(packing.meant_dtype(dtype)), None, packing)


def has_one_missing_value(attributes: Mapping[str, Any]) -> bool:
    """Whether at most one number is declared missing, and `_Unsigned` is not used.

    Statistics of earlier versions are only exact for such arrays.
    """
    fills = [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
    return "_Unsigned" not in attributes and not any(isinstance(fill, list) or fill != fills[0] for fill in fills)


def _time_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Units of times whose dates are exact to the microsecond. Other times stay numbers."""
    units = find_time_units(attributes)
    if units is None or not units.unit_us or units.calendar not in CIVIL_CALENDARS:
        return None
    return units


def _column_type(dtype: np.dtype[Any]) -> pa.DataType:
    code = f"{dtype.kind}{dtype.itemsize}"
    if code in _WIDENED:
        return _WIDENED[code]
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except (pa.ArrowNotImplementedError, TypeError) as error:
        raise UnsupportedError(f"arrays of type {dtype} cannot be columns of a table") from error


_UNITS = {1_000_000: "seconds", 1: "microseconds"}
_EPOCH = "since 1970-01-01"


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """The properties of a new array for a column."""

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
    raise UnsupportedError(f"the column {name} has the type {type}, which arrays cannot store. Cast it first")


def encode_column(name: str, coding: ColumnCoding, values: pa.Array, fill_value: Any) -> npt.NDArray[Any]:
    """Column values as the array stores them. Nulls become its missing value."""
    column = _as_decoded(name, coding, values)
    nulls = np.asarray(column.is_null())
    packing = coding.packing or Packing()
    missing = packing.fill
    if coding.dtype == "string":
        return np.array(column.fill_null("").to_pylist(), dtype=object)
    stored = np.dtype(coding.dtype)
    if nulls.any() and missing is None and stored.kind not in "fM":
        raise InvalidInputError(f"the column {name} has nulls, but its array has no missing value (_FillValue)")
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
        raise InvalidInputError(f"the column {name} contains a number that means missing in its array: {packing.fills}")
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
        # Doubles lose digits in an array of floats. That is expected.
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
                f"the column {name} contains {number}, which is too large for its array ({coding.type})"
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
                f"the column {name} contains times that are not whole numbers of {units.text!r}, the units of its array"
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
        raise InvalidInputError(f"the column {name} contains values that do not fit its packed array ({stored})")
    return rounded.astype(meant).view(stored)
