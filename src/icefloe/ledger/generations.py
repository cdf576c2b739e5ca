"""The generations: each is one object with its format, ledger, detection, import and removal."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, cast

from icefloe.errors import FormatError, ObjectNotFoundError, UnknownFormatError, UnsupportedError
from icefloe.formats.format import Format, get_format
from icefloe.formats.header import HEADER_BYTES, FileType, has_magic, parse_header
from icefloe.ledger.ledger import Ledger, RefFiles, StoredConfig, WholeRefsFile
from icefloe.ledger.repository import names_generation
from icefloe.ledger.repository_refs import CONFIG_KEY
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.storage.contract import Storage, Versioned


@dataclass(frozen=True, slots=True)
class Detected:
    """The generation in a storage, and its stored configuration if detection read it."""

    spec_version: SpecVersion
    found: Versioned | None = None
    """The object that holds the configuration, if detection read it."""
    identified_by: Versioned | None = None
    """The object by which the generation was recognised, where its ledger can use it."""
    config_was_read: bool = False
    """Whether detection asked for the configuration. It is None if there is none."""

    def config(self) -> StoredConfig | None:
        """The stored configuration, if detection read it. Raises FormatError if it cannot be decoded."""
        if self.found is None:
            return StoredConfig(None) if self.config_was_read else None
        return GENERATIONS[self.spec_version].read_config(self.found)


class Generation:
    """A version of the format on disk: its format, its ledger, and how it is detected in a storage.

    The modules of a generation are imported at their first use, because some need large libraries.
    """

    spec_version: ClassVar[SpecVersion]
    ledger_class: ClassVar[str]
    """The class in the ledger module that has the name of the generation."""
    refs_folder: ClassVar[str | None] = None
    """The folder of refs. None if one file contains refs, settings and history. A conversion removes that file."""
    config_keys: ClassVar[tuple[str, ...]] = ()
    """The objects that may contain the configuration."""
    reads_files_of: ClassVar[SpecVersion | None] = None
    """The older generation whose files this one reads as they are. Only refs and history are converted."""
    locate: ClassVar[str | None] = None
    """The function of the ledger module that finds the files of a repository that may be elsewhere."""

    @property
    def format(self) -> Format:
        """How files are named, encoded and decoded."""
        return get_format(self.spec_version)

    @property
    def capabilities(self) -> Capabilities:
        """Abilities and limits."""
        return self.format.capabilities

    def make_ledger(self, storage: Storage, metadata_files: MetadataFiles) -> Ledger:
        """The ledger of a repository of this generation."""
        make = cast(Callable[[Storage, MetadataFiles], Ledger], self._ledger())
        return make(storage, metadata_files)

    async def locate_files(self, storage: Storage) -> Storage:
        """The storage of all files of a repository, which may differ from the storage that is opened."""
        if self.locate is None:
            return storage
        find = cast(Callable[[Storage], Awaitable[Storage]], getattr(self._module(), self.locate))
        return await find(storage)

    def read_config(self, found: Versioned) -> StoredConfig:
        """Decode the configuration in an object that detection read."""
        read = cast(Callable[[Versioned], StoredConfig], self._module().stored_config)
        return read(found)

    is_usually_named = False
    """Whether `config.json` contains the name of the generation, except in repositories of early writers."""

    async def recognise(self, storage: Storage) -> Detected | None:
        """Detect the generation by one object that its repositories have. None if it is not there."""
        return None

    async def search(self, storage: Storage) -> bool:
        """Detect the generation by a listing, or by an object that other programs may have written."""
        return False

    @property
    def ref_files(self) -> RefFiles | WholeRefsFile:
        """How refs are stored, to recover those that cannot be read."""
        return cast("RefFiles | WholeRefsFile", self._module().REF_FILES)

    async def has_remains_of_refs(self, storage: Storage, names: Container[str]) -> bool:
        """Whether a storage holds refs that may be damaged. `names` are the objects and folders at its top."""
        return (self.refs_folder or "") in names

    def has_remains(self, names: Container[str]) -> bool:
        """Whether a storage without refs holds other files of this generation."""
        return False

    async def has_refs(self, storage: Storage) -> bool:
        """Whether a storage holds refs of the generation, also while another generation is the one that opens."""
        raise NotImplementedError

    async def remove(self, storage: Storage) -> None:
        """Remove the refs of the generation from a storage. Its other files stay."""
        await self._ledger().remove(storage)

    async def remove_name(self, storage: Storage) -> None:
        """Remove the name of the generation from the configuration, see `Ledger.remove_name`."""
        await self._ledger().remove_name(storage)

    def _ledger(self) -> type[Ledger]:
        return cast(type[Ledger], getattr(self._module(), self.ledger_class))

    def _module(self) -> ModuleType:
        return importlib.import_module(f"icefloe.ledger.{self.spec_version.value}")


class _Dataset(Generation):
    spec_version = SpecVersion.DATASET
    ledger_class = "DatasetLedger"
    locate = "locate_data"

    async def search(self, storage: Storage) -> bool:
        state = await _find_whole(storage, "state.json")
        return state is not None and _is_dataset_state(state)

    async def has_refs(self, storage: Storage) -> bool:
        return await storage.exists("state.json")

    async def has_remains_of_refs(self, storage: Storage, names: Container[str]) -> bool:
        return "state.json" in names


class _Store(Generation):
    spec_version = SpecVersion.STORE
    ledger_class = "StoreLedger"
    refs_folder = "r/"
    config_keys = ("config.json",)
    locate = "find_legacy_msgpack"

    _main = ("r/main/", "r/branch:main/")

    async def search(self, storage: Storage) -> bool:
        return await _search_sequence(storage, self._main)

    async def has_refs(self, storage: Storage) -> bool:
        return await _has_sequence(storage, self._main)


class _Repository(Generation):
    spec_version = SpecVersion.REPOSITORY
    ledger_class = "RepositoryLedger"
    refs_folder = "refs/"
    config_keys = ("config.json", "config.yaml")
    is_usually_named = True
    _main = ("refs/branch.main/", "refs/branch:main/")

    async def recognise(self, storage: Storage) -> Detected | None:
        first = await _find_whole(storage, "refs/branch.main/ZZZZZZZZ.json")
        return None if first is None else Detected(self.spec_version)

    async def search(self, storage: Storage) -> bool:
        return await _search_sequence(storage, self._main)

    async def has_refs(self, storage: Storage) -> bool:
        if await _has_sequence(storage, self._main):
            return True
        named = await _find_versioned(storage, CONFIG_KEY)
        return named is not None and names_generation(named)

    async def has_remains_of_refs(self, storage: Storage, names: Container[str]) -> bool:
        return self.refs_folder in names and await _has_numbered_files(storage, self.refs_folder)

    def has_remains(self, names: Container[str]) -> bool:
        return "snapshots/" in names and CONFIG_KEY in names


class _Icechunk1(Generation):
    spec_version = SpecVersion.ICECHUNK1
    ledger_class = "Icechunk1Ledger"
    refs_folder = "refs/"
    config_keys = ("config.yaml",)

    async def recognise(self, storage: Storage) -> Detected | None:
        # Fetch the configuration too: one more concurrent request is cheaper than another round trip.
        current, config = await asyncio.gather(
            _find_versioned(storage, "refs/branch.main/ref.json"), _find_versioned(storage, "config.yaml")
        )
        return None if current is None else Detected(self.spec_version, config, current, config_was_read=True)

    async def has_refs(self, storage: Storage) -> bool:
        return await storage.exists("refs/branch.main/ref.json")

    async def has_remains_of_refs(self, storage: Storage, names: Container[str]) -> bool:
        return self.refs_folder in names and not await _has_numbered_files(storage, self.refs_folder)

    def has_remains(self, names: Container[str]) -> bool:
        return "snapshots/" in names and CONFIG_KEY not in names


class _Icechunk2(Generation):
    spec_version = SpecVersion.ICECHUNK2
    ledger_class = "Icechunk2Ledger"
    reads_files_of = SpecVersion.ICECHUNK1

    async def recognise(self, storage: Storage) -> Detected | None:
        repo = await _find_versioned(storage, "repo")
        if repo is None:
            return None
        _check_repo_file(repo.data[:HEADER_BYTES], storage.url)
        return Detected(self.spec_version, repo, repo)

    async def has_refs(self, storage: Storage) -> bool:
        return await storage.exists("repo")

    async def has_remains_of_refs(self, storage: Storage, names: Container[str]) -> bool:
        # Backups of the repo file stay when the repository is converted to another generation in place.
        return "repo" in names or ("overwritten/" in names and not await find_generations(storage))


GENERATIONS: Mapping[SpecVersion, Generation] = {
    each.spec_version: each for each in (_Dataset(), _Store(), _Repository(), _Icechunk1(), _Icechunk2())
}
"""Every generation, oldest first."""

DEFAULT_SPEC_VERSION = SpecVersion.REPOSITORY
"""The generation of new repositories."""


def shares_refs(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether two generations use the same file names for refs, so that they cannot coexist."""
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


