"""How long does each generation take for a million references: encode, decode, commit, and find the first chunk?

Run it by itself: `python -m benchmarks.generations [--references 1000000]`. The official package does the
same work in its own generations, in the same process and on the same files. Ratios are official / ours: more than 1 is
better. Both packages take turns. Seconds are the fastest of several runs, with processor time next to them. For new
processes, importing the library has its own row.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table

import icechunk
import icefloe
from icefloe import SpecVersion
from icefloe.formats.format import get_format
from icefloe.ids import NODE_ID_BYTES, new_object_id
from icefloe.manifests.chunk_columns import table_from_columns
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest

OFFICIAL = int(icechunk.__version__.split(".")[0])
SPECS = {"icechunk1": 1} if OFFICIAL < 2 else {"icechunk1": 1, "icechunk2": 2}
RUNS = 3


@dataclass(frozen=True)
class Cost:
    """Wall clock and processor time."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.3f} ({self.cpu_seconds:.3f})"


def best(run: Callable[[], object], runs: int = RUNS) -> Cost:
    """The fastest of several runs."""
    costs = []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        costs.append(Cost(time.perf_counter() - wall, time.process_time() - cpu))
    return min(costs, key=lambda cost: cost.seconds)


def native_table(count: int, id_bytes: int) -> ChunkTable:
    """References to packed chunks of a square grid: objects of a hundred chunks each."""
    side = int(count**0.5)
    coords = np.stack(np.divmod(np.arange(side * side), side), axis=1)
    objects = np.random.default_rng(0).integers(0, 256, (-(-side * side // 100), id_bytes), dtype=np.uint8)
    packed = np.arange(side * side) // 100
    offsets = (np.arange(side * side) % 100) * 4096
    return table_from_columns(coords, kind=ChunkKind.NATIVE, offset=offsets, length=4096, object_id=objects[packed])


def measure_files(count: int) -> Table:
    """Encoding and decoding one manifest, and committing one, in every generation."""
    table = Table(title=f"a manifest of {count:,} native references; seconds (processor seconds)")
    for column in ("generation", "MB", "encode", "decode", "commit"):
        table.add_column(column, justify="right")
    for version in SpecVersion:
        generation = get_format(version)
        references = native_table(count, generation.capabilities.object_id_bytes)
        node = (1).to_bytes(NODE_ID_BYTES, "big")
        manifest = Manifest(new_object_id(generation.capabilities.object_id_bytes), {node: references})
        data = generation.encode_manifest(manifest)
        encode = best(lambda f=generation, m=manifest: f.encode_manifest(m))
        decode = best(lambda f=generation, d=data: f.decode_manifest(d))
        commit = best(lambda v=version, r=references: commit_native(v, r))
        table.add_row(version.value, f"{len(data) / 1e6:.1f}", str(encode), str(decode), str(commit))
    return table


def commit_native(version: SpecVersion, references: ChunkTable) -> None:
    """An array and all its references in one commit."""
    with tempfile.TemporaryDirectory() as folder:
        repo = icefloe.Repository.create(folder, spec_version=version)
        session = repo.writable_session("main")
        side = int(len(references) ** 0.5)
        zarr.create_array(session.store, name="a", shape=(side, side), chunks=(1, 1), dtype="u1")
        session.state.set_table(session.state.tree.array("/a"), references)
        session.commit("references")


class Side:
    """The work with virtual references, through the public functions of one library."""

    def __init__(self, library: Any, spec: int, source: Path, count: int) -> None:
        self.library, self.spec = library, spec
        self.prefix = f"{source.parent.as_uri()}/"
        self.location = source.as_uri()
        self.side = int(count**0.5)
        self.offsets = (np.arange(self.side**2, dtype=np.uint64) % 4096).astype(np.uint64)
        self.lengths = np.ones(self.side**2, dtype=np.uint64)
        self.locations = [self.location] * self.side**2

    def config(self) -> Any:
        config = self.library.RepositoryConfig.default()
        store = self.library.local_filesystem_store(self.prefix.removeprefix("file://"))
        config.set_virtual_chunk_container(self.library.VirtualChunkContainer(self.prefix, store))
        return config

    def storage(self, folder: str) -> Any:
        return self.library.local_filesystem_storage(folder)

    def commit(self, folder: str) -> None:
        """A new repository with a million virtual references in one commit."""
        options = {} if self.library is icechunk and OFFICIAL < 2 else {"spec_version": self.spec}
        repo = self.library.Repository.create(self.storage(folder), config=self.config(), **options)
        session = repo.writable_session("main")
        shape = (self.side, self.side)
        zarr.create_array(session.store, name="a", shape=shape, chunks=(1, 1), dtype="u1", compressors=None)
        if hasattr(session.store, "set_virtual_refs_arr"):
            session.store.set_virtual_refs_arr("a", shape, self.locations, self.offsets, self.lengths)
        else:
            specs = [
                self.library.VirtualChunkSpec([i, j], self.location, (i * self.side + j) % 4096, 1)
                for i in range(self.side)
                for j in range(self.side)
            ]
            session.store.set_virtual_refs("a", specs)
        session.commit("references")

    def first_chunk(self, folder: str) -> int:
        """Open, and read one chunk in the middle."""
        access = self.library.containers_credentials({self.prefix: None})
        repo = self.library.Repository.open(self.storage(folder), authorize_virtual_chunk_access=access)
        array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
        return int(array[self.side // 2, self.side // 2])


def in_turns(runs: list[Callable[[], object]], rounds: int = 5) -> list[Cost]:
    """The fastest run of each. Both run in turns, so that other programs slow both equally."""
    costs = [[best(run, 1) for run in runs] for _ in range(rounds)]
    return [min(column, key=lambda cost: cost.seconds) for column in zip(*costs, strict=True)]


def first_in_process(place: str, side: Side, rounds: int = 5) -> tuple[list[Cost], list[Cost]]:
    """The time of new processes to import the library and to read the first chunk: official, ours."""
    told: dict[str, list[dict[str, list[float]]]] = {"icechunk": [], "icefloe": []}
    for _ in range(rounds):
        for name, answers in told.items():
            command = [sys.executable, "-m", "benchmarks.first_chunk", name, place, side.prefix, str(side.side // 2)]
            answers.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return tuple(  # type: ignore[return-value]
        [min((Cost(*a[part]) for a in answers), key=lambda cost: cost.cpu_seconds) for answers in told.values()]
        for part in ("load", "work")
    )


def measure_sides(count: int) -> Table:
    """Commit, open and first chunk with both libraries. Each reads the files of both."""
    version = importlib.metadata.version("icechunk")
    table = Table(title=f"{count:,} virtual references, official {version} beside icefloe; seconds (processor seconds)")
    for column in ("generation", "step", "official", "ours", "ratio"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data" / "source.bin"
        source.parent.mkdir()
        source.write_bytes(bytes(i % 251 for i in range(8192)))
        for generation, spec in SPECS.items():
            official, ours = (Side(library, spec, source, count) for library in (icechunk, icefloe))
            made = {}
            for name, side in (("official", official), ("ours", ours)):
                place = str(Path(folder) / f"{generation}-{name}")
                made[name] = best(lambda s=side, p=place: (shutil.rmtree(p, ignore_errors=True), s.commit(p)))
            add_row(table, generation, "commit", made["official"], made["ours"])
            for name in ("official", "ours"):
                place = str(Path(folder) / f"{generation}-{name}")
                assert official.first_chunk(place) == ours.first_chunk(place)
                read = in_turns([lambda s=side, p=place: s.first_chunk(p) for side in (official, ours)])
                writer = "written by the official one" if name == "official" else "written by us"
                add_row(table, generation, f"open + first chunk, {writer}", *read)
                load, work = first_in_process(place, official)
                add_row(table, generation, f"the same in a new process, {writer}", *work)
            add_row(table, generation, "loading the library in a new process", *load)
    return table


def add_row(table: Table, generation: str, step: str, official: Cost, ours: Cost) -> None:
    """One comparison."""
    ratio = f"{official.seconds / ours.seconds:.1f} ({official.cpu_seconds / max(ours.cpu_seconds, 1e-4):.1f})"
    table.add_row(generation, step, str(official), str(ours), ratio)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generations", description=__doc__)
    parser.add_argument("--references", type=int, default=1_000_000, help="number of references  [default: 1000000]")
    arguments = parser.parse_args()
    console = Console(width=max(140, Console().width))
    console.print(measure_files(arguments.references))
    console.print(measure_sides(arguments.references))


if __name__ == "__main__":
    main()
