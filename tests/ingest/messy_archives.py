"""Archives of small, messy files, and what xarray makes of them.

`archives()` draws the description of an archive. `check_archive` writes its files, ingests them in one way and compares
every cell with what xarray reads from the same files: equal, or refused before anything was written, for a reason
that `REFUSALS` lists.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import xarray as xr
import zarr
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest.local import ingest_local
from icefloe.ingest.netcdf3_writer import write_netcdf3
from icefloe.ingest.options import IngestOptions

REFUSALS = (
    "overlap along",
    "at the same coordinates",
    "not monotone, or runs in different directions",
    "packed numbers mean different values",
    "packed numbers would mean different values",
    "missing variable",
    "new variable",
    "cannot append along",
    "do not have the same dates",
    "no type holds the values of both",
    "one that holds all values",
    "of which some are missing and none is free",
    "a value that means missing",
    "one array has one type",
    "chunk bytes stay as they are",
    "times are not re-encoded by reference",
    "references: expected possible",
    "the numbers do not mean the same",
    "do not fit",
    "its values may not fit",
    "no whole",
    "are not exact as",
    "the array has no missing value",
    "which mean missing in the array",
    "its fill value is an ordinary one",
    "dtype: expected",
    "length of",
    "the first file's",
    "text and numbers",
    "place is not known",
    "place along",
)
"""Why an ingest may be refused, as the page on the pipeline lists it."""


@dataclass(frozen=True, slots=True)
class MessyVariable:
    """A variable of one file: its stored numbers are drawn from the seed."""

    name: str
    dtype: str
    attributes: dict[str, Any] = field(default_factory=dict)
    chunks: int | None = None
    compressed: bool = False


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
    variables: tuple[MessyVariable, ...]
    group: str
    seed: int
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class MessyArchive:
    """Files, and how they are ingested."""

    files: tuple[MessyFile, ...]
    options: dict[str, Any]
    appended: int
    """So many of the last files are appended by a second ingest."""


_UNIT_HOURS = {"seconds": 1 / 3600, "minutes": 1 / 60, "hours": 1, "days": 24}
_INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8")


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


@st.composite
def archives(draw: st.DrawFn) -> MessyArchive:
    """An archive of one to four files that mostly fit together."""
    count = draw(st.integers(1, 4))
    oddity = draw(st.sampled_from(["none", "dtype", "fill", "units", "all", "all"]))
    kind = draw(st.sampled_from(["netcdf4", "netcdf4", "netcdf4", "netcdf3", "zarr2", "zarr3"]))
    calendar = draw(st.sampled_from([None, "standard", "gregorian", "proleptic_gregorian", "noleap", "360_day"]))
    dtypes = ("i1", "i2", "i4", "f4", "f8") if kind == "netcdf3" else (*_INTEGERS, "f4", "f8")
    names = draw(st.sampled_from([("v",), ("v", "w")]))
    base = {}
    for name in names:
        dtype = draw(st.sampled_from(dtypes))
        chunks, packed = draw(st.none() | st.integers(1, 3)), draw(st.booleans())
        base[name] = MessyVariable(name, dtype, _attributes(draw, dtype), chunks, packed and chunks is not None)
    unit, reference = draw(st.sampled_from(["hours", "days", "seconds"])), draw(_references())
    time_dtype = draw(st.sampled_from(["i4", "f8"] if kind == "netcdf3" else ["i4", "i8", "f8"]))
    lat, lat_dtype = draw(st.sampled_from([(1.0, 2.0), (0.5, -0.5, -1.5)])), draw(st.sampled_from(["f4", "f8"]))
    group = draw(st.sampled_from(["", "", "", "g", "g/h"])) if kind == "netcdf4" else ""
    step = draw(st.sampled_from([1, 6, 24]))
    files: list[MessyFile] = []
    hour = draw(st.integers(0, 5000))
    for number in range(count):
        odd = number > 0 and oddity == "all"
        # xarray cannot decode an empty time axis of another calendar.
        may_be_empty = number > 0 and calendar not in ("noleap", "360_day") and draw(st.integers(0, 9)) == 0
        length = draw(st.integers(0 if may_be_empty else 1, 4))
        variables = []
        for variable in base.values():
            if number and draw(st.integers(0, 14)) == 0:
                continue
            changed = variable
            if number and (oddity == "dtype" or odd) and draw(st.booleans()):
                changed = replace(changed, dtype=draw(st.sampled_from(dtypes)))
                changed = replace(changed, attributes=_recast(changed.attributes, changed.dtype))
            if number and (oddity == "fill" or odd) and draw(st.booleans()):
                changed = replace(changed, attributes=_attributes(draw, changed.dtype))
            variables.append(changed)
        own_unit, own_reference = unit, reference
        if number and (oddity == "units" or odd) and draw(st.booleans()):
            own_unit, own_reference = (
                draw(st.sampled_from(["minutes", "hours", "days", "seconds"])),
                draw(_references()),
            )
        own_dtype = draw(st.sampled_from(["i4", "f8"])) if odd else time_dtype
        hours = tuple(hour + step * i for i in range(length))
        if own_dtype != "f8" and not all(_is_whole(h, own_unit, own_reference, calendar) for h in hours):
            own_dtype = "f8"
        files.append(
            MessyFile(
                f"f{number}",
                kind,
                hours,
                own_unit,
                own_reference,
                calendar,
                own_dtype,
                lat,
                lat_dtype,
                tuple(variables),
                group,
                draw(st.integers(0, 9)),
            )
        )
        hour += step * length + (draw(st.sampled_from([0, 0, 0, step, 7 * step])) if length else 0)
        if draw(st.integers(0, 24)) == 0:
            hour -= step
    if draw(st.integers(0, 9)) == 0:
        files.reverse()
        files = [replace(f, name=f"f{i}") for i, f in enumerate(files)]
    appended = draw(st.integers(0, count - 1)) if draw(st.booleans()) else 0
    mode = draw(st.sampled_from(["native", "native", "virtual", "mixed"]))
    options: dict[str, Any] = {"mode": mode}
    if mode == "native":
        options["unpack"] = draw(st.booleans())
        if draw(st.booleans()):
            options["chunks"] = {"time": draw(st.integers(1, 5))}
    if mode == "mixed":
        options["native_below_bytes"] = draw(st.sampled_from([0, 1 << 20]))
    options["allow_missing"] = draw(st.booleans())
    if count > 1 and draw(st.integers(0, 9)) == 0:
        options["on_error"] = "skip"
        broken = draw(st.integers(0, count - 1))
        files[broken] = replace(files[broken], is_broken=True)
    if not any(f.variables for f in files):
        files[0] = replace(files[0], variables=tuple(base.values()))
    return MessyArchive(tuple(files), options, appended)


def _references() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["2000-01-01", "1900-01-01", "1970-01-01 00:00:00", "2000-01-02 06:00:00", "1-1-1 00:00:0.0"]
    )


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
    return np.array([(h + between) / _UNIT_HOURS[unit] for h in hours])


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


def write_file(folder: Path, file: MessyFile) -> Path:
    """One file of an archive."""
    time = _encode(file.hours, file.unit, file.reference, file.calendar).astype(file.time_dtype)
    times: dict[str, Any] = {"units": f"{file.unit} since {file.reference}"}
    if file.calendar is not None:
        times["calendar"] = file.calendar
    shape = (len(file.hours), len(file.lat))
    variables: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any]]] = {
        "time": (("time",), time, times),
        "lat": (("lat",), np.array(file.lat, file.lat_dtype), {"units": "degrees_north"}),
    }
    for variable in file.variables:
        variables[variable.name] = (
            ("time", "lat"), _numbers(variable, shape, file.seed), {"units": "K", **variable.attributes}
        )  # fmt: skip
    path = folder / f"{file.name}.{'zarr' if file.format.startswith('zarr') else 'nc'}"
    if file.format == "netcdf3":
        write_netcdf3(path, variables, {"title": "messy"}, record_dim="time")
    elif file.format == "netcdf4":
        _write_netcdf4(path, file, variables)
    else:
        _write_zarr(path, file, variables)
    if file.is_broken:
        if path.is_dir():
            (path / ("zarr.json" if file.format == "zarr3" else ".zgroup")).write_text("{")
        else:
            path.write_bytes(path.read_bytes()[:40])
    return path


def _write_netcdf4(path: Path, file: MessyFile, variables: dict[str, Any]) -> None:
    described = {v.name: v for v in file.variables}
    with netCDF4.Dataset(path, "w") as dataset:
        target = dataset.createGroup(file.group) if file.group else dataset
        target.createDimension("time", None)
        target.createDimension("lat", len(file.lat))
        for name, (dims, values, attributes) in variables.items():
            own = described.get(name)
            chunks = None if own is None or own.chunks is None else (own.chunks, len(file.lat))
            made = target.createVariable(
                name, values.dtype, dims, fill_value=attributes.get("_FillValue"), chunksizes=chunks,
                zlib=own is not None and own.compressed,
            )  # fmt: skip
            made.set_auto_maskandscale(False)
            made.setncatts({k: v for k, v in attributes.items() if k != "_FillValue"})
            made[:] = values


def _write_zarr(path: Path, file: MessyFile, variables: dict[str, Any]) -> None:
    version = int(file.format[-1])
    root = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
    described = {v.name: v for v in file.variables}
    for name, (dims, values, attributes) in variables.items():
        own = described.get(name)
        chunks = tuple(max(1, n) for n in values.shape)
        if own is not None and own.chunks is not None:
            chunks = (own.chunks, *chunks[1:])
        fill = attributes.get("_FillValue")
        made = root.create_array(
            name, shape=values.shape, chunks=chunks, dtype=values.dtype,
            fill_value=fill if version == 2 else 0, dimension_names=dims if version == 3 else None,
        )  # fmt: skip
        plain = {k: _plain(v) for k, v in attributes.items() if k != "_FillValue"}
        if version == 2:
            plain["_ARRAY_DIMENSIONS"] = list(dims)
        elif fill is not None:
            plain["_FillValue"] = xr.backends.zarr.FillValueCoder.encode(fill.item(), values.dtype)
        made.attrs.update(plain)
        made[...] = values


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read_with_xarray(path: Path, file: MessyFile) -> xr.Dataset:
    """A file as xarray decodes it."""
    if file.format.startswith("zarr"):
        return xr.open_zarr(path, consolidated=False).load()
    return xr.open_dataset(path, engine="netcdf4", group=file.group or None).load()


def combine_with_xarray(parts: list[xr.Dataset]) -> xr.Dataset:
    """Files joined in the order of their times, cells that none has missing."""
    by_times: dict[str, list[xr.Dataset]] = {}
    for part in parts:
        if part.sizes["time"]:
            by_times.setdefault(str(part.time.values.tolist()), []).append(part)
    # Files of the same times bring different variables.
    parts = [xr.merge(same, compat="override", join="override") for same in by_times.values()]
    parts = sorted(parts, key=lambda p: p.time.values[0])
    return xr.combine_nested(
        parts, "time", join="exact", data_vars="all", coords="minimal", compat="override", combine_attrs="override"
    )


def check_archive(folder: Path, archive: MessyArchive, ingest: Any = None) -> str:
    """Ingest an archive and compare it with xarray. Returns `equal` or the reason why it was refused."""
    paths = [write_file(folder, file) for file in archive.files]
    options = archive.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repository = Repository.create(in_memory_storage()) if ingest is None else ingest.repository(folder)
        first = len(paths) - archive.appended
        taken: list[int] = []
        containers: set[str] = set()
        refused = ""
        for part, more in ((range(first), {}), (range(first, len(paths)), {"append_dim": "time"})):
            if not part:
                continue
            before = repository.lookup_branch("main")
            try:
                result = _ingest(ingest, [paths[i] for i in part], repository, {**options, **more}, containers)
            except InvalidInputError as error:
                refused = str(error)
                assert repository.lookup_branch("main") == before, "a refused ingest committed"
                if not taken:
                    break
                continue
            assert result.plan is not None
            containers.update(result.plan.containers)
            held = {i.file for i in result.plan.report.issues if "left out" in i.resolution}
            taken += [i for i in part if paths[i].as_uri() not in {h.rstrip("/") for h in held}]
        if refused:
            assert any(reason in refused for reason in (*REFUSALS, *_broken(archive))), (
                f"not a listed refusal: {refused}"
            )
        if taken:
            _compare(folder, archive, paths, taken, repository, containers)
        return refused or "equal"


def _broken(archive: MessyArchive) -> tuple[str, ...]:
    return ("no source can be read", "cannot be read") if any(f.is_broken for f in archive.files) else ()


def _ingest(ingest: Any, paths: list[Path], repository: Any, options: dict[str, Any], containers: set[str]) -> Any:
    authorised = _reader(repository, containers)
    if ingest is not None:
        return ingest(paths, authorised, options)
    return ingest_local(paths, authorised, IngestOptions(**options))


def _reader(repository: Repository, containers: set[str]) -> Repository:
    """The repository as one opens it who authorises its virtual chunks."""
    if not containers:
        return repository
    return Repository.open(repository.storage, authorize_virtual_chunk_access=dict.fromkeys(containers))


def _compare(
    folder: Path, archive: MessyArchive, paths: list[Path], taken: list[int], repository: Any, containers: set[str]
) -> None:
    readable = [i for i in taken if not archive.files[i].is_broken]
    store = _reader(repository, containers).readonly_session("main").store
    ours = xr.open_zarr(store, group=archive.files[0].group or None, consolidated=False).load()
    parts = [read_with_xarray(paths[i], archive.files[i]) for i in readable]
    if not any(part.sizes["time"] for part in parts):
        assert not ours.sizes["time"]
        return
    theirs = combine_with_xarray(parts)
    assert set(ours.variables) == set(theirs.variables)
    left, right = _dates(ours.time.values), _dates(theirs.time.values)
    held = [i for i, date in enumerate(left) if date not in set(right)]
    if held:
        assert len(readable) < len(taken), f"times that no file has: {[left[i] for i in held]}"
    kept = [i for i in range(len(left)) if i not in set(held)]
    if not archive.appended:
        assert [left[i] for i in kept] == right
    order = [right.index(left[i]) for i in kept]
    assert sorted(order) == list(range(len(right)))
    np.testing.assert_array_equal(ours.lat.values, theirs.lat.values.astype(ours.lat.dtype))
    for name in theirs.data_vars:
        got, wanted = ours[name].values, theirs[name].values[order]
        if held:
            assert np.isnan(got[held].astype("f8")).all(), f"{name}: cells of an unreadable file are not missing"
        packed = any("scale_factor" in v.attributes or "add_offset" in v.attributes for f in archive.files
                     for v in f.variables if v.name == name)  # fmt: skip
        if packed and not archive.options.get("unpack"):
            # Zarr's attributes have no single precision: xarray decodes the same numbers in double.
            np.testing.assert_allclose(got[kept].astype("f8"), wanted.astype("f8"), rtol=1e-6, err_msg=str(name))
        else:
            wide = np.longdouble
            np.testing.assert_array_equal(got[kept].astype(wide), wanted.astype(wide), err_msg=str(name))
        first = next(p for p in parts if name in p)
        assert ours[name].attrs.get("units") == first[name].attrs.get("units")


def _dates(times: np.ndarray) -> list[str]:
    """Times as text, whichever class xarray decodes them to."""
    if times.dtype.kind == "M":
        return [str(t)[:26] for t in times.astype("M8[us]")]
    return [f"{t.isoformat()}.000000"[:26] if not t.microsecond else t.isoformat() for t in times]
