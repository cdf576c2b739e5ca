"""NetCDF4 and HDF5 files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, UnknownFormatError
from icefloe.ingest.access import normalise_url
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.registry import open_source, parse_schema, parse_source, try_schema
from icefloe.ingest.source_model import SourceFailure, SourceFile
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.zarr_documents import attribute_pairs, fill_value_document


def _write_netcdf4(path: Path) -> None:
    rng = np.random.default_rng(1)
    with netCDF4.Dataset(path, "w") as file:
        file.title = "trial"
        file.createDimension("time", None)
        file.createDimension("lat", 13)
        file.createDimension("nv", 2)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "hours since 2000-01-01"
        time[:] = np.arange(10.0)
        file.createVariable("lat", "f4", ("lat",))[:] = np.linspace(-60, 60, 13)
        packed = file.createVariable(
            "packed", "i2", ("time", "lat"), zlib=True, shuffle=True, fletcher32=True, chunksizes=(4, 5), fill_value=-9
        )
        packed.set_auto_maskandscale(False)
        packed.scale_factor = 0.5
        packed[:] = rng.integers(-100, 100, (10, 13))
        file.createVariable("zs", "f4", ("time", "lat"), compression="zstd", chunksizes=(3, 13))[:] = rng.random(
            (10, 13)
        )
        file.createVariable("bz", "i4", ("time", "lat"), compression="bzip2", chunksizes=(3, 13))[:] = 7
        file.createVariable("bounds", "f8", ("lat", "nv"))[:] = rng.random((13, 2))
        file.createVariable("big", ">f4", ("lat",), endian="big")[:] = rng.random(13)
        file.createVariable("name", str, ("nv",))[:] = np.array(["north", "söuth"], object)
        file.createVariable("crs", "i4", ())[...] = 3
        file.createVariable("never_written", "f4", ("time", "lat"), chunksizes=(5, 5))
        group = file.createGroup("deep").createGroup("er")
        group.createVariable("q", "f4", ("lat",), zlib=True)[:] = rng.random(13)


def test_references_of_a_netcdf4_file_decode_to_its_values(
    tmp_path: Path, describe: Any, check_references: Any
) -> None:
    _write_netcdf4(tmp_path / "a.nc")
    schema = check_references(describe(tmp_path / "a.nc"))
    assert schema.variables["packed"].dims == ("time", "lat")
    assert schema.variables["packed"].chunks == (4, 5)
    assert schema.variables["packed"].attributes == {"_FillValue": -9, "scale_factor": 0.5}
    assert schema.variables["deep/er/q"].dims == ("lat",)
    assert schema.variables["name"].not_virtual is not None
    assert set(schema.groups) == {"", "deep", "deep/er"}
    assert schema.groups[""] == {"title": "trial"}
    assert schema.coordinates["time"].step == 1.0 and schema.coordinates["time"].direction == 1
    assert "nv" not in schema.variables


def test_a_chunk_that_skipped_its_filter_is_written_by_value(
    tmp_path: Path, describe: Any, check_references: Any
) -> None:
    path = tmp_path / "a.h5"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    noise[:32] = 3
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=noise, chunks=(32, 32), compression="gzip")
        # A chunk written past the filters carries a mask that says so.
        file["x"].id.write_direct_chunk((32, 32), noise[32:, 32:].tobytes(), filter_mask=1)
    check_references(describe(path))
    found = parse_source(describe(path)).references["x"]
    assert len(found.table) + len(found.by_value) == 4
    assert [1, 1] in found.by_value.tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (7, 5)}, {"chunks": (7, 5), "compression": "lzf"}, {"chunks": (10, 10), "scaleoffset": 3}],
)
def test_plain_hdf5_gets_numbered_dimensions(
    tmp_path: Path, describe: Any, check_references: Any, options: dict[str, Any]
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(200).reshape(10, 20), **options)
        file.create_dataset("square", data=np.arange(16).reshape(4, 4))
    schema = check_references(describe(path))
    assert len(set(schema.variables["square"].dims)) == 2
    assert schema.variables["x"].not_virtual is None


def test_compact_strings_enums_and_odd_types_are_described_or_left_out(
    tmp_path: Path, describe: Any, check_references: Any
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("flags", data=np.array([True, False]))
        file.create_dataset("codes", data=[0, 1], dtype=h5py.enum_dtype({"A": 0, "B": 1}, basetype="u1"))
        file.create_dataset("fixed", data=np.array([b"ab", b"c"]))
        file.create_dataset("wave", data=np.array([1 + 2j], dtype="c8"))
        file.create_dataset("pair", data=np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]))
        file.create_dataset("nothing", data=h5py.Empty("f4"))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((5,))
        h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, plist)
        file["compact"][:] = np.arange(5)
    schema = check_references(describe(path))
    assert set(schema.skipped) == {"pair", "nothing"}
    assert schema.variables["flags"].dtype == "|b1"
    assert len(parse_source(describe(path)).references["compact"].by_value) == 1


_ODD_TYPES = {
    "compound": np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]),
    "ragged": np.array([np.arange(2), np.arange(3)], dtype=h5py.vlen_dtype("i4")),
    "opaque": np.array([b"abc", b"de"], dtype="V3"),
    "wide": np.zeros(2, dtype=np.longdouble),
    "nothing": h5py.Empty("f4"),
}


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize(
    "kind", [kind for kind in _ODD_TYPES if kind != "wide" or np.dtype(np.longdouble).itemsize > 8]
)
def test_a_variable_that_zarr_cannot_hold_is_refused_unless_it_is_dropped(tmp_path: Path, kind: str, mode: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(3.0)
        made = file.create_group("g").create_dataset("odd", data=_ODD_TYPES[kind])
        file.create_dataset("pointers", data=[file["v"].ref], dtype=h5py.ref_dtype)
        assert made.name == "/g/odd"
    repo = Repository.create(in_memory_storage())
    source = str(tmp_path / "a.h5")
    with pytest.raises(InvalidInputError, match=r"g/odd: .*drop_variables \(--drop-variables\)"):
        ingest_local(source, repo, IngestOptions(mode=mode))
    with pytest.raises(InvalidInputError, match=r"g/odd: .*drop_variables \(--drop-variables\)"):
        ingest_local(source, repo, IngestOptions(mode=mode, variables=("odd",)))
    assert [info.message for info in repo.ancestry(branch="main")] == ["Repository initialized"]
    chosen = ingest_local(source, repo, IngestOptions(mode=mode, variables=("v",)), dry_run=True)
    assert chosen.plan is not None and set(chosen.plan.arrays) == {"v"}
    for name in ("odd", "g/odd"):
        result = ingest_local(source, repo, IngestOptions(mode=mode, group=name, drop_variables=(name,)))
        assert result.plan is not None and set(result.plan.arrays) == {f"{name}/v"}
        # References point to members of their file. xarray leaves them out too.
        assert "pointers" in {issue.variable for issue in result.plan.report.issues if issue.severity == "note"}


def test_a_truncated_file_is_named_with_its_reason(tmp_path: Path, describe: Any) -> None:
    _write_netcdf4(tmp_path / "a.nc")
    data = (tmp_path / "a.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=r"cut\.nc.*truncated"):
        parse_schema(describe(tmp_path / "cut.nc"))
    failure = try_schema(describe(tmp_path / "cut.nc"))
    assert isinstance(failure, SourceFailure) and failure.error == "FormatError"


def test_files_of_no_format_and_missing_files_are_told_apart(tmp_path: Path, describe: Any) -> None:
    (tmp_path / "a.nc").write_bytes(b"not a file of data")
    (tmp_path / "empty.nc").write_bytes(b"")
    for name in ("a.nc", "empty.nc"):
        with pytest.raises(UnknownFormatError, match=name):
            parse_schema(describe(tmp_path / name))
    with pytest.raises(ObjectNotFoundError, match="gone"):
        open_source(SourceFile(normalise_url(tmp_path / "gone.nc"), 10), format="hdf5")


def test_a_file_behind_a_user_block_is_read(tmp_path: Path, describe: Any, check_references: Any) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("x", data=np.arange(100.0), chunks=(10,), compression="gzip")
        file.create_dataset("y", data=np.arange(100.0))
    check_references(describe(path))


def test_large_contiguous_data_are_cut_into_runs(
    tmp_path: Path, describe: Any, check_references: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.ingest.chunk_grids.CONTIGUOUS_CHUNK_BYTES", 50_000)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(20 * 20 * 50, dtype="f8").reshape(20, 20, 50))
    schema = check_references(describe(path))
    assert schema.variables["x"].chunks == (5, 20, 50)


def _write_clouds(path: Path, hour: int, members: dict[str, int]) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("time", data=[float(hour)]).make_scale("time")
        file.create_dataset("clouds", data=np.array([1], "u1"), dtype=h5py.enum_dtype(members, "u1"), chunks=(1,))
        file["clouds"].dims[0].attach_scale(file["time"])
    return path


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("how", ["once", "append"])
def test_enumerations_with_other_members_are_not_joined(tmp_path: Path, mode: Any, how: str) -> None:
    paths = [
        _write_clouds(tmp_path / "a.h5", 0, {"clear": 0, "cloudy": 1}),
        _write_clouds(tmp_path / "b.h5", 1, {"cloudy": 1, "clear": 0}),
        _write_clouds(tmp_path / "c.h5", 2, {"clear": 1, "cloudy": 0}),
    ]
    repository = Repository.create(in_memory_storage())
    ingest_local(paths[:2], repository, IngestOptions(mode=mode))
    assert _stored_attributes(repository, "clouds")["enum_members"] == "clear=0, cloudy=1"
    options = IngestOptions(mode=mode, append_dim="time")
    if how == "once":
        repository, options = Repository.create(in_memory_storage()), IngestOptions(mode=mode)
    with pytest.raises(InvalidInputError, match="clouds: enum_members: expected clear=0, cloudy=1, found cloudy=0"):
        ingest_local(paths if how == "once" else paths[2:], repository, options)


def _stored_attributes(repository: Repository, name: str) -> dict[str, Any]:
    return dict(zarr.open_array(repository.readonly_session("main").store, path=name, mode="r").attrs)


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize("mode", ["native", "mixed", "virtual"])
@pytest.mark.parametrize(
    ("fill", "rows"),
    [
        (b"\0", [b"ab\0", b"abc"]),
        (b"\0", [b"\0\0\0", b"abc"]),
        (b" ", [b"ab ", b"   "]),
        (b"x", [b"x\0\0", b"abc"]),
        (None, [b"\0\0\0", b"abc"]),
    ],
)
def test_characters_with_a_fill_value_are_those_of_xarray_or_refused(
    tmp_path: Path, format: Any, mode: Any, fill: bytes | None, rows: list[bytes]
) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.createDimension("station", 2)
        file.createDimension("length", 3)
        names = file.createVariable("name", "S1", ("station", "length"), fill_value=fill)
        names.set_auto_mask(False)
        names[:] = np.array(rows, "S3").view("S1").reshape(2, 3)
    expected = xr.open_dataset(path).name.values.tolist()
    repository = Repository.create(in_memory_storage())
    if any(value != value for value in expected):
        with pytest.raises(InvalidInputError, match="name: .*Zarr has no missing text"):
            ingest_local(path, repository, IngestOptions(mode=mode))
        return
    result = ingest_local(path, repository, IngestOptions(mode=mode))
    assert result.plan is not None
    allowed = dict.fromkeys(result.plan.containers)
    reader = Repository.open(repository.storage, authorize_virtual_chunk_access=allowed)
    found = xr.open_zarr(reader.readonly_session("main").store, consolidated=False)
    assert found.name.values.tolist() == expected


def _fixed_text(text: bytes, length: int, padding: int) -> Any:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(length)
    kind.set_strpad(padding)
    return text, kind


_ATTRIBUTE_VALUES = st.one_of(
    st.sampled_from(["m", "km", "", "grüße", np.float32(1), np.float64(1), np.int16(1), np.int64(1), True, 1.5, -0.0]),
    st.sampled_from([["a", "b"], ["a"], ["a", "b", "c"], [1, 2], np.array([1.0], "f4"), np.array([], "i4")]),
    st.sampled_from([h5py.Empty("f4"), h5py.Empty("S3"), np.bytes_(b"m"), np.bytes_(b"m  "), np.void(b"xy")]),
    st.sampled_from([np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.array([[1, 2], [3, 4]], ">i2")]),
    st.builds(
        _fixed_text,
        st.sampled_from([b"m", b"m ", b"km\x00x"]),
        st.integers(4, 5),
        st.sampled_from([h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD]),
    ),
)


@st.composite
def _datasets(draw: st.DrawFn) -> dict[str, Any]:
    filters = draw(st.sampled_from([{}, {"compression": "gzip"}, {"compression": "gzip", "compression_opts": 9}]))
    chunks = draw(st.sampled_from([None, (2,), (3,)]))
    return {
        "dtype": draw(st.sampled_from(["<f4", ">f4", "<f8", "<i2", "<u2", "S3", "bool"])),
        "shape": draw(st.sampled_from([(4,), (5,)])),
        "chunks": chunks,
        "fillvalue": draw(st.sampled_from([None, 0, 1])),
        "attributes": draw(
            st.dictionaries(st.sampled_from(["units", "scale_factor", "z", "a"]), _ATTRIBUTE_VALUES, max_size=3)
        ),
        "track_order": draw(st.booleans()),
        **(filters if chunks is not None else {}),
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(_datasets(), min_size=2, max_size=6))
def test_files_that_are_read_after_similar_files_are_described_as_h5py_reads_them(
    tmp_path: Path, describe: Any, contents: list[dict[str, Any]]
) -> None:
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.h5"
        options = {key: value for key, value in content.items() if key != "attributes"}
        if options["fillvalue"] is not None:
            options["fillvalue"] = np.array(options["fillvalue"]).astype(options["dtype"])[()]
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("v", **options)
            for name, value in content["attributes"].items():
                if isinstance(value, tuple):
                    text, kind = value
                    space = h5py.h5s.create(h5py.h5s.SCALAR)
                    attribute = h5py.h5a.create(dataset.id, name.encode(), kind, space)
                    attribute.write(np.array(text, dtype=f"S{kind.get_size()}"))
                else:
                    dataset.attrs[name] = value
    for number, content in enumerate(contents):
        variable = parse_schema(describe(tmp_path / f"{number}.h5")).variables["v"]
        with h5py.File(tmp_path / f"{number}.h5") as file:
            dataset = file["v"]
            raw = {name: each for name, each in dataset.attrs.items() if not isinstance(each, h5py.Empty)}
            dtype = dataset.dtype.str
            assert list(variable.attributes.items()) == list(attribute_pairs(raw, dtype).items())
            assert repr(variable.attributes) == repr(attribute_pairs(raw, dtype))
            assert (variable.dtype, variable.shape) == (dtype, dataset.shape)
            assert variable.fill_value == fill_value_document(dtype, dataset.fillvalue)
            assert variable.chunks == (dataset.chunks or dataset.shape)
            levels = [each["configuration"]["level"] for each in variable.codecs if each["name"] == "numcodecs.zlib"]
            assert levels == ([] if dataset.compression is None else [dataset.compression_opts])
            assert content["shape"] == variable.shape
