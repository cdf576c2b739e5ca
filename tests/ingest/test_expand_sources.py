"""Which files a person means."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.parsers.registry import try_schema
from icefloe.ingest.source_files import natural_key
from icefloe.ingest.source_model import SourceFailure
from icefloe.ingest.sources import expand_sources
from icefloe.storage import in_memory_storage


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_globs_folders_and_lists_name_each_file_once_in_natural_order(tmp_path: Path) -> None:
    _touch(tmp_path, "day10.nc", "day9.nc", "day1.nc", "notes.md", "sub/day2.nc")
    (tmp_path / "all.txt").write_text(f"# the days\n{tmp_path}/day9.nc\n\n{tmp_path}/day1*.nc\n")
    names = [f.name for f in expand_sources([f"{tmp_path}/day*.nc", tmp_path / "day9.nc"])]
    assert names == ["day1.nc", "day9.nc", "day10.nc"]
    assert [f.name for f in expand_sources(str(tmp_path / "all.txt"))] == names
    assert [f.name for f in expand_sources(tmp_path)] == [*names, "day2.nc"]
    assert len(expand_sources(f"{tmp_path}/**/*.nc")) == 4
    assert expand_sources(tmp_path / "day9.nc")[0].size_bytes == 1


def test_a_zarr_store_is_one_source_and_its_chunks_are_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        zarr.create_array(tmp_path / f"{name}.zarr", name="x", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    assert [f.name for f in expand_sources(tmp_path / "a.zarr")] == ["a.zarr"]
    assert [f.name for f in expand_sources(tmp_path)] == ["a.zarr", "b.zarr"]
    assert len(expand_sources(f"{tmp_path}/*.zarr")) == 2


@pytest.mark.parametrize("what", ["gone.nc", "*.nc", "nothing/"])
def test_what_is_not_there_is_named(tmp_path: Path, what: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=what.strip("*/")):
        expand_sources(f"{tmp_path}/{what}")


def test_a_link_to_nothing_is_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.nc").symlink_to(tmp_path / "nowhere")
    [file] = expand_sources(tmp_path)
    failure = try_schema(file)
    assert isinstance(failure, SourceFailure) and "a.nc" in failure.reason
    with pytest.raises(ObjectNotFoundError, match=r"a\.nc"):
        expand_sources(str(tmp_path / "*.nc"))


def test_no_sources_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        expand_sources([])
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(InvalidInputError, match=r"empty\.txt"):
        expand_sources(tmp_path / "empty.txt")


def test_globs_work_on_any_storage() -> None:
    storage = in_memory_storage()
    for key in ("y/2020/a1.nc", "y/2020/a2.nc", "y/2021/a1.nc", "y/2021/b.txt"):
        run_blocking(storage.put(key, b"12345"))
    access = SourceAccess({"s3://bucket": storage})
    assert [f.url for f in expand_sources("s3://bucket/y/*/a1.nc", access)] == [
        "s3://bucket/y/2020/a1.nc",
        "s3://bucket/y/2021/a1.nc",
    ]
    assert len(expand_sources("s3://bucket/**/*.nc", access)) == 3
    assert len(expand_sources("s3://bucket/y/2020/a[2-3].nc", access)) == 1
    assert len(expand_sources("s3://bucket/y", access)) == 3
    assert expand_sources("s3://bucket/y/2020/a1.nc", access)[0].size_bytes == 5
    with pytest.raises(ObjectNotFoundError):
        expand_sources("s3://bucket/z/*.nc", access)


def test_paths_with_odd_characters_come_back_from_their_url(tmp_path: Path) -> None:
    _touch(tmp_path, "a b#c%d[1].nc")
    (found,) = expand_sources(tmp_path / "a b#c%d[1].nc")
    assert SourceAccess().read(found.url) == b"x"
    assert normalise_url(tmp_path / "x").startswith("file:///")


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=20))
def test_numbers_in_names_sort_as_numbers(numbers: list[int]) -> None:
    assert sorted((f"f{n}.nc" for n in numbers), key=natural_key) == [f"f{n}.nc" for n in sorted(numbers)]


def test_an_empty_folder_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.nc").mkdir()
    with pytest.raises(ObjectNotFoundError, match=r"the folder .*a.nc is empty"):
        expand_sources(tmp_path / "a.nc")
    with pytest.raises(ObjectNotFoundError, match="there is no file"):
        expand_sources(tmp_path / "b.nc")
