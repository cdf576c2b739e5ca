"""What a repository stores about its sources: lists of ingested files and containers, and how files changed since.

The commit of an ingest lists its own sources in its metadata. It also inherits the list of all earlier sources. Other
commits inherit that list unchanged (`icefloe.model.snapshot.inherit_metadata`). The newest commit therefore has the
complete list, even if its history is expired. A short list is part of the metadata. A longer one is an object in the
repository, which garbage collection keeps while a commit refers to it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.blocking import run_blocking
from icefloe.display.card import format_count
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, UnsupportedError
from icefloe.formats.header import decompress
from icefloe.ingest.access import SourceAccess, local_path
from icefloe.ingest.catalogue import (
    Catalogue,
    CataloguedSource,
    SourceBatch,
    SourceTable,
    as_stored,
    version_of,
)
from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.source_files import SourceFiles
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.sources import IngestOptions
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import (
    INGEST_KEY,
    INGESTED_FOLDER,
    INGESTED_KEY,
    INLINE_SOURCES,
    REMOVED_SOURCES,
    Snapshot,
    ingested_texts,
    own_sources,
)
from icefloe.model.virtual_chunk_container import (
    ObjectStoreConfig,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.repository import Repository
from icefloe.session.open_repository import extend_config

METADATA_KEY = INGEST_KEY
_FINGERPRINT_BYTES = 8


def fingerprint(file: SourceFile) -> bytes:
    """Return a hash of a file's URL, size, and version or modification time."""
    text = f"{file.url}\0{file.size_bytes}\0{file.etag or file.last_modified}"
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()