def takes_precedence(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether a storage with both generations opens as the first one."""
    return first > second


async def find_generations(storage: Storage) -> set[SpecVersion]:
    """Every generation that has refs in a storage. More than one while a conversion is in progress."""
    return {version for version, generation in GENERATIONS.items() if await generation.has_refs(storage)}


async def guess_generation(storage: Storage) -> SpecVersion | None:
    """The generation of a repository that may not open, by the files that are left of it."""
    names = set(await storage.list_names(""))
    newest_first = list(GENERATIONS.values())[::-1]
    for generation in newest_first:
        if await generation.has_remains_of_refs(storage, names):
            return generation.spec_version
    return next((generation.spec_version for generation in newest_first if generation.has_remains(names)), None)


async def remove_generation(storage: Storage, version: SpecVersion, successor: SpecVersion) -> None:
    """Remove the refs and the configuration of a generation. Its other files stay."""
    generation = GENERATIONS[version]
    await generation.remove(storage)
    keys = [key for key in generation.config_keys if key not in GENERATIONS[successor].config_keys]
    if keys:
        await storage.delete(keys)


def make_ledger(spec_version: SpecVersion, storage: Storage, metadata_files: MetadataFiles) -> Ledger:
    """The ledger of a repository of that generation."""
    return GENERATIONS[spec_version].make_ledger(storage, metadata_files)


async def locate_files(spec_version: SpecVersion, storage: Storage) -> Storage:
    """The storage of all files of a repository, which may differ from the storage that is opened."""
    return await GENERATIONS[spec_version].locate_files(storage)


async def detect(storage: Storage) -> Detected | None:
    """Detect the generation in a storage. None if there is none. Raises UnknownFormatError for a newer format.

    The `config.json` of the default generation contains its name. Other generations are detected by one object, which
    is requested at the same time. Early repositories without that name come next, and then rare generations, which are
    searched for. The newest generation wins.
    """
    named = await _find_versioned(storage, CONFIG_KEY)
    if named is not None and names_generation(named):
        return Detected(DEFAULT_SPEC_VERSION, named)
    newest_first = list(GENERATIONS.values())[::-1]
    for is_usually_named in (False, True):
        asked = [each for each in newest_first if each.is_usually_named is is_usually_named]
        for detected in await asyncio.gather(*(each.recognise(storage) for each in asked)):
            if detected is not None:
                return detected
    searched = await asyncio.gather(*(each.search(storage) for each in newest_first))
    for generation, is_there in zip(newest_first, searched, strict=True):
        if is_there:
            return Detected(generation.spec_version)
    return None


async def detect_generation(storage: Storage) -> SpecVersion | None:
    """The generation in a storage. None if there is none. Raises UnknownFormatError for a newer one."""
    detected = await detect(storage)
    return None if detected is None else detected.spec_version


_NEWEST_SPEC = 2
_SEQUENCE = re.compile(r"(?:[0-9A-Z]{8}|[0-9A-Z]{13})\.json")


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


async def _search_sequence(storage: Storage, folders: tuple[str, ...]) -> bool:
    """The same as `_has_sequence`. False if the storage cannot be listed."""
    try:
        return await _has_sequence(storage, folders)
    except UnsupportedError:
        return False


async def _has_sequence(storage: Storage, folders: tuple[str, ...]) -> bool:
    """Whether one of the folders contains numbered branch files."""
    listed = await asyncio.gather(*(storage.list_names(folder) for folder in folders))
    return any(_SEQUENCE.fullmatch(name) for names in listed for name in names)


async def _has_numbered_files(storage: Storage, folder: str) -> bool:
    """Whether a folder of refs contains a numbered branch file."""
    async for page in storage.list(folder):
        if any(_SEQUENCE.fullmatch(item.key.rpartition("/")[2]) for item in page):
            return True
    return False


def _check_repo_file(start: bytes, url: str) -> None:
    if not has_magic(start):
        raise UnknownFormatError(f"the object `repo` of {url} is not a repository file: it starts with {start[:12]!r}")
    try:
        header = parse_header(start)
    except FormatError as error:
        raise UnknownFormatError(f"the object `repo` of {url} is truncated: {error}") from error
    if header.spec_version > _NEWEST_SPEC:
        raise UnknownFormatError(
            f"{url} has spec version {header.spec_version}, written by {header.writer!r}. This library reads versions "
            f"up to {_NEWEST_SPEC}. Upgrade icefloe",
            spec_version=header.spec_version,
        )
    if header.file_type != FileType.REPO_INFO:
        raise UnknownFormatError(f"the object `repo` of {url} has file type {header.file_type}, expected 6")


def _is_dataset_state(data: bytes) -> bool:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(state, dict) and {"id", "generation", "snapshots"} <= state.keys()
