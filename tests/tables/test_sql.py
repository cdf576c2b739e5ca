"""SQL on arrays: what is read, what is computed by chunk, time travel, names, refusals, and faces for other engines."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
import zarr
from tests.tables.query_generator import make_repository

import icefloe
from icefloe.cli.app import main
from icefloe.errors import InvalidInputError, NodeNotFoundError, RefNotFoundError, UnsupportedError
from icefloe.tables import scan
from icefloe.tables.queries import DuckDBEngine, explain, run_query
from icefloe.tables.statistics import keep_rows, measure_chunks


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    return make_repository()[0]


def one(repo: icefloe.Repository, query: str, **options: Any) -> Any:
    [row] = icefloe.sql(repo, query, **options).to_pylist()
    [value] = row.values()
    return value


def chunks(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if "chunks:" in line]


def explained(repo: icefloe.Repository, query: str) -> str:
    return explain(repo, repo.readonly_session("main"), query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select t2m from t2m where lat = 0 and time < '2020-03-29'", ["chunks: 3 of 36 are read"]),
        ("select t2m from t2m where hour(time) = 3 and lat > 60", ["chunks: 0 of 36 are read"]),
        ("select t2m from t2m where lat > 60 or lon < 0", ["chunks: 12 of 36 are read"]),
        ("select s.t2m from (select * from t2m) s where s.lat = 89.5", ["chunks: 12 of 36 are read"]),
        ("with w as (select * from t2m) select t2m from w where lat = 0", ["chunks: 12 of 36 are read"]),
        ("select distinct lat from t2m", ["chunks: none of 36, coordinates only"]),
        ("select count(*) from t2m", ["chunks: none of 36, coordinates only"]),
        (
            "select a.t2m from t2m a left join t2m b on a.time = b.time and b.lat = 0 where a.lon = 0",
            ["chunks: 12 of 36 are read", "chunks: none of 36, coordinates only"],
        ),
        # A row of the right side that is removed becomes a row of nulls, which the condition accepts.
        (
            "select a.t2m from t2m a left join wind b on a.lat = b.lat where b.lat is null and b.wind is null",
            ["chunks: 36 of 36 are read", "chunks: 36 of 36 are read"],
        ),
        # The row numbers depend on all rows.
        (
            "select * from (select lat, row_number() over (order by lat, t2m) n from t2m) where lat = 0",
            ["chunks: 36 of 36 are read"],
        ),
        ("select * from (select * from t2m limit 5) where lat = 0", ["chunks: 36 of 36 are read"]),
    ],
)
def test_conditions_select_chunks(repo: icefloe.Repository, query: str, expected: list[str]) -> None:
    assert chunks(explained(repo, query)) == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select lat, avg(t2m), stddev(t2m) from t2m where t2m > 280 group by lat", None),
        ("select hour(time) h, sum(wind) from cells group by h having count(*) > 2 order by 2 limit 3", None),
        ("select date_trunc('month', time), any_value(t2m), first(t2m), max(time) from t2m group by 1", None),
        ("select t.lat, count(t.t2m) from t2m t where t.lat > 0 or t.t2m > 300 group by all", None),
        ("select count(distinct t2m) from t2m", "needs rows"),
        ("select t2m, count(*) from t2m group by t2m", "not a function of a dimension"),
        ("select lat + lon, count(*) from t2m group by 1", "not a function of a dimension"),
        ("select lat, avg(t2m) from t2m where t2m > lat group by lat", "needs rows"),
        ("select time, lat, lon, max(t2m) from t2m group by 1, 2, 3", "as many groups as cells"),
        ("select a.lat, max(a.t2m) from t2m a join wind b using (lat) group by a.lat", "joins tables"),
        ("select lat, sum(max(t2m)) over () from t2m group by lat", "window functions"),
        ("select lat, max(t2m) from t2m group by rollup(lat)", "not a function"),
        ("select sum(t2m) filter (where lat > 0) from t2m", "needs rows"),
    ],
)
def test_explain_tells_what_is_aggregated_by_chunk(repo: icefloe.Repository, query: str, reason: str | None) -> None:
    text = explained(repo, query)
    assert ("aggregated by chunk" in text) == (reason is None)
    assert reason is None or reason in text


def test_statistics_answer_for_whole_chunks() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    values = np.arange(80, dtype="f4").reshape(8, 10)
    with repo.transaction("main", message="data") as store:
        array = zarr.create_array(store, name="v", shape=(8, 10), chunks=(2, 5), dtype="f4", dimension_names=["y", "x"])
        array[:] = values
    session = repo.readonly_session("main")
    from icefloe.tables.grids import find_grid

    [variable] = find_grid(session, "/", ["v"]).variables
    blocks = [(4 * 0 + n, values[2 * (n // 2) : 2 * (n // 2) + 2, 5 * (n % 2) : 5 * (n % 2) + 5]) for n in range(8)]
    keep_rows(session, variable, measure_chunks(variable, blocks))
    assert "0 of 8 are read, 8 by statistics" in explained(repo, "select sum(v), max(v), avg(v) from v")
    assert one(repo, "select sum(v) from v") == values.sum()
    assert "4 of 8 are read" in explained(repo, "select max(v) from v where y < 5 and x < 10 and y > 0")
    query = "select y > 3 as late, sum(v) as s, min(v) as low from v group by 1 order by 1"
    assert "0 of 8 are read, 8 by statistics" in explained(repo, query)
    assert icefloe.sql(repo, query).to_pylist() == [
        {"late": False, "s": values[:4].sum(), "low": 0.0},
        {"late": True, "s": values[4:].sum(), "low": 40.0},
    ]


def test_a_query_reads_other_snapshots(repo: icefloe.Repository) -> None:
    old = one(repo, "select sum(t2m) from t2m version as of 'v1'")
    assert old == one(repo, "select sum(t2m) from t2m", tag="v1") != one(repo, "select sum(t2m) from t2m")
    moment = repo.lookup_snapshot(repo.lookup_tag("v1")).written_at + dt.timedelta(microseconds=1)
    assert one(repo, f"select sum(t2m) from t2m timestamp as of '{moment.isoformat(sep=' ')}'") == old
    both = "select sum(a.t2m - b.t2m) from t2m a join t2m version as of 'v1' b using (time, lat, lon)"
    assert one(repo, both) is not None
    with pytest.raises(RefNotFoundError, match="v9"):
        icefloe.sql(repo, "select * from t2m version as of 'v9'")


def test_names_that_collide_are_never_the_wrong_array(repo: icefloe.Repository) -> None:
    for query in ("select * from q", "select * from a_b", "select * from A_B"):
        with pytest.raises(InvalidInputError, match="ambiguous"):
            icefloe.sql(repo, query)
    session = repo.readonly_session("main")
    for path in ("Q", "q", "a_b", "a/b"):
        stored = zarr.open_array(session.store, path=path, mode="r")[:]
        name = path.rpartition("/")[2]
        found = icefloe.sql(repo, f'select "{name}" as v from "{path}"').arrow().column("v").to_numpy()
        np.testing.assert_array_equal(found, stored)


@pytest.mark.parametrize(
    ("query", "kind", "match"),
    [
        ("selct 1", InvalidInputError, "cannot be parsed at line 1"),
        ("select 1; select 2", InvalidInputError, "one SELECT"),
        ("table t2m", InvalidInputError, "one SELECT statement, got"),
        ("select * from t2n", NodeNotFoundError, "did you mean 't2m'"),
        ("select foo from t2m", InvalidInputError, "foo"),
        ("select * from read_csv('/etc/passwd')", InvalidInputError, "disabled|Permission"),
        ("select * from x.t2m", InvalidInputError, "no schema"),
    ],
)
def test_what_is_not_a_query_of_the_repository_is_refused(
    repo: icefloe.Repository, query: str, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        icefloe.sql(repo, query)


WRITING = {
    "insert into t2m select * from t2m": r"INSERT is not supported\. .*icefloe\.spark\.write.*writable_session",
    "insert overwrite t2m values (1, 2, 3, 4)": "INSERT is not supported",
    "with x as (select * from t2m) insert into t2m select * from x": "INSERT is not supported",
    "merge into t2m using wind on t2m.lat = wind.lat when matched then delete": "MERGE is not .*mode='upsert'",
    "update t2m set t2m = 0 where lat > 0": "UPDATE is not supported.*writable_session",
    "delete from t2m where lat > 0": "DELETE is not supported.*writable_session",
    "with x as (delete from t2m) select * from x": "DELETE is not supported",
    "create table x as select * from t2m": r"CREATE is not supported\. .*to_icechunk.*--parquet",
    "create or replace temporary view x as select 1": "CREATE is not supported",
    "select * into x from t2m": "SELECT INTO is not supported.*to_icechunk",
    "copy t2m to 'x.parquet'": "COPY is not supported.*--parquet",
    "load data inpath 'x' into table t2m": "LOAD is not supported",
    "drop table t2m": "DROP is not supported.*del group",
    "alter table t2m rename to t3m": r"ALTER is not supported.*session\.move",
    "truncate table t2m": "TRUNCATE is not supported",
    "explain select * from t2m": r"EXPLAIN is not supported.*--explain",
    "show tables": "SHOW is not supported.*icefloe sql REPO",
    "describe t2m": "DESCRIBE is not supported.*icefloe sql REPO",
    "set time zone 'UTC'": "SET is not supported.*time_zone",
    "vacuum": "VACUUM is not supported. Only SELECT",
}


@pytest.mark.parametrize("query", WRITING)
def test_a_statement_that_is_not_a_query_is_refused_and_the_error_says_what_to_do(
    repo: icefloe.Repository, query: str
) -> None:
    tip = repo.lookup_branch("main")
    with pytest.raises(UnsupportedError, match=WRITING[query]) as caught:
        icefloe.sql(repo, query)
    assert "\n" not in str(caught.value) and repo.lookup_branch("main") == tip


def test_the_shell_refuses_statements_that_are_not_queries_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_repository(str(tmp_path / "repo"))
    for query, match in WRITING.items():
        for engine in ("duckdb", "spark"):  # it is refused before Spark starts
            assert main(["sql", str(tmp_path / "repo"), query, "--engine", engine]) == 1
            shown = capsys.readouterr().err
            assert re.search(match, " ".join(shown.split())), shown


def test_variables_of_the_caller_are_not_tables(repo: icefloe.Repository) -> None:
    secret = pl.DataFrame({"x": [1]})
    with pytest.raises(NodeNotFoundError):
        icefloe.sql(repo, "select * from secret")
    assert len(secret) == 1


def test_engines_agree_on_types_and_nulls(repo: icefloe.Repository) -> None:
    row = icefloe.sql(
        repo,
        "select sum(flag) s, cast(2.7 as int) i, cast(max(wind) + 0.75 as int) t, 1 / 0 d, 7 / 2 q, "
        "dayofweek(max(time)) w, weekday(max(time)) m, count(*) n from cells",
    ).to_pylist()[0]
    assert row["i"] == 2 and isinstance(row["s"], int) and row["d"] is None and row["q"] == 3.5
    assert row["w"] == 4 and row["m"] == 2  # a Wednesday
    order = icefloe.sql(repo, "select t2m from t2m order by t2m limit 1").to_pylist()
    assert order == [{"t2m": None}]  # nulls come first, as in Spark


def test_metadata_is_queried(repo: icefloe.Repository) -> None:
    assert one(repo, "select count(*) from history") == 3
    joined = "select r.name, s.message from refs r join snapshots s using (snapshot_id) where r.name = 'v1'"
    assert icefloe.sql(repo, joined).to_pylist() == [{"name": "v1", "message": "v1"}]


def test_results_are_shown_and_converted(repo: icefloe.Repository) -> None:
    result = icefloe.sql(repo, "select lat, max(t2m) as m from t2m group by lat order by lat")
    assert len(result) == 7 and result.columns == ["lat", "m"] and "7 rows" in repr(result)
    assert result.pandas()["lat"].tolist() == result.polars()["lat"].to_list() == result.arrow()["lat"].to_pylist()
    assert "<th>lat</th>" in result._repr_html_() and pl.DataFrame(result).shape == (7, 2)


def test_scans_have_faces_for_other_engines(repo: icefloe.Repository) -> None:
    selected = scan(repo, variables="t2m", where="lat > 30 and t2m > 300")
    expected = one(repo, "select count(*) from t2m where lat > 30 and t2m > 300")
    assert selected.to_arrow().num_rows == len(selected.to_pandas()) == expected == pl.DataFrame(selected).height
    with duckdb.connect() as connection:
        assert selected.to_duckdb(connection, "hot").aggregate("count(*)").fetchall() == [(expected,)]
    with pytest.raises(InvalidInputError, match="only SQL can evaluate"):
        scan(repo, variables="t2m", where="hour(time) = 3")
    with pytest.raises(InvalidInputError, match="did you mean 'lat'"):
        scan(repo, variables="t2m", columns=["lar"])


def test_a_lazy_frame_of_polars_reads_what_its_query_needs(
    repo: icefloe.Repository, caplog: pytest.LogCaptureFixture
) -> None:
    frame = scan(repo, variables="t2m").to_polars()
    condition = (pl.col("lat") == 0) & (pl.col("time").dt.hour() == 2) & (pl.col("t2m") > 280)
    with caplog.at_level("INFO", logger="icefloe.tables"):
        found = frame.filter(condition).select(pl.col("t2m").sum()).collect().item()
    assert "of 36 chunks" in caplog.text and "36 of 36" not in caplog.text
    everything = scan(repo, variables="t2m").to_polars().collect()
    assert found == pytest.approx(everything.filter(condition)["t2m"].sum(), rel=1e-6)
    assert frame.head(3).collect().height == 3 and frame.select("lon").collect().height == 30 * 7 * 9


def test_importing_the_package_imports_no_engine() -> None:
    code = "import sys, icefloe, icefloe.tables; print({'duckdb', 'sqlglot', 'polars', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.long
def test_a_wrong_name_is_found_before_an_engine_is_imported(tmp_path: Path) -> None:
    make_repository(str(tmp_path / "repo"))
    code = """if True:
        import sys
        from icefloe.cli.app import main
        query, *modules = sys.argv.pop(), *sys.argv.pop().split()
        sys.argv.append(query)
        try:
            main()
        except SystemExit:
            pass
        assert not set(modules) & set(sys.modules), set(modules) & set(sys.modules)
    """

    def run(modules: str, query: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "sql", str(tmp_path / "repo"), modules, query]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    engines = "duckdb pandas pyarrow zarr"
    assert "did you mean 't2m'" in run(engines, "select avg(t2) from t2m where lat > 0").stderr
    assert "did you mean 'wind'" in run(engines, "select 1 from winds").stderr
    assert run("pandas", "select hour(time), avg(t2m) from t2m where lat > 0 group by 1").stderr == ""


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select latt from t2m", "no column 'latt' in t2m .did you mean 'lat'.*There are: time, lat, lon, t2m"),
        ("select x.latt from t2m x", "no column 'latt' in t2m"),
        ("select 1 from (select lat as y from t2m) s where s.lat > 1", "no column 'lat' in s. There are: y"),
        ("select sum(t2m) as s from t2m group by lat having q > 1", "no column 'q'"),
        ("select mesage from history", "did you mean 'message'"),
        ("select (select max(wind) from wind where wind.lat = t2m.latt) from t2m", "no column 'latt' in t2m"),
    ],
)
def test_a_wrong_column_is_named(repo: icefloe.Repository, query: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        icefloe.sql(repo, query)


@pytest.mark.parametrize(
    "query",
    [
        "select lat as l, l + 1 as m from t2m order by m limit 1",
        "select (select max(wind) from wind where wind.lat = t2m.lat and lon = t2m.lon) from t2m limit 1",
        "select current_date, current_timestamp from t2m limit 1",
        "select lat, t2m from t2m union all select lat, wind from wind order by lat limit 1",
        "select transform(array(1, 2), x -> x + 1) from t2m limit 1",
        "select sum(t2m) over w from t2m window w as (partition by time order by lat) limit 1",
        "select timestampdiff(HOUR, time, time) from t2m limit 1",
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 3) select max(n) from r",
        "select * from (select lat, time from t2m) pivot (count(*) for lat in (0.0)) limit 1",
    ],
)
def test_a_name_that_is_not_a_column_of_a_table_is_not_refused(repo: icefloe.Repository, query: str) -> None:
    assert len(icefloe.sql(repo, query)) == 1


def many_types() -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="data") as store:
        times = zarr.create_array(store, name="time", shape=4, dtype="i8", dimension_names=["time"])
        times[:], times.attrs["units"] = np.arange(4) * 13, "hours since 2020-03-28"
        label = zarr.create_array(store, name="label", shape=3, dtype="str", dimension_names=["label"])
        label[:] = ["b", "", "ö"]
        dims = {"shape": (4, 3), "chunks": (2, 2), "dimension_names": ["time", "label"]}
        for kind in ("i1", "u2", "i4", "i8", "f4", "f8", "bool"):
            array = zarr.create_array(store, name=f"v_{kind}", dtype=kind, **dims)
            array[:] = (np.arange(12).reshape(4, 3) * 7 % 5).astype(kind)
        hole = zarr.open_array(store, path="v_f4", mode="r+")
        hole[1, 1] = np.nan
        waiting = zarr.create_array(store, name="waiting", dtype="timedelta64[s]", **dims)
        waiting[:] = np.arange(12).reshape(4, 3).astype("timedelta64[s]")
        when = zarr.create_array(store, name="due", dtype="i4", **dims)
        when[:], when.attrs["units"] = 3, "days since 2020-01-01"
    return repo


PLAIN = [
    "select * from {t}",
    "select {t}, time, label from {t} where {t} > 1",
    "select t.label as `Some Name`, t.{t} from {t} t where t.time >= '2020-03-28 13:00:00' and t.{t} is not null",
    "select {t} from {t} where {t} = 1.5 or label in ('b', 'ö')",
    "select {t} from {t} where time between '2020-03-29' and '2020-03-30' and not label = 'b'",
    "select {t} as a, {t} as b from {t} where {t} >= 3 and time < '2020-01-01'",
    "select max({t}), count({t}) as n from {t}",
    "select label, hour(time), min({t}) from {t} where label <> 'ö' group by 1, 2",
    "select time, count(*) from {t} where {t} <> 2 group by time",
]


@pytest.mark.long
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("column", ["v_i1", "v_u2", "v_i4", "v_i8", "v_f4", "v_f8", "v_bool", "waiting", "due"])
def test_a_query_that_runs_without_duckdb_has_the_result_of_duckdb(
    column: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = many_types()
    session = repo.readonly_session("main")
    for text in PLAIN:
        query = text.format(t=column)
        for limit in (None, 2):
            try:
                found: Any = run_query(repo, session, query, time_zone=zone, limit=limit).arrow()
            except InvalidInputError as error:
                found = str(error)
            with monkeypatch.context() as patch:
                patch.setattr("icefloe.tables.queries.select_without_engine", lambda prepared, limit=None: None)
                try:
                    expected: Any = run_query(repo, session, query, time_zone=zone, limit=limit).arrow()
                except InvalidInputError as error:
                    expected = str(error)
            if isinstance(expected, str):
                assert found == expected, query
                continue
            assert found.schema == expected.schema, query
            if "group by" not in query:
                assert found.to_pylist() == expected.to_pylist(), query
            elif limit is None:  # DuckDB returns groups in any order
                assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str), query
            else:
                assert len(found) == len(expected), query


@pytest.mark.parametrize(
    ("query", "needed"),
    [
        ("select v_f4, time from v_f4 where v_f4 > 1 and time > '2020-03-29'", False),
        ("select label, max(v_f4) from v_f4 where label = 'b' group by label", False),
        ("select * from v_i4", False),
        ("select v_i4 + 1 from v_i4", True),
        ("select v_i4 from v_i4 order by 1", True),
        ("select distinct v_i4 from v_i4", True),
        ("select v_i4 from v_i4 limit 2", True),
        ("select v_i4, v_i4 from v_i4", True),
        ("select a.v_i4 from v_i4 a, v_i4 b", True),
        ("select v_i4 from v_i4 where v_i4 > time_is_it()", True),
        ("select max(v_i4) from v_i4 having count(*) > 1", True),
        ("select q.a from v_i4 as q(a, b, c)", True),
        ("select v_i4 from v_i4 tablesample (50 percent)", True),
    ],
)
def test_duckdb_runs_what_is_more_than_a_selection(query: str, needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = many_types()
    started = []
    original = DuckDBEngine._connection.fget
    monkeypatch.setattr(DuckDBEngine, "_connection", property(lambda self: (started.append(1), original(self))[1]))
    try:
        run_query(repo, repo.readonly_session("main"), query)
    except InvalidInputError:
        assert needed
    assert bool(started) == needed
