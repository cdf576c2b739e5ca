"""Conditions prune only what cannot match, whatever they say."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.zarr_document import as_lengths
from icefloe.tables.columns import coding_of
from icefloe.tables.evaluate import ValueRanges, match_leaf
from icefloe.tables.grids import Dimension, Grid, Variable
from icefloe.tables.predicates import And, Comparison, Instant, Or, Unknown, find_unknown, parse_predicate
from icefloe.tables.selection import Selection, Surroundings, select

_LENGTHS = (7, 5)
_EPOCH = np.datetime64("2020-01-01", "us")


Lengths = tuple[int | tuple[int, ...], ...]
"""The chunk length along each dimension, or the length of each chunk."""


def _grid(block: Lengths) -> tuple[Grid, list[pa.Array]]:
    days = (_EPOCH + np.arange(_LENGTHS[0]) * np.timedelta64(1, "D")).astype("M8[us]")
    time = coding_of(np.dtype("M8[us]"), {})
    lat = coding_of(np.dtype("f8"), {})
    dimensions = (Dimension("time", 7, "/time", time), Dimension("lat", 5, "/lat", lat))
    chunks = as_lengths(block)
    variable = Variable("v", "/v", chunks, coding_of(np.dtype("f4"), {}))
    return Grid(dimensions, (variable,), chunks), [
        time.decode(days),
        lat.decode(np.array([-10.0, -5.5, 0.0, 5.5, 10.0])),
    ]


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> tuple[str, Any]:
    """SQL text, and a function of (time in days, lat, v) that says which cells match."""
    kind = draw(st.sampled_from(["time", "lat", "v", "between", "in", "odd"] + ["and", "or", "not"] * (depth > 0)))
    if kind in ("and", "or"):
        (left, f), (right, g) = draw(conditions(depth=depth - 1)), draw(conditions(depth=depth - 1))
        joined = np.logical_and if kind == "and" else np.logical_or
        return f"({left}) {kind.upper()} ({right})", lambda *a: joined(f(*a), g(*a))
    if kind == "not":
        text, f = draw(conditions(depth=depth - 1))
        return f"NOT ({text})", lambda *a: ~f(*a)
    operator = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "<>", "!="]))
    compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal}.get(
        operator, np.not_equal
    )
    if kind == "time":
        day = draw(st.integers(-1, 8))
        stamp = str(_EPOCH + np.timedelta64(day, "D"))[:10]
        form = draw(st.sampled_from(["'{}'", "timestamp '{}'", "DATE '{}'", "'{} 00:00:00'", "'{}T00:00:00Z'"]))
        return f"time {operator} {form.format(stamp)}", lambda t, y, v: compare(t, day)
    if kind == "between":
        low, high = sorted(draw(st.tuples(st.integers(-12, 12), st.integers(-12, 12))))
        return f"lat BETWEEN {low} AND {high}", lambda t, y, v: (y >= low) & (y <= high)
    if kind == "in":
        chosen = draw(st.lists(st.sampled_from([-10.0, -5.5, 0.0, 3.25]), min_size=1, max_size=3))
        return f"lat in ({', '.join(f'{c}D' for c in chosen)})", lambda t, y, v: np.isin(y, chosen)
    if kind == "odd":
        return "abs(lat) > 5", lambda t, y, v: np.abs(y) > 5
    number = draw(st.sampled_from(["-5.5", "0", "5.49", "1e1", "9.5D", "-10", "10L"]))
    value = float(number.rstrip("DL"))
    if kind == "lat":
        flipped = draw(st.booleans())
        mirror = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        text = f"{number} {mirror} `lat`" if flipped else f"lat {operator} {number}"
        return text, lambda t, y, v: compare(y, value)
    return f"v {operator} {number}", lambda t, y, v: compare(v, value)


def _matching(function: Any, values: Any) -> Any:
    t, y = np.meshgrid(np.arange(7), [-10.0, -5.5, 0.0, 5.5, 10.0], indexing="ij")
    return function(t, y, values)


def _selected(selection: Selection, block: Lengths) -> Any:
    kept = np.zeros(_LENGTHS, dtype=bool)
    for corner in selection.blocks.part(0, len(selection.blocks)).coordinates().tolist():
        edges = zip(corner, as_lengths(block), strict=True)
        kept[tuple(slice(each.start(c), each.start(c + 1)) for c, each in edges)] = True
    for axis, mask in enumerate(selection.masks):
        if mask is not None:
            kept &= mask.reshape([-1 if a == axis else 1 for a in range(2)])
    return kept


@given(
    condition=conditions(),
    block=st.tuples(
        *(
            st.integers(1, n) | st.lists(st.integers(1, n), min_size=1, max_size=n).map(lambda each: tuple(each))
            for n in _LENGTHS
        )
    ),
    seed=st.integers(0, 1000),
    with_statistics=st.booleans(),
)
def test_every_matching_cell_is_read(condition: Any, block: Lengths, seed: int, with_statistics: bool) -> None:
    text, function = condition
    grid, coordinates = _grid(block)
    values = np.random.default_rng(seed).uniform(-12, 12, _LENGTHS).astype("f4")
    ranges = {"v": _ranges(values, grid)} if with_statistics else {}
    selection = select(grid, parse_predicate(text), Surroundings(coordinates, ranges, dt.UTC))
    matching, selected = _matching(function, values), _selected(selection, block)
    assert not (matching & ~selected).any(), text
    assert not selection.decided or (matching == selected).all(), text


def _ranges(values: Any, grid: Grid) -> ValueRanges:
    shape = grid.blocks
    low, high, count = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.int64)
    for corner in np.ndindex(*shape):
        cells = values[tuple(slice(b.start(c), b.start(c + 1)) for c, b in zip(corner, grid.block, strict=True))]
        low[corner], high[corner], count[corner] = cells.min(), cells.max(), cells.size
    return ValueRanges(
        np.ones(shape, dtype=bool), low, high, count, np.zeros(shape, dtype=np.int64), np.full(shape, np.nan)
    )


def test_a_range_of_coordinates_reads_only_its_blocks() -> None:
    grid, coordinates = _grid((2, 2))
    text = "time >= '2020-01-03' and time < '2020-01-05' and lat = 10 and sqrt(v) > 3"
    selection = select(grid, parse_predicate(text), Surroundings(coordinates))
    assert selection.blocks.part(0, len(selection.blocks)).coordinates().tolist() == [[1, 2]]
    assert selection.total_blocks == 12


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        ("lat > 0", True),
        ("time >= '2020-01-03' and lat between -6 and 6 and not lat = 0", True),
        ("lat > 5 or lat < -5", True),
        ("lat > 5 or time < '2020-01-02'", False),
        ("(lat > 5 and time < '2020-01-02') or (lat < -5 and time > '2020-01-04')", False),
        ("LAT > 0", True),
        ("`LAT` > 0", False),
        ("lat > 0 and v > 1", False),
        ("lat > 0 and abs(lat) > 1", False),
    ],
)
def test_boxes_of_coordinates_need_no_second_look(text: str, decided: bool) -> None:
    grid, coordinates = _grid((2, 2))
    assert select(grid, parse_predicate(text), Surroundings(coordinates)).decided is decided


def test_values_are_skipped_by_their_ranges() -> None:
    grid, coordinates = _grid((7, 1))
    values = np.tile(np.arange(5.0), (7, 1))
    around = Surroundings(coordinates, {"v": _ranges(values, grid)})
    assert len(select(grid, parse_predicate("v > 3.5"), around).blocks) == 1
    assert len(select(grid, parse_predicate("v > 3.5 or lat = -10"), around).blocks) == 2
    assert len(select(grid, parse_predicate("not (v <= 7)"), around).blocks) == 0
    assert len(select(grid, parse_predicate("v is null"), around).blocks) == 0


@pytest.mark.parametrize(
    "text",
    [
        "lat like '1%'",
        "lat > 1 -- no",
        "lat > lon",
        "a.lat > 1",
        "lat > 'x",
        "lat between 1 and lon",
        "lat in (select 1)",
        "lat <=> 1",
        "case when lat > 1 then true end",
        "lat + 1 > 2",
        "lat > 1::int",
        "exists (select 1)",
        "lat > 1.0F",
    ],
)
def test_what_is_not_understood_may_match_anything(text: str) -> None:
    assert isinstance(parse_predicate(text), Unknown)


def test_words_of_sql_bind_as_in_sql() -> None:
    parsed = parse_predicate("a = 1 or b = 2 and not c between 1 and 2 and d > 3")
    assert isinstance(parsed, Or) and isinstance(parsed.parts[1], And)
    low = parsed.parts[1].parts[1]
    assert low == Or((Comparison("c", "<", 1), Comparison("c", ">", 2)))
    assert find_unknown(parsed) is None


def test_times_keep_their_zone() -> None:
    assert parse_predicate("t > timestamp '2020-01-01 12:00:00+02:00'") == Comparison(
        "t", ">", Instant(dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))))
    )


def _as_sql(value: float | None, operator: str, other: float) -> bool:
    """How SQL compares: nothing to null, and NaN is larger than every number."""
    if value is None:
        return False
    nan = value != value
    less, equal = not nan and value < other, not nan and value == other
    return {"<": less, "<=": less or equal, "=": equal, "!=": not equal, ">=": not less, ">": not (less or equal)}[
        operator
    ]


@given(
    values=st.lists(st.none() | st.floats(width=32), max_size=12),
    other=st.sampled_from([0.1, -0.0, 1e300, -1e300, 16777217.0]) | st.floats(allow_nan=False, width=32),
    operator=st.sampled_from(["<", "<=", "=", "!=", ">=", ">"]),
    single=st.booleans(),
)
def test_floats_compare_as_doubles_and_nan_is_the_largest(
    values: list[float | None], other: float, operator: Any, single: bool
) -> None:
    column = pa.array(values, type=pa.float32() if single else pa.float64(), from_pandas=False)
    found = match_leaf(column, Comparison("v", operator, other), None)
    assert found is not None and found.tolist() == [_as_sql(value, operator, other) for value in values]


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=8),
    st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False)),
    st.sampled_from(["<", "<=", ">", ">=", "=", "!="]),
    st.integers(-2, 2),
)
def test_singles_are_compared_with_a_double_as_if_they_were_doubles(
    singles: list[float], number: float, operator: Any, steps: int
) -> None:
    """Also where the double lies next to one of the singles."""
    values = np.array(singles, dtype="f4")
    for constant in (number, float(np.float64(values[0])) if np.isfinite(values[0]) else number):
        for _ in range(abs(steps)):
            constant = float(np.nextafter(constant, np.inf if steps > 0 else -np.inf))
        leaf = Comparison("v", operator, constant)
        wide = match_leaf(pa.array(values.astype("f8")), leaf, dt.UTC)
        narrow = match_leaf(pa.array(values), leaf, dt.UTC)
        assert wide is not None and narrow is not None
        assert narrow.tolist() == wide.tolist()
