"""The development script installs when it must, not when it need not, and says what to do when it cannot."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "dev.py"


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at home in a project of two files."""
    spec = importlib.util.spec_from_file_location("icefloe_dev_script", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "requirements").mkdir()
    for version in module.VERSIONS:
        (tmp_path / "requirements" / f"lock-{version}.txt").write_text("zarr==3.1.6\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return module


@pytest.fixture
def installed(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The arguments of every call of pip; nothing is really installed."""
    calls: list[tuple[str, ...]] = []

    def create(environment: object) -> None:
        python = environment.python  # type: ignore[attr-defined]
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)

    monkeypatch.setattr(dev, "create", create)
    monkeypatch.setattr(dev, "pip", lambda environment, *arguments: calls.append(arguments))
    return calls


def test_a_second_run_installs_nothing(dev: ModuleType, installed: list[tuple[str, ...]]) -> None:
    dev.prepare(None)
    assert len(installed) == 2
    dev.prepare(None)
    assert len(installed) == 2


def test_another_version_of_spark_has_an_environment_of_its_own(
    dev: ModuleType, installed: list[tuple[str, ...]], tmp_path: Path
) -> None:
    for version in dev.VERSIONS:
        (tmp_path / "requirements" / f"lock-{version}.txt").write_text("py4j==1\npyspark==4.3.0\nzarr==3.1.6\n")
    usual, older = dev.prepare(None), dev.prepare(None, "4.0")
    assert older.folder != usual.folder
    assert usual.requirements() == usual.lock.read_text()
    assert older.requirements() == "zarr==3.1.6\npyspark==4.0.*\n"
    assert (older.folder / "requirements.txt").read_text() == older.requirements()
    assert len(installed) == 4
    dev.prepare(None, "4.0")
    assert len(installed) == 4
    assert dev.main(["test", "--spark", "2.4"]) == 2


def test_the_tests_with_another_version_of_spark_are_those_of_spark_that_are_not_slow(
    dev: ModuleType, installed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(dev, "attempt", lambda command, **variables: commands.append(list(map(str, command))) or 5)
    assert dev.main(["test", "--spark", "4.0"]) == 0
    selected = [command[command.index("pytest") :] for command in commands if "pytest" in command]
    assert [command[command.index("-m") + 1] for command in selected] == ["spark and not slow"]


@pytest.mark.parametrize("changed", ["lock", "pyproject.toml"])
def test_a_changed_lock_or_project_file_is_installed(
    dev: ModuleType, installed: list[tuple[str, ...]], tmp_path: Path, changed: str
) -> None:
    environment = dev.prepare(None)
    target = environment.lock if changed == "lock" else tmp_path / changed
    target.write_text(target.read_text() + "# new\n")
    dev.prepare(None)
    assert len(installed) == 4


def test_a_failed_set_up_is_tried_again(
    dev: ModuleType, installed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(environment: object, *arguments: str) -> None:
        raise dev.SetupError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(dev, "pip", fail)
        with pytest.raises(dev.SetupError):
            dev.prepare(None)
    dev.prepare(None)
    assert len(installed) == 2


def test_a_python_without_a_lock_file_is_refused_with_those_that_have_one(
    dev: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.main(["test", "--python", "3.9"]) == 2
    message = capsys.readouterr().err
    assert all(version in message for version in dev.VERSIONS)


def test_what_the_script_does_not_know_goes_to_pytest(dev: ModuleType) -> None:
    arguments, rest = dev.parse(["test", "--quick", "-k", "rebase", "tests/session"])
    assert arguments.quick
    assert rest == ["-k", "rebase", "tests/session"]


def test_the_quick_run_is_a_part_of_the_ordinary_run_and_leaves_out_declared_marks(dev: ModuleType) -> None:
    project = tomllib.loads((SCRIPT.parent / "pyproject.toml").read_text())
    declared = {line.partition(":")[0] for line in project["tool"]["pytest"]["ini_options"]["markers"]}
    quick, ordinary = (set(marks.split(" and ")) for marks in (dev.QUICK, dev.ORDINARY))
    assert ordinary < quick <= {f"not {name}" for name in declared}


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Collecting zarr==3.1.6 (from -r lock.txt (line 1))\n", "zarr==3.1.6"),
        ("Processing /cache/files/attrs-26.1.0-py3-none-any.whl (from x)\n", "attrs-26.1.0-py3-none-any.whl"),
        ("Installing collected packages: a, b\n", "installing collected packages"),
        ("WARNING: something\n", None),
        ("\n", None),
    ],
)
def test_waiting_people_see_one_word_per_package(dev: ModuleType, line: str, step: str | None) -> None:
    assert dev.pip_step(line) == step


def test_a_browser_is_installed_only_when_it_is_asked_for(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def attempt(command: list[object], **variables: str) -> int:
        commands.append([str(part) for part in command])
        return 0

    monkeypatch.setattr(dev, "attempt", attempt)
    monkeypatch.setattr(
        dev, "prepare", lambda version: dev.Environment(Path("venv"), dev.Interpreter("3.11", "python"))
    )
    monkeypatch.setattr(dev.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(dev.os, "geteuid", lambda: 0, raising=False)
    monkeypatch.delenv("ICEFLOE_BROWSER", raising=False)
    for ci, options, expected in (("", [], False), ("", ["--browser"], True), ("true", [], True)):
        commands.clear()
        monkeypatch.setenv("CI", ci)
        assert dev.main(["test", *options]) == 0
        assert (["apt-get", "install", "-y", "-qq", "chromium"] in commands) is expected
