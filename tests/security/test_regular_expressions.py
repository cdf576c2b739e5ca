"""Regular expressions of a stored configuration take time that grows with the names only, whatever they are."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, InvalidInputError
from icefloe.model.manifest_conditions import check_pattern, pattern_cost, pattern_fits, pattern_found
from icefloe.session.open_repository import STORED_PATTERN_COST

SLOW_IN_PYTHON = ["(a|aa)+$", "(a+)+$", "(a|a)*b", "(a*)*b", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$"]
NAME = "a" * 40 + "!"


def _within(seconds: float, call: object) -> None:
    """Run in a thread: an expression that never ends must fail the test, not stop it."""
    thread = threading.Thread(target=call, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "an expression of the configuration holds the process up"


@pytest.mark.parametrize("regex", SLOW_IN_PYTHON)
def test_an_expression_of_the_configuration_holds_nobody_up(regex: str) -> None:
    started = time.perf_counter()
    pattern_found(regex, f"/{NAME}")
    pattern_fits(f"/{regex}", f"/{NAME}")
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "stored",
    [
        {"chunk-manifests": {"preload": {"arrays": [{"path": "/(a|aa)+$"}]}}},
        {
            "chunk-manifests": {
                "sets": [{"x": {"max-manifest-size": 10}}],
                "rules": [{"path": "/(a|aa)+$", "target": "x"}],
            }
        },
        {"manifest": {"preload": {"preload_if": {"path_matches": {"regex": "/(a|aa)+$"}}}}},
        {"manifest": {"preload": {"preload_if": {"or": [{"name_matches": {"regex": "(a|aa)+$"}}]}}}},
        {
            "manifest": {
                "splitting": {
                    "split_sizes": [
                        [
                            {"or": [{"name_matches": {"regex": "(a|aa)+$"}}, "any_array"]},
                            [{"condition": {"DimensionName": "(a|aa)+$"}, "num_chunks": 1}],
                        ]
                    ]
                }
            }
        },
    ],
)
def test_a_stored_configuration_freezes_no_process(stored: dict[str, object]) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), icefloe.RepositoryConfig.default())
    with repo.transaction("main", message="first") as store:
        zarr.create_array(store, name=NAME, shape=(4,), chunks=(2,), dtype="i4", dimension_names=[NAME])[:] = 1
    run_blocking(repo.storage.put("config.json", json.dumps(stored).encode()))

    def use() -> None:
        opened = icefloe.Repository.open(repo.storage)
        with opened.transaction("main", message="second") as store:
            zarr.open_array(store, path=NAME)[:] = 2
        opened.readonly_session("main")
        icefloe.Repository.create(icefloe.in_memory_storage())

    _within(30, use)


@pytest.mark.parametrize("regex", ["(", "(?=a)", r"(a)\1", "(a{1000}){1000}", "x" * 5000, "\ud800"])
def test_what_the_engine_cannot_bound_is_refused(regex: str) -> None:
    with pytest.raises(InvalidInputError, match="regular expression"):
        check_pattern(regex, "chunk-manifests.rules[0].path")
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    stored = {"chunk-manifests": {"preload": {"arrays": [{"path": regex}]}}}
    run_blocking(repo.storage.put("config.json", json.dumps(stored).encode()))
    if pattern_cost(regex) > STORED_PATTERN_COST:
        assert icefloe.Repository.open(repo.storage).config.manifest in (None, icefloe.ManifestConfig())
        return
    with pytest.raises(FormatError):
        icefloe.Repository.open(repo.storage)


@given(
    st.lists(st.sampled_from([".*", "/", "a", "b-c", "time", "[ab]", "(a|b)", "a?", r"\.", "$", "^", "x{1,3}"]))
    .map("".join)
    .filter(lambda regex: re.search(r"[*?}][*?{]|^[?]", regex) is None),
    st.text("abxc-/time.", max_size=12),
)
def test_both_engines_agree_on_ordinary_expressions(regex: str, text: str) -> None:
    assert pattern_found(regex, text) == (re.search(regex, text) is not None)
    assert pattern_fits(regex, text) == (re.fullmatch(regex, text) is not None)
