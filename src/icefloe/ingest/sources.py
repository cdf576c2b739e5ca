"""The options of an ingest, and the expansion of paths, globs, directories, URLs and lists into source files."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.ingest.access import SourceAccess, local_path, normalise_url
from icefloe.ingest.source_model import SourceFile

Mode: TypeAlias = Literal["native", "virtual", "mixed"]
OnError: TypeAlias = Literal["fail", "skip"]
AppendOrder: TypeAlias = Literal["after", "any"]
Overlap: TypeAlias = Literal["error", "first", "last"]
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

    def __post_init__(self) -> None:
        _choose("mode", self.mode, ("native", "virtual", "mixed"))
        _choose("append_order", self.append_order, ("after", "any"))
        _choose("on_error", self.on_error, ("fail", "skip"))
        _choose("overlap", self.overlap, ("error", "first", "last"))
        if self.append_dim is not None and self.region is not None:
            raise InvalidInputError("give either append_dim or region. A region is a part of existing arrays")
        if self.mode == "virtual" and (self.chunks or self.codecs or self.dtypes or self.unpack or self.time_units):
            raise InvalidInputError(
                "mode='virtual' does not change the data. chunks, codecs, dtypes, unpack and time_units need "
                "mode='native' (or 'mixed' for small arrays)"
            )
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
        if isinstance(self.overlap_by, str) and self.overlap_by not in ("name", "time"):
            _check_pattern("pattern overlap_by", self.overlap_by, "the order of files (or use `name` or `time`)")


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


def natural_key(text: str) -> tuple[Any, ...]:
    """Return a sort key that orders `day9` before `day10`."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)


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
    access = access or SourceAccess()
    given = [sources] if isinstance(sources, (str, os.PathLike, SourceFile)) else list(sources)
    if not given:
        raise InvalidInputError("no sources were given")
    found: dict[str, SourceFile] = {}
    for source in given:
        if isinstance(source, SourceFile):
            found.setdefault(source.url, source)
            continue
        for file in _expand_one(os.fspath(source), access):
            found.setdefault(file.url, file)
    return sorted(found.values(), key=lambda file: natural_key(file.url))


def _expand_one(text: str, access: SourceAccess) -> Sequence[SourceFile]:
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


def _expand_glob(pattern: str, access: SourceAccess) -> Sequence[SourceFile]:
    if "://" not in pattern:
        names = glob.glob(os.path.expanduser(pattern), recursive=True)
        urls = [normalise_url(name) for name in names if _is_source(Path(name))]
        files = [
            file for url in urls for file in (_expand_plain(url, access) if _is_folder(url) else [access.describe(url)])
        ]
    elif (path := local_path(pattern)) is not None:
        return _expand_glob(str(path), access)
    else:
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rsplit("/", 1)[0]
        matcher = re.compile(_translate(pattern))
        below = access.list_files(fixed)
        files = [file for file in below if matcher.fullmatch(file.url)]
        stores = sorted(
            {u for f in below if f.url.endswith(STORE_MARKS) and matcher.fullmatch(u := f.url.rsplit("/", 1)[0])}
        )
        ordered = sorted(below, key=lambda file: file.url)
        files += [_store(url + "/", _below(url + "/", ordered)) for url in stores]
    if not files:
        raise ObjectNotFoundError(f"nothing matches {pattern}", url=pattern)
    return files


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


def _is_folder(url: str) -> bool:
    path = local_path(url)
    return path is not None and path.is_dir()


def _is_source(path: Path) -> bool:
    return path.is_file() or path.is_symlink() or any((path / mark).exists() for mark in STORE_MARKS)
