"""Best-estimate views of forecasts.

An array of a forecast has a dimension of reference times (runs) and one of forecast steps. A valid time is a reference
time plus a step. The view is an array over valid times, with the values of the newest run. Its chunks are the chunks of
the forecast: only references are written, so nothing is copied. This needs chunks of one run and one step each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.ingest.cf import NO_TIME, find_time_units
from icefloe.ingest.local_ingest import SessionSink
from icefloe.ingest.zarr_documents import fill_attribute
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.zarr_document import ChunkLengths, grid_document, parse_document, parse_grid
from icefloe.repository import Repository
from icefloe.session.references import set_table
from icefloe.session.session import Session

_UNITS_NS = {
    "days": 86_400_000_000_000,
    "hours": 3_600_000_000_000,
    "minutes": 60_000_000_000,
    "seconds": 1_000_000_000,
    "milliseconds": 1_000_000,
    "microseconds": 1_000,
}
_ALIASES = {"day": "days", "d": "days", "hour": "hours", "h": "hours", "hrs": "hours", "minute": "minutes"}
_ALIASES |= {"min": "minutes", "second": "seconds", "s": "seconds"}
_SHAPELESS = ("bytes", "blosc", "zstd", "gzip", "crc32c", "vlen-utf8", "vlen-bytes")
"""Codecs that do not depend on the number of dimensions of a chunk."""


@dataclass(frozen=True, slots=True)
class BestEstimate:
    """The result of `best_estimate`.

    Attributes
    ----------
    snapshot_id
        The new snapshot.
    variables
        The number of valid times of each variable of the view.
    references
        The number of chunk references of the view.

    Examples
    --------
    >>> BestEstimate("J0YW0WNV6JWY3RH21G7G", {"t": 48}, 48).variables
    {'t': 48}
    """

    snapshot_id: str
    variables: Mapping[str, int]
    references: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where the values of a variable come from: a run and a step for each of its valid times."""

    valid: npt.NDArray[np.int64]
    """Nanoseconds since the reference time of the units, ascending."""
    run: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    table: ChunkTable
    """The references of the chosen runs and steps, at their old positions."""


