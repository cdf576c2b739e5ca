"""Zarr's own contract for stores, on every kind of storage.

A repository holds Zarr v3 hierarchies and nothing else, so that the contract's keys need a node that they belong to.
Most of its keys are chunk keys of some legal array (`foo/0/0` of an array `foo` in the Zarr v2 key encoding, `c/0` of
an array at the root): `set` creates that array first and the test runs as it is. A test is overridden only where it
writes something that no hierarchy can hold; each such test says what.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator
from zarr.testing.store import StoreTests

import icefloe
from icefloe import icechunk
from icefloe.storage.contract import Storage
from icefloe.store import IcechunkStore

PROTOTYPE = default_buffer_prototype()
GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'
SOME = b"\x01\x02\x03\x04"


def array_document(ndim: int, encoding: str = "default", separator: str = "/") -> bytes:
    """An array with 100 chunks in each dimension."""
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [100] * ndim,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * ndim}},
        "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    return json.dumps(document).encode()


ARRAYS = {
    "c/0": ("/", array_document(1)),
    "c/0/0": ("/", array_document(2)),
    "c/0/1": ("/", array_document(2)),
    "c/0/2": ("/", array_document(2)),
    "foo/c/0.0": ("/foo/c", array_document(2, "v2", ".")),
    "foo/0/0": ("/foo", array_document(2, "v2", "/")),
    "foo/c/0": ("/foo", array_document(1)),
    **{str(n): ("/", array_document(1, "v2", "/")) for n in range(10)},
}
"""The array that a key of the contract's tests is a chunk of."""


