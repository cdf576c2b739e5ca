"""Running schedules, shortening those that fail, and the command that looks for failures until it is stopped.

    python -m icefloe.testing.simulator [--generation G] [--profile P] [--seed N] [--schedules N] [--minutes M]

A schedule follows from a generation, a profile and a seed alone. The order of Python's sets depends on the hash seed of
the interpreter, so the command starts itself again with a fixed one.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

from icefloe import metadata_files as files
from icefloe.blocking import Environment, adopt, using
from icefloe.formats.icechunk2.repo_file import decode_repo
from icefloe.ledger import icechunk2
from icefloe.manifests import list_plan
from icefloe.model.capabilities import SpecVersion
from icefloe.model.manifest_config import ManifestConfig, ManifestSet
from icefloe.repository.repository import Repository
from icefloe.testing.actors import CONFIGS, DAY, EPOCH, Process, Step
from icefloe.testing.model import array_document
from icefloe.testing.oracle import Oracle, Start, Violation, read_start
from icefloe.testing.profiles import PROFILES, Schedule, draw_schedule
from icefloe.testing.schedule import Interleaver, SimulatedLoop, ThreadLoop, WaitsForEverError
from icefloe.testing.storages import SimulatedStorage, SimulatedStore

GENERATIONS = tuple(version.value for version in SpecVersion)
_LIMIT_SECONDS = 400 * DAY
_MOST_RUNS = 300
"""Runs that shortening a schedule may take."""
_REMEMBERED_FILES = 2_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that broke a rule."""

    schedule: Schedule
    violation: Violation

    def __str__(self) -> str:
        schedule = self.schedule
        lines = [
            f"{self.violation}",
            f"generation {schedule.generation}, profile {schedule.profile}, seed {schedule.seed}; replay it with",
            f"    python3 dev.py simulate --generation {schedule.generation} --profile {schedule.profile} "
            f"--seed {schedule.seed} --schedules 1",
            "the shortest schedule that still shows it:",
        ]
        lines += [f"    {process}" for process in schedule.processes if _takes_part(process.name, schedule.steps)]
        lines += [f"    {step}" for step in schedule.steps]
        return "\n".join(lines)


def _takes_part(process: str, steps: Sequence[Step]) -> bool:
    return any(step.process == process for step in steps)


def run_schedule(schedule: Schedule) -> Violation | None:
    """Simulate a schedule; the first rule that it breaks, or None."""
    state = random.getstate()
    random.seed(f"{schedule.generation}/{schedule.seed}")
    loop = SimulatedLoop(schedule.seed, _LIMIT_SECONDS)
    simulate = _simulate_threads if schedule.profile == "preempted" else _simulate
    try:
        with _remembered_decoding():
            return copy_context().run(simulate, schedule, loop)
    finally:
        loop.discard()
        random.setstate(state)


@contextmanager
def _remembered_decoding() -> Iterator[None]:
    """Decode equal bytes once, whichever simulated process reads them: decoders are pure, and what they make is frozen.

    Every process still sends its requests, and each has caches of its own. Only the work of the decoders is shared,
    which is a third of what a schedule costs.
    """
    files_module: Any = files
    ledger_module: Any = icechunk2
    real = files_module._decode, ledger_module.decode_repo
    files_module._decode, ledger_module.decode_repo = _decode_file, _decode_repo
    try:
        yield
    finally:
        files_module._decode, ledger_module.decode_repo = real


_really_decode = files._decode
_decode_repo = lru_cache(_REMEMBERED_FILES)(decode_repo)
_DECODED: dict[tuple[str, str, bytes], Any] = {}


async def _decode_file(decode: Any, data: bytes) -> Any:
    key = (decode.__self__.spec_version, decode.__name__, data)
    found = _DECODED.get(key)
    if found is None:
        if len(_DECODED) >= _REMEMBERED_FILES:
            del _DECODED[next(iter(_DECODED))]
        found = _DECODED[key] = await _really_decode(decode, data)
    return found


def _simulate(schedule: Schedule, loop: SimulatedLoop) -> Violation | None:
    oracle = _begin(schedule, loop)
    try:
        loop.run(_live(schedule, loop, oracle))
    except WaitsForEverError as error:
        oracle.report("nothing waits for ever", str(error))
    return oracle.violations[0] if oracle.violations else None


