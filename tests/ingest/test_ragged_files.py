"""Files of different lengths by reference: months, or files that end within a chunk. Values are those of xarray."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import IcefloeError, InvalidInputError, UnsupportedError
from icefloe.ingest.chunk_grids import cut_cells
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.sync import sync_local
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.zarr_document import ChunkLengths, grid_document, parse_array_shape, parse_grid

pytestmark = pytest.mark.filterwarnings("ignore")
RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
needs_grids = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
MONTHS = (31, 28, 31, 30)


@pytest.fixture
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


@dataclass(frozen=True)
class Archive:
    """Files along time in a folder, and a repository beside it."""

    folder: Path

    def write(self, index: int, start: int, length: int, chunk: int, *, seed: int = 0, codec: bool = True) -> Path:
        """Write a file with the times [start, start + length) in chunks of `chunk`."""
        self.folder.mkdir(exist_ok=True)
        values = np.random.default_rng([seed, index]).normal(size=(length, 3, 4)).astype("f4")
        data = xr.Dataset(
            {"t": (("time", "y", "x"), values)},
            {"time": np.arange(start, start + length) * 1.0, "y": np.arange(3.0), "x": np.arange(4.0)},
        )
        path = self.folder / f"part{index:03d}.nc"
        encoding = {"t": {"chunksizes": (min(chunk, length), 3, 2), "zlib": codec, "shuffle": codec}}
        data.to_netcdf(path, encoding=encoding, engine="netcdf4")
        return path

    def write_all(self, parts: Sequence[tuple[int, int]], **options: Any) -> list[Path]:
        starts = np.cumsum([0, *(length for length, _ in parts)])
        return [
            self.write(i, int(s), n, c, **options) for i, ((n, c), s) in enumerate(zip(parts, starts, strict=False))
        ]

    def create(self, generation: str = "repository") -> Repository:
        return Repository.create(icefloe.in_memory_storage(), spec_version=generation)

    def expected(self) -> Any:
        files = sorted(self.folder.glob("*.nc"))
        return np.concatenate([xr.open_dataset(file, decode_times=False).load().t.values for file in files])


def _allowed(repository: Repository, folder: Path) -> Repository:
    """The repository with the containers that an ingest added, and the right to read the files."""
    return Repository.open(repository.storage, authorize_virtual_chunk_access={f"file://{folder}/": None})


def _array(repository: Repository, folder: Path, path: str = "t") -> Any:
    allowed = _allowed(repository, folder)
    return zarr.open_array(allowed.readonly_session("main").store, path=path, mode="r")


def _document(repository: Repository, path: str = "t") -> dict[str, Any]:
    session = repository.readonly_session("main")
    return dict(json.loads(run_blocking(session.state.fetch_document(f"/{path}")) or b"{}"))


def _kinds(repository: Repository, path: str = "t") -> list[int]:
    session = repository.readonly_session("main")
    table = run_blocking(session.state.chunk_table(session.state.tree.array(f"/{path}")))
    return [int((table.kind == kind).sum()) for kind in (ChunkKind.VIRTUAL, ChunkKind.NATIVE, ChunkKind.INLINE)]


def _options(mode: Any, **more: Any) -> IngestOptions:
    return IngestOptions(mode=mode, append_dim="time", native_below_bytes=0, **more)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_chunk_lengths_agree_with_a_list_of_cells(lengths: list[int], data: Any) -> None:
    found = ChunkLengths(tuple(lengths))
    cells = [(index, cell) for index, length in enumerate(lengths) for cell in range(length)]
    for cell, (index, inside) in enumerate(cells):
        assert (found.index(cell), found.start(index) + inside, found.length(index)) == (index, cell, lengths[index])
        assert found.is_bound(cell) == (inside == 0)
    length = data.draw(st.integers(1, len(cells) + 20))
    covering = found.covering(length).of(length)
    assert covering[: len(lengths)] == tuple(lengths)[: len(covering)] and set(covering[len(lengths) :]) <= {
        lengths[-1]
    }
    assert sum(covering[:-1]) < length <= sum(covering)
    document = {"chunk_grid": grid_document([found, ChunkLengths(4)])}
    assert parse_grid(json.loads(json.dumps(document))) == (found, ChunkLengths(4))
    assert sum(cut_cells(length, lengths[0])) == length


@given(
    st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=1, max_size=8).map(lambda each: tuple(each)),
    st.integers(1, 60),
    st.data(),
)
def test_chunk_lengths_of_many_cells_are_those_of_each_cell(
    each: int | tuple[int, ...], cells: int, data: st.DataObject
) -> None:
    """Also behind the last chunk with a length of its own."""
    found = ChunkLengths(each)
    numbers = np.arange(found.count(cells))
    assert found.starts(cells).tolist() == [found.start(index) for index in numbers.tolist()]
    assert found.starts_of(numbers).tolist() == found.starts(cells).tolist()
    assert found.lengths(numbers).tolist() == list(found.of(cells))
    assert found.indices(np.arange(cells)).tolist() == [found.index(cell) for cell in range(cells)]
    document = {"shape": [cells], "chunk_grid": grid_document([found])}
    counted = parse_array_shape(json.loads(json.dumps(document))).grid
    assert counted == (len(numbers),) or (not isinstance(each, int) and cells > sum(each))
    first = data.draw(st.integers(0, cells - 1))
    end = data.draw(st.integers(first + 1, cells))
    part = found.part(first, end)
    inner = {start - first for start in found.starts(end).tolist() if start > first}
    assert {0, *inner} == set(part.starts(end - first).tolist())


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("generation", ["repository", "dataset", "store", "icechunk2"])
@pytest.mark.parametrize("mode", ["virtual", "mixed"])
def test_months_are_referenced_as_whole_chunks(tmp_path: Path, mode: Any, generation: str) -> None:
    archive = Archive(tmp_path / "in")
    archive.write_all([(n, n) for n in MONTHS])
    repository = archive.create(generation)
    ingest_local(archive.folder, repository, _options(mode))
    grid = _document(repository)["chunk_grid"]
    assert grid["name"] == "rectilinear" and parse_grid(_document(repository))[0].each == MONTHS
    assert _kinds(repository) == [len(MONTHS) * 2, 0, 0]
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())
    opened = xr.open_zarr(_allowed(repository, archive.folder).readonly_session("main").store, consolidated=False)
    with xr.open_mfdataset(sorted(archive.folder.glob("*.nc"))) as oracle:
        xr.testing.assert_equal(opened.load(), oracle.load())


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_regular_grid_is_used_where_it_fits(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    archive.write_all([(30, 30), (30, 30), (12, 30)])
    repository = archive.create()
    ingest_local(archive.folder, repository, _options("mixed"))
    assert _document(repository)["chunk_grid"]["name"] == "regular"


PARTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=2, max_size=6)


@needs_grids
@pytest.mark.usefixtures("enabled")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, st.data())
def test_appends_in_any_split_equal_one_ingest_and_xarray(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]], data: Any
) -> None:
    """Values are always those of the files. In mixed mode every list of lengths is possible."""
    archive = Archive(tmp_path_factory.mktemp("ragged") / "in")
    files = archive.write_all(parts)
    mode = data.draw(st.sampled_from(["mixed", "virtual"]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(files) - 1))))
    whole, split = archive.create(), archive.create()
    expected = archive.expected()
    try:
        ingest_local(files, whole, _options(mode))
    except InvalidInputError:
        assert mode == "virtual"
    else:
        np.testing.assert_array_equal(_array(whole, archive.folder)[:], expected)
    try:
        for first, end in zip([0, *cuts], [*cuts, len(files)], strict=True):
            ingest_local(files[first:end], split, _options(mode))
    except InvalidInputError:
        assert mode == "virtual"
        return
    np.testing.assert_array_equal(_array(split, archive.folder)[:], expected)


@needs_grids
@pytest.mark.usefixtures("enabled")
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, st.randoms(use_true_random=False))
def test_a_sync_in_any_order_equals_one_ingest(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]], random: Any
) -> None:
    archive = Archive(tmp_path_factory.mktemp("ragged") / "in")
    files = archive.write_all(parts)
    away = tmp_path_factory.mktemp("away")
    hidden = [file.rename(away / file.name) for file in random.sample(files, k=len(files) - 1)]
    repository = archive.create()
    while True:
        sync_local(archive.folder, repository, _options("mixed"))
        np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())
        if not hidden:
            break
        for _ in range(random.randint(1, len(hidden))):
            hidden[-1].rename(archive.folder / hidden[-1].name)
            hidden.pop()
        if random.random() < 0.4:
            index = random.choice([int(file.stem[4:]) for file in archive.folder.glob("*.nc")])
            start = sum(length for length, _ in parts[:index])
            archive.write(index, start, *parts[index], seed=random.randint(1, 9))
    assert sync_local(archive.folder, repository, _options("mixed")).snapshot_id is None
    fresh = archive.create()
    sync_local(archive.folder, fresh, _options("mixed"))
    assert parse_grid(_document(repository)) == parse_grid(_document(fresh))


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_late_month_moves_the_references_of_those_after_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(n, n) for n in MONTHS])
    files[1].rename(tmp_path / "late.nc")
    repository = archive.create()
    sync_local(archive.folder, repository, _options("virtual"))
    (tmp_path / "late.nc").rename(files[1])
    result = sync_local(archive.folder, repository, _options("virtual"))
    changes = result.plan.arrays["t"]
    assert not changes.is_rewritten and changes.kept == 1 and len(changes.moved) == 2 and len(changes.written) == 1
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_file_that_ends_within_a_chunk_has_only_this_chunk_by_value(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    archive.write_all([(31, 10), (28, 10), (30, 10)])
    repository = archive.create()
    result = ingest_local(archive.folder, repository, _options("virtual"))
    assert result.plan is not None
    [note] = [issue for issue in result.plan.report.issues if issue.facet == "last chunk"]
    assert note.severity == "note" and note.found == "2 files end within their last chunk"
    assert parse_grid(_document(repository))[0].each == (10, 10, 10, 1, 10, 10, 8, 10, 10, 10)
    assert _kinds(repository)[0] == 8 * 2 and sum(_kinds(repository)) == 10 * 2
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_files_that_would_mostly_be_copied_are_not_called_virtual(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    archive.folder.mkdir()
    for index in range(2):
        data = xr.Dataset({"t": ("time", np.arange(3.0))}, {"time": np.arange(3.0) + 3 * index})
        encoding = {"t": {"chunksizes": (4,)}}
        data.to_netcdf(archive.folder / f"part{index}.nc", encoding=encoding, unlimited_dims=["time"])
    with pytest.raises(InvalidInputError, match="within a chunk of 4 cells"):
        ingest_local(archive.folder, archive.create(), _options("virtual"))


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_file_with_other_codecs_is_written_by_value_between_months(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    archive.write_all([(n, n) for n in MONTHS])
    archive.write(1, MONTHS[0], MONTHS[1], MONTHS[1], codec=False)
    repository = archive.create()
    ingest_local(archive.folder, repository, _options("mixed"))
    assert parse_grid(_document(repository))[0].each == MONTHS
    assert _kinds(repository)[0] == 3 * 2 and sum(_kinds(repository)) == 4 * 2
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("chunks", [{}, {"time": 5}])
def test_values_are_appended_to_months_in_chunks_of_the_last_or_the_given_length(
    tmp_path: Path, chunks: dict[str, int]
) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(31, 31), (28, 28), (30, 30), (31, 31), (12, 12)])
    repository = archive.create()
    ingest_local(files[:3], repository, _options("virtual"))
    for file in files[3:]:
        ingest_local(file, repository, IngestOptions(mode="native", append_dim="time", chunks=chunks))
    lengths = parse_grid(_document(repository))[0].of(132)
    assert lengths == (31, 28, 30, *((5,) * 9 if chunks else (30, 30)))
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())
    # By reference again: the chunk at the end, which is not full, ends with the array.
    more = archive.write(9, 132, 30, 30)
    ingest_local(more, repository, _options("virtual"))
    np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())
    assert parse_grid(_document(repository))[0].of(162)[-1] == 30


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_months_are_appended_with_zarr(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(n, n) for n in MONTHS])
    repository = archive.create()
    ingest_local(files, repository, _options("virtual"))
    session = repository.writable_session("main")
    added = np.ones((3, 3, 4), dtype="f4")
    zarr.open_array(session.store, path="t", mode="r+").append(added)
    session.commit("with zarr")
    found = _array(repository, archive.folder)
    np.testing.assert_array_equal(found[:], np.concatenate([archive.expected(), added]))


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_month_is_written_again_into_its_region(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(n, n) for n in MONTHS])
    repository = archive.create()
    ingest_local(files, repository, _options("mixed"))
    again = archive.write(1, MONTHS[0], MONTHS[1], MONTHS[1], seed=5)
    for mode in ("virtual", "native"):
        ingest_local(again, repository, IngestOptions(mode=mode, region="auto"))  # type: ignore[arg-type]
        np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())
        assert parse_grid(_document(repository))[0].each == MONTHS
    other = archive.write(1, MONTHS[0], MONTHS[1], 14, seed=6)
    with pytest.raises(InvalidInputError, match="references"):
        ingest_local(other, repository, IngestOptions(mode="virtual", region="auto"))


@pytest.mark.parametrize("generation", ["repository", "icechunk1"])
def test_months_by_reference_are_refused_where_their_grid_cannot_be(tmp_path: Path, generation: str) -> None:
    archive = Archive(tmp_path / "in")
    archive.write_all([(n, n) for n in MONTHS])
    grids = {"array.rectilinear_chunks": generation == "icechunk1"} if RECTILINEAR else {}
    with zarr.config.set(grids):
        with pytest.raises(InvalidInputError, match="within a chunk of 31 cells") as raised:
            ingest_local(archive.folder, archive.create(generation), _options("virtual"))
        assert ("ZARR_ARRAY__RECTILINEAR_CHUNKS" in str(raised.value)) == (RECTILINEAR and generation == "repository")
        repository = archive.create(generation)
        ingest_local(archive.folder, repository, _options("mixed"))
        assert _document(repository)["chunk_grid"]["name"] == "regular"
        np.testing.assert_array_equal(_array(repository, archive.folder)[:], archive.expected())


@needs_grids
def test_an_append_to_months_without_the_setting_is_refused_with_advice(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(n, n) for n in MONTHS])
    repository = archive.create()
    with zarr.config.set({"array.rectilinear_chunks": True}):
        ingest_local(files[:3], repository, _options("virtual"))
    before = repository.lookup_branch("main")
    for mode in ("virtual", "mixed", "native"):
        with pytest.raises(UnsupportedError, match="ZARR_ARRAY__RECTILINEAR_CHUNKS"):
            ingest_local(files[3:], repository, _options(mode))
    with pytest.raises(IcefloeError):
        sync_local(archive.folder, repository, _options("virtual"))
    assert repository.lookup_branch("main") == before


def _commit_variable_grid(repository: icefloe.Repository) -> str:
    """Stands for an array that was written with another Python or setting."""
    session = repository.writable_session("main")
    grid = grid_document([ChunkLengths((30, 20, 10)), ChunkLengths(3), ChunkLengths(2)])
    document = json.dumps({**_document(repository), "chunk_grid": grid}).encode()
    run_blocking(session.store.set("t/zarr.json", default_buffer_prototype().buffer.from_bytes(document)))
    return session.commit("chunks of different lengths")


@pytest.mark.parametrize("mode", ["virtual", "mixed", "native"])
def test_an_archive_of_months_is_not_rewritten_by_a_process_without_the_setting(tmp_path: Path, mode: Any) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(30, 30), (30, 30)])
    repository = archive.create()
    sync_local(files, repository, _options(mode))
    before = _commit_variable_grid(repository)
    more = archive.write(2, 60, 30, 30)
    advice = "ZARR_ARRAY__RECTILINEAR_CHUNKS" if RECTILINEAR else "Python 3.12"
    with pytest.raises(UnsupportedError, match=advice):
        ingest_local(more, repository, _options(mode))
    with pytest.raises(UnsupportedError, match=advice):
        sync_local(archive.folder, repository, _options(mode))
    assert repository.lookup_branch("main") == before


@pytest.mark.parametrize("mode", ["virtual", "mixed", "native"])
def test_a_first_sync_does_not_rewrite_what_an_ingest_wrote_with_the_setting(tmp_path: Path, mode: Any) -> None:
    archive = Archive(tmp_path / "in")
    files = archive.write_all([(30, 30), (30, 30)])
    repository = archive.create()
    ingest_local(files, repository, _options(mode))
    before = _commit_variable_grid(repository)
    advice = "ZARR_ARRAY__RECTILINEAR_CHUNKS" if RECTILINEAR else "Python 3.12"
    with pytest.raises(UnsupportedError, match=advice):
        sync_local(archive.folder, repository, _options(mode))
    assert repository.lookup_branch("main") == before
