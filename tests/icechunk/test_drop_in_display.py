"""Values print as those of the official package: `repr` is code, `str` is for people, HTML is well formed."""

from __future__ import annotations

import datetime as dt
from xml.etree import ElementTree

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import icechunk
from icefloe.model.config_value import Choice, Count, Flag, Nested, Text, settings_of

NAMES = st.text(min_size=1, max_size=8)


def values_of(cls: type) -> st.SearchStrategy[object]:
    """Values of a configuration class with any of the settings that both packages have."""
    fields = {}
    for name, setting in settings_of(cls).items():
        if name in cls._own_settings or name == "virtual_chunk_containers":
            continue
        match setting.kind:
            case Count(least, most):
                one: st.SearchStrategy[object] = st.integers(least, min(most, least + 1000))
            case Flag():
                one = st.booleans()
            case Text():
                one = NAMES
            case Choice(members):
                one = st.sampled_from(members)
            case Nested(inner):
                one = values_of(inner) if settings_of(inner) else MANIFESTS
            case _:
                continue
        fields[name] = st.none() | one
    return st.builds(cls, **fields)


MANIFESTS = st.builds(
    icechunk.ManifestConfig,
    preload=st.none()
    | st.builds(
        icechunk.ManifestPreloadConfig,
        max_total_refs=st.none() | st.integers(0, 9),
        preload_if=st.none() | st.builds(icechunk.ManifestPreloadCondition.name_matches, st.sampled_from(["a", '"'])),
    ),
    splitting=st.none()
    | st.just(
        icechunk.ManifestSplittingConfig.from_dict(
            {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Axis(0): 3}}
        )
    ),
)
STORES = st.one_of(
    st.builds(icechunk.s3_store, region=st.none() | NAMES, allow_http=st.booleans(), s3_compatible=st.booleans()),
    st.builds(icechunk.local_filesystem_store, NAMES),
    st.just(icechunk.ObjectStoreConfig.InMemory()),
    st.builds(icechunk.gcs_store, st.dictionaries(st.just("timeout"), NAMES)),
)
CONTAINERS = st.builds(icechunk.VirtualChunkContainer, NAMES, STORES, st.none() | NAMES)


@given(st.one_of(values_of(icechunk.RepositoryConfig), STORES, CONTAINERS))
def test_the_repr_of_a_configuration_is_code_that_makes_it(value: object) -> None:
    assert eval(repr(value), {"icechunk": icechunk}) == value
    ElementTree.fromstring(value._repr_html_())  # type: ignore[attr-defined]
    assert str(value).startswith(f"<{repr(value).partition('(')[0]}>")


def test_the_text_of_a_configuration_shows_the_values_in_effect() -> None:
    config = icechunk.RepositoryConfig(caching=icechunk.CachingConfig(num_snapshot_nodes=42))
    assert "    num_snapshot_nodes: 42\n" in str(config)
    assert "    num_chunk_refs: 15000000 (default)\n" in str(config)
    assert "chunk_packing" not in str(config)  # what only Icefloe has is shown if it is set
    assert "<details>" in config._repr_html_()


def test_no_secret_is_shown() -> None:
    shown = [
        icechunk.S3StaticCredentials("AKIA0123456789", "hush", "hush-token"),
        icechunk.http_store(headers={"Authorization": "hush"}),
        icechunk.gcs_store({"service_account_key": "hush"}),
    ]
    for value in shown:
        assert "hush" not in repr(value) + str(value) + value._repr_html_()
        assert "****" in repr(value)


@pytest.fixture
def repo() -> icechunk.Repository:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    with repo.transaction("main", message="<b>first\x1b[31m") as store:
        zarr.create_array(store, name="a", shape=4, chunks=1, dtype="i4")[:] = 1
    return repo


def test_objects_print_their_class_and_their_fields(repo: icechunk.Repository) -> None:
    session = repo.writable_session("main")
    info = repo.lookup_snapshot(session.snapshot_id)
    shown = {
        "icechunk.Repository (v2)": repo,
        "icechunk.Storage": repo.storage,
        "icechunk.session.Session": session,
        "icechunk.session.ForkSession": session.fork(),
        "icechunk.IcechunkStore": session.store,
        "icechunk.snapshots.SnapshotInfo": info,
        "icechunk.ops.Update": next(repo.ops_log()),
        "icechunk.config.FeatureFlag": repo.feature_flags()[0],
        "icechunk.repository.RepoStatus": repo.status,
        "icechunk.stats.ChunkStorageStats": repo.chunk_storage_stats(),
        "icechunk.ops.GCSummary": repo.garbage_collect(dt.datetime.now(dt.UTC)),
        "icechunk.conflicts.Conflict": icechunk.Conflict(icechunk.ConflictType(6), "/a", [[0]]),
        "icechunk.snapshots.ManifestFileInfo": repo.list_manifest_files(info.id)[0],
    }
    for name, value in shown.items():
        assert repr(value).startswith(f"<{name}>\n"), name
        assert "\x1b" not in repr(value), name
        html = value._repr_html_()  # type: ignore[attr-defined]
        ElementTree.fromstring(html)
        assert name.replace("<", "") in html, name
    assert "branch: main\n" in repr(session) and "branch" not in repr(repo.readonly_session("main"))


def test_a_difference_lists_what_changed(repo: icechunk.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[1:3] = 2
    zarr.create_group(session.store, path="g")
    assert repr(session.status()) == ("Groups created:\n    /g\n\nChunks updated:\n    /a:\n        [1]\n        [2]\n")


def test_a_graph_has_colours_unless_it_is_plain(repo: icechunk.Repository) -> None:
    assert "\x1b" in str(repo.ancestry_graph()) and "\x1b" not in str(repo.ancestry_graph(plain=True))


def test_errors_and_kinds_of_conflicts_print_as_there(repo: icechunk.Repository) -> None:
    with pytest.raises(icechunk.RefNotFoundError) as missing:
        repo.lookup_branch("none")
    assert repr(missing.value).startswith('icechunk.RefNotFoundError(message="')
    assert repr(missing.value).endswith('kind="ref-not-found")')
    assert repr(icechunk.IcechunkError("x")) == 'icechunk.IcechunkError(message="x", kind="unknown")'
    assert str(icechunk.ConflictType.ChunkDoubleUpdate) == "Chunk double update"
    assert icechunk.ConflictType(6) is icechunk.ConflictType.ChunkDoubleUpdate
    assert str(icechunk.supported_spec_versions()) == "[SpecVersion.v2 (current), SpecVersion.v1]"
