"""Many actors on one repository, simulated: whatever the order of their steps, no promise is broken.

The official package takes part in real turns on real storage: tests/ledger/test_turns_of_both_libraries.py and
tests/icechunk/test_turns.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from icefloe.testing.profiles import PROFILES, draw_schedule
from icefloe.testing.simulator import GENERATIONS, run_schedule

SCHEDULES = 125
"""Schedules of one test. Four tests for each generation make the ordinary run, which takes a minute or two of two
cores. `dev.py simulate` and the slow test run new schedules."""

FIRST = 1_000_000 * int(os.environ.get("ICEFLOE_SEED", "0"))
"""The first schedule of the ordinary run. `dev.py test --seed N` begins at another one."""


def simulate(generation: str, seed: int, schedules: int, *more: str) -> None:
    """Run schedules in a process of its own, where sets have the same order for everybody."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "icefloe.testing.simulator",
            "--stop",
            "--every",
            "1000",
            "--generation",
            generation,
            "--seed",
            str(seed),
            "--schedules",
            str(schedules),
            *more,
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_schedule_breaks_a_promise_where_manifests_are_in_lists() -> None:
    simulate("repository", FIRST, SCHEDULES, "--manifest-lists")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_schedule_breaks_a_promise(generation: str, batch: int) -> None:
    simulate(generation, FIRST + batch * SCHEDULES, SCHEDULES)


@pytest.mark.long
@pytest.mark.parametrize("generation", GENERATIONS)
def test_chunks_that_a_session_moved_are_not_lost_when_others_pack_expire_and_collect(generation: str) -> None:
    simulate(generation, FIRST, 20, "--profile", "moves")


@pytest.mark.long
@pytest.mark.parametrize("generation", GENERATIONS)
def test_threads_of_one_process_that_commit_at_the_same_time_break_no_promise(generation: str) -> None:
    simulate(generation, FIRST, 20, "--profile", "pool")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_new_schedule_breaks_a_promise(generation: str, batch: int) -> None:
    simulate(generation, random.SystemRandom().randrange(1 << 40), 10 * SCHEDULES)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_always_makes_the_same_schedule(profile: str) -> None:
    assert draw_schedule("store", 5, profile) == draw_schedule("store", 5, profile)
    assert draw_schedule("store", 5, profile) != draw_schedule("store", 6, profile)


def test_a_schedule_is_over_in_no_time_although_days_pass_in_it() -> None:
    schedule = draw_schedule("repository", 8, "service")
    assert schedule.steps[-1].at > 86400
    assert run_schedule(schedule) is None
