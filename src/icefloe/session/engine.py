"""What every session of a repository works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.archive.files import Archive, CacheLimits
from icefloe.chunks.reader import ChunkReader
from icefloe.chunks.virtual import VirtualContainers
from icefloe.errors import RepositoryNotFoundError
from icefloe.formats.contract import Format
from icefloe.formats.registry import get_format
from icefloe.ledger.contract import Ledger
from icefloe.ledger.detect import detect_generation
from icefloe.ledger.registry import make_ledger
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.config import CachingConfig, RepositoryConfig
from icefloe.storage.contract import Storage
from icefloe.storage.settings import configured_storage


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of one opened repository, shared by its sessions; pickles as what it was built from."""

    storage: Storage
    format: Format
    archive: Archive
    ledger: Ledger
    reader: ChunkReader
    config: RepositoryConfig
    authorized: Mapping[str, Any]

    @property
    def containers(self) -> VirtualContainers:
        return self.reader.containers

    @property
    def capabilities(self) -> Capabilities:
        return self.format.capabilities

    async def check_writable(self) -> None:
        """Whether the repository takes changes of refs, settings and history, and is still of this generation.

        Raises
        ------
        ReadOnlyError
            The repository itself says that it takes no writes.
        RepositoryNotFoundError
            Another process converted the repository since it was opened. The refs of the old generation are gone: a
            collection by them would delete everything, and what is written to them is found by nobody.
        """
        await self.ledger.check_writable()
        version = self.format.spec_version
        if version in (SpecVersion.DATASET, SpecVersion.ICECHUNK2):
            return  # their refs, settings and history are in one file, which is gone after a conversion
        found = await detect_generation(self.storage)
        if found is not None and found is not version:
            raise RepositoryNotFoundError(
                f"{self.storage.url} was opened as a repository of generation {version.value!r} and is of generation "
                f"{found.value!r} now: another process converted it. Open it again",
                url=self.storage.url,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return build_engine, (self.storage, self.format.spec_version, self.config, dict(self.authorized))


def build_engine(
    storage: Storage, spec_version: SpecVersion, config: RepositoryConfig, authorized: Mapping[str, Any]
) -> Engine:
    """The parts of a repository of a known generation; touches no storage."""
    storage = configured_storage(storage, config.storage)
    level = None if config.compression is None else config.compression.level
    generation = get_format(spec_version).compressed_at(level)
    caching = config.caching or CachingConfig()
    limits = CacheLimits(
        snapshots=caching.snapshots_limit_bytes,
        manifests=caching.manifests_limit_bytes,
        transaction_logs=caching.transaction_logs_limit_bytes,
        attributes=caching.effective("num_bytes_attributes"),
    )
    archive = Archive(storage, generation, limits)
    ledger = make_ledger(spec_version, storage, archive)
    reader = ChunkReader.configured(storage, generation.chunk_key, config, authorized)
    return Engine(storage, generation, archive, ledger, reader, config, authorized)