class Fingerprints(Set[bytes]):
    """A set of fingerprints, as a sorted column of numbers.

    Examples
    --------
    >>> known = Fingerprints.of([SourceFile("file:///a.nc", 10), SourceFile("file:///b.nc", 20)])
    >>> len(known), fingerprint(SourceFile("file:///b.nc", 20)) in known, len(bytes(known))
    (2, True, 16)
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: npt.NDArray[np.uint64]) -> None:
        self._numbers: npt.NDArray[np.uint64] = np.unique(numbers)

    @classmethod
    def of(cls, files: Iterable[SourceFile]) -> Fingerprints:
        """Return the fingerprints of files."""
        return cls._from_iterable(map(fingerprint, files))

    @classmethod
    def parse(cls, data: bytes | bytearray) -> Fingerprints:
        """Return the fingerprints of a list, which has one after the other."""
        return cls(np.frombuffer(data, dtype=f">u{_FINGERPRINT_BYTES}").astype(np.uint64))

    @classmethod
    def _from_iterable(cls, it: Iterable[bytes]) -> Fingerprints:  # type: ignore[override]
        data = bytearray()
        for each in it:
            data += each
        return cls.parse(data)

    def __bytes__(self) -> bytes:
        return self._numbers.astype(f">u{_FINGERPRINT_BYTES}").tobytes()

    def __contains__(self, mark: object) -> bool:
        if not isinstance(mark, bytes) or len(mark) != _FINGERPRINT_BYTES:
            return False
        number = np.uint64(int.from_bytes(mark, "big"))
        at = int(np.searchsorted(self._numbers, number))
        return at < len(self._numbers) and bool(self._numbers[at] == number)

    def __iter__(self) -> Iterator[bytes]:
        return (int(number).to_bytes(_FINGERPRINT_BYTES, "big") for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def union(self, others: Fingerprints) -> Fingerprints:
        """Return these fingerprints and those of another set."""
        return Fingerprints(np.concatenate([self._numbers, others._numbers]))

    def difference(self, others: Fingerprints) -> Fingerprints:
        """Return these fingerprints without those of another set."""
        return Fingerprints(np.setdiff1d(self._numbers, others._numbers, assume_unique=True))


def ingest_metadata(plan: IngestPlan, files: Sequence[SourceFile], **facts: Any) -> dict[str, Any]:
    """Return the commit metadata of an ingest: what was ingested and how.

    Parameters
    ----------
    plan
        The plan that was executed.
    files
        The source files.
    **facts
        Further entries, such as the name of the job.

    Returns
    -------
    dict
        The metadata.

    Examples
    --------
    >>> from icefloe.ingest import IngestOptions, parse_schema, plan_ingest
    >>> import xarray
    >>> xarray.Dataset({"t": ("x", [1.0])}).to_netcdf("record.nc")
    >>> from icefloe.ingest import expand_sources
    >>> files = expand_sources("record.nc")
    >>> plan = plan_ingest([parse_schema(file) for file in files], IngestOptions())
    >>> ingest_metadata(plan, files)["icefloe.ingest"]["sources"]
    1
    """
    skipped = {*plan.skipped}
    marks = bytes(Fingerprints.of(file for file in files if file.url not in skipped))
    entry: dict[str, Any] = {
        "mode": plan.options.mode,
        "sources": len(plan.sources),
        "source_bytes": plan.source_bytes,
        "first_source": plan.sources[0],
        "last_source": plan.sources[-1],
        "arrays": len(plan.arrays),
        "tasks": len(plan.tasks),
        "append_dim": plan.options.append_dim,
        "preprocess": plan.options.recorded().get("preprocess"),
        "fingerprints": base64.b64encode(marks).decode(),
        **facts,
    }
    if plan.skipped:
        entry["skipped"] = list(plan.skipped)
    return {METADATA_KEY: {key: value for key, value in entry.items() if value is not None}}


def not_ingested(files: Sequence[SourceFile], before: Set[bytes]) -> Sequence[SourceFile]:
    """Return the files that are new or have changed since they were ingested.

    Parameters
    ----------
    files
        The source files.
    before
        The fingerprints of the files that were ingested earlier.

    Returns
    -------
    sequence of SourceFile
        The files to ingest, as columns if `files` are columns.

    Examples
    --------
    >>> new, known = SourceFile("file:///a.nc", 10), SourceFile("file:///b.nc", 20)
    >>> not_ingested([new, known], frozenset({fingerprint(known)})) == [new]
    True
    """
    found = (file for file in files if fingerprint(file) not in before)
    return SourceFiles.of(found) if isinstance(files, SourceFiles) else list(found)


MOST_INLINE_BYTES = 32
"""The largest number of fingerprints in the metadata. More would slow down every reader of the history."""
MOST_TEXTS = 4
"""The largest number of texts in a list. More are joined, because every later commit contains them."""
_LONGER = 4
"""Texts that are joined end before one that is so many times as long. A long list is then seldom written again."""


def keep_record(repository: Repository, base: Snapshot, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for a commit on top of `base`. Long lists are written to objects that the metadata names."""
    entry = dict(metadata[METADATA_KEY])
    marks = base64.b64decode(entry.get("fingerprints", ""))
    if len(marks) > MOST_INLINE_BYTES:
        del entry["fingerprints"]
        entry["fingerprints_object"] = _store(repository, marks)
    kept = {**metadata, METADATA_KEY: entry}
    known, added = ingested_texts(base.metadata), own_sources(kept)
    if INGESTED_KEY in base.metadata and len(known) + len(added) <= MOST_TEXTS:
        return {**kept, INGESTED_KEY: {"add": added}}
    if INGESTED_KEY in base.metadata and not any(text.startswith(REMOVED_SOURCES) for text in known):
        joined, dropped = _join_newest(repository, known, Fingerprints.parse(marks), base.id)
        return {**kept, INGESTED_KEY: {"add": [joined], "drop": dropped}}
    # Texts remove sources of others, or another writer made the earlier commits and did not inherit the list.
    before = ingested_at(repository, base.id)
    if not before:
        return {**kept, INGESTED_KEY: {"add": added, "drop": known}}
    joined = _store(repository, bytes(before.union(Fingerprints.parse(marks))))
    return {**kept, INGESTED_KEY: {"add": [joined], "drop": known}}


def _join_newest(
    repository: Repository, known: Sequence[str], marks: Fingerprints, snapshot_id: str
) -> tuple[str, Sequence[str]]:
    """Join new fingerprints with the newest texts of a list. Return the new text and those that it replaces."""
    count = len(known)
    while count:
        before = _fetch(repository, known[count - 1], snapshot_id)
        if count < MOST_TEXTS and len(before) > _LONGER * len(marks):
            break
        marks = marks.union(before)
        count -= 1
    return _store(repository, bytes(marks)), known[count:]


def _store(repository: Repository, marks: bytes) -> str:
    return _put(repository, zstandard.compress(marks))


def _put(repository: Repository, data: bytes) -> str:
    """Write an object that commits can refer to. Return its key."""
    key = f"{INGESTED_FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, data))
    return key


