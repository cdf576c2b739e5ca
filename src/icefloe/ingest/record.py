"""What a repository keeps about its sources: ingested files, and the containers of virtual chunks.

Every commit of an ingest tells its own sources in its entry, and takes over the list of all that were ingested before
it; commits of other kinds take the list over as it is (`icefloe.model.snapshot.inherit_metadata`). So the newest commit
tells everything that it holds, whatever becomes of the history below it. Few sources are in the metadata themselves,
more are in objects beside the repository's own, which garbage collection keeps as long as a commit names them.
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
from icefloe.maintenance.inventory import INGEST_KEY, INGESTED_FOLDER, INLINE, REMOVED, own_texts
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import INGESTED_KEY, Snapshot, ingested_texts
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
    """Which state of which file: its URL, size, and version or time."""
    text = f"{file.url}\0{file.size_bytes}\0{file.etag or file.last_modified}"
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()


def ingest_metadata(plan: IngestPlan, files: Sequence[SourceFile], **facts: Any) -> dict[str, Any]:
    """The entry of a commit's metadata: what was ingested and how. `facts` are added, such as the job's name."""
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
    """The fingerprints of a list, which stand one after the other."""
    step = _FINGERPRINT_BYTES
    return {data[start : start + step] for start in range(0, len(data), step)}


def not_ingested(files: Iterable[SourceFile], before: frozenset[bytes]) -> list[SourceFile]:
    """The files that are new, or changed since they were ingested."""
    return [file for file in files if fingerprint(file) not in before]


MOST_INLINE_BYTES = 32
"""Fingerprints in the metadata; more would weigh on every reader of the history."""
MOST_TEXTS = 4
"""Texts of a list before they are joined into one object: every later commit carries them."""


def keep_record(repository: Repository, base: Snapshot, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an ingest as a commit on top of `base` keeps them; long lists are stored beside and named."""
    entry = dict(metadata[METADATA_KEY])
    marks = base64.b64decode(entry.get("fingerprints", ""))
    if len(marks) > MOST_INLINE_BYTES:
        del entry["fingerprints"]
        entry["fingerprints_object"] = _store(repository, marks)
    kept = {**metadata, METADATA_KEY: entry}
    known, added = ingested_texts(base.metadata), own_texts(kept)
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
    """Fingerprints of every source that commits of a branch ingested."""
    return ingested_at(repository, repository.lookup_branch(branch))


def ingested_at(repository: Repository, snapshot_id: str) -> frozenset[bytes]:
    """Fingerprints of every source that a snapshot holds."""
    found: frozenset[bytes] = frozenset()
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if INGESTED_KEY in info.metadata:
            return found | _resolve(repository, ingested_texts(info.metadata), info.id)
        found |= _resolve(repository, own_texts(info.metadata), info.id)
    return found


def _resolve(repository: Repository, texts: Iterable[str], snapshot_id: str) -> frozenset[bytes]:
    """The fingerprints of a list; what was taken back by a later text is not among them."""
    found: set[bytes] = set()
    for text in texts:
        marks = _fetch(repository, text.removeprefix(REMOVED), snapshot_id)
        if text.startswith(REMOVED):
            found -= marks
        else:
            found |= marks
    return frozenset(found)


def _fetch(repository: Repository, text: str, snapshot_id: str) -> set[bytes]:
    try:
        if text.startswith(INLINE):
            return parse_fingerprints(base64.b64decode(text.removeprefix(INLINE), validate=True))
        if not text.startswith(INGESTED_FOLDER):
            raise ValueError("it is neither fingerprints nor the name of a list")
        return parse_fingerprints(decompress(run_blocking(repository.storage.get(text))))
    except (ObjectNotFoundError, FormatError, binascii.Error, ValueError) as error:
        raise FormatError(
            f"the list of sources of snapshot {snapshot_id} ({text}) cannot be read; ingest without skip_ingested",
            key=text,
        ) from error


_S3_SETTINGS = ("region", "endpoint_url", "allow_http", "anonymous", "force_path_style", "requester_pays")
"""Options of `s3_storage` that a container keeps; secrets are none of them."""


def container_for(prefix: str, options: Mapping[str, Any] | None = None) -> VirtualChunkContainer:
    """A container for a URL prefix, with the settings that its sources were read with."""
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
    raise UnsupportedError(
        f"no kind of store is known for {prefix}; give the container yourself (a VirtualChunkContainer)", prefix=prefix
    )


def with_stored_containers(repository: Repository) -> Repository:
    """The repository with the containers that were stored in its configuration since it was opened."""
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
    """The repository with containers for these prefixes kept in its configuration.

    A container that the repository has already, or that is given, and that covers a prefix is used for it. `options`
    are those of the storages of the sources; a new container keeps their settings, not their secrets.
    """
    repository = with_stored_containers(repository)
    known = [*given, *(repository.config.virtual_chunk_containers or {}).values()]
    fresh = [container_for(p, options) for p in prefixes if not any(p.startswith(c.url_prefix) for c in known)]
    if not fresh and not given:
        return repository
    config = RepositoryConfig()
    for container in (*given, *fresh):
        config.set_virtual_chunk_container(container)
    run_blocking(extend_config(repository.engine, config))
    return repository.reopen(config)


def explain_authorisation(prefixes: Sequence[str]) -> str:
    """What a reader writes to open the repository with these containers."""
    if not prefixes:
        return ""
    pairs = ", ".join(f"{prefix!r}: None" for prefix in prefixes)
    return (
        "readers open it with\n"
        f"  Repository.open(storage, authorize_virtual_chunk_access=containers_credentials({{{pairs}}}))\n"
        "where None reads local files and public buckets; give credentials for private ones"
    )
