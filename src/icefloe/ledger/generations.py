"""Find out which generation a storage holds, and make its ledger."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from icefloe.errors import FormatError, ObjectNotFoundError, UnknownFormatError, UnsupportedError
from icefloe.formats.contract import Format, get_format
from icefloe.formats.header import HEADER_BYTES, FileType, has_magic, parse_header
from icefloe.ledger import icechunk1, icechunk2
from icefloe.ledger.contract import Ledger, StoredConfig
from icefloe.ledger.repository import CONFIG_KEY, names_generation, stored_config
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage, Versioned


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation: its format, its ledger, and what tells it from the others in a storage.

    The modules of a generation are loaded when they are first used, because some bring large libraries with them.
    """

    spec_version: SpecVersion
    ledger_class: str
    """The class in the ledger module that has the name of the generation."""
    refs_folder: str | None
    """The folder of refs. None: one file holds refs, settings and history, and is gone after a conversion."""
    config_keys: tuple[str, ...] = ()
    """The objects that may hold the configuration."""
    read_config: Callable[[Versioned], StoredConfig] | None = None
    """Decodes the configuration from an object that detection read."""
    reads_files_of: SpecVersion | None = None
    """The older generation whose files this one reads as they are. Only refs and history are converted."""
    locate: str | None = None
    """The function of the ledger module that finds the files of a repository that may be elsewhere."""

    @property
    def format(self) -> Format:
        """How files are named, encoded and decoded; with the capabilities."""
        return get_format(self.spec_version)

    def make_ledger(self, storage: Storage, metadata_files: MetadataFiles) -> Ledger:
        """The ledger of a repository of this generation."""
        make = cast(Callable[[Storage, MetadataFiles], Ledger], getattr(self._module(), self.ledger_class))
        return make(storage, metadata_files)

    async def locate_files(self, storage: Storage) -> Storage:
        """The storage of all files of a repository, which may be elsewhere than where it is opened."""
        if self.locate is None:
            return storage
        find = cast(Callable[[Storage], Awaitable[Storage]], getattr(self._module(), self.locate))
        return await find(storage)

    def _module(self) -> ModuleType:
        return importlib.import_module(f"icefloe.ledger.{self.spec_version.value}")


GENERATIONS: Mapping[SpecVersion, Generation] = {
    each.spec_version: each
    for each in (
        Generation(SpecVersion.DATASET, "DatasetLedger", None, locate="locate_data"),
        Generation(SpecVersion.STORE, "StoreLedger", "r/", ("config.json",), locate="find_legacy_msgpack"),
        Generation(SpecVersion.REPOSITORY, "RepositoryLedger", "refs/", ("config.json", "config.yaml"), stored_config),
        Generation(SpecVersion.ICECHUNK1, "Icechunk1Ledger", "refs/", ("config.yaml",), icechunk1.stored_config),
        Generation(
            SpecVersion.ICECHUNK2,
            "Icechunk2Ledger",
            None,
            read_config=icechunk2.stored_config,
            reads_files_of=SpecVersion.ICECHUNK1,
        ),
    )
}
"""Every generation, oldest first."""

DEFAULT_SPEC_VERSION = SpecVersion.REPOSITORY
"""The generation of new repositories."""


def shares_refs(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether two generations keep refs under the same names, so that they cannot be stored side by side."""
    folder = GENERATIONS[first].refs_folder
    return first is not second and folder is not None and folder == GENERATIONS[second].refs_folder


def find_bridge(first: SpecVersion, second: SpecVersion) -> SpecVersion | None:
    """The generation that a repository has in between when it is converted in place. None if it needs none.

    Refs that have the same names in both generations cannot be replaced in one step. The newest generation that has all
    refs in one file can.
    """
    if not shares_refs(first, second):
        return None
    return max(version for version, generation in GENERATIONS.items() if generation.refs_folder is None)


def make_ledger(spec_version: SpecVersion, storage: Storage, metadata_files: MetadataFiles) -> Ledger:
    """The ledger of a repository of that generation."""
    return GENERATIONS[spec_version].make_ledger(storage, metadata_files)


async def locate_files(spec_version: SpecVersion, storage: Storage) -> Storage:
    """The storage of all files of a repository, which may be elsewhere than where it is opened."""
    return await GENERATIONS[spec_version].locate_files(storage)


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
        read_config = GENERATIONS[self.spec_version].read_config
        assert read_config is not None, "detection reads only objects that it can decode"
        return read_config(self.found)


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