def best_estimate(
    repository: Repository,
    *,
    group: str = "",
    target: str = "best",
    variables: Sequence[str] | None = None,
    time: str = "time",
    step: str = "step",
    branch: str = "main",
    message: str | None = None,
) -> BestEstimate:
    """Write a view of a forecast that has, for every valid time, the values of the newest run.

    The view is a group with the dimension `valid_time`. The coordinates `NAME_reference_time` and `NAME_step` say where
    the values of a variable come from. If they are the same for all variables, they are `reference_time` and `step`.
    Call it again after the forecast has grown: the view is replaced, with one commit. No chunk is read or copied.

    Parameters
    ----------
    repository
        The repository.
    group
        The group of the forecast.
    target
        The group of the view, below `group`.
    variables
        The variables of the view. None is every variable with both dimensions.
    time
        The dimension of the reference times.
    step
        The dimension of the forecast steps.
    branch
        The branch.
    message
        The commit message.

    Returns
    -------
    BestEstimate
        The new snapshot, and the size of the view.

    Raises
    ------
    InvalidInputError
        A chunk of a variable has several runs or steps, or its codecs depend on the shape, or times and steps cannot be
        added.
    NodeNotFoundError
        A variable or coordinate does not exist.

    Examples
    --------
    >>> import icefloe, xarray
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> forecast = xarray.Dataset(
    ...     {"t": (("time", "step"), [[10.0, 11.0], [20.0, 21.0]])},
    ...     {
    ...         "time": ("time", [0, 6], {"units": "hours since 2024-01-01"}),
    ...         "step": ("step", [0, 6], {"units": "hours"}),
    ...     },
    ... )
    >>> session = repo.writable_session("main")
    >>> _ = forecast.to_zarr(session.store, encoding={"t": {"chunks": (1, 1)}}, consolidated=False)
    >>> _ = session.commit("two runs")
    >>> best_estimate(repo).variables
    {'t': 3}
    >>> zarr.open_array(repo.readonly_session("main").store, path="best/t", mode="r")[:]
    array([10., 20., 21.])
    """
    session = repository.writable_session(branch)
    root, place = group.strip("/"), _join(group.strip("/"), target.strip("/"))
    if place == root:
        raise InvalidInputError("the view needs a group of its own: target must not be empty")
    documents = _read_documents(session, root)
    axes = _Axes.read(session, documents, root, time, step)
    names = _choose_variables(documents, variables, axes)
    choices = {name: _choose(session, documents[name], _join(root, name), axes) for name in names}
    every = np.unique(np.concatenate([choice.valid for choice in choices.values()]))
    unit, valid = axes.encode(every)
    run_blocking(session.store.delete_dir(place))
    _write_document(session, place, {"zarr_format": 3, "node_type": "group", "attributes": {}})
    for name, document in documents.items():
        dims = document.get("dimension_names") or ()
        if name in choices:
            moved = _move(document, choices[name], every, axes)
            _write_document(session, _join(place, name), moved[0])
            set_table(session.state, _join(place, name), moved[1])
        elif time not in dims and step not in dims:
            # Latitudes, levels and the like: the same chunks.
            _write_document(session, _join(place, name), document)
            node = session.state.tree.array(f"/{_join(root, name)}")
            set_table(session.state, _join(place, name), run_blocking(session.state.chunk_table(node)))
    view = zarr.open_group(session.store, path=place, mode="r+")
    _write_coordinate(view, "valid_time", valid, {**axes.time_attributes, "units": unit, "standard_name": "time"})
    is_same = len({(c.valid.tobytes(), c.run.tobytes(), c.step.tobytes()) for c in choices.values()}) == 1
    for name, choice in [("", next(iter(choices.values())))] if is_same else choices.items():
        at, prefix = np.searchsorted(every, choice.valid), f"{name}_" if name else ""
        runs = _spread(axes.times[choice.run], at, len(every), NO_TIME)
        _write_coordinate(view, f"{prefix}reference_time", runs, axes.time_attributes)
        steps = _spread(axes.steps[choice.step].astype(np.float64), at, len(every), np.nan)
        _write_coordinate(view, f"{prefix}step", steps, axes.step_attributes)
    counts = {name: len(choice.valid) for name, choice in choices.items()}
    said = message or f"Best estimate of {len(counts)} variables for {len(every)} valid times"
    snapshot_id = session.commit(said, {"icefloe.best_estimate": {"group": f"/{root}", "target": f"/{place}"}})
    return BestEstimate(str(snapshot_id), counts, sum(len(choice.table) for choice in choices.values()))


@dataclass(frozen=True, slots=True)
class _Axes:
    """The reference times and the steps of a forecast."""

    time: str
    step: str
    times: npt.NDArray[Any]
    steps: npt.NDArray[Any]
    time_attributes: Mapping[str, Any]
    step_attributes: Mapping[str, Any]
    valid: npt.NDArray[np.int64]
    """int64[run, step]: nanoseconds since the reference time of the units."""
    unit: str

    @classmethod
    def read(
        cls, session: Session, documents: Mapping[str, Mapping[str, Any]], root: str, time: str, step: str
    ) -> _Axes:
        for name in (time, step):
            if name not in documents:
                raise NodeNotFoundError(f"/{root} has no coordinate {name!r}. It has {sorted(documents)}")
        values = [
            np.asarray(zarr.open_array(session.store, path=_join(root, name), mode="r")[...]) for name in (time, step)
        ]
        attributes = [dict(documents[name].get("attributes") or {}) for name in (time, step)]
        for each in attributes:
            each.pop("_FillValue", None)
        units, word = find_time_units(attributes[0]), str(attributes[1].get("units", "")).lower()
        if units is None:
            raise InvalidInputError(f"/{_join(root, time)} has no units such as `hours since 2020-01-01`")
        word = _ALIASES.get(word, word)
        if word not in _UNITS_NS:
            raise InvalidInputError(f"/{_join(root, step)} has the units {word!r}. Known: {', '.join(_UNITS_NS)}")
        parts = [_nanoseconds(v, unit) for v, unit in zip(values, (units.unit_ns, _UNITS_NS[word]), strict=True)]
        valid = parts[0][:, np.newaxis] + parts[1][np.newaxis, :]
        unit = str(attributes[0]["units"])
        return cls(time, step, values[0], values[1], attributes[0], attributes[1], valid, unit)

    def encode(self, valid: npt.NDArray[np.int64]) -> tuple[str, npt.NDArray[np.int64]]:
        """Units of which all valid times are whole multiples, and the times in these units."""
        own, _, since = self.unit.partition(" since ")
        own = _ALIASES.get(own.lower(), own.lower())
        for word in dict.fromkeys((own, *_UNITS_NS)):
            if word in _UNITS_NS and not (valid % _UNITS_NS[word]).any():
                return f"{word} since {since}", valid // _UNITS_NS[word]
        return f"nanoseconds since {since}", valid


