"""Schedules that once broke a promise, as short as they could be made; each is run with several delays."""

from __future__ import annotations

import pytest

from icefloe.testing.actors import DAY, Edit, ProcessPlan, Step
from icefloe.testing.profiles import Schedule
from icefloe.testing.simulator import GENERATIONS, run_schedule

SERVICE, NIGHTLY = ProcessPlan("service", config="loose"), ProcessPlan("nightly", config="packed")
OTHERS, NOTEBOOK = ProcessPlan("others", config="loose"), ProcessPlan("notebook", config="loose", is_local=True)


def steps(*calls: tuple[float, str, str, dict[str, object]]) -> tuple[Step, ...]:
    """Calls at times; a process `name.1` is the second thread of `name`."""
    made = []
    for number, (at, actor, verb, arguments) in enumerate(calls):
        name, _, lane = actor.partition(".")
        made.append(Step(number, at, name, int(lane or 0), verb, arguments))
    return tuple(made)


def transaction(*edits: Edit, amend: bool = False, solver: str = "detector") -> dict[str, object]:
    return {"branch": "main", "edits": list(edits), "solver": solver, "amend": amend}


MAIN = {"branch": "main"}
LATE = {"slot": "late"}
OPEN = {**LATE, **MAIN}
COMMIT = {**LATE, "solver": "detector"}


def edit(*edits: Edit) -> dict[str, object]:
    return {**LATE, "edits": list(edits)}


def forks(*workers: list[Edit], how: str = "merge", pause: float = 0.0) -> dict[str, object]:
    return {**LATE, "edits": list(workers), "how": how, "pause": pause}


