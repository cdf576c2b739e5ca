"""The help of every command: it fits a terminal, describes every option, shows defaults, and its examples are valid."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from icefloe.cli.app import COMMANDS, build_app

COLUMNS = 80
GROUP: Any = get_command(build_app())


def context_of(name: str) -> Any:
    command = GROUP.commands[name]
    return command.context_class(
        command, info_name=f"icefloe {name}", terminal_width=COLUMNS, max_content_width=COLUMNS
    )


def examples_of(name: str) -> list[str]:
    _, _, examples = GROUP.commands[name].get_help(context_of(name)).partition("\nExamples:\n")
    return [line.strip() for line in examples.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_terminal(name: str) -> None:
    lines = GROUP.commands[name].get_help(context_of(name)).splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_is_described_and_shows_its_default(name: str) -> None:
    context = context_of(name)
    for parameter in GROUP.commands[name].params:
        _, described = parameter.get_help_record(context)
        text = described.partition("[")[0].strip()
        assert text.endswith("."), (parameter.name, described)
        if parameter.default not in (None, False, [], ()):
            assert "default: " in described, (parameter.name, described)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_one_or_two_examples_that_its_parser_accepts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.yaml").touch()
    monkeypatch.chdir(tmp_path)
    examples = examples_of(name)
    assert 1 <= len(examples) <= 2
    for example in examples:
        program, command, *arguments = shlex.split(example)
        assert (program, command) == ("icefloe", name)
        with GROUP.commands[name].make_context(name, arguments):
            pass


def test_the_list_of_commands_fits_a_terminal() -> None:
    context = typer.Context(GROUP, info_name="icefloe", terminal_width=COLUMNS, max_content_width=COLUMNS)
    assert [line for line in GROUP.get_help(context).splitlines() if len(line) > COLUMNS] == []
