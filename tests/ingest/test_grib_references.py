"""GRIB messages by reference: the codec, references from index files, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from tests.ingest.grib_messages import (
    Spec,
    check_equals_eccodes,
    eccodes,
    make_message,
    read_messages,
    write_index,
    write_inventory,
    write_messages,
)

from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError, InvalidInputError, ObjectNotFoundError
from icefloe.grib_codec import GribCodec
from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.grib_index import without_data
from icefloe.ingest.parsers.registry import parse_schema
from icefloe.ingest.sources import IngestOptions
from icefloe.model.chunk_table import ChunkKind

GENERATIONS = ["repository", "dataset", "store", "icechunk1", "icechunk2"]
_STEPS = ("0", "3", "6")
_LEVELS = (1000, 850, 500)


def _forecast(path: Path, date: int = 20200101, *, missing: bool = False, number: int | None = None) -> Path:
    """A run of three steps and three levels of two parameters, with a surface field and accumulations."""
    specs = [
        Spec(name, date, 0, step, level, number, missing=missing, seed=date % 97 + 10 * i + level)
        for i, step in enumerate(_STEPS)
        for name in ("t", "u")
        for level in _LEVELS
    ]
    specs += [Spec("2t", date, step=step, number=number, seed=500 + i) for i, step in enumerate(_STEPS)]
    specs += [Spec("tp", date, step=f"0-{step}", number=number, seed=600 + i) for i, step in enumerate(_STEPS[1:])]
    return write_messages(path, *specs)


def _open(place: Path, folder: Path) -> xr.Dataset:
    repository = Repository.open(str(place), authorize_virtual_chunk_access={f"file://{folder}/": None})
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, decode_timedelta=False).load()


@pytest.mark.long
@pytest.mark.parametrize("generation", GENERATIONS)
def test_messages_by_reference_equal_eccodes_in_every_generation(tmp_path: Path, generation: str) -> None:
    (tmp_path / "in").mkdir()
    paths = [_forecast(tmp_path / "in" / f"{day}.grib2", 20200100 + day, missing=day == 2) for day in (1, 2)]
    repository = Repository.create(str(tmp_path / "repo"), spec_version=generation)
    ingest_local(tmp_path / "in", repository, IngestOptions(mode="virtual", append_dim="time"))
    check_equals_eccodes(_open(tmp_path / "repo", tmp_path / "in"), paths)
    paths.append(_forecast(tmp_path / "in" / "3.grib2", 20200103))
    ingest_local(paths[-1], repository, IngestOptions(mode="virtual", append_dim="time"))
    check_equals_eccodes(_open(tmp_path / "repo", tmp_path / "in"), paths)
    state = repository.readonly_session("main").state
    kinds = {row.kind for _, row in zarr_rows(state, "/t")}
    assert kinds == {ChunkKind.VIRTUAL}


def zarr_rows(state: Any, path: str) -> list[Any]:
    return list(run_blocking(state.chunk_table(state.tree.array(path))).rows())


def test_an_array_of_messages_can_be_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = _forecast(tmp_path / "in" / "a.grib2", missing=True)
    repository = Repository.create(str(tmp_path / "repo"))
    ingest_local(path, repository, IngestOptions(mode="virtual"))
    before = _open(tmp_path / "repo", tmp_path / "in")
    allowed = {f"file://{tmp_path}/in/": None}
    repository = Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access=allowed)
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="t", mode="r+")
    array[0, 1, 0, 1:3, 2] = [np.pi, -0.0]
    session.commit("correct two cells")
    after = _open(tmp_path / "repo", tmp_path / "in")
    expected = before["t"].values.copy()
    expected[0, 1, 0, 1:3, 2] = [np.pi, -0.0]
    np.testing.assert_array_equal(after["t"].values, expected)
    np.testing.assert_array_equal(np.signbit(after["t"].values), np.signbit(expected))


def test_plain_zarr_finds_the_codec_by_its_entry_point(tmp_path: Path) -> None:
    """A package's metadata folder on the path is what an installation leaves behind."""
    project = Path(__file__).parents[2]
    declared = (project / "pyproject.toml").read_text()
    assert '[project.entry-points."zarr.codecs"]\n"icefloe.grib" = "icefloe.grib_codec:GribCodec"' in declared
    info = tmp_path / "icefloe_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: icefloe-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[zarr.codecs]\nicefloe.grib = icefloe.grib_codec:GribCodec\n")
    spec = Spec("t", seed=4)
    path = write_messages(tmp_path / "a.grib2", spec)
    schema = parse_schema_of(path)
    variable = schema.variables["t"]
    code = f"""
import json, sys, zarr, numpy
assert "icefloe" not in sys.modules
store = zarr.storage.MemoryStore()
document = {{"zarr_format": 3, "node_type": "array", "shape": [4, 5], "data_type": "float64", "attributes": {{}},
    "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [4, 5]}}}}, "fill_value": "NaN",
    "chunk_key_encoding": {{"name": "default"}}, "codecs": {list(variable.codecs)!r}}}
make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
store = zarr.storage.MemoryStore({{"zarr.json": make(json.dumps(document).encode()),
    "c/0/0": make(open({str(path)!r}, "rb").read())}})
print(repr(zarr.open_array(store, mode="r")[...].ravel().tolist()))
"""
    paths = os.pathsep.join([str(tmp_path), str(project / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(read_messages([path])[0]["values"].tolist())


def parse_schema_of(path: Path) -> Any:
    return parse_schema(SourceAccess().describe(normalise_url(path)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (make_message(Spec("u", seed=1)), "parameter"),
        (make_message(Spec("t", west=100.0)), "grid"),
        (make_message(Spec("t"))[:-40], "GRIB message"),
        (b"\x00" * 100, "starts with"),
        (b"IFV1 not a frame", "GRIB message"),
    ],
    ids=["parameter", "grid", "truncated", "zeros", "frame"],
)
def test_bytes_that_are_not_a_message_of_the_array_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = write_messages(tmp_path / "a.grib2", Spec("t"))
    variable = parse_schema_of(path).variables["t"]
    array = zarr.create_array(
        {},
        shape=(4, 5),
        chunks=(4, 5),
        dtype="f8",
        serializer=GribCodec.from_dict(dict(variable.codecs[0])),
        filters=[],
        compressors=[],
    )
    make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    array.store._store_dict["c/0/0"] = make(content)  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match=reason):
        array[...]


# Index files


@pytest.mark.long
@pytest.mark.parametrize("write", [write_inventory, write_index])
@pytest.mark.parametrize("number", [None, 3])
def test_an_index_gives_what_the_file_gives(tmp_path: Path, combine: Any, write: Any, number: int | None) -> None:
    paths = []
    for day in (1, 2):
        paths.append(_forecast(tmp_path / f"{day}.grib2", 20200100 + day, missing=day == 2, number=number))
        write(paths[-1])
    suffix = write(paths[0]).suffix
    _, sink = combine(str(tmp_path / f"*{suffix}"), mode="virtual")
    by_index = xr.open_zarr(sink.store(), consolidated=False, decode_timedelta=False).load()
    check_equals_eccodes(by_index, paths)
    _, sink = combine(str(tmp_path / "*.grib2"), mode="native")
    xr.testing.assert_identical(by_index, xr.open_zarr(sink.store(), consolidated=False, decode_timedelta=False).load())


@pytest.mark.parametrize("write", [write_inventory, write_index])
def test_only_one_message_of_each_kind_is_read(tmp_path: Path, write: Any) -> None:
    path = _forecast(tmp_path / "a.grib2")
    index = write(path)
    whole = parse_schema_of(path)
    content = bytearray(path.read_bytes())
    seen: set[Any] = set()
    start = 0
    while start < len(content):
        length = int.from_bytes(content[start + 8 : start + 16], "big")
        handle = eccodes.codes_new_from_message(bytes(content[start : start + length]))
        name, step = eccodes.codes_get(handle, "shortName"), eccodes.codes_get(handle, "stepRange")
        eccodes.codes_release(handle)
        kind = (name, step == "0", "-" in step and step)
        if kind in seen:
            # Nothing of the message is left but its first and last bytes.
            content[start + 20 : start + length - 4] = bytes(length - 24)
        seen.add(kind)
        start += length
    path.write_bytes(content)
    found = parse_schema_of(index)
    assert found.variables == whole.variables
    assert {n: c.digest for n, c in found.coordinates.items()} == {n: c.digest for n, c in whole.coordinates.items()}


@pytest.mark.parametrize("write", [write_inventory, write_index])
def test_an_index_that_contradicts_its_file_is_refused(tmp_path: Path, write: Any) -> None:
    path = _forecast(tmp_path / "a.grib2")
    index = write(path)
    content, text = path.read_bytes(), index.read_text()
    for changed in (content[:-100], content[:-4], content + make_message(Spec("v")), content[7:], b"GRIB" * 999, b""):
        path.write_bytes(changed)
        with pytest.raises(FormatError, match="is not the index of|cannot be read"):
            parse_schema_of(index)
    path.write_bytes(content)
    lines = text.splitlines()
    moved = {"idx": [("d=2020010100", "d=2020010200"), (":1000 mb:", ":900 mb:"), (":3 hour fcst:", ":4 hour fcst:")]}
    moved["index"] = [('"20200101"', '"20200102"'), ('"1000"', '"900"'), ('"param": "2t"', '"param": "2d"')]
    broken = [text.replace(*change) for change in moved[index.suffix[1:]]]
    broken += ["\n".join(lines[:-1]) + "\n", "\n".join(lines[:3]) + "\n", "\n".join([*lines[:4], "what:is"]) + "\n"]
    for each in broken:
        assert each != text
        index.write_text(each)
        with pytest.raises(FormatError, match=r"a\.grib2\.i(dx|ndex) "):
            parse_schema_of(index)
    path.unlink()
    index.write_text(text)
    with pytest.raises(ObjectNotFoundError, match="index of a GRIB file"):
        parse_schema_of(index)


def test_a_wrong_line_that_was_not_read_is_refused_when_its_message_is(tmp_path: Path) -> None:
    path = write_messages(tmp_path / "a.grib2", *(Spec(name, level=500, seed=3) for name in ("t", "u")))
    path.write_bytes(path.read_bytes() + make_message(Spec("u", level=850)))
    index = write_inventory(path)
    index.write_text(index.read_text().replace("u_2:850 mb", "t_2:850 mb"))
    repository = Repository.create(str(tmp_path / "repo"))
    ingest_local(index, repository, IngestOptions(mode="virtual", allow_missing=True))
    with pytest.raises(IcefloeError, match="the parameter 2/0/2/2"):
        _open(tmp_path / "repo", tmp_path)


def test_messages_of_other_grids_are_not_joined_by_reference(tmp_path: Path, combine: Any) -> None:
    # GRIB 1 and 2 have the same coordinates, but messages of different bytes.
    write_messages(tmp_path / "a.grib", Spec("t", level=500, seed=1))
    write_messages(tmp_path / "b.grib", Spec("t", 20200102, level=500, grid="regular_ll_grib1", seed=2))
    with pytest.raises(InvalidInputError, match="codecs"):
        combine(tmp_path, mode="virtual")
    _, sink = combine(tmp_path, mode="mixed", native_below_bytes=0)
    dataset = xr.open_zarr(sink.store(), consolidated=False, decode_timedelta=False).load()
    check_equals_eccodes(dataset, [tmp_path / "a.grib", tmp_path / "b.grib"])


@pytest.mark.parametrize("grid", ["regular_ll", "lambert", "healpix", "reduced_gg"])
def test_a_header_without_data_has_the_keys_of_its_message(grid: str) -> None:
    content = make_message(Spec("t", level=500, grid=grid, missing=True))
    short = without_data(content[:4096])
    assert short is not None
    assert without_data(content[:60]) is None
    found = []
    for each in (content, short):
        handle = eccodes.codes_new_from_message(each)
        keys = ("shortName", "md5GridSection", "numberOfPoints", "typeOfLevel", "level", "stepRange", "gridType")
        found.append([*(eccodes.codes_get(handle, key) for key in keys), eccodes.codes_get_size(handle, "values")])
        eccodes.codes_release(handle)
    assert found[0] == found[1]
