"""The arrays of the target: shape, chunks and type for all files and for the arrays of the repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import zarr

from icefloe.codec_pipeline import check_grid, has_variable_grids
from icefloe.errors import InvalidInputError
from icefloe.ingest.array_plan import (
    ArrayKind,
    ArrayPlan,
    FittedGrid,
    TargetDimensions,
    choose_chunks,
    fit_chunks,
    fit_lengths,
    grown_lengths,
    native_codecs,
)
from icefloe.ingest.cf import (
    NO_TIME,
    Packing,
    SourceTimes,
    TimeEncoding,
    choose_time_encoding,
    convert_times,
    decoded_dtype,
    find_time_units,
    format_range,
    is_time_units,
    keeps_values,
    packing_of,
)
from icefloe.ingest.members import (
    Member,
    decoding_codecs,
    find_byte_difference,
    promoted_dtype,
    split_by_encoding,
)
from icefloe.ingest.placement import Existing, ExistingArray, same_coordinates
from icefloe.ingest.source_model import IDENTITY_ATTRIBUTES, SchemaIssue, SourceVariable, named_by
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.zarr_documents import (
    array_document,
    fill_attribute,
    fill_value_document,
)
from icefloe.model.zarr_document import ChunkLengths, as_lengths

SEVERAL_DIMENSIONS = "an ingest extends arrays along one dimension: use sync, which extends them along all"
COORDINATE_CHUNK = 1 << 13
"""The number of cells in a chunk of a native coordinate: a year of hours."""
_MISSING = ("_FillValue", "missing_value")
_PACKING = ("scale_factor", "add_offset", "_Unsigned", *_MISSING)
_PACKED_LIMITS = ("valid_min", "valid_max", "valid_range", "flag_values", "flag_masks")
"""Attributes whose values are numbers as they are stored."""


def plan_array(
    path: str,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    options: IngestOptions,
    existing: Existing,
    *,
    has_holes: bool = False,
) -> tuple[ArrayPlan | None, list[SchemaIssue]]:
    """One array, or None if it exists already and nothing of it is written.

    `has_holes`: no file has some of its cells. They must be missing.
    """
    variable = members[0].variables[name]
    joined = tuple(d for d in variable.dims if d in dims.joined)
    stored = existing.arrays.get(path)
    if stored is not None:
        array, issues = _plan_existing(stored, variable, members, dims, joined, options, path, name, existing)
        # Cells of a region that no file has keep their values.
        if array is not None and has_holes and options.region is None:
            issues += _existing_holes(array, members[0], name)
        return array, issues
    if options.region is not None:
        issue = _issue(members[0], name, "array", "in the repository", "absent", "region writes into existing arrays")
        return None, [issue]
    shape = tuple(dims.length(d) if d in joined else n for d, n in zip(variable.dims, variable.shape, strict=True))
    kind, template, issues, fitted = _choose_kind(
        variable, name, members, dims, joined, shape, options, varies=existing.variable_grids
    )
    if kind == "virtual":
        array = _virtual_array(path, template, shape, joined, fitted)
        if has_holes:
            array, found = _virtual_holes(array, members[0], name)
            issues += found
    else:
        array, found = _native_array(
            path, name, members, shape, joined, dims, options, has_holes, existing.chunks.get(path)
        )
        issues += found
    return array, issues


def _virtual_array(
    path: str, variable: SourceVariable, shape: tuple[int, ...], joined: tuple[str, ...], fitted: FittedGrid | None
) -> ArrayPlan:
    fill = variable.fill_value if variable.fill_value is not None else fill_value_document(variable.dtype, None)
    grid = as_lengths(variable.chunks) if fitted is None else fitted.lengths
    document = array_document(
        shape=shape,
        dtype=variable.dtype,
        chunks=[lengths.each for lengths in grid],
        codecs=variable.codecs,
        fill_value=fill,
        attributes=variable.attributes,
        dims=variable.dims,
    )
    return ArrayPlan(
        path,
        "virtual",
        variable.dims,
        shape,
        tuple(lengths.longest for lengths in grid),
        variable.dtype,
        variable.attributes,
        fill,
        document,
        joined,
        variable,
        grid=grid,
    )


def _virtual_holes(array: ArrayPlan, member: Member, name: str) -> tuple[ArrayPlan, list[SchemaIssue]]:
    """The array with a fill value that means missing, for chunks that no file has."""
    packing = packing_of(array.attributes, array.dtype)
    kind = "" if array.dtype == "string" else np.dtype(array.dtype).kind
    if packing.fills:
        fill = fill_value_document(array.dtype, packing.stored(packing.fill, np.dtype(array.dtype)))
    elif kind == "f":
        fill = fill_value_document(array.dtype, np.nan)
    else:
        advice = "references cannot change its values: use mode='native', or drop_variables"
        found = f"{array.dtype} without _FillValue"
        return array, [_issue(member, name, "missing cells", "a value that means missing", found, advice)]
    template = array.template
    document = array_document(
        shape=array.shape,
        dtype=array.dtype,
        chunks=[lengths.each for lengths in array.grid],
        codecs=template.codecs,
        fill_value=fill,
        attributes=array.attributes,
        dims=array.dims,
    )
    return replace(array, fill_value=fill, document=document), []


def _existing_holes(array: ArrayPlan, member: Member, name: str) -> list[SchemaIssue]:
    """Check that empty cells of an array of the repository, which have its fill value, are missing."""
    if fill_means_missing(array):
        return []
    found = f"the fill value {array.fill_value}, which is an ordinary one"
    advice = "write the array anew with a _FillValue, or bring all of its cells"
    return [_issue(member, name, "missing cells", "a value that means missing", found, advice)]


def extend_array(stored: ExistingArray, dim: str, length: int) -> ArrayPlan:
    """An array of the repository that is only extended."""
    array = existing_array(stored)
    shape = tuple(max(n, length) if d == dim else n for d, n in zip(array.dims, array.shape, strict=True))
    grid = tuple(lengths.covering(n) for lengths, n in zip(stored.grid(), shape, strict=True))
    return replace(array, shape=shape, document=stored.resized(shape, grid), joined=(dim,), grid=grid)


def existing_array(stored: ExistingArray) -> ArrayPlan:
    """An array of the repository, unchanged."""
    own = stored.variable()
    return ArrayPlan(
        stored.path,
        "native",
        own.dims,
        own.shape,
        own.chunks,
        own.dtype,
        own.attributes,
        own.fill_value,
        stored.resized(own.shape),
        (),
        own,
        is_new=False,
        grid=stored.grid(),
    )


def fill_means_missing(array: ArrayPlan) -> bool:
    """Whether unwritten cells are missing."""
    fill = array.fill()
    if array.dtype == "string" or np.dtype(array.dtype).kind not in "iufM":
        return False
    if bool(fill != fill) or np.dtype(array.dtype).kind == "M":
        return bool(fill != fill)
    packing = packing_of(array.attributes, array.dtype)
    is_time = is_time_units(array.attributes.get("units")) and packing.is_plain
    return packing.missing(np.array([fill], dtype=array.dtype)) is not None or (is_time and fill == NO_TIME)


@dataclass(frozen=True, slots=True)
class _Stored:
    """How an array stores the values of all its files."""

    dtype: str
    attributes: dict[str, Any]
    fill_value: Any
    """As zarr.json spells it."""


class _NoTypeError(Exception):
    """No type can represent the values of all files. Contains what was found and what to do."""

    def __init__(self, facet: str, found: str, advice: str) -> None:
        super().__init__(found)
        self.facet, self.found, self.advice = facet, found, advice


def _native_array(
    path: str,
    name: str,
    members: Sequence[Member],
    shape: tuple[int, ...],
    joined: tuple[str, ...],
    dims: TargetDimensions,
    options: IngestOptions,
    has_holes: bool,
    kept: tuple[int | tuple[int, ...], ...] | None = None,
) -> tuple[ArrayPlan, list[SchemaIssue]]:
    variables = list({id(m.variables[name]): m.variables[name] for m in members}.values())
    variable = variables[0]
    encoding = dims.joined[name].encoding if name in dims.joined else None
    wanted = options.dtypes.get(name, options.dtypes.get(path))
    issues: list[SchemaIssue] = []
    try:
        stored = _choose_stored(name, variables, encoding, options, has_holes=has_holes, is_asked=wanted is not None)
        packing = options.pack.get(name, options.pack.get(path))
        if packing is not None:
            stored = _packed(name, variables, packing)
        elif wanted is not None:
            stored = _retyped(np.dtype(wanted).newbyteorder("<").str, stored)
    except _NoTypeError as error:
        issues.append(_issue(members[0], name, error.facet, "one that holds all values", error.found, error.advice))
        stored = _Stored(variable.dtype, dict(variable.attributes), variable.fill_value)
    chunks = choose_chunks(replace(variable, dtype=stored.dtype), shape, joined, options.chunks)
    if variable.dims in ((), (name,)):
        chunks = tuple(max(1, min(options.chunks.get(d, COORDINATE_CHUNK), COORDINATE_CHUNK)) for d in variable.dims)
        chunks = tuple(min(c, max(1, n)) if not joined else c for c, n in zip(chunks, shape, strict=True))
    grid = as_lengths(chunks)
    if kept is not None and len(kept) == len(shape):
        grid = tuple(lengths.covering(n) for lengths, n in zip(as_lengths(kept), shape, strict=True))
        chunks = tuple(lengths.longest for lengths in grid)
    fill = stored.fill_value if stored.fill_value is not None else fill_value_document(stored.dtype, None)
    document = array_document(
        shape=shape,
        dtype=stored.dtype,
        chunks=[lengths.each for lengths in grid],
        codecs=options.codecs or native_codecs(stored.dtype),
        fill_value=fill,
        attributes=stored.attributes,
        dims=variable.dims,
    )
    array = ArrayPlan(
        path, "native", variable.dims, shape, chunks, stored.dtype, stored.attributes, fill, document, joined, variable
    )
    return replace(array, repacks=name in options.pack or path in options.pack, grid=grid), issues


def _packed(name: str, variables: Sequence[SourceVariable], packing: Mapping[str, Any]) -> _Stored:
    """Integers with the packing that the caller asked for."""
    if any(v.dtype == "string" or np.dtype(v.dtype).kind not in "iuf" for v in variables):
        raise _NoTypeError("dtype", variables[0].dtype, f"only numbers can be packed: leave out pack of {name!r}")
    dtype = np.dtype(packing["dtype"]).newbyteorder("<").str
    attributes = {k: v for k, v in variables[0].attributes.items() if k not in _PACKING}
    attributes["scale_factor"] = float(packing["scale_factor"])
    attributes["add_offset"] = float(packing.get("add_offset", 0.0))
    fill = packing.get("_FillValue")
    if fill is not None:
        attributes["_FillValue"] = fill_attribute(dtype, fill)
    return _Stored(dtype, attributes, fill_value_document(dtype, fill))


def _choose_stored(
    name: str,
    variables: Sequence[SourceVariable],
    encoding: TimeEncoding | None,
    options: IngestOptions,
    *,
    has_holes: bool,
    is_asked: bool,
) -> _Stored:
    """A type and attributes that represent the values of all files exactly, and which are missing.

    Numbers stay as stored if they have the same meaning in all files. Integers become floats with NaN, as in xarray, if
    files have different missing values, or if cells are missing and there is no value for that.
    """
    first = variables[0]
    if first.dtype == "string":
        if has_holes:
            raise _NoTypeError("missing cells", "text, which has no missing value", "use drop_variables")
        return _Stored("string", dict(first.attributes), "")
    if any(v.dtype == "string" for v in variables):
        return _Stored(first.dtype, dict(first.attributes), first.fill_value)
    packings = [packing_of(v.attributes, v.dtype) for v in variables]
    if all(p.is_plain and not p.sign for p in packings):
        units = [find_time_units(v.attributes) for v in variables]
        if all(u is not None for u in units) and np.dtype(first.dtype).kind in "iuf":
            return _choose_times(variables, packings, encoding, options, has_holes=has_holes)
    dtype = promoted_dtype([v.dtype for v in variables])
    if dtype is None and is_asked:
        dtype = np.result_type(*(np.dtype(v.dtype).newbyteorder("=") for v in variables)).newbyteorder("<").str
    if dtype is None:
        found = " and ".join(sorted({str(np.dtype(v.dtype)) for v in variables}))
        raise _NoTypeError("dtype", found, f"choose a type for both with dtypes={{{name!r}: ...}}")
    kind = np.dtype(dtype).kind
    same_fills = len({frozenset(p.fills) for p in packings}) == 1
    same_sign = len({p.sign for p in packings}) == 1 and (
        not packings[0].sign or len({np.dtype(v.dtype).itemsize for v in variables}) == 1
    )
    packed = any(n in v.attributes for v in variables for n in ("scale_factor", "add_offset"))
    decode = (options.unpack and packed) or not same_sign
    if kind in "iu":
        decode = decode or not same_fills or (has_holes and not packings[0].fills)
    if decode and kind in "iuf":
        return _decoded(name, variables, packed=packed, is_asked=is_asked)
    attributes = dict(first.attributes)
    if kind == "f":
        if not same_fills or (has_holes and not packings[0].fills):
            attributes = {k: v for k, v in attributes.items() if k not in _MISSING}
            attributes["_FillValue"] = fill_attribute(dtype, np.nan)
        elif "_FillValue" in attributes and packings[0].fills:
            # Integers became floats, so the attribute needs the new type.
            attributes["_FillValue"] = fill_attribute(dtype, packings[0].fill)
        fill = packings[0].fill if same_fills and packings[0].fills else np.nan
        return _Stored(dtype, attributes, fill_value_document(dtype, fill))
    if kind in "iu" and packings[0].fills:
        return _Stored(
            dtype, attributes, fill_value_document(dtype, packings[0].stored(packings[0].fill, np.dtype(dtype)))
        )
    if kind in "mM":
        return _Stored(dtype, attributes, fill_value_document(dtype, np.array("NaT", dtype=dtype)))
    if has_holes:
        raise _NoTypeError("missing cells", f"{np.dtype(dtype)}, which has no missing value", "use drop_variables")
    fill = first.fill_value if np.dtype(first.dtype).newbyteorder("=") == np.dtype(dtype).newbyteorder("=") else None
    return _Stored(dtype, attributes, fill)


def _decoded(name: str, variables: Sequence[SourceVariable], *, packed: bool, is_asked: bool) -> _Stored:
    """Numbers as xarray decodes them: floats, with NaN for missing values."""
    wide = next((v for v in variables if np.dtype(v.dtype).kind in "iu" and np.dtype(v.dtype).itemsize == 8), None)
    if wide is not None and not packed and not is_asked:
        raise _NoTypeError(
            "missing values",
            f"{np.dtype(wide.dtype)}, of which some are missing and none is free to say so",
            f"accept rounded values with dtypes={{{name!r}: 'float64'}}",
        )
    types = [
        v.dtype if _is_plain_float(v) else v.decoded_dtype or decoded_dtype(v.dtype, v.attributes) for v in variables
    ]
    dtype = np.result_type(*(np.dtype(t).newbyteorder("=") for t in types)).newbyteorder("<").str
    attributes = {k: v for k, v in variables[0].attributes.items() if k not in _PACKING}
    attributes["_FillValue"] = fill_attribute(dtype, np.nan)
    return _Stored(dtype, attributes, fill_value_document(dtype, np.nan))


def _is_plain_float(variable: SourceVariable) -> bool:
    is_packed = any(name in variable.attributes for name in ("scale_factor", "add_offset"))
    return not is_packed and np.dtype(variable.dtype).kind == "f"


def _choose_times(
    variables: Sequence[SourceVariable],
    packings: Sequence[Packing],
    encoding: TimeEncoding | None,
    options: IngestOptions,
    *,
    has_holes: bool,
) -> _Stored:
    """Times in units that represent those of all files.

    Missing times are NaN, or the integer that xarray reads as NaT.
    """
    attributes = dict(variables[0].attributes)
    if encoding is None:
        sources = []
        for variable in variables:
            units = find_time_units(variable.attributes)
            assert units is not None
            sources.append(SourceTimes(units, variable.attributes.get("calendar"), variable.dtype))
        try:
            encoding = choose_time_encoding(sources)
        except InvalidInputError as error:
            raise _NoTypeError("calendar", str(error), "ingest them into different groups") from error
        if options.time_units is not None:
            asked = find_time_units({"units": options.time_units, "calendar": encoding.units.calendar})
            if asked is not None:
                encoding = TimeEncoding(asked, encoding.calendar, "<i8")
    attributes["units"] = encoding.units.text
    dtype = encoding.dtype
    fills = {frozenset(p.fills) for p in packings}
    if len(fills) == 1 and packings[0].fills and all(keeps_values(v.dtype, dtype) for v in variables):
        alike = {u.counts_alike for v in variables if (u := find_time_units(v.attributes)) is not None}
        if alike == {encoding.units.counts_alike}:
            return _Stored(dtype, attributes, fill_value_document(dtype, packings[0].fill))
    if fills == {frozenset()} and not has_holes:
        fill: Any = np.nan if np.dtype(dtype).kind == "f" else variables[0].fill_value
        if np.dtype(dtype).kind != "f" and np.dtype(variables[0].dtype).kind == "f":
            # The attribute of floats, mostly NaN, is none of integers.
            attributes = {k: v for k, v in attributes.items() if k not in _MISSING}
            fill = NO_TIME
            if any(name in v.attributes for v in variables for name in _MISSING):
                attributes["_FillValue"] = fill_attribute(dtype, fill)
        return _Stored(dtype, attributes, fill_value_document(dtype, fill))
    if np.dtype(dtype).kind in "iu":
        dtype = "<i8"
    fill = np.nan if np.dtype(dtype).kind == "f" else NO_TIME
    attributes = {k: v for k, v in attributes.items() if k not in _MISSING}
    attributes["_FillValue"] = fill_attribute(dtype, fill)
    return _Stored(dtype, attributes, fill_value_document(dtype, fill))


def _retyped(wanted: str, stored: _Stored) -> _Stored:
    """The type that the caller chose, with missing values in this type."""
    kind, own = np.dtype(wanted).kind, "" if stored.dtype == "string" else np.dtype(stored.dtype).kind
    if (kind in "iufc") != (own in "iufc") or (kind not in "iufc" and kind != own):
        raise _NoTypeError("dtype", stored.dtype, f"values of it do not become {np.dtype(wanted)}")
    packing = packing_of(stored.attributes, stored.dtype)
    attributes = {k: v for k, v in stored.attributes.items() if k not in _MISSING}
    fits = [fill for fill in packing.fills if fill in packing_of({"missing_value": fill}, wanted).fills]
    if kind == "f":
        if packing.fills or "_FillValue" in stored.attributes:
            attributes["_FillValue"] = fill_attribute(wanted, np.nan)
        return _Stored(wanted, attributes, fill_value_document(wanted, np.nan))
    if kind in "iu" and fits and not packing.sign:
        attributes["_FillValue"] = fill_attribute(wanted, fits[0])
        return _Stored(wanted, attributes, fill_value_document(wanted, fits[0]))
    if kind in "iu" and packing.fills:
        advice = f"{np.dtype(wanted)} holds none of the numbers that mean missing"
        raise _NoTypeError("dtype", ", ".join(map(str, packing.fills)), advice)
    return _Stored(wanted, attributes, fill_value_document(wanted, None))


def _choose_kind(
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    shape: tuple[int, ...],
    options: IngestOptions,
    *,
    varies: bool,
) -> tuple[ArrayKind, SourceVariable, list[SchemaIssue], FittedGrid | None]:
    """How an array is stored, and its chunks if they differ in length. `varies`: they may."""
    if options.mode == "native":
        return "native", variable, [], None
    is_coordinate = variable.dims in ((), (name,))
    size = int(np.prod(shape, dtype=np.int64)) * (
        16 if variable.dtype == "string" else np.dtype(variable.dtype).itemsize
    )
    if options.mode == "mixed" and (is_coordinate or size < options.native_below_bytes or name in options.pack):
        return "native", variable, [], None
    template, reason = fit_chunks(variable, name, members, dims, joined)
    if len(joined) == 1 and dims.joined[joined[0]].spans:
        # Several files have the same cells.
        note = _issue(members[0], name, "references", "possible", "files share its cells", "it is stored by value")
        return "native", variable, [replace(note, severity="note")], None
    reason = next((m.variables[name].not_virtual for m in members if m.variables[name].not_virtual), None) or reason
    if reason is None and options.mode == "mixed":
        reason = find_byte_difference(variable, members, name)
    if reason is None:
        return "virtual", template, [], None
    if options.mode == "mixed":
        found = _partly_by_value(name, members, dims, joined, options)
        if found is not None:
            return "virtual", *found
    if is_coordinate or _is_auxiliary(members, name):
        note = _issue(members[0], name, "references", "possible", reason, "the coordinate is stored by value")
        return "native", variable, [replace(note, severity="note")], None
    ragged = _partly_by_value(name, members, dims, joined, options, varies=True)
    if ragged is not None and varies:
        return "virtual", *ragged
    if options.mode == "mixed":
        note = _issue(members[0], name, "references", "possible", reason, "the array is written by value")
        return "native", variable, [replace(note, severity="handled")], None
    advice = f"use mode='mixed'{_grid_advice() if ragged is not None else ''}"
    return "virtual", template, [_issue(members[0], name, "references", "possible", reason, advice)], None


def _grid_advice() -> str:
    """What makes chunks of different lengths possible, if this zarr has them and does not use them."""
    if has_variable_grids() or "rectilinear_chunks" not in zarr.config.get("array"):
        return ""
    return ", or allow chunks of different lengths with the variable ZARR_ARRAY__RECTILINEAR_CHUNKS=True"


_Parts: TypeAlias = tuple[SourceVariable, list[SchemaIssue], FittedGrid | None]
"""The variable of an array of references, what is written by value, and its chunks if they differ in length."""


def _partly_by_value(
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    options: IngestOptions,
    existing: ExistingArray | None = None,
    *,
    varies: bool = False,
) -> _Parts | None:
    """The variable of an array that references most files, and has the values of files with other encodings.

    None if no file can be referenced, if a file would begin within a chunk, or if values of the other files do not fit.
    `existing` is an array of the repository, whose encoding is given. With `varies`, chunks end where files end.
    """
    stored = None if existing is None else existing.variable()
    varying = joined if varies else ()
    if stored is None:
        common, others = split_by_encoding(members, name, varying)
        model = common[0].variables[name]
    else:
        found = [(member, _array_difference(stored, member.variables[name], varying)) for member in members]
        common = [member for member, difference in found if difference is None]
        others = [(member, difference) for member, difference in found if difference is not None]
        model = common[0].variables[name] if common else stored
    if model.not_virtual is not None or not common or (not others and not varies):
        return None
    if others and options.mode != "mixed":
        return None
    template, fitted = model, None
    if varies:
        fitted = fit_lengths(model, name, common, dims, joined, existing)
        if fitted is None:
            return None
    else:
        template, reason = fit_chunks(model, name, common, dims, joined, stored)
        if reason is not None:
            return None
    own = stored or template
    issues: list[SchemaIssue] = []
    checked: dict[int, bool] = {}
    for member, difference in others:
        variable = member.variables[name]
        if id(variable) not in checked:
            checked[id(variable)] = not _existing_values_fit(own, member, name, options, is_virtual=False)
        if not checked[id(variable)] or variable.dims != model.dims:
            return None
        note = _issue(member, name, "references", "the encoding of the array", difference, "it is written by value")
        issues.append(replace(note, severity="handled"))
    if fitted is not None and fitted.padded:
        found_text = f"{fitted.padded} files end within their last chunk"
        note = _issue(common[0], name, "last chunk", "as long as the file", found_text, "it is written by value")
        issues.append(replace(note, severity="note"))
    template = template if stored is not None or not others else _described_as(template, members[0].variables[name])
    return template, issues, fitted


def _described_as(variable: SourceVariable, first: SourceVariable) -> SourceVariable:
    """A variable with the attributes of the first file, except those that say what its stored numbers mean."""
    meaning = {*_PACKING, *_PACKED_LIMITS}
    if find_time_units(variable.attributes) is not None:
        meaning |= {"units", "calendar"}
    own = {key: value for key, value in variable.attributes.items() if key in meaning}
    return replace(variable, attributes={**{k: v for k, v in first.attributes.items() if k not in meaning}, **own})


def _array_difference(
    stored: SourceVariable, variable: SourceVariable, varying: Sequence[str] = (), *, is_cut: bool = False
) -> str | None:
    """Why chunks of a file cannot be chunks of an array of the repository. None if they can.

    `varying`: dimensions along which chunks may differ in length. `is_cut`: the variable has its final chunks.
    """
    if variable.not_virtual is not None:
        return variable.not_virtual
    can_be_cut = variable.layout in ("contiguous", "records") and not is_cut
    mine, other = ([c for d, c in zip(v.dims, v.chunks, strict=True) if d not in varying] for v in (stored, variable))
    for facet, ours, theirs in (
        ("data type", stored.dtype, variable.dtype),
        ("chunks", None if can_be_cut else tuple(mine), None if can_be_cut else tuple(other)),
        ("codecs", decoding_codecs(stored.codecs), decoding_codecs(variable.codecs)),
        ("packing", packing_of(stored.attributes, stored.dtype), packing_of(variable.attributes, variable.dtype)),
        ("units", _units(stored), _units(variable)),
    ):
        if ours != theirs and repr(ours) != repr(theirs):
            return f"the array's {facet} is {ours}, the file's {theirs}"
    return None


def _is_auxiliary(members: Sequence[Member], name: str) -> bool:
    """Whether another variable names this one, for example as its coordinate, bounds or grid mapping."""
    return any(name in named_by(variable) for variable in members[0].variables.values())


def _plan_existing(
    stored: ExistingArray,
    variable: SourceVariable,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    options: IngestOptions,
    path: str,
    name: str,
    existing: Existing,
) -> tuple[ArrayPlan | None, list[SchemaIssue]]:
    """Extend an array of the repository, or write into it, with its own encoding."""
    own = stored.variable()
    check_grid(path, stored.document)
    if not joined:
        return None, _same_grid(own, variable, members[0], name) or _same_static(stored, members[0], name)
    if own.dims != variable.dims:
        issue = _issue(members[0], name, "dimensions", str(own.dims), str(variable.dims), "rename the dimensions")
        return None, [issue]
    if options.region is not None and variable.dims == (name,):
        # The coordinates of a region are those of the repository. They are compared, never written.
        return None, _same_region(stored, dims, members[0], name)
    if options.append_dim not in (None, name) and variable.dims == (name,):
        return None, _same_joined(stored, dims, members[0], name)
    shape = tuple(max(n, dims.length(d)) if d in joined else n for d, n in zip(own.dims, own.shape, strict=True))
    issues: list[SchemaIssue] = []
    for dim, have, given, length in zip(own.dims, own.shape, variable.shape, shape, strict=True):
        if dim not in joined and have != given:
            issues.append(_issue(members[0], name, f"length of {dim}", str(have), str(given), "the grids differ"))
        if dim not in joined or dim == options.append_dim:
            continue
        if length > have or (options.append_dim is not None and dims.length(dim) < have):
            found = f"cells up to {dims.length(dim)}"
            advice = "use append_dim to extend it" if options.append_dim is None else SEVERAL_DIMENSIONS
            issues.append(_issue(members[0], name, f"length of {dim}", str(have), found, advice))
    if options.append_dim is not None and options.append_dim not in joined:
        # It belongs to the cells that the repository has already. It is compared, never written.
        return None, issues
    is_virtual, template, found_issues, fitted = _existing_kind(
        stored, variable, name, members, dims, joined, options, varies=existing.variable_grids
    )
    issues += found_issues
    grid = fitted.lengths if fitted is not None else _grown_grid(stored, shape, options)
    array = ArrayPlan(
        path,
        "virtual" if is_virtual else "native",
        own.dims,
        shape,
        tuple(lengths.longest for lengths in grid),
        own.dtype,
        own.attributes,
        own.fill_value,
        stored.resized(shape, grid),
        joined,
        template,
        is_new=False,
        repacks=_keeps_packing(own, options.pack.get(name, options.pack.get(path))),
        grid=grid,
        recut={} if fitted is None else fitted.recut,
    )
    checked: set[int] = set()
    for member in members:
        if id(member.variables[name]) not in checked:
            checked.add(id(member.variables[name]))
            issues += _existing_values_fit(own, member, name, options, is_virtual=is_virtual)
    return array, issues


def _grown_grid(stored: ExistingArray, shape: Sequence[int], options: IngestOptions) -> tuple[ChunkLengths, ...]:
    names = stored.document.get("dimension_names") or [None] * len(shape)
    pairs = zip(names, stored.grid(), stored.document["shape"], shape, strict=True)
    return tuple(grown_lengths(lengths, int(old), new, options.chunks.get(dim)) for dim, lengths, old, new in pairs)


def _existing_kind(
    stored: ExistingArray,
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    options: IngestOptions,
    *,
    varies: bool,
) -> tuple[bool, SourceVariable, list[SchemaIssue], FittedGrid | None]:
    """Whether files are referenced by an array of the repository, and its chunks if they differ in length."""
    if options.mode == "native" or variable.dims in ((), (name,)):
        return False, variable, [], None
    own = stored.variable()
    is_regular = all(lengths.is_regular for lengths in stored.grid())
    template, reason = fit_chunks(variable, name, members, dims, joined, own)
    reason = variable.not_virtual or reason
    if options.mode == "mixed":
        reason = reason or find_byte_difference(variable, members, name)
    reason = reason or _array_difference(own, template, is_cut=True)
    if reason is None and is_regular:
        return True, template, [], None
    reason = reason or "the chunks of the array differ in length"
    if options.mode == "mixed" and is_regular:
        found = _partly_by_value(name, members, dims, joined, options, stored)
        if found is not None:
            return True, *found
    is_auxiliary = _is_auxiliary(members, name)
    ragged = None
    if not is_regular or not is_auxiliary:
        ragged = _partly_by_value(name, members, dims, joined, options, stored, varies=True)
    if ragged is not None and varies:
        return True, *ragged
    if options.mode == "mixed" or (variable.not_virtual is not None and is_auxiliary):
        return False, variable, [], None
    advice = f"use mode='mixed' or 'native'{_grid_advice() if ragged is not None else ''}"
    return True, template, [_issue(members[0], name, "references", "possible", reason, advice)], None


def _units(variable: SourceVariable) -> tuple[Any, ...]:
    units = find_time_units(variable.attributes)
    return (variable.attributes.get("units"),) if units is None else (*units.counts_alike, units.calendar)


def _existing_values_fit(
    own: SourceVariable, member: Member, name: str, options: IngestOptions, *, is_virtual: bool
) -> list[SchemaIssue]:
    """Why values of a file cannot be converted to those of an array of the repository."""
    variable = member.variables[name]
    issues = []
    units, found = own.attributes.get("units"), variable.attributes.get("units")
    ours, theirs = find_time_units(own.attributes), find_time_units(variable.attributes)
    if ours is not None and theirs is not None:
        if not is_virtual:
            issues += _times_fit(own, member, name)
    elif units != found:
        issues.append(_issue(member, name, "units", str(units), str(found), "the numbers do not mean the same"))
    for key in sorted(IDENTITY_ATTRIBUTES & own.attributes.keys() & variable.attributes.keys()):
        ours_is, theirs_is = own.attributes[key], variable.attributes[key]
        if ours_is != theirs_is:
            issues.append(_issue(member, name, key, str(ours_is), str(theirs_is), "the numbers do not mean the same"))
    if own.dtype != "string" and np.dtype(own.dtype).kind in "bc":
        # Missing booleans and complex numbers are not re-encoded.
        marks = own.attributes.get("_FillValue"), variable.attributes.get("_FillValue")
        if marks[0] != marks[1]:
            issues.append(
                _issue(member, name, "_FillValue", str(marks[0]), str(marks[1]), "the numbers do not mean the same")
            )
    if is_virtual:
        return issues
    if "string" in (own.dtype, variable.dtype):
        if own.dtype != variable.dtype:
            issues.append(_issue(member, name, "dtype", own.dtype, variable.dtype, "text and numbers cannot be joined"))
        return issues
    mine, other = packing_of(own.attributes, own.dtype), packing_of(variable.attributes, variable.dtype)
    is_same = (mine.scale, mine.offset, mine.sign) == (other.scale, other.offset, other.sign)
    if not is_same and _keeps_packing(own, options.pack.get(name, options.pack.get(own.path))):
        return issues
    unpacks = not is_same and mine.is_plain and not mine.sign and np.dtype(own.dtype).kind == "f"
    if not is_same and not unpacks:
        issues.append(
            _issue(member, name, "packing", str(mine), str(other), "packed numbers would mean different values")
        )
    if other.fills and not mine.fills and np.dtype(own.dtype).kind != "f" and ours is None:
        advice = "the array has no missing value (_FillValue): write it anew"
        issues.append(_issue(member, name, "missing values", "none", ", ".join(map(str, other.fills)), advice))
    if ours is not None and theirs is not None:
        return issues
    given = variable.dtype
    if unpacks:
        given = variable.decoded_dtype or decoded_dtype(variable.dtype, variable.attributes)
    is_asked = any(np.dtype(options.dtypes[n]) == np.dtype(own.dtype) for n in (name, own.path) if n in options.dtypes)
    if not keeps_values(given, own.dtype) and not is_asked:
        ours_shown, theirs_shown = str(np.dtype(own.dtype)), str(np.dtype(given))
        advice = (
            f"its values may not fit; dtypes={{{name!r}: {ours_shown!r}}} converts them and refuses what does not fit"
        )
        issues.append(_issue(member, name, "dtype", ours_shown, theirs_shown, advice))
    return issues


def _keeps_packing(own: SourceVariable, packing: Mapping[str, Any] | None) -> bool:
    """Whether the caller asks for the packing that an array of the repository has."""
    if packing is None or own.dtype == "string":
        return False
    mine = packing_of(own.attributes, own.dtype)
    return np.dtype(own.dtype) == np.dtype(packing["dtype"]) and (mine.scale, mine.offset) == (
        float(packing["scale_factor"]),
        float(packing.get("add_offset", 0.0)),
    )


def _times_fit(own: SourceVariable, member: Member, name: str) -> list[SchemaIssue]:
    """Why times of a file cannot have the encoding of an array of the repository."""
    variable = member.variables[name]
    ours, theirs = find_time_units(own.attributes), find_time_units(variable.attributes)
    assert ours is not None and theirs is not None
    coordinate = member.coordinates.get(name)
    values = None if coordinate is None or variable.dims not in ((), (name,)) else coordinate.values
    try:
        choose_time_encoding(
            [
                SourceTimes(ours, None, own.dtype, None if values is None else np.zeros(0)),
                SourceTimes(theirs, None, variable.dtype, values),
            ]
        )
        if values is not None:
            no_time = packing_of(own.attributes, own.dtype).fill
            missing = packing_of(variable.attributes, variable.dtype).missing(values)
            convert_times(values, theirs, ours, own.dtype, missing=missing, no_time=no_time)
    except InvalidInputError as error:
        shown = f"{theirs.text} ({np.dtype(variable.dtype)})"
        return [_issue(member, name, "units", f"{ours.text} ({np.dtype(own.dtype)})", shown, str(error))]
    return []


def _same_grid(own: SourceVariable, variable: SourceVariable, member: Member, name: str) -> list[SchemaIssue]:
    """Check that a variable that is not joined has the repository's dimensions. Its values are compared later."""
    if variable.dims == (name,):
        return []
    if own.dims != variable.dims:
        advice = "rename the dimensions, or drop the variable (drop_variables)"
        return [_issue(member, name, "dimensions", str(own.dims), str(variable.dims), advice)]
    if own.shape != variable.shape:
        return [_issue(member, name, "shape", str(own.shape), str(variable.shape), "the grids differ")]
    return []


