"""Archives of small, messy files: their description, how they are drawn, and how they are written.

`archives()` draws the description of an archive. The files of one archive are cut from a grid of times and, in some,
of tiles (parts of `lat`) or members. They mostly fit together. `write_file` writes a file of any of the formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cftime
import h5py
import netCDF4
import numcodecs
import numpy as np
import xarray as xr
import zarr
from hypothesis import strategies as st

from icefloe.testing.synthetic_weather import write_netcdf3


@dataclass(frozen=True, slots=True)
class MessyVariable:
    """A variable of one file: its stored numbers are drawn from the seed."""

    name: str
    dtype: str
    attributes: dict[str, Any] = field(default_factory=dict)
    chunks: int | None = None
    """Cells of a chunk along time; None for one chunk, or none at all."""
    codec: str = "none"
    is_big_endian: bool = False
    unwritten: int = 0
    """So many of its last times were never written: the format's fill value stands for them."""


@dataclass(frozen=True, slots=True)
class MessyFile:
    """One file of an archive: its times, their encoding, and its variables."""

    name: str
    format: str
    hours: tuple[int, ...]
    """Hours since 2000-01-01 in its calendar."""
    unit: str
    reference: str
    calendar: str | None
    time_dtype: str
    lat: tuple[float, ...]
    lat_dtype: str
    members: tuple[int, ...]
    """Values of the dimension `member`; none where the files have no such dimension."""
    variables: tuple[MessyVariable, ...]
    group: str
    seed: int
    bounds: str = "none"
    """`time_bnds`: none, plain (in the units of the time), or with units of its own."""
    is_unlimited: bool = True
    is_transposed: bool = False
    is_broken: bool = False
    bounds_hours: int = 1
    """How long after its beginning a time ends, as its bounds say."""

    @property
    def tile(self) -> tuple[Any, ...]:
        """What tells files of the same times apart."""
        return (self.lat, self.members)

    @property
    def dims(self) -> tuple[str, ...]:
        found = ("time", "member", "lat") if self.members else ("time", "lat")
        return found[::-1] if self.is_transposed else found


@dataclass(frozen=True, slots=True)
class MessyArchive:
    """Files, and how they are ingested."""

    files: tuple[MessyFile, ...]
    options: dict[str, Any]
    appended: int = 0
    """So many of the last files are appended by a second ingest."""
    corrections: tuple[MessyFile, ...] = ()
    """Files that are written over what is there, by another ingest."""
    region: Any = None
    """Where the corrections go."""


UNIT_HOURS = {"seconds": 1 / 3600, "minutes": 1 / 60, "hours": 1, "days": 24}
_INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8")
_CLASSIC = ("i1", "i2", "i4", "f4", "f8")
_CODECS = ("none", "none", "zlib", "shuffle", "checksum")


