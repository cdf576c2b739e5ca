"""Virtual chunks are read from the containers a repository names and its user has authorised, and nowhere else.

A container that a repository holds is data of a stranger. It tells that there are references below a prefix. What is
read below an authorised prefix, and where credentials go, is decided by what the caller wrote: the prefix, the
credentials, and the containers of the caller's own configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from icefloe.chunks.advice import no_authorization, no_container, no_such_name
from icefloe.chunks.locations import (
    RELATIVE_SCHEME,
    by_longest_prefix,
    container_prefix,
    normalise_location,
    normalise_locations,
    split_url,
    url_path,
)
from icefloe.chunks.source import Source, source_in
from icefloe.chunks.stored_containers import plan_store
from icefloe.errors import VirtualChunkError
from icefloe.model.object_store_config import AzureObjectStore, LocalFileSystemObjectStore, ObjectStoreConfig
from icefloe.model.string_column import FEW_TEXTS, StringColumn
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.storage.sources import SourceStorage
from icefloe.storage.virtual import open_object_store

_REMEMBERED = 65_536
"""Locations whose place is remembered; a few hundred bytes each."""


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

    def resolve(self, location: str, etag: str | None = None, last_modified: int | None = None) -> Source:
        """Where a location is read from; VirtualChunkError when no authorised container covers it."""
        place = self._places.get(location)
        if place is None:
            place = self._locate(location)
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[location] = place
        return source_in(place[0], place[1], etag, last_modified)

    def find_container(self, location: str) -> VirtualChunkContainer | None:
        """The container of a location: by name for `vcc://name/...`, else the one with the longest matching prefix."""
        scheme, _, rest = location.partition("://")
        if scheme == RELATIVE_SCHEME:
            return self._by_name.get(rest.partition("/")[0])
        return next((container for prefix, container in self._by_prefix if location.startswith(prefix)), None)

    def check_locations(self, locations: Any) -> StringColumn:
        """A column of distinct locations in one spelling, each covered by a container; VirtualChunkError otherwise.

        Authorisation is not asked for: who writes references need not be able to read them.
        """
        column = normalise_locations(locations)
        if len(column) <= FEW_TEXTS:
            uncovered = [text for text in column if text is not None and self.find_container(text) is None]
            if uncovered:
                raise self._uncovered(uncovered[0], others=len(uncovered) - 1)
            return column
        import pyarrow.compute as pc  # noqa: PLC0415 - a twentieth of a second that a few locations do not need

        known = [prefix for prefix, _ in self._by_prefix]
        known += [f"{RELATIVE_SCHEME}://{name}/" for name in self._by_name]
        covered = pc.is_null(column.arrow)
        for prefix in known:
            covered = pc.or_(covered, pc.starts_with(column.arrow, pattern=prefix))
        if not pc.all(covered).as_py():
            missing = column.arrow.filter(pc.invert(covered))
            raise self._uncovered(missing[0].as_py(), others=len(missing) - 1)
        return column

    def absolute(self, location: str) -> str:
        """The URL a location stands for today: `vcc://name/path` below the prefix of that container."""
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
        prefix = container_prefix(container.url_prefix)
        by_name = container.name if container.name in self._given_names and not container.stored else None
        if prefix not in self._credentials and by_name not in self._credentials:
            raise no_authorization(location, container)
        credentials = self._credentials.get(prefix, self._credentials.get(by_name or ""))
        url = normalise_location(self.absolute(location))
        if not url.startswith(prefix):
            raise _outside(location, prefix)
        config = plan_store(container, prefix, credentials)
        if isinstance(config, LocalFileSystemObjectStore):
            folder = _folder_of(config, prefix)
            config, root, key = replace(config, path=folder), f"file://{folder}", url_path(url[len(prefix) :])
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
    """The folder that the prefix of a local container stands for.

    A store whose folder contains the prefix's own reads the paths as they are; any other folder takes the place of
    the prefix, so that files that moved keep working.
    """
    own = url_path(prefix.removeprefix("file://"))
    given = os.path.abspath(os.path.expanduser(store.path)) if store.path else "/"
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
            f"{location} is in {root}, which is not the name of a bucket or container: letters, digits, '.', '-' and "
            "'_' are allowed",
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
        f"{location} leads out of its virtual chunk container {root}; only what lies inside is read",
        location=location,
    )
