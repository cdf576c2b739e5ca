"""Queries that are planned for Spark have the same results as plain rows in DuckDB, and read few chunks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.tables.query_generator import QueryGenerator, make_repository, oracle, same_rows

import icefloe
from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.spark import sql
from icefloe.spark.table import prepare_query, run_query
from icefloe.spark.tasks import arrow_table

pytestmark = pytest.mark.spark
_ZONE = "spark.sql.session.timeZone"
_QUERIES = 500
_MANY_QUERIES = 10_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: Any) -> Any:
    repo, rows = make_repository(str(tmp_path_factory.mktemp("spark_sql") / "repo"))
    return repo, oracle(rows)


@pytest.fixture
def zoned(spark: Any) -> Any:
    """A session that does not compile its queries, because each of them runs once."""
    quick = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    before = {name: spark.conf.get(name) for name in (_ZONE, *quick)}
    for name, value in quick.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def check(spark: Any, world: Any, seed: int) -> None:
    repo, expected_rows = world
    query = QueryGenerator(seed).query()
    expected = expected_rows(query.plain, query.zone)
    spark.conf.set(_ZONE, query.zone)
    found = arrow_table(sql(spark, repo, query.text))
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    shown = f"seed {seed}, {query.zone}\n{query.text}\n{rows[:3]}\n{expected[:3]}"
    assert same_rows(rows, expected, ordered=query.is_ordered), shown


@pytest.fixture
def either_reader(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let tasks read for every twentieth seed, although the arrays are small, and the driver for the others."""
    module = importlib.import_module("icefloe.spark.table")
    small = module._SMALL_BYTES
    return lambda seed: monkeypatch.setattr(module, "_SMALL_BYTES", small if seed % 20 else 0)


def test_generated_queries_equal_plain_rows_on_spark(zoned: Any, world: Any, either_reader: Any) -> None:
    for seed in range(_QUERIES):
        either_reader(seed)
        check(zoned, world, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_many_generated_queries_equal_plain_rows_on_spark(
    zoned: Any, world: Any, part: int, either_reader: Any
) -> None:
    for seed in range(part * _MANY_QUERIES // 40, (part + 1) * _MANY_QUERIES // 40):
        either_reader(seed)
        check(zoned, world, seed)


def test_a_condition_on_coordinates_reads_only_its_chunks(spark: Any, world: Any) -> None:
    repo, _ = world
    session = repo.readonly_session("main")
    text = "select time, t2m from t2m where lat > 60 and time < '2020-03-29' and hour(time) < 30"
    [relation] = prepare_query(spark, repo, session, text).relations
    assert relation.scan is not None and (relation.scan.chunks, relation.scan.total_chunks) == (3, 36)
    [relation] = prepare_query(spark, repo, session, "select lat, avg(t2m) from t2m group by lat").relations
    assert relation.work is not None


def test_chunks_outside_of_a_condition_are_never_fetched(spark: Any, tmp_path: Path) -> None:
    """Every object of another chunk is removed. A query that asked for one of them would fail."""
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    values = np.random.default_rng(0).random((8, 400))
    with repo.transaction("main", message="array") as store:
        names = ["y", "x"]
        zarr.create_array(store, name="v", shape=values.shape, chunks=(2, 400), dtype="f8", dimension_names=names)
    for row in range(0, 8, 2):  # the chunks of one commit are in one object
        with repo.transaction("main", message="rows") as store:
            zarr.open_array(store, path="v")[row : row + 2] = values[row : row + 2]
    rows = icefloe.sql(repo, "select coords, object from chunks where path = '/v'").to_pylist()
    kept = {row["object"] for row in rows if row["coords"][0] == 1}
    removed = {row["object"] for row in rows} - kept
    assert len(rows) == 4 and len(kept) == 1 and len(removed) == 3
    for name in removed:
        (tmp_path / "repo" / name).unlink()
    total = arrow_table(sql(spark, repo, "select sum(v) as s from v where y between 2 and 3")).to_pylist()
    assert total == [{"s": pytest.approx(values[2:4].sum())}]
    found = arrow_table(sql(spark, repo, "select * from v where y = 3 and x > 1 order by x"))
    assert found.column("v").to_pylist() == values[3, 2:].tolist()
    joined = "select count(*) as n from v a join v b on a.x = b.x where a.y = 2 and b.y = 3 and a.v < b.v"
    assert arrow_table(sql(spark, repo, joined)).to_pylist() == [{"n": int((values[2] < values[3]).sum())}]
    with pytest.raises(FormatError, match="missing"):
        run_query(sql(spark, repo, "select * from v where y < 2"))


def test_a_wrong_query_is_refused_in_one_line(spark: Any, world: Any) -> None:
    repo, _ = world
    with pytest.raises(InvalidInputError, match="nothing") as caught:
        sql(spark, repo, "select nothing from t2m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["insert into t2m select * from t2m", "update t2m set t2m = 0", "create table x (a int)"]
)
def test_a_statement_that_writes_is_refused_on_spark(spark: Any, world: Any, query: str) -> None:
    repo, _ = world
    with pytest.raises(UnsupportedError, match=query.split()[0].upper() + " is not supported.*icefloe.spark.write"):
        sql(spark, repo, query)
