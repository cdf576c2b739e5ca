"""Overviews: every level is made of the level before it, and an update gives what a new build gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, NodeNotFoundError, UnsupportedError
from icefloe.ingest import ExistingArray, IngestOptions, SessionSink, ingest_local, pyramid_local
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.zarr_document import as_lengths, grid_document, parse_grid
from icefloe.storage.build import in_memory_storage

pytestmark = pytest.mark.filterwarnings("ignore")
RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
needs_grids = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
GENERATIONS = ["repository", "dataset", "store", "icechunk1", "icechunk2"]


def _repository(values: Any, chunks: tuple[int, ...], generation: str = "repository") -> Repository:
    repository = Repository.create(in_memory_storage(), spec_version=generation)
    session = repository.writable_session("main")
    shape = values.shape
    data = xr.Dataset(
        {"t": (("time", "y", "x"), values)},
        {"time": np.arange(float(shape[0])), "y": 10.0 * np.arange(shape[1]), "x": np.arange(float(shape[2]))},
    )
    data.to_zarr(session.store, encoding={"t": {"chunks": chunks}}, consolidated=False)
    session.commit("data")
    return repository


def _level(repository: Repository, level: int) -> Any:
    return zarr.open_array(repository.readonly_session("main").store, path=f"t_levels/{level}/t", mode="r")[...]


def _expected(values: Any, method: str) -> Any:
    """The mean of 2 × 2 cells that are not missing, with a loop."""
    times, rows, columns = values.shape
    result = np.full((times, -(-rows // 2), -(-columns // 2)), np.nan)
    for i, j, k in np.ndindex(*result.shape):
        cells = values[i, 2 * j : 2 * j + 2, 2 * k : 2 * k + 2]
        cells = cells[:1, :1] if method == "nearest" else cells[~np.isnan(cells)]
        if cells.size:
            result[i, j, k] = {"mean": np.mean, "min": np.min, "max": np.max, "nearest": np.mean}[method](cells)
    return result


def _check(repository: Repository, values: Any, levels: int, method: str) -> None:
    for level in range(1, levels + 1):
        values = _expected(values, method)
        np.testing.assert_allclose(_level(repository, level), values, rtol=1e-12)


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_an_update_gives_what_a_new_build_gives(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, 9, 9))
    chunks = tuple(data.draw(st.integers(1, 4)) for _ in range(3))
    method: Any = data.draw(st.sampled_from(["mean", "min", "max", "nearest"]))
    levels = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = np.where(rng.random(shape) < 0.2, np.nan, rng.integers(0, 100, shape) / 4)
    repository = _repository(values, chunks)
    pyramid_local(repository, "t", levels, method)
    _check(repository, values, levels, method)
    for _ in range(data.draw(st.integers(1, 2))):
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="t", mode="r+")
        if data.draw(st.booleans()):
            more = rng.integers(0, 100, (data.draw(st.integers(1, 2)), *shape[1:])) / 4
            array.append(more, axis=0)
            values = np.concatenate([values, more])
        else:
            at = tuple(data.draw(st.integers(0, n - 1)) for n in values.shape)
            array[at] = values[at] = data.draw(st.sampled_from([7.0, np.nan]))
        session.commit("change")
        pyramid_local(repository, "t", levels, method)
        _check(repository, values, levels, method)


def _variable(values: Any, chunks: Any, generation: str = "repository") -> Repository:
    repository = Repository.create(in_memory_storage(), spec_version=generation)
    with repository.transaction("main", message="data") as store:
        group, dims = zarr.open_group(store, mode="w"), ["time", "y", "x"]
        array = group.create_array(
            "t", shape=values.shape, chunks=chunks, dtype="f8", dimension_names=dims, fill_value=np.nan
        )
        array[:] = values
        for axis, name in enumerate(dims):
            group.create_array(name, data=np.arange(float(values.shape[axis])), dimension_names=[name])
    return repository


def _dependents(repository: Repository, lengths: list[list[int]], changed: set[tuple[int, ...]], levels: int) -> int:
    """The number of chunks of the levels with a cell that is made of a cell of a changed chunk, by cells."""
    shape = tuple(map(sum, lengths))
    cells = np.zeros(shape, dtype=bool)
    bounds = [np.r_[0, np.cumsum(each)] for each in lengths]
    for chunk in changed:
        cells[tuple(slice(int(b[i]), int(b[i + 1])) for b, i in zip(bounds, chunk, strict=True))] = True
    count = 0
    for level in range(1, levels + 1):
        cells = np.pad(cells, [(0, 0), (0, cells.shape[1] % 2), (0, cells.shape[2] % 2)])
        cells = cells.reshape(cells.shape[0], cells.shape[1] // 2, 2, cells.shape[2] // 2, 2).any(axis=(2, 4))
        store = repository.readonly_session("main").store
        document = zarr.open_array(store, path=f"t_levels/{level}/t", mode="r").metadata.to_dict()
        starts = [each.starts(n) for each, n in zip(parse_grid(document), cells.shape, strict=True)]
        found: Any = cells
        for axis, each in enumerate(starts):
            found = np.logical_or.reduceat(found, each, axis=axis)
        count += int(found.sum())
    return count


@needs_grids
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_levels_of_a_variable_grid_are_those_of_numpy_and_only_dependents_are_computed(data: st.DataObject) -> None:
    lengths = [data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=n)) for n in (3, 3, 3)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = tuple(map(sum, lengths))
    levels = data.draw(st.integers(1, 3))
    values = np.where(rng.random(shape) < 0.2, np.nan, rng.integers(0, 100, shape) / 4)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        repository = _variable(values, lengths, data.draw(st.sampled_from(["repository", "icechunk2", "store"])))
        first = pyramid_local(repository, "t", levels)
        assert first.kept == 0
        _check(repository, values, levels, "mean")
        for _ in range(2):
            session = repository.writable_session("main")
            array = zarr.open_array(session.store, path="t", mode="r+")
            if data.draw(st.booleans()):
                # Zarr adds a chunk.
                more = rng.integers(0, 100, (data.draw(st.integers(1, 3)), *shape[1:])) / 4
                array.append(more, axis=0)
                values = np.concatenate([values, more])
                changed = {(len(lengths[0]), i, j) for i in range(len(lengths[1])) for j in range(len(lengths[2]))}
                lengths[0].append(len(more))
            else:
                at = tuple(data.draw(st.integers(0, n - 1)) for n in values.shape)
                array[at] = values[at] = 7.5 if values[at] != 7.5 else 8.5
                edges = [np.cumsum(each) for each in lengths]
                changed = {tuple(int(np.searchsorted(e, i, side="right")) for e, i in zip(edges, at, strict=True))}
            session.commit("change")
            update = pyramid_local(repository, "t", levels)
            _check(repository, values, levels, "mean")
            assert update.written == _dependents(repository, lengths, changed, levels)
        assert pyramid_local(repository, "t", levels).snapshot_id is None


@needs_grids
def test_merged_chunks_of_an_array_are_computed_again_from_the_first_that_differs() -> None:
    values = np.arange(8.0 * 4 * 4).reshape(8, 4, 4)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        repository = _variable(values, [[2, 2, 1, 3], [4], [4]])
        assert pyramid_local(repository, "t", 1).written == 4
        # The same cells in other chunks: the last two are 3 and 1 cells long now.
        session = repository.writable_session("main")
        array = zarr.create_array(
            session.store,
            name="t",
            shape=values.shape,
            chunks=[[2, 2, 3, 1], [4], [4]],
            dtype="f8",
            dimension_names=["time", "y", "x"],
            overwrite=True,
        )
        array[:] = values
        session.commit("an array of the same name")
        assert pyramid_local(repository, "t", 1).kept == 0
        _check(repository, values, 1, "mean")
        # A grid that changes in place keeps the chunks before the first other one.
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="t", mode="r+")
        document = {**array.metadata.to_dict(), "chunk_grid": grid_document(as_lengths([(2, 2, 2, 2), (4,), (4,)]))}
        found = ExistingArray("t", json.loads(json.dumps(document)))
        SessionSink(session).write_documents({"t": found.resized(values.shape, found.grid())})
        zarr.open_array(session.store, path="t", mode="r+")[4:] = values[4:]
        session.commit("other chunks")
        again = pyramid_local(repository, "t", 1)
        assert (again.written, again.kept) == (2, 2)
        _check(repository, values, 1, "mean")


def test_levels_of_a_grid_that_zarr_does_not_use_are_refused() -> None:
    repository = _repository(np.ones((2, 4, 4)), (2, 4, 4))
    session = repository.writable_session("main")
    document = json.loads(session.state.tree.array("/t").document)
    grid = grid_document(as_lengths([(1, 1), 4, 4]))
    SessionSink(session).write_documents({"t": json.dumps({**document, "chunk_grid": grid}).encode()})
    session.commit("a variable grid")
    off: Any = {"array.rectilinear_chunks": False} if RECTILINEAR else {}
    with zarr.config.set(off), pytest.raises(UnsupportedError, match="/t has the chunk grid 'rectilinear'"):
        pyramid_local(repository, "t", 1)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_only_what_changed_is_computed_again(generation: str) -> None:
    values = np.arange(4.0 * 16 * 16).reshape(4, 16, 16)
    repository = _repository(values, (1, 4, 4), generation)
    first = pyramid_local(repository, "t", 2)
    assert (first.written, first.kept) == (4 * 4 + 4 * 1, 0)
    again = pyramid_local(repository, "t", 2)
    assert (again.snapshot_id, again.written, again.kept) == (None, 0, 20)
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="t", mode="r+")
    array[2, 5, 5] = values[2, 5, 5] = -1.0
    session.commit("correct a cell")
    third = pyramid_local(repository, "t", 2)
    assert (third.written, third.kept) == (2, 18)
    _check(repository, values, 2, "mean")
    other = pyramid_local(repository, "t", 2, "max")
    assert other.kept == 0
    _check(repository, values, 2, "max")


def test_levels_have_coordinates_and_the_metadata_of_the_convention() -> None:
    repository = _repository(np.ones((1, 6, 5)), (1, 3, 3))
    pyramid_local(repository, "t", 2)
    store = repository.readonly_session("main").store
    level = xr.open_zarr(store, group="t_levels/1", consolidated=False)
    assert level.y.values.tolist() == [5, 25, 45]
    assert level.x.values.tolist() == [0.5, 2.5, 4]
    assert level.t.shape == (1, 3, 3)
    found: Any = zarr.open_group(store, path="t_levels", mode="r").attrs["multiscales"]
    assert [each["asset"] for each in found["layout"]] == ["../t", "1/t", "2/t"]
    assert found["layout"][2]["transform"] == {"scale": [4.0, 4.0], "translation": [1.5, 1.5]}
    assert found["resampling_method"] == "average"


def test_what_is_not_defined_is_refused_before_anything_is_written() -> None:
    repository = _repository(np.ones((2, 4, 4)).astype("i2"), (1, 4, 4))
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="nearest"):
        pyramid_local(repository, "t", 1, "mean")
    with pytest.raises(InvalidInputError, match="Give two of them"):
        pyramid_local(repository, "t", 1, "nearest", dims=["y", "z"])
    with pytest.raises(InvalidInputError, match="at least one level"):
        pyramid_local(repository, "t", 0)
    with pytest.raises(NodeNotFoundError, match="no array /u"):
        pyramid_local(repository, "u", 1)
    assert repository.lookup_branch("main") == before
    pyramid_local(repository, "t", 1, "nearest")
    assert _level(repository, 1).dtype == np.dtype("i2")


# -- overviews of a file ----------------------------------------------------------------------------------------------


def _write_cog(path: Path, image: Any, levels: list[Any], **options: Any) -> Path:
    """A tiled TIFF with overviews as further pages of reduced resolution, as GDAL writes them."""
    with tifffile.TiffWriter(path) as writer:
        chosen = {"photometric": "minisblack", "tile": (16, 16), "metadata": None, "compression": "zlib", **options}
        writer.write(image, **chosen)
        for level in levels:
            writer.write(level, subfiletype=1, **chosen)
    return path


def _cog(path: Path, shape: tuple[int, ...] = (70, 53), **options: Any) -> tuple[Path, list[Any]]:
    """A file whose overviews are not what any method computes, so that a test sees where levels come from."""
    levels = []
    for level in range(3):
        size = tuple(-(-n // 2**level) for n in shape[:2])
        rng = np.random.default_rng(level)
        levels.append(rng.integers(0, 60000, (*size, *shape[2:])).astype("u2"))
    return _write_cog(path, levels[0], levels[1:], **options), levels


def _allowed(repository: Repository, folder: Path) -> Repository:
    return Repository.open(repository.storage, authorize_virtual_chunk_access={f"file://{folder}/": None})


def _kinds(repository: Repository, path: str) -> set[int]:
    session = repository.readonly_session("main")
    table = run_blocking(session.state.chunk_table(session.state.tree.array(f"/{path}")))
    return {int(kind) for kind in table.kind}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_levels_are_the_overviews_of_the_file(tmp_path: Path, mode: Any, generation: str) -> None:
    path, levels = _cog(tmp_path / "scene.tif")
    repository = Repository.create(in_memory_storage(), spec_version=generation)
    ingest_local(path, repository, IngestOptions(mode=mode))
    repository = _allowed(repository, tmp_path)
    result = pyramid_local(repository, "image", 2, source=str(path))
    assert result.paths == ("image_levels/1/image", "image_levels/2/image") and result.written >= 2
    store = _allowed(repository, tmp_path).readonly_session("main").store
    for each, expected in zip(result.paths, levels[1:], strict=True):
        np.testing.assert_array_equal(zarr.open_array(store, path=each, mode="r")[...], expected)
        assert (ChunkKind.VIRTUAL in _kinds(repository, each)) == (mode == "virtual")
    layout = zarr.open_group(store, path="image_levels", mode="r").attrs["multiscales"]
    assert "resampling_method" not in layout and len(layout["layout"]) == 3  # type: ignore[operator, index, arg-type]
    again = pyramid_local(repository, "image", 2, source=str(path))
    assert again.snapshot_id is None and again.written == 0


def test_overviews_that_zarr_cannot_reference_are_copied(tmp_path: Path) -> None:
    path, levels = _cog(tmp_path / "scene.tif", (40, 40, 3), predictor=True, photometric="rgb")
    repository = Repository.create(in_memory_storage())
    ingest_local(path, repository, IngestOptions())
    result = pyramid_local(repository, "image", 2, source=str(path))
    store = repository.readonly_session("main").store
    for each, expected in zip(result.paths, levels[1:], strict=True):
        np.testing.assert_array_equal(zarr.open_array(store, path=each, mode="r")[...], expected)


def test_overviews_of_another_image_are_refused(tmp_path: Path) -> None:
    path, levels = _cog(tmp_path / "scene.tif")
    repository = Repository.create(in_memory_storage())
    ingest_local(path, repository, IngestOptions())
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="has 2 overviews, and 3"):
        pyramid_local(repository, "image", 3, source=str(path))
    other = _write_cog(tmp_path / "other.tif", levels[0] + 1, levels[1:])
    with pytest.raises(InvalidInputError, match="is not equal to"):
        pyramid_local(repository, "image", 2, source=str(other))
    smaller = _write_cog(tmp_path / "smaller.tif", levels[0][:64], [levels[1][:32]])
    with pytest.raises(InvalidInputError, match="shape"):
        pyramid_local(repository, "image", 1, source=str(smaller))
    odd = _write_cog(tmp_path / "odd.tif", levels[0], [levels[0][::3, ::3]])
    with pytest.raises(InvalidInputError, match="half as many"):
        pyramid_local(repository, "image", 1, source=str(odd))
    plain = _write_cog(tmp_path / "plain.tif", levels[0], [])
    with pytest.raises(InvalidInputError, match="overviews of nothing"):
        pyramid_local(repository, "image", 1, source=str(plain))
    assert repository.lookup_branch("main") == before


def test_an_array_that_was_corrected_no_longer_has_the_overviews_of_its_file(tmp_path: Path) -> None:
    path, _ = _cog(tmp_path / "scene.tif")
    repository = Repository.create(in_memory_storage())
    ingest_local(path, repository, IngestOptions())
    pyramid_local(repository, "image", 2, source=str(path))
    with repository.transaction("main", message="correct") as store:
        zarr.open_array(store, path="image", mode="r+")[3, 3] = 7
    with pytest.raises(InvalidInputError, match="without source"):
        pyramid_local(repository, "image", 2, source=str(path))
    assert pyramid_local(repository, "image", 2, "nearest").written
