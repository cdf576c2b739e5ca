"""References of chunks as columns: parsers and writers of virtual datasets read and set them."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.errors import IcefloeError, InvalidInputError, VirtualChunkError
from icefloe.manifests.chunk_columns import CODED_AT_ONCE
from icefloe.session.session_chunks import ChunkType

GENERATIONS = ("repository", "icechunk1", "icechunk2", "dataset", "store")
CELLS = {"inline": 1, "packed": 400, "whole": 100_000}
"""The bytes of a chunk decide where it is stored."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(bytes(range(256)) * 1000)
    return folder


def create(tmp_path: Path, data: Path, generation: str) -> icefloe.Repository:
    prefix = f"file://{data}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(data))))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    return icefloe.Repository.create(storage, config, {prefix: None}, spec_version=generation)


def add(store: Any, name: str, shape: tuple[int, ...], chunks: tuple[int, ...] | None = None) -> Any:
    return zarr.create_array(
        store, name=name, shape=shape, chunks=chunks or shape, dtype="u1", fill_value=7, compressors=None, filters=None
    )


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_columns_of_references_find_the_bytes_of_every_chunk(
    tmp_path: Path, data: Path, generation: str, kind: str
) -> None:
    size = CELLS[kind]
    repo = create(tmp_path, data, generation)
    session = repo.writable_session("main")
    array = add(session.store, "a", (5 * size,), (size,))
    array[: 2 * size] = np.arange(2 * size) % 251
    location = f"file://{data}/a.bin"
    session.store.set_virtual_ref("a/c/3", location, offset=100, length=size)
    session.commit("Two chunks and a reference")
    reader = repo.readonly_session("main").store
    expected = zarr.open_array(reader, path="a")[:]
    found = np.full(5 * size, 7, dtype="u1")
    kinds = set()
    for coords, types, locations, offsets, lengths, inline in iterate_blocking(reader.array_chunk_iterator("a", 2)):
        for row, (n,) in enumerate(coords.tolist()):
            start, end = int(offsets[row]), int(offsets[row] + lengths[row])
            kinds.add(ChunkType(int(types[row])))
            match ChunkType(int(types[row])):
                case ChunkType.INLINE:
                    assert locations[row] == "" and start == 0
                    part = inline[row]
                case ChunkType.NATIVE:
                    (file,) = (tmp_path / "repo").glob(f"**/{locations[row]}")
                    part = file.read_bytes()[start:end]
                case _:
                    assert locations[row] == location
                    part = (data / "a.bin").read_bytes()[start:end]
            assert len(part) == lengths[row] == size
            found[n * size : (n + 1) * size] = np.frombuffer(bytes(part), dtype="u1")
    assert found.tolist() == expected.tolist()
    assert ChunkType.VIRTUAL in kinds and len(kinds) == 2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_one_chunk_of_a_scalar_is_a_box_without_dimensions_or_with_one(
    tmp_path: Path, data: Path, generation: str
) -> None:
    session = create(tmp_path, data, generation).writable_session("main")
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1))
    for n, shape in enumerate(shapes):
        array = add(session.store, f"s{n}", ())
        session.store.set_virtual_refs_arr(f"s{n}", shape, [f"file://{data}/a.bin"], [40 + n], [1])
        assert int(array[()]) == 40 + n
    for shape, first in (((2,), None), ((1,), (1,)), ((0,), None)):
        with pytest.raises(InvalidInputError, match="does not fit"):
            session.store.set_virtual_refs_arr(
                "s0", shape, [f"file://{data}/a.bin"] * 2, [0, 1], [1, 1], arr_offset=first
            )


def _read(repo: icefloe.Repository, path: Path, modified_ns: int, checksum: dt.datetime) -> int:
    """The value of a reference that was made with a checksum, to a file that was modified at a time."""
    session = repo.writable_session("main")
    array = add(session.store, f"c{time.monotonic_ns()}", (1,))
    session.store.set_virtual_ref(f"{array.path}/c/0", f"file://{path}", offset=3, length=1, checksum=checksum)
    os.utime(path, ns=(modified_ns, modified_ns))
    return int(array[0])


@pytest.mark.parametrize("generation", ["repository", "icechunk1", "icechunk2"])
def test_a_file_that_is_replaced_within_the_second_of_its_checksum_is_refused(
    tmp_path: Path, data: Path, generation: str
) -> None:
    repo = create(tmp_path, data, generation)
    path = data / "a.bin"
    second = 1_000_000_000
    written = 1_700_000_000 * second + 700_000_000
    exact = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC) + dt.timedelta(milliseconds=700)
    assert _read(repo, path, written, exact) == 3  # the time of the file itself
    assert _read(repo, path, written, exact.replace(microsecond=0) + dt.timedelta(seconds=1)) == 3
    for later in (written + second, written + 301_000_000):
        with pytest.raises(VirtualChunkError, match="changed"):
            _read(repo, path, later, exact)
    # A time in the future, as writers give to be safe: the file must not change from its last second on.
    future = dt.datetime.now(dt.UTC).replace(microsecond=800_000) + dt.timedelta(hours=1)
    start = int(future.timestamp()) * second
    assert _read(repo, path, start, future) == 3
    with pytest.raises(VirtualChunkError, match="changed"):
        _read(repo, path, start + 100_000_000, future)


