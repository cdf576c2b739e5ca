"""Sets, rules, overflow and splitting through the public door: how many manifests there are, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import zarr
from tests.session.journal import JournalStorage

import icefloe
from icefloe import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    PreloadRules,
    RepositoryConfig,
)
from icefloe.errors import InvalidInputError
from icefloe.formats.config_yaml import config_from_yaml
from icefloe.model.snapshot import ArrayNode

PREFIX = "s3://archive/"

EXAMPLE = """
chunk-manifests:
  sets:
    - coord1: {max-manifest-size: 100, arrays-per-manifest: null, overflow-to: coord2, cardinality: 2}
    - coord2: {max-manifest-size: 100}
    - big-array: {max-manifest-size: null, arrays-per-manifest: 1, cardinality: null}
    - default: {max-manifest-size: 1000}
  rules:
    - path: .*/(latitude|longitude|time)
      metadata-chunks: [0, 50]
      target: coord1
    - metadata-chunks: [0, 20]
      target: coord2
    - metadata-chunks: [2000, null]
      target: big-array
  preload:
    max-manifest-size: 500
    max-manifests: 10
    arrays:
      - path: .*/time
      - path: .*/latitude
      - path: .*/longitude
"""
"""The example of the specification of manifest sets, with numbers that a test can reach."""


def with_container(config: RepositoryConfig) -> RepositoryConfig:
    store = icefloe.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(PREFIX, store))
    return config


def set_all(session: icefloe.Session, path: str) -> None:
    """A reference for every chunk of an array, without writing any chunk."""
    grid = session.state.tree.array(path).grid
    count = int(np.prod(grid))
    offsets, lengths = np.arange(count) * 10, np.full(count, 10)
    session.store.set_virtual_refs_arr(path, grid, f"{PREFIX}f.nc", offsets, lengths)


def fill(repo: icefloe.Repository, grids: Mapping[str, tuple[int, ...]], message: str = "arrays") -> str:
    session = repo.writable_session("main")
    for path, grid in grids.items():
        names = ["time", "y", "x"][: len(grid)]
        zarr.create_array(
            session.store, name=path.strip("/"), shape=grid, chunks=(1,) * len(grid), dtype="i1", dimension_names=names
        )
        set_all(session, path)
    return session.commit(message)


def layout(repo: icefloe.Repository) -> list[set[str]]:
    """The arrays of each manifest, smallest first."""
    snapshot = repo.readonly_session("main").state.base
    held: dict[str, set[str]] = {manifest_id: set() for manifest_id in snapshot.manifests}
    for node in snapshot.nodes.values():
        if isinstance(node, ArrayNode):
            for ref in node.manifests:
                held[ref.manifest_id].add(node.path)
    return sorted(held.values(), key=lambda paths: (len(paths), sorted(paths)))


def manifests_of(repo: icefloe.Repository, path: str) -> dict[str, object]:
    node = repo.readonly_session("main").state.tree.array(path)
    return {ref.manifest_id: ref.extents for ref in node.manifests}


def test_the_example_of_the_specification_packs_as_it_says() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), with_container(config_from_yaml(EXAMPLE)))
    fill(
        repo,
        {
            "/g/time": (50,),
            "/g/latitude": (50,),
            "/g/longitude": (40,),
            "/h/time": (45,),
            "/h/latitude": (48,),
            "/small": (20,),
            "/tiny": (2,),
            "/middle": (900,),
            "/huge": (3000,),
            "/larger": (4000,),
        },
    )
    found = layout(repo)
    assert {"/huge"} in found and {"/larger"} in found and {"/middle"} in found
    coordinates = [paths for paths in found if any("/g/" in path or "/h/" in path for path in paths)]
    # Two manifests of at most 100 references hold 50 + 50 and 48 + 45; what is left overflows to the next set.
    assert sorted(map(sorted, coordinates)) == [
        ["/g/latitude", "/g/time"],
        ["/g/longitude", "/small", "/tiny"],
        ["/h/latitude", "/h/time"],
    ]


def test_the_default_keeps_small_arrays_together_and_cuts_large_ones() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), with_container(RepositoryConfig.default()))
    snapshot_id = fill(repo, {"/time": (400,), "/x": (20,), "/v": (400, 100), "/w": (5001,)})
    found = layout(repo)
    assert {"/time", "/x"} in found
    assert {"/w"} in found
    assert found.count({"/v"}) >= 3
    assert all(file.num_chunk_refs <= 16_384 for file in repo.list_manifest_files(snapshot_id))


def test_the_layout_is_kept_in_the_repository_and_can_be_overridden_on_open(storage: JournalStorage) -> None:
    icefloe.Repository.create(storage, with_container(config_from_yaml(EXAMPLE)))
    repo = icefloe.Repository.open(storage)
    assert repo.config.manifest is not None
    assert [entry.name for entry in repo.config.manifest.sets] == ["coord1", "coord2", "big-array", "default"]
    assert icefloe.Repository.fetch_config(storage) == repo.config
    one_each = """
