"""Schedules: which processes take part, and which steps they take at what times, all drawn from a seed.

A profile is a kind of life of a repository. Each draws its steps from weights of its own, so that what it looks for is
not rare. Steps have absolute times: leaving one out changes nothing about the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.model.capabilities import SpecVersion
from icefloe.testing.actors import DAY, Edit, ProcessPlan, Step


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that a simulation is made from."""

    generation: str
    profile: str
    seed: int
    processes: tuple[ProcessPlan, ...]
    steps: tuple[Step, ...]
    store_skew_seconds: float = 0.0
    store_resolution_seconds: int = 0
    page_size: int = 1000
    thorough_end: bool = False


class _ScheduleBuilder:
    """Builds a random schedule step by step."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self.time = 0.0
        self.steps: list[Step] = []

    def add(self, process: str, verb: str, lane: int = 0, **arguments: Any) -> None:
        self.steps.append(Step(len(self.steps), round(self.time, 3), process, lane, verb, arguments))

    def wait(self, mean: float = 0.3) -> None:
        self.time += self.random.expovariate(1 / mean)

    def days(self, share: float) -> None:
        """Let a day and more pass, with some probability."""
        if self.random.random() < share:
            self.time += DAY * self.random.uniform(1.1, 3)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, weights: Mapping[str, float]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def edits(self, most: int = 3, weights: Mapping[str, float] | None = None) -> list[Edit]:
        weights = weights or EDITS
        found: list[Edit] = []
        for _ in range(self.random.randint(1, most)):
            verb = self.pick(weights)
            path = self.pick({"a": 6, "b": 3, "c": 1})
            if verb in ("resize", "create", "replace"):
                number = self.random.choice((1, 2, 4, 6, 6, 8))
            elif verb == "shift":
                number = self.random.choice((-2, -1, 1, 2))
            else:
                number = self.random.randrange(6)
            found.append((verb, path, number))
        return found


EDITS: Mapping[str, float] = {
    "set": 12,
    "fill": 4,
    "resize": 3,
    "note": 1,
    "create": 1,
    "delete": 0.5,
    "replace": 0.7,
    "shift": 1,
}
_CHUNKS: Mapping[str, float] = {"set": 6, "fill": 2}
_SOLVERS: Mapping[str, float] = {"none": 2, "detector": 5, "ours": 2, "theirs": 2, "careful": 1}
_GENERATIONS = tuple(version.value for version in SpecVersion)
_BRANCHES: Mapping[str, float] = {"main": 5, "dev": 2}


def _writers(draw: _ScheduleBuilder) -> None:
    """Writers that race for one branch, with every solver, and readers beside them."""
    for _ in range(draw.random.randint(4, 9)):
        process = draw.random.choice(("one", "two", "three"))
        verb = draw.pick({"transaction": 6, "open": 3, "read": 1, "hold": 1, "look": 1})
        if verb == "transaction":
            draw.add(process, "transaction", branch="main", edits=draw.edits(), solver=draw.pick(_SOLVERS))
        elif verb == "open":
            slot = f"s{len(draw.steps)}"
            draw.add(process, "open", slot=slot, branch="main")
            draw.add(process, "edit", slot=slot, edits=draw.edits())
            draw.wait()
            if draw.chance(0.3):
                draw.add(process, "read_own", slot=slot)
            if draw.chance(0.4):
                draw.wait(1)
                draw.add(process, "rebase", slot=slot)
                if draw.chance(0.4):
                    draw.add(process, "edit", slot=slot, edits=draw.edits(2))
            draw.add(process, "commit", slot=slot, solver=draw.pick(_SOLVERS))
        elif verb == "look":
            draw.add(process, "history", branch="main")
        else:
            draw.add(process, verb, slot="reader", branch="main")
        draw.wait(0.2)


def _service(draw: _ScheduleBuilder) -> None:
    """A service that keeps its repository open for days, and a nightly job in another process."""
    for _ in range(draw.random.randint(2, 4)):
        for _ in range(draw.random.randint(1, 3)):
            verb = draw.pick({"transaction": 6, "amend": 3, "create_tag": 1, "hold": 1, "read": 1})
            _serve(draw, "service", verb)
            draw.wait()
        draw.days(0.7)
        for verb, share in (("compact", 0.3), ("rewrite", 0.2), ("expire", 0.7), ("collect", 0.7)):
            if draw.chance(share):
                _maintenance(draw, "nightly", verb)
                draw.wait(0.2 if draw.chance(0.3) else 5)
        draw.days(0.3)
    for _ in range(draw.random.randint(1, 2)):
        _serve(draw, "service", draw.pick({"transaction": 3, "amend": 2, "read": 1}))
        draw.wait(2)


def _serve(draw: _ScheduleBuilder, process: str, verb: str) -> None:
    if verb in ("transaction", "amend"):
        draw.add(
            process,
            "transaction",
            branch="main",
            edits=draw.edits(2),
            solver=draw.pick(_SOLVERS),
            amend=verb == "amend",
        )
    elif verb == "create_tag":
        draw.add(process, verb, tag=f"t{len(draw.steps)}", branch="main", back=draw.random.randrange(3))
    else:
        draw.add(process, verb, slot="reader", branch="main")


def _maintenance(draw: _ScheduleBuilder, process: str, verb: str) -> None:
    if verb in ("compact", "rewrite"):
        draw.add(process, verb, branch="main")
    elif verb == "expire":
        if draw.chance(0.3):
            draw.add(process, "expire", back=draw.random.randint(1, 3))
        else:
            draw.add(process, "expire", age=draw.random.choice((0.0, 0.0, 1.0, DAY / 2)))
    elif verb == "squash":
        draw.add(process, "squash", branch="main", back=draw.random.randint(1, 3))
    elif verb == "collect":
        grace = draw.random.choice((DAY, DAY, DAY, 3600.0, 0.0))
        draw.add(process, "collect", grace=grace, incremental=draw.chance(0.3))
    else:
        draw.add(process, verb)


def _late(draw: _ScheduleBuilder) -> None:
    """Sessions that are opened before others change, compact, expire and collect, and are committed after it."""
    draw.days(0.8)
    if draw.chance(0.3):
        _move_chunks(draw)
        return
    slots: list[str] = []
    for _ in range(draw.random.randint(1, 3)):
        slot = f"late{len(slots)}"
        slots.append(slot)
        draw.add("service", "open", slot=slot, branch="main")
        weights = {"shift": 3, "set": 4, "fill": 2, "resize": 1}
        draw.add("service", "edit", slot=slot, edits=draw.edits(2, weights))
        draw.wait()
    for _ in range(draw.random.randint(2, 7)):
        verb = draw.pick(
            {"early": 2, "others": 3, "compact": 3, "expire": 3, "collect": 2, "squash": 1, "resize": 3, "read": 0.5}
        )
        if verb == "early" and len(slots) > 1:
            draw.add("service", "commit", slot=slots.pop(), solver="detector")
        elif verb == "others":
            draw.add("others", "transaction", branch="main", edits=draw.edits(2), solver="detector")
        elif verb == "resize":
            path, small = draw.pick({"a": 3, "b": 1}), draw.random.choice((1, 2))
            draw.add("others", "transaction", branch="main", edits=[("resize", path, small)], solver="detector")
            draw.wait(1)
            draw.add("others", "transaction", branch="main", edits=[("resize", path, 6)], solver="detector")
        elif verb in ("compact", "expire", "collect", "squash"):
            _maintenance(draw, "nightly", verb)
        draw.wait(1)
    draw.wait(2)
    for slot in slots:
        if draw.chance(0.2):
            draw.add("service", "rebase", slot=slot)
        draw.add("service", "commit", slot=slot, solver=draw.pick({"detector": 5, "ours": 1, "none": 1}))


def _move_chunks(draw: _ScheduleBuilder) -> None:
    """A session refers to old chunks at new places, while others write these chunks anew and collect the old ones."""
    for slot, edit in (("late", ("shift", "a", draw.random.choice((-1, 1)))), ("early", ("set", "b", 3))):
        draw.add("service", "open", slot=slot, branch="main")
        draw.add("service", "edit", slot=slot, edits=[edit])
    for verb in ("compact", "early", "expire", "collect"):
        draw.wait(40)
        if draw.chance(0.2):
            draw.add("others", "transaction", branch="main", edits=draw.edits(1, {"set": 1}), solver="detector")
        if not draw.chance(0.85):
            continue
        if verb == "early":
            draw.add("service", "commit", slot="early", solver="detector")
        elif verb == "expire":
            draw.add("nightly", "expire", age=draw.random.choice((0.0, 30.0, DAY)))
        elif verb == "collect":
            draw.add("nightly", "collect", grace=DAY, incremental=draw.chance(0.2))
        else:
            draw.add("nightly", verb, branch="main")
    draw.wait(40)
    draw.add("service", "commit", slot="late", solver="detector")


def _moves(draw: _ScheduleBuilder) -> None:
    """A session moves old chunks; others pack them, let the old commits expire and collect, and it is committed.

    The service keeps its repository open, and commits another session in between: it remembers the snapshots and logs
    from before the expiry. Every object that is collected is days older than the grace.
    """
    draw.time += 2 * DAY
    draw.add("service", "open", slot="late", branch="main")
    draw.add("service", "edit", slot="late", edits=[("shift", "a", draw.random.choice((-2, -1, 1, 2)))])
    draw.add("service", "open", slot="early", branch="main")
    draw.add("service", "edit", slot="early", edits=[("set", "b", draw.random.randrange(6))])
    draw.wait(5)
    draw.add("nightly", "compact", branch="main")
    draw.time += draw.random.uniform(30, 60)
    if draw.chance(0.8):
        draw.add("service", "commit", slot="early", solver="detector")
        draw.time += draw.random.uniform(30, 60)
    between = draw.random.choice((0.0, 0.0, 2 * DAY))
    draw.time += between
    draw.add("nightly", "expire", age=between + draw.random.choice((0.0, DAY, DAY)))
    draw.time += draw.random.uniform(30, 60) + draw.random.choice((0.0, 0.0, 2 * DAY))
    draw.add("nightly", "collect", grace=DAY, incremental=draw.chance(0.2))
    draw.time += draw.random.uniform(30, 60)
    draw.add("service", "commit", slot="late", solver="detector")


def _forks(draw: _ScheduleBuilder) -> None:
    """Sessions whose workers write, resize, replace and delete; collections of the same process beside them."""
    for _ in range(draw.random.randint(1, 2)):
        slot = f"s{len(draw.steps)}"
        draw.add("driver", "open", slot=slot, branch="main")
        if draw.chance(0.4):
            draw.add("driver", "edit", slot=slot, edits=draw.edits(2))
        weights = {"set": 6, "fill": 2, "resize": 3, "replace": 1, "delete": 1, "create": 1, "shift": 1, "note": 0.5}
        workers = [draw.edits(3, weights) for _ in range(draw.random.randint(1, 3))]
        pause = draw.random.choice((0.0, 0.0, 30.0, 2 * DAY))
        how = draw.pick({"merge": 4, "elsewhere": 2, "parts": 2})
        draw.add("driver", "fork", slot=slot, edits=workers, how=how, pause=pause)
        if draw.chance(0.5):
            beside = draw.time
            draw.time += draw.random.uniform(1, 1.5 * max(pause, 1.0))
            draw.add("driver", "collect", lane=1, grace=draw.random.choice((0.0, 5.0, DAY)), incremental=False)
            draw.time = beside
        draw.wait()
        if draw.chance(0.3):
            draw.add("driver", "edit", slot=slot, edits=draw.edits(1, {"set": 3, "resize": 2}))
        draw.add("driver", "read_own", slot=slot)
        draw.add("driver", "commit", slot=slot, solver=draw.pick(_SOLVERS))
        if draw.chance(0.4):
            draw.add("others", "transaction", branch="main", edits=draw.edits(2), solver="detector")
        draw.wait(2)
    draw.add("driver", "transaction", branch="main", edits=[("resize", "a", 8), ("resize", "b", 8)], solver="detector")


def _threads(draw: _ScheduleBuilder) -> None:
    """Threads of one process that write to a session, look at it and commit it at the same time."""
    for _ in range(draw.random.randint(1, 3)):
        slot = f"s{len(draw.steps)}"
        draw.add("notebook", "open", slot=slot, branch="main")
        draw.add("notebook", "edit", slot=slot, edits=draw.edits(2, _CHUNKS))
        draw.time += 1.5
        start = draw.time
        for lane in (1, 2):
            draw.time = start
            for _ in range(draw.random.randint(1, 4)):
                draw.time += draw.random.uniform(0, 0.08)
                if draw.chance(0.7):
                    draw.add("notebook", "edit", lane=lane, slot=slot, edits=draw.edits(2, _CHUNKS))
                else:
                    draw.add("notebook", draw.pick({"look": 1, "read_own": 1}), lane=lane, slot=slot)
        draw.time = start + draw.random.uniform(0, 0.1)
        draw.add("notebook", "commit", slot=slot, solver=draw.pick(_SOLVERS))
        if draw.chance(0.3):
            draw.add("others", "transaction", branch="main", edits=draw.edits(2), solver="detector")
        draw.time += 5


def _preempted(draw: _ScheduleBuilder) -> None:
    """Threads of one process that may switch at any call: they write to a session, look at it, and commit it."""
    for lane in range(draw.random.randint(1, 2)):
        for _ in range(draw.random.randint(2, 6)):
            # Each thread has chunks of its own: of two threads that write one, nobody knows which was the last.
            edits = [(verb, path, number // 2 * 2 + lane) for verb, path, number in draw.edits(4, _CHUNKS)]
            draw.add("notebook", "edit", lane=lane, slot="shared", edits=edits)
    for lane in range(2, 2 + draw.random.randint(1, 2)):
        for _ in range(draw.random.randint(2, 6)):
            draw.add("notebook", draw.pick({"look": 3, "read_own": 1, "list": 1}), lane=lane, slot="shared")
    if draw.chance(0.3):
        draw.add("notebook", "commit", lane=4, slot="shared", solver="none")


def _branches(draw: _ScheduleBuilder) -> None:
    """Branches, tags, resets, merges, squashes and reverts, beside writers."""
    draw.add("one", "create_branch", branch="dev", source="main", back=draw.random.randrange(2))
    draw.wait()
    for _ in range(draw.random.randint(4, 9)):
        process = draw.random.choice(("one", "two"))
        verb = draw.pick(
            {
                "transaction": 8,
                "merge": 2,
                "revert": 1,
                "cherry_pick": 1,
                "squash": 1,
                "reset": 1,
                "create_tag": 2,
                "delete_branch": 0.4,
                "create_branch": 0.5,
                "delete_tag": 1.5,
                "expire": 1,
                "collect": 1,
                "hold": 1,
                "read": 2,
            }
        )
        branch = draw.pick(_BRANCHES)
        other = "dev" if branch == "main" else "main"
        if verb == "transaction":
            amend = draw.chance(0.15)
            solver = draw.pick(_SOLVERS)
            draw.add(process, verb, branch=branch, edits=draw.edits(2), solver=solver, amend=amend)
        elif verb == "merge":
            draw.add(
                process, verb, source=other, into=branch, solver=draw.pick({"detector": 2, "ours": 1, "theirs": 1})
            )
        elif verb == "revert" or verb == "squash":
            draw.add(process, verb, branch=branch, back=draw.random.randrange(1, 3) - (verb == "revert"))
        elif verb == "cherry_pick":
            draw.add(process, verb, source=other, branch=branch)
        elif verb == "reset":
            draw.add(process, verb, branch=branch, back=draw.random.randrange(1, 3), guarded=draw.chance(0.7))
        elif verb == "create_tag":
            draw.add(process, verb, tag=f"t{len(draw.steps)}", branch=branch, back=draw.random.randrange(3))
        elif verb == "delete_tag":
            draw.add(process, verb)
        elif verb == "delete_branch":
            draw.add(process, verb, branch="dev")
        elif verb == "create_branch":
            draw.add(process, verb, branch="dev", source="main")
        elif verb in ("expire", "collect"):
            _maintenance(draw, process, verb)
        else:
            draw.add(process, verb, slot="reader", branch=branch)
        draw.wait(0.4)
        draw.days(0.1)


def _maintenance_profile(draw: _ScheduleBuilder) -> None:
    """Every kind of maintenance, several at the same time, beside writers and readers that hold old sessions."""
    for _ in range(draw.random.randint(5, 10)):
        process = draw.random.choice(("writer", "nightly", "hourly"))
        if process == "writer":
            verb = draw.pick({"transaction": 5, "hold": 1, "read": 2})
            _serve(draw, process, verb)
        else:
            verb = draw.pick({"compact": 2, "rewrite": 2, "expire": 3, "collect": 3, "mirror": 1, "verify": 0.5})
            _maintenance(draw, process, verb)
        draw.wait(0.5)
        draw.days(0.25)
    draw.add("writer", "read", slot="reader", branch="main")


def _conversions(draw: _ScheduleBuilder) -> None:
    """Conversions to other places beside writers, and an upgrade or downgrade in place while nobody writes.

    After it, processes that still have the old generation open try to go on.
    """
    to = draw.random.choice(_GENERATIONS)
    for _ in range(draw.random.randint(1, 3)):
        verb = draw.pick({"transaction": 5, "convert": 3, "create_tag": 1, "expire": 0.5})
        if verb == "convert":
            draw.add("operator", "convert", to=draw.random.choice(_GENERATIONS))
        elif verb == "expire":
            _maintenance(draw, "operator", verb)
        else:
            _serve(draw, "service", verb)
        draw.wait()
    draw.add("service", "open", slot="late", branch="main")
    draw.add("service", "edit", slot="late", edits=draw.edits(2))
    draw.add("service", "hold", slot="reader", branch="main")
    draw.time += 300
    draw.add("operator", "upgrade", to=to)
    if draw.chance(0.5):
        draw.wait()
        draw.add("service", "read", slot="reader", branch="main")
    draw.time += 300
    # Whoever died on the way does it again.
    draw.add("operator", "upgrade", to=to)
    draw.time += 300
    for _ in range(draw.random.randint(1, 4)):
        verb = draw.pick({"fresh": 4, "service": 2, "late": 3, "read": 1, "expire": 1, "collect": 1})
        if verb == "late":
            draw.add("service", "commit", slot="late", solver="detector")
        elif verb in ("expire", "collect"):
            _maintenance(draw, "operator", verb)
        else:
            process = "others" if verb == "fresh" else "service"
            _serve(draw, process, "read" if verb == "read" else "transaction")
        draw.wait(3)


def _pool(draw: _ScheduleBuilder) -> None:
    """Threads of one process that commit to one branch at the same time, and others that move the branch meanwhile."""
    weights = {"set": 8, "fill": 2, "create": 1, "resize": 0.5, "note": 0.3}
    for _ in range(draw.random.randint(1, 3)):
        start = draw.time
        for lane in range(draw.random.randint(2, 6)):
            draw.time = start
            for _ in range(draw.random.randint(1, 3)):
                draw.time += draw.random.uniform(0, 0.3)
                solver = draw.pick({"detector": 6, "ours": 1, "theirs": 1, "none": 0.3})
                draw.add("pool", "transaction", lane, branch="main", edits=draw.edits(2, weights), solver=solver)
        for _ in range(draw.random.randint(0, 3)):
            draw.time = start + draw.random.uniform(0, 1.5)
            verb = draw.pick({"transaction": 3, "amend": 1, "expire": 3, "collect": 2, "compact": 1, "reset": 1})
            if verb in ("transaction", "amend"):
                _serve(draw, "others", verb)
            elif verb == "reset":
                draw.add("others", verb, branch="main", back=draw.random.randrange(1, 3), guarded=draw.chance(0.7))
            else:
                _maintenance(draw, "others", verb)
        draw.time = start + 5
        draw.days(0.3)


PROFILES: Mapping[str, Callable[[_ScheduleBuilder], None]] = {
    "writers": _writers,
    "service": _service,
    "late": _late,
    "forks": _forks,
    "threads": _threads,
    "preempted": _preempted,
    "branches": _branches,
    "care": _maintenance_profile,
    "moves": _moves,
    "conversions": _conversions,
    "pool": _pool,
}
_BY_NAME = {"pool"}
"""Profiles that consecutive seeds leave out. They are asked for by name."""


def draw_schedule(generation: str, seed: int, profile: str | None = None) -> Schedule:
    """The schedule of a seed; without a profile, seeds take turns through those that need not be asked for."""
    names = [name for name in PROFILES if name not in _BY_NAME]
    profile = profile or names[seed % len(names)]
    rng = random.Random(f"{generation}/{profile}/{seed}")
    draw = _ScheduleBuilder(rng)
    PROFILES[profile](draw)
    steps = sorted(draw.steps, key=lambda step: (step.at, step.number))
    faulty = rng.random() < 0.3
    processes = tuple(
        ProcessPlan(
            name,
            config=rng.choice(("inline", "packed", "loose", "loose")) if profile != "moves" else "packed",
            long_lived=rng.random() < 0.8 or profile == "moves",
            skew_seconds=rng.choice((0.0, 0.0, 0.0, rng.uniform(-7200, 7200))),
            loss_share=rng.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
            death_share=rng.choice((0.0, 0.01)) if faulty else 0.0,
            is_local=profile == "preempted",
        )
        for name in sorted({step.process for step in steps})
    )
    return Schedule(
        generation,
        profile,
        seed,
        processes,
        tuple(steps),
        store_skew_seconds=rng.choice((0.0, 0.0, rng.uniform(-7200, 7200))),
        store_resolution_seconds=rng.choice((0, 1)),
        page_size=rng.choice((3, 1000)),
        thorough_end=rng.random() < 0.1,
    )
