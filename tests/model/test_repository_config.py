"""Configurations are checked when set, merged field by field, and come back from where they are stored."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.formats.config_document import decode_config, encode_config
from icefloe.formats.config_yaml import config_from_yaml, config_to_yaml, decode_yaml, encode_yaml
from icefloe.model.config import (
    CachingConfig,
    ChunkPackingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    PackBy,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.model.manifest_conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.model.manifest_config import ManifestConfig, ManifestPreloadConfig, ManifestSet, ManifestSplittingConfig
from icefloe.model.virtual_chunk_container import (
    VirtualChunkContainer,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)

counts = st.none() | st.integers(1, 60_000)
flags = st.none() | st.booleans()
retries = st.builds(StorageRetriesSettings, max_tries=counts, initial_backoff_ms=counts, max_backoff_ms=counts)
containers = st.sampled_from(
    [
        VirtualChunkContainer("s3://bucket/prefix/", s3_store(region="us-east-1", anonymous=True)),
        VirtualChunkContainer("s3://bucket/", s3_store(endpoint_url="http://localhost:9000", s3_compatible=True)),
        VirtualChunkContainer("gs://b/", gcs_store()),
        VirtualChunkContainer("http://example.com/", http_store({"timeout": "3s"})),
        VirtualChunkContainer("file:///data/", local_filesystem_store("/data"), name="data"),
    ]
)
manifests = st.sampled_from(
    [
        ManifestConfig(),
        ManifestConfig(sets=(ManifestSet("coordinates", max_manifest_size=7),)),
        ManifestConfig(
            preload=ManifestPreloadConfig(
                max_total_refs=3,
                preload_if=ManifestPreloadCondition.and_conditions(
                    [
                        ManifestPreloadCondition.name_matches("x"),
                        ManifestPreloadCondition.num_refs(1, 4),
                        ManifestPreloadCondition.num_refs(None, 9),
                        ManifestPreloadCondition.true(),
                    ]
                ),
            ),
            splitting=ManifestSplittingConfig.from_dict(
                {
                    ManifestSplitCondition.AnyArray(): {
                        ManifestSplitDimCondition.Axis(1): 3,
                        ManifestSplitDimCondition.Any(): 7,
                    },
                    ManifestSplitCondition.name_matches("q"): {ManifestSplitDimCondition.DimensionName("t"): 2},
                }
            ),
        ),
    ]
)


@st.composite
def configs(draw: st.DrawFn) -> RepositoryConfig:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=draw(counts),
        get_partial_values_concurrency=draw(counts),
        compression=draw(st.none() | st.builds(CompressionConfig, level=st.none() | st.integers(1, 22))),
        max_concurrent_requests=draw(counts),
        caching=draw(st.none() | st.builds(CachingConfig, num_bytes_chunks=counts, num_chunk_refs=counts)),
        storage=draw(
            st.none()
            | st.builds(
                StorageSettings,
                concurrency=st.none() | st.builds(StorageConcurrencySettings, ideal_concurrent_request_size=counts),
                retries=st.none() | retries,
                unsafe_use_metadata=flags,
                storage_class=st.sampled_from([None, "STANDARD_IA"]),
                timeouts=st.none() | st.builds(StorageTimeoutSettings, read_timeout_ms=counts),
            )
        ),
        manifest=draw(st.none() | manifests),
        repo_update_retries=draw(st.none() | st.builds(RepoUpdateRetryConfig, default=st.none() | retries)),
        chunk_packing=draw(
            st.none()
            | st.builds(ChunkPackingConfig, enabled=flags, by=st.sampled_from([None, PackBy.ARRAY, PackBy.MIXED]))
        ),
        attributes_threshold_bytes=draw(counts),
    )
    for container in draw(st.lists(containers, max_size=4)):
        config.set_virtual_chunk_container(container)
    return config


@pytest.mark.long
@given(config=configs())
def test_a_configuration_comes_back_from_its_document(config: RepositoryConfig) -> None:
    document = encode_config(config)
    assert decode_config(json.loads(json.dumps(document))) == config
    assert config_from_yaml(config_to_yaml(config)) == config
    assert decode_config(decode_yaml(encode_yaml(document))) == config
    assert pickle.loads(pickle.dumps(config)) == config


@given(one=configs(), two=configs(), three=configs())
def test_merging_is_associative_and_the_default_changes_nothing(
    one: RepositoryConfig, two: RepositoryConfig, three: RepositoryConfig
) -> None:
    default = RepositoryConfig.default()
    assert default.merge(one) == one == one.merge(default)
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) == one


def test_a_setting_without_effect_is_logged_when_a_caller_sets_it(caplog: pytest.LogCaptureFixture) -> None:
    storage = in_memory_storage()
    with caplog.at_level(logging.WARNING, logger="icefloe"):
        Repository.create(storage, RepositoryConfig(get_partial_values_concurrency=7, max_concurrent_requests=7))
        assert [record.message.partition(" is stored")[0] for record in caplog.records] == [
            "The setting get_partial_values_concurrency"
        ]
        caplog.clear()
        Repository.open(storage)  # what is stored may be meant for the official package
        assert caplog.records == []
        own = RepositoryConfig(repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=3)))
        Repository.open(storage, own)
        assert "repo_update_retries.default.max_tries" in caplog.text


def test_what_is_unset_is_none_and_has_a_default() -> None:
    config = RepositoryConfig()
    assert config == RepositoryConfig.default()
    assert config.inline_chunk_threshold_bytes is None and config.compression is None
    assert config.effective("inline_chunk_threshold_bytes") == 512
    assert config.effective("max_concurrent_requests") == 256
    assert CompressionConfig().effective("algorithm") is CompressionAlgorithm.Zstd
    assert CachingConfig().effective("num_chunk_refs") == 15_000_000
    assert "512 (default)" in str(config)
    assert CachingConfig(num_bytes_manifests=5).manifests_limit_bytes == 5


def test_merging_goes_into_nested_values() -> None:
    one = RepositoryConfig(inline_chunk_threshold_bytes=1, compression=CompressionConfig(level=3))
    two = RepositoryConfig(
        max_concurrent_requests=5, compression=CompressionConfig(algorithm=CompressionAlgorithm.Zstd)
    )
    merged = one.merge(two)
    assert merged.inline_chunk_threshold_bytes == 1 and merged.max_concurrent_requests == 5
    assert merged.compression == CompressionConfig(CompressionAlgorithm.Zstd, 3)
    assert one.compression == CompressionConfig(level=3)


def test_values_are_checked_when_they_are_set() -> None:
    config = RepositoryConfig()
    config.inline_chunk_threshold_bytes = 12
    with pytest.raises(InvalidInputError, match=r"inline_chunk_threshold_bytes is 'x'. Allowed: a whole number"):
        config.inline_chunk_threshold_bytes = "x"  # type: ignore[assignment]
    with pytest.raises(InvalidInputError, match=r"CompressionConfig.level is 99"):
        CompressionConfig(level=99)
    with pytest.raises(InvalidInputError, match="caching"):
        RepositoryConfig(caching=3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        config.inlined = 3  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match="threshold_bytes"):
        ChunkPackingConfig(threshold_bytes=100, target_bytes=10)


def test_containers_are_known_by_prefix_and_by_name() -> None:
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer("file:///a/", local_filesystem_store("/x"), "foo"))
    config.set_virtual_chunk_container(VirtualChunkContainer("file:///b/", local_filesystem_store("/x")))
    assert config.get_virtual_chunk_container("foo") == config.get_virtual_chunk_container("file:///a/")
    config.set_virtual_chunk_container(VirtualChunkContainer("file:///z/", local_filesystem_store("/x"), "foo"))
    assert list(config.virtual_chunk_containers or {}) == ["file:///b/", "file:///z/"]
    assert config.get_virtual_chunk_container("nope") is None
    config.clear_virtual_chunk_containers()
    assert config.virtual_chunk_containers == {}


@pytest.mark.parametrize(
    ("prefix", "name", "message"),
    [
        ("foo", None, "not a URL"),
        ("s3://bucket", None, "must end in '/'"),
        ("file:///a/", "a/b", "name"),
        ("file:///a/", "", "name"),
        ("ftp://a/", None, "does not match"),
        ("s3://b/", None, "does not match"),
    ],
)
def test_a_container_that_could_not_work_is_refused(prefix: str, name: str | None, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RepositoryConfig().set_virtual_chunk_container(
            VirtualChunkContainer(prefix, local_filesystem_store("/x"), name)
        )


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"inline_chunk_threshold_bytes": "many"}, "inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": -1}, "inline_chunk_threshold_bytes"),
        ({"compression": {"level": 3.5}}, "compression.level"),
        ({"compression": {"algorithm": "lz4"}}, "compression.algorithm"),
        ({"compression": [1]}, "compression"),
        ({"storage": {"retries": {"max_tries": True}}}, "storage.retries.max_tries"),
        ({"virtual_chunk_containers": {"a": {"url_prefix": 3}}}, "virtual_chunk_containers.a.url_prefix"),
        ({"virtual_chunk_containers": {"a": {"url_prefix": "s3://b/", "store": 3}}}, "containers.a.store"),
        ({"virtual_chunk_containers": {"a": {"url_prefix": "s3://b/", "store": {"ftp": {}}}}}, "containers.a.store"),
        ({"chunk-manifests": {"rules": [{"target": "nowhere"}]}}, "rules"),
        ({"chunk_packing": {"by": "color"}}, "chunk_packing.by"),
        ({"manifest": 3}, "manifest"),
    ],
)
def test_a_bad_value_is_refused_by_name(document: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        decode_config(document)


def test_unknown_keys_are_kept_and_written_back() -> None:
    document = {
        "inline_chunk_threshold_bytes": 12,
        "from_the_future": {"a": [1, 2]},
        "caching": {"snapshots_cache_size": 2, "num_bytes_chunks": 3},
        "manifest": {"splitting": None, "novelty": 1},
        "virtual_chunk_containers": {
            "s3://b/": {"name": None, "url_prefix": "s3://b/", "store": {"s3": {}}, "mood": "good"}
        },
    }
    config = decode_config(document)
    assert config.caching == CachingConfig(num_bytes_chunks=3)
    config.inline_chunk_threshold_bytes = 13
    written = encode_config(config)
    assert written["from_the_future"] == {"a": [1, 2]} and written["inline_chunk_threshold_bytes"] == 13
    assert written["caching"] == {"snapshots_cache_size": 2, "num_bytes_chunks": 3}
    assert written["manifest"]["novelty"] == 1
    assert written["virtual_chunk_containers"]["s3://b/"]["mood"] == "good"
    config.clear_virtual_chunk_containers()
    assert "mood" not in json.dumps(encode_config(config))


def test_tags_of_yaml_and_plain_variants_mean_the_same() -> None:
    text = """
