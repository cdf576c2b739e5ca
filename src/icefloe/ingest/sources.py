"""The options of an ingest, the files that sources stand for, and the coordinates in their names."""

from __future__ import annotations

import contextlib
import datetime as dt
import fnmatch
import glob
import hashlib
import importlib
import inspect
import itertools
import marshal
import os
import re
import stat
import string
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import numpy as np

from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.ingest.access import SourceAccess, describe_paths, local_path, normalise_url
from icefloe.ingest.source_files import SourceFiles, in_natural_order
from icefloe.ingest.source_model import SourceFile

Mode: TypeAlias = Literal["native", "virtual", "mixed"]
OnError: TypeAlias = Literal["fail", "skip"]
AppendOrder: TypeAlias = Literal["after", "any"]
Overlap: TypeAlias = Literal["error", "first", "last"]
Direction: TypeAlias = Literal["ascending", "descending"]
Longitudes: TypeAlias = Literal["0..360", "-180..180"]
NamedValues: TypeAlias = Callable[[str], Mapping[str, Any]]
Region: TypeAlias = "Mapping[str, tuple[int, int] | slice] | Literal['auto']"


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How sources become arrays.

    Parameters
    ----------
    mode
        `native` decodes values and writes new chunks. `virtual` writes references only. `mixed` writes coordinates and
        small arrays natively and the rest as references.
    concat_dims
        Dimensions along which files are concatenated. None detects them from the coordinates.
    append_dim
        Extend the arrays of the repository along this dimension.
    append_order
        `after`: appended coordinates must follow those of the repository. `any`: they must only be new.
    region
        Write into existing arrays: [first, end) by dimension, or `"auto"` to find the region from the coordinates.
    group
        The target group.
    group_pattern
        A regular expression that is searched in each URL. Its first group is the name of a group below `group`.
    variables
        Only these variables and the coordinates they need. The names are those of the sources.
    drop_variables
        Leave out these variables.
    rename
        New names of variables and dimensions.
    chunks
        Native mode: chunk length by dimension.
    codecs
        Native mode: codecs as in zarr.json, with the array-to-bytes codec.
    dtypes
        Native mode: data type by target variable. Values that do not fit are an error.
    unpack
        Native mode: apply scale_factor and add_offset instead of keeping packed integers.
    time_units
        Native mode: CF units of all time coordinates. None uses those of the repository, or units that fit all files.
    allow_missing
        A variable can be absent in some files or in the repository. Its cells are then missing.
    unchecked
        Continue if the coordinates of the repository cannot be read and compared. Variables without a joined dimension
        are not compared either.
    on_error
        What happens with an unreadable file: `fail`, or `skip`. The region of a skipped file is missing if it is known.
    native_below_bytes
        Mixed mode: smaller arrays are native.
    task_bytes
        Approximate decoded bytes of a native task.
    files_per_task
        The largest number of files of a virtual task.
    container_prefix
        Virtual mode: the URL prefix of the container of the sources.
    format
        The parser. None detects it from the bytes.
    overlap
        What happens if several files have the same variables at the same coordinates: `error`, or the values of the
        `first` or the `last` of these files are used.
    overlap_by
        The order of files that overlap: by `name`, by modification `time`, by the first group of a regular expression
        that is searched in the URL, or by a function of the URL. Equal ones are ordered by name.
    pattern
        Coordinates in the names of files: a pattern of the last parts of each URL, or a function that returns values by
        dimension for a URL. Files are stacked along these dimensions. `t2m_{time:%Y%m%d}.nc` has times,
        `{member:d}/*_{step:d}h.nc` has whole numbers, `{model}.nc` has texts. `{x:f}` is a number, `{year:4d}` has four
        digits, `*` is any text without a slash.
    sort
        Sort every file along these dimensions: `ascending` or `descending` by dimension.
    flip
        Reverse every file along these dimensions.
    longitudes
        Convert longitudes to `0..360` or `-180..180` degrees, and sort every file along them.
    tolerance
        The largest difference between coordinates of different files that are the same, as one number for all
        dimensions except times, or by dimension. The coordinates of the repository or of the first file are used.
    preprocess
        A function that gets the `xarray.Dataset` of every file and returns the one to use, or its name as
        `module:function`. Variables have the values that xarray shows. It must be importable or picklable on all
        workers. A virtual ingest refuses it.
    pack
        Native mode: store variables as packed integers, by target variable: `dtype`, `scale_factor`, `add_offset` and
        `_FillValue`. Values are rounded to the scale. Values out of range are an error.

    Examples
    --------
    >>> IngestOptions(mode="virtual", append_dim="time").append_order
    'after'
    """

    mode: Mode = "native"
    concat_dims: tuple[str, ...] | None = None
    append_dim: str | None = None
    append_order: AppendOrder = "after"
    region: Region | None = None
    group: str = ""
    group_pattern: str | None = None
    variables: tuple[str, ...] | None = None
    drop_variables: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    codecs: tuple[Mapping[str, Any], ...] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    unpack: bool = False
    time_units: str | None = None
    allow_missing: bool = False
    unchecked: bool = False
    on_error: OnError = "fail"
    native_below_bytes: int = 1 << 20
    task_bytes: int = 128 << 20
    files_per_task: int = 32
    container_prefix: str | None = None
    format: str | None = None
    overlap: Overlap = "error"
    overlap_by: str | Callable[[str], Any] = "name"
    pattern: str | NamedValues | None = None
    sort: Mapping[str, Direction] = field(default_factory=dict)
    flip: tuple[str, ...] = ()
    longitudes: Longitudes | None = None
    tolerance: float | Mapping[str, float] | None = None
    pack: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preprocess: Callable[[Any], Any] | str | None = None

    def __post_init__(self) -> None:
        _choose("mode", self.mode, ("native", "virtual", "mixed"))
        if self.append_dim is not None and not isinstance(self.append_dim, str):
            raise InvalidInputError(
                f"append_dim is {self.append_dim!r}, expected one name: an ingest extends arrays along one dimension. "
                "Use sync, which extends them along all dimensions along which files differ, or along those in "
                "concat_dims"
            )
        _choose("append_order", self.append_order, ("after", "any"))
        _choose("on_error", self.on_error, ("fail", "skip"))
        _choose("overlap", self.overlap, ("error", "first", "last"))
        if self.append_dim is not None and self.region is not None:
            raise InvalidInputError("give either append_dim or region. A region is a part of existing arrays")
        changing = ("chunks", "codecs", "dtypes", "unpack", "time_units", "pack", "preprocess")
        if self.mode == "virtual" and any(getattr(self, name) for name in changing):
            raise InvalidInputError(
                f"mode='virtual' does not change the data. {', '.join(changing)} need mode='native' (or 'mixed' for "
                "small arrays)"
            )
        for direction in self.sort.values():
            _choose("sort", direction, ("ascending", "descending"))
        if self.longitudes is not None:
            _choose("longitudes", self.longitudes, ("0..360", "-180..180"))
        for limit in self.tolerance.values() if isinstance(self.tolerance, Mapping) else (self.tolerance or 0,):
            if not limit >= 0:
                raise InvalidInputError(f"the tolerance is {limit}, expected a number of at least 0")
        for name, packing in self.pack.items():
            _check_packing(name, packing)
        for name, length in self.chunks.items():
            if length < 1:
                raise InvalidInputError(f"the chunk length of dimension {name} is {length}, expected at least 1")
        for name, dtype in self.dtypes.items():
            try:
                np.dtype(dtype)
            except TypeError as error:
                raise InvalidInputError(f"{dtype!r} (for {name}) is not a data type") from error
        if self.group_pattern is not None:
            _check_pattern("group pattern", self.group_pattern, "the name of the group")
        if isinstance(self.pattern, str):
            parse_name_pattern(self.pattern)
        if isinstance(self.overlap_by, str) and self.overlap_by not in ("name", "time"):
            _check_pattern("pattern overlap_by", self.overlap_by, "the order of files (or use `name` or `time`)")

    @property
    def function(self) -> Callable[[Any], Any] | None:
        """The function `preprocess`, imported if it was given by its name."""
        return import_function(self.preprocess) if isinstance(self.preprocess, str) else self.preprocess

    def recorded(self) -> dict[str, Any]:
        """Return the options that change the cells of a source. A catalogue of sources keeps them.

        Returns
        -------
        dict
            The options, as JSON.

        Examples
        --------
        >>> IngestOptions(flip=("lat",)).recorded()
        {'flip': ['lat']}
        """
        found: dict[str, Any] = {"sort": dict(self.sort), "flip": list(self.flip), "longitudes": self.longitudes}
        if (function := self.function) is not None:
            found["preprocess"] = identify_function(function)
        return {name: value for name, value in found.items() if value}

    def identity(self) -> str:
        """Return a hash of the options that decide about the arrays. The size of tasks does not.

        Returns
        -------
        str
            The hash.

        Examples
        --------
        >>> IngestOptions(task_bytes=1).identity() == IngestOptions().identity()
        True
        """
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in own.items() if name not in ("task_bytes", "files_per_task")}
        text = _function_text({**own, "preprocess": self.function})
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def import_function(name: str) -> Callable[[Any], Any]:
    """Return the function `module:function`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"the function {name!r} cannot be imported as module:function: {error}") from error
    if not callable(found):
        raise InvalidInputError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


