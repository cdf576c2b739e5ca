"""How the stored values of an array become the values of a table column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import UnsupportedError
from icefloe.ingest.cf import (
    CIVIL_CALENDARS,
    Packing,
    TimeUnits,
    find_time_units,
    packing_of,
    unpack,
    unpacked_dtype,
)

TIMESTAMP = pa.timestamp("us", tz="UTC")
_WIDENED = {"u1": pa.int16(), "u2": pa.int32(), "u4": pa.int64(), "u8": pa.decimal128(20, 0), "f2": pa.float32()}
"""Numbers that Spark has no type for, and the narrowest one that holds them all."""


@dataclass(frozen=True, slots=True)
class ColumnCoding:
    """The type of a column, and what turns stored values into it."""

    dtype: str
    """The stored numpy type, or "string"."""
    type: pa.DataType
    times: TimeUnits | None = None
    packing: Packing | None = None
    raw: bool = False

    @property
    def missing_is_nan(self) -> bool:
        """Whether NaN can stand for missing values: the column has floats."""
        return not self.raw and self.times is None and pa.types.is_floating(self.type)

    @property
    def has_missing(self) -> bool:
        """Whether any value of the column can be missing."""
        if pa.types.is_floating(self.type) or pa.types.is_integer(self.type) or pa.types.is_boolean(self.type):
            return self.missing_is_nan or (self.packing is not None and bool(self.packing.fills))
        return True

    def decode(self, values: npt.NDArray[Any], *, as_nan: bool = False) -> pa.Array:
        """Stored values (any shape) as a flat column; missing ones are null unless the column is raw.

        `as_nan` leaves those of floats as NaN.
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
                return pa.array(_plain(self._meant(flat)), mask=missing).cast(self.type)
        else:
            flat = self._meant(flat)
        return self._finish(flat, nulls=not as_nan)

    def with_nulls(self, column: pa.Array) -> pa.Array:
        """A column that was decoded with missing values as NaN, with nulls for them."""
        if not self.missing_is_nan or column.null_count:
            return column
        values = column.to_numpy()
        missing = np.isnan(values)
        return pa.array(values, mask=missing) if missing.any() else column

    def decode_tensor(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Stored values as numbers of the same shape: unpacked, missing floats as NaN; little-endian."""
        if values.dtype.kind in "OTUS":
            raise UnsupportedError("values of texts and bytes have no tensor; read them as lists or cells")
        if self.packing is not None and not self.raw and self.times is None:
            if not self.packing.is_plain:
                values = unpack(values, self.packing, unpacked_dtype(self.dtype, _packing_attributes(self.packing)))
            elif values.dtype.kind == "f" and (missing := self._missing(values)) is not None:
                values = np.where(missing, values.dtype.type(np.nan), values)
            else:
                values = self._meant(values)
        return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))

    def _missing(self, flat: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Which stored values are declared missing; NaN is missing by itself."""
        return None if self.packing is None else self.packing.missing(flat)

    def _meant(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return flat if self.packing is None else self.packing.meant(flat)

    def _finish(self, flat: npt.NDArray[Any], *, nulls: bool) -> pa.Array:
        mask = None
        if nulls and flat.dtype.kind == "f" and not self.raw:
            missing = np.isnan(flat)
            mask = missing if missing.any() else None
        made = pa.array(_plain(flat), mask=mask)
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
    return pa.array(micro, mask=missing if missing.any() else None).cast(pa.int64()).view(type)


def _times(flat: npt.NDArray[Any], units: TimeUnits, missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    """CF times as instants; whole numbers exactly, others to the nearest microsecond."""
    if flat.dtype.kind in "iu":
        micro = flat.astype(np.int64) * units.unit_us + units.reference_us
        return pa.array(micro, mask=missing).view(TIMESTAMP)
    wrong = ~np.isfinite(flat)
    if missing is not None:
        wrong |= missing
    numbers = np.where(wrong, 0, flat).astype(np.float64)
    whole = np.floor(numbers)
    # The whole part is scaled as an integer: a product of doubles is off by microseconds after some decades.
    rest = np.rint((numbers - whole) * units.unit_us).astype(np.int64)
    micro = whole.astype(np.int64) * units.unit_us + rest + units.reference_us
    return pa.array(micro, mask=wrong if wrong.any() else None).view(TIMESTAMP)


def coding_of(dtype: np.dtype[Any], attributes: Mapping[str, Any], *, raw: bool = False) -> ColumnCoding:
    """The coding of an array by its type and CF attributes; `raw` keeps stored values."""
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
        raise UnsupportedError(f"arrays of type {dtype} have no place in a table")
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

    Statistics that were kept before others were understood are exact for such arrays only.
    """
    fills = [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
    return "_Unsigned" not in attributes and not any(isinstance(fill, list) or fill != fills[0] for fill in fills)


def _time_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Units of times that have civil dates to the microsecond; others stay the numbers they are."""
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
        raise UnsupportedError(f"arrays of type {dtype} have no place in a table") from error