SPEC_LOCATIONS = st.sampled_from(["file://{}/a.bin", "FILE://{}/./a.bin", "file://{}/b/ü.bin", "s3://elsewhere/x"])
NO_ZONE = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - a time zone is missing on purpose
SPEC_TIMES = st.sampled_from(
    [None, dt.datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)]
)


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(0, 2), st.integers(0, 3)),
            SPEC_LOCATIONS,
            st.integers(0, 100),
            st.integers(1, 9),
            st.sampled_from([None, "", "tag-1", "tag-2"]),
            SPEC_TIMES,
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_a_list_of_specifications_sets_what_one_call_for_each_sets(rows: list[Any], validate: bool) -> None:
    folder = "/data"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(f"file://{folder}/", icefloe.local_filesystem_store(folder))
    )
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    together, apart = repo.writable_session("main"), repo.writable_session("main")
    for session in (together, apart):
        add(session.store, "a", (6, 8), (2, 2))
    specs = [icefloe.VirtualChunkSpec(list(i), place.format(folder), *rest) for i, place, *rest in rows]
    skipped = []
    for spec in specs:
        checksum = spec.etag_checksum or spec.last_updated_at_checksum
        key = f"a/c/{spec.index[0]}/{spec.index[1]}"
        try:
            apart.store.set_virtual_ref(
                key,
                spec.location,
                offset=spec.offset,
                length=spec.length,
                checksum=checksum,
                validate_container=validate,
            )
        except VirtualChunkError:
            skipped.append(tuple(spec.index))
    assert together.store.set_virtual_refs("a", specs, validate_containers=validate) == (skipped or None)
    tables = []
    for session in (together, apart):
        view = session._state.view()
        tables.append(run_blocking(view.chunk_table(view.tree.array("/a"))))
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (icefloe.VirtualChunkSpec([9], "s3://b/x", 0, 1), r"chunk \[9\] is outside the grid"),
        (icefloe.VirtualChunkSpec([-1], "s3://b/x", 0, 1), r"chunk \[-1\] is outside the grid"),
        (icefloe.VirtualChunkSpec([0, 0], "s3://b/x", 0, 1), r"chunk \[0, 0\] is outside the grid"),
        (icefloe.VirtualChunkSpec([0.5], "s3://b/x", 0, 1), "not whole numbers"),  # type: ignore[list-item]
        (icefloe.VirtualChunkSpec([1 << 70], "s3://b/x", 0, 1), "not whole numbers"),
        (icefloe.VirtualChunkSpec([0], "s3://b/x", -3, 1), "offset -3 and length 1"),
        (icefloe.VirtualChunkSpec([0], "s3://b/x", 0, 0), "offset 0 and length 0"),
        (icefloe.VirtualChunkSpec([0], "s3://b/x", 0, 1 << 64), "length of a virtual chunk"),
        (icefloe.VirtualChunkSpec([0], None, 0, 1), "None, which is not text"),  # type: ignore[arg-type]
        (icefloe.VirtualChunkSpec([0], "s3://b/\ud800", 0, 1), "not valid Unicode"),
        (icefloe.VirtualChunkSpec([0], "no url", 0, 1), "not a URL"),
        (
            icefloe.VirtualChunkSpec([0], "s3://b/x", 0, 1, last_updated_at_checksum=NO_ZONE),
            "time zone",
        ),
    ],
)
def test_one_wrong_specification_sets_none_of_a_list(spec: icefloe.VirtualChunkSpec, message: str) -> None:
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://b/", icefloe.s3_store(region="us-east-1")))
    session = icefloe.Repository.create(icefloe.in_memory_storage(), config).writable_session("main")
    add(session.store, "a", (8,), (2,))
    good = icefloe.VirtualChunkSpec([1], "s3://b/x", 0, 1)
    with pytest.raises(InvalidInputError, match=message):
        session.store.set_virtual_refs("a", [good, spec, good])
    assert session.all_virtual_chunk_locations() == []


class Sequence(list[Any]):
    """A list whose type is not the usual one, so that specifications with it are read by the general reader."""


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


def spec_session() -> icefloe.Session:
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://b/", icefloe.s3_store(region="us-east-1")))
    session = icefloe.Repository.create(icefloe.in_memory_storage(), config).writable_session("main")
    add(session.store, "a", (200, 400), (2, 4))
    return session


def outcome(specs: Any) -> Any:
    """What a list of specifications does to an array: its references and the refused chunks, or the error."""
    session = spec_session()
    view = session._state.view()
    try:
        refused = session.store.set_virtual_refs("a", specs)
    except (IcefloeError, TypeError) as error:
        assert session.all_virtual_chunk_locations() == []
        return type(error), str(error)
    return run_blocking(session._state.chunk_table(view.tree.array("/a"))), refused