FOUND: dict[str, tuple[Step, ...]] = {
    "a service commits after a foreign expiry and collection": steps(
        (0.0, "service", "transaction", transaction(("set", "a", 0))),
        (2 * DAY, "nightly", "expire", {"age": 1.0}),
        (2 * DAY + 60, "nightly", "collect", {"grace": DAY}),
        (2 * DAY + 120, "service", "transaction", transaction(("set", "b", 2))),
    ),
    "forks make an array smaller that the session made smaller and larger before": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("resize", "a", 2), ("resize", "a", 4))),
        (0.0, "service", "fork", forks([("set", "a", 3)], [("resize", "a", 2)])),
    ),
    "others write a chunk between those of a worker, and commit first": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("set", "a", 1), ("set", "a", 5)], how="parts")),
        (60.0, "others", "transaction", transaction(("set", "a", 2))),
        (120.0, "service", "commit", COMMIT),
    ),
    "others write a chunk between those of a worker, and commit last": steps(
        (0.0, "others", "open", OPEN),
        (0.0, "others", "edit", edit(("set", "a", 2))),
        (60.0, "service", "open", OPEN),
        (60.0, "service", "fork", forks([("set", "a", 1), ("set", "a", 5)], how="parts")),
        (120.0, "service", "commit", COMMIT),
        (180.0, "others", "commit", COMMIT),
    ),
    "a service amends after a foreign expiry and collection": steps(
        (0.0, "service", "transaction", transaction(("set", "a", 0))),
        (2 * DAY, "nightly", "expire", {"age": 1.0}),
        (2 * DAY + 60, "nightly", "collect", {"grace": DAY}),
        (2 * DAY + 120, "service", "transaction", transaction(("set", "b", 2), amend=True)),
        (2 * DAY + 180, "nightly", "collect", {"grace": DAY}),
    ),
    "a service amends an array away after a foreign expiry": steps(
        (0.0, "service", "transaction", transaction(("set", "a", 0))),
        (2 * DAY, "nightly", "expire", {"age": 1.0}),
        (2 * DAY + 60, "service", "transaction", transaction(("replace", "a", 6), ("fill", "a", 2), amend=True)),
    ),
    "a service amends while history is being expired": steps(
        (0.0, "service", "transaction", transaction(("set", "a", 4))),
        (2 * DAY, "nightly", "expire", {"age": 0.0}),
        (2 * DAY + 0.05, "service", "transaction", transaction(("set", "a", 0), amend=True)),
        (3 * DAY, "service", "transaction", transaction(("set", "a", 1))),
        (4 * DAY, "service", "transaction", transaction(("set", "a", 2), amend=True)),
        (4 * DAY + 0.2, "nightly", "expire", {"back": 1}),
    ),
    "chunks are moved while others compact, expire and collect": steps(
        (2 * DAY, "service", "open", OPEN),
        (2 * DAY, "service", "edit", edit(("shift", "a", 1))),
        (2 * DAY + 1, "service", "open", {"slot": "early", **MAIN}),
        (2 * DAY + 1, "service", "edit", {"slot": "early", "edits": [("set", "b", 3)]}),
        (2 * DAY + 60, "nightly", "compact", MAIN),
        (2 * DAY + 120, "service", "commit", {"slot": "early", "solver": "detector"}),
        (2 * DAY + 180, "nightly", "expire", {"age": DAY}),
        (2 * DAY + 240, "nightly", "collect", {"grace": DAY}),
        (2 * DAY + 300, "service", "commit", COMMIT),
    ),
    "chunks of a session are collected before it commits": steps(
        (2 * DAY, "service", "open", OPEN),
        (2 * DAY, "service", "edit", edit(("set", "b", 1))),
        (2 * DAY + 60, "nightly", "collect", {"grace": 0.0}),
        (2 * DAY + 120, "service", "commit", COMMIT),
    ),
    "a chunk is set to the fill value where nothing was": steps(
        (0.0, "service", "transaction", transaction(("fill", "b", 5)))
    ),
    "a chunk is set to the fill value while another writer sets it": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("fill", "b", 3), ("set", "b", 4))),
        (10.0, "others", "transaction", transaction(("set", "b", 3))),
        (20.0, "service", "commit", COMMIT),
    ),
    "two writers make an array equally small, and one of them large again": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("set", "b", 3), ("resize", "a", 2))),
        (10.0, "others", "transaction", transaction(("resize", "a", 2))),
        (20.0, "others", "transaction", transaction(("resize", "a", 6))),
        (30.0, "service", "commit", COMMIT),
    ),
    "a thread writes while another one commits": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("set", "a", 5))),
        (5.0, "service", "commit", COMMIT),
        (4.98, "service.1", "edit", edit(*(("set", "a", index) for index in (0, 1, 2, 3, 4)))),
        (5.02, "service.2", "edit", edit(*(("set", "b", index) for index in (0, 1, 2, 3, 4)))),
    ),
    "a fork makes an array smaller and larger again": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("resize", "a", 1), ("resize", "a", 6)])),
        (20.0, "service", "read_own", LATE),
        (20.0, "service", "commit", COMMIT),
    ),
    "a fork makes an array smaller, and a later commit larger again": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("resize", "a", 1)])),
        (20.0, "service", "commit", COMMIT),
        (30.0, "service", "transaction", transaction(("resize", "a", 8))),
    ),
    "a fork replaces an array": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("replace", "a", 6), ("set", "a", 0)])),
        (20.0, "service", "read_own", LATE),
    ),
    "a fork replaces an array that another one wrote to": steps(
        (0.0, "service", "open", OPEN),
        (
            0.0,
            "service",
            "fork",
            forks([("set", "a", 1), ("resize", "b", 1)], [("resize", "b", 8), ("replace", "a", 6)]),
        ),
        (20.0, "service", "read_own", LATE),
    ),
    "a fork deletes an array that another one writes to": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("set", "a", 5)], [("delete", "a", 0)])),
        (20.0, "service", "read_own", LATE),
    ),
    "a fork cuts a chunk off that another one writes": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("resize", "a", 1)], [("set", "a", 5)], how="elsewhere")),
        (20.0, "service", "read_own", LATE),
    ),
    "a worker changes attributes and leaves parts": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("note", "a", 0), ("set", "a", 1)], how="parts")),
        (20.0, "service", "read_own", LATE),
    ),
    "a collection of the same process does not see a fork": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "fork", forks([("set", "a", 3)], pause=DAY)),
        (3600.0, "service.1", "collect", {"grace": 5.0}),
    ),
    "a late writer meets an array that was smaller for a while, and the log of it expired": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("set", "a", 5))),
        (10.0, "others", "transaction", transaction(("resize", "a", 2))),
        (20.0, "others", "transaction", transaction(("resize", "a", 6))),
        (30.0, "nightly", "expire", {"back": 1}),
        (60.0, "service", "commit", COMMIT),
    ),
    "a late writer meets an array that was smaller for a while, and was squashed": steps(
        (0.0, "service", "open", OPEN),
        (0.0, "service", "edit", edit(("set", "a", 5))),
        (10.0, "others", "transaction", transaction(("resize", "a", 2))),
        (20.0, "others", "transaction", transaction(("resize", "a", 6))),
        (30.0, "nightly", "squash", {"branch": "main", "back": 2}),
        (60.0, "service", "commit", COMMIT),
    ),
    "an array is made smaller while its manifests are rewritten and the log of its chunks expires": steps(
        (0.0, "service", "read", {"slot": "reader", **MAIN}),
        (2 * DAY, "nightly", "rewrite", MAIN),
        (2 * DAY + 0.5, "nightly", "expire", {"age": DAY / 2}),
        (2 * DAY + 0.8, "service", "transaction", transaction(("set", "b", 5), ("resize", "a", 1))),
    ),
    **{
        f"a service amends an array away {gap} s after a foreign expiry began": steps(
            (0.0, "service", "transaction", transaction(("set", "a", 4))),
            (2 * DAY, "nightly", "expire", {"age": 0.0}),
            (2 * DAY + gap, "service", "transaction", transaction(("set", "a", 5), ("delete", "b", 2), amend=True)),
        )
        for gap in (0.3, 1, 3)
    },
    "an expiry of one commit ends after one of all commits": steps(
        (0.0, "service", "transaction", transaction(("create", "c", 8), ("resize", "a", 4))),
        (2 * DAY, "nightly", "expire", {"back": 1}),
        (2 * DAY + 0.15, "others", "expire", {"age": 0.0}),
    ),
    "two expiries at the same time": steps(
        (0.0, "service", "transaction", transaction(("resize", "a", 4), ("set", "a", 1))),
        (2 * DAY, "nightly", "expire", {"age": 0.0}),
        (2 * DAY + 0.1, "others", "expire", {"back": 2}),
    ),
}


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", FOUND)
def test_what_once_broke_a_promise_does_so_no_more(name: str, generation: str) -> None:
    for seed, skew in enumerate((0.0, 0.0, 7000.0, -7000.0)):
        schedule = Schedule(generation, "found", seed, (SERVICE, NIGHTLY, OTHERS), FOUND[name], store_skew_seconds=skew)
        violation = run_schedule(schedule)
        assert violation is None, f"seed {seed}: {violation}"