def _same_static(stored: ExistingArray, member: Member, name: str) -> list[SchemaIssue]:
    """Check that a coordinate that is not joined is the same in the repository."""
    coordinate = member.coordinates.get(name)
    if stored.values is None or coordinate is None or coordinate.values is None or not member.variables[name].dims:
        return []
    ours = np.asarray(stored.values).reshape(-1)
    theirs, reason = _as_stored(stored, member, name, coordinate.values)
    if reason is None and len(ours) == len(theirs) and bool(same_coordinates(ours, theirs).all()):
        return []
    ends = format_range(coordinate.first, coordinate.last, member.variables[name].attributes)
    found = f"{len(theirs)} values, {ends}"
    return [_issue(member, name, "values", f"the repository's {len(ours)} values", found, reason or "the grids differ")]


def _same_region(stored: ExistingArray, dims: TargetDimensions, member: Member, name: str) -> list[SchemaIssue]:
    """Check that the coordinate of a region is the same in the repository and in the files."""
    if stored.values is None:
        return []
    joined, first = dims.joined[name], dims.offset[name]
    ours = np.asarray(stored.values).reshape(-1)[first : first + joined.size]
    shown = f"cells {first} to {first + joined.size}"
    if len(ours) < joined.size:
        length = f"{len(stored.values)} cells"
        return [_issue(member, name, f"length of {name}", length, shown, "use append_dim to extend it")]
    theirs = joined.values()
    if theirs is None or not joined.size:
        return []
    if bool(same_coordinates(ours, theirs).all()):
        return []
    attributes = stored.variable().attributes
    expected = format_range(ours[0].item(), ours[-1].item(), attributes)
    found = format_range(theirs[0].item(), theirs[-1].item(), attributes)
    advice = f"the files belong elsewhere: region='auto' finds where, {shown} hold other values"
    return [_issue(member, name, "values", expected, found, advice)]


