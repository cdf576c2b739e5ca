"""Partial results that merge: sums with counts, extremes, and points of a distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError

SKETCH_POINTS = 2048
Values = npt.NDArray[Any]
Axes = tuple[int, ...]


class Reduction(Protocol):
    """Values to a partial result; two partial results to one; a partial result to the answer."""

    def partial(self, values: Values, axes: Axes) -> Any: ...

    def merge(self, first: Any, second: Any) -> Any: ...

    def finish(self, partial: Any) -> Values: ...


def find_reduction(how: str, q: float | None = None, *, exact: bool = True) -> Reduction:
    """The reduction of a name."""
    if how == "quantile":
        if q is None or not 0 <= q <= 1:
            raise InvalidInputError(f"a quantile needs q from 0 to 1, got {q}")
        return QuantilePoints(q) if exact else QuantileSketch(q)
    if q is not None:
        raise InvalidInputError(f"q goes with 'quantile', not with {how!r}")
    if how in ("mean", "sum", "count"):
        return Sums(how)
    if how in ("min", "max"):
        return Extremes(how)
    raise InvalidInputError(f"there is no reduction {how!r}; there are mean, sum, min, max, count and quantile")


def is_defined(how: str, dtype: np.dtype[Any]) -> bool:
    """Whether values of a type can be reduced so; times have no sum, texts can only be counted."""
    if how == "count" or dtype.kind in "biufc":
        return True
    return dtype.kind in "mM" and (how in ("mean", "min", "max") or (how == "sum" and dtype.kind == "m"))


def _present(values: Values) -> npt.NDArray[np.bool_]:
    if values.dtype.kind in "fc":
        return ~np.isnan(values)
    if values.dtype.kind in "mM":
        return ~np.isnat(values)
    return np.ones(values.shape, dtype=bool)


def sum_type(dtype: np.dtype[Any], how: str) -> np.dtype[Any]:
    """What values are summed in, as numpy does it: whole totals of whole numbers, means in doubles."""
    whole = how != "mean" and dtype.kind in "iub"
    return np.dtype(np.uint64 if whole and dtype.kind == "u" else np.int64 if whole else np.float64)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sum and count of what is there."""

    how: str

    def partial(self, values: Values, axes: Axes) -> tuple[Values, Values]:
        wide = sum_type(values.dtype, self.how)
        if self.how != "count" and values.dtype.kind in "iubf":
            # A total that is a number has no missing value in it: mostly one look at the values is enough.
            total = np.asarray(np.sum(values, axis=axes, dtype=wide))
            if values.dtype.kind != "f" or not np.isnan(total).any():
                reduced = int(np.prod([values.shape[axis] for axis in axes], dtype=np.int64))
                return total, np.full(total.shape, reduced, dtype=np.int64)
        there = _present(values)
        count = there.sum(axis=axes, dtype=np.int64)
        if self.how == "count":
            return count, count
        if values.dtype.kind in "mM":
            return _sum_halves(np.where(there, values.view(np.int64), 0), axes), count
        return np.asarray(np.sum(values, axis=axes, dtype=wide, where=there)), count

    def merge(self, first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[Values, Values]:
        return first[0] + second[0], first[1] + second[1]

    def finish(self, partial: tuple[Values, Values]) -> Values:
        total, count = partial
        if self.how != "count" and total.ndim > count.ndim:
            return _join_halves(total, count if self.how == "mean" else np.ones_like(count), count)
        if self.how != "mean":
            return np.asarray(count if self.how == "count" else total)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(total / count)


def _sum_halves(values: npt.NDArray[np.int64], axes: Axes) -> Values:
    """Totals of whole numbers too large for one of 64 bits, such as nanoseconds since 1970: upper and lower halves."""
    upper, lower = values >> 32, values & 0xFFFFFFFF
    return np.stack([upper.sum(axis=axes, dtype=np.int64), lower.sum(axis=axes, dtype=np.int64)], axis=-1)


def _join_halves(total: Values, divisor: Values, count: Values) -> Values:
    """Totals divided, as whole numbers; what nothing was counted for is NaT."""
    upper, lower = total[..., 0], total[..., 1]
    safe = np.maximum(divisor, 1)
    whole, rest = np.divmod(upper, safe)
    joined = (whole << 32) + ((rest << 32) + lower) // safe
    return np.asarray(np.where(count > 0, joined, np.iinfo(np.int64).min))


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest or largest value that is there."""

    how: str

    def partial(self, values: Values, axes: Axes) -> Values:
        # fmin and fmax pass missing values over, of times as well, and give one back only where there is nothing else.
        result = values
        for axis in sorted(axes, reverse=True):
            result = self._better().reduce(result, axis=axis)
        return np.asarray(result)

    def merge(self, first: Values, second: Values) -> Values:
        return np.asarray(self._better()(first, second))

    def finish(self, partial: Values) -> Values:
        return partial

    def _better(self) -> np.ufunc:
        return np.fmin if self.how == "min" else np.fmax


@dataclass(frozen=True, slots=True)
class QuantilePoints:
    """A quantile of all values; nothing to merge, because one block has them all."""

    q: float

    def partial(self, values: Values, axes: Axes) -> Values:
        return np.asarray(np.nanquantile(values.astype(np.float64), self.q, axis=axes))

    def merge(self, first: Values, second: Values) -> Values:
        raise AssertionError("blocks of an exact quantile hold all reduced cells")

    def finish(self, partial: Values) -> Values:
        return partial


@dataclass(frozen=True, slots=True)
class QuantileSketch:
    """A quantile from points of equal rank: with 2,048 of them the rank is right to about 0.1 % after a few merges."""

    q: float
    points: int = SKETCH_POINTS

    def partial(self, values: Values, axes: Axes) -> tuple[Values, Values]:
        kept = [axis for axis in range(values.ndim) if axis not in axes]
        rows = np.transpose(values, [*kept, *axes]).reshape(*[values.shape[a] for a in kept], -1).astype(np.float64)
        return self._compress(rows, _present(rows).astype(np.float64))

    def merge(self, first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[Values, Values]:
        return self._compress(
            np.concatenate([first[0], second[0]], axis=-1), np.concatenate([first[1], second[1]], axis=-1)
        )

    def _compress(self, values: Values, weights: Values) -> tuple[Values, Values]:
        """The same distribution by fewer points; ends stay what they are."""
        if values.shape[-1] <= self.points:
            return values, weights
        shape = (*values.shape[:-1], self.points)
        points, kept = np.full(shape, np.nan), np.zeros(shape)
        for place in np.ndindex(*values.shape[:-1]):
            there = weights[place] > 0
            total = weights[place][there].sum()
            if total:
                points[place] = _at_ranks(values[place][there], weights[place][there], self.points)
                kept[place] = total / self.points
        return points, kept

    def finish(self, partial: tuple[Values, Values]) -> Values:
        values, weights = partial
        result = np.full(values.shape[:-1], np.nan)
        for place in np.ndindex(*values.shape[:-1]):
            there = weights[place] > 0
            if there.any():
                order = np.argsort(values[place][there])
                ordered, weight = values[place][there][order], weights[place][there][order]
                ranks = _middles(weight)
                result[place] = np.interp(ranks[0] + self.q * (ranks[-1] - ranks[0]), ranks, ordered)
        return result


def _middles(weights: Values) -> Values:
    """The rank in the middle of each point's weight."""
    return np.asarray(np.cumsum(weights) - weights / 2)


def _at_ranks(values: Values, weights: Values, points: int) -> Values:
    order = np.argsort(values)
    ordered, ranks = values[order], _middles(weights[order])
    return np.asarray(np.interp(np.linspace(ranks[0], ranks[-1], points), ranks, ordered))
