"""Random SQL queries over a small repository, and the same cells as plain rows for an engine that is not ours.

A query is generated as two texts. The first names tables as a user does. The second names tables of plain rows in
DuckDB. Both texts are otherwise equal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr
import zarr

import icefloe
from icefloe.xarray import to_icechunk

ZONES = ("UTC", "Europe/Berlin", "America/New_York")
_TIMES = pd.date_range("2020-03-28T20:00", periods=30, freq="3h")
_LATS = [-60.5, -30.0, 0.0, 30.0, 45.25, 60.0, 89.5]
_LONS = np.arange(9) * 40.0
_STATIONS = ["bern", "Oslo", "rome", "tokyo"]


@dataclass(frozen=True)
class GeneratedTable:
    """A table that queries name: its name for us, its name in the oracle, and its columns."""

    name: str
    rows: str
    dims: tuple[str, ...]
    values: tuple[str, ...]


TABLES = (
    GeneratedTable("t2m", "cells", ("time", "lat", "lon"), ("t2m",)),
    GeneratedTable("wind", "cells", ("time", "lat", "lon"), ("wind",)),
    GeneratedTable("flag", "cells", ("time", "lat", "lon"), ("flag",)),
    GeneratedTable("cells", "cells", ("time", "lat", "lon"), ("t2m", "wind", "flag")),
    GeneratedTable("t2m version as of 'v1'", "cells_v1", ("time", "lat", "lon"), ("t2m",)),
    GeneratedTable("obs_seen", "obs", ("time", "station"), ("seen",)),
    GeneratedTable('"sub/height"', "height", ("lat", "lon"), ("height",)),
    GeneratedTable('"a/b"', "a_slash_b", ("lat",), ("b",)),
    GeneratedTable('"a_b"', "a_line_b", ("time",), ("a_b",)),
    GeneratedTable('"Q"', "large_q", ("lat",), ("Q",)),
    GeneratedTable('"q"', "small_q", ("lon",), ("q",)),
)
_GRIDDED = TABLES[:5]


def _dataset(seed: int) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape = (len(_TIMES), len(_LATS), len(_LONS))
    t2m = rng.uniform(250, 310, shape).astype("f4")
    t2m[rng.uniform(size=shape) < 0.05] = np.nan
    wind = np.round(rng.uniform(0, 30, shape) * 4) / 4
    wind[rng.uniform(size=shape) < 0.1] = np.nan
    flag = rng.integers(0, 6, shape).astype("f8")
    flag[rng.uniform(size=shape) < 0.1] = np.nan
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {"t2m": (dims, t2m), "wind": (dims, wind), "flag": (dims, flag)},
        coords={"time": _TIMES, "lat": _LATS, "lon": _LONS},
    )


_ENCODING = {
    "t2m": {"chunks": (8, 3, 4)},
    "wind": {"chunks": (8, 3, 4), "dtype": "i2", "scale_factor": 0.25, "_FillValue": -1},
    "flag": {"chunks": (30, 7, 2), "dtype": "i2", "_FillValue": -9},
    "time": {"units": "hours since 2020-01-01", "dtype": "i4"},
}


def make_repository(path: str | None = None) -> tuple[icefloe.Repository, dict[str, pa.Table]]:
    """Return a repository with two commits, and the cells of its tables as rows."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage() if path is None else path)
    rng = np.random.default_rng(3)
    rows: dict[str, pa.Table] = {}
    for seed, tag, name in ((1, "v1", "cells_v1"), (2, "v2", "cells")):
        data = _dataset(seed)
        session = repo.writable_session("main")
        to_icechunk(data, session, mode="w", encoding=_ENCODING)
        stations = xr.Dataset(
            {"seen": (("time", "station"), rng.integers(0, 50, (30, 4)))}, {"time": _TIMES, "station": _STATIONS}
        )
        to_icechunk(stations, session, group="obs", mode="w")
        height = xr.Dataset({"height": (("lat", "lon"), rng.uniform(0, 4000, (7, 9)))}, {"lat": _LATS, "lon": _LONS})
        to_icechunk(height, session, group="sub", mode="w", encoding={"height": {"chunks": (2, 9)}})
        for path, dim, key in (
            ("a/b", "lat", "a_slash_b"),
            ("a_b", "time", "a_line_b"),
            ("Q", "lat", "large_q"),
            ("q", "lon", "small_q"),
        ):
            along: Any = {"time": _TIMES, "lat": _LATS, "lon": _LONS}[dim]
            values = rng.uniform(size=len(along))
            zarr.create_array(session.store, name=path, data=values, dimension_names=[dim])
            # The group /a has no coordinates.
            coordinate = {"lat": np.arange(7)} if path == "a/b" else {dim: along}
            rows[key] = _plain_rows(xr.Dataset({path.rpartition("/")[2]: (dim, values)}, coordinate))
        session.commit(tag)
        repo.create_tag(tag, snapshot_id=repo.lookup_branch("main"))
        rows[name] = _plain_rows(data)
        rows["obs"] = _plain_rows(stations)
        rows["height"] = _plain_rows(height)
    return repo, rows


