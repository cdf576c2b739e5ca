"""What a container that a repository holds may decide about the store that its chunks are read from.

The caller authorises a prefix, with credentials or without. Whoever writes the repository writes its containers. So a
stored container decides nothing that the prefix and the credentials do not already say, with these exceptions, which
move no credentials: the region and addressing style of S3, whether requests are anonymous, who pays for them, and,
for requests without credentials, an `https` endpoint or the account of Azure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from icefloe.errors import VirtualChunkError
from icefloe.model.object_store_config import (
    AzureObjectStore,
    GcsObjectStore,
    HttpObjectStore,
    LocalFileSystemObjectStore,
    ObjectStoreConfig,
    S3CompatibleObjectStore,
    S3ObjectStore,
    TigrisObjectStore,
)
from icefloe.model.virtual_chunk_container import SCHEMES, VirtualChunkContainer
from icefloe.storage.build import TIGRIS_ENDPOINT
from icefloe.storage.credentials import AnonymousCredentials, FromEnvCredentials

_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_ACCOUNT = re.compile(r"[A-Za-z0-9-]{1,64}")
_AWS = re.compile(r"https://s3(\.amazonaws\.com|[.-](dualstack\.)?[a-z]{2}(-[a-z]+)+-[0-9]+\.amazonaws\.com(\.cn)?)/?")
"""The endpoints where AWS answers for all buckets of a region; `s3://` means these anyway."""
_NO_SIGNATURE = frozenset({"skip_signature", "google_skip_signature", "azure_skip_signature", "aws_skip_signature"})
_ACCOUNTS = ("account", "account_name", "azure_storage_account_name")
_LEFT_ASIDE = frozenset({"timeout", "connect_timeout", "read_timeout", "pool_idle_timeout", "user_agent"})
"""Options of a client that change no request: ours are used instead."""
_MOST_SECONDS = 600
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME",)


def plan_store(container: VirtualChunkContainer, prefix: str, credentials: Any) -> ObjectStoreConfig:
    """The store to read an authorised container from; VirtualChunkError where only the caller may decide.

    A container that the caller gave is used as it is.
    """
    if not container.stored:
        return container.store
    store = container.store
    scheme = prefix.partition("://")[0]
    allowed = SCHEMES.get(store.tag, frozenset())
    if scheme not in allowed:
        raise _refused(container, f"a {store.tag} store does not answer for {scheme}:// URLs")
    if isinstance(store, LocalFileSystemObjectStore):
        # The folder of the prefix itself: that is what the caller wrote.
        return LocalFileSystemObjectStore("/")
    if isinstance(store, HttpObjectStore):
        if store.headers:
            raise _refused(container, "the repository sets headers of the requests")
        _refuse_options(container, store.opts, _LEFT_ASIDE | {"allow_http"})
        return HttpObjectStore({}, {})
    if isinstance(store, GcsObjectStore):
        _refuse_options(container, store.opts, _LEFT_ASIDE | _NO_SIGNATURE)
        return GcsObjectStore(_kept(store.opts, _NO_SIGNATURE))
    if isinstance(store, AzureObjectStore):
        return _plan_azure(container, store, prefix, credentials)
    if isinstance(store, S3ObjectStore | S3CompatibleObjectStore | TigrisObjectStore):
        return _plan_s3(container, store, scheme, credentials)
    return store


def _plan_azure(
    container: VirtualChunkContainer, store: AzureObjectStore, prefix: str, credentials: Any
) -> AzureObjectStore:
    _refuse_options(container, store.opts, _LEFT_ASIDE | _NO_SIGNATURE | frozenset(_ACCOUNTS))
    opts = _kept(store.opts, _NO_SIGNATURE)
    account = next((store.opts[key] for key in _ACCOUNTS if key in store.opts), None)
    if account is None or "@" in prefix:  # abfss://container@account/ names the account itself
        return AzureObjectStore(opts)
    if _ACCOUNT.fullmatch(account) is None:
        raise _refused(container, f"{account!r} is not the name of an account")
    if not _anonymous(credentials) and not _is_of_environment(credentials, account, _AZURE_ACCOUNTS):
        raise _refused(container, f"the repository names the account {account!r}, to which your credentials would go")
    return AzureObjectStore({**opts, "account_name": account})


def _plan_s3(
    container: VirtualChunkContainer,
    store: S3ObjectStore | S3CompatibleObjectStore | TigrisObjectStore,
    scheme: str,
    credentials: Any,
) -> ObjectStoreConfig:
    options = store.options
    if options.region is not None and _REGION.fullmatch(options.region) is None:
        raise _refused(container, f"{options.region!r} is not the name of a region")
    timeout = options.network_stream_timeout_seconds
    if timeout is not None:
        # Zero would wait for ever.
        options = replace(options, network_stream_timeout_seconds=min(max(timeout, 1), _MOST_SECONDS))
    endpoint = options.endpoint_url
    if endpoint is None and isinstance(store, TigrisObjectStore) and scheme != "tigris":
        endpoint = TIGRIS_ENDPOINT
    ordinary = endpoint is None or _AWS.fullmatch(endpoint) is not None
    if not ordinary and not _is_of_environment(credentials, endpoint or "", _S3_ENDPOINTS):
        if not _anonymous(credentials) and not options.anonymous:
            raise _refused(
                container, f"the repository names the endpoint {endpoint}, to which your credentials would go"
            )
        if not _is_plain_https(endpoint or ""):
            raise _refused(container, f"the repository names the endpoint {endpoint}, which is not an https address")
        options = replace(options, allow_http=False)
    elif ordinary:
        options = replace(options, allow_http=False)
    return type(store)(options)


def _is_plain_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _anonymous(credentials: Any) -> bool:
    return credentials is None or isinstance(credentials, AnonymousCredentials)


def _is_of_environment(credentials: Any, named: str, variables: tuple[str, ...]) -> bool:
    """Whether the environment, whose credentials the caller chose, names the same endpoint or account."""
    if not isinstance(credentials, FromEnvCredentials):
        return False
    return any(os.environ.get(variable, "").rstrip("/") == named.rstrip("/") for variable in variables)


def _kept(options: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name in names}


def _refuse_options(container: VirtualChunkContainer, options: Mapping[str, str], allowed: frozenset[str]) -> None:
    others = sorted(set(options) - allowed)
    if others:
        raise _refused(container, f"the repository sets options of the client: {', '.join(others)}")


def _refused(container: VirtualChunkContainer, why: str) -> VirtualChunkError:
    prefix = container.url_prefix
    return VirtualChunkError(
        f"the virtual chunk container {prefix!r} of this repository is not used as it is stored: {why}. If that is "
        "what you want, say so with a container of your own:\n"
        f"    config = icefloe.RepositoryConfig(virtual_chunk_containers={{\n"
        f"        {prefix!r}: icefloe.VirtualChunkContainer({prefix!r}, store)}})\n"
        f"    repo = icefloe.Repository.open(storage, config, authorize_virtual_chunk_access=...)",
        url_prefix=prefix,
    )
