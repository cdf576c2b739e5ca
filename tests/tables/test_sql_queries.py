"""Generated queries have the same results as plain rows in DuckDB."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.tables.query_generator import QueryGenerator, make_repository, oracle, same_rows

import icefloe

_QUERIES = 500
_MANY_QUERIES = 10_000


@pytest.fixture(scope="module")
def world() -> Any:
    repo, rows = make_repository()
    return repo, oracle(rows)


def check(world: Any, seed: int) -> None:
    repo, expected_rows = world
    query = QueryGenerator(seed).query()
    expected = expected_rows(query.plain, query.zone)
    found = icefloe.sql(repo, query.text, time_zone=query.zone)
    rows = list(zip(*(column.to_pylist() for column in found.arrow().columns), strict=True))
    shown = f"seed {seed}, {query.zone}\n{query.text}\n{found.explain()}\n{rows[:3]}\n{expected[:3]}"
    assert same_rows(rows, expected, ordered=query.is_ordered), shown


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_generated_queries_equal_plain_rows(world: Any, part: int) -> None:
    for seed in range(part * _QUERIES // 10, (part + 1) * _QUERIES // 10):
        check(world, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_generated_queries_equal_plain_rows(world: Any, part: int) -> None:
    first = random.randrange(1 << 30)
    for seed in range(first, first + _MANY_QUERIES // 20):
        check(world, seed)
