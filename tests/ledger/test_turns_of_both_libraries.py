"""Seeded random work on several branches, packed, split and in sets, passed between both libraries in turns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.icechunk.test_turns import SPECS, Turns, icechunk, play

import icefloe

pytestmark = pytest.mark.compat
MODEL = ("arrays", "chunks", "attributes", "messages")


class BranchTurns(Turns):
    """Turns on several branches; every branch has a model of its own."""

    def __init__(self, folder: Path, spec: int, seed: int) -> None:
        super().__init__(folder, spec, seed)
        self.models: dict[str, dict[str, Any]] = {"main": {name: getattr(self, name) for name in MODEL}}

    def ours(self) -> Any:
        """Our library, with chunks and manifests laid out as it comes."""
        choice = self.chance.random()
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=self.chance.choice([0, 8, 512]))
        config.chunk_packing = icefloe.ChunkPackingConfig(
            enabled=self.chance.random() < 0.7, threshold_bytes=64, target_bytes=self.chance.choice([64, 200])
        )
        if choice < 0.35:
            sets = (
                icefloe.ManifestSet("small", arrays_per_manifest=self.chance.randint(2, 4), cardinality=None),
                icefloe.ManifestSet.default(max_manifest_size=8, split_size=2),
            )
            rules = (icefloe.ManifestRule("small", path=".*[0-5]", metadata_chunks=(0, 6)),)
            config.manifest = icefloe.ManifestConfig(sets=sets, rules=rules)
        elif choice < 0.7:
            any_dimension = {icefloe.ManifestSplitDimCondition.Any(): self.chance.randint(1, 2)}
            condition = icefloe.ManifestSplitCondition.name_matches(".*")
            splitting = icefloe.ManifestSplittingConfig.from_dict({condition: any_dimension})
            config.manifest = icefloe.ManifestConfig(splitting=splitting)
        return icefloe.Repository.open(icefloe.local_filesystem_storage(self.folder), config=config)

    def turn(self, number: int) -> None:
        is_ours = self.chance.random() < 0.6
        repo = self.ours() if is_ours else self.theirs()
        branch = self.chance.choice(sorted(self.models))
        if self.chance.random() < 0.25:
            branch = self.part(repo, branch, f"b{number}")
        for name, value in self.models[branch].items():
            setattr(self, name, value)
        before = repo.lookup_branch(branch)
        moves = bool(self.arrays) and self.chance.random() < 0.2 and (is_ours or self.spec == 2)
        session = repo.rearrange_session(branch) if moves and not is_ours else repo.writable_session(branch)
        if moves:
            self.move_one(session)
        if is_ours or not moves:
            root = zarr.open_group(session.store, mode="a")
            for _ in range(self.chance.randint(1, 5)):
                self.edit(root)
            root.attrs["turn"] = number
            self.attributes[""]["turn"] = number
        after = session.commit(f"turn {number}", {"number": number})
        self.messages.insert(0, f"turn {number}")
        self.tag(repo, after)
        self.compare(branch, before, after)

    def part(self, repo: Any, branch: str, name: str) -> str:
        repo.create_branch(name, repo.lookup_branch(branch))
        self.models[name] = copy.deepcopy(self.models[branch])
        return name

    def move_one(self, session: Any) -> None:
        source, target = self.chance.choice(sorted(self.arrays)), self.name()
        session.move(f"/{source}", f"/{target}")
        for held in (self.arrays, self.chunks, self.attributes):
            held[target] = held.pop(source)

    def tag(self, repo: Any, tip: str) -> None:
        choice = self.chance.random()
        if choice < 0.25:
            self.counter += 1
            repo.create_tag(f"t{self.counter}", tip)
            self.tags.add(f"t{self.counter}")
        elif choice < 0.35 and self.tags:
            repo.delete_tag(self.tags.pop())

    def compare(self, branch: str, before: str, after: str) -> None:
        ours, theirs = self.ours(), self.theirs()
        assert ours.list_branches() == theirs.list_branches() == set(self.models)
        assert ours.list_tags() == theirs.list_tags() == self.tags
        for name in self.models:
            assert ours.lookup_branch(name) == theirs.lookup_branch(name)
        for tag in self.tags:
            assert ours.lookup_tag(tag) == theirs.lookup_tag(tag)
        mine, other = (list(repo.ancestry(branch=branch)) for repo in (ours, theirs))
        assert [info.message for info in mine] == [info.message for info in other] == self.messages
        for a, b in zip(mine, other, strict=True):
            assert (a.id, a.parent_id, a.written_at, dict(a.metadata)) == (b.id, b.parent_id, b.written_at, b.metadata)
        self.check_diff(ours, theirs, before, after)
        for repo in (ours, theirs):
            root = zarr.open_group(repo.readonly_session(branch).store, mode="r")
            found = dict(root.members(max_depth=None))
            assert set(found) == set(self.attributes) - {""}
            assert dict(root.attrs) == self.attributes[""]
            for path, node in found.items():
                assert dict(node.attrs) == self.attributes[path]
                if path in self.arrays:
                    np.testing.assert_array_equal(node[...], self.arrays[path])


@pytest.mark.long
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("block", range(10))
def test_both_libraries_agree_after_every_turn_on_every_branch(tmp_path: Path, spec: int, block: int) -> None:
    for seed in range(1000 + 12 * block, 1012 + 12 * block):
        play(BranchTurns(tmp_path / str(seed), spec, seed), turns=3)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("block", range(8))
def test_both_libraries_agree_in_long_games(tmp_path: Path, spec: int, block: int) -> None:
    for seed in range(5000 + 5 * block, 5005 + 5 * block):
        play(BranchTurns(tmp_path / str(seed), spec, seed), turns=10)


@pytest.mark.s3
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("server", ["ministack", "seaweedfs"])
def test_commits_of_both_libraries_at_the_same_time_are_all_kept(
    request: pytest.FixtureRequest, server: str, spec: int
) -> None:
    running = request.getfixturevalue(server)
    options = running.storage_options(running.make_bucket())
    repo = icefloe.Repository.create(icefloe.s3_storage(**options), spec_version=spec)
    with repo.transaction("main", message="root") as store:
        zarr.open_group(store, mode="a").create_array("shared", shape=(32,), chunks=(1,), dtype="i4")

    def write(library: Any, place: Any, who: int) -> None:
        own = library.Repository.open(place)
        for number in range(4):
            session = own.writable_session("main")
            group = zarr.open_group(session.store, mode="a")
            group.create_group(f"w{who}-{number}")
            group["shared"][who * 4 + number] = who * 4 + number + 1
            session.commit(f"{who}-{number}", rebase_with=library.ConflictDetector(), rebase_tries=100)

    from concurrent.futures import ThreadPoolExecutor

    writers = [(icefloe, icefloe.s3_storage(**options)), (icechunk, icechunk.s3_storage(**options))] * 2
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, library, place, who) for who, (library, place) in enumerate(writers)]:
            done.result()
    expected = {f"{who}-{number}" for who in range(4) for number in range(4)}
    for own in (icefloe.Repository.open(icefloe.s3_storage(**options)), icechunk.Repository.open(writers[1][1])):
        messages = [info.message for info in own.ancestry(branch="main")]
        assert sorted(messages) == sorted([*expected, "root", "Repository initialized"])
        group = zarr.open_group(own.readonly_session("main").store, mode="r")
        assert set(group.group_keys()) == {f"w{name}" for name in expected}
        assert group["shared"][:16].tolist() == list(range(1, 17))
