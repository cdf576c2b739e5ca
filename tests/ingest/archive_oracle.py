"""What xarray makes of a messy archive, and whether a refusal is right.

`check_archive` writes the files of an archive, ingests them in one way and compares every cell with what xarray reads
from the same files. Where the job refuses, xarray's own combine refuses too, or the reason is one that the page on the
pipeline lists and the description of the archive shows that it applies. Where xarray refuses and the job does not, the
archive has cells that no file has, or files without cells: the job leaves such cells missing, as its page says.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tests.ingest.messy_archives import MessyArchive, MessyFile, MessyVariable, read_with_xarray, write_file

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions


@dataclass(frozen=True, slots=True)
class Case:
    """One ingest of an archive: files that go to what `before` left."""

    files: tuple[MessyFile, ...]
    before: tuple[MessyFile, ...]
    options: dict[str, Any]
    times: tuple[tuple[str, ...], ...] = ()
    """The times of the files as xarray decodes them. Doubles may not tell two encodings of one hour alike."""

    @property
    def all(self) -> tuple[MessyFile, ...]:
        return (*self.before, *self.files)

    @property
    def names(self) -> set[str]:
        return {v.name for f in self.all for v in f.variables}

    @property
    def is_virtual(self) -> bool:
        return bool(self.options["mode"] == "virtual")

    def versions(self, name: str) -> list[MessyVariable]:
        return [v for f in self.all for v in f.variables if v.name == name]

    def differ(self, what: Callable[[MessyVariable], Any]) -> bool:
        """Whether the files differ in a fact of some variable."""
        return any(len({repr(what(v)) for v in self.versions(name)}) > 1 for name in self.names)


def _packing(variable: MessyVariable) -> Any:
    found = variable.attributes
    sign = (found.get("_Unsigned"), variable.dtype) if "_Unsigned" in found else None
    return [float(found.get(k, d)) for k, d in (("scale_factor", 1), ("add_offset", 0))], sign


def _missing(variable: MessyVariable) -> Any:
    # A fill value of the type's own kind or another one: NaN is NaN.
    return sorted(
        {
            str(float(x))
            for k in ("_FillValue", "missing_value")
            if k in variable.attributes
            for x in np.atleast_1d(variable.attributes[k])
        }
    )


def _layout(variable: MessyVariable) -> Any:
    return variable.chunks, variable.codec, variable.is_big_endian, variable.dtype


def _overlap(case: Case) -> bool:
    """Some files share some of their cells along a dimension, and not all."""
    for values in (case.times, [f.lat for f in case.files], [f.members for f in case.files]):
        kinds = sorted({tuple(sorted(v)) for v in values if v})
        if any(a[-1] >= b[0] for a, b in itertools.pairwise(kinds)):
            return True
    return False


def _same_place(case: Case) -> bool:
    """Some files hold the same variable at the same position, with other values or other missing ones."""
    seen: dict[Any, str] = {}
    for file in case.files:
        if file.is_broken:
            continue
        found = {(v.name, file.hours, file.tile): repr((file.seed, v)) for v in file.variables}
        if file.bounds != "none":
            # Tiles of one time share its bounds.
            found["time_bnds", file.hours, ()] = str(file.bounds_hours)
        if any(seen.setdefault(key, value) != value for key, value in found.items()):
            return True
    return False


def _same_cells(case: Case) -> bool:
    """Some files hold the same variable at some of the same cells."""
    seen: set[Any] = set()
    for file in case.files:
        if file.is_broken:
            continue
        cells = itertools.product({v.name for v in file.variables}, file.hours, file.lat, file.members or (None,))
        found = set(cells)
        if found & seen:
            return True
        seen |= found
    return False


def _lacks(case: Case) -> bool:
    """Some file has no value of a variable that another has; bounds are variables too."""
    has_bounds = {f.bounds != "none" for f in case.all}
    return len(has_bounds) > 1 or any({v.name for v in f.variables} != case.names for f in case.all)


def _holes(case: Case) -> bool:
    """Some cells come from no file."""
    grid = {(f.hours, f.tile) for f in case.all if f.hours}
    full = len({h for h, _ in grid}) * len({t for _, t in grid})
    return _lacks(case) or any(f.is_broken for f in case.all) or len(grid) < full


def _no_mark(case: Case) -> bool:
    """Some variable is of integers and does not say everywhere which number means missing."""
    versions = [v for n in case.names for v in case.versions(n)]
    # An array of floats that is there already may have been made with another fill value than NaN.
    is_bare = any((np.dtype(v.dtype).kind in "iu" or case.before) and not _missing(v) for v in versions)
    # An array that is there has the fill value that its first files gave it, whatever they declare as missing.
    return is_bare or any(f.bounds != "none" for f in case.all) or (bool(case.before) and not _is_region(case))


def _wide(case: Case) -> bool:
    """64-bit integers, beside which no float can stand for a missing value."""
    return any(
        "i8" in {v.dtype for v in case.versions(n)}
        and (_holes(case) or len({(v.dtype, repr(_missing(v)), repr(_packing(v))) for v in case.versions(n)}) > 1)
        for n in case.names
    )


def _earlier(case: Case) -> bool:
    now, before = [h for f in case.files for h in f.hours], [h for f in case.before for h in f.hours]
    return bool(now and before) and min(now) <= max(before)


def _units(file: MessyFile) -> Any:
    return file.unit, file.reference, file.calendar, file.time_dtype


def _other_times(case: Case) -> bool:
    return len({_units(f) for f in case.all}) > 1


def _inexact_times(case: Case) -> bool:
    """Hours as fractions of days are not exactly those that another unit counts."""
    return _other_times(case) and any(f.unit == "days" and f.time_dtype.startswith("f") for f in case.all)


def _other_dates(case: Case) -> bool:
    names = {f.calendar or "standard" for f in case.all}
    names = {"standard" if n in ("gregorian", "proleptic_gregorian") else n for n in names}
    return len(names) > 1


def _cannot_append(case: Case) -> bool:
    """A type, missing values or packing of the files are not those of the repository."""
    return bool(case.before) and (
        case.differ(lambda v: v.dtype)
        or case.differ(_missing)
        or case.differ(_packing)
        or _holes(case)
        # Attributes of Zarr are doubles, so that xarray decodes packed numbers of other formats in another type.
        or (_is_packed(case) and len({f.format.startswith("zarr") for f in case.all}) > 1)
    )


def _is_packed(case: Case) -> bool:
    return any("scale_factor" in v.attributes for n in case.names for v in case.versions(n))


def _cannot_reference(case: Case) -> bool:
    several = len({f.hours for f in case.all}) > 1 or len({f.tile for f in case.all}) > 1
    return case.is_virtual and (several or bool(case.before))


def _other_types(case: Case) -> bool:
    """A variable or coordinate has another type, or another order of bytes."""
    classic = {f.format == "netcdf3" for f in case.all}
    return (
        case.differ(lambda v: (v.dtype, v.is_big_endian))
        or len(classic) > 1
        or len({(f.time_dtype, f.lat_dtype) for f in case.all}) > 1
    )


def _other_chunks(case: Case) -> bool:
    """Chunks or codecs differ; a file without chunks of its own is one chunk as large as it is."""
    filled = [f for f in case.all if f.hours]
    # The formats have byte orders of their own, also for the coordinates of a file without cells.
    formats = {f.format for f in case.all}
    return case.differ(_layout) or len(formats) > 1 or len({(len(f.hours), f.tile) for f in filled}) > 1


def _is_region(case: Case) -> bool:
    return "region" in case.options


def _outside(case: Case) -> bool:
    """A region of other cells than the repository has there, or of a part of the tiles."""
    if not _is_region(case):
        return False
    known = sorted({h for f in case.before for h in f.hours})
    wanted = sorted({h for f in case.files for h in f.hours})
    runs = [known[i : i + len(wanted)] for i in range(len(known))]
    if case.options["region"] != "auto":
        runs = [known[slice(*case.options["region"]["time"])]]
    tiles = {f.tile for f in case.before}
    return wanted not in runs or len(tiles) > 1 or not _in_order(case)


def _other_tiles(case: Case) -> bool:
    """Files whose latitudes or members are not those of the repository."""
    now = {f.tile for f in case.files if not f.is_broken}
    return bool(case.before) and now != {f.tile for f in case.before if not f.is_broken}


def _in_order(case: Case) -> bool:
    hours = [h for f in case.before for h in f.hours]
    return hours == sorted(hours)


REASONS: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    (r"overlap along", _overlap),
    (r"at the same coordinates", _same_place),
    (r"position: expected one file, found also in", _same_cells),
    (r"packed numbers (would )?mean different values", lambda c: c.differ(_packing)),
    (r"missing variable|new variable", _lacks),
    (r"cannot append along", _earlier),
    (r"which have different dates", _other_dates),
    (r"no type holds the values of both|one that holds all values|of which some are missing and none is free", _wide),
    (r"does not fit the type", lambda c: _wide(c) or _cannot_append(c)),
    (r"a value that means missing", lambda c: _holes(c) and _no_mark(c)),
    (r"its fill value is an ordinary one", lambda c: _holes(c)),
    (r"one array has one type", lambda c: c.options["mode"] != "native" and _other_types(c)),
    # Another order of bytes is another codec, also of coordinates.
    (r"chunk bytes stay as they are", lambda c: c.is_virtual and (_other_chunks(c) or _other_types(c))),
    (r"times are not re-encoded by reference", lambda c: c.is_virtual and _other_times(c)),
    (r"references: expected possible", _cannot_reference),
    (r"calendar: .* the numbers do not mean the same", lambda c: c.is_virtual and len({f.calendar for f in c.all}) > 1),
    (r"the numbers do not mean the same", lambda c: c.differ(_missing) or c.differ(_packing)),
    (r"its values may not fit|do not fit|cannot be stored exactly as|mean missing in the array", _cannot_append),
    (r"the array has no missing value", _cannot_append),
    (r"not whole numbers|cannot be stored exactly", lambda c: bool(c.before) and _other_times(c)),
    (r"position is not known|position along", lambda c: any(f.is_broken for f in c.all)),
    (r"no source can be read|cannot be read", lambda c: any(f.is_broken for f in c.all)),
    (
        r"are not consecutive values of|the files belong elsewhere|the sources have|"
        r"the grids differ|[Uu]se append_dim",
        lambda c: _outside(c) or _other_tiles(c) or (_is_region(c) and _inexact_times(c)),
    ),
    (r"region writes into existing arrays", lambda c: _is_region(c) and _lacks(c)),
)
"""Why an ingest may be refused, as the page on the pipeline lists it, and whether an archive gives that reason."""


def find_unjustified(refused: str, case: Case) -> str | None:
    """The first line of a refusal that nothing in the archive explains; None where all are explained."""
    told = [line for line in refused.splitlines() if not line.startswith("the sources do not fit together")]
    lines = [line for line in told if re.search("|".join(r for r, _ in REASONS), line)]
    if not lines:
        return f"not a listed refusal: {refused}"
    for line in lines:
        if not any(re.search(reason, line) and applies(case) for reason, applies in REASONS):
            return line
    return None


def check_archive(folder: Path, archive: MessyArchive, ingest: Any = None) -> str:
    """Ingest an archive and compare it with xarray. Returns `equal` or the reason why it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Check(folder, archive, ingest).run()


