"""What helps to ask for help: versions and logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import icefloe
from icefloe.debug import parse_directive


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    root = logging.getLogger("icefloe")
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.setLevel(logging.NOTSET)


def test_versions_are_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    icefloe.print_debug_info()
    told = capsys.readouterr().out
    for name in ("platform", "python", "icefloe", "zarr", "obstore"):
        assert f"{name}:  " in told


def test_a_filter_sets_levels_and_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    icefloe.set_logs_filter("icefloe.storage=debug,warn")
    logging.getLogger("icefloe.storage").debug("near")
    logging.getLogger("icefloe.session").info("far")
    assert "near" in (told := capsys.readouterr().err)
    assert "far" not in told
    icefloe.set_logs_filter("icechunk=debug")
    logging.getLogger("icefloe.session").debug("again")
    assert capsys.readouterr().err.count("again") == 1


def test_the_environment_decides_when_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECHUNK_LOG", raising=False)
    icefloe.initialize_logs()
    assert logging.getLogger("icefloe").handlers == []
    monkeypatch.setenv("ICEFLOE_LOG", "info")
    icefloe.initialize_logs()
    assert logging.getLogger("icefloe").level == logging.INFO


@pytest.mark.parametrize("directive", ["loud", "icefloe=loud", "=debug", "icefloe"])
def test_a_filter_that_is_none_is_refused(directive: str) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="log filter"):
        parse_directive(directive)
