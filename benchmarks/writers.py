"""Do many writers of one branch hinder each other?

Run it by itself: `python -m benchmarks.writers [--writers 32] [--commits 2] [--latency-ms 20]`. Writers commit to
distinct arrays, and to distinct regions of one array, on an S3 server behind a proxy that delays every request. Both
libraries do the same, one after the other. The table compares commits per second with those of one writer alone. It
shows how many tries a commit took and how many requests one lost try costs. If the processors are busy, the table shows
how fast they are: `tests/session/test_lost_races.py` measures the same on simulated time.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

import zarr
from rich.console import Console
from rich.table import Table
from tests.servers.ministack import ministack_server
from tests.servers.s3 import S3Server
from tests.servers.seaweedfs import seaweedfs_server

from benchmarks.proxy import Counts, Proxy, proxied

SERVERS = {"ministack": ministack_server, "seaweedfs": seaweedfs_server}
LAYOUTS = ("distinct arrays", "regions of one array")


@dataclass(frozen=True)
class Contended:
    """How some writers fared."""

    seconds: float
    cpu_seconds: float
    tries: tuple[int, ...]
    """Of each commit."""
    counts: Counts

    @property
    def commits(self) -> int:
        return len(self.tries)

    @property
    def per_second(self) -> float:
        return self.commits / self.seconds


def open_storage(library: Any, server: S3Server, proxy: Proxy, bucket: str, prefix: str = "repo") -> Any:
    """The storage of a repository behind the proxy."""
    return library.s3_storage(**{**server.storage_options(bucket, prefix), "endpoint_url": proxy.endpoint_url})


def prepare(library: Any, storage: Any, layout: str, writers: int, **options: Any) -> None:
    """A repository with an array for each writer, or one array with a row for each."""
    repo = library.Repository.create(storage, **options)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    if layout == "distinct arrays":
        for writer in range(writers):
            root.create_array(f"a{writer}", shape=(64,), chunks=(1,), dtype="i4", fill_value=-1)
    else:
        root.create_array("a", shape=(writers, 64), chunks=(1, 1), dtype="i4", fill_value=-1)
    session.commit("arrays")


def commit_repeatedly(library: Any, repo: Any, layout: str, writer: int, numbers: range) -> None:
    """Commit one element for every number."""
    for number in numbers:
        session = repo.writable_session("main")
        if layout == "distinct arrays":
            zarr.open_array(session.store, path=f"a{writer}", mode="r+")[number] = writer
        else:
            zarr.open_array(session.store, path="a", mode="r+")[writer, number] = writer
        session.commit(f"{writer} {number}", rebase_with=library.ConflictDetector(), rebase_tries=10_000)


def run_writers(library: Any, storages: list[Any], layout: str, commits: int, proxy: Proxy) -> Contended:
    """Let one writer per storage commit, each in a thread with a repository of its own."""
    repos = [library.Repository.open(storage) for storage in storages]
    for repo in repos:
        repo.readonly_session("main")
    start = threading.Barrier(len(repos) + 1)
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            start.wait()
            commit_repeatedly(library, repos[writer], layout, writer, range(commits))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(len(repos))]
    for thread in threads:
        thread.start()
    known = len(list(repos[0].ancestry(branch="main")))
    proxy.take_counts()
    start.wait()
    started, worked = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
    counts = proxy.take_counts()
    if failures:
        raise failures[0]
    landed = list(repos[0].ancestry(branch="main"))[:-known]
    assert len(landed) == len(repos) * commits, f"{len(landed)} commits of {len(repos) * commits} landed"
    tries = tuple(1 + info.metadata.get("__icechunk", {}).get("rebase_attempts", 0) for info in landed)
    return Contended(seconds, cpu_seconds, tries, counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=32)
    parser.add_argument("--commits", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--server", choices=sorted(SERVERS), default="ministack")
    parser.add_argument("--libraries", nargs="*", default=["icechunk", "icefloe"])
    parser.add_argument("--generations", nargs="*", default=["repository"])
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS))
    given = parser.parse_args()
    console = Console(width=160)
    table = Table("layout", "library", "1 writer, commits/s", f"{given.writers} writers, commits/s", "share")
    for name in ("tries, median", "most", "requests per lost try", "writes per lost try", "CPU ms per commit"):
        table.add_column(name, justify="right")
    with SERVERS[given.server]() as server, proxied(server.endpoint_url, given.latency_ms / 1000) as proxy:
        for layout in given.layouts:
            for name in given.libraries:
                for generation in given.generations if name == "icefloe" else [None]:
                    alone, together = measure(name, generation, layout, given, server, proxy)
                    lost = sum(together.tries) - together.commits
                    per_commit = {kind: count / alone.commits for kind, count in alone.counts.requests.items()}
                    extra = {
                        kind: count - together.commits * per_commit.get(kind, 0)
                        for kind, count in together.counts.requests.items()
                    }
                    writes = sum(count for kind, count in extra.items() if kind.startswith("PUT"))
                    console.print({kind: round(count / max(lost, 1), 2) for kind, count in extra.items()})
                    table.add_row(
                        layout,
                        name if generation is None else generation,
                        f"{alone.per_second:.1f}",
                        f"{together.per_second:.1f}",
                        f"{together.per_second / alone.per_second:.2f}",
                        f"{statistics.median(together.tries):.0f}",
                        f"{max(together.tries)}",
                        f"{sum(extra.values()) / max(lost, 1):.1f}",
                        f"{writes / max(lost, 1):.1f}",
                        f"{1000 * together.cpu_seconds / together.commits:.0f}",
                    )
    console.print(table)


def measure(
    name: str, generation: str | None, layout: str, given: argparse.Namespace, server: S3Server, proxy: Proxy
) -> tuple[Contended, Contended]:
    """One writer alone, then many."""
    library = importlib.import_module(name)
    if name == "icefloe":
        library.Session._records_rebases = True  # only the drop-in records them
    bucket = server.make_bucket()
    options = {} if generation is None else {"spec_version": generation}
    prepare(library, open_storage(library, server, proxy, bucket), layout, given.writers, **options)
    storages = [open_storage(library, server, proxy, bucket) for _ in range(given.writers)]
    alone = run_writers(library, storages[:1], layout, max(10, given.commits), proxy)
    together = run_writers(library, storages, layout, given.commits, proxy)
    return alone, together


if __name__ == "__main__":
    main()
