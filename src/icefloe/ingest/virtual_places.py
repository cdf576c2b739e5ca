"""The containers that a virtual ingest stores, and how a reader authorises them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
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

_S3_SETTINGS = ("region", "endpoint_url", "allow_http", "anonymous", "force_path_style", "requester_pays")
"""Options of `s3_storage` that a container keeps; secrets are none of them."""


def container_for(prefix: str, options: Mapping[str, Any] | None = None) -> VirtualChunkContainer:
    """A container for a URL prefix, with the settings that its sources were read with."""
    return VirtualChunkContainer(prefix, _store(prefix, options or {}))


def _store(prefix: str, options: Mapping[str, Any]) -> ObjectStoreConfig:
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
