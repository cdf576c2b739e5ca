"""How many requests and bytes do common operations take on S3?

Run it by itself: `python -m benchmarks.requests [--write]`. Both libraries do the same on one server, one after the
other. A proxy in front of the server counts what passes. Every operation starts in a new repository object, so that
nothing is cached, except for the small commit, which is made in an open repository.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table
from tests.servers.ministack import ministack_server
from tests.servers.s3 import S3Server

from benchmarks.harness import Meter, Workload
from benchmarks.proxy import Counts, Proxy, proxied
from benchmarks.report import PAGE, markdown, replace_block, where_measured

COMMITS = 12
"""Small commits before anything is measured."""
ARRAYS = 20
_SETTLE_SECONDS = 0.3


@dataclass(frozen=True)
class Subject:
    """A library, a generation if not its default, and where the repository is."""

    library: Any
    options: Mapping[str, Any]
    generation: str | None = None

    def open(self) -> Any:
        """The repository, with nothing in its caches."""
        return self.library.Repository.open(self.storage())

    def storage(self) -> Any:
        return self.library.s3_storage(**self.options)

    def read(self) -> zarr.Group:
        """The root group of the newest snapshot."""
        return zarr.open_group(self.open().readonly_session("main").store, mode="r")

    def commit(self, repo: Any, number: int) -> None:
        """Change one chunk of the array `small`, and commit."""
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="small", mode="r+")[number] = number
        session.commit(f"commit {number}")


def prepare(subject: Subject) -> None:
    """A repository with a few arrays and some history."""
    options = {} if subject.generation is None else {"spec_version": subject.generation}
    repo = subject.library.Repository.create(subject.storage(), **options)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for index in range(ARRAYS):
        root.create_array(f"time{index}", shape=(1000,), chunks=(1000,), dtype="f8", compressors=None)[:] = index
    values = np.random.default_rng(1).integers(0, 2**31, (200, 1024), dtype="i4")
    root.create_array("small", shape=values.shape, chunks=(1, 1024), dtype="i4", compressors=None)[:] = values
    session.commit("data")
    for number in range(COMMITS):
        subject.commit(repo, number % 4)


def _list(subject: Subject) -> None:
    assert len(list(subject.read().members())) == ARRAYS + 1


def _tag(subject: Subject) -> None:
    repo = subject.open()
    repo.create_tag("v1", repo.lookup_branch("main"))
    assert set(repo.list_tags()) == {"v1"}
    repo.readonly_session(tag="v1")


def _expire(subject: Subject) -> None:
    assert subject.open().expire_snapshots(dt.datetime.now(dt.UTC))


def _collect(subject: Subject) -> None:
    subject.open().garbage_collect(dt.datetime.now(dt.UTC))


OPERATIONS: Mapping[str, Callable[[Subject], object]] = {
    "open": lambda subject: subject.open().readonly_session("main"),
    "open, read one chunk": lambda subject: subject.read()["small"][17],  # type: ignore[index]
    "open, read 100 neighbours": lambda subject: subject.read()["small"][50:150],  # type: ignore[index]
    "open, list 21 arrays": _list,
    "small commit": lambda subject: None,
    "open, create a tag, list tags, read it": _tag,
    "open, expire 12 commits": _expire,
    "open, collect garbage": _collect,
}


def _settled_counts(proxy: Proxy) -> Counts:
    """What passed, after requests in the background have ended: sessions may load manifests that nobody waits for."""
    total = Counts()
    while True:
        time.sleep(_SETTLE_SECONDS)
        more = proxy.take_counts()
        if not more.total:
            return total
        total = Counts(
            total.requests + more.requests,
            total.sent_bytes + more.sent_bytes,
            total.received_bytes + more.received_bytes,
        )


def measure(library: Any, server: S3Server, proxy: Proxy, generation: str | None = None) -> dict[str, Counts]:
    """What each operation takes."""
    options = {**server.storage_options(server.make_bucket(), "repo"), "endpoint_url": proxy.endpoint_url}
    subject = Subject(library, options, generation)
    prepare(subject)
    counts = {}
    for name, run in OPERATIONS.items():
        if name == "small commit":
            repo = subject.open()
            subject.commit(repo, 1)
            _settled_counts(proxy)
            subject.commit(repo, 2)
        else:
            _settled_counts(proxy)
            run(subject)
        counts[name] = _settled_counts(proxy)
    return counts


def run(subjects: Mapping[str, tuple[Any, str | None]]) -> dict[str, dict[str, Counts]]:
    """Measure libraries and generations on one server, by name."""
    with ministack_server() as server, proxied(server.endpoint_url) as proxy:
        return {name: measure(library, server, proxy, version) for name, (library, version) in subjects.items()}


def _measure_step(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with meter.timed():
        found = run({"measured": (library, None)})["measured"]
    for name, counts in found.items():
        meter.count(name, counts.total)


WORKLOADS = [
    Workload(
        "S3",
        "How often is the store asked?",
        {"prepare and count": _measure_step},
        facts=dict.fromkeys(OPERATIONS, "requests"),
    )
]


def run_all() -> dict[str, dict[str, Counts]]:
    """Measure the official package, its format written by Icefloe, and the default generation."""
    official, ours = importlib.import_module("icechunk"), importlib.import_module("icefloe")
    return run({"official": (official, None), "icechunk2": (ours, "icechunk2"), "repository": (ours, None)})


def publish(found: Mapping[str, Mapping[str, Counts]], load: tuple[float, float, float]) -> None:
    """Write the table of requests to docs/performance.md."""
    rows = [
        [name, *(f"{each[name].total} ({each[name].bytes / 1000:.1f} kB)" for each in found.values())]
        for name in OPERATIONS
    ]
    header = ("operation", "official", "Icefloe, `icechunk2`", "Icefloe, `repository`")
    place = where_measured(load).replace("local files", "an emulator of S3 on the same machine")
    replace_block(PAGE, "requests", f"{place}\n\n{markdown(header, rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    arguments = parser.parse_args()
    load = os.getloadavg()
    found = run_all()
    if arguments.write:
        publish(found, load)
    table = Table("operation", *(f"{name}: {unit}" for name in found for unit in ("requests", "kB")))
    for name in OPERATIONS:
        cells = [text for each in found.values() for text in (str(each[name].total), f"{each[name].bytes / 1000:.1f}")]
        table.add_row(name, *cells)
    console = Console(width=160)
    for name in OPERATIONS:
        console.print(name, {subject: dict(each[name].requests) for subject, each in found.items()})
    console.print(table)


if __name__ == "__main__":
    main()