def _begin(schedule: Schedule, loop: SimulatedLoop) -> Oracle:
    """A store with a repository, and an oracle that will watch it."""
    skew = dt.timedelta(seconds=schedule.store_skew_seconds)

    def store_time() -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=loop.time()) + skew

    store = SimulatedStore(store_time, schedule.store_resolution_seconds, schedule.page_size)
    objects, start = _prepare(schedule.generation, "loose" if schedule.seed % 3 else "inline")
    for key, data in objects.items():
        store.write(key, data)
    source = random.Random(f"observer/{schedule.seed}")
    adopt(
        Environment(
            now=lambda: EPOCH + dt.timedelta(seconds=loop.time()),
            monotonic=loop.time,
            random_bytes=source.randbytes,
            loop=loop,
        )
    )
    return Oracle(store, schedule.generation, start)


def _simulate_threads(schedule: Schedule, loop: SimulatedLoop) -> Violation | None:
    """The lanes of one process as real threads, which may switch at any call."""
    oracle = _begin(schedule, loop)
    interleaver = Interleaver(schedule.seed)
    (plan,) = schedule.processes
    with interleaver.locks():
        process = Process(plan, oracle.store, loop, oracle, schedule.seed)
        first = Step(-1, 0.0, plan.name, 9, "open", {"slot": "shared", "branch": "main"})

        def thread(lane: int, steps: Sequence[Step]) -> None:
            own = ThreadLoop(interleaver)
            try:
                own.run(process.run_lane(lane, steps, own))
            finally:
                own.discard()

        try:
            loop.run(oracle.start())
            loop.run(process.run_lane(9, [first]))
            lanes = _lanes(schedule)
            for error in interleaver.run([partial(thread, lane, steps) for (_, lane), steps in lanes.items()]):
                oracle.report("errors are typed", f"a thread ended with {type(error).__name__}: {error}")
            last = [
                Step(-2, 0.0, plan.name, 9, "read_own", {"slot": "shared"}),
                Step(-3, 0.0, plan.name, 9, "commit", {"slot": "shared"}),
            ]
            if not oracle.violations:
                loop.run(process.run_lane(9, last))
            if not oracle.violations:
                oracle.store.watchers.clear()
                loop.run(oracle.check_end(False))
        except WaitsForEverError as error:
            oracle.report("nothing waits for ever", str(error))
    return oracle.violations[0] if oracle.violations else None


def _lanes(schedule: Schedule) -> dict[tuple[str, int], list[Step]]:
    lanes: dict[tuple[str, int], list[Step]] = {}
    for step in schedule.steps:
        lanes.setdefault((step.process, step.lane), []).append(step)
    return lanes


async def _live(schedule: Schedule, loop: SimulatedLoop, oracle: Oracle) -> None:
    await oracle.start()
    processes = {plan.name: Process(plan, oracle.store, loop, oracle, schedule.seed) for plan in schedule.processes}
    tasks = [
        asyncio.create_task(processes[name].run_lane(lane, steps)) for (name, lane), steps in _lanes(schedule).items()
    ]
    found = asyncio.create_task(oracle.found.wait())
    while not oracle.found.is_set() and not all(task.done() for task in tasks):
        await asyncio.wait([found, *(t for t in tasks if not t.done())], return_when=asyncio.FIRST_COMPLETED)
    found.cancel()
    for process in processes.values():
        process.stop()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            oracle.report("errors are typed", f"an actor ended with {type(error).__name__}: {error}")
    if not oracle.found.is_set():
        # Requests that are still under way arrive before the last look.
        await asyncio.sleep(60)
        oracle.store.watchers.clear()
        await oracle.check_end(schedule.thorough_end)


@cache
def _prepare(generation: str, config: str) -> tuple[Mapping[str, bytes], Start]:
    """The objects of a repository with two arrays and two commits, and what it holds; made once per process."""
    loop = SimulatedLoop(0, _LIMIT_SECONDS)
    store = SimulatedStore(lambda: EPOCH)
    source = random.Random(f"{generation}/{config}")
    environment = Environment(lambda: EPOCH, loop.time, source.randbytes, loop)
    try:
        with using(environment):
            start = loop.run(_make_repository(SimulatedStorage(store, "maker"), generation, config))
    finally:
        loop.discard()
    return {key: stored.data for key, stored in store.objects.items()}, start


