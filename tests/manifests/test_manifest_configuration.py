"""The configuration of manifest sets is read as the specification writes it, and refused by name when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from icefloe.errors import InvalidInputError
from icefloe.formats.config_document import manifest_config_document, parse_manifest_config
from icefloe.model.manifest_conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplittingConfig,
    PreloadRules,
)

EXAMPLE = """
chunk-manifests:
  sets:
    - coord1:
        max-manifest-size: 10000
        arrays-per-manifest: null
        overflow-to: coord2
        cardinality: 2
    - coord2:
        max-manifest-size: 10000
    - big-array:
        max-manifest-size: null
        arrays-per-manifest: 1
        cardinality: null
    - default:
        max-size: 1_000_000
  rules:
    - path: .*/(latitude|longitude|time)
      metadata-chunks: [0, 500]
      target: coord1
    - metadata-chunks: [0, 200]
      target: coord2
    - metadata-chunks: [2000000, null]
      target: big-array
  preload:
    max-manifest-size: 50000
    max-manifests: 10
    arrays:
      - path: .*/time
      - path: .*/latitude
"""

DEFAULT = """
chunk-manifests:
  sets:
    - coordinates:
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


def test_the_example_of_the_specification_is_understood() -> None:
    config = parse_manifest_config(yaml.safe_load(EXAMPLE))
    assert config.sets == (
        ManifestSet("coord1", max_manifest_size=10_000, overflow_to="coord2", cardinality=2),
        ManifestSet("coord2", max_manifest_size=10_000, overflow_to="default", cardinality=1),
        ManifestSet("big-array", arrays_per_manifest=1, cardinality=None),
        ManifestSet.default(),
    )
    assert config.rules == (
        ManifestRule("coord1", path=".*/(latitude|longitude|time)", metadata_chunks=(0, 500)),
        ManifestRule("coord2", metadata_chunks=(0, 200)),
        ManifestRule("big-array", metadata_chunks=(2_000_000, None)),
    )
    assert config.preload_rules == PreloadRules(50_000, 10, (".*/time", ".*/latitude"))
    assert parse_manifest_config(manifest_config_document(config)) == config


def test_a_default_set_without_properties_has_those_of_the_specification() -> None:
    parsed = parse_manifest_config(yaml.safe_load("chunk-manifests: {sets: [{default: }]}"))
    assert parsed.sets == (ManifestSet.default(),)
    assert parse_manifest_config(yaml.safe_load("chunk-manifests: {sets: []}")).sets == (ManifestSet.default(),)


def test_the_default_configuration_is_that_of_the_specification() -> None:
    config = parse_manifest_config(yaml.safe_load(DEFAULT))
    assert config == ManifestConfig() == parse_manifest_config({})
    assert yaml.safe_load(yaml.safe_dump(manifest_config_document(config))) == manifest_config_document(config)


def test_the_specification_itself_is_read_when_it_is_at_hand() -> None:
    seeds = Path(__file__).resolve().parents[2] / "../shared/seeds"
    texts = sorted(seeds.glob("003_*")) if seeds.exists() else []
    if not texts:
        pytest.skip("the specification is not beside this checkout")
    blocks = texts[0].read_text().split("```yaml\n")[1:]
    first, second = (parse_manifest_config(yaml.safe_load(block.split("```")[0])) for block in blocks)
    assert [s.name for s in first.sets] == ["coord1", "coord2", "big-array", "default"]
    assert second == ManifestConfig()