class _Check:
    """One archive on its way."""

    def __init__(self, folder: Path, archive: MessyArchive, ingest: Any) -> None:
        self.archive, self.ingest = archive, ingest
        self.files = (*archive.files, *archive.corrections)
        self.paths = [write_file(folder, file) for file in self.files]
        self.parts = [None if f.is_broken else read_with_xarray(p, f) for p, f in zip(self.paths, self.files)]
        self.repository: Any = Repository.create(in_memory_storage()) if ingest is None else ingest.repository(folder)
        self.taken: list[int] = []
        self.containers: set[str] = set()

    def run(self) -> str:
        archive = self.archive
        count = len(archive.files)
        first = count - archive.appended
        steps: list[tuple[range, dict[str, Any]]] = [(range(first), {})]
        if archive.appended:
            steps.append((range(first, count), {"append_dim": "time"}))
        if archive.corrections:
            steps.append((range(count, len(self.files)), {"region": archive.region}))
        refused = ""
        for part, more in steps:
            refused = self._step(part, {**archive.options, **more}) or refused
            if not self.taken:
                break
        if self.taken:
            self._compare()
            if not refused and not archive.appended and not archive.corrections:
                self._compare_combined()
        return refused or "equal"

    def _step(self, part: range, options: dict[str, Any]) -> str:
        """One ingest; returns why it was refused."""
        before = self.repository.lookup_branch("main")
        times = tuple(tuple(_labels(p["time"].values)) for i in part if (p := self.parts[i]) is not None)
        case = Case(tuple(self.files[i] for i in part), tuple(self.files[i] for i in self.taken), options, times)
        try:
            result = self._ingest([self.paths[i] for i in part], options)
        except InvalidInputError as error:
            assert self.repository.lookup_branch("main") == before, "a refused ingest committed"
            unjustified = find_unjustified(str(error), case)
            if unjustified is not None and not self._xarray_refuses(part):
                raise AssertionError(f"refused without a reason: {unjustified}") from error
            return str(error)
        assert result.plan is not None
        self.containers.update(result.plan.containers)
        held = {i.file for i in result.plan.report.issues if "left out" in i.resolution}
        self.taken += [i for i in part if self.paths[i].as_uri() not in {h.rstrip("/") for h in held}]
        return ""

    def _ingest(self, paths: list[Path], options: dict[str, Any]) -> Any:
        authorised = self._reader()
        if self.ingest is not None:
            return self.ingest(paths, authorised, options)
        return ingest_local(paths, authorised, IngestOptions(**options))

    def _reader(self) -> Any:
        """The repository as one opens it who authorises its virtual chunks."""
        if not self.containers:
            return self.repository
        return Repository.open(self.repository.storage, authorize_virtual_chunk_access=dict.fromkeys(self.containers))

    def _xarray_refuses(self, part: Sequence[int]) -> bool:
        parts = [p for i in part if (p := self.parts[i]) is not None]
        try:
            combine_with_xarray(parts)
        except (ValueError, TypeError, OverflowError):
            return True
        return False

    def _compare(self) -> None:
        """Every cell of the repository is that of the last file that has it, or missing."""
        store = self._reader().readonly_session("main").store
        # Not in chunks: xarray cannot decode one in which all times of an uncommon calendar are missing.
        self.ours = xr.open_zarr(store, group=self.files[0].group or None, consolidated=False, chunks=None).load()
        ours = self.ours
        readable = [(i, p) for i in self.taken if (p := self.parts[i]) is not None]
        if not any(part.sizes["time"] for _, part in readable):
            assert not ours.sizes["time"]
            return
        labels = {str(d): _labels(ours[d].values) for d in ours.dims if d in ours.coords}
        for dim, found in labels.items():
            assert len(set(found)) == len(found), f"{dim} repeats values: {found}"
        parts = [(i, p, {d: _labels(p[d].values) for d in labels if d in p.coords}) for i, p in readable]
        self._compare_labels(labels, parts)
        names = {str(n) for _, p in readable for n in p.variables}
        assert {str(n) for n in ours.variables} == names
        for name in sorted(names - set(labels)):
            self._compare_variable(name, labels, parts)

    def _compare_labels(self, labels: dict[str, list[Any]], parts: list[Any]) -> None:
        for dim, found in labels.items():
            wanted = [x for i, _, own in parts for x in own[dim] if i < len(self.archive.files)]
            more = [x for x in found if x not in set(wanted)]
            if more:
                assert any(self.files[i].is_broken for i in self.taken), f"{dim} that no file has: {more}"
            assert set(wanted) <= set(found), f"{dim} of the files that is not there"
            if not self.archive.appended and dim != "lat":
                assert found == sorted(found), f"{dim} is not in order: {found}"

    def _compare_variable(self, name: str, labels: dict[str, list[Any]], parts: list[Any]) -> None:
        ours = self.ours[name]
        is_time = any(_is_times(p[name].values) for _, p, _ in parts if name in p.variables)
        wanted = np.full(ours.shape, None if is_time else np.nan, object if is_time else np.longdouble)
        for _, part, own in parts:
            if name not in part.variables:
                continue
            assert part[name].dims == ours.dims
            places = [
                [labels[d].index(x) for x in own[d]] if d in own else list(range(part.sizes[d]))
                for d in map(str, ours.dims)
            ]
            values = part[name].values
            wanted[np.ix_(*places)] = _dates(values) if is_time else values.astype(np.longdouble)
        got = _dates(ours.values) if is_time else ours.values.astype(np.longdouble)
        versions = [v for i in self.taken for v in self.files[i].variables if v.name == name]
        packed = any("scale_factor" in v.attributes or "add_offset" in v.attributes for v in versions)
        if packed and not self.archive.options.get("unpack"):
            # Zarr's attributes have no single precision: xarray decodes the same numbers in double.
            np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)
        having = [p for _, p, _ in sorted(parts, key=lambda part: part[0]) if name in p.variables]
        # Of a file without cells nothing is referenced, not even its attributes are taken.
        firsts = having[:1] + [p for p in having if p.sizes["time"] and not self._is_native][:1]
        assert ours.attrs.get("units") in [p[name].attrs.get("units") for p in firsts]
        assert ours.attrs.get("long_name") in [p[name].attrs.get("long_name") for p in firsts]

    @property
    def _is_native(self) -> bool:
        return bool(self.archive.options["mode"] == "native")

    def _compare_combined(self) -> None:
        """The same as xarray's own combine, where it has one."""
        parts = [p for i in self.taken if (p := self.parts[i]) is not None]
        try:
            theirs = combine_with_xarray(parts)
        except (ValueError, TypeError, OverflowError) as error:
            case = Case(tuple(self.files[i] for i in self.taken), (), self.archive.options)
            # Files that are the same are one file here. xarray has no order for them.
            is_repeated = _same_cells(case)
            if not is_repeated and not _holes(case) and all(p.sizes["time"] for p in parts):
                raise AssertionError(f"xarray refuses: {error}") from error
            return
        if any(self.files[i].is_broken for i in self.taken):
            return
        assert _labels(theirs["time"].values) == _labels(self.ours["time"].values)
        # The direction of a coordinate of one value a file is anybody's guess.
        theirs = theirs.sel({d: self.ours[d].values for d in ("lat", "member") if d in self.ours.dims})
        for name, values in theirs.data_vars.items():
            if _is_times(values.values):
                np.testing.assert_array_equal(_dates(self.ours[name].values), _dates(values.values), err_msg=str(name))
                continue
            got, wanted = (x.transpose(*values.dims).values.astype("f8") for x in (self.ours[name], values))
            np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=str(name))


def combine_with_xarray(parts: list[xr.Dataset]) -> xr.Dataset:
    """Files as xarray's own combine joins them; no cells and no coordinates are made up."""
    return xr.combine_by_coords(
        [p for p in parts if p.sizes["time"]] or parts,
        join="outer",
        data_vars="minimal",
        coords="minimal",
        compat="no_conflicts",
        combine_attrs="override",
    )  # type: ignore[return-value]


def _is_times(values: np.ndarray) -> bool:
    return values.dtype.kind in "MO"


def _labels(values: np.ndarray) -> list[Any]:
    """Values of a coordinate that can be compared, whichever class xarray decodes them to."""
    return _dates(values).tolist() if _is_times(values) else values.astype("f8").tolist()


def _dates(times: np.ndarray) -> np.ndarray:
    """Times as text; None where there is none."""
    found = np.full(times.shape, None, object)
    for place, time in np.ndenumerate(times):
        if isinstance(time, np.datetime64):
            found[place] = None if np.isnat(time) else str(time.astype("M8[us]"))[:26]
        elif hasattr(time, "isoformat"):
            found[place] = time.isoformat() if time.microsecond else f"{time.isoformat()}.000000"[:26]
    return found