def _nanoseconds(values: npt.NDArray[Any], unit_ns: int) -> npt.NDArray[np.int64]:
    """Times as whole nanoseconds."""
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[ns]").astype(np.int64)
    scaled = values.astype(np.float64) * unit_ns
    if not np.isfinite(scaled).all() or (np.abs(scaled) >= 2.0**62).any():
        raise InvalidInputError("reference times and steps must be numbers within 140 years of the units' date")
    if values.dtype.kind in "iu":
        return values.astype(np.int64) * np.int64(unit_ns)
    # Fractions of hours are rounded to the microsecond, which is finer than any forecast.
    return np.rint(scaled / 1000).astype(np.int64) * 1000


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _read_documents(session: Session, root: str) -> dict[str, dict[str, Any]]:
    """The documents of the arrays of a group, by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in list(session.state.tree.paths()):
        folder, _, name = path.strip("/").rpartition("/")
        content = run_blocking(session.state.fetch_document(path)) if folder == root and name else None
        document = None if content is None else parse_document(content, f"{path}/zarr.json")
        if document is not None and document["node_type"] == "array":
            found[name] = dict(document)
    return found


def _choose_variables(
    documents: Mapping[str, Mapping[str, Any]], asked: Sequence[str] | None, axes: _Axes
) -> list[str]:
    having = [
        name for name, each in documents.items() if {axes.time, axes.step} <= set(each.get("dimension_names") or ())
    ]
    for name in asked or ():
        if name not in having:
            raise NodeNotFoundError(
                f"no array {name!r} has the dimensions {axes.time} and {axes.step}. Those are {having}"
            )
    names = list(asked) if asked is not None else having
    if not names:
        raise NodeNotFoundError(f"no array has the dimensions {axes.time} and {axes.step}")
    return names


def _choose(session: Session, document: Mapping[str, Any], path: str, axes: _Axes) -> _Choice:
    """The newest run for every valid time that a variable has chunks for."""
    dims = list(document["dimension_names"])
    run_axis, step_axis = dims.index(axes.time), dims.index(axes.step)
    grid = parse_grid(document)
    if (grid[run_axis].longest, grid[step_axis].longest) != (1, 1):
        raise InvalidInputError(
            f"a chunk of /{path} has several runs or steps, so its reference cannot be part of a view. Rechunk it: "
            f"icefloe.spark.rechunk(spark, repo, {{{axes.time!r}: 1, {axes.step!r}: 1}})",
            path=path,
        )
    shaped = [c["name"] for c in document["codecs"] if not _is_shapeless(c["name"])]
    if shaped:
        raise InvalidInputError(f"the codec {shaped[0]} of /{path} depends on the shape of its chunks", path=path)
    node = session.state.tree.array(f"/{path}")
    table = run_blocking(session.state.chunk_table(node))
    runs, steps = (table.coords[:, axis].astype(np.int64) for axis in (run_axis, step_axis))
    inside = (runs < len(axes.times)) & (steps < len(axes.steps))
    pairs = np.unique(np.stack([runs[inside], steps[inside]], axis=1), axis=0)
    valid = axes.valid[pairs[:, 0], pairs[:, 1]]
    # The last row of each valid time is that of the newest run.
    order = np.lexsort((axes.valid[pairs[:, 0], 0], valid))
    pairs, valid = pairs[order], valid[order]
    is_last = np.append(valid[1:] != valid[:-1], np.ones(min(1, len(valid)), dtype=bool))
    pairs, valid = pairs[is_last], valid[is_last]
    width = max(1, len(axes.steps))
    kept = np.flatnonzero(inside & np.isin(runs * width + steps, pairs[:, 0] * width + pairs[:, 1]))
    return _Choice(valid, pairs[:, 0], pairs[:, 1], take(table, kept))


def _is_shapeless(codec: str) -> bool:
    return codec in _SHAPELESS or codec.startswith(("numcodecs.", "icefloe."))


def _move(
    document: Mapping[str, Any], choice: _Choice, every: npt.NDArray[np.int64], axes: _Axes
) -> tuple[dict[str, Any], ChunkTable]:
    """The document and the references of a variable of the view.

    Chunks have one run and one step, so their bytes are the same without these dimensions.
    """
    dims = list(document["dimension_names"])
    run_axis, step_axis = dims.index(axes.time), dims.index(axes.step)
    first = min(run_axis, step_axis)
    kept = [axis for axis in range(len(dims)) if axis not in (run_axis, step_axis)]

    def without(values: Sequence[Any], new: Any) -> list[Any]:
        rest = [values[axis] for axis in kept]
        return [*rest[:first], new, *rest[first:]]

    attributes = dict(document.get("attributes") or {})
    named = [n for n in str(attributes.pop("coordinates", "")).split() if n not in ("valid_time", axes.step, axes.time)]
    if named:
        attributes["coordinates"] = " ".join(named)
    changed = {
        **document,
        "shape": without(document["shape"], len(every)),
        "chunk_grid": grid_document(without(parse_grid(document), ChunkLengths(1))),
        "dimension_names": without(dims, "valid_time"),
        "attributes": attributes,
    }
    coords = choice.table.coords
    valid = axes.valid[coords[:, run_axis].astype(np.int64), coords[:, step_axis].astype(np.int64)]
    at = np.searchsorted(every, valid).astype(np.uint32)
    columns = without([coords[:, axis] for axis in range(len(dims))], at)
    moved = np.stack(columns, axis=1).astype(np.uint32)
    order = np.lexsort(moved.T[::-1])
    return changed, take(replace(choice.table, coords=moved), order)


def _write_document(session: Session, path: str, document: Mapping[str, Any]) -> None:
    SessionSink(session).write_documents({path: json.dumps(document).encode()})


def _write_coordinate(view: zarr.Group, name: str, values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> None:
    given = dict(attributes)
    if name != "valid_time":
        given["_FillValue"] = fill_attribute(values.dtype.str, np.nan if values.dtype.kind == "f" else NO_TIME)
    chunks = (max(1, min(len(values), 1 << 13)),)
    fill = np.nan if values.dtype.kind == "f" else 0 if name == "valid_time" else NO_TIME
    view.create_array(
        name,
        shape=values.shape,
        chunks=chunks,
        dtype=values.dtype,
        fill_value=fill,
        attributes=given,
        dimension_names=["valid_time"],
        overwrite=True,
    )[...] = values


def _spread(values: npt.NDArray[Any], at: npt.NDArray[np.intp], length: int, missing: Any) -> npt.NDArray[Any]:
    """Values at their positions, and a missing value elsewhere."""
    is_float = values.dtype.kind == "f"
    result = np.full(length, np.nan if is_float else missing, dtype=np.float64 if is_float else np.int64)
    result[at] = values
    return result