inline_chunk_threshold_bytes: null
virtual_chunk_containers:
  s3://bucket/:
    name: null
    url_prefix: s3://bucket/
    store: !s3
      region: us-east-1
      anonymous: true
  file:///x/:
    name: null
    url_prefix: file:///x/
    store: !LocalFileSystem /x
manifest:
  preload:
    preload_if: !and
    - !name_matches
      regex: x
    - !num_refs
      from: !Included 1
      to: !Excluded 4
    - 'true'
  splitting:
    split_sizes:
    - - any_array
      - - condition: !Axis 1
          num_chunks: 3
"""
    config = config_from_yaml(text)
    plain = decode_config(
        {
            "virtual_chunk_containers": {
                "s3://bucket/": {
                    "url_prefix": "s3://bucket/",
                    "store": {"!s3": {"region": "us-east-1", "anonymous": True}},
                },
                "file:///x/": {"url_prefix": "file:///x/", "store": {"local_file_system": "/x"}},
            },
            "manifest": {
                "preload": {
                    "preload_if": {
                        "and": [
                            {"name_matches": {"regex": "x"}},
                            {"num_refs": {"from": {"Excluded": 0}, "to": {"Included": 3}}},
                            "true",
                        ]
                    }
                },
                "splitting": {"split_sizes": [["any_array", [{"condition": {"Axis": 1}, "num_chunks": 3}]]]},
            },
        }
    )
    assert config == plain
    written = config_to_yaml(config)
    for expected in ("store: !s3", "!local_file_system", "!and", "!Included 1", "!Excluded 4", "!Axis 1"):
        assert expected in written, written


@pytest.mark.parametrize(
    "text",
    [
        "- a list",
        "a: [1",
        "a: !!python/object/apply:os.system [ls]",
        "l0: &l0 [1, 1]\n" + "\n".join(f"l{i + 1}: &l{i + 1} [*l{i}, *l{i}]" for i in range(22)),
        "[" * 5000,
        "a: " + "[" * 300 + "]" * 300,
        "? [1]\n: 2",
        b"\xff\xfe\x00",
    ],
)
def test_text_that_is_no_configuration_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidInputError):
        config_from_yaml(text)


def test_configurations_of_official_releases_are_read(fixtures_folder: Path) -> None:
    found = sorted(fixtures_folder.glob("*/repo/config.yaml"))
    assert found
    for path in found:
        document = decode_yaml(path.read_bytes())
        config = decode_config(document)
        assert config.inline_chunk_threshold_bytes == document["inline_chunk_threshold_bytes"]
        assert set(config.virtual_chunk_containers or {}) == set(document["virtual_chunk_containers"] or {})
        assert decode_config(encode_config(config)) == config


def test_manifest_sets_are_accepted_as_people_write_them() -> None:
    text = """