def _plain_rows(data: xr.Dataset) -> pa.Table:
    frame = data.to_dataframe().reset_index()
    columns: dict[str, pa.Array] = {}
    for name in frame.columns:
        if name == "time":
            columns[name] = pa.array(frame[name].dt.tz_localize("UTC")).cast(pa.timestamp("us", tz="UTC"))
        elif frame[name].dtype.kind == "f":
            columns[name] = pa.array(frame[name].astype("f8"), from_pandas=True)
        else:
            columns[name] = pa.array(frame[name])
    return pa.table(columns)


def oracle(rows: dict[str, pa.Table]) -> Callable[[str, str], list[tuple[Any, ...]]]:
    """Return a function that runs a query over plain rows in a time zone."""
    connection = duckdb.connect()
    for name, table in rows.items():
        connection.register(f"plain_{name}", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM plain_{name}")

    def run(query: str, zone: str) -> list[tuple[Any, ...]]:
        connection.execute("SET TimeZone = ?", [zone])
        return list(connection.execute(query).fetchall())

    return run


def same_rows(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]], *, ordered: bool) -> bool:
    """Return whether two results are equal, with a tolerance for floats."""
    if len(found) != len(expected):
        return False
    if ordered:
        return _all_same(found, expected)
    # Sums differ in their last digits. A few digits order rows in the same way, many tell near rows apart.
    return any(
        _all_same(sorted(found, key=_sort_key(digits)), sorted(expected, key=_sort_key(digits))) for digits in (10, 4)
    )


def _all_same(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> bool:
    return all(
        len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(found, expected, strict=True)
    )


def _sort_key(digits: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            (each is None, f"{float(each):.{digits}e}" if isinstance(each, int | float) else str(each)) for each in row
        )

    return key


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-7)
    return bool(a == b) or str(a) == str(b)


@dataclass(frozen=True)
class GeneratedQuery:
    """A query in both forms."""

    text: str
    plain: str
    zone: str
    is_ordered: bool


