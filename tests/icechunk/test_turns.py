"""Random work passed back and forth between both libraries: after every turn both see the same repository."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe

icechunk = pytest.importorskip("icechunk")
OFFICIAL = int(icechunk.__version__.split(".")[0])
SPECS = [1] if OFFICIAL < 2 else [1, 2]
pytestmark = pytest.mark.compat
FIELDS = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays")
DTYPES = ["i4", "f8", "u1", "i8", "bool"]


class Turns:
    """One repository, both libraries' view of it, and a model of what it should hold."""

    def __init__(self, folder: Path, spec: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = str(folder)
        self.spec, self.seed = spec, seed
        if self.chance.random() < 0.5:
            icefloe.Repository.create(icefloe.local_filesystem_storage(self.folder), spec_version=spec)
        else:
            options = {"spec_version": spec} if OFFICIAL >= 2 else {}
            icechunk.Repository.create(icechunk.local_filesystem_storage(self.folder), **options)
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.chunks: dict[str, tuple[int, ...]] = {}
        self.attributes: dict[str, dict[str, Any]] = {"": {}}
        self.messages: list[str] = ["Repository initialized"]
        self.tags: set[str] = set()
        self.counter = 0

    def ours(self) -> Any:
        """Our library, with inline, packed and split chunks as it comes."""
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=self.chance.choice([0, 8, 512]))
        if self.chance.random() < 0.5:
            any_dimension = {icefloe.ManifestSplitDimCondition.Any(): self.chance.randint(1, 2)}
            condition = icefloe.ManifestSplitCondition.name_matches(".*")
            splitting = icefloe.ManifestSplittingConfig.from_dict({condition: any_dimension})
            config.manifest = icefloe.ManifestConfig(splitting=splitting)
        return icefloe.Repository.open(icefloe.local_filesystem_storage(self.folder), config=config)

    def theirs(self) -> Any:
        return icechunk.Repository.open(icechunk.local_filesystem_storage(self.folder))

    def name(self) -> str:
        self.counter += 1
        letters = "".join(self.chance.choice(string.ascii_lowercase + "-._é") for _ in range(3))
        return f"n{letters}{self.counter}"

    def turn(self, number: int) -> None:
        is_ours = self.chance.random() < 0.5
        repo = self.ours() if is_ours else self.theirs()
        before = repo.lookup_branch("main")
        if self.arrays and self.chance.random() < 0.25 and (is_ours or self.spec == 2):
            self.move(repo, before, number)
            return
        session = repo.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        for _ in range(self.chance.randint(1, 5)):
            self.edit(root)
        root.attrs["turn"] = number
        self.attributes[""]["turn"] = number
        message = f"turn {number}"
        after = session.commit(message, {"number": number, "nested": {"list": [1, None, "x"]}})
        self.messages.insert(0, message)
        self.refs(repo, after)
        self.check(before, after)

    def move(self, repo: Any, before: str, number: int) -> None:
        """An array gets another name; ours in an ordinary session, theirs in one of its own kind."""
        source, target = self.chance.choice(sorted(self.arrays)), self.name()
        is_ours = isinstance(repo, icefloe.Repository)
        session = repo.writable_session("main") if is_ours else repo.rearrange_session("main")
        session.move(f"/{source}", f"/{target}")
        for held in (self.arrays, self.chunks, self.attributes):
            held[target] = held.pop(source)
        if is_ours:
            self.write(zarr.open_group(session.store, mode="a"), target)
        after = session.commit(f"move {number}")
        self.messages.insert(0, f"move {number}")
        self.check(before, after)

    def edit(self, root: Any) -> None:
        groups = list(self.attributes)
        choice = self.chance.random()
        if choice < 0.3 or not self.arrays:
            parent = self.chance.choice([g for g in groups if g not in self.arrays])
            self.create_array(root, f"{parent}/{self.name()}".lstrip("/"))
        elif choice < 0.4:
            path = self.name()
            root.create_group(path)
            self.attributes[path] = {}
        elif choice < 0.75:
            self.write(root, self.chance.choice(sorted(self.arrays)))
        elif choice < 0.85:
            path = self.chance.choice(groups)
            value = self.chance.choice([1, 2.5, "ü", None, [1, {"a": []}]])
            (root if path == "" else root[path]).attrs["key"] = value
            self.attributes[path]["key"] = value
        elif choice < 0.93:
            self.resize(root, self.chance.choice(sorted(self.arrays)))
        else:
            path = self.chance.choice(sorted(self.arrays))
            del root[path]
            del self.arrays[path], self.chunks[path], self.attributes[path]

    def create_array(self, root: Any, path: str) -> None:
        shape = tuple(self.chance.randint(0, 7) for _ in range(self.chance.randint(0, 3)))
        chunks = tuple(self.chance.randint(1, 4) for _ in shape)
        dtype = self.chance.choice(DTYPES)
        names = [self.chance.choice(["x", "y", None]) for _ in shape] if self.chance.random() < 0.5 else None
        root.create_array(path, shape=shape, chunks=chunks, dtype=dtype, dimension_names=names)
        self.arrays[path] = np.zeros(shape, dtype=dtype)
        self.chunks[path] = chunks
        self.attributes[path] = {}

    def write(self, root: Any, path: str) -> None:
        array = self.arrays[path]
        region = tuple(slice(low := self.chance.randint(0, n), self.chance.randint(low, n)) for n in array.shape)
        values = np.random.default_rng(self.counter).integers(0, 2, array[region].shape).astype(array.dtype)
        self.counter += 1
        if array.ndim == 0 or values.size:
            root[path][region if array.ndim else ...] = values
            array[region if array.ndim else ...] = values

    def resize(self, root: Any, path: str) -> None:
        old, chunks = self.arrays[path], self.chunks[path]
        if old.ndim == 0:
            return
        # Along whole chunks, so that nothing is left of what was cut off.
        shape = tuple(self.chance.randint(0, 3) * c for c in chunks)
        root[path].resize(shape)
        new = np.zeros(shape, dtype=old.dtype)
        common = tuple(slice(0, min(a, b)) for a, b in zip(shape, old.shape, strict=True))
        new[common] = old[common]
        # A chunk that reached beyond the old edge keeps what it held there: the fill value, nobody wrote more.
        self.arrays[path] = new

    def refs(self, repo: Any, tip: str) -> None:
        choice = self.chance.random()
        if choice < 0.3:
            self.counter += 1
            tag = f"t{self.counter}"
            repo.create_tag(tag, tip)
            self.tags.add(tag)
        elif choice < 0.5 and self.tags:
            tag = self.tags.pop()
            repo.delete_tag(tag)
        elif choice < 0.7:
            repo.create_branch(f"b{len(self.messages)}", tip)

    def check(self, before: str, after: str) -> None:
        ours, theirs = self.ours(), self.theirs()
        assert ours.list_branches() == theirs.list_branches() and ours.list_tags() == theirs.list_tags() == self.tags
        for branch in ours.list_branches():
            assert ours.lookup_branch(branch) == theirs.lookup_branch(branch)
        for tag in self.tags:
            assert ours.lookup_tag(tag) == theirs.lookup_tag(tag)
        mine, other = (list(repo.ancestry(branch="main")) for repo in (ours, theirs))
        assert [info.message for info in mine] == [info.message for info in other] == self.messages
        for a, b in zip(mine, other, strict=True):
            assert (a.id, a.parent_id, a.written_at, dict(a.metadata)) == (b.id, b.parent_id, b.written_at, b.metadata)
        self.check_diff(ours, theirs, before, after)
        for repo in (ours, theirs):
            root = zarr.open_group(repo.readonly_session("main").store, mode="r")
            found = dict(root.members(max_depth=None))
            assert set(found) == set(self.attributes) - {""}
            assert dict(root.attrs) == self.attributes[""]
            for path, node in found.items():
                assert dict(node.attrs) == self.attributes[path]
                if path in self.arrays:
                    np.testing.assert_array_equal(node[...], self.arrays[path])

    def check_diff(self, ours: Any, theirs: Any, before: str, after: str) -> None:
        mine, other = (repo.diff(from_snapshot_id=before, to_snapshot_id=after) for repo in (ours, theirs))
        for field in FIELDS:
            assert set(getattr(mine, field)) == set(getattr(other, field)), field
        # The official package names arrays of which no chunk changed, too.
        assert plain_chunks(mine) == {path: chunks for path, chunks in plain_chunks(other).items() if chunks}
        if OFFICIAL >= 2:
            assert {tuple(pair) for pair in mine.moved_nodes} == {tuple(pair) for pair in other.moved_nodes}


def plain_chunks(diff: Any) -> dict[str, list[tuple[int, ...]]]:
    return {
        path: sorted(tuple(int(c) for c in coords) for coords in rows) for path, rows in diff.updated_chunks.items()
    }


def play(game: Turns, turns: int) -> None:
    """All turns of a game; a failure names what it takes to play it again."""
    try:
        for number in range(turns):
            game.turn(number)
    except Exception as error:
        error.add_note(f"seed {game.seed}, spec {game.spec}")
        raise


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_both_libraries_agree_after_every_turn(tmp_path: Path, spec: int, seed: int) -> None:
    play(Turns(tmp_path, spec, seed), turns=5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(4, 60))
def test_both_libraries_agree_after_every_turn_of_many_games(tmp_path: Path, spec: int, seed: int) -> None:
    play(Turns(tmp_path, spec, seed), turns=6)