chunk-manifests:
  sets: [{alone: {arrays-per-manifest: 1, cardinality: null}}]
  rules: [{target: alone}]
"""
    fill(icefloe.Repository.open(storage, config_from_yaml(one_each)), {"/a": (5,), "/b": (6,), "/c": (7,)})
    assert layout(repo) == [{"/a"}, {"/b"}, {"/c"}]
    fill(icefloe.Repository.open(storage), {"/d": (3,), "/e": (4,)})
    assert layout(repo) == [{"/a"}, {"/b"}, {"/c"}, {"/d", "/e"}]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("sets: [{a: {max-manifest-size: 5, arrays-per-manifest: 2}}]", "sets[0] (a)"),
        ("sets: [{a: {max-manifest-size: 5, overflow-to: b}}]", "overflow-to 'b'"),
        (
            "sets: [{a: {max-manifest-size: 5, overflow-to: b}}, {b: {max-manifest-size: 5, overflow-to: a}}]",
            "a -> b -> a",
        ),
        ("rules: [{path: '.*', target: nowhere}]", "rules[0]"),
        ("rules: [{path: '(', target: default}]", "rules[0].path"),
        ("sets: [{default: {max-manifest-size: 10, cardinality: 3}}]", "sets[0] (default)"),
        ("sets: [{a: {max-manifest-size: many}}]", "sets[0] (a).max-manifest-size"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_the_entry_at_fault(text: str, entry: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        config_from_yaml("chunk-manifests: {" + text + "}")
    assert entry in str(caught.value)


def test_untouched_manifests_stay_linked() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), with_container(config_from_yaml(EXAMPLE)))
    before_id = fill(repo, {"/g/time": (40,), "/g/latitude": (40,), "/middle": (900,), "/huge": (3000,)})
    before = {file.id for file in repo.list_manifest_files(before_id)}
    session = repo.writable_session("main")
    session.store.set_virtual_ref("g/time/c/3", f"{PREFIX}g.nc", offset=0, length=5)
    after = {file.id for file in repo.list_manifest_files(session.commit("one reference"))}
    assert len(before - after) == 1
    assert len(after - before) == 1


def test_splitting_follows_dimension_names_axes_and_conditions() -> None:
    splitting = ManifestSplittingConfig.from_dict(
        {
            ManifestSplitCondition.name_matches("^by_name$"): {ManifestSplitDimCondition.DimensionName("y"): 5},
            ManifestSplitCondition.path_matches("by_axis"): {
                ManifestSplitDimCondition.Axis(0): 4,
                ManifestSplitDimCondition.Any(): 10,
            },
        }
    )
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), with_container(config))
    fill(repo, {"/by_name": (3, 10, 4), "/by_axis": (8, 20), "/other": (8, 20)})
    assert sorted(manifests_of(repo, "/by_name").values()) == [
        ((0, 3), (0, 5), (0, 4)),
        ((0, 3), (5, 10), (0, 4)),
    ]
    assert len(manifests_of(repo, "/by_axis")) == 4
    assert len(manifests_of(repo, "/other")) == 1


def append(repo: icefloe.Repository, rows: int) -> str:
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="v")
    first, width = array.shape
    array.resize((first + rows, width))
    count = rows * width
    session.store.set_virtual_refs_arr(
        "v", (rows, width), f"{PREFIX}more.nc", np.arange(count) * 10, np.full(count, 10), arr_offset=(first, 0)
    )
    return session.commit(f"{rows} more rows")


@pytest.mark.parametrize(
    "splitting",
    [
        None,
        ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.DimensionName("time"): 100}}
        ),
    ],
    ids=["by default", "by time"],
)
def test_appending_along_a_dimension_rewrites_only_the_last_cells(
    splitting: ManifestSplittingConfig | None, storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting, preload_rules=PreloadRules(paths=())))
    repo = icefloe.Repository.create(storage, with_container(config))
    storage.journal.reset()
    first_id = fill(repo, {"/v": (1000, 100)})
    whole_bytes = sum(entry.sent_bytes for entry in storage.journal.writes("manifests/"))
    held = manifests_of(repo, "/v")
    assert len(held) >= 7
    repo = reopen()
    second_id = append(repo, 10)
    written_bytes = sum(entry.sent_bytes for entry in storage.journal.writes("manifests/"))
    assert written_bytes < whole_bytes / 5
    kept = {file.id for file in repo.list_manifest_files(first_id)} & {
        file.id for file in repo.list_manifest_files(second_id)
    }
    assert len(kept) >= len(held) - 1
    extents = list(manifests_of(repo, "/v").values())
    assert sum(int(np.prod([end - first for first, end in box])) for box in extents) == 1010 * 100  # type: ignore[attr-defined]
    session = repo.readonly_session("main")
    assert session.chunk_type("/v", (1009, 99)) is icefloe.ChunkType.VIRTUAL
    assert session.chunk_type("/v", (0, 0)) is icefloe.ChunkType.VIRTUAL


def test_a_change_of_one_chunk_rewrites_one_cell(
    storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    fill(icefloe.Repository.create(storage, with_container(RepositoryConfig.default())), {"/v": (1000, 100)})
    repo = reopen()
    session = repo.writable_session("main")
    session.store.set_virtual_ref("v/c/500/50", f"{PREFIX}other.nc", offset=0, length=5)
    session.commit("one")
    assert len(storage.journal.reads("manifests/")) == 1
    assert len(storage.journal.writes("manifests/")) == 1


def test_a_read_of_a_coordinate_fetches_only_its_manifest(
    storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    config = with_container(RepositoryConfig(manifest=ManifestConfig(preload_rules=PreloadRules(paths=()))))
    repo = icefloe.Repository.create(storage, config)
    fill(repo, {"/v": (1000, 100)})
    with repo.transaction("main", message="coordinate") as store:
        zarr.create_array(store, name="time", data=np.arange(1, 1001), chunks=(100,))
    repo = reopen()
    session = repo.readonly_session("main")
    values = zarr.open_array(session.store, path="time", mode="r")[:]
    assert values[-1] == 1000
    mine = manifests_of(repo, "/time")
    assert [entry.key.rpartition("/")[2] for entry in storage.journal.reads("manifests/")] == list(mine)
    assert sum(entry.received_bytes for entry in storage.journal.reads("manifests/")) < 20_000
    session.chunk_type("/v", (999, 99))
    assert len(storage.journal.reads("manifests/")) == 2


def test_a_read_touches_only_the_cells_it_meets(
    storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    time_by_hundreds = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.DimensionName("time"): 100}}
    config = RepositoryConfig(
        manifest=ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict(time_by_hundreds), preload_rules=PreloadRules(paths=())
        )
    )
    repo = icefloe.Repository.create(storage, config)
    with repo.transaction("main", message="days") as store:
        array = zarr.create_array(
            store, name="v", shape=(1000,), chunks=(1,), dtype="i4", dimension_names=["time"], compressors=None
        )
        array[:] = np.arange(1, 1001)
    assert len(manifests_of(repo, "/v")) == 10
    session = reopen().readonly_session("main")
    read = zarr.open_array(session.store, path="v", mode="r")
    for window, cells in ((slice(0, 50), 1), (slice(60, 99), 1), (slice(350, 460), 3), (slice(900, 1000), 4)):
        np.testing.assert_array_equal(read[window], np.arange(1, 1001)[window])
        assert len(storage.journal.reads("manifests/")) == cells


def test_a_branch_is_packed_anew_after_its_configuration_in_one_commit() -> None:
    storage = icefloe.in_memory_storage()
    grids = {f"/a{index}": (30 + index,) for index in range(6)} | {"/v": (300, 100)}
    repo = icefloe.Repository.create(storage, with_container(RepositoryConfig.default()))
    fill(repo, grids)
    assert len(layout(repo)) == 4
    alone = config_from_yaml(
        "chunk-manifests: {sets: [{alone: {arrays-per-manifest: 1, cardinality: null}}], rules: [{target: alone}]}"
    )
    changed = icefloe.Repository.open(storage, alone)
    tips = len(list(changed.ancestry(branch="main")))
    changed.rewrite_manifests("one manifest each", branch="main")
    assert layout(changed) == [{path} for path in sorted(grids)]
    assert len(list(changed.ancestry(branch="main"))) == tips + 1
    session = changed.readonly_session("main")
    assert all(session.chunk_type(path, [n - 1 for n in grid]).name == "VIRTUAL" for path, grid in grids.items())
