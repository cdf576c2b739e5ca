"""The arrays of the target: kind, shape, chunks, type and document of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from icefloe.ingest.array_plan import ArrayKind, ArrayPlan, choose_chunks, native_codecs
from icefloe.ingest.cf import format_range, is_time_units, packing_of, unpacked_dtype
from icefloe.ingest.chunk_grids import is_contiguous_chunking
from icefloe.ingest.comparison import find_byte_difference
from icefloe.ingest.existing import Existing, ExistingArray
from icefloe.ingest.members import Member
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.placement import JoinedDimension
from icefloe.ingest.schema_report import SchemaIssue
from icefloe.ingest.source_model import IDENTITY_ATTRIBUTES, SourceVariable
from icefloe.ingest.zarr_documents import array_document, fill_attribute, fill_value_document, parse_fill_attribute

COORDINATE_CHUNK = 1 << 13
"""Cells in a chunk of a native coordinate: a year of hours, still small when a few more are appended."""
_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")


@dataclass(frozen=True, slots=True)
class TargetDimensions:
    """The joined dimensions, and where each starts in the target."""

    offset: Mapping[str, int]
    joined: Mapping[str, JoinedDimension]

    def length(self, name: str) -> int:
        return self.offset[name] + self.joined[name].size


def plan_array(
    path: str, name: str, members: Sequence[Member], dims: TargetDimensions, options: IngestOptions, existing: Existing
) -> tuple[ArrayPlan | None, list[SchemaIssue]]:
    """One array, or None when it is there already and nothing of it is written."""
    variable = members[0].variables[name]
    joined = tuple(d for d in variable.dims if d in dims.joined)
    stored = existing.arrays.get(path)
    if stored is not None:
        return _plan_existing(stored, variable, members, dims, joined, options, path, name)
    if options.region is not None:
        issue = _issue(members[0], name, "array", "in the repository", "absent", "region writes into existing arrays")
        return None, [issue]
    shape = tuple(dims.length(d) if d in joined else n for d, n in zip(variable.dims, variable.shape, strict=True))
    kind, template, issues = _choose_kind(variable, name, members, dims, joined, shape, options)
    if kind == "virtual":
        array = _virtual_array(path, template, shape, joined)
    else:
        array = _native_array(path, name, variable, members, shape, joined, dims, options)
    return array, issues


def _virtual_array(path: str, variable: SourceVariable, shape: tuple[int, ...], joined: tuple[str, ...]) -> ArrayPlan:
    fill = variable.fill_value if variable.fill_value is not None else fill_value_document(variable.dtype, None)
    document = array_document(
        shape=shape, dtype=variable.dtype, chunks=variable.chunks, codecs=variable.codecs, fill_value=fill,
        attributes=variable.attributes, dims=variable.dims,
    )  # fmt: skip
    return ArrayPlan(
        path, "virtual", variable.dims, shape, variable.chunks, variable.dtype, variable.attributes, fill, document,
        joined, variable,
    )  # fmt: skip


def _native_array(
    path: str,
    name: str,
    variable: SourceVariable,
    members: Sequence[Member],
    shape: tuple[int, ...],
    joined: tuple[str, ...],
    dims: TargetDimensions,
    options: IngestOptions,
) -> ArrayPlan:
    attributes = dict(variable.attributes)
    packing = packing_of(attributes, variable.dtype)
    dtype = variable.dtype
    fill: Any = variable.fill_value
    if options.unpack and not packing.is_plain:
        dtype = unpacked_dtype(dtype, attributes)
        attributes = {k: v for k, v in attributes.items() if k not in _PACKING}
        attributes["_FillValue"] = fill_attribute(dtype, np.nan)
        fill = "NaN"
    wanted = options.dtypes.get(name, options.dtypes.get(path))
    if wanted is not None and dtype != "string":
        dtype, fill, attributes = _retyped(np.dtype(wanted).str, dtype, fill, attributes)
    if dtype != "string":
        dtype = np.dtype(dtype).newbyteorder("<").str
    if is_time_units(attributes.get("units")):
        units = dims.joined[name].units if name in dims.joined else options.time_units
        attributes["units"] = units or attributes["units"]
    chunks = choose_chunks(replace(variable, dtype=dtype), shape, joined, options.chunks)
    if variable.dims in ((), (name,)):
        chunks = tuple(max(1, min(options.chunks.get(d, COORDINATE_CHUNK), COORDINATE_CHUNK)) for d in variable.dims)
        chunks = tuple(min(c, max(1, n)) if not joined else c for c, n in zip(chunks, shape, strict=True))
    fill = fill if fill is not None else fill_value_document(dtype, None)
    document = array_document(
        shape=shape, dtype=dtype, chunks=chunks, codecs=options.codecs or native_codecs(dtype), fill_value=fill,
        attributes=attributes, dims=variable.dims,
    )  # fmt: skip
    return ArrayPlan(path, "native", variable.dims, shape, chunks, dtype, attributes, fill, document, joined, variable)


def _retyped(wanted: str, dtype: str, fill: Any, attributes: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """Another data type, with the fill value and its attribute in the new type's spelling."""
    if "_FillValue" in attributes:
        value = parse_fill_attribute(dtype, attributes["_FillValue"])
        attributes["_FillValue"] = fill_attribute(wanted, value)
        return wanted, fill_value_document(wanted, value), attributes
    number = fill if isinstance(fill, (int, float)) else float(str(fill or 0).replace("Infinity", "inf"))
    return wanted, fill_value_document(wanted, number), attributes


