"""Which files a person means: paths, globs, folders, URLs, lists in a text file."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.ingest.access import SourceAccess, local_path, normalise_url
from icefloe.ingest.source_model import SourceFile

Sources: TypeAlias = "str | os.PathLike[str] | SourceFile | Iterable[str | os.PathLike[str] | SourceFile]"

DATA_ENDINGS = (
    ".nc", ".nc3", ".nc4", ".cdf", ".h5", ".hdf5", ".he5", ".hdf", ".tif", ".tiff", ".grib", ".grib2", ".grb", ".grb2",
)  # fmt: skip
STORE_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def natural_key(text: str) -> tuple[Any, ...]:
    """Sorts `day9` before `day10`."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)


def expand_sources(sources: Sources, access: SourceAccess | None = None) -> list[SourceFile]:
    """Every file that is meant, once, in natural order.

    A source is a file, a Zarr store, a glob (`*`, `?`, `[..]`, `**`), a folder (its data files), or a text file
    (`.txt`, `.list`) with one source a line, where `#` starts a comment.
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
        raise InvalidInputError("a source is an empty text; name a file, a folder ('.' for this one) or a URL")
    if text.endswith((".txt", ".list")) and not glob.has_magic(text):
        lines = access.read(normalise_url(text)).decode("utf-8").splitlines()
        entries = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not entries:
            raise InvalidInputError(f"the list {text} names no sources", url=text)
        return [file for entry in entries for file in _expand_one(entry, access)]
    # A path with such characters may also be a plain file name.
    if glob.has_magic(text) and ("://" in text or not Path(text).exists()):
        return _expand_glob(text, access)
    return _expand_plain(normalise_url(text), access)


def _expand_glob(pattern: str, access: SourceAccess) -> Sequence[SourceFile]:
    if "://" not in pattern:
        names = glob.glob(os.path.expanduser(pattern), recursive=True)
        files = [access.describe(normalise_url(name)) for name in names if _is_source(Path(name))]
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
        files += [SourceFile(url + "/") for url in stores]
    if not files:
        raise ObjectNotFoundError(f"nothing matches {pattern}", url=pattern)
    return files


def _translate(pattern: str) -> str:
    """A glob over URLs: `*` stays within a folder, `**` does not."""
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
    if not below:
        raise ObjectNotFoundError(f"there is no file and no folder {url}", url=url)
    root = url.rstrip("/") + "/"
    if any(file.url[len(root) :] in STORE_MARKS for file in below):
        total = sum(file.size_bytes for file in below)
        newest = max(file.last_modified or 0 for file in below)
        return [SourceFile(root, total, None, newest)]
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
            f"the folder {url} has no data files ({', '.join(DATA_ENDINGS)}) and no Zarr stores; "
            "name them or use a glob",
            url=url,
        )  # fmt: skip
    return files


def _is_source(path: Path) -> bool:
    return path.is_file() or path.is_symlink() or any((path / mark).exists() for mark in STORE_MARKS)
