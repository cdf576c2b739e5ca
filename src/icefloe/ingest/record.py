"""What a repository stores about its sources: ingested files, catalogues of synced groups, containers.

The commit of an ingest lists its own sources in its metadata. It also inherits the list of all earlier sources. Other
commits inherit that list unchanged (`icefloe.model.snapshot.inherit_metadata`). The newest commit therefore has the
complete list, even if its history is expired. A short list is part of the metadata. A longer one is an object in the
repository, which garbage collection keeps while a commit refers to it.

The catalogue of a synced group tells which version of which source is where in its arrays. It is stored in such objects
too. A sync writes one more object with what it changed. Small objects are joined with their neighbours, so that their
number grows with the logarithm of the number of sources.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.blocking import run_blocking
from icefloe.display.card import format_count
from icefloe.errors import FormatError, IcefloeError, InvalidInputError, ObjectNotFoundError, UnsupportedError
from icefloe.formats.header import decompress
from icefloe.ingest.access import SourceAccess, local_path
from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.source_model import (
    Coordinate,
    SourceFailure,
    SourceFile,
    SourceSchema,
    SourceVariable,
    summarise_coordinate,
)
from icefloe.ingest.sources import IngestOptions
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import (
    CATALOGUE_KEY,
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
    marks = b"".join(sorted(fingerprint(file) for file in files if file.url not in plan.skipped))
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


def parse_fingerprints(data: bytes) -> set[bytes]:
    """Split a list of concatenated fingerprints."""
    step = _FINGERPRINT_BYTES
    return {data[start : start + step] for start in range(0, len(data), step)}


def not_ingested(files: Iterable[SourceFile], before: frozenset[bytes]) -> list[SourceFile]:
    """Return the files that are new or have changed since they were ingested.

    Parameters
    ----------
    files
        The source files.
    before
        The fingerprints of the files that were ingested earlier.

    Returns
    -------
    list of SourceFile
        The files to ingest.

    Examples
    --------
    >>> new, known = SourceFile("file:///a.nc", 10), SourceFile("file:///b.nc", 20)
    >>> not_ingested([new, known], frozenset({fingerprint(known)})) == [new]
    True
    """
    return [file for file in files if fingerprint(file) not in before]


MOST_INLINE_BYTES = 32
"""The largest number of fingerprints in the metadata. More would slow down every reader of the history."""
MOST_TEXTS = 4
"""The largest number of texts in a list. More are joined into one object, because every later commit contains them."""


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
    # The list is long, or another writer made the earlier commits and did not inherit it.
    before = ingested_at(repository, base.id)
    if not before:
        return {**kept, INGESTED_KEY: {"add": added, "drop": known}}
    joined = b"".join(sorted(before | parse_fingerprints(marks)))
    return {**kept, INGESTED_KEY: {"add": [_store(repository, joined)], "drop": known}}


def _store(repository: Repository, marks: bytes) -> str:
    return _put(repository, zstandard.compress(marks))


def _put(repository: Repository, data: bytes) -> str:
    """Write an object that commits can refer to. Return its key."""
    key = f"{INGESTED_FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, data))
    return key


def ingested_sources(repository: Repository, branch: str) -> frozenset[bytes]:
    """Return the fingerprints of every source that commits of a branch ingested."""
    return ingested_at(repository, repository.lookup_branch(branch))


def ingested_at(repository: Repository, snapshot_id: str) -> frozenset[bytes]:
    """Return the fingerprints of every source of a snapshot."""
    found: frozenset[bytes] = frozenset()
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if INGESTED_KEY in info.metadata:
            return found | _resolve(repository, ingested_texts(info.metadata), info.id)
        found |= _resolve(repository, own_sources(info.metadata), info.id)
    return found


def _resolve(repository: Repository, texts: Iterable[str], snapshot_id: str) -> frozenset[bytes]:
    """Return the fingerprints of a list, without those that a later text removes."""
    found: set[bytes] = set()
    for text in texts:
        marks = _fetch(repository, text.removeprefix(REMOVED_SOURCES), snapshot_id)
        if text.startswith(REMOVED_SOURCES):
            found -= marks
        else:
            found |= marks
    return frozenset(found)


def _fetch(repository: Repository, text: str, snapshot_id: str) -> set[bytes]:
    try:
        if text.startswith(INLINE_SOURCES):
            return parse_fingerprints(base64.b64decode(text.removeprefix(INLINE_SOURCES), validate=True))
        if not text.startswith(INGESTED_FOLDER):
            raise ValueError("it is neither fingerprints nor the name of a list")
        return parse_fingerprints(decompress(run_blocking(repository.storage.get(text))))
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


# -- the catalogue of a synced group --------------------------------------------------------------------------------

_CATALOGUE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a source is in a group: its first cell and length by joined dimension, and its variables by array path."""

    extent: Mapping[str, tuple[int, int]]
    fills: Mapping[str, str]
    first: Mapping[str, int] = field(default_factory=dict)
    """The first of these cells in the source by dimension, if only a part of the source is used."""
    more: tuple[Placement, ...] = ()
    """Other parts of the source."""

    def parts(self) -> tuple[Placement, ...]:
        return (self, *self.more)