async def _make_repository(storage: SimulatedStorage, generation: str, config: str) -> Start:
    await Repository.create_async(storage, spec_version=generation)
    repo = await Repository.open_async(storage, config=CONFIGS[config])
    for number, path in enumerate(("a", "b")):
        session = await repo.writable_session_async("main")
        await session.keyspace.write(f"{path}/zarr.json", array_document(6, "first"))
        for index in range(0, 6, number + 1):
            await session.keyspace.write(f"{path}/c/{index}", f"first {path} {index}".encode().ljust(24, b"."))
        await session.commit_async(f"first {path}")
    return await read_start(await Repository.open_async(storage))


# -- shortening -------------------------------------------------------------------------------------------------------


def shorten(schedule: Schedule, violation: Violation) -> Failure:
    """Leave steps out as long as the same rule is broken (delta debugging)."""
    best, runs = Failure(schedule, violation), 0

    def still_fails(candidate: Schedule) -> bool:
        nonlocal best, runs
        runs += 1
        found = run_schedule(candidate)
        if found is None or found.rule != violation.rule:
            return False
        best = Failure(candidate, found)
        return True

    size = max(1, len(schedule.steps) // 2)
    while size and runs < _MOST_RUNS:
        removed = False
        start = 0
        while start < len(best.schedule.steps) and runs < _MOST_RUNS:
            steps = best.schedule.steps
            left = steps[:start] + steps[start + size :]
            if left and still_fails(replace(best.schedule, steps=left)):
                removed = True
            else:
                start += size
        size = size if removed and size == 1 else size // 2
    calm = tuple(replace(plan, loss_share=0.0, death_share=0.0) for plan in best.schedule.processes)
    for simpler in (
        replace(best.schedule, processes=calm),
        replace(best.schedule, store_skew_seconds=0.0, store_resolution_seconds=0, page_size=1000),
    ):
        if simpler != best.schedule and runs < _MOST_RUNS:
            still_fails(simpler)
    return best


# -- many schedules ---------------------------------------------------------------------------------------------------


def simulate(
    generation: str, seeds: Sequence[int] | Iterator[int], profile: str | None = None, until: float | None = None
) -> Iterator[Failure | None]:
    """Run a schedule for each seed, one after the other; yields what each of them found."""
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            return
        schedule = draw_schedule(generation, seed, profile)
        violation = run_schedule(schedule)
        yield None if violation is None else shorten(schedule, violation)


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """The command line; exit code 1 if a rule was broken."""
    options = _parse(arguments)
    if options.manifest_lists:
        # Manifests of one chunk, and lists of two of them.
        list_plan.SIZES = list_plan.ListSizes(listed_from=1, usual=2, largest=2)
        for config in CONFIGS.values():
            config.manifest = ManifestConfig(sets=(ManifestSet.default(split_size=1),), rules=())
    if arguments is None and os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "icefloe.testing.simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    # Almost everything that a schedule makes is gone when it ends: looking for cycles more often only costs.
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    generations = [options.generation] if options.generation else list(GENERATIONS)
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 40)
    started, count, found, reported = time.monotonic(), 0, 0, 0.0
    seed = first
    while (options.schedules is None or count < options.schedules * len(generations)) and (
        until is None or time.monotonic() < until
    ):
        for generation in generations:
            for failure in simulate(generation, [seed], options.profile):
                count += 1
                if failure is not None:
                    found += 1
                    write(f"\nafter {count} schedules: {failure}\n")
            if time.monotonic() - reported > options.every:
                reported = time.monotonic()
                rate = count / max(reported - started, 0.001)
                write(f"{count} schedules, {rate:.1f} per second, {found} found, seed {seed}\n")
                sys.stdout.flush()
        if found and options.stop:
            break
        seed += 1
    rate = count / max(time.monotonic() - started, 0.001)
    write(f"{count} schedules from seed {first}, {rate:.1f} per second, {found} found\n")
    return 1 if found else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 dev.py simulate", description="Simulate many actors on one repository, until stopped."
    )
    parser.add_argument("--generation", choices=GENERATIONS, help="only this generation; otherwise all take turns")
    parser.add_argument("--profile", choices=list(PROFILES), help="only this profile; otherwise seeds take turns")
    parser.add_argument("--seed", type=int, help="the first seed; otherwise a random one")
    parser.add_argument("--schedules", type=int, help="stop after so many schedules per generation")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between lines of progress")
    parser.add_argument("--manifest-lists", action="store_true", help="write manifests of one chunk, in lists of two")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