def _choose_kind(
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    shape: tuple[int, ...],
    options: IngestOptions,
) -> tuple[ArrayKind, SourceVariable, list[SchemaIssue]]:
    if options.mode == "native":
        return "native", variable, []
    is_coordinate = variable.dims in ((), (name,))
    size = int(np.prod(shape, dtype=np.int64)) * (
        16 if variable.dtype == "string" else np.dtype(variable.dtype).itemsize
    )
    if options.mode == "mixed" and (is_coordinate or size < options.native_below_bytes):
        return "native", variable, []
    template, reason = fit_chunks(variable, name, members, dims, joined)
    reason = next((m.variables[name].not_virtual for m in members if m.variables[name].not_virtual), None) or reason
    if reason is None and options.mode == "mixed":
        reason = find_byte_difference(variable, members, name)
    if reason is None:
        return "virtual", template, []
    if is_coordinate:
        note = _issue(members[0], name, "references", "possible", reason, "the coordinate is stored by value")
        return "native", variable, [replace(note, severity="note")]
    if options.mode == "mixed":
        note = _issue(members[0], name, "references", "possible", reason, "the array is written by value")
        return "native", variable, [replace(note, severity="handled")]
    return "virtual", template, [_issue(members[0], name, "references", "possible", reason, "use mode='mixed'")]


def fit_chunks(
    variable: SourceVariable, name: str, members: Sequence[Member], dims: TargetDimensions, joined: tuple[str, ...]
) -> tuple[SourceVariable, str | None]:
    """The variable with chunks that lie on one grid over all files, or why there is no such grid."""
    chunks = list(variable.chunks)
    for axis, dim in enumerate(variable.dims):
        if dim not in joined:
            continue
        blocks = dims.joined[dim].blocks
        starts = [dims.offset[dim] + b.start for b in blocks]
        if variable.layout == "contiguous" and axis == 0:
            # Row-major bytes can be cut anywhere along the first dimension: the longest run that fits every file.
            step = int(np.gcd.reduce(np.array([chunks[0], *starts, *(b.size for b in blocks[:-1])])))
            if is_contiguous_chunking(variable.shape[1:], variable.chunks[1:]):
                chunks[0] = max(1, step)
        chunk = chunks[axis]
        for start, block in zip(starts, blocks, strict=True):
            if start % chunk:
                return replace(variable, chunks=tuple(chunks)), (
                    f"{block.urls[0]} starts at cell {start} of {dim}, within a chunk of {chunk} cells"
                )
    return replace(variable, chunks=tuple(chunks)), _uncuttable(tuple(chunks), members, name)


def _uncuttable(chunks: tuple[int, ...], members: Sequence[Member], name: str) -> str | None:
    """Why some file's unchunked values cannot be cut into these chunks as runs of bytes."""
    checked: set[int] = set()
    for member in members:
        variable = member.variables[name].in_file()
        own = chunks[len(chunks) - len(variable.shape) :]
        if id(member.variables[name]) in checked or variable.layout not in ("contiguous", "records"):
            continue
        checked.add(id(member.variables[name]))
        fits = is_contiguous_chunking(variable.shape, own)
        if variable.layout == "records":
            fits = own[0] == 1 and is_contiguous_chunking((1, *variable.shape[1:]), own)
        if not fits:
            return f"chunks {own} of the {variable.shape} values in {member.file.url} are not runs of bytes"
    return None