async def set_all(store: Store, values: Iterable[tuple[str, bytes]]) -> None:
    for key, value in values:
        await store.set(key, cpu.Buffer.from_bytes(value))


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer
    encoding = "v2"

    def document(self, ndim: int, separator: str = "/") -> bytes:
        """An array in the key encoding of this store's tests."""
        return array_document(ndim, self.encoding, separator if self.encoding == "v2" else "/")

    def key(self, path: str, *coords: int, separator: str = "/") -> str:
        """The key of a chunk of such an array."""
        if self.encoding == "v2":
            return f"{path}/{separator.join(map(str, coords))}"
        return "/".join([path, "c", *map(str, coords)])

    def prepare(self, store: IcechunkStore, key: str) -> None:
        """Create the array that a chunk key belongs to."""
        path, document = ARRAYS[key]
        state = store.session.state
        if state.tree.find(path) is None:
            state.write_document(path, document)

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        self.prepare(store, key)
        await store.session.keyspace.write(key, value.to_bytes())

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(await store.session.keyspace.fetch(key))

    @pytest.fixture
    def store_kwargs(self, place: Storage) -> dict[str, Any]:
        return {"session": icefloe.Repository.create(place).writable_session("main"), "read_only": False}

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store).startswith("IcechunkStore(<icefloe.Session writable")
        assert "icefloe" in str(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes and store.supports_deletes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    # The key `foo` names nothing; and a writable session does not pickle, its forks do.
    async def test_serializable_store(self, store: IcechunkStore) -> None:
        self.prepare(store, "c/0")
        fork = store.session.fork().store
        copy = pickle.loads(pickle.dumps(fork))
        assert copy.read_only == fork.read_only
        await copy.set("c/0", self.buffer_cls.from_bytes(SOME))
        again = pickle.loads(pickle.dumps(copy))
        assert (await again.get("c/0", prototype=PROTOTYPE)).to_bytes() == SOME
        store.session.merge(again.session)
        assert (await store.get("c/0", prototype=PROTOTYPE)).to_bytes() == SOME
        store.session.commit("merged")
        reader = pickle.loads(pickle.dumps(store))
        assert reader == store and reader.read_only
        assert (await reader.get("c/0", prototype=PROTOTYPE)).to_bytes() == SOME

    # The key `foo` names nothing.
    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        reader = await self.store_cls.open(**{**open_kwargs, "read_only": True})
        writer = reader.with_read_only(read_only=False)
        assert reader.read_only and not writer.read_only and not writer._is_open
        await writer.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        await writer.delete("zarr.json")
        for each in (reader, writer.with_read_only(read_only=True)):
            with pytest.raises(ValueError, match="store was opened in read-only mode and does not support writing"):
                await each.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
            with pytest.raises(ValueError, match="store was opened in read-only mode and does not support writing"):
                await each.delete("zarr.json")

    # `cc/0` cannot be beside an array at the root: arrays `c` and `cc` hold the same chunk keys, and a document each.
    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        documents = {"c/zarr.json": self.document(2), "cc/zarr.json": self.document(1)}
        chunks = [self.key("c", *coords) for coords in ((0, 0), (0, 1), (1, 0), (1, 1))]
        await set_all(store, [*documents.items(), *((key, SOME) for key in [*chunks, self.key("cc", 0)])])
        expected = len(documents["c/zarr.json"]) + len(SOME) * len(chunks)
        assert await store.getsize_prefix("c") == expected
        assert await store.getsize_prefix("c/") == expected
        assert await store.getsize_prefix(self.key("c", 0)) == 2 * len(SOME)
        assert await store.getsize_prefix("") == expected + len(documents["cc/zarr.json"]) + len(SOME)

    # A chunk needs its array, and a document is JSON.
    @pytest.mark.parametrize("key", ["c/0", "foo/c/0.0", "foo/0/0"])
    @pytest.mark.parametrize("data", [SOME, b""])
    async def test_set(self, store: IcechunkStore, key: str, data: bytes) -> None:
        self.prepare(store, key)
        await super().test_set(store, key, data)

    @pytest.mark.parametrize("ndim", [None, 0, 3])
    async def test_set_document(self, store: IcechunkStore, ndim: int | None) -> None:
        await super().test_set(store, "zarr.json", GROUP if ndim is None else self.document(ndim, "."))

    # A chunk needs its array.
    async def test_set_not_open(self, store_not_open: IcechunkStore) -> None:
        self.prepare(store_not_open, "c/0")
        await super().test_set_not_open(store_not_open)

    # The documents of the test are not JSON, and the root is a group and an array at once.
    async def test_set_many(self, store: IcechunkStore) -> None:
        documents = {"zarr.json": GROUP, "foo/zarr.json": self.document(2), "bar/zarr.json": GROUP}
        await store._set_many((key, self.buffer_cls.from_bytes(value)) for key, value in documents.items())
        chunks = {self.key("foo", n, n): str(n).encode() for n in range(5)}
        await store._set_many((key, self.buffer_cls.from_bytes(value)) for key, value in chunks.items())
        for key, value in {**documents, **chunks}.items():
            assert (await self.get(store, key)).to_bytes() == value

    # Its documents are not JSON.
    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("zarr.json", RangeByteRequest(0, 2))],
            [("c/0/0", RangeByteRequest(0, 2)), ("zarr.json", None), ("c/0/1", None)],
            [("c/0/0", RangeByteRequest(0, 2)), ("c/0/1", SuffixByteRequest(2)), ("c/0/2", OffsetByteRequest(2))],
            [("c/0/0", RangeByteRequest(3, 99)), ("c/0/1", SuffixByteRequest(99)), ("c/0/2", OffsetByteRequest(99))],
            [("c/0/0", RangeByteRequest(0, 1)), ("c/0/0", RangeByteRequest(4, 5)), ("c/0/0", RangeByteRequest(2, 2))],
        ],
    )
    async def test_get_partial_values(self, store: IcechunkStore, key_ranges: list[Any]) -> None:
        contents = {"zarr.json": array_document(2), **{f"c/0/{n}": f"c/0/{n}".encode() for n in range(3)}}
        await set_all(store, contents.items())
        found = await store.get_partial_values(PROTOTYPE, (each for each in key_ranges))
        assert [each.to_bytes() for each in found if each is not None] == [
            _cut(contents[key], byte_range) for key, byte_range in key_ranges
        ]
        missing = await store.get_partial_values(PROTOTYPE, [("c/9/9", RangeByteRequest(0, 1)), ("d/c/0", None)])
        assert missing == [None, None]

    async def check_nothing(self, store: IcechunkStore, key: str) -> None:
        """A key that names nothing has no value."""
        assert not await store.exists(key) and await store.get(key, PROTOTYPE) is None

    # Its documents are not JSON.
    async def test_exists(self, store: IcechunkStore) -> None:
        await self.check_nothing(store, "foo")
        assert not await store.exists("foo/zarr.json")
        await set_all(store, [("foo/zarr.json", array_document(1)), ("foo/c/0", SOME)])
        assert await store.exists("foo/zarr.json") and await store.exists("foo/c/0")
        assert not await store.exists("foo/c/1")
        await self.check_nothing(store, "foo")

    async def test_delete(self, store: IcechunkStore) -> None:
        await set_all(store, [("foo/zarr.json", array_document(1)), ("foo/c/0", SOME), ("foo/c/1", SOME)])
        await store.delete("foo/c/0")
        assert not await store.exists("foo/c/0") and await store.exists("foo/c/1")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        await set_all(
            store,
            [
                ("zarr.json", GROUP),
                ("foo-bar/zarr.json", GROUP),
                ("foo/zarr.json", array_document(2)),
                ("foo/c/0/0", SOME),
                ("foo/c/0/1", SOME),
                ("foo/c/1/0", SOME),
            ],
        )
        await store.delete_dir("foo/c/0")
        assert not await store.exists("foo/c/0/0") and not await store.exists("foo/c/0/1")
        assert await store.exists("foo/c/1/0")
        await store.delete_dir("foo")
        assert await store.exists("zarr.json") and await store.exists("foo-bar/zarr.json")
        assert not await store.exists("foo/zarr.json") and not await store.exists("foo/c/1/0")

    # `foo/bar` names nothing.
    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await set_all(store, [("foo/bar/zarr.json", array_document(1)), ("foo/bar/c/3", SOME)])
        assert not await store.is_empty("") and not await store.is_empty("/")
        for filled in ("foo", "foo/", "foo/bar", "foo/bar/c", "foo/bar/c/"):
            assert not await store.is_empty(filled)
        for empty in ("fo", "spam/", "foo/ba", "foo/bar/c/3", "foo/bar/d"):
            assert await store.is_empty(empty)

    # `key` names nothing.
    async def test_clear(self, store: IcechunkStore) -> None:
        await set_all(store, [("zarr.json", GROUP), ("foo/zarr.json", array_document(1)), ("foo/c/0", SOME)])
        await store.clear()
        assert await store.is_empty("") and await _collect_aiterator(store.list()) == ()

    # Its documents are not JSON; chunks without an array cannot be.
    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        contents = {"foo/zarr.json": array_document(1), **{f"foo/c/{n}": b"" for n in range(10)}}
        await set_all(store, contents.items())
        assert sorted(await _collect_aiterator(store.list())) == sorted(contents)

    def start(self, prefix: str) -> str:
        """What the keys that `list_prefix` finds start with."""
        return prefix

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        contents = {
            "zarr.json": GROUP,
            "a/zarr.json": GROUP,
            "ab/zarr.json": GROUP,
            "a/b/zarr.json": GROUP,
            "a/b/c/zarr.json": array_document(2),
            "a/b/c/c/1/10": SOME,
            "a/b/c/c/1/2": SOME,
            "a/v2/zarr.json": self.document(2, "."),
            self.key("a/v2", 0, 0, separator="."): SOME,
            self.key("a/v2", 10, 1, separator="."): SOME,
        }
        await set_all(store, contents.items())
        prefixes = {key[:cut] for key in contents for cut in range(len(key) + 1)} | {"b", "a/bb", "a/b/c/c/2"}
        for prefix in sorted(prefixes):
            observed = sorted(await _collect_aiterator(store.list_prefix(prefix)))
            assert observed == sorted(key for key in contents if key.startswith(self.start(prefix))), prefix

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        contents = {
            "foo/bar/zarr.json": array_document(1),
            "foo/bar/c/1": SOME,
            "foo/baz/zarr.json": array_document(1),
            "foo/baz/c/0": SOME,
        }
        await set_all(store, contents.items())
        assert sorted(await _collect_aiterator(store.list())) == sorted(contents)
        assert sorted(await _collect_aiterator(store.list_prefix(""))) == sorted(contents)
        assert sorted(await _collect_aiterator(store.list_prefix("foo/bar/"))) == ["foo/bar/c/1", "foo/bar/zarr.json"]

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list_dir("")) == ()
        contents = {
            "foo/zarr.json": array_document(2),
            "foo/c/1/1": SOME,
            "foo/c/1/2": SOME,
            "foo/c/10/1": SOME,
            "bar/one/zarr.json": self.document(2),
            self.key("bar/one", 0, 1): SOME,
            self.key("bar/one", 12, 3): SOME,
            "bar/two/zarr.json": self.document(2, "."),
            self.key("bar/two", 0, 1, separator="."): SOME,
            self.key("bar/two", 0, 2, separator="."): SOME,
            "bar/two-a/zarr.json": GROUP,
        }
        if self.encoding == "v2":
            contents |= {"bar/three/zarr.json": array_document(2, "default", "."), "bar/three/c.0.1": SOME}
            contents |= {"bar/three/c.0.2": SOME}
        await set_all(store, contents.items())
        folders = {key.rsplit("/", depth)[0] for key in contents for depth in range(1, key.count("/") + 1)}
        for folder in ["", "none", "foo/c/7", *sorted(folders)]:
            start = f"{folder}/" if folder else ""
            expected = sorted({key[len(start) :].split("/")[0] for key in contents if key.startswith(start)})
            assert sorted(await _collect_aiterator(store.list_dir(folder))) == expected, folder
            assert sorted(await _collect_aiterator(store.list_dir(f"{folder}/"))) == expected, folder

    # The keys `k` and `k2` name nothing.
    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        await set_all(store, [("zarr.json", array_document(1)), ("c/0", b"0000")])
        new = self.buffer_cls.from_bytes(b"1111")
        for key in ("c/0", "c/1"):
            await store.set_if_not_exists(key, new)
        await store.set_if_not_exists("zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert (await self.get(store, "c/0")).to_bytes() == b"0000"
        assert (await self.get(store, "c/1")).to_bytes() == b"1111"
        assert (await self.get(store, "zarr.json")).to_bytes() == array_document(1)

    # Documents of zarr 3.1's tests of private shortcuts are not Zarr documents.
    async def test_get_bytes(self, store: IcechunkStore) -> None:
        if not hasattr(store, "_get_bytes"):
            pytest.skip("this zarr has no such shortcut")
        await set_all(store, [("zarr.json", GROUP)])
        assert await store._get_bytes("zarr.json", prototype=PROTOTYPE) == GROUP
        with pytest.raises(FileNotFoundError):
            await store._get_bytes("missing/zarr.json", prototype=PROTOTYPE)

    def test_get_bytes_sync(self, store: IcechunkStore) -> None:
        if not hasattr(store, "_get_bytes_sync"):
            pytest.skip("this zarr has no such shortcut")
        store.session.state.write_document("/", GROUP)
        assert store._get_bytes_sync("zarr.json", prototype=PROTOTYPE) == GROUP

    async def test_get_json(self, store: IcechunkStore) -> None:
        if not hasattr(store, "_get_json"):
            pytest.skip("this zarr has no such shortcut")
        await set_all(store, [("zarr.json", GROUP)])
        assert await store._get_json("zarr.json", prototype=PROTOTYPE) == json.loads(GROUP)

    def test_get_json_sync(self, store: IcechunkStore) -> None:
        if not hasattr(store, "_get_json_sync"):
            pytest.skip("this zarr has no such shortcut")
        store.session.state.write_document("/", GROUP)
        assert store._get_json_sync("zarr.json", prototype=PROTOTYPE) == json.loads(GROUP)


class TestDropInStore(TestIcechunkStore):
    """The same on the stores of `icefloe.icechunk`, in both versions of the official format.

    These hold chunks in the default key encoding only. Keys of other encodings are refused, and the tests that write
    them say so. As in the official package, keys that name nothing are refused, and prefixes are paths.
    """

    store_cls = icechunk.IcechunkStore
    encoding = "default"

    @pytest.fixture(params=[1, 2])
    def store_kwargs(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=request.param)
        return {"session": repo.writable_session("main"), "read_only": False}

    def prepare(self, store: IcechunkStore, key: str) -> None:
        if b'"v2"' in ARRAYS[key][1]:
            with pytest.raises(icechunk.InvalidInputError, match="chunk key encoding"):
                super().prepare(store, key)
            pytest.skip("the official format has no chunk of this key")
        super().prepare(store, key)

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert "IcechunkStore" in repr(store)

    async def check_nothing(self, store: IcechunkStore, key: str) -> None:
        for look in (store.exists(key), store.get(key, PROTOTYPE), store.getsize(key)):
            with pytest.raises(icechunk.InvalidInputError, match="neither"):
                await look

    def start(self, prefix: str) -> str:
        path = prefix.strip("/")
        return path and f"{path}/"

    def test_store_type(self, store: IcechunkStore) -> None:
        assert isinstance(store.session.store, self.store_cls)

    # Its keys are those of an array in Zarr v2's encoding.
    async def test_get_many(self, store: IcechunkStore) -> None:
        await set_all(store, [("zarr.json", array_document(1)), *((f"c/{n}", str(n).encode()) for n in range(10))])
        found = await _collect_aiterator(store._get_many([(f"c/{n}", PROTOTYPE, None) for n in range(10)]))
        assert {key: value.to_bytes() for key, value in found} == {f"c/{n}": str(n).encode() for n in range(10)}


def _cut(data: bytes, byte_range: Any) -> bytes:
    match byte_range:
        case None:
            return data
        case RangeByteRequest(start, end):
            return data[start:end]
        case OffsetByteRequest(offset):
            return data[offset:]
        case SuffixByteRequest(suffix):
            return data[max(len(data) - suffix, 0) :]
    raise AssertionError(byte_range)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("foo", b"bar", "neither a zarr.json nor a chunk"),
        ("zarr.json", b"bar", "not valid JSON"),
        ("zarr.json", b"[]", "not a Zarr v3 document"),
        ("c/0", SOME, "no array"),
        (".zgroup", b'{"zarr_format":2}', "neither a zarr.json nor a chunk"),
    ],
)
async def test_what_is_no_zarr_hierarchy_is_refused_and_leaves_nothing(key: str, value: bytes, reason: str) -> None:
    store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
    with pytest.raises(icefloe.IcefloeError, match=reason):
        await store.set(key, cpu.Buffer.from_bytes(value))
    assert await _collect_aiterator(store.list()) == ()
    assert await store.get(key, PROTOTYPE) is None and not await store.exists(key)
