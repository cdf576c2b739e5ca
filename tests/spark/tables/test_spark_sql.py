"""Queries that are planned for Spark have the same results as plain rows in DuckDB, and read few chunks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tables.query_generator import QueryGenerator, make_repository, oracle, same_rows

from icefloe.errors import InvalidInputError
from icefloe.spark import sql
from icefloe.spark.table import prepare_query
from icefloe.spark.tasks import arrow_table

pytestmark = pytest.mark.spark
_ZONE = "spark.sql.session.timeZone"
_QUERIES = 40
_MANY_QUERIES = 500


@pytest.fixture(scope="module")
def world(tmp_path_factory: Any) -> Any:
    repo, rows = make_repository(str(tmp_path_factory.mktemp("spark_sql") / "repo"))
    return repo, oracle(rows)


@pytest.fixture
def zoned(spark: Any) -> Any:
    before = spark.conf.get(_ZONE)
    yield spark
    spark.conf.set(_ZONE, before)


def check(spark: Any, world: Any, seed: int) -> None:
    repo, expected_rows = world
    query = QueryGenerator(seed).query()
    expected = expected_rows(query.plain, query.zone)
    spark.conf.set(_ZONE, query.zone)
    found = arrow_table(sql(spark, repo, query.text))
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    shown = f"seed {seed}, {query.zone}\n{query.text}\n{rows[:3]}\n{expected[:3]}"
    assert same_rows(rows, expected, ordered=query.is_ordered), shown


def test_generated_queries_equal_plain_rows_on_spark(zoned: Any, world: Any) -> None:
    for seed in range(_QUERIES):
        check(zoned, world, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_generated_queries_equal_plain_rows_on_spark(zoned: Any, world: Any, part: int) -> None:
    for seed in range(part * _MANY_QUERIES // 10, (part + 1) * _MANY_QUERIES // 10):
        check(zoned, world, seed)


def test_a_condition_on_coordinates_reads_only_its_chunks(spark: Any, world: Any) -> None:
    repo, _ = world
    session = repo.readonly_session("main")
    text = "select time, t2m from t2m where lat > 60 and time < '2020-03-29' and hour(time) < 30"
    [relation] = prepare_query(spark, repo, session, text).relations
    assert relation.scan is not None and (relation.scan.chunks, relation.scan.total_chunks) == (3, 36)
    [relation] = prepare_query(spark, repo, session, "select lat, avg(t2m) from t2m group by lat").relations
    assert relation.work is not None


def test_a_wrong_query_is_refused_in_one_line(spark: Any, world: Any) -> None:
    repo, _ = world
    with pytest.raises(InvalidInputError, match="nothing") as caught:
        sql(spark, repo, "select nothing from t2m")
    assert "\n" not in str(caught.value)
