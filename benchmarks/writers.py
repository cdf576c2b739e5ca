"""Do many writers of one branch hinder each other?

Run it by itself: `python -m benchmarks.writers [--writers 32] [--commits 2] [--latency-ms 20] [--processes] [--write]`.
Writers commit to distinct arrays, and to distinct regions of one array, on an S3 server behind a proxy that delays
every request. Both libraries do the same, one after the other. The table compares commits per second with those of one
writer alone. It shows how many tries a commit took and how many requests one lost try costs. Writers are threads of one
process, or processes of their own, which have imported the library and opened the repository before all of them start.
If the processors are busy, the table shows how fast they are: `tests/session/test_lost_races.py` measures the same on
simulated time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
from rich.console import Console
from rich.table import Table
from tests.servers.ministack import ministack_server
from tests.servers.s3 import S3Server
from tests.servers.seaweedfs import seaweedfs_server

from benchmarks.proxy import Counts, Proxy, proxied
from benchmarks.report import PAGE, markdown, replace_block, where_measured

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
    idle: float
    """The share of the time of all processors of the machine that nothing used."""

    @property
    def commits(self) -> int:
        return len(self.tries)

    @property
    def per_second(self) -> float:
        return self.commits / self.seconds


def storage_options(server: S3Server, proxy: Proxy, bucket: str, prefix: str = "repo") -> dict[str, Any]:
    """The arguments of `s3_storage` for a repository behind the proxy."""
    return {**server.storage_options(bucket, prefix), "endpoint_url": proxy.endpoint_url}


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


def open_repository(library: Any, options: Mapping[str, Any]) -> Any:
    """A repository of its own for a writer, which has read the newest snapshot."""
    repo = library.Repository.open(library.s3_storage(**options))
    repo.readonly_session("main")
    return repo


def count_tries(repo: Any, known: int, expected: int) -> tuple[int, ...]:
    """The tries of every commit after those that were known."""
    landed = list(repo.ancestry(branch="main"))[:-known]
    assert len(landed) == expected, f"{len(landed)} commits of {expected} landed"
    return tuple(1 + info.metadata.get("__icechunk", {}).get("rebase_attempts", 0) for info in landed)


def run_threads(
    library: Any, options: Mapping[str, Any], writers: int, layout: str, numbers: range, proxy: Proxy
) -> Contended:
    """Let writers commit, each in a thread with a repository of its own."""
    repos = [open_repository(library, options) for _ in range(writers)]
    start = threading.Barrier(len(repos) + 1)
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            start.wait()
            commit_repeatedly(library, repos[writer], layout, writer, numbers)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(len(repos))]
    for thread in threads:
        thread.start()
    known = len(list(repos[0].ancestry(branch="main")))
    proxy.take_counts()
    start.wait()
    started, worked, rested = time.perf_counter(), time.process_time(), idle_seconds()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
    counts, idle = proxy.take_counts(), (idle_seconds() - rested) / seconds / (os.cpu_count() or 1)
    if failures:
        raise failures[0]
    return Contended(seconds, cpu_seconds, count_tries(repos[0], known, writers * len(numbers)), counts, idle)


def run_processes(
    library: Any, options: Mapping[str, Any], writers: int, layout: str, numbers: range, proxy: Proxy
) -> Contended:
    """Let writers commit, each in a process of its own."""
    repo = open_repository(library, options)
    known = len(list(repo.ancestry(branch="main")))
    with contextlib.ExitStack() as stack:
        processes = []
        for writer in range(writers):
            task = [library.__name__, dict(options), layout, writer, numbers.start, numbers.stop]
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.writers", "--task", json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            processes.append(stack.enter_context(process))
        for process in processes:
            assert _read_line(process) == "ready"
        proxy.take_counts()
        started, rested = time.perf_counter(), idle_seconds()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("start\n")
            process.stdin.flush()
        cpu_seconds = sum(float(_read_line(process)) for process in processes)
        seconds = time.perf_counter() - started
        counts, idle = proxy.take_counts(), (idle_seconds() - rested) / seconds / (os.cpu_count() or 1)
    return Contended(seconds, cpu_seconds, count_tries(repo, known, writers * len(numbers)), counts, idle)


def idle_seconds() -> float:
    """How long the processors of the machine were idle since it started. NaN where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return float("nan")
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a writer ended with exit code {process.wait()}")
    return line


def run_task(text: str) -> None:
    """The work of one writer process: open, wait for a line, commit, print the processor time of the commits."""
    name, options, layout, writer, first, last = json.loads(text)
    library = load_library(name)
    repo = open_repository(library, options)
    print("ready", flush=True)
    sys.stdin.readline()
    worked = time.process_time()
    commit_repeatedly(library, repo, layout, writer, range(first, last))
    print(time.process_time() - worked, flush=True)


def load_library(name: str) -> Any:
    """A library whose commits record their tries."""
    library = importlib.import_module(name)
    if name == "icefloe":
        library.Session._records_rebases = True  # only the drop-in records them
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=32)
    parser.add_argument("--commits", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--processes", action="store_true", help="a process for each writer instead of a thread")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/performance.md")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--server", choices=sorted(SERVERS), default="ministack")
    parser.add_argument("--libraries", nargs="*", default=["icechunk", "icefloe"])
    parser.add_argument("--generations", nargs="*", default=["repository"])
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS))
    given = parser.parse_args()
    if given.task is not None:
        run_task(given.task)
        return
    console, load, rows = Console(width=160), os.getloadavg(), []
    kind = "processes" if given.processes else "threads"
    header = (
        "layout",
        "package",
        "commits per second, one writer",
        f"{given.writers} {kind}",
        "share",
        "tries: median",
        "mean",
        "most",
        "requests per lost try",
        "writes per lost try",
        "processor ms per commit",
        "idle, one and all",
    )
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
                    row = (
                        layout,
                        "official" if generation is None else f"`{generation}`",
                        f"{alone.per_second:.1f}",
                        f"{together.per_second:.1f}",
                        f"{together.per_second / alone.per_second:.2f}",
                        f"{statistics.median(together.tries):.0f}",
                        f"{statistics.mean(together.tries):.1f}",
                        f"{max(together.tries)}",
                        f"{sum(extra.values()) / max(lost, 1):.1f}",
                        f"{writes / max(lost, 1):.1f}",
                        f"{1000 * together.cpu_seconds / together.commits:.0f}",
                        f"{alone.idle:.0%}, {together.idle:.0%}",
                    )
                    rows.append(row)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if given.write:
        place = where_measured(load).replace("local files", f"the S3 server {given.server} on the same machine")
        replace_block(PAGE, f"writers {kind}", f"{place}\n\n{markdown(header, rows, texts=2)}")


def measure(
    name: str, generation: str | None, layout: str, given: argparse.Namespace, server: S3Server, proxy: Proxy
) -> tuple[Contended, Contended]:
    """One writer alone, then many."""
    library = load_library(name)
    options = storage_options(server, proxy, server.make_bucket())
    chosen = {} if generation is None else {"spec_version": generation}
    prepare(library, library.s3_storage(**options), layout, given.writers, **chosen)
    run = run_processes if given.processes else run_threads
    numbers = range(max(10, given.commits))
    alone = run(library, options, 1, layout, numbers, proxy)
    together = run(library, options, given.writers, layout, range(given.commits), proxy)
    return alone, together


if __name__ == "__main__":
    main()
