"""Find out which generation a storage holds, and make its ledger."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from icefloe.errors import FormatError, ObjectNotFoundError, UnknownFormatError, UnsupportedError
from icefloe.formats.header import HEADER_BYTES, FileType, has_magic, parse_header
from icefloe.ledger import icechunk1, icechunk2
from icefloe.ledger.contract import Ledger, StoredConfig
from icefloe.ledger.repository import CONFIG_KEY, names_generation, stored_config
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage, Versioned

_LEDGERS = {
    SpecVersion.DATASET: ("dataset", "DatasetLedger"),
    SpecVersion.STORE: ("store", "StoreLedger"),
    SpecVersion.REPOSITORY: ("repository", "RepositoryLedger"),
    SpecVersion.ICECHUNK1: ("icechunk1", "Icechunk1Ledger"),
    SpecVersion.ICECHUNK2: ("icechunk2", "Icechunk2Ledger"),
}
"""Module and class; only those in use are loaded, because some bring large libraries with them."""


def make_ledger(spec_version: SpecVersion, storage: Storage, metadata_files: MetadataFiles) -> Ledger:
    """The ledger of a repository of that generation."""
    module, name = _LEDGERS[spec_version]
    make = cast(
        Callable[[Storage, MetadataFiles], Ledger], getattr(importlib.import_module(f"icefloe.ledger.{module}"), name)
    )
    return make(storage, metadata_files)


async def locate_files(spec_version: SpecVersion, storage: Storage) -> Storage:
    """The storage of all files of a repository, which may be elsewhere than where it is opened."""
    if spec_version is SpecVersion.DATASET:
        from icefloe.ledger.dataset import locate_data  # noqa: PLC0415 - see _LEDGERS

        return await locate_data(storage)
    if spec_version is SpecVersion.STORE:
        from icefloe.ledger.store import locate_code_form  # noqa: PLC0415 - see _LEDGERS

        return await locate_code_form(storage)
    return storage


_NEWEST_SPEC = 2
_SEQUENCE = re.compile(r"(?:[0-9A-Z]{8}|[0-9A-Z]{13})\.json")


@dataclass(frozen=True, slots=True)
class Detected:
    """The generation in a storage, and its stored configuration if detection read it."""

    spec_version: SpecVersion
    found: Versioned | None = None
    """The object that holds the configuration, if detection read it."""
    identified_by: Versioned | None = None
    """The object by which the generation was recognised, where its ledger can use it."""

    def config(self) -> StoredConfig | None:
        """The stored configuration, if detection read it. Raises FormatError if it cannot be decoded."""
        if self.found is None:
            # There it was asked for together with that object.
            return StoredConfig(None) if self.spec_version is SpecVersion.ICECHUNK1 else None
        return _READERS[self.spec_version](self.found)


_READERS: dict[SpecVersion, Callable[[Versioned], StoredConfig]] = {
    SpecVersion.REPOSITORY: stored_config,
    SpecVersion.ICECHUNK1: icechunk1.stored_config,
    SpecVersion.ICECHUNK2: icechunk2.stored_config,
}


async def detect(storage: Storage) -> Detected | None:
    """Detect what a storage holds. None if it holds nothing. Raises UnknownFormatError for a newer format.

    The default generation is named in its `config.json`: one request. Others are recognised by their objects.
    """
    try:
        found = await storage.get_versioned(CONFIG_KEY)
    except ObjectNotFoundError:
        found = None
    if found is not None and names_generation(found):
        return Detected(SpecVersion.REPOSITORY, found)
    return await _recognise(storage)


async def detect_generation(storage: Storage) -> SpecVersion | None:
    """The generation in a storage. None if there is none. Raises UnknownFormatError for a newer one."""
    detected = await detect(storage)
    return None if detected is None else detected.spec_version


async def _recognise(storage: Storage) -> Detected | None:
    """The three generations in use are recognised by one object each, asked for at the same time.

    The configuration of the official generations comes along: a request more at once costs less than a round more.
    """
    repo, current, sequence, config = await asyncio.gather(
        _find_versioned(storage, icechunk2.REPO_KEY),
        _find_versioned(storage, "refs/branch.main/ref.json"),
        _find_whole(storage, "refs/branch.main/ZZZZZZZZ.json"),
        _find_versioned(storage, icechunk1.CONFIG_KEY),
    )
    if repo is not None:
        _check_repo_file(repo.data[:HEADER_BYTES], storage.url)
        return Detected(SpecVersion.ICECHUNK2, repo, repo)
    if current is not None:
        return Detected(SpecVersion.ICECHUNK1, config, current)
    version = SpecVersion.REPOSITORY if sequence is not None else await _detect_early(storage)
    return None if version is None else Detected(version)


async def _detect_early(storage: Storage) -> SpecVersion | None:
    """Detect the rare generations and layouts."""
    dotted, colon, store, early_store, state = await asyncio.gather(
        _has_sequence(storage, "refs/branch.main/"),
        _has_sequence(storage, "refs/branch:main/"),
        _has_sequence(storage, "r/main/"),
        _has_sequence(storage, "r/branch:main/"),
        _find_whole(storage, "state.json"),
    )
    if dotted or colon:
        return SpecVersion.REPOSITORY
    if store or early_store:
        return SpecVersion.STORE
    if state is not None and _is_dataset_state(state):
        return SpecVersion.DATASET
    return None


async def _find_versioned(storage: Storage, key: str) -> Versioned | None:
    try:
        return await storage.get_versioned(key)
    except ObjectNotFoundError:
        return None


async def _find_whole(storage: Storage, key: str) -> bytes | None:
    try:
        return await storage.get(key)
    except ObjectNotFoundError:
        return None


async def _has_sequence(storage: Storage, folder: str) -> bool:
    try:
        names = await storage.list_names(folder)
    except UnsupportedError:
        return False  # A storage that cannot be listed holds nothing that is found by listing.
    return any(_SEQUENCE.fullmatch(name) for name in names)


def _check_repo_file(start: bytes, url: str) -> None:
    if not has_magic(start):
        raise UnknownFormatError(f"the object `repo` of {url} is no repository file: it starts with {start[:12]!r}")
    try:
        header = parse_header(start)
    except FormatError as error:
        raise UnknownFormatError(f"the object `repo` of {url} is cut short: {error}") from error
    if header.spec_version > _NEWEST_SPEC:
        raise UnknownFormatError(
            f"{url} was written with spec version {header.spec_version} by {header.writer!r}; this library knows up to "
            f"{_NEWEST_SPEC}: upgrade icefloe",
            spec_version=header.spec_version,
        )
    if header.file_type != FileType.REPO_INFO:
        raise UnknownFormatError(f"the object `repo` of {url} is of file type {header.file_type}, expected 6")


def _is_dataset_state(data: bytes) -> bool:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(state, dict) and {"id", "generation", "snapshots"} <= state.keys()
