"""Each sentence of docs/security.md that promises something names its tests; and tests that no other module has."""

from __future__ import annotations

import ast
import datetime as dt
import functools
import os
import pickle
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zarr
import zstandard

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, printable
from icefloe.formats.dataset.parquet import LIMITS
from icefloe.formats.format import get_format
from icefloe.formats.header import FileType, encode_header
from icefloe.model.capabilities import SpecVersion

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
NO_PROMISE = "no promise"
"""Stands for tests where a sentence is advice, or says what is not protected."""
MOST_WITHOUT = 8
SECRET = "s3cr3t-key-that-nobody-may-see"


def _promises() -> list[tuple[str, str]]:
    """Each bullet and row of the sections that promise something, and what its comment names."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        if title == "What is left to you":
            continue
        items = re.findall(r"^\* (.+?)(?=^\*|^$|\Z)", body, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\|(?! \|)(?!-)(.+)\|$", body, re.MULTILINE)
        for item in [*items, *rows]:
            text, _, comment = item.partition("<!--")
            found.append((" ".join(text.split()), comment.partition("-->")[0].strip()))
    return found


@functools.cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))


def test_the_page_has_its_promises() -> None:
    assert len(_promises()) > 60
    assert PAGE.count("<!--") == len(_promises()), "a comment stands outside of the items that are looked at"


@pytest.mark.parametrize(("sentence", "comment"), _promises())
def test_every_promise_names_tests_that_exist(sentence: str, comment: str) -> None:
    assert comment, f"no test is named for: {sentence}"
    if comment == NO_PROMISE:
        return
    for named in comment.split():
        path, _, test = named.partition("::")
        assert (ROOT / "tests" / path).is_file(), f"{path} does not exist"
        assert test in _tests_of(ROOT / "tests" / path), f"{named} does not exist"


@pytest.mark.parametrize("sentence", [sentence for sentence, _ in _promises() if " | " not in sentence])
def test_an_item_is_one_sentence(sentence: str) -> None:
    plain = re.sub(r"`[^`]*`|\([^)]*\)", "x", sentence)
    assert plain.endswith(".") and plain.count(". ") == 0, "a second sentence needs an item and a test of its own"


def test_few_items_promise_nothing() -> None:
    assert sum(comment == NO_PROMISE for _, comment in _promises()) <= MOST_WITHOUT


# -- promises that no other module tests ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", list(SpecVersion))
def test_using_a_repository_unpickles_nothing(version: SpecVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    with repo.transaction("main", message="data", metadata={"a": [1, {"b": None}]}) as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4", attributes={"c": "d"})[:] = 7

    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    opened = icefloe.Repository.open(repo.storage)
    session = opened.readonly_session("main")
    assert zarr.open_array(session.store, path="a", mode="r")[:].tolist() == [7] * 4
    assert len(list(opened.ancestry(branch="main"))) == 2
    assert opened.verify().is_clean
    opened.plan_garbage_collection(dt.timedelta(days=1))


@pytest.mark.parametrize(
    "package",
    ["metadata_files", "chunks", "formats", "ledger", "maintenance", "manifests", "model", "session", "repository"],
)
def test_no_package_that_reads_repositories_can_unpickle(package: str) -> None:
    place = ROOT / "src" / "icefloe" / package
    sources = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert sources and all(path.is_file() for path in sources)
    for path in sources:
        text = path.read_text()
        assert not re.search(r"\b(pickle|marshal|shelve|cloudpickle|dill)\.(loads?|Unpickler|open)\b", text), path


@pytest.mark.parametrize("version", [SpecVersion.REPOSITORY, SpecVersion.ICECHUNK1, SpecVersion.ICECHUNK2])
def test_a_wide_window_of_zstd_is_refused(version: SpecVersion) -> None:
    number = 2 if version is SpecVersion.ICECHUNK2 else 1
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packer.compress(bytes(1000)) + packer.flush()
    assert zstandard.get_frame_parameters(body).window_size == 256 << 20
    with pytest.raises(FormatError):
        get_format(version).decode_manifest(encode_header(FileType.MANIFEST, number) + body)


@pytest.mark.parametrize("version", [SpecVersion.REPOSITORY, SpecVersion.STORE, SpecVersion.ICECHUNK1])
def test_a_huge_ref_is_refused(version: SpecVersion) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)

    async def grow_refs() -> int:
        keys = [item.key async for page in repo.storage.list("") for item in page]
        refs = [key for key in keys if key.startswith(("refs/branch.main/", "r/")) and key.endswith(".json")]
        for key in refs:
            await repo.storage.put(key, b'{"a":[' + b"[]," * (2 << 20) + b"[]]}")
        return len(refs)

    assert run_blocking(grow_refs()) == 1
    with pytest.raises(FormatError):
        icefloe.Repository.open(repo.storage).readonly_session("main")


def test_the_sizes_on_the_page_are_those_of_the_code() -> None:
    assert (LIMITS.free_bytes, LIMITS.max_bytes) == (64 << 20, 8 << 30)


def test_an_escape_sequence_is_shown_as_a_symbol() -> None:
    assert printable("a\x1b[2Jb\x1b]0;title\x07c") == "a␛b␛c"


@pytest.mark.long
def test_cat_writes_raw_bytes_to_a_pipe_only(tmp_path: Path) -> None:
    raw = b"\x1b[2J\x07\xff\x00ab"
    repo = icefloe.Repository.create(str(tmp_path / "r"))
    with repo.transaction("main", message="data") as store:
        array = zarr.create_array(store, name="a", shape=(9,), chunks=(9,), dtype="u1", compressors=None)
        array[:] = list(raw)
    command = [sys.executable, "-c", "from icefloe.cli.app import main; main()", "cat", str(tmp_path / "r"), "a/c/0"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == raw
    leader, follower = pty.openpty()
    try:
        subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, check=True)
        shown = os.read(leader, 10_000)
    finally:
        os.close(leader)
        os.close(follower)
    assert b"ab" in shown and b"\x1b" not in shown and b"\x07" not in shown and b"\xff" not in shown


def test_a_pickled_storage_holds_the_static_keys_it_was_given() -> None:
    storage = icefloe.s3_storage(bucket="b", region="us-east-1", access_key_id="AKIA", secret_access_key=SECRET)
    assert SECRET.encode() in pickle.dumps(storage)
