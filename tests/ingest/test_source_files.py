"""Files in columns are the files, in every part and order."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icefloe.ingest.record import Fingerprints
from icefloe.ingest.source_files import Column, SourceFiles, in_natural_order, natural_key
from icefloe.ingest.source_model import SourceFile

_PARTS = st.sampled_from(["a", "b", "ab", "0", "9", "10", "007", "/", "\0", "é", "٣", "²", "."])
TEXTS = st.lists(_PARTS, max_size=7).map("".join)
VERSIONS = st.none() | st.integers(0, 2**64).map(str) | st.sampled_from(["", "0", "00", "-1", "v1", "١"])
FILES = st.lists(
    st.builds(
        SourceFile,
        TEXTS,
        st.integers(0, 2**55),
        st.none() | TEXTS,
        st.none() | st.integers(-(2**63), 2**63 - 1),
        VERSIONS,
    ),
    max_size=12,
)


def parts_of(text: str) -> tuple[Any, ...]:
    """The natural order as its definition: numbers before texts, numbers by value, texts by character."""
    found = enumerate(re.split(r"(\d+)", text))
    return tuple((0, int(part), "") if n % 2 else (1, 0, part) for n, part in found if part)


@given(st.lists(TEXTS, max_size=8))
def test_the_natural_order_is_that_of_the_numbers_and_texts(texts: list[str]) -> None:
    expected = sorted(sorted(texts), key=parts_of)
    assert in_natural_order(texts) == expected
    assert sorted(sorted(texts), key=natural_key) == expected


@given(FILES, st.data())
def test_columns_of_files_are_the_files(files: list[SourceFile], data: st.DataObject) -> None:
    columns = SourceFiles.of(iter(files))
    assert columns == files and [*columns] == files and len(columns) == len(files)
    assert [columns[index] for index in range(-len(files), len(files))] == files * 2
    assert columns.urls == [file.url for file in files]
    assert columns.total_bytes() == sum(file.size_bytes for file in files)
    first, end = sorted(data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12))))
    part = columns[first:end]
    assert part == files[first:end] == pickle.loads(pickle.dumps(part)) and part[:1] == files[first:end][:1]
    assert SourceFiles.join([columns[:first], columns[first:end], columns[end:]]) == files
    rows = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=12)) if files else []
    assert columns.take(np.array(rows, dtype=np.intp)) == [files[row] for row in rows]
    found: dict[str, SourceFile] = {}
    for file in files:
        found.setdefault(file.url, file)
    assert columns.in_natural_order() == [found[url] for url in in_natural_order(found)]


def test_neighbours_are_joined_without_a_copy() -> None:
    files = SourceFiles.of(SourceFile(f"file:///{n}", n) for n in range(3000))
    assert SourceFiles.join([files[:1000], files[1000:]]).batch is files.batch


@given(st.lists(st.none() | TEXTS, max_size=8) | st.lists(st.integers(0, 5) | st.none(), max_size=8))
def test_a_pickled_column_is_a_list(values: list[Any]) -> None:
    column = Column[Any](pa.array(values))
    assert pickle.loads(pickle.dumps(column)) == values == list(column)
    assert column[::-1] == values[::-1] and column[1:3] == values[1:3] and (column == [*values, 1]) is False


@given(st.lists(st.binary(min_size=8, max_size=8)), st.lists(st.binary(min_size=8, max_size=8)))
def test_fingerprints_are_a_set(left: list[bytes], right: list[bytes]) -> None:
    ours, theirs = (Fingerprints.parse(b"".join(each)) for each in (left, right))
    assert ours == {*left} and len(ours) == len({*left}) and [*ours] == sorted({*left})
    assert ours.union(theirs) == {*left, *right} and ours.difference(theirs) == {*left} - {*right}
    assert Fingerprints.parse(bytes(ours)) == ours and all((each in ours) == (each in left) for each in right)
