"""What to write when a virtual chunk has no container or no authorisation."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from icefloe.errors import VirtualChunkError
from icefloe.model.virtual_chunk_container import VirtualChunkContainer

_STORE_CALLS = {
    "s3": 'icefloe.s3_store(region="us-east-1")',
    "tigris": "icefloe.s3_store(...)",
    "gs": "icefloe.gcs_store()",
    "gcs": "icefloe.gcs_store()",
    "http": "icefloe.http_store()",
    "https": "icefloe.http_store()",
}
_CREDENTIALS_CALLS = {
    "s3": "icefloe.s3_from_env_credentials()",
    "tigris": "icefloe.s3_from_env_credentials()",
    "gs": "icefloe.gcs_from_env_credentials()",
    "gcs": "icefloe.gcs_from_env_credentials()",
    "az": "icefloe.azure_from_env_credentials()",
    "abfs": "icefloe.azure_from_env_credentials()",
    "abfss": "icefloe.azure_from_env_credentials()",
}


def no_container(location: str, prefixes: Sequence[str], others: int) -> VirtualChunkError:
    """The error for a location that no container covers."""
    scheme, _, rest = location.partition("://")
    if scheme == "file":
        folder = posixpath.dirname(rest).rstrip("/") + "/"
        prefix, store = f"file://{folder}", f"icefloe.local_filesystem_store({folder!r})"
    else:
        prefix = f"{scheme}://{rest.partition('/')[0]}/"
        store = _STORE_CALLS.get(scheme, "icefloe.ObjectStoreConfig...")
    also = f" (and {others} more)" if others else ""
    known = ", ".join(prefixes[:5]) or "none"
    return VirtualChunkError(
        f"{location}{also} is in no virtual chunk container of this repository; containers: {known}. Add one:\n"
        f"    config = repo.config\n"
        f"    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer({prefix!r}, {store}))\n"
        f"    repo = icefloe.Repository.open(storage, config, authorize_virtual_chunk_access="
        f"{{{prefix!r}: {_credentials(scheme)}}})\n"
        f"    repo.save_config()",
        location=location,
    )


def no_such_name(location: str, names: Sequence[str]) -> VirtualChunkError:
    """The error for a `vcc://` location whose container is not there."""
    name = location.partition("://")[2].partition("/")[0]
    return VirtualChunkError(
        f"{location} needs a virtual chunk container named {name!r}; named containers: {', '.join(names) or 'none'}. "
        f"Add one:\n"
        f"    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url_prefix, store, name={name!r}))",
        location=location,
    )


def no_authorization(location: str, container: VirtualChunkContainer) -> VirtualChunkError:
    """The error for a container that the caller did not authorise."""
    prefix = container.url_prefix
    call = _credentials(prefix.partition("://")[0].lower())
    return VirtualChunkError(
        f"{location} is in the virtual chunk container {prefix!r}, which this repository was opened without "
        f"authorisation for. Virtual chunks are read only where you allow it:\n"
        f"    repo = icefloe.Repository.open(storage, authorize_virtual_chunk_access="
        f"icefloe.containers_credentials({{{prefix!r}: {call}}}))",
        location=location,
        url_prefix=prefix,
    )


def _credentials(scheme: str) -> str:
    return _CREDENTIALS_CALLS.get(scheme, "None")