def _attributes(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    """CF attributes of a variable, for its type."""
    stored = np.dtype(dtype)
    near = st.integers(0 if stored.kind == "u" else -5, 20)
    found: dict[str, Any] = {}
    if stored.kind in "iu" and draw(st.integers(0, 3)) == 0:
        number = draw(st.sampled_from([np.float32, np.float64]))
        found["scale_factor"] = number(draw(st.sampled_from([0.5, 0.1])))
        if draw(st.booleans()):
            found["add_offset"] = number(draw(st.sampled_from([10.0, 273.15])))
    if draw(st.booleans()):
        found["_FillValue"] = stored.type(np.nan if stored.kind == "f" and draw(st.booleans()) else draw(near))
    if draw(st.integers(0, 4)) == 0:
        several = draw(st.lists(near, min_size=1, max_size=2))
        found["missing_value"] = np.array(several, dtype) if len(several) > 1 else stored.type(several[0])
    if stored.kind == "i" and stored.itemsize <= 2 and draw(st.integers(0, 7)) == 0:
        found["_Unsigned"] = "true"
        found.pop("missing_value", None)
    if draw(st.integers(0, 9)) == 0:
        found["valid_max"] = np.float64(np.inf)
    return found


def _variable(draw: st.DrawFn, name: str, dtypes: tuple[str, ...], *, is_classic: bool) -> MessyVariable:
    dtype = draw(st.sampled_from(dtypes))
    chunks = draw(st.none() | st.integers(1, 3))
    codec = "none" if chunks is None or is_classic else draw(st.sampled_from(_CODECS))
    is_big = not is_classic and draw(st.integers(0, 9)) == 0
    return MessyVariable(name, dtype, _attributes(draw, dtype), chunks, codec, is_big)


@dataclass(frozen=True, slots=True)
class _Base:
    """What the files of an archive have in common."""

    kind: str
    oddity: str
    variables: tuple[MessyVariable, ...]
    unit: str
    reference: str
    calendar: str | None
    time_dtype: str
    lat_dtype: str
    group: str
    step: int
    bounds: str
    is_unlimited: bool
    is_transposed: bool


def _base(draw: st.DrawFn) -> _Base:
    kinds = ["netcdf4", "netcdf4", "netcdf3", "zarr2", "zarr3", "hdf5", "several", "several"]
    kind = draw(st.sampled_from(kinds))
    is_classic = kind in ("netcdf3", "several")
    dtypes = _CLASSIC if is_classic else (*_INTEGERS, "f4", "f8")
    names = draw(st.sampled_from([("v",), ("v", "w")]))
    return _Base(
        kind=kind,
        oddity=draw(st.sampled_from(["none", "none", "dtype", "fill", "units", "layout", "all"])),
        variables=tuple(_variable(draw, name, dtypes, is_classic=is_classic) for name in names),
        unit=draw(st.sampled_from(["hours", "days", "seconds"])),
        reference=draw(_references()),
        calendar=draw(st.sampled_from([None, "standard", "gregorian", "proleptic_gregorian", "noleap", "360_day"])),
        time_dtype=draw(st.sampled_from(["i4", "f8"] if is_classic else ["i4", "i8", "f8"])),
        lat_dtype=draw(st.sampled_from(["f4", "f8"])),
        group=draw(st.sampled_from(["", "", "", "g", "g/h"])) if kind in ("netcdf4", "hdf5") else "",
        step=draw(st.sampled_from([1, 6, 24])),
        bounds=draw(st.sampled_from(["none", "none", "plain", "units"])),
        is_unlimited=draw(st.booleans()),
        is_transposed=not is_classic and draw(st.integers(0, 9)) == 0,
    )


def _file(draw: st.DrawFn, base: _Base, number: int, hours: tuple[int, ...], tile: tuple[Any, Any]) -> MessyFile:
    """A file that mostly is like the first one."""
    kind = base.kind
    if kind == "several":
        kind = draw(st.sampled_from(["netcdf4", "netcdf3", "zarr2", "zarr3", "hdf5"]))
    dtypes = _CLASSIC if base.kind in ("netcdf3", "several") else (*_INTEGERS, "f4", "f8")
    may = {k: number > 0 and base.oddity in (k, "all") for k in ("dtype", "fill", "units", "layout")}
    variables = []
    for variable in base.variables:
        if number and draw(st.integers(0, 14)) == 0:
            continue
        changed = variable
        if may["dtype"] and draw(st.booleans()):
            changed = replace(changed, dtype=draw(st.sampled_from(dtypes)))
            changed = replace(changed, attributes=_recast(changed.attributes, changed.dtype))
        if may["fill"] and draw(st.booleans()):
            changed = replace(changed, attributes=_attributes(draw, changed.dtype))
        if may["layout"] and draw(st.booleans()):
            chunks = draw(st.none() | st.integers(1, 3))
            codec = "none" if chunks is None or kind == "netcdf3" else draw(st.sampled_from(_CODECS))
            changed = replace(changed, chunks=chunks, codec=codec)
        # The NetCDF library mixes up cells that were never written where the unlimited dimension is not the first.
        if kind != "netcdf3" and not base.is_transposed and draw(st.integers(0, 14)) == 0:
            changed = replace(changed, unwritten=draw(st.integers(1, 3)))
        # xarray takes the fill value of unsigned integers for another number where they are big-endian.
        changed = replace(changed, is_big_endian=changed.is_big_endian and "_Unsigned" not in changed.attributes)
        variables.append(changed)
    unit, reference, calendar, bounds = base.unit, base.reference, base.calendar, base.bounds
    time_dtype, lat_dtype = base.time_dtype, base.lat_dtype
    if may["units"] and hours and draw(st.booleans()):
        unit, reference = draw(st.sampled_from(list(UNIT_HOURS))), draw(_references())
        time_dtype = draw(st.sampled_from(["i4", "f8"]))
        if draw(st.integers(0, 4)) == 0:
            calendar = draw(st.sampled_from([None, "standard", "proleptic_gregorian", "noleap"]))
    if may["dtype"] and draw(st.integers(0, 4)) == 0:
        lat_dtype = draw(st.sampled_from(["f4", "f8"]))
    # xarray cannot decode times that it leaves to cftime where the first and the last are missing.
    by_cftime = _is_for_cftime(calendar, reference) or _is_for_cftime(base.calendar, base.reference)
    if number and not by_cftime and draw(st.integers(0, 19)) == 0:
        bounds = draw(st.sampled_from(["none", "plain", "units"]))
    if time_dtype != "f8" and not all(_is_whole(h, unit, reference, calendar) for h in (*hours, 0)):
        time_dtype = "f8"
    return MessyFile(
        f"f{number}",
        kind,
        hours,
        unit,
        reference,
        calendar,
        time_dtype,
        tile[0],
        lat_dtype,
        tile[1],
        tuple(variables),
        base.group,
        draw(st.integers(0, 9)),
        bounds,
        base.is_unlimited,
        base.is_transposed,
    )


def _tiles(draw: st.DrawFn, shape: str) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """What the files of one time hold: all latitudes, parts of them, or members."""
    lat = draw(st.sampled_from([(1.0, 2.0), (0.5, -0.5, -1.5)]))
    if shape == "lat":
        cut = draw(st.integers(1, len(lat) - 1))
        return [(lat[:cut], ()), (lat[cut:], ())]
    if shape == "member":
        return [(lat, (1,)), (lat, draw(st.sampled_from([(2,), (2, 3), (5,)])))]
    return [(lat, (1, 2) if draw(st.integers(0, 9)) == 0 else ())]


@st.composite
def archives(draw: st.DrawFn) -> MessyArchive:
    """An archive of one to six files that mostly fit together."""
    base = _base(draw)
    shape = draw(st.sampled_from(["row", "row", "row", "lat", "member"]))
    tiles = _tiles(draw, shape)
    count = draw(st.integers(1, 4 if shape == "row" else 3))
    files: list[MessyFile] = []
    hour = draw(st.integers(0, 5000))
    for number in range(count):
        # xarray cannot decode an empty axis of times that it leaves to cftime.
        may_be_empty = number > 0 and shape == "row" and not _is_for_cftime(base.calendar, base.reference)
        length = draw(st.integers(0 if may_be_empty and draw(st.integers(0, 9)) == 0 else 1, 4))
        hours = tuple(hour + base.step * i for i in range(length))
        files += [_file(draw, base, len(files) + i, hours, tile) for i, tile in enumerate(tiles)]
        hour += base.step * length + (draw(st.sampled_from([0, 0, 0, base.step, 7 * base.step])) if length else 0)
        if draw(st.integers(0, 24)) == 0:
            hour -= base.step
    if len(files) > 2 and draw(st.integers(0, 9)) == 0:
        # A hole of the grid, or a gap.
        del files[draw(st.integers(1, len(files) - 1))]
    if draw(st.integers(0, 9)) == 0:
        files.reverse()
    parts = 1
    if len(base.variables) > 1 and draw(st.integers(0, 3)) == 0:
        files, parts = [part for file in files for part in _split_by_variable(draw, file)], 2
    files = [replace(f, name=f"f{i}") for i, f in enumerate(files)]
    second = draw(st.sampled_from(["nothing", "nothing", "append", "append", "correct"]))
    appended = draw(st.integers(0, count - 1)) * len(tiles) * parts if second == "append" else 0
    options = _options(draw)
    if len(files) > 1 and draw(st.integers(0, 9)) == 0:
        options["on_error"] = "skip"
        broken = draw(st.integers(0, len(files) - 1))
        files[broken] = replace(files[broken], is_broken=True)
    if not any(f.variables for f in files):
        files[0] = replace(files[0], variables=base.variables)
    appended = min(appended, len(files) - 1)
    corrections, region = _corrections(draw, base, files) if second == "correct" else ((), None)
    return MessyArchive(tuple(files), options, appended, corrections, region)


def _split_by_variable(draw: st.DrawFn, file: MessyFile) -> list[MessyFile]:
    """One file a variable. They have the same times, and bounds that are mostly the same."""
    parts = [replace(file, variables=(variable,)) for variable in file.variables] or [file]
    if draw(st.integers(0, 9)) == 0:
        parts[-1] = replace(parts[-1], bounds_hours=2)
    return parts


def _options(draw: st.DrawFn) -> dict[str, Any]:
    mode = draw(st.sampled_from(["native", "native", "virtual", "mixed"]))
    options: dict[str, Any] = {"mode": mode}
    if mode == "native":
        options["unpack"] = draw(st.booleans())
        if draw(st.booleans()):
            options["chunks"] = {"time": draw(st.integers(1, 5))}
    if mode == "mixed":
        options["native_below_bytes"] = draw(st.sampled_from([0, 1 << 20]))
    options["allow_missing"] = draw(st.booleans())
    return options


def _corrections(draw: st.DrawFn, base: _Base, files: list[MessyFile]) -> tuple[tuple[MessyFile, ...], Any]:
    """Files with new values of a run of the archive's times, seldom of times that it does not have."""
    hours = sorted({h for f in files for h in f.hours})
    if not hours:
        return (), None
    first = draw(st.integers(0, len(hours) - 1))
    end = draw(st.integers(first + 1, len(hours)))
    run = tuple(hours[first:end])
    if draw(st.integers(0, 9)) == 0:
        late = base.step * draw(st.integers(1, 3))
        run = tuple(h + late for h in run)
    one = draw(st.sampled_from(files))
    cuts = [run] if len(run) < 2 or draw(st.booleans()) else [run[:1], run[1:]]
    made = tuple(
        replace(_file(draw, base, 10 + i, cut, one.tile), seed=draw(st.integers(10, 19))) for i, cut in enumerate(cuts)
    )
    if not any(f.variables for f in made):
        return (), None
    return made, draw(st.sampled_from(["auto", "auto", {"time": (first, end)}]))


def _references() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["2000-01-01", "1900-01-01", "1970-01-01 00:00:00", "2000-01-02 06:00:00", "1-1-1 00:00:0.0"]
    )


