"""Large repositories: a million references, one change in them, thousands of arrays, ten million references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import Meter, Step, Workload, create_repository, open_repository

PREFIX = "s3://bucket/"


def _config(library: Any) -> Any:
    config = library.RepositoryConfig.default()
    config.set_virtual_chunk_container(library.VirtualChunkContainer(PREFIX, library.s3_store(region="us-east-1")))
    return config


def _side(scale: float) -> int:
    return int(1000 * scale**0.5)


def commit_million(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    side = _side(scale)
    repo = create_repository(library, folder, config=_config(library))
    locations = [f"{PREFIX}file-{index // 1000:05d}.nc" for index in range(side * side)]
    offsets = np.arange(side * side, dtype="u8") * 100
    lengths = np.full(side * side, 100, dtype="u8")
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    root.create_array("v", shape=(side, side), chunks=(1, 1), dtype="i1")
    root.create_array("time", shape=(side,), chunks=(side,), dtype="f8")[:] = np.arange(side)
    with meter.timed():
        session.store.set_virtual_refs_arr("/v", (side, side), locations, offsets, lengths)
        session.commit("a million")


def commit_specs(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The same references as objects, as scripts and older versions of VirtualiZarr give them."""
    side = _side(scale)
    repo = create_repository(library, folder, config=_config(library))
    specs = [
        library.VirtualChunkSpec(
            [index // side, index % side], f"{PREFIX}file-{index // 1000:05d}.nc", index * 100, 100
        )
        for index in range(side * side)
    ]
    session = repo.writable_session("main")
    zarr.group(session.store).create_array("v", shape=(side, side), chunks=(1, 1), dtype="i1")
    with meter.timed():
        session.store.set_virtual_refs("v", specs)
        session.commit("a million")


def read_coordinate(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with meter.timed():
        session = open_repository(library, folder).readonly_session("main")
        zarr.open_array(session.store, path="time", mode="r")[:]


def find_first_chunk(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    session = open_repository(library, folder).readonly_session("main")
    with meter.timed():
        session.chunk_type("/v", [0, 0])


def change_one(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = open_repository(library, folder)
    session = repo.writable_session("main")
    with meter.timed():
        session.store.set_virtual_ref("v/c/5/5", f"{PREFIX}other.nc", offset=0, length=10)
        session.commit("one")


def commit_arrays(library: Any, folder: Path, meter: Meter, scale: float, **options: Any) -> None:
    repo = create_repository(library, folder, **options)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    values = np.arange(300, dtype="f8")
    for index in range(int(5760 * scale)):
        root.create_array(f"array-{index}", shape=(300,), chunks=(100,), dtype="f8", compressors=None)[:] = values
    with meter.timed():
        snapshot_id = session.commit("arrays")
    if not options:
        meter.count("manifests", len(repo.list_manifest_files(snapshot_id)))


def in_generation(name: str) -> Step:
    """Return a step that commits the arrays in one of our generations. The official package uses its newest."""

    def step(library: Any, folder: Path, meter: Meter, scale: float) -> None:
        options = {"spec_version": library.SpecVersion(name)} if library.__name__ == "icefloe" else {}
        commit_arrays(library, folder, meter, scale, **options)

    return step


def read_one_array(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with meter.timed():
        session = open_repository(library, folder).readonly_session("main")
        zarr.open_array(session.store, path="array-7", mode="r")[:]


def commit_ten_million(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    side = _side(scale * 0.5)
    repo = create_repository(library, folder, config=_config(library))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    codes = np.repeat(np.arange(side), side)
    names = np.array([f"{PREFIX}file-{index:05d}.nc" for index in range(side)], dtype=object)
    offsets = np.arange(side * side, dtype="u8") * 100
    lengths = np.full(side * side, 100, dtype="u8")
    with meter.timed():
        for index in range(20):
            root.create_array(f"v{index}", shape=(side, side), chunks=(1, 1), dtype="i1")
            locations = names[codes] if library.__name__ == "icefloe" else names[codes].tolist()
            session.store.set_virtual_refs_arr(f"/v{index}", (side, side), locations, offsets, lengths)
        session.commit("ten million")
    meter.count("references", 20 * side * side)


def read_ten_million(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    session = open_repository(library, folder).readonly_session("main")
    with meter.timed():
        count = 0
        for index in range(20):
            count += _count_references(session, f"/v{index}")
    assert count == 20 * _side(scale * 0.5) ** 2


def _count_references(session: Any, path: str) -> int:
    async def count() -> int:
        total = 0
        async for coords, *_ in session.store.array_chunk_iterator(path):
            total += len(coords)
        return total

    return zarr.core.sync.sync(count())


WORKLOADS = [
    Workload(
        "1,000,000 virtual references",
        "Does a large array make everything slow?",
        {
            "set + commit": commit_million,
            "open + coordinate": read_coordinate,
            "first chunk": find_first_chunk,
            "change one + commit": change_one,
        },
    ),
    Workload(
        "1,000,000 references as objects",
        "What does a list of `VirtualChunkSpec` cost?",
        {"set + commit": commit_specs},
        {"set + commit": 2},
    ),
    Workload(
        "5,760 arrays in `dataset`",
        "And in our other generations?",
        {"commit": in_generation("dataset")},
        {"commit": "≤ 0.47 s"},
    ),
    Workload(
        "5,760 arrays in `store`",
        "And in our other generations?",
        {"commit": in_generation("store")},
        {"commit": "≤ 0.47 s"},
    ),
    Workload(
        "5,760 arrays",
        "What do many arrays cost?",
        {"commit": commit_arrays, "open + read one": read_one_array},
        {"open + read one": 2},
    ),
    Workload(
        "10,000,000 references",
        "How much memory does a very large write take?",
        {"set + commit": commit_ten_million, "list all": read_ten_million},
    ),
]