def identify_function(function: Any) -> str:
    """Return the name of a function and a hash of its source text, defaults, closure and arguments.

    Other functions that it calls are not part of it.
    """
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    owner = inner if hasattr(inner, "__qualname__") else type(inner)
    digest = hashlib.blake2b(_function_text(function).encode(), digest_size=8).hexdigest()
    return f"{owner.__module__}:{owner.__qualname__} {digest}"


def _function_text(value: Any) -> str:
    """Return a text that is the same in every process, and differs if a function or a value differs."""
    if isinstance(value, partial):
        return f"partial({_function_text([value.func, *value.args, value.keywords])})"
    if isinstance(value, MethodType):
        return f"method({_function_text([value.__func__, value.__self__])})"
    if isinstance(value, FunctionType):
        try:
            text = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            text = repr(marshal.dumps(value.__code__))
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return f"{text}{_function_text([value.__defaults__, value.__kwdefaults__, cells])}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_function_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_function_text(each)}' for key, each in sorted(value.items()))}}}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.blake2b(value.tobytes()).hexdigest()}"
    text = repr(value)
    # The representation of other objects contains their address.
    if " at 0x" not in text:
        return text
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    with contextlib.suppress(OSError, TypeError):
        name = textwrap.dedent(inspect.getsource(type(value)))
    return f"{name}{_function_text(vars(value)) if hasattr(value, '__dict__') else ''}"