chunk-manifests:
  sets:
    - coordinates:                # coordinate arrays go here
        max-manifest-size: 50000
        cardinality: 1
        max-arrays-per-manifest: null
        overflow-to: default
    - default:
        max-manifest-size: 1000000
        cardinality: null
        max-arrays-per-manifest: null
        overflow-to: null
  rules:
    - metadata-chunks: [0, 5000]
      path: .*
      target: coordinates
  preload:
    max-manifest-size: 50000
    max-manifests: 1
    arrays:
      - path: .*/time
      - path: .*/latitude
      - path: .*/longitude
"""
    assert config_from_yaml(text).manifest == ManifestConfig()
    changed = config_from_yaml(text.replace("50000", "40000"))
    assert config_from_yaml(config_to_yaml(changed)) == changed != config_from_yaml(text)


@pytest.mark.compat
def test_the_official_library_reads_what_we_write(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    version = {} if icechunk.__version__ < "2" else {"spec_version": 1}
    icechunk.Repository.create(storage, **version)
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=77,
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 5),
        caching=CachingConfig(num_bytes_chunks=9, num_bytes_manifests=4),
        storage=StorageSettings(retries=StorageRetriesSettings(max_tries=3)),
        chunk_packing=ChunkPackingConfig(by=PackBy.ARRAY),
        attributes_threshold_bytes=3,
        manifest=ManifestConfig(
            sets=(ManifestSet("coordinates", max_manifest_size=7),),
            preload=ManifestPreloadConfig(preload_if=ManifestPreloadCondition.num_refs(None, 9)),
            splitting=ManifestSplittingConfig.from_dict(
                {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(1): 3}}
            ),
        ),
    )
    config.set_virtual_chunk_container(VirtualChunkContainer("file:///data/", local_filesystem_store("/data")))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store(region="eu-west-1")))
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    found = icechunk.Repository.open(storage).config
    assert found.inline_chunk_threshold_bytes == 77
    assert found.compression.level == 5 and found.caching.num_bytes_chunks == 9
    assert found.storage.retries.max_tries == 3
    assert set(found.virtual_chunk_containers) == {"file:///data/", "s3://b/"}
    assert found.manifest.splitting.split_sizes[0][1][0][1] == 3