class QueryGenerator:
    """Generates the same queries for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def query(self) -> GeneratedQuery:
        """Return the next query."""
        kinds = (
            self._rows, self._groups, self._groups, self._groups, self._join, self._self_join, self._subquery,
            self._cte, self._window, self._in_subquery, self._union, self._group_join,
        )  # fmt: off
        text, ordered = self._random.choice(kinds)()
        zone = self._random.choice(ZONES)
        ours, plain = _both(text)
        return GeneratedQuery(ours, plain, zone, ordered)

    # Parts of queries. A table stands in the text as \x01ours\x02rows\x03.

    def _table(self, table: GeneratedTable) -> str:
        name = table.name if table.name.startswith('"') else self._case(table.name)
        return f"\x01{name}\x02{table.rows}\x03"

    def _case(self, name: str) -> str:
        """Return a name in any case. Literals keep theirs."""
        head, quote, rest = name.partition("'")
        return self._random.choice([head, head, head.upper(), head.title()]) + quote + rest

    def _column(self, name: str, alias: str = "") -> str:
        text = self._random.choice([name, name, name.upper(), f'"{name}"'])
        return f"{alias}.{text}" if alias else text

    def _constant(self, column: str) -> str:
        pick = self._random
        if column == "time":
            moment = pick.choice(list(_TIMES)) + pd.Timedelta(hours=pick.choice([0, 0, 1, 5]))
            text = moment.strftime(pick.choice(["%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S+00:00"]))
            return f"{pick.choice(['timestamp ', ''])}'{text}'" if "+00:00" not in text else f"'{text}'"
        if column == "station":
            return f"'{pick.choice([*_STATIONS, 'zurich'])}'"
        choices: dict[str, list[Any]] = {
            "lat": [*_LATS, 10, -90, 44.75],
            "lon": [*_LONS.tolist(), 15, 60.5],
            "t2m": [260, 275.5, 280.25, 300, 309.75, 400],
            "wind": [0, 3.5, 10.25, 25, 40],
            "flag": [0, 1, 2, 3, 5, 9],
            "seen": [0, 10, 25, 49],
            "height": [0, 1000.5, 2500, 5000],
        }
        return str(pick.choice(choices.get(column, [0, 0.25, 0.5, 0.75, 1])))

    def _condition(self, table: GeneratedTable, alias: str = "", depth: int = 2) -> str:
        pick = self._random
        kind = pick.choice(["leaf", "leaf", "leaf", "function", "and", "or", "not"] if depth else ["leaf", "function"])
        if kind in ("and", "or"):
            left, right = (self._condition(table, alias, depth - 1) for _ in range(2))
            return f"({left} {kind} {right})"
        if kind == "not":
            return f"not ({self._condition(table, alias, depth - 1)})"
        if kind == "function":
            return self._function_condition(table, alias)
        name = pick.choice([*table.dims, *table.dims, *table.values])
        column = self._column(name, alias)
        form = pick.choice(["compare", "compare", "compare", "between", "in", "null", "mirrored"])
        if form == "null":
            return f"{column} is {pick.choice(['', 'not '])}null"
        if form == "between":
            low, high = self._constant(name), self._constant(name)
            return f"{column} {pick.choice(['', 'not '])}between {low} and {high}"
        if form == "in" and name != "time":
            listed = ", ".join(self._constant(name) for _ in range(pick.randint(1, 3)))
            return f"{column} {pick.choice(['', 'not '])}in ({listed})"
        operator = pick.choice(["<", "<=", ">", ">=", "=", "<>"])
        if form == "mirrored":
            return f"{self._constant(name)} {operator} {column}"
        return f"{column} {operator} {self._constant(name)}"

    def _function_condition(self, table: GeneratedTable, alias: str) -> str:
        pick = self._random
        if "time" in table.dims and pick.random() < 0.6:
            time = self._column("time", alias)
            return pick.choice(
                [
                    f"hour({time}) = {pick.choice([0, 2, 5, 8, 23])}",
                    f"hour({time}) between 3 and 14",
                    f"month({time}) = {pick.choice([3, 4])}",
                    f"date_trunc('day', {time}) >= timestamp '2020-03-30'",
                    f"day({time}) in (28, 29, 31)",
                    f"cast({time} as date) = date '2020-03-29'",
                ]
            )
        numeric = [name for name in (*table.dims, *table.values) if name not in ("time", "station")]
        if not numeric:
            return "1 = 1"
        name = self._column(pick.choice(numeric), alias)
        return pick.choice(
            [
                f"abs({name}) > 30",
                f"{name} * 2 + 1 > 50",
                f"coalesce({name}, 0) >= 5",
                f"case when {name} > 20 then 1 else 0 end = 1",
                f"-{name} < -3",
            ]
        )

    def _where(self, table: GeneratedTable, alias: str = "") -> str:
        return f" where {self._condition(table, alias)}" if self._random.random() < 0.7 else ""

    def _key(self, table: GeneratedTable, alias: str = "") -> str:
        pick = self._random
        name = pick.choice(table.dims)
        column = self._column(name, alias)
        if name == "time":
            functions = ["hour({})", "date_trunc('day', {})", "date_trunc('month', {})", "day({})", "{}"]
            return pick.choice(functions).format(column)
        if name == "station":
            return column
        return pick.choice(["{}", "{}", "{}", "abs({})", "floor({} / 45)", "case when {} > 30 then 1 end"]).format(
            column
        )

    def _aggregate(self, table: GeneratedTable, alias: str = "") -> str:
        pick = self._random
        value = self._column(pick.choice(table.values), alias)
        dim = self._column(pick.choice([d for d in table.dims if d != "station"] or list(table.values)), alias)
        return pick.choice(
            [
                f"sum({value})", f"avg({value})", f"min({value})", f"max({value})", f"count({value})", "count(*)",
                f"stddev({value})", f"var_pop({value})", f"max({dim})", f"min({dim})", f"count({dim})",
                f"sum({value}) / count(*)", f"count(distinct {value})", f"avg({value}) - min({value})",
                f"sum({value} * 2)", "count(1)", f"stddev_pop({value})", f"coalesce(max({value}), 0)",
            ]
        )  # fmt: off

    # Kinds of queries.

    def _rows(self) -> tuple[str, bool]:
        table = self._random.choice(TABLES)
        columns = [self._column(name) for name in (*table.dims, *table.values)]
        extra = self._random.choice(["", f", {columns[-1]} * 2", f", {columns[-1]} is null"])
        chosen = ", ".join(columns) + extra
        if self._random.random() < 0.2:
            # Variables of a group are in the order of their names.
            chosen = f"\x01*\x02{', '.join([*table.dims, *sorted(table.values)])}\x03"
        if self._random.random() < 0.2:
            return f"select distinct {self._key(table)} from {self._table(table)}{self._where(table)}", False
        text = f"select {chosen} from {self._table(table)}{self._where(table)}"
        if self._random.random() < 0.4:
            keys = ", ".join(f"{name}{self._random.choice(['', ' desc'])} nulls last" for name in table.dims)
            limit = f" limit {self._random.randint(1, 9)}"
            offset = self._random.choice(["", " offset 2"])
            return f"{text} order by {keys}{limit}{offset}", True
        return text, False

    def _groups(self) -> tuple[str, bool]:
        pick = self._random
        table = pick.choice([*_GRIDDED, *_GRIDDED, *TABLES])
        alias = pick.choice(["", "", "g"])
        keys = list(dict.fromkeys(self._key(table, alias) for _ in range(pick.choice([0, 1, 1, 2]))))
        measures = list(dict.fromkeys(self._aggregate(table, alias) for _ in range(pick.randint(1, 3))))
        chosen = ", ".join([*(f"{key} as k{n}" for n, key in enumerate(keys)), *measures])
        text = f"select {chosen} from {self._table(table)}{f' as {alias}' if alias else ''}{self._where(table, alias)}"
        if not keys:
            return text, False
        text += f" group by {pick.choice([', '.join(keys), ', '.join(str(n + 1) for n in range(len(keys)))])}"
        if pick.random() < 0.3:
            value = self._column(table.values[0], alias)
            text += pick.choice([" having count(*) > 3", f" having avg({value}) > 20", f" having max({value}) <= 300"])
        if pick.random() < 0.3:
            order = ", ".join(f"k{n} nulls first" for n in range(len(keys)))
            return f"{text} order by {order} limit {pick.randint(1, 6)}", True
        return text, False

    def _join(self) -> tuple[str, bool]:
        pick = self._random
        left = pick.choice(_GRIDDED)
        right = pick.choice([*_GRIDDED, TABLES[6], TABLES[5]])
        shared = [dim for dim in left.dims if dim in right.dims]
        kind = pick.choice(["join", "inner join", "left join", "right join", "full join"])
        on = " and ".join(f"l.{dim} = r.{dim}" for dim in shared)
        if pick.random() < 0.4 and kind != "full join":
            on += f" and {self._condition(right, 'r', 1)}"
        where = [self._condition(left, "l", 1)] if pick.random() < 0.6 else []
        where += [self._condition(right, "r", 1)] if pick.random() < 0.5 else []
        # A condition on one latitude keeps the result small.
        where.append(pick.choice(["l.lat = 45.25", "r.lat in (0, 30)" if "lat" in right.dims else "l.lat = 30"]))
        tail = f" where {' and '.join(where)}"
        value, other = left.values[0], right.values[-1]
        chosen = pick.choice([f"l.lat, l.{value}, r.{other}", f"count(*), sum(l.{value}), max(r.{other})"])
        return f"select {chosen} from {self._table(left)} as l {kind} {self._table(right)} as r on {on}{tail}", False

    def _self_join(self) -> tuple[str, bool]:
        pick = self._random
        past = pick.choice([_GRIDDED[4], _GRIDDED[0]])
        text = (
            f"select a.time, a.lat, a.lon, a.t2m - b.t2m as d from {self._table(_GRIDDED[0])} a join "
            f"{self._table(past)} b on a.time = b.time and a.lat = b.lat and a.lon = b.lon "
            f"where {self._condition(_GRIDDED[0], 'a', 1)} and {self._condition(past, 'b', 1)} and a.lon < 100"
        )
        return text, False

    def _subquery(self) -> tuple[str, bool]:
        pick = self._random
        table = pick.choice(_GRIDDED)
        value = table.values[0]
        outer = pick.choice(["s.lat > 10", "s.lat in (0, 30)", "s.v > 5 and s.lat <> 30", "s.v is null or s.lat < 0"])
        if pick.random() < 0.5:
            inner = f"select time, lat, {value} as v from {self._table(table)}{self._where(table)}"
            return f"select s.lat, count(*), max(s.v) from ({inner}) s where {outer} group by s.lat", False
        inner = f"select lat, avg({value}) as v from {self._table(table)}{self._where(table)} group by lat"
        return f"select * from ({inner}) s where {outer}", False

    def _cte(self) -> tuple[str, bool]:
        pick = self._random
        table = pick.choice(_GRIDDED)
        value = table.values[0]
        inner = f"select time, lat, lon, {value} as v from {self._table(table)}{self._where(table)}"
        if pick.random() < 0.5:
            return f"with w as ({inner}) select lat, sum(v) from w where lon > 50 group by lat", False
        rest = "select a.lat, count(*) from w a join w b on a.time = b.time and a.lat = b.lat and a.lon = b.lon"
        return f"with w as ({inner}) {rest} where a.lat >= 0 and b.lat < 60 group by a.lat", False

    def _window(self) -> tuple[str, bool]:
        pick = self._random
        table = pick.choice(_GRIDDED)
        value = table.values[0]
        function = pick.choice(
            [
                "row_number() over (partition by lat order by time, lon)",
                f"avg({value}) over (partition by lat)",
                f"sum({value}) over (partition by lat, lon order by time rows between 1 preceding and current row)",
                f"max({value}) over ()",
            ]
        )
        inner = f"select time, lat, lon, {value} as v, {function} as w from {self._table(table)}{self._where(table)}"
        if pick.random() < 0.5:
            return f"select * from ({inner}) s where s.lat = 30 and s.w > 2", False
        return inner, False

    def _in_subquery(self) -> tuple[str, bool]:
        pick = self._random
        table = pick.choice(_GRIDDED)
        value = table.values[0]
        inner = self._table(TABLES[6])
        condition = pick.choice(
            [
                f"lat in (select lat from {inner} where height > 2000)",
                f"exists (select 1 from {inner} h where h.lat = o.lat and h.height > 3500)",
                f"{value} > (select avg({value}) from {self._table(table)})",
                f"lat not in (select lat from {inner} h where h.lon = o.lon and h.height > 3000)",
            ]
        )
        chosen = pick.choice([f"time, lat, {value}", f"count(*), max({value})"])
        and_more = f" and {self._condition(table, 'o', 1)}" if pick.random() < 0.5 else ""
        return f"select {chosen} from {self._table(table)} o where {condition}{and_more}", False

    def _union(self) -> tuple[str, bool]:
        first, second = self._random.choice(_GRIDDED), self._random.choice(_GRIDDED)
        parts = [
            f"select lat, {self._random.choice(['max', 'min', 'sum'])}({t.values[0]}) from {self._table(t)}"
            f"{self._where(t)} group by lat"
            for t in (first, second)
        ]
        return f" union {self._random.choice(['all', ''])} ".join(parts), False

    def _group_join(self) -> tuple[str, bool]:
        table = self._random.choice(_GRIDDED)
        value = table.values[0]
        groups = f"select lat, avg({value}) as mean from {self._table(table)}{self._where(table)} group by lat"
        text = (
            f"select o.lat, o.lon, o.{value} - g.mean from {self._table(table)} o join ({groups}) g on o.lat = g.lat "
            f"where {self._condition(table, 'o', 1)} and o.lon = 40"
        )
        return text, False


def _both(text: str) -> tuple[str, str]:
    ours, plain = [], []
    for piece in text.split("\x01"):
        head, mark, rest = piece.partition("\x02")
        if not mark:
            ours.append(piece)
            plain.append(piece)
            continue
        rows, _, tail = rest.partition("\x03")
        ours.append(head + tail)
        plain.append(rows + tail)
    return "".join(ours), "".join(plain)