SHARED = {"slot": "shared"}
THREADS: dict[str, tuple[Step, ...]] = {
    "threads look at a session that others write to": steps(
        (0.0, "notebook.0", "edit", {**SHARED, "edits": [("set", "b", 4)]}),
        (0.0, "notebook.1", "edit", {**SHARED, "edits": [("set", "a", 5), ("set", "b", 2)]}),
        (0.0, "notebook.1", "edit", {**SHARED, "edits": [("set", "a", 5), ("fill", "b", 2), ("set", "a", 2)]}),
        (0.0, "notebook.2", "look", SHARED),
        (0.0, "notebook.2", "look", SHARED),
        (0.0, "notebook.3", "list", SHARED),
    ),
    "threads write to a session that another one commits": steps(
        (0.0, "notebook.0", "edit", {**SHARED, "edits": [("set", "b", 4), ("set", "a", 1)]}),
        (0.0, "notebook.1", "edit", {**SHARED, "edits": [("set", "a", 5), ("set", "b", 2)]}),
        (0.0, "notebook.2", "look", SHARED),
        (0.0, "notebook.4", "commit", {**SHARED, "solver": "none"}),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", THREADS)
def test_threads_that_once_lost_writes_lose_none_any_more(name: str) -> None:
    for seed in range(60):
        schedule = Schedule("repository", "preempted", seed, (NOTEBOOK,), THREADS[name])
        violation = run_schedule(schedule)
        assert violation is None, f"seed {seed}: {violation}"
