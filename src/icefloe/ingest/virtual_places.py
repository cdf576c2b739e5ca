"""The containers that a virtual ingest stores, and how a reader authorises them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from icefloe.blocking import run_blocking
from icefloe.errors import UnsupportedError
from icefloe.ingest.access import local_path
from icefloe.model.config import RepositoryConfig
from icefloe.model.object_store_config import (
    ObjectStoreConfig,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.session.opening import extend_config


def container_for(prefix: str) -> VirtualChunkContainer:
    """A container for a URL prefix, with the ordinary settings of its kind of store."""
    return VirtualChunkContainer(prefix, _store(prefix))


def _store(prefix: str) -> ObjectStoreConfig:
    scheme = urlsplit(prefix).scheme
    match scheme:
        case "file":
            return local_filesystem_store(str(local_path(prefix)))
        case "s3" | "s3a":
            return s3_store()
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
    repository: Repository, prefixes: Sequence[str], given: Sequence[VirtualChunkContainer] = ()
) -> Repository:
    """The repository with containers for these prefixes kept in its configuration.

    A container that the repository has already, or that is given, and that covers a prefix is used for it.
    """
    repository = with_stored_containers(repository)
    known = [*given, *(repository.config.virtual_chunk_containers or {}).values()]
    fresh = [container_for(p) for p in prefixes if not any(p.startswith(c.url_prefix) for c in known)]
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