def _check_packing(name: str, packing: Mapping[str, Any]) -> None:
    unknown = packing.keys() - {"dtype", "scale_factor", "add_offset", "_FillValue"}
    if unknown or "dtype" not in packing or "scale_factor" not in packing:
        raise InvalidInputError(
            f"pack of {name} has {sorted(packing)}, expected dtype, scale_factor, and perhaps add_offset and _FillValue"
        )
    dtype, fill = np.dtype(packing["dtype"]), packing.get("_FillValue")
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    if limits is None or (fill is not None and not limits.min <= fill <= limits.max):
        raise InvalidInputError(f"pack of {name}: {dtype} is not a type of integers that holds its _FillValue {fill}")
    if not (np.isfinite(packing["scale_factor"]) and packing["scale_factor"]):
        raise InvalidInputError(f"pack of {name}: the scale_factor is {packing['scale_factor']}")


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")


Sources: TypeAlias = "str | os.PathLike[str] | SourceFile | Iterable[str | os.PathLike[str] | SourceFile]"

DATA_ENDINGS = (
    ".nc",
    ".nc3",
    ".nc4",
    ".cdf",
    ".h5",
    ".hdf5",
    ".he5",
    ".hdf",
    ".tif",
    ".tiff",
    ".grib",
    ".grib2",
    ".grb",
    ".grb2",
)
STORE_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def _check_pattern(what: str, pattern: str, purpose: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise InvalidInputError(f"the {what} {pattern!r} is wrong: {error}") from error
    if groups < 1:
        raise InvalidInputError(f"the {what} {pattern!r} has no group in parentheses for {purpose}")


def expand_sources(sources: Sources, access: SourceAccess | None = None) -> list[SourceFile]:
    """Return every source file once, in natural order.

    Parameters
    ----------
    sources
        Files, Zarr stores, globs (`*`, `?`, `[..]`, `**`), directories (their data files), or text files (`.txt`,
        `.list`) with one source per line and comments after `#`.
    access
        How sources are read. The default uses the environment.

    Returns
    -------
    list of SourceFile
        The files.

    Raises
    ------
    InvalidInputError
        No sources are given.
    ObjectNotFoundError
        A file does not exist, or a glob or directory has no files.

    Examples
    --------
    >>> for day in (10, 9):
    ...     _ = Path(f"day{day}.nc").write_bytes(b"CDF")
    >>> [file.name for file in expand_sources("day*.nc")]
    ['day9.nc', 'day10.nc']
    """
    found: dict[str, SourceFile] = {}
    for file in _expand(sources, access or SourceAccess()):
        found.setdefault(file.url, file)
    return [found[url] for url in in_natural_order(found)]


def find_files(sources: Sources, access: SourceAccess | None = None) -> SourceFiles:
    """Return what `expand_sources` does as columns. Few files of a glob are Python objects at the same time."""
    return SourceFiles.of(_expand(sources, access or SourceAccess())).in_natural_order()


def _expand(sources: Sources, access: SourceAccess) -> Iterator[SourceFile]:
    """Yield the files of all sources. A file may be repeated."""
    given = [sources] if isinstance(sources, (str, os.PathLike, SourceFile)) else list(sources)
    if not given:
        raise InvalidInputError("no sources were given")
    for each in given:
        yield from [each] if isinstance(each, SourceFile) else _expand_one(os.fspath(each), access)


def _expand_one(text: str, access: SourceAccess) -> Iterable[SourceFile]:
    if not text.strip():
        raise InvalidInputError("a source is an empty string. Give a file, a folder ('.' for this one) or a URL")
    if text.endswith((".txt", ".list")) and not glob.has_magic(text):
        lines = access.read(normalise_url(text)).decode("utf-8").splitlines()
        entries = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not entries:
            raise InvalidInputError(f"the list {text} contains no sources", url=text)
        return [file for entry in entries for file in _expand_one(entry, access)]
    # A path with such characters may also be a plain file name.
    if glob.has_magic(text) and ("://" in text or not Path(text).exists()):
        return _expand_glob(text, access)
    return _expand_plain(normalise_url(text), access)


def _expand_glob(pattern: str, access: SourceAccess) -> Iterable[SourceFile]:
    files: Iterator[SourceFile]
    if "://" not in pattern:
        files = _describe_matches(glob.iglob(os.path.expanduser(pattern), recursive=True), access)
    elif (path := local_path(pattern)) is not None:
        return _expand_glob(str(path), access)
    else:
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rsplit("/", 1)[0]
        matcher = re.compile(_translate(pattern))
        below = access.list_files(fixed)
        matching = [file for file in below if matcher.fullmatch(file.url)]
        stores = sorted(
            {u for f in below if f.url.endswith(STORE_MARKS) and matcher.fullmatch(u := f.url.rsplit("/", 1)[0])}
        )
        ordered = sorted(below, key=lambda file: file.url)
        files = itertools.chain(matching, (_store(url + "/", _below(url + "/", ordered)) for url in stores))
    first = next(files, None)
    if first is None:
        raise ObjectNotFoundError(f"nothing matches {pattern}", url=pattern)
    return itertools.chain([first], files)


def _translate(pattern: str) -> str:
    """Translate a glob over URLs to a regular expression. `*` stays within a directory, `**` does not."""
    pieces = []
    for piece in re.split(r"(\*\*/?|\*|\?|\[[^\]]*\])", pattern):
        if piece.startswith("**"):
            pieces.append("(?:.*/)?" if piece.endswith("/") else ".*")
        elif piece == "*":
            pieces.append("[^/]*")
        elif piece == "?":
            pieces.append("[^/]")
        elif piece.startswith("["):
            pieces.append(fnmatch.translate(piece).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z"))
        else:
            pieces.append(re.escape(piece))
    return "".join(pieces)


def _expand_plain(url: str, access: SourceAccess) -> Sequence[SourceFile]:
    path = local_path(url)
    if path is not None and not path.is_dir():
        return [access.describe(url)]
    if path is None and not url.endswith("/"):
        try:
            return [access.describe(url)]
        except ObjectNotFoundError:
            pass
    below = access.list_files(url)
    if not below and path is not None:
        raise ObjectNotFoundError(f"the folder {url} is empty", url=url)
    if not below:
        raise ObjectNotFoundError(f"there is no file and no folder {url}", url=url)
    root = url.rstrip("/") + "/"
    if any(file.url[len(root) :] in STORE_MARKS for file in below):
        return [_store(root, below)]
    files = [file for file in below if file.url.lower().endswith(DATA_ENDINGS)]
    stores = sorted({f.url.rsplit("/", 1)[0] + "/" for f in below if f.url.endswith(STORE_MARKS)}, key=len)
    outer: list[str] = []
    for store in stores:
        if not any(store.startswith(other) for other in outer):
            outer.append(store)
    files = [f for f in files if not any(f.url.startswith(store) for store in outer)]
    files += [s for store in outer for s in _expand_plain(store, access)]
    if not files:
        raise ObjectNotFoundError(
            f"the folder {url} has no data files ({', '.join(DATA_ENDINGS)}) and no Zarr stores. Give the files, or "
            "use a glob",
            url=url,
        )
    return files


def _store(root: str, below: Sequence[SourceFile]) -> SourceFile:
    """Return a Zarr store. Its size and time change with its chunks, so that a changed store is ingested again."""
    return SourceFile(
        root, sum(f.size_bytes for f in below), None, max((f.last_modified or 0 for f in below), default=0)
    )


def _below(root: str, ordered: Sequence[SourceFile]) -> Sequence[SourceFile]:
    """Return the files of a directory from files that are sorted by URL."""
    first = bisect_left(ordered, root, key=lambda file: file.url)
    end = bisect_left(ordered, root[:-1] + chr(ord("/") + 1), key=lambda file: file.url)
    return ordered[first:end]


def _describe_matches(paths: Iterable[str], access: SourceAccess) -> Iterator[SourceFile]:
    """Yield the files among local paths, and the sources of folders that are Zarr stores or links."""
    for path, file, status in describe_paths(paths):
        if status is not None and stat.S_ISREG(status.st_mode):
            yield file
        elif os.path.islink(path) or any(os.path.exists(os.path.join(path, mark)) for mark in STORE_MARKS):
            yield from _expand_plain(file.url, access)


# -- coordinates in names ---------------------------------------------------------------------------------------------

_DIRECTIVES = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{2}",
    "d": r"\d{2}",
    "j": r"\d{3}",
    "H": r"\d{2}",
    "M": r"\d{2}",
    "S": r"\d{2}",
    "f": r"\d{1,6}",
    "b": "[^/\\W\\d_]+",
    "B": "[^/\\W\\d_]+",
}
"""What the directives of `datetime.strptime` match. Those that depend on a week or a zone are not supported."""
_TIME_UNITS = (("f", "microseconds"), ("S", "seconds"), ("M", "minutes"), ("H", "hours"))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class NamedValue:
    """The coordinate of a file along a dimension that its name or a function gives."""

    value: int | float | str
    units: str | None = None
    """CF units, if it is a time or a duration."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern such as `t2m_{time:%Y%m%d}.nc`, as a regular expression with a group for every value.

    `groups` has the dimension of each group, and its kind: `d`, `f`, `s`, or a directive of `strptime`.
    """

    text: str
    expression: re.Pattern[str]
    groups: tuple[tuple[str, str], ...]

    def values(self, url: str) -> dict[str, NamedValue]:
        """Return the values in the name of a file, by dimension."""
        match = self.expression.search(unquote(url).rstrip("/"))
        if match is None:
            raise InvalidInputError(f"{url} does not match the pattern {self.text!r}", url=url, pattern=self.text)
        found: dict[str, dict[str, str]] = {}
        for (dim, kind), text in zip(self.groups, match.groups(), strict=True):
            parts = found.setdefault(dim, {})
            if parts.setdefault(kind, text) != text:
                raise InvalidInputError(
                    f"{url} has two values of {dim} by the pattern {self.text!r}: {parts[kind]} and {text}",
                    url=url,
                    pattern=self.text,
                )
        return {dim: self._value(url, dim, parts) for dim, parts in found.items()}

    def _value(self, url: str, dim: str, parts: Mapping[str, str]) -> NamedValue:
        kind, text = next(iter(parts.items()))
        if not kind.startswith("%"):
            return NamedValue({"d": int, "f": float, "s": str}[kind](text))
        try:
            time = _parse_time(parts)
        except ValueError as error:
            raise InvalidInputError(
                f"{url} has no time {dim} by the pattern {self.text!r}: {error}", url=url, pattern=self.text
            ) from error
        unit = next((unit for letter, unit in _TIME_UNITS if f"%{letter}" in parts), "days")
        return NamedValue((time - _EPOCH) // dt.timedelta(**{unit: 1}), f"{unit} since 1970-01-01")


_NUMBERED = ("%Y", "%m", "%d", "%H", "%M", "%S")
"""The directives of a time that consists of numbers. `datetime` is much faster with them than `strptime`."""


def _parse_time(parts: Mapping[str, str]) -> dt.datetime:
    """Return the time of the texts of directives."""
    if "%Y" in parts and all(kind in _NUMBERED for kind in parts):
        numbers = [int(parts[kind]) if kind in parts else least for kind, least in zip(_NUMBERED, _LEAST, strict=True)]
        if numbers[5] < 60:
            return dt.datetime(*numbers, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]
    return dt.datetime.strptime(f"{' '.join(parts.values())} +0000", f"{' '.join(parts)} %z")


_LEAST = (1900, 1, 1, 0, 0, 0)
"""What `strptime` uses for directives that a pattern does not have."""


@lru_cache(maxsize=64)
def parse_name_pattern(text: str) -> NamePattern:
    """Parse a pattern of names.

    Raises
    ------
    InvalidInputError
        The pattern has no dimension, or a kind of value that does not exist.
    """

    def wrong(reason: str) -> InvalidInputError:
        return InvalidInputError(f"the pattern {text!r} is wrong: {reason}", pattern=text)

    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise wrong(str(error)) from error
    expression: list[str] = []
    groups: list[tuple[str, str]] = []
    for literal, name, spec, conversion in pieces:
        expression += ["[^/]*" if piece == "*" else re.escape(piece) for piece in re.split(r"(\*)", literal)]
        if name is None:
            continue
        if not name.isidentifier() or conversion:
            raise wrong(f"{name!r} is not the name of a dimension. Use * for text that does not matter")
        parts = list(_name_parts(spec or "s", wrong))
        expression += [part if kind is None else f"({part})" for kind, part in parts]
        kinds = [kind for kind, _ in parts if kind is not None]
        groups += [(name, kind) for kind in kinds]
        if len({kind.startswith("%") or kind for dim, kind in groups if dim == name}) > 1:
            raise wrong(f"{name} is of several kinds")
    if not groups:
        raise wrong("it has no dimension such as {time:%Y%m%d}")
    return NamePattern(text, re.compile(f"(?:^|/){''.join(expression)}$"), tuple(groups))


def _name_parts(spec: str, wrong: Callable[[str], InvalidInputError]) -> Iterator[tuple[str | None, str]]:
    """Yield the kinds and regular expressions of a field. Text between directives of a time has no kind."""
    if "%" in spec:
        for piece in re.split("(%.)", spec):
            if not piece.startswith("%") or piece == "%%":
                yield None, re.escape(piece.replace("%%", "%"))
            elif piece[1:] in _DIRECTIVES:
                yield piece, _DIRECTIVES[piece[1:]]
            else:
                raise wrong(f"{piece} is not one of {', '.join(f'%{each}' for each in _DIRECTIVES)}")
        return
    match = re.fullmatch(r"0?(\d*)([dfs])", spec)
    if match is None or (match[1] and match[2] != "d"):
        raise wrong(f"{spec!r} is not a kind of value. Use d, 4d, f, s, or directives of strptime such as %Y%m%d")
    if match[2] == "d":
        yield "d", rf"\d{{{match[1]}}}" if match[1] else r"[-+]?\d+"
    else:
        yield match[2], r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?" if match[2] == "f" else "[^/]+?"


def name_values(url: str, pattern: str | NamedValues) -> dict[str, NamedValue]:
    """Return the coordinates of a file that its name or a function gives, by dimension."""
    if isinstance(pattern, str):
        return parse_name_pattern(pattern).values(url)
    found = pattern(url)
    if not isinstance(found, Mapping) or not found or not all(isinstance(name, str) for name in found):
        raise InvalidInputError(f"the function of names returned {found!r} for {url}, expected values by dimension")
    return {dim: _named_value(value, dim, url) for dim, value in found.items()}


def _named_value(value: Any, dim: str, url: str) -> NamedValue:
    """Return a value of a function as a number or a text, and the units of times and durations."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    if isinstance(value, dt.date | dt.timedelta):
        value = np.datetime64(value, "us") if isinstance(value, dt.date) else np.timedelta64(value)
    if isinstance(value, np.generic) and value.dtype.kind in "mM" and not np.isnat(value):
        for code, unit in (("s", "seconds"), ("us", "microseconds"), ("ns", "nanoseconds")):
            rounded = value.astype(f"{value.dtype.kind}8[{code}]")
            if rounded == value:
                units = f"{unit} since 1970-01-01" if value.dtype.kind == "M" else unit
                return NamedValue(int(rounded.astype(np.int64)), units)
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, int | float | str) and not isinstance(plain, bool) and plain == plain:
        return NamedValue(plain)
    raise InvalidInputError(
        f"the function of names returned {value!r} as {dim} of {url}, expected a number, a text or a time", url=url
    )