def ingested_sources(repository: Repository, branch: str) -> Fingerprints:
    """Return the fingerprints of every source that commits of a branch ingested."""
    return ingested_at(repository, repository.lookup_branch(branch))


def ingested_at(repository: Repository, snapshot_id: str) -> Fingerprints:
    """Return the fingerprints of every source of a snapshot."""
    found = Fingerprints.of(())
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if INGESTED_KEY in info.metadata:
            return found.union(_resolve(repository, ingested_texts(info.metadata), info.id))
        found = found.union(_resolve(repository, own_sources(info.metadata), info.id))
    return found


def _resolve(repository: Repository, texts: Iterable[str], snapshot_id: str) -> Fingerprints:
    """Return the fingerprints of a list, without those that a later text removes."""
    found = Fingerprints.of(())
    for text in texts:
        marks = _fetch(repository, text.removeprefix(REMOVED_SOURCES), snapshot_id)
        found = found.difference(marks) if text.startswith(REMOVED_SOURCES) else found.union(marks)
    return found


def _fetch(repository: Repository, text: str, snapshot_id: str) -> Fingerprints:
    try:
        if text.startswith(INLINE_SOURCES):
            return Fingerprints.parse(base64.b64decode(text.removeprefix(INLINE_SOURCES), validate=True))
        if not text.startswith(INGESTED_FOLDER):
            raise ValueError("it is neither fingerprints nor the name of a list")
        return Fingerprints.parse(decompress(run_blocking(repository.storage.get(text))))
    except (ObjectNotFoundError, FormatError, binascii.Error, ValueError) as error:
        raise FormatError(
            f"the list of sources of snapshot {snapshot_id} ({text}) cannot be read. Ingest without skip_ingested",
            key=text,
        ) from error


_S3_SETTINGS = ("region", "endpoint_url", "allow_http", "anonymous", "force_path_style", "requester_pays")
"""Options of `s3_storage` that a container stores. None of them is a secret."""


def container_for(prefix: str, options: Mapping[str, Any] | None = None) -> VirtualChunkContainer:
    """Return a container for a URL prefix, with the settings that its sources were read with."""
    return VirtualChunkContainer(prefix, _container_store(prefix, options or {}))


def _container_store(prefix: str, options: Mapping[str, Any]) -> ObjectStoreConfig:
    scheme = urlsplit(prefix).scheme
    match scheme:
        case "file":
            return local_filesystem_store(str(local_path(prefix)))
        case "s3" | "s3a":
            settings = {name: options[name] for name in _S3_SETTINGS if options.get(name) is not None}
            return s3_store(**settings, s3_compatible="endpoint_url" in settings)
        case "gs" | "gcs":
            return gcs_store()
        case "http" | "https":
            return http_store()
        case "az" | "abfs" | "abfss":
            return azure_store()
    raise UnsupportedError(f"no kind of store is known for {prefix}. Pass a VirtualChunkContainer", prefix=prefix)


def with_stored_containers(repository: Repository) -> Repository:
    """Return the repository with the containers that were stored in its configuration since it was opened.

    Parameters
    ----------
    repository
        The repository.

    Returns
    -------
    Repository
        The same repository, or a reopened one if there are new containers.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with_stored_containers(repo) is repo
    True
    """
    stored = Repository.fetch_config(repository.storage)
    containers = (stored.virtual_chunk_containers if stored is not None else None) or {}
    known = repository.config.virtual_chunk_containers or {}
    if all(known.get(prefix) == container for prefix, container in containers.items()):
        return repository
    return repository.reopen(RepositoryConfig(virtual_chunk_containers=dict(containers)))


def store_containers(
    repository: Repository,
    prefixes: Sequence[str],
    given: Sequence[VirtualChunkContainer] = (),
    options: Mapping[str, Any] | None = None,
) -> Repository:
    """Store containers for URL prefixes in the configuration of a repository.

    A container of the repository, or a given one, is used for a prefix that it covers.

    Parameters
    ----------
    repository
        The repository.
    prefixes
        URL prefixes of the sources.
    given
        Containers of the caller.
    options
        Options of the storages of the sources. A new container keeps their settings, without secrets.

    Returns
    -------
    Repository
        The repository, reopened with the containers.

    Raises
    ------
    UnsupportedError
        No kind of object store is known for a prefix.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> list(store_containers(repo, ["file:///data/"]).config.virtual_chunk_containers)
    ['file:///data/']
    """
    repository = with_stored_containers(repository)
    known = [*given, *(repository.config.virtual_chunk_containers or {}).values()]
    fresh = [container_for(p, options) for p in prefixes if not any(p.startswith(c.url_prefix) for c in known)]
    if not fresh and not given:
        return repository
    config = RepositoryConfig()
    for container in (*given, *fresh):
        config.set_virtual_chunk_container(container)
    run_blocking(extend_config(repository.context, config))
    return repository.reopen(config)


