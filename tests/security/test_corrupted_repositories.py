"""Every file of a small repository of every generation, broken in many ways: only errors of this library come out."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr
import zstandard
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import IcefloeError
from icefloe.formats.header import HEADER_BYTES, has_magic
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.memory import MemoryStorage

ROUNDS = 2
"""Mutations of each kind for every file."""
CASES = 40
"""Corruptions of each generation in the ordinary run; the thorough one tries all of many seeds."""
SECONDS = 10.0
Files = dict[str, bytes]


@functools.cache
def healthy(version: SpecVersion) -> tuple[tuple[str, bytes], ...]:
    """The files of a repository with every kind of them."""
    storage = MemoryStorage()
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 16
    config.attributes_threshold_bytes = 100
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("file:///nowhere/", icefloe.local_filesystem_store("/nowhere"), name="data")
    )
    repo = icefloe.Repository.create(storage, config, spec_version=version)
    with repo.transaction("main", message="first", metadata={"by": "someone", "n": [1, {"x": None}]}) as store:
        zarr.create_group(store, attributes={"title": "t" * 200})
        zarr.create_group(store, path="deep", attributes={"a": 1})
        array = zarr.create_array(
            store, name="deep/native", shape=(40, 6), chunks=(10, 3), dtype="i4", dimension_names=["x", "y"]
        )
        array[:] = np.arange(240).reshape(40, 6)
        zarr.create_array(store, name="small", data=np.arange(8, dtype="u1"), chunks=(4,), compressors=None)
        zarr.create_array(store, name="virtual", shape=(8,), chunks=(8,), dtype="u1", compressors=None)
        store.set_virtual_ref("virtual/c/0", "file:///nowhere/x.nc", offset=0, length=8)
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="second") as store:
        zarr.open_array(store, path="deep/native")[0] = 7
    repo.create_branch("side", repo.lookup_branch("main"))
    with repo.transaction("side", message="third") as store:
        zarr.open_array(store, path="small")[0] = 9

    async def everything() -> Files:
        keys = [item.key async for page in storage.list("") for item in page]
        return {key: await storage.get(key) for key in keys}

    return tuple(sorted(run_blocking(everything()).items()))


def _flipped(rng: random.Random, data: bytes) -> bytes:
    broken = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def _replaced(rng: random.Random, data: bytes) -> bytes:
    start, count = rng.randrange(len(data)), rng.choice([1, 2, 4, 8])
    new = rng.choice([b"\0" * count, b"\xff" * count, rng.randbytes(count), b"\x80" * count])
    return data[:start] + new + data[start + count :]


def _removed(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice([1, 4, 16]) :]


def _truncated(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


MUTATIONS = (_flipped, _replaced, _removed, _truncated)
VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    2**64,
    10**400,
    "",
    "\ud800",
    "../x",
    "\0",
    [],
    [[]],
    {},
    {"x": {}},
    "A" * 20,
    "é" * 9,
]


def _json_mutations(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """The document with one value exchanged for one of another type."""
    try:
        document = json.loads(data)
    except ValueError:
        return
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, dict | list):
                visit(inner)

    if isinstance(document, dict | list):
        visit(document)
    for _ in range(3 * ROUNDS if places else 0):
        holder, key = rng.choice(places)
        before = holder[key]
        if rng.random() < 0.2 and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = rng.choice(VALUES)
        yield json.dumps(document).encode()
        holder[key] = before
    yield data.replace(b'"', b'"\xc3', 1)
    yield b"[" * 100_000


def corruptions(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """A file broken in many ways; a compressed one also inside, where checksums do not catch it."""
    yield from (b"", b"\0", b"{}", b"[]", b"null", b"\xff\xfe", data + data)
    if not data:
        return
    for mutate in MUTATIONS:
        for _ in range(ROUNDS):
            yield mutate(rng, data)
    yield from _json_mutations(rng, data)
    if has_magic(data):
        body = zstandard.ZstdDecompressor().decompress(data[HEADER_BYTES:], max_output_size=1 << 24)
        for mutate in MUTATIONS:
            for _ in range(3 * ROUNDS):
                yield data[:HEADER_BYTES] + zstandard.compress(mutate(rng, body))


def use(storage: MemoryStorage) -> set[str]:
    """Everything that people do with a repository of others; the errors it gave."""
    met: set[str] = set()

    def attempt(call: Any) -> Any:
        try:
            return call()
        except IcefloeError as error:
            met.add(type(error).__name__)
            return None

    repo = attempt(lambda: icefloe.Repository.open(storage))
    attempt(lambda: icefloe.Repository.fetch_config(storage))
    attempt(lambda: icefloe.Repository.exists(storage))
    if repo is None:
        return met
    attempt(repo.list_branches)
    attempt(repo.list_tags)
    attempt(lambda: repo.ancestry_graph(limit=10).text())
    prototype = default_buffer_prototype()
    for where in ({"branch": "main"}, {"branch": "side"}, {"tag": "v1"}):
        attempt(lambda where=where: [repr(info) for info in repo.ancestry(**where)])
        session = attempt(lambda where=where: repo.readonly_session(**where))
        if session is None:
            continue

        async def keys(session: icefloe.Session = session) -> list[str]:
            return [key async for key in session.store.list()]

        for key in attempt(lambda keys=keys: run_blocking(keys())) or ():
            attempt(lambda key=key, session=session: run_blocking(session.store.get(key, prototype)))
    attempt(lambda: repo.diff(from_tag="v1", to_branch="side"))
    attempt(lambda: str(repo.verify()))
    attempt(lambda: repo.plan_garbage_collection(dt.timedelta(0)))
    attempt(lambda: repo.garbage_collect(dt.timedelta(0), dry_run=True))
    attempt(lambda: str(repo.plan_expiry(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))))
    attempt(lambda: repo.total_chunks_storage())
    return met


def _filled(files: Files) -> MemoryStorage:
    storage = MemoryStorage()

    async def fill() -> None:
        for key, data in files.items():
            await storage.put(key, data)

    run_blocking(fill())
    return storage


@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_healthy_repository_gives_no_errors(version: SpecVersion) -> None:
    # Virtual files are not authorised, and are nowhere.
    assert use(_filled(dict(healthy(version)))) <= {"ContainerError"}


def check_corruptions(version: SpecVersion, seed: int, most: int | None) -> None:
    """Use a repository with one broken file, for many of them."""
    files = dict(healthy(version))
    rng = random.Random(f"{version.value} {seed}")
    cases = [(key, broken) for key, data in files.items() for broken in corruptions(rng, data)]
    rng.shuffle(cases)
    tried = refused = 0
    for key, broken in cases[:most]:
        started = time.perf_counter()
        try:
            met = use(_filled(files | {key: broken}))
        except Exception as error:
            found = f"{key}: {type(error).__name__}: {error}; seed {seed}, {broken[:300]!r}"
            raise AssertionError(found) from error
        assert time.perf_counter() - started < SECONDS, (key, broken[:300])
        tried += 1
        refused += bool(met - {"ContainerError"})
    assert refused > tried // 4


@pytest.mark.long
@pytest.mark.parametrize("version", list(SpecVersion))
def test_no_broken_file_gives_a_foreign_error_or_holds_anybody_up(version: SpecVersion) -> None:
    check_corruptions(version, 0, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("version", list(SpecVersion))
def test_no_broken_file_of_very_many_does(version: SpecVersion, seed: int) -> None:
    check_corruptions(version, seed, None)


@pytest.mark.every_generation
@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_missing_file_gives_no_foreign_error(version: SpecVersion) -> None:
    files = dict(healthy(version))
    for key in files:
        use(_filled({name: data for name, data in files.items() if name != key}))


@pytest.mark.long
@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_file_in_the_place_of_another_gives_no_foreign_error(version: SpecVersion) -> None:
    # Every exchange within a folder, because ids are random: a choice of some would differ from run to run.
    files = dict(healthy(version))
    folders: dict[str, list[str]] = {}
    for key in files:
        folders.setdefault(key.split("/")[0], []).append(key)
    for key, other in itertools.chain.from_iterable(itertools.permutations(keys, 2) for keys in folders.values()):
        use(_filled(files | {key: files[other]}))


@pytest.mark.slow
@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_file_of_another_kind_gives_no_foreign_error(version: SpecVersion) -> None:
    files = dict(healthy(version))
    for key, other in itertools.permutations(files, 2):
        use(_filled(files | {key: files[other]}))
