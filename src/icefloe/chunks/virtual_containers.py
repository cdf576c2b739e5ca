"""Virtual chunks: find the container of a location and read it if the caller authorised that container.

The caller authorises a prefix, with or without credentials. The stored containers come from the writers of the
repository and are not trusted. A stored container may only decide what cannot move credentials: the region and
addressing style of S3, whether requests are anonymous, who pays for them and, for requests without credentials, an
`https` endpoint or the account of Azure.

A stored container only states that there are references below a prefix. The caller decides what is read below an
authorised prefix and where credentials are sent: by the prefix, the credentials, and the containers of the caller's own
configuration.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from icefloe.chunks.range_scheduler import ObjectSource, object_source
from icefloe.errors import ContainerError, InvalidInputError, VirtualChunkError
from icefloe.model.chunk_table import FEW_TEXTS, StringColumn, string_column, text_array
from icefloe.model.virtual_chunk_container import (
    SCHEMES,
    AzureObjectStore,
    GcsObjectStore,
    HttpObjectStore,
    LocalFileSystemObjectStore,
    ObjectStoreConfig,
    S3CompatibleObjectStore,
    S3ObjectStore,
    TigrisObjectStore,
    VirtualChunkContainer,
)
from icefloe.storage.build import TIGRIS_ENDPOINT, open_object_store
from icefloe.storage.contract import SourceStorage
from icefloe.storage.credentials import AnonymousCredentials, FromEnvCredentials

RELATIVE_SCHEME = "vcc"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*$")
_URL = r"^[a-z][a-z0-9+.-]*://."
_UNTIDY_FILE = r"^file://([^/]|//|/.*//|/(.*/)?\.\.?(/|$))"
"""A file URL with a host, with doubled slashes, or with dots as segments."""
_USERINFO = r"^https?://[^/?#]*@"


def normalise_location(location: str) -> str:
    """The one spelling of a location: schemes in small letters, file paths without dots and doubled slashes.

    URLs of object stores are otherwise kept as they are: their keys may hold any of that.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or not _SCHEME.match(scheme) or not rest:
        hint = f"file://{quote(location)}" if location.startswith("/") else "s3://bucket/key or file:///path/to/file"
        raise InvalidInputError(
            f"error parsing the location {location!r}: it is not a URL. Write it like {hint}", location=location
        )
    scheme = scheme.lower()
    if scheme in ("http", "https") and "@" in re.split("[/?#]", rest, maxsplit=1)[0]:
        raise InvalidInputError(
            f"a location on {rest.partition('/')[0].rpartition('@')[2]} contains a user or a password. Locations are "
            "stored and shown. Pass credentials as headers of the container's http_store(...)"
        )
    if scheme != "file":
        return f"{scheme}://{rest}"
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise InvalidInputError(
            f"the location {location!r} is a file on another machine, or has no absolute path. Write "
            "file:///path/to/file",
            location=location,
        )
    folder = "/" if path.endswith("/") and path.strip("/") else ""
    return f"file://{posixpath.normpath('/' + path.lstrip('/'))}{folder}"


def normalise_locations(locations: Any) -> StringColumn:
    """A column of distinct locations in one spelling; only rows that need it are touched one by one."""
    column = string_column(locations)
    if len(column) <= FEW_TEXTS:
        texts = list(column)
        tidy = [None if text is None else normalise_location(text) for text in texts]
        return column if tidy == texts else StringColumn.of_few(tidy)
    import pyarrow.compute as pc  # noqa: PLC0415 - a twentieth of a second that a few locations do not need

    untidy = pc.or_(
        pc.invert(pc.match_substring_regex(column.arrow, _URL)),
        pc.match_substring_regex(column.arrow, f"({_UNTIDY_FILE})|({_USERINFO})"),
    )
    if not pc.any(untidy).as_py():
        return column
    fixed = [normalise_location(text) for text in column.arrow.filter(untidy).to_pylist()]
    return StringColumn(pc.replace_with_mask(column.arrow, untidy, text_array(fixed)))


