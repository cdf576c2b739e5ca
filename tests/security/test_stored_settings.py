"""Settings that a repository stores cannot take memory, requests, waits or durability of its reader without bound."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.formats.config_document import decode_config
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import (
    CachingConfig,
    CompressionConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.model.config_value import ConfigValue, Count, Nested, settings_of
from icefloe.model.manifest_conditions import paths_fitting, pattern_fits
from icefloe.session.open_repository import STORED_BOUNDS
from icefloe.storage.local import LocalStorage

HARMLESS = {
    "attributes_threshold_bytes": "larger attributes stand in the snapshot, which is read as a whole",
    "num_updates_per_repo_info_file": "its own bound is small",
    "get_partial_values_concurrency": "not acted on",
    "max_concurrent_decodes": "not acted on",
    "storage.concurrency.max_concurrent_requests_for_object": "not acted on",
    "storage.minimum_size_for_multipart_upload": "not acted on",
    **{
        f"{group}.{name}": "not acted on"
        for group, cls in (("storage.timeouts", "timeouts"), ("repo_update_retries.default", "retries"))
        for name in (
            ("connect_timeout_ms", "read_timeout_ms", "operation_timeout_ms", "operation_attempt_timeout_ms")
            if cls == "timeouts"
            else ("max_tries", "initial_backoff_ms", "max_backoff_ms")
        )
    },
}


def _counts(cls: type[ConfigValue], path: str = "") -> list[str]:
    found = []
    for name, setting in settings_of(cls).items():
        if isinstance(setting.kind, Nested):
            found += _counts(setting.kind.cls, f"{path}{name}.") if issubclass(setting.kind.cls, ConfigValue) else []
        elif isinstance(setting.kind, Count):
            found.append(path + name)
    return found


def _value(config: icefloe.RepositoryConfig, path: str) -> object:
    found: object = config
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _hostile(number: int) -> icefloe.RepositoryConfig:
    document: dict[str, object] = {}
    for path in STORED_BOUNDS:
        *outer, last = path.split(".")
        if "preload_rules" in path:
            outer, last = ["chunk-manifests", "preload"], last.replace("_", "-")
        inner = document
        for part in outer:
            inner = inner.setdefault(part, {})  # type: ignore[assignment]
        inner[last] = {
            "inline_chunk_threshold_bytes": 2**31 - 1,
            "max_concurrent_requests": 65535,
            "level": 22,
            "max_tries": 65535,
            "threshold_bytes": 2**40,
            "target_bytes": 2**40,
            "ideal_concurrent_request_size": 1,
        }.get(last, number)
    return decode_config(document)


def test_every_setting_that_is_a_number_is_bounded_or_known_to_be_harmless() -> None:
    settings = {path for path in STORED_BOUNDS if not path.startswith("manifest.")}
    assert {*_counts(icefloe.RepositoryConfig)} == settings | {*HARMLESS}


def test_the_bounds_hold_the_defaults() -> None:
    for config in (CachingConfig(), StorageRetriesSettings(), StorageConcurrencySettings(), CompressionConfig()):
        for name in settings_of(type(config)):
            bounds = next((pair for path, pair in STORED_BOUNDS.items() if path.endswith(f".{name}")), None)
            usual = config.effective(name)
            assert bounds is None or usual is None or bounds[0] <= usual <= bounds[1], name


@pytest.mark.parametrize("version", list(SpecVersion))
def test_stored_settings_are_brought_within_bounds(version: SpecVersion, caplog: pytest.LogCaptureFixture) -> None:
    storage = icefloe.in_memory_storage()
    hostile = _hostile(10**15)
    icefloe.Repository.create(storage, hostile, spec_version=version)
    with caplog.at_level(logging.WARNING, "icefloe"):
        opened = icefloe.Repository.open(storage)
    for path, (least, most) in STORED_BOUNDS.items():
        found = _value(opened.config, path)
        assert isinstance(found, int) and least <= found <= most, path
        assert path in caplog.text
    assert icefloe.Repository.fetch_config(storage) == hostile, "what is stored is shown as it is"


def test_settings_of_the_caller_are_not_bounded() -> None:
    storage = icefloe.in_memory_storage()
    icefloe.Repository.create(storage, _hostile(10**15))
    mine = _hostile(10**12)
    opened = icefloe.Repository.open(storage, mine)
    assert all(_value(opened.config, path) == _value(mine, path) for path in STORED_BOUNDS)


def test_a_repository_cannot_weaken_the_durability_of_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fast = icefloe.RepositoryConfig(storage=StorageSettings(fsync=False))
    icefloe.Repository.create(str(tmp_path / "a"), fast)
    with caplog.at_level(logging.WARNING, "icefloe"):
        opened = icefloe.Repository.open(str(tmp_path / "a"))
    assert opened.config.storage is not None and opened.config.storage.fsync is None and "fsync" in caplog.text
    assert isinstance(opened.storage, LocalStorage) and opened.storage.fsync is not False
    again = icefloe.Repository.open(str(tmp_path / "a"), fast)
    assert isinstance(again.storage, LocalStorage) and again.storage.fsync is False


def _conditions(count: int, regex: str = "abc") -> list[object]:
    return [{"path_matches": {"regex": f"{regex}{number}"}} for number in range(count)]


def _nested(depth: int) -> object:
    condition: object = {"name_matches": {"regex": "abc"}}
    for _ in range(depth):
        condition = {"or": [condition]}
    return condition


def _splitting(count: int, regex: str = "t") -> dict[str, object]:
    sizes = [{"condition": {"DimensionName": regex}, "num_chunks": 4}]
    return {"manifest": {"splitting": {"split_sizes": [[{"path_matches": {"regex": "a"}}, sizes]] * count}}}


COSTLY: dict[str, dict[str, object]] = {
    "many conditions of preload": {"manifest": {"preload": {"preload_if": {"or": _conditions(2_000)}}}},
    "long expressions of preload": {"manifest": {"preload": {"preload_if": {"or": _conditions(20, "a" * 4000)}}}},
    "deep conditions of preload": {"manifest": {"preload": {"preload_if": _nested(20)}}},
    "slow expressions of preload": {"manifest": {"preload": {"preload_if": {"or": _conditions(5, "\\pL{200}")}}}},
    "nested repetitions of preload": {
        "manifest": {"preload": {"preload_if": {"or": _conditions(5, "((a{30}){30}b)")}}}
    },
    "many rules of splitting": _splitting(1_000),
    "slow dimensions of splitting": _splitting(1, "\\pL{200}"),
    "many sets": {"chunk-manifests": {"sets": [{f"s{n}": {"max-manifest-size": 10}} for n in range(2_000)]}},
    "many rules": {"chunk-manifests": {"rules": [{"path": f"a{n}", "target": "default"} for n in range(2_000)]}},
    "many arrays to preload": {"chunk-manifests": {"preload": {"arrays": [{"path": f"/{n}"} for n in range(2_000)]}}},
}


@pytest.mark.every_generation
@pytest.mark.parametrize("version", list(SpecVersion))
@pytest.mark.parametrize("name", COSTLY)
def test_stored_conditions_on_arrays_cost_little_or_are_not_used(
    name: str, version: SpecVersion, caplog: pytest.LogCaptureFixture
) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=version)
    ledger = repo.context.ledger
    run_blocking(ledger.save_config(COSTLY[name], run_blocking(ledger.fetch_config()).version_token))
    with caplog.at_level(logging.WARNING, "icefloe"):
        started = time.process_time()
        opened = icefloe.Repository.open(storage)
        assert time.process_time() - started < 2
    ((section, settings),) = COSTLY[name].items()
    dropped = section if section == "chunk-manifests" else f"{section}.{next(iter(settings))}"  # type: ignore[call-overload]
    assert f"stores {dropped} with" in caplog.text
    manifest = opened.config.manifest
    assert manifest is None or manifest == icefloe.ManifestConfig()


def test_stored_conditions_of_ordinary_size_are_used(caplog: pytest.LogCaptureFixture) -> None:
    storage = icefloe.in_memory_storage()
    ordinary = decode_config(
        {"manifest": {"preload": {"preload_if": {"or": _conditions(100)}}} | _splitting(50)["manifest"]}  # type: ignore[operator]
    )
    icefloe.Repository.create(storage, ordinary)
    with caplog.at_level(logging.WARNING, "icefloe"):
        assert icefloe.Repository.open(storage).config.manifest == ordinary.manifest
    assert not caplog.text


def test_a_costly_condition_of_the_caller_is_used() -> None:
    mine = decode_config(COSTLY["many rules of splitting"])
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), mine)
    assert repo.config.manifest == mine.manifest


@given(
    st.lists(st.from_regex(r"\A[a-c/]{1,3}\Z"), max_size=20), st.sampled_from(["/a+", "[ab]*", ".*c", "a|b/.*", "(a"])
)
def test_paths_that_fit_are_found_together_as_they_are_singly(paths: list[str], regex: str) -> None:
    if regex == "(a":
        with pytest.raises(ValueError):
            list(paths_fitting([regex], paths or ["a"]))
        return
    assert list(paths_fitting([regex], paths)) == [path for path in paths if pattern_fits(regex, path)]