def _same_joined(stored: ExistingArray, dims: TargetDimensions, member: Member, name: str) -> list[SchemaIssue]:
    """Check that files are joined along the same coordinate as those of the repository, if they append along another.

    Its values say what the cells of the repository mean, so they are compared, never written.
    """
    theirs, ours = dims.joined[name].values(), stored.values
    if ours is not None and theirs is not None and len(ours) == len(theirs) and same_coordinates(ours, theirs).all():
        return []
    expected, found = "the same values as in the repository", f"{dims.joined[name].size} values that are not known"
    if ours is not None and theirs is not None and len(ours) and len(theirs):
        shown = [
            f"{len(each)} values, {format_range(each[0].item(), each[-1].item(), stored.variable().attributes)}"
            for each in (ours, theirs)
        ]
        expected, found = shown[0], shown[1]
    return [_issue(member, name, "values", expected, found, SEVERAL_DIMENSIONS)]


def _as_stored(
    stored: ExistingArray, member: Member, name: str, values: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], str | None]:
    """A file's coordinate in the encoding of the repository, or why this is not possible."""
    own, variable = stored.variable(), member.variables[name]
    ours, theirs = find_time_units(own.attributes), find_time_units(variable.attributes)
    if ours is None or theirs is None:
        return values, None
    try:
        return convert_times(values, theirs, ours, own.dtype), None
    except InvalidInputError as error:
        return values, str(error)


def _issue(member: Member, name: str, facet: str, expected: str, found: str, resolution: str) -> SchemaIssue:
    return SchemaIssue("error", member.file.url, name, facet, expected, found, resolution)
