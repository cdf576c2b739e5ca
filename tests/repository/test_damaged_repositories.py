"""A damaged repository gives a typed error that names the thing, at once, and nothing else."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import zarr
from tests.session.scenarios import make_repository, read_all

import icefloe
from icefloe import IcefloeError, SpecVersion
from icefloe.blocking import run_blocking
from icefloe.model.snapshot import ArrayNode

GENERATIONS = [version.value for version in SpecVersion]
SECONDS = 5.0
"""Far above what any of these takes, far below a retry loop."""


@dataclass(frozen=True)
class Place:
    """A repository on disk that a case may break."""

    path: Path
    version: str

    def repository(self) -> icefloe.Repository:
        return icefloe.Repository.open(self.path)

    def file(self, key: str) -> Path:
        return self.path / key

    def newest(self, pattern: str) -> Path:
        """The file of a kind that was written last."""
        found = sorted(self.path.glob(pattern), key=lambda each: each.stat().st_mtime_ns)
        assert found, f"{self.version} has no {pattern}"
        return found[-1]

    def snapshot_file(self) -> Path:
        repo = self.repository()
        return self.file(repo.context.format.snapshot_key(repo.lookup_branch("main")))

    def array(self, name: str) -> ArrayNode:
        node = self.repository().readonly_session("main").state.tree.find(f"/{name}")
        assert isinstance(node, ArrayNode)
        return node

    def manifest_files(self, name: str) -> list[Path]:
        key = self.repository().context.format.manifest_key
        return [self.file(key(ref.manifest_id)) for ref in self.array(name).manifests]

    def chunk_files(self, name: str) -> list[Path]:
        session = self.repository().readonly_session("main")
        table = run_blocking(session.state.chunk_table(self.array(name)))
        key = session.state.context.format.chunk_key
        ids = [table.row(row).object_id for row in range(len(table))]
        return [self.file(key(each)) for each in dict.fromkeys(ids) if each is not None]

    def ref_file(self) -> Path:
        """The file in which the branch main says where it stands."""
        names = {
            "repository": "refs/branch.main/*.json",
            "icechunk1": "refs/branch.main/ref.json",
            "icechunk2": "repo",
            "store": "r/main/*.json",
            "dataset": "state.json",
        }
        return sorted(self.path.glob(names[self.version]))[0]


def damage(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def truncate(path: Path) -> None:
    damage(path, path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    data[-3] ^= 0xFF
    damage(path, bytes(data))


@dataclass(frozen=True)
class Case:
    """One kind of damage, what is then asked for, and a word that the error must say."""

    harm: Callable[[Place], str]
    """Breaks something and returns what the message must name."""
    ask: Callable[[Place], object]
    versions: tuple[str, ...] = tuple(GENERATIONS)


def _open_and_read(place: Place) -> object:
    return read_all(place.repository().readonly_session("main"))


def _write(place: Place) -> object:
    session = place.repository().writable_session("main")
    zarr.open_array(session.store, path="packed", mode="r+")[0] = 1
    return session.commit("on top")


def _walk(place: Place) -> object:
    return list(place.repository().ancestry(branch="main"))


def _ref(content: bytes) -> Callable[[Place], str]:
    def harm(place: Place) -> str:
        damage(place.ref_file(), content)
        return ""

    return harm


def _ref_to_nowhere(place: Place) -> str:
    file = place.ref_file()
    document = json.loads(file.read_bytes())
    document["snapshot"] = document["snapshot"][::-1]
    damage(file, json.dumps(document).encode())
    return "" if place.version == "store" else str(document["snapshot"])


def _gone(find: Callable[[Place], Path]) -> Callable[[Place], str]:
    def harm(place: Place) -> str:
        file = find(place)
        file.unlink()
        return file.stem.split(".")[0]

    return harm


def _broken(find: Callable[[Place], Path], how: Callable[[Path], None]) -> Callable[[Place], str]:
    def harm(place: Place) -> str:
        how(find(place))
        return ""

    return harm


def _lie_about_extents(place: Place) -> None:
    """A snapshot whose extents say that a manifest speaks for chunks far away."""
    repo = place.repository()
    snapshot = run_blocking(repo.context.metadata_files.fetch_snapshot(repo.lookup_branch("main")))
    node = snapshot.nodes["/packed"]
    assert isinstance(node, ArrayNode)
    refs = tuple(replace(ref, extents=((7, 2**31),)) for ref in node.manifests)
    lying = replace(snapshot, nodes={**snapshot.nodes, "/packed": replace(node, manifests=refs)})
    data = repo.context.format.encode_snapshot(lying)
    damage(place.file(repo.context.format.snapshot_key(snapshot.id)), data)


def _config(content: bytes) -> Callable[[Place], str]:
    def harm(place: Place) -> str:
        name = "config.json" if place.version == "repository" else "config.yaml"
        place.file(name).write_bytes(content)
        return "config"

    return harm


def _snapshot(place: Place) -> Path:
    return place.snapshot_file()


def _manifest(place: Place) -> Path:
    return place.manifest_files("packed")[0]


def _chunk(place: Place) -> Path:
    return place.chunk_files("large")[0]


def _pack(place: Place) -> Path:
    return place.chunk_files("packed")[0]


JSON_REFS = ("repository", "icechunk1", "store")
ONE_STATE = ("icechunk1", "icechunk2", "dataset")
"""Elsewhere the branch stands where the file before the empty one says."""
CONFIGURED = ("repository", "icechunk1")
CASES = {
    "empty ref": Case(_ref(b""), _open_and_read, ONE_STATE),
    "ref that is not JSON": Case(_ref(b"not json"), _open_and_read),
    "ref of another shape": Case(_ref(b'["a"]'), _open_and_read),
    "ref with a wrong id": Case(_ref(b'{"snapshot": "not-an-id"}'), _open_and_read),
    "ref with a number as id": Case(_ref(b'{"snapshot": 17}'), _open_and_read, JSON_REFS),
    "ref to a snapshot that is not there": Case(_ref_to_nowhere, _open_and_read, JSON_REFS),
    "write on an empty ref": Case(_ref(b""), _write, ONE_STATE),
    "missing snapshot": Case(_gone(_snapshot), _open_and_read),
    "write on a missing snapshot": Case(_gone(_snapshot), _write),
    "walk from a missing snapshot": Case(_gone(_snapshot), _walk, ("repository", "icechunk1", "store")),
    "truncated snapshot": Case(_broken(_snapshot, truncate), _open_and_read),
    "flipped snapshot": Case(_broken(_snapshot, flip), _open_and_read, ("repository", "icechunk1", "icechunk2")),
    "missing manifest": Case(_gone(_manifest), _open_and_read),
    "write next to a missing manifest": Case(_gone(_manifest), _write),
    "truncated manifest": Case(_broken(_manifest, truncate), _open_and_read),
    "missing chunk": Case(_gone(_chunk), _open_and_read),
    "missing pack": Case(_gone(_pack), _open_and_read),
    "truncated chunk": Case(_broken(_chunk, truncate), _open_and_read),
    "truncated pack": Case(_broken(_pack, truncate), _open_and_read),
    "config that is not one": Case(_config(b"\x00\xff{{{"), _open_and_read, CONFIGURED),
    "config of another shape": Case(_config(b"[1, 2]"), _open_and_read, CONFIGURED),
    "config with a wrong value": Case(_config(b'{"inline_chunk_threshold_bytes": "many"}'), _open_and_read, CONFIGURED),
}
PAIRS = [(version, name) for name, case in CASES.items() for version in case.versions]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {version: tmp_path_factory.mktemp("template") / version for version in GENERATIONS}
    for version, path in made.items():
        make_repository(path, version)
    return made


@pytest.mark.parametrize(("version", "name"), PAIRS)
def test_damage_is_a_typed_error_that_names_the_thing(
    version: str, name: str, templates: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(templates[version], tmp_path / "repository")
    place, case = Place(tmp_path / "repository", version), CASES[name]
    named = case.harm(place)
    started = time.process_time()
    with pytest.raises(IcefloeError) as caught:
        case.ask(place)
    assert time.process_time() - started < SECONDS
    assert len(str(caught.value)) > 20
    assert named in str(caught.value), f"{caught.value} does not name {named}"


@pytest.mark.parametrize("version", ["repository", "icechunk1", "icechunk2"])
def test_extents_that_lie_are_refused_or_make_no_difference(
    version: str, templates: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(templates[version], tmp_path / "repository")
    place = Place(tmp_path / "repository", version)
    told = _open_and_read(place)
    _lie_about_extents(place)
    try:
        found = _open_and_read(place)
    except IcefloeError:
        return
    assert found == told