WHOLE = st.integers(0, 99)
ODD_NUMBERS = st.one_of(
    WHOLE,
    st.sampled_from(
        [True, np.int32(3), np.uint64(4), np.bool_(True), Number.ONE, np.array(5), np.array([6]), -1, 1 << 31, 1 << 32]
    ),
    st.sampled_from([(1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 0.0, 1.5, None, "1", float("nan"), [1], 100]),
)
ODD_INDICES = st.one_of(
    st.lists(ODD_NUMBERS, min_size=2, max_size=2),
    st.lists(ODD_NUMBERS, min_size=2, max_size=2).map(tuple),
    st.lists(WHOLE, max_size=3),
    st.sampled_from([np.array([1, 2]), np.array([1.0, 2.0]), range(2), "12", {3: 0, 4: 1}, {5, 6}, b"ab", ""]),
)
ODD_TEXTS = st.one_of(
    st.sampled_from(["s3://b/x", "s3://b/ü", "s3://other/x", "", "no url", "s3://b/\ud800", Text("s3://b/x")]),
    st.sampled_from([np.str_("s3://b/y"), None, 3, b"s3://b/x", Path("/x"), ["s3://b/x"]]),
)
ODD_SPECS = st.builds(icefloe.VirtualChunkSpec, ODD_INDICES, ODD_TEXTS, ODD_NUMBERS, ODD_NUMBERS)
SPECS = st.builds(
    icefloe.VirtualChunkSpec,
    st.lists(WHOLE, min_size=2, max_size=2),
    st.sampled_from(["s3://b/x", "s3://b/y", "s3://other/z"]),
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
    st.sampled_from([None, None, "", "tag"]),
    SPEC_TIMES,
)


@given(st.lists(SPECS, min_size=1, max_size=6), st.lists(ODD_SPECS, max_size=2), st.integers(0, 5), st.booleans())
def test_the_fast_reader_of_specifications_agrees_with_the_general_one(
    usual: list[Any], odd: list[Any], position: int, as_generator: bool
) -> None:
    specs = usual[:position] + odd + usual[position:]
    first = usual[0]
    marked = [replace(spec, index=Sequence(spec.index)) if spec is first else spec for spec in specs]
    assert outcome(iter(specs) if as_generator else specs) == outcome(marked)


@functools.cache
def many_specs(per_file: int) -> list[icefloe.VirtualChunkSpec]:
    """More specifications than are read at a time."""
    return [
        icefloe.VirtualChunkSpec([row // 100, row % 100], f"s3://b/{row // per_file}", row, 1 + row)
        for row in range(CODED_AT_ONCE + 100)
    ]


@given(st.integers(0, CODED_AT_ONCE + 99), st.one_of(ODD_SPECS, SPECS), st.sampled_from([1, 300, 1 << 20]))
@settings(max_examples=30)
def test_specifications_are_read_in_pieces_without_a_difference(position: int, spec: Any, per_file: int) -> None:
    specs = [*many_specs(per_file)]
    specs[position] = spec
    marked = [replace(specs[0], index=Sequence(specs[0].index)), *specs[1:]] if position else specs
    assert outcome(specs) == outcome(marked)


@pytest.mark.long
def test_forty_thousand_files_in_a_list_of_specifications_keep_their_chunks() -> None:
    session = spec_session()
    add(session.store, "w", (200, 200), (1, 1))
    specs = [
        icefloe.VirtualChunkSpec((row // 200, row % 200), f"s3://b/{row:05d}", row, 1 + row) for row in range(40_000)
    ]
    assert session.store.set_virtual_refs("w", specs) is None
    table = run_blocking(session._state.chunk_table(session._state.tree.array("/w")))
    assert [table.locations[code] for code in table.location.tolist()] == [spec.location for spec in specs]
    assert table.offset.tolist() == list(range(40_000))


def test_a_specification_can_be_pickled_compared_and_not_changed() -> None:
    spec = icefloe.VirtualChunkSpec([1, 2], "s3://b/x", 3, 4, "tag")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec != replace(spec, offset=5)
    with pytest.raises(AttributeError):
        spec.offset = 5  # type: ignore[misc]


@pytest.mark.long
def test_references_to_a_few_files_are_committed_without_loading_arrow() -> None:
    code = """
import sys, icefloe, zarr
config = icefloe.RepositoryConfig.default()
config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://b/", icefloe.s3_store(region="us-east-1")))
session = icefloe.Repository.create(icefloe.in_memory_storage(), config).writable_session("main")
zarr.create_array(session.store, name="a", shape=(400,), chunks=(1,), dtype="u1")
session.store.set_virtual_refs("a", [icefloe.VirtualChunkSpec([n], f"s3://b/{n % 7}", n, 1) for n in range(300)])
session.store.set_virtual_refs_arr("a", (100,), ["s3://b/x"] * 100, range(100), [1] * 100, arr_offset=(300,))
session.commit("references")
sys.exit("pyarrow" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