def container_prefix(url_prefix: str) -> str:
    """The prefix by which locations are matched; bare schemes, which early repositories hold, cover all of theirs."""
    if "://" not in url_prefix:
        url_prefix = f"{url_prefix}://"
    scheme, _, rest = url_prefix.partition("://")
    if scheme.lower() == "file":
        normal = normalise_location(f"file:///{rest.lstrip('/')}")
        return normal if normal.endswith("/") else normal + "/"
    return f"{scheme.lower()}://{rest}" if not rest or rest.endswith("/") else f"{scheme.lower()}://{rest}/"


def by_longest_prefix(containers: Mapping[str, VirtualChunkContainer]) -> list[tuple[str, VirtualChunkContainer]]:
    """Containers with their prefixes, longest first, so that the first match is the right one.

    Of two with the same prefix, the one that the caller gave comes before the one that a repository holds.
    """
    pairs = [(container_prefix(container.url_prefix), container) for container in containers.values()]
    return sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0], pair[1].stored))


def split_url(url: str) -> tuple[str, str]:
    """The root of the store a URL points into, and the key below it, decoded."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/", url_path(path)


def url_path(path: str) -> str:
    """The object key of a URL: without query and fragment, percent escapes resolved."""
    key = re.split(r"[?#]", path, maxsplit=1)[0]
    return unquote(key) if "%" in key else key


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
    return ContainerError(
        f"invalid chunk location: {location}{also} is in no virtual chunk container of this repository; "
        f"containers: {known}. To add one, edit the repository configuration:\n"
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
    return ContainerError(
        f"{location} needs a virtual chunk container named {name!r}; named containers: {', '.join(names) or 'none'}. "
        f"Add one:\n"
        f"    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url_prefix, store, name={name!r}))",
        location=location,
    )


def no_authorization(location: str, container: VirtualChunkContainer) -> VirtualChunkError:
    """The error for a container that the caller did not authorise."""
    prefix = container.url_prefix
    call = _credentials(prefix.partition("://")[0].lower())
    return ContainerError(
        f"{location} is in the virtual chunk container {prefix!r}, and the repository was opened without authorisation "
        "for it (authorize_virtual_chunk_access). Authorise it:\n    repo = icefloe.Repository.open(storage, "
        f"authorize_virtual_chunk_access=icefloe.containers_credentials({{{prefix!r}: {call}}}))",
        "unauthorized-virtual-chunk-container",
        location=location,
        url_prefix=prefix,
    )


def _credentials(scheme: str) -> str:
    return _CREDENTIALS_CALLS.get(scheme, "None")


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
        raise _refused(container, f"a {store.tag} store does not serve {scheme}:// URLs")
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
        raise _refused(
            container, f"your credentials would be sent to the account {account!r}, which the repository chose"
        )
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
                container, f"your credentials would be sent to the endpoint {endpoint}, which the repository chose"
            )
        if not _is_plain_https(endpoint or ""):
            raise _refused(container, f"the endpoint {endpoint}, which the repository chose, is not an https address")
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
        f"the virtual chunk container {prefix!r} that is stored in this repository is not used: {why}. To allow it, "
        f"configure the container yourself:\n    config = icefloe.RepositoryConfig(virtual_chunk_containers={{\n       "
        f" {prefix!r}: icefloe.VirtualChunkContainer({prefix!r}, store)}})\n    repo = "
        "icefloe.Repository.open(storage, config, authorize_virtual_chunk_access=...)",
        url_prefix=prefix,
    )


_REMEMBERED = 65_536
"""Locations whose resolved source is cached; a few hundred bytes each."""


class OpenStore(Protocol):
    """Opens the folder or bucket `prefix` of the store that a container describes."""

    def __call__(self, config: ObjectStoreConfig, credentials: Any, prefix: str) -> SourceStorage: ...


class VirtualContainers:
    """The containers of a repository, and the credentials their user gave for some of them.

    `authorized` maps the prefix of a container to its credentials, or to None where none are needed; a container that
    is not in it is never read. The name of a container authorises it only if the caller gave the container.
    """

    def __init__(
        self,
        containers: Mapping[str, VirtualChunkContainer],
        authorized: Mapping[str, Any] | None = None,
        open_store: OpenStore = open_object_store,
    ) -> None:
        self._containers = dict(containers)
        self._authorized = dict(authorized or {})
        self._open_store = open_store
        self._by_prefix = by_longest_prefix(self._containers)
        # The caller's containers come last, and so win.
        ordered = sorted(self._containers.values(), key=lambda container: not container.stored)
        self._by_name = {c.name: c for c in ordered if c.name is not None}
        self._given_names = {c.name for c in ordered if c.name is not None and not c.stored}
        self._credentials = {
            (key if key in self._given_names else container_prefix(key)): credentials
            for key, credentials in self._authorized.items()
        }
        self._stores: dict[tuple[str, str], SourceStorage] = {}
        self._places: dict[str, tuple[SourceStorage, str]] = {}

    def resolve(self, location: str, etag: str | None = None, last_modified: int | None = None) -> ObjectSource:
        """Where a location is read from; VirtualChunkError when no authorised container covers it."""
        place = self._places.get(location)
        if place is None:
            place = self._locate(location)
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[location] = place
        return object_source(place[0], place[1], etag, last_modified)

    def find_container(self, location: str) -> VirtualChunkContainer | None:
        """The container of a location: by name for `vcc://name/...`, else the one with the longest matching prefix."""
        scheme, _, rest = location.partition("://")
        if scheme == RELATIVE_SCHEME:
            return self._by_name.get(rest.partition("/")[0])
        return next((container for prefix, container in self._by_prefix if location.startswith(prefix)), None)

    def is_authorized(self, container: VirtualChunkContainer) -> bool:
        """Whether the caller authorised reads from a container, by its prefix or by a name that the caller gave it."""
        by_name = container.name if container.name in self._given_names and not container.stored else None
        return container_prefix(container.url_prefix) in self._credentials or by_name in self._credentials

    def check_locations(self, locations: Any) -> StringColumn:
        """A column of distinct locations in one spelling, each covered by a container; VirtualChunkError otherwise.

        Authorisation is not checked: a writer of references need not be able to read them.
        """
        column = normalise_locations(locations)
        covered = self._covered(column)
        if not covered.all():
            uncovered = np.flatnonzero(~covered)
            raise self._uncovered(column[int(uncovered[0])], others=len(uncovered) - 1)
        return column

    def select_covered(self, locations: StringColumn) -> tuple[StringColumn, npt.NDArray[np.bool_]]:
        """A column of distinct locations in one spelling, and for each whether a container covers it."""
        column = normalise_locations(locations)
        return column, self._covered(column)

    def _covered(self, column: StringColumn) -> npt.NDArray[np.bool_]:
        """For each location in its final spelling, whether a container covers it. Null needs none."""
        if len(column) <= FEW_TEXTS:
            return np.array([text is None or self.find_container(text) is not None for text in column], dtype=bool)
        import pyarrow.compute as pc  # noqa: PLC0415 - a twentieth of a second that a few locations do not need

        known = [prefix for prefix, _ in self._by_prefix]
        known += [f"{RELATIVE_SCHEME}://{name}/" for name in self._by_name]
        covered = pc.is_null(column.arrow)
        for prefix in known:
            covered = pc.or_(covered, pc.starts_with(column.arrow, pattern=prefix))
        found: npt.NDArray[np.bool_] = covered.to_numpy(zero_copy_only=False)
        return found

    def absolute(self, location: str) -> str:
        """The present URL of a location: `vcc://name/path` is below the prefix of that container."""
        if not location.startswith(f"{RELATIVE_SCHEME}://"):
            return location
        name, _, relative = location.partition("://")[2].partition("/")
        container = self._by_name.get(name)
        if container is None:
            raise self._uncovered(location)
        return container_prefix(container.url_prefix) + relative

    def _locate(self, location: str) -> tuple[SourceStorage, str]:
        location = normalise_location(location)
        container = self.find_container(location)
        if container is None:
            raise self._uncovered(location)
        if not self.is_authorized(container):
            raise no_authorization(location, container)
        prefix = container_prefix(container.url_prefix)
        by_name = container.name if container.name in self._given_names and not container.stored else None
        credentials = self._credentials.get(prefix, self._credentials.get(by_name or ""))
        url = normalise_location(self.absolute(location))
        if not url.startswith(prefix):
            raise _outside(location, prefix)
        config = plan_store(container, prefix, credentials)
        if isinstance(config, LocalFileSystemObjectStore):
            folder = _folder_of(config, prefix)
            config, root, key = replace(config, path=folder), f"file://{quote(folder)}", url_path(url[len(prefix) :])
            _refuse_escape(location, folder, key)
        else:
            root, key = split_url(url)
            if isinstance(config, AzureObjectStore) and not _names_account(config, root):
                # az://account/container/key
                folder, _, key = key.partition("/")
                root = f"{root}{folder}/"
            if not key or ".." in key.split("/"):
                raise _outside(location, prefix)
            _refuse_odd_root(location, root)
        store = self._stores.get((prefix, root))
        if store is None:
            store = self._stores[prefix, root] = self._open_store(config, credentials, root)
        return store, key

    def _uncovered(self, location: str, others: int = 0) -> VirtualChunkError:
        if location.startswith(f"{RELATIVE_SCHEME}://"):
            return no_such_name(location, sorted(self._by_name))
        return no_container(location, [prefix for prefix, _ in self._by_prefix], others)

    def __reduce__(self) -> tuple[Any, ...]:
        return VirtualContainers, (self._containers, self._authorized, self._open_store)


def _folder_of(store: LocalFileSystemObjectStore, prefix: str) -> str:
    """The folder of a local container's prefix.

    A store whose folder contains the prefix's own reads the paths as they are; any other folder takes the place of
    the prefix, so that files that moved keep working.
    """
    own = url_path(prefix.removeprefix("file://"))
    given = os.path.abspath(os.path.expanduser(store.folder)) if store.folder else "/"
    inside = given.rstrip("/") + "/"
    return own if own.startswith(inside) else inside


_BUCKET = r"[A-Za-z0-9$][A-Za-z0-9._$-]*"
_ROOT = re.compile(rf"[a-z0-9+.-]+://{_BUCKET}/")
_AZURE_ROOT = re.compile(rf"[a-z0-9+.-]+://({_BUCKET}@[A-Za-z0-9.-]+|{_BUCKET})/({_BUCKET}/)?")
_NO_BUCKET = ("http://", "https://", "memory://")


def _refuse_odd_root(location: str, root: str) -> None:
    """Refuse a bucket whose name would become more than a name in the address that requests are sent to."""
    name = _AZURE_ROOT if root.startswith(("az", "abfs")) else _ROOT
    if not root.startswith(_NO_BUCKET) and name.fullmatch(root) is None:
        raise VirtualChunkError(
            f"{location} is in {root}, which is not a valid name of a bucket or container. Allowed: letters, digits, "
            "'.', '-' and '_'",
            location=location,
        )


def _names_account(store: AzureObjectStore, root: str) -> bool:
    return "@" in root or "account" in store.opts or "account_name" in store.opts


def _refuse_escape(location: str, folder: str, key: str) -> None:
    """Refuse a path that leaves the folder, by dots or by a symbolic link."""
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, key))
    if "\0" in key or not (target + "/").startswith(root.rstrip("/") + "/"):
        raise _outside(location, folder)


def _outside(location: str, root: str) -> VirtualChunkError:
    return VirtualChunkError(
        f"{location} is outside its virtual chunk container {root}",
        location=location,
    )