def _plan_existing(
    stored: ExistingArray,
    variable: SourceVariable,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    options: IngestOptions,
    path: str,
    name: str,
) -> tuple[ArrayPlan | None, list[SchemaIssue]]:
    """Extend an array of the repository, or write into it, as its document says."""
    own = stored.variable()
    if not joined:
        return None, _same_static(stored, members[0], name)
    if own.dims != variable.dims:
        issue = _issue(members[0], name, "dimensions", str(own.dims), str(variable.dims), "rename the dimensions")
        return None, [issue]
    shape = tuple(max(n, dims.length(d)) if d in joined else n for d, n in zip(own.dims, own.shape, strict=True))
    issues: list[SchemaIssue] = []
    for dim, have, given, length in zip(own.dims, own.shape, variable.shape, shape, strict=True):
        if dim not in joined and have != given:
            issues.append(_issue(members[0], name, f"length of {dim}", str(have), str(given), "the grids differ"))
        if dim in joined and dim != options.append_dim and length > have:
            found = f"cells up to {length}"
            issues.append(_issue(members[0], name, f"length of {dim}", str(have), found, "use append_dim to extend it"))
    is_virtual, template, found_issues = _existing_kind(own, variable, name, members, dims, joined, options)
    issues += found_issues
    array = ArrayPlan(
        path, "virtual" if is_virtual else "native", own.dims, shape, own.chunks, own.dtype, own.attributes,
        own.fill_value, stored.resized(shape), joined, template, is_new=False,
    )  # fmt: skip
    if not is_virtual:
        issues += _existing_values_fit(own, variable, members[0], name)
    return array, issues


def _existing_kind(
    own: SourceVariable,
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    options: IngestOptions,
) -> tuple[bool, SourceVariable, list[SchemaIssue]]:
    if options.mode == "native" or variable.dims in ((), (name,)):
        return False, variable, []
    template, reason = fit_chunks(variable, name, members, dims, joined)
    reason = variable.not_virtual or reason
    if options.mode == "mixed":
        reason = reason or find_byte_difference(variable, members, name)
    if variable.layout == "contiguous" and is_contiguous_chunking(variable.shape[1:], own.chunks[1:]):
        template = replace(template, chunks=own.chunks)
    for facet, ours, theirs in (
        ("data type", own.dtype, variable.dtype),
        ("chunks", own.chunks, template.chunks),
        ("codecs", [c["name"] for c in own.codecs], [c["name"] for c in variable.codecs]),
        ("packing", packing_of(own.attributes, own.dtype), packing_of(variable.attributes, variable.dtype)),
    ):
        if ours != theirs and repr(ours) != repr(theirs):
            reason = reason or f"the array's {facet} is {ours}, the file's {theirs}"
    if reason is None:
        return True, template, []
    if options.mode == "mixed":
        return False, variable, []
    return True, template, [_issue(members[0], name, "references", "possible", reason, "use mode='mixed' or 'native'")]


def _existing_values_fit(own: SourceVariable, variable: SourceVariable, member: Member, name: str) -> list[SchemaIssue]:
    issues = []
    ours, theirs = packing_of(own.attributes, own.dtype), packing_of(variable.attributes, variable.dtype)
    if not ours.is_plain and (ours.scale, ours.offset) != (theirs.scale, theirs.offset):
        issues.append(
            _issue(member, name, "packing", str(ours), str(theirs), "packed numbers would mean different values")
        )
    units, found = own.attributes.get("units"), variable.attributes.get("units")
    if units != found and not (is_time_units(units) and is_time_units(found)):
        issues.append(_issue(member, name, "units", str(units), str(found), "the numbers do not mean the same"))
    for key in sorted(IDENTITY_ATTRIBUTES & own.attributes.keys() & variable.attributes.keys()):
        ours_is, theirs_is = own.attributes[key], variable.attributes[key]
        if ours_is != theirs_is:
            issues.append(_issue(member, name, key, str(ours_is), str(theirs_is), "the numbers do not mean the same"))
    plain = "string" not in (own.dtype, variable.dtype)
    unpacks = ours.is_plain and not theirs.is_plain
    if plain and not unpacks and not np.can_cast(np.dtype(variable.dtype), np.dtype(own.dtype), "same_kind"):
        issues.append(_issue(member, name, "dtype", own.dtype, variable.dtype, "the values do not fit the array"))
    return issues


def _same_static(stored: ExistingArray, member: Member, name: str) -> list[SchemaIssue]:
    coordinate = member.coordinates.get(name)
    if stored.values is None or coordinate is None or coordinate.values is None or not member.variables[name].dims:
        return []
    ours, theirs = np.asarray(stored.values).reshape(-1), coordinate.values
    equal = len(ours) == len(theirs) and (
        np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=1e-6, atol=1e-9)
        if ours.dtype.kind in "iuf" and theirs.dtype.kind in "iuf"
        else np.array_equal(ours, theirs)
    )
    if equal:
        return []
    ends = format_range(coordinate.first, coordinate.last, member.variables[name].attributes)
    found = f"{len(theirs)} values, {ends}"
    return [_issue(member, name, "values", f"the repository's {len(ours)} values", found, "the grids differ")]


def _issue(member: Member, name: str, facet: str, expected: str, found: str, resolution: str) -> SchemaIssue:
    return SchemaIssue("error", member.file.url, name, facet, expected, found, resolution)