S = {"max-manifest-size": 5}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"sets": [{"a": S | {"overflow-to": "b"}}]}, r"sets\[0\] \(a\): overflow-to 'b' is not a set"),
        ({"sets": [{"a": S | {"overflow-to": "b"}}, {"b": S | {"overflow-to": "a"}}]}, "cycle: a -> b -> a"),
        ({"sets": [{"a": S | {"overflow-to": "a"}}]}, "cycle: a -> a"),
        ({"sets": [{"a": S | {"arrays-per-manifest": 2}}]}, r"sets\[0\] \(a\): .*exactly one .*both"),
        ({"sets": [{"a": {}}]}, r"sets\[0\] \(a\): .*exactly one .*neither"),
        ({"sets": [{"default": {"cardinality": 2}}]}, "default.*cannot have a cardinality"),
        ({"sets": [{"a": S}, {"default": {"overflow-to": "a"}}]}, "default.*cannot have overflow-to"),
        ({"sets": [{"a": S}, {"a": S}]}, r"sets\[0\] \(a\): the name is given twice"),
        ({"sets": [{"a": S | {"cardinality": 0}}]}, r"\(a\)\.cardinality: .*found 0"),
        ({"sets": [{"a": {"max-manifest-size": "many"}}]}, r"\(a\)\.max-manifest-size: .*'many'"),
        ({"sets": [{"a": {"max-manifest-size": True}}]}, r"max-manifest-size: .*True"),
        ({"sets": [{"a": S | {"max-size": 6}}]}, "given twice, under two names"),
        ({"sets": [{"a": S | {"size": 6}}]}, r"sets\[0\] \(a\): unknown property 'size'"),
        ({"sets": [{"a": S, "b": S}]}, r"sets\[0\]: expected one name"),
        ({"sets": {"a": S}}, "sets: expected a list"),
        ({"rules": [{"target": "nowhere"}]}, r"rules\[0\]: target 'nowhere' is not a set"),
        ({"rules": [{"path": ".*"}]}, r"rules\[0\]: target is missing"),
        ({"rules": [{"target": "default", "path": "("}]}, r"rules\[0\]\.path: '\(' is not a regular"),
        ({"rules": [{"target": "default", "path": 3}]}, r"rules\[0\]\.path: expected a regular"),
        ({"rules": [{"target": "default", "metadata-chunks": [5, 2]}]}, r"metadata-chunks: \[5, 2\] is empty"),
        ({"rules": [{"target": "default", "metadata-chunks": [5]}]}, r"metadata-chunks: expected \[from, to\]"),
        ({"rules": [{"target": "default", "initialized-chunks": [-1, None]}]}, "initialized-chunks: .*-1"),
        ({"rules": [{"target": "default", "chunks": [0, 1]}]}, r"rules\[0\]: unknown key 'chunks'"),
        ({"preload": {"arrays": [{"path": "["}]}}, r"preload\.arrays\[0\]\.path"),
        ({"preload": {"max-manifests": "x"}}, "preload.max-manifests"),
        ({"set": []}, "unknown key 'set'"),
    ],
)
def test_a_wrong_configuration_names_the_entry_at_fault(document: Any, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        parse_manifest_config({"chunk-manifests": document})


def test_splitting_rules_take_the_first_match_and_survive_a_document() -> None:
    split, dim = ManifestSplitCondition, ManifestSplitDimCondition
    sizes = {
        split.and_conditions([split.path_matches("^/a"), split.name_matches("temp")]): {dim.DimensionName("time"): 12},
        split.AnyArray(): {dim.Axis(0): 10, dim.Any(): 20},
    }
    config = ManifestSplittingConfig.from_dict(sizes)
    assert config.to_dict() == sizes
    assert config == ManifestSplittingConfig.from_dict(sizes) and hash(config) == hash(config)
    assert config.find_sizes("/a/temperature", ("time", "x", None)) == (12, None, None)
    assert config.find_sizes("/b/temperature", ("time", "x", None)) == (10, 20, 20)
    condition = ManifestPreloadCondition.num_refs(1, None) | ManifestPreloadCondition.false()
    whole = ManifestConfig(splitting=config, preload=ManifestPreloadConfig(10, condition))
    assert parse_manifest_config(manifest_config_document(whole)) == whole
    with pytest.raises(InvalidInputError, match="expected at least 1"):
        ManifestSplittingConfig.from_dict({split.AnyArray(): {dim.Any(): 0}})
    with pytest.raises(InvalidInputError, match="not a regular expression"):
        ManifestSplittingConfig.from_dict({split.path_matches("["): {dim.Any(): 1}})


def test_a_field_that_is_assigned_is_checked_and_kept_only_if_it_is_right() -> None:
    config = ManifestConfig()
    config.splitting = ManifestSplittingConfig.from_dict({})
    config.sets = (ManifestSet("coordinates", max_manifest_size=7),)
    assert [s.name for s in config.sets] == ["coordinates", "default"]
    with pytest.raises(InvalidInputError, match="target 'nowhere'"):
        config.rules = (ManifestRule("nowhere"),)
    assert config.rules == ManifestConfig().rules
    assert config != ManifestConfig()
