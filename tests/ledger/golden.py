"""Repositories of official releases opened through the public door, and what their expected.json says of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import WrapperStore

import icefloe


@dataclasses.dataclass(frozen=True)
class Golden:
    """One fixture: its folder and its description."""

    folder: Path
    expected: dict[str, Any]

    @classmethod
    def at(cls, folder: Path) -> Golden:
        return cls(folder, json.loads((folder / "expected.json").read_text()))

    def copied(self, target: Path) -> Path:
        """The repository in a folder of its own, for tests that write."""
        shutil.copytree(self.folder / "repo", target)
        return target

    def open(self, place: Path | None = None) -> icefloe.Repository:
        """The repository, its virtual files found in the fixture's own folder."""
        config, authorized = self.containers()
        return icefloe.Repository.open(place or self.folder / "repo", config, authorized)

    def containers(self) -> tuple[icefloe.RepositoryConfig | None, dict[str, Any]]:
        """Containers whose locations are those of the repository, and whose files are beside it."""
        virtual_map: Mapping[str, str] = self.expected.get("virtual_map") or {}
        if not virtual_map:
            return None, {}
        config = icefloe.RepositoryConfig()
        authorized: dict[str, Any] = {}
        for prefix, folder in virtual_map.items():
            root = (self.folder / folder).resolve()
            name = prefix.removeprefix("vcc://").strip("/") if prefix.startswith("vcc://") else None
            url = f"{root.as_uri()}/" if name else prefix
            store = icefloe.local_filesystem_store(str(root))
            config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store, name))
            authorized[url] = None
        return config, authorized

    @property
    def tips(self) -> dict[str, str]:
        """Every branch and tag, and where it points."""
        return {f"branch:{k}": v for k, v in self.expected["branches"].items()} | {
            f"tag:{k}": v for k, v in self.expected["tags"].items()
        }


class Forgiving(WrapperStore[Any]):
    """A store in which chunks of unreachable places read as fill value."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        try:
            return await super().get(key, *args, **options)
        except icefloe.VirtualChunkError:
            return None


def values_digest(store: Any, path: str) -> str:
    """SHA-256 of the values of an array, as expected.json has it."""
    values = np.asarray(zarr.open_array(store, path=path.strip("/"), mode="r")[...])
    if values.dtype.kind in "OUT":
        flat = [str(value) for value in values.ravel().tolist()]
        return hashlib.sha256(json.dumps(flat, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
    little = values.astype(values.dtype.newbyteorder("<"))
    return hashlib.sha256(np.ascontiguousarray(little).tobytes()).hexdigest()