@dataclass(frozen=True, slots=True)
class CataloguedSource:
    """A source, as it was when it was synced."""

    file: SourceFile
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """By group."""
    schema: SourceSchema | None = None
    """None if it cannot be stored. The source is then parsed again."""
    digest: str | None = None
    """The hash of the content, if it was read."""
    listed: int = 0
    """When its version was asked for, in seconds since 1970."""

    @property
    def version(self) -> tuple[Any, ...]:
        """What tells two contents of one URL apart."""
        return (self.file.url, self.digest) if self.digest else version_of(self.file)


def version_of(file: SourceFile) -> tuple[Any, ...]:
    """Return what the storage says about the version of a file."""
    return file.url, file.size_bytes, file.etag or file.version or file.last_modified


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The sources of a group of the repository.

    `arrays` has, by path, whether an array is native or virtual, and its joined dimensions. `groups` has the hash of
    the document of every group that the sync wrote.
    """

    sources: Mapping[str, CataloguedSource] = field(default_factory=dict)
    arrays: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    """The chunk lengths that the caller asked for."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`IngestOptions.recorded`."""
    planned_with: str | None = None
    """`IngestOptions.identity`."""


@dataclass(frozen=True, slots=True)
class CatalogueObject:
    """An object of a catalogue: the sources that a sync added or replaced, and the URLs of those that it removed."""

    key: str
    size_bytes: int
    sources: tuple[CataloguedSource, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredCatalogue:
    """A catalogue, and the objects that hold it, in the order in which they were written."""

    catalogue: Catalogue
    objects: tuple[CatalogueObject, ...] = ()


def _labels(metadata: Mapping[str, Any], group: str) -> list[tuple[int, str]]:
    """Return the objects of a group in the metadata of a commit, with their numbers."""
    entry = metadata.get(CATALOGUE_KEY)
    found = []
    for label, key in entry.items() if isinstance(entry, Mapping) else ():
        number, _, path = str(label).partition(":")
        if path == group and number.isdigit() and isinstance(key, str):
            found.append((int(number), key))
    return sorted(found)


def changed_nodes(metadata: Mapping[str, Any], group: str) -> frozenset[str]:
    """Return the paths of nodes of a group that commits changed since the last sync. `*` is all of them."""
    entry = metadata.get(CATALOGUE_KEY)
    found = entry.get(f"changed:{group}") if isinstance(entry, Mapping) else None
    return frozenset(map(str, found)) if isinstance(found, list | tuple) else frozenset()


def has_catalogue(metadata: Mapping[str, Any], group: str) -> bool:
    """Return whether the metadata of a commit name a catalogue of a group."""
    return bool(_labels(metadata, group))


def read_catalogue(repository: Repository, metadata: Mapping[str, Any], group: str) -> StoredCatalogue | None:
    """Return the catalogue that the metadata of a commit name, or None if the group was never synced.

    Raises
    ------
    FormatError
        An object of the catalogue is missing or damaged.
    """
    labels = _labels(metadata, group)
    if not labels:
        return None
    sources: dict[str, CataloguedSource] = {}
    newest: Mapping[str, Any] = {}
    objects: list[CatalogueObject] = []
    for _, key in labels:
        newest, size = _fetch_segment(repository, key)
        each = CatalogueObject(key, size, tuple(_decode_sources(newest)), tuple(newest["removed"]))
        objects.append(each)
        for url in each.removed:
            sources.pop(url, None)
        sources.update({source.file.url: source for source in each.sources})
    arrays = {path: (str(kind), tuple(joined)) for path, (kind, joined) in newest["arrays"].items()}
    catalogue = Catalogue(sources, arrays, newest["groups"], newest["chunks"], *_options_of(newest))
    return StoredCatalogue(catalogue, tuple(objects))


def _options_of(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the options of the last sync. Earlier releases did not store them."""
    return document.get("settings", {}), document.get("planned_with")


def _fetch_segment(repository: Repository, key: str) -> tuple[Mapping[str, Any], int]:
    try:
        if not key.startswith(INGESTED_FOLDER):
            raise ValueError("it is not the name of such an object")
        data = run_blocking(repository.storage.get(key))
        document = json.loads(decompress(data))
        if document["version"] != _CATALOGUE_VERSION:
            raise ValueError(f"it has version {document['version']}, this release reads version {_CATALOGUE_VERSION}")
        return document, len(data)
    except (IcefloeError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"the catalogue of the sources ({key}) cannot be read: {error}. Use rebuild=True (--rebuild) to write the "
            "archive again from the sources",
            key=key,
        ) from error


def write_catalogue(
    repository: Repository, metadata: Mapping[str, Any], group: str, before: StoredCatalogue | None, now: Catalogue
) -> dict[str, Any]:
    """Store what changed, and return the metadata entry of the commit. The entries of other groups are kept."""
    known = before.catalogue.sources if before is not None else {}
    changed = [source for url, source in now.sources.items() if source is not known.get(url)]
    removed = [url for url in known if url not in now.sources]
    objects = list(before.objects) if before is not None else []
    data = _encode_segment(now, changed, removed)
    # Objects of a similar size are joined. Each source is written again a logarithmic number of times.
    while objects and objects[-1].size_bytes < 2 * len(data):
        last = objects.pop()
        again = {source.file.url for source in changed} | set(removed)
        older = [s for s in last.sources if s.file.url not in again and s.file.url in now.sources]
        changed = [*older, *changed]
        removed = [*(url for url in last.removed if url not in now.sources), *removed]
        data = _encode_segment(now, changed, removed if objects else ())
    key = _put(repository, data)
    entry = metadata.get(CATALOGUE_KEY)
    others = dict(entry) if isinstance(entry, Mapping) else {}
    others = {label: each for label, each in others.items() if str(label).partition(":")[2] != group}
    own = {f"{number}:{group}": each for number, each in enumerate([*(each.key for each in objects), key])}
    return {CATALOGUE_KEY: {**others, **own}}


class _Table:
    """Values that many sources share. Each is stored once and named by its number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[str, int] = {}

    def number(self, value: Any) -> int:
        text = json.dumps(value, sort_keys=True, default=_plain)
        if text not in self._known:
            self._known[text] = len(self.values)
            self.values.append(json.loads(text))
        return self._known[text]


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biufUS":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _encode_segment(catalogue: Catalogue, sources: Sequence[CataloguedSource], removed: Iterable[str]) -> bytes:
    tables = {name: _Table() for name in ("variables", "coordinates", "groups", "placements", "rest")}
    document = {
        "version": _CATALOGUE_VERSION,
        "arrays": {path: [kind, list(joined)] for path, (kind, joined) in catalogue.arrays.items()},
        "groups": dict(catalogue.groups),
        "chunks": dict(catalogue.chunks),
        "settings": dict(catalogue.settings),
        "planned_with": catalogue.planned_with,
        "removed": list(removed),
        "sources": [_encode_source(source, tables) for source in sources],
        "tables": {name: table.values for name, table in tables.items()},
    }
    return zstandard.compress(json.dumps(document).encode())


def _encode_source(source: CataloguedSource, tables: Mapping[str, _Table]) -> dict[str, Any]:
    file = source.file
    found: dict[str, Any] = {
        "file": [file.url, file.size_bytes, file.etag, file.last_modified, file.version],
        "listed": source.listed,
        "placed": {group: _encode_placement(each, tables) for group, each in source.placed.items()},
    }
    if source.digest is not None:
        found["digest"] = source.digest
    if source.schema is not None:
        # A schema without JSON form is parsed again by the next sync.
        with contextlib.suppress(TypeError, ValueError):
            found["schema"] = encode_schema(source.schema, tables)
    return found


def _encode_placement(placed: Placement, tables: Mapping[str, _Table]) -> list[Any]:
    own = [dict(placed.extent), tables["placements"].number(dict(placed.fills))]
    if not placed.first:
        return own
    return [*own, dict(placed.first), *(_encode_placement(each, tables) for each in placed.more)]


def _decode_placement(entry: Sequence[Any], fills: Sequence[Any]) -> Placement:
    extent, number, *rest = entry
    own = {dim: (start, size) for dim, (start, size) in extent.items()}
    more = tuple(_decode_placement(each, fills) for each in rest[1:])
    return Placement(own, fills[number], rest[0] if rest else {}, more)


def encode_schema(schema: SourceSchema, tables: Mapping[str, _Table]) -> list[Any]:
    """Return a schema without its file as JSON. What files share is in the tables."""
    return [
        {path: tables["variables"].number(_encode_variable(each)) for path, each in schema.variables.items()},
        {path: tables["coordinates"].number(_encode_coordinate(each)) for path, each in schema.coordinates.items()},
        tables["groups"].number(schema.groups),
        tables["rest"].number([schema.format, schema.skipped, schema.referenced, schema.left_out]),
        dict(schema.digests),
    ]


def _encode_variable(variable: SourceVariable) -> list[Any]:
    return [
        variable.path,
        variable.dims,
        variable.shape,
        variable.dtype,
        variable.chunks,
        variable.attributes,
        variable.fill_value,
        variable.codecs,
        variable.layout,
        variable.not_virtual,
        variable.stacked,
        variable.decoded_dtype,
    ]


def _encode_coordinate(coordinate: Coordinate) -> list[Any]:
    values = coordinate.values
    if values is None:
        summary = [coordinate.first, coordinate.last, coordinate.direction, coordinate.step]
        return ["summary", coordinate.size, coordinate.digest, summary]
    if values.dtype.kind in "biuf":
        return ["numbers", values.dtype.str, base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()]
    if values.dtype.kind in "OUT":
        return ["texts", [str(each) for each in values.reshape(-1).tolist()]]
    raise TypeError(f"a coordinate of type {values.dtype} has no JSON form")


def _decode_sources(document: Mapping[str, Any]) -> list[CataloguedSource]:
    shared, fills = _Shared(document["tables"]), document["tables"]["placements"]
    found = []
    for entry in document["sources"]:
        file = SourceFile(*entry["file"])
        placed = {group: _decode_placement(each, fills) for group, each in entry["placed"].items()}
        schema = shared.schema(file, entry["schema"]) if "schema" in entry else None
        found.append(CataloguedSource(file, placed, schema, entry.get("digest"), entry["listed"]))
    return found


class _Shared:
    """Decodes every value of the tables once."""

    def __init__(self, tables: Mapping[str, Sequence[Any]]) -> None:
        self._tables = tables
        self._decoded: dict[tuple[str, int], Any] = {}

    def _value(self, table: str, number: int, decode: Callable[[Any], Any]) -> Any:
        if (table, number) not in self._decoded:
            self._decoded[table, number] = decode(self._tables[table][number])
        return self._decoded[table, number]

    def schema(self, file: SourceFile, entry: Sequence[Any]) -> SourceSchema:
        variables, coordinates, groups, rest, digests = entry
        name, skipped, referenced, *left_out = self._tables["rest"][rest]
        return SourceSchema(
            file,
            name,
            {path: self._value("variables", number, _decode_variable) for path, number in variables.items()},
            {path: self._value("coordinates", number, _decode_coordinate) for path, number in coordinates.items()},
            self._tables["groups"][groups],
            skipped,
            tuple(referenced),
            digests,
            *left_out,
        )


def _decode_variable(entry: Sequence[Any]) -> SourceVariable:
    path, dims, shape, dtype, chunks, attributes, fill, codecs, layout, reason, stacked, decoded = entry
    return SourceVariable(
        path,
        tuple(dims),
        tuple(shape),
        dtype,
        tuple(chunks),
        attributes,
        fill,
        tuple(codecs),
        layout,
        reason,
        int(stacked),
        decoded,
    )


def _decode_coordinate(entry: Sequence[Any]) -> Coordinate:
    kind, *rest = entry
    if kind == "summary":
        size, digest, (first, last, direction, step) = rest
        return Coordinate(size, digest, first, last, direction, step)
    if kind == "numbers":
        return summarise_coordinate(np.frombuffer(base64.b64decode(rest[1]), dtype=np.dtype(rest[0])))
    values: npt.NDArray[Any] = np.array(rest[0], dtype=object)
    return summarise_coordinate(values)


def as_stored(schema: SourceSchema) -> SourceSchema | None:
    """Return a schema as it is read from a catalogue, or None if it has no JSON form.

    Schemas of new and of catalogued sources are planned together. They must not differ by what JSON cannot tell.
    """
    tables = {name: _Table() for name in ("variables", "coordinates", "groups", "rest")}
    try:
        entry = json.loads(json.dumps(encode_schema(schema, tables), default=_plain))
    except (TypeError, ValueError):
        return None
    return _Shared({name: table.values for name, table in tables.items()}).schema(schema.file, entry)


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

    sources: Mapping[str, CataloguedSource]
    """Every source that the archive shall have, with its schema. Placements are those of the last sync."""
    changes: SourceChanges
    unreadable: frozenset[str] = frozenset()
    """Sources that vanished and stay in the archive."""


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
    known = before.sources if before is not None else {}
    found: dict[str, CataloguedSource] = {}
    parsed: list[tuple[SourceFile, str | None]] = []
    touched: list[str] = []
    unchanged = 0
    for file in files:
        old = known.get(file.url)
        hashes = options.mode == "native"
        is_same = old is not None and version_of(old.file) == version_of(file)
        is_racy = old is not None and file.etag is None and (file.last_modified or 0) >= old.listed - _RACY_SECONDS
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
    gone = [url for url in known if url not in found]
    kept = frozenset(gone) if vanished == "keep" else frozenset()
    if gone and vanished == "fail":
        raise InvalidInputError(
            f"{format_count(len(gone), 'source')} of the archive no longer exist, such as {gone[0]}. Nothing was "
            "changed. Use vanished='keep' or vanished='remove' (--vanished)",
            url=gone[0],
        )
    for url in kept:
        if known[url].schema is None:
            raise InvalidInputError(
                f"{url} no longer exists, and the catalogue does not describe its content. Use vanished='remove'",
                url=url,
            )
        found[url] = known[url]
    new = {file.url for file, _ in parsed}
    changes = SourceChanges(
        tuple(sorted(new - known.keys())),
        tuple(sorted(url for url in new & known.keys() if found[url].version != known[url].version)),
        tuple(sorted(touched)),
        tuple(sorted(gone)),
        unchanged,
    )
    return FoundSources(found, changes, kept)