def _is_for_cftime(calendar: str | None, reference: str) -> bool:
    """Whether xarray leaves such times to cftime."""
    return calendar in ("noleap", "360_day") or reference.startswith("1-1-1")


def _recast(attributes: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Attributes whose numbers are of another type; those that it cannot hold are left out."""
    found = dict(attributes)
    for name in ("_FillValue", "missing_value"):
        if name in found:
            with np.errstate(invalid="ignore"):
                cast = np.asarray(found[name]).astype(dtype)
            if np.array_equal(cast.astype("f8"), np.asarray(found[name]).astype("f8"), equal_nan=True):
                found[name] = cast[()] if cast.ndim == 0 else cast
            else:
                del found[name]
    if np.dtype(dtype).kind != "i":
        found.pop("_Unsigned", None)
    if np.dtype(dtype).kind == "f":
        found.pop("scale_factor", None)
        found.pop("add_offset", None)
    return found


def _encode(hours: tuple[int, ...], unit: str, reference: str, calendar: str | None) -> np.ndarray:
    """Hours since 2000-01-01 in other units, as doubles."""
    name = calendar or "standard"
    epoch = cftime.datetime(2000, 1, 1, calendar=name)
    zero = cftime.num2date(0, f"hours since {reference}", name, only_use_cftime_datetimes=True)
    between = (epoch - zero).total_seconds() / 3600
    return np.array([(h + between) / UNIT_HOURS[unit] for h in hours])


def _is_whole(hour: int, unit: str, reference: str, calendar: str | None) -> bool:
    value = float(_encode((hour,), unit, reference, calendar)[0])
    return value == int(value) and abs(value) < 2**31


def _numbers(variable: MessyVariable, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, sum(map(ord, variable.name))])
    stored = np.dtype(variable.dtype)
    numbers = rng.integers(0 if stored.kind == "u" else -6, 22, shape).astype(stored)
    if numbers.size and stored.kind in "iu":
        # A number that only this type holds, so that narrowing shows.
        numbers.reshape(-1)[-1] = np.iinfo(stored).max if stored.itemsize < 8 else 2**40 + 1
    if numbers.size and stored.kind == "f":
        numbers = numbers + stored.type(0.1)
        numbers.reshape(-1)[-1] = 1e300 if stored.itemsize == 8 else 1e30
    return numbers


def _contents(file: MessyFile) -> dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any]]]:
    """Every variable of a file: dimensions, values, attributes."""
    time = _encode(file.hours, file.unit, file.reference, file.calendar).astype(file.time_dtype)
    times: dict[str, Any] = {"units": f"{file.unit} since {file.reference}"}
    if file.calendar is not None:
        times["calendar"] = file.calendar
    own = dict(times)
    if file.bounds != "none":
        times["bounds"] = "time_bnds"
    latitudes: dict[str, Any] = {"units": "degrees_north"}
    if file.seed % 2:
        # xarray gives this attribute to every float that it writes.
        latitudes["_FillValue"] = np.dtype(file.lat_dtype).type(np.nan)
        if np.dtype(file.time_dtype).kind == "f":
            times["_FillValue"] = np.dtype(file.time_dtype).type(np.nan)
    sizes = {"time": len(file.hours), "member": len(file.members), "lat": len(file.lat)}
    variables: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any]]] = {
        "time": (("time",), time, times),
        "lat": (("lat",), np.array(file.lat, file.lat_dtype), latitudes),
    }
    if file.members:
        variables["member"] = (("member",), np.array(file.members, "i4"), {})
    if file.bounds != "none":
        ends = tuple(h + file.bounds_hours for h in file.hours)
        dtype = file.time_dtype
        if dtype != "f8" and not all(_is_whole(h, file.unit, file.reference, file.calendar) for h in ends):
            dtype = "f8"
        after = _encode(ends, file.unit, file.reference, file.calendar)
        both = np.stack([_encode(file.hours, file.unit, file.reference, file.calendar), after], 1)
        attributes = own if file.bounds == "units" else {}
        variables["time_bnds"] = (("time", "nv"), both.astype(dtype), attributes)
    for variable in file.variables:
        values = _numbers(variable, tuple(sizes[d] for d in file.dims), file.seed)
        if variable.is_big_endian:
            values = values.astype(values.dtype.newbyteorder(">"))
        variables[variable.name] = (file.dims, values, {"units": "K", "long_name": file.name, **variable.attributes})
    return variables


def write_file(folder: Path, file: MessyFile) -> Path:
    """One file of an archive."""
    variables = _contents(file)
    path = folder / f"{file.name}.{'zarr' if file.format.startswith('zarr') else 'nc'}"
    if file.format == "netcdf3":
        record = "time" if file.is_unlimited or not file.hours else None
        write_netcdf3(path, variables, {"title": "messy"}, record_dim=record)
    elif file.format == "netcdf4":
        _write_netcdf4(path, file, variables)
    elif file.format == "hdf5":
        _write_hdf5(path, file, variables)
    else:
        _write_zarr(path, file, variables)
    if file.is_broken:
        if path.is_dir():
            (path / ("zarr.json" if file.format == "zarr3" else ".zgroup")).write_text("{")
        else:
            path.write_bytes(path.read_bytes()[:40])
    return path


def _chunks(own: MessyVariable | None, dims: tuple[str, ...], values: np.ndarray) -> tuple[int, ...] | None:
    """Chunk lengths where the variable has any."""
    if own is None or own.chunks is None:
        return None
    return tuple(max(1, min(own.chunks, max(n, 1)) if d == "time" else n) for d, n in zip(dims, values.shape))


def _written(own: MessyVariable | None, dims: tuple[str, ...], values: np.ndarray) -> tuple[slice, ...]:
    """The part of a variable that is written."""
    if own is None or not own.unwritten or "time" not in dims:
        return (slice(None),) * values.ndim
    return tuple(
        slice(0, max(0, n - own.unwritten)) if d == "time" else slice(None) for d, n in zip(dims, values.shape)
    )


def _write_netcdf4(path: Path, file: MessyFile, variables: dict[str, Any]) -> None:
    described = {v.name: v for v in file.variables}
    with netCDF4.Dataset(path, "w") as dataset:
        target = dataset.createGroup(file.group) if file.group else dataset
        for dims, values, _ in variables.values():
            for dim, size in zip(dims, values.shape):
                if dim not in target.dimensions:
                    is_open = dim == "time" and (file.is_unlimited or not size)
                    target.createDimension(dim, None if is_open else size)
        for name, (dims, values, attributes) in variables.items():
            own = described.get(name)
            codec = own.codec if own is not None else "none"
            made = target.createVariable(
                name,
                values.dtype,
                dims,
                fill_value=attributes.get("_FillValue"),
                chunksizes=_chunks(own, dims, values),
                zlib=codec in ("zlib", "shuffle"),
                shuffle=codec == "shuffle",
                fletcher32=codec == "checksum",
                endian="big" if own is not None and own.is_big_endian else "native",
            )
            made.set_auto_maskandscale(False)
            made.setncatts({k: v for k, v in attributes.items() if k != "_FillValue"})
            part = _written(own, dims, values)
            made[part] = values[part]


def _write_hdf5(path: Path, file: MessyFile, variables: dict[str, Any]) -> None:
    """A file as programs write it that know HDF5 and its dimension scales only."""
    described = {v.name: v for v in file.variables}
    with h5py.File(path, "w", track_order=True) as root:
        target = root.create_group(file.group, track_order=True) if file.group else root
        for name, (dims, values, attributes) in variables.items():
            own = described.get(name)
            codec = own.codec if own is not None else "none"
            chunks = _chunks(own, dims, values)
            given: dict[str, Any] = {}
            if 0 in values.shape:
                given["maxshape"] = tuple(None if d == "time" else n for d, n in zip(dims, values.shape))
            if chunks is not None:
                given.update(chunks=chunks, fletcher32=codec == "checksum")
                given.update(
                    {"compression": "gzip", "shuffle": codec == "shuffle"} if codec in ("zlib", "shuffle") else {}
                )
            if attributes.get("_FillValue") is not None:
                given["fillvalue"] = attributes["_FillValue"]
            made = target.create_dataset(name, shape=values.shape, dtype=values.dtype, **given)
            part = _written(own, dims, values)
            if values[part].size:
                made[part] = values[part]
            for key, value in attributes.items():
                made.attrs[key] = np.asarray(value, values.dtype) if key == "_FillValue" else value
        sizes = {d: n for dims, values, _ in variables.values() for d, n in zip(dims, values.shape)}
        for dim, size in sizes.items():
            if dim not in variables:
                target.create_dataset(dim, shape=(size,), dtype="f4")
                target[dim].make_scale(f"This is a netCDF dimension but not a netCDF variable.{size:10d}")
            else:
                target[dim].make_scale(dim)
        for name, (dims, _, _) in variables.items():
            for axis, dim in enumerate(dims):
                if name != dim:
                    target[name].dims[axis].attach_scale(target[dim])


_ZARR2 = {"none": None, "zlib": numcodecs.Zlib(1), "shuffle": numcodecs.Blosc(), "checksum": numcodecs.Zstd(1)}
_ZARR3: dict[str, Any] = {
    "none": None,
    "zlib": zarr.codecs.GzipCodec(),
    "shuffle": zarr.codecs.BloscCodec(typesize=1),
    "checksum": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
}


def _write_zarr(path: Path, file: MessyFile, variables: dict[str, Any]) -> None:
    version = int(file.format[-1])
    root = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
    described = {v.name: v for v in file.variables}
    for name, (dims, values, attributes) in variables.items():
        own = described.get(name)
        chunks = _chunks(own, dims, values) or tuple(max(1, n) for n in values.shape)
        codec = own.codec if own is not None else "none"
        fill = attributes.get("_FillValue")
        made = root.create_array(
            name,
            shape=values.shape,
            chunks=chunks,
            dtype=values.dtype,
            compressors=(_ZARR2 if version == 2 else _ZARR3)[codec],
            fill_value=fill if version == 2 else 0,
            dimension_names=dims if version == 3 else None,
        )
        plain = {k: _plain(v) for k, v in attributes.items() if k != "_FillValue"}
        if version == 2:
            plain["_ARRAY_DIMENSIONS"] = list(dims)
        elif fill is not None:
            plain["_FillValue"] = xr.backends.zarr.FillValueCoder.encode(fill.item(), values.dtype)
        made.attrs.update(plain)
        part = _written(own, dims, values)
        if values[part].size:
            made[part] = values[part]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read_with_xarray(path: Path, file: MessyFile) -> xr.Dataset:
    """A file as xarray decodes it."""
    if file.format.startswith("zarr"):
        return xr.open_zarr(path, consolidated=False).load()
    return xr.open_dataset(path, engine="netcdf4", group=file.group or None).load()
