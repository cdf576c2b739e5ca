"""What a repository stores about its sources: ingested files, and the containers of virtual chunks.

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import zstandard

from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, ObjectNotFoundError, UnsupportedError
from icefloe.formats.header import decompress
from icefloe.ingest.access import local_path
from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.source_model import SourceFile
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
"""Fingerprints in the metadata; more would weigh on every reader of the history."""
MOST_TEXTS = 4
"""Texts of a list before they are joined into one object: every later commit carries them."""


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
    # The list is long, or the commits below were made by somebody who does not take it over.
    before = ingested_at(repository, base.id)
    if not before:
        return {**kept, INGESTED_KEY: {"add": added, "drop": known}}
    joined = b"".join(sorted(before | parse_fingerprints(marks)))
    return {**kept, INGESTED_KEY: {"add": [_store(repository, joined)], "drop": known}}


def _store(repository: Repository, marks: bytes) -> str:
    key = f"{INGESTED_FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, zstandard.compress(marks)))
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
"""Options of `s3_storage` that a container keeps; secrets are none of them."""


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