def explain_authorisation(prefixes: Sequence[str]) -> str:
    """Return instructions for readers of a repository with virtual chunks.

    Parameters
    ----------
    prefixes
        URL prefixes of the containers.

    Returns
    -------
    str
        A text with the call of `Repository.open`. Empty without prefixes.

    Examples
    --------
    >>> "containers_credentials({'s3://bucket/': None})" in explain_authorisation(["s3://bucket/"])
    True
    """
    if not prefixes:
        return ""
    pairs = ", ".join(f"{prefix!r}: None" for prefix in prefixes)
    return (
        "readers open it with\n"
        f"  Repository.open(storage, authorize_virtual_chunk_access=containers_credentials({{{pairs}}}))\n"
        "where None reads local files and public buckets; give credentials for private ones"
    )


# -- changes of sources ---------------------------------------------------------------------------------------------

Vanished: TypeAlias = Literal["keep", "remove", "fail"]
"""What happens with the cells of sources that no longer exist."""
_RACY_SECONDS = 2
"""A file that was changed so shortly before it was listed may have changed again with the same modification time."""
_HASHED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """What happened to the sources since the last sync.

    Attributes
    ----------
    added
        The URLs of new sources.
    replaced
        The URLs of sources with new content.
    touched
        The URLs of sources that were written again with equal content.
    vanished
        The URLs of sources that no longer exist.
    unchanged
        The number of sources that did not change.

    Examples
    --------
    >>> print(SourceChanges(added=("file:///a.nc",), unchanged=3))
    1 added, 3 unchanged
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    unchanged: int = 0

    def __str__(self) -> str:
        counts = {
            "added": len(self.added),
            "replaced": len(self.replaced),
            "touched but equal": len(self.touched),
            "vanished": len(self.vanished),
            "unchanged": self.unchanged,
        }
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no sources"


@dataclass(frozen=True, slots=True)
class FoundSources:
    """The sources of a sync: their present versions and schemas, and what became of those of the last sync."""

    sources: SourceTable
    """Every source that the archive shall have, with its schema. Placements are those of the last sync."""
    changes: SourceChanges
    unreadable: frozenset[str] = frozenset()
    """Sources that vanished and stay in the archive."""
    order: Mapping[str, int] = field(default_factory=dict)
    """The position of every present file among the files, by URL."""


def hash_file(file: SourceFile, access: SourceAccess) -> str | None:
    """Return the hash of a local file. Remote objects have an ETag, and directories have no content of their own."""
    if file.url.endswith("/") or local_path(file.url) is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    with access.open(file) as stream:
        while block := stream.read(_HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


ReadSchemas: TypeAlias = Callable[[Sequence[SourceFile]], tuple[list[SourceSchema], list[SourceFailure]]]


def find_changes(
    files: Sequence[SourceFile],
    before: Catalogue | None,
    options: IngestOptions,
    access: SourceAccess,
    vanished: Vanished,
    listed: int,
    read: ReadSchemas,
) -> FoundSources:
    """Compare the present files with the catalogue, and parse those that are new or changed.

    Parameters
    ----------
    files
        The present files.
    before
        The catalogue of the last sync.
    options
        The options. Content is hashed in native mode only, because references hold the version of a file.
    access
        How sources are read.
    vanished
        What happens with sources of the catalogue that no longer exist.
    listed
        The time at which the files were listed, in seconds since 1970.
    read
        Reads the schemas of files.
    """
    known = before.sources if before is not None else SourceTable()
    order = {file.url: number for number, file in enumerate(files)}
    batches, others, gone = _compare_batches(files, order, known)
    found: dict[str, CataloguedSource] = {}
    parsed: list[tuple[SourceFile, str | None]] = []
    touched: list[str] = []
    unchanged = len(files) - len(others)
    hashes = options.mode == "native"
    for file in others:
        old = known.get(file.url)
        is_same = old is not None and version_of(old.file) == version_of(file)
        is_racy = old is not None and _is_racy(file, old.listed)
        digest = None
        if old is not None and is_same and not (is_racy and hashes):
            unchanged += 1
        elif hashes:
            digest = hash_file(file, access)
            is_same = old is not None and digest is not None and digest == old.digest
            if is_same and old is not None and version_of(old.file) != version_of(file):
                touched.append(file.url)
            elif is_same:
                unchanged += 1
        else:
            is_same = False
        if not is_same or old is None or old.schema is None:
            parsed.append((file, digest if digest or old is None or not is_same else old.digest))
            continue
        same_time = old.file == file and (old.listed == listed or not is_racy)
        schema = replace(old.schema, file=file)
        found[file.url] = old if same_time else replace(old, file=file, schema=schema, listed=listed)
    schemas, failures = read([file for file, _ in parsed])
    if failures:
        shown = "\n".join(f"  {failure.reason}" for failure in failures[:20])
        raise InvalidInputError(
            f"{len(failures)} of {len(files)} sources cannot be read. Nothing was changed:\n{shown}",
            failures=list(failures),
        )
    by_url = {schema.file.url: schema for schema in schemas}
    for file, digest in parsed:
        stored = as_stored(by_url[file.url])
        digest = digest or (hash_file(file, access) if options.mode == "native" else None)
        entry = CataloguedSource(file, {}, stored or by_url[file.url], digest, listed)
        old = known.get(file.url)
        if old is not None and old.version == entry.version:
            entry = replace(entry, placed=old.placed)
        found[file.url] = entry
    kept = frozenset(gone) if vanished == "keep" else frozenset()
    if gone and vanished == "fail":
        raise InvalidInputError(
            f"{format_count(len(gone), 'source')} of the archive no longer exist, such as {gone[0]}. Nothing was "
            "changed. Use vanished='keep' or vanished='remove' (--vanished)",
            url=gone[0],
        )
    if kept:
        batches += _take_gone(known, kept)
        found.update({url: source for url, source in known.singles.items() if url in kept})
    new = {file.url for file, _ in parsed}
    added = {url for url in new if url not in known}
    changes = SourceChanges(
        tuple(sorted(added)),
        tuple(sorted(url for url in new - added if found[url].version != known[url].version)),
        tuple(sorted(touched)),
        tuple(sorted(gone)),
        unchanged,
    )
    return FoundSources(SourceTable(batches, found.values()), changes, kept, order)


def _is_racy(file: SourceFile, listed: int) -> bool:
    """Return whether a file may have changed after its version was asked for, with the same modification time."""
    return file.etag is None and (file.last_modified or 0) >= listed - _RACY_SECONDS


def _compare_batches(
    files: Sequence[SourceFile], order: Mapping[str, int], known: SourceTable
) -> tuple[list[SourceBatch], list[SourceFile], list[str]]:
    """Find the sources of batches that are as they were. Return them, all other files, and the URLs that are gone.

    The columns are compared here, because most sources of an archive do not change.
    """
    batches: list[SourceBatch] = []
    is_same = bytearray(len(files))
    gone = [url for url in known.singles if url not in order]
    for batch in known.batches:
        kept: list[int] = []
        has_schema = batch.template.schema is not None
        for row, (url, size, etag, modified, version, _, listed) in enumerate(zip(*batch.columns, strict=True)):
            number = order.get(url)
            if number is None:
                gone.append(url)
                continue
            file = files[number]
            if (
                has_schema
                and file.size_bytes == size
                and file.version == version
                and file.last_modified == modified
                and file.etag == etag
                and (etag is not None or (modified or 0) < listed - _RACY_SECONDS)
            ):
                kept.append(row)
                is_same[number] = True
        batches.append(batch.take(kept))
    return batches, [file for number, file in enumerate(files) if not is_same[number]], gone


def _take_gone(known: SourceTable, kept: frozenset[str]) -> list[SourceBatch]:
    """Return the sources of batches that no longer exist and stay in the archive."""
    found = [batch.take([row for row, url in enumerate(batch.urls) if url in kept]) for batch in known.batches]
    unknown = [url for batch in found if batch.template.schema is None for url in batch.urls]
    unknown += [url for url, source in known.singles.items() if url in kept and source.schema is None]
    if unknown:
        raise InvalidInputError(
            f"{unknown[0]} no longer exists, and the catalogue does not describe its content. Use vanished='remove'",
            url=unknown[0],
        )
    return found
