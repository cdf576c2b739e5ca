"""Texts of a repository reach terminals and pages without control characters, and are no markup there."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import pty
import re
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import icefloe
from icefloe.cli.app import main
from icefloe.cli.console import _SafeConsole
from icefloe.errors import FormatError, printable

TITLE = "\x1b]0;PWNED TITLE\x07"
EVIL = f"{TITLE}\x1b[2J\x1b[1;1Hall is well\x1b[8m hidden \x9b31m \x08\x08 \u202eesrever \r [bold red]x[/] [link=http://e]y[/]"
NAME = "arr\x1b[2Jname [bold]x"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What a terminal is told by ourselves: colours, line ends, and the lines of a progress bar.
_OURS = re.compile("\x1b\\[[0-9;]*m|\r\n|\x1b\\[[?]25[lh]|\r?\x1b\\[(2K|1A)")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    folder = tmp_path_factory.mktemp("hostile") / "repo"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("file:///\x1b[2Jx/", icefloe.local_filesystem_store("/"), "n\x1b[2J")
    )
    repo = icefloe.Repository.create(str(folder), config)
    with repo.transaction("main", message=f"msg {EVIL}", metadata={f"by{EVIL}": f"meta {EVIL}"}) as store:
        zarr.create_group(store, attributes={"title": f"attr {EVIL}"})
        array = zarr.create_array(
            store, name=NAME, shape=(4,), chunks=(2,), dtype="i4", attributes={"units": EVIL}, dimension_names=[EVIL]
        )
        array[:] = 1
        zarr.create_array(store, name="s", data=np.array([f"val {EVIL}"], dtype=np.dtypes.StringDType()))
        store.set_virtual_ref(f"{NAME}/c/0", "file:///\x1b[2Jx/\x9b2J", offset=0, length=8, validate_container=False)
    with repo.transaction("main", message=EVIL) as store:
        zarr.open_array(store, path=NAME)[:] = 2
    return repo


def _first_two(repo: icefloe.Repository) -> tuple[str, str]:
    ids = [info.id for info in repo.ancestry(branch="main")]
    return ids[1], ids[0]


VERBS: list[tuple[str, ...]] = [
    ("log",),
    ("log", "--oneline"),
    ("log", "--graph"),
    ("tree",),
    ("ls",),
    ("ls", "PATH", NAME),
    ("show",),
    ("diff",),
    ("branch",),
    ("tag",),
    ("info",),
    ("stats",),
    ("manifests",),
    ("verify",),
    ("config",),
    ("cat", "PATH", "s"),
    ("cat", "PATH", NAME),
    ("cat", "PATH", "/"),
    ("cat", "PATH", f"{NAME}/zarr.json"),
    ("cat", "PATH", "missing\x1b[2J"),
    ("gc", "--dry-run", "--older-than", "0s"),
    ("expire", "--dry-run", "--older-than", "0s"),
    ("compact", "--dry-run"),
    ("rewrite", "--dry-run"),
    ("reset", "--help"),
]


def _arguments(repo: icefloe.Repository, verb: tuple[str, ...]) -> list[str]:
    folder = repo.storage.url.removeprefix("file://")
    rest = [word for word in verb[1:] if word != "PATH"]
    if verb[0] == "diff":
        rest = list(_first_two(repo))
    return [verb[0], folder, *rest]


def _on_a_terminal(arguments: list[str]) -> str:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "200"
        os.environ.pop("NO_COLOR", None)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        try:
            main(arguments)
            sys.stdout.flush()
        finally:
            os._exit(0)
    found = b""
    try:
        while data := os.read(fd, 65536):
            found += data
    except OSError:
        pass
    os.close(fd)
    os.waitpid(pid, 0)
    return found.decode("utf-8", "replace")


@pytest.mark.long
def test_no_verb_lets_a_repository_talk_to_the_terminal(repository: icefloe.Repository) -> None:
    told = ""
    for verb in VERBS:
        arguments = _arguments(repository, verb)
        text = _on_a_terminal(arguments)
        assert text.strip(), verb
        left = CONTROL.search(_OURS.sub("", text))
        assert left is None, (verb, text[max(0, left.start() - 60) : left.end() + 60])
        assert "\x1b[8m" not in text and "Traceback" not in text, (verb, text)
        told += text
    # Markup is shown, not followed.
    assert "[bold red]x[/]" in told and "[link=http://e]y[/]" in told


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb[0] in ("log", "tree", "ls", "show", "info", "stats")])
def test_json_spells_control_characters_and_loses_nothing(
    repository: icefloe.Repository, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--oneline" in verb:
        return
    assert main([*_arguments(repository, verb), "--json"]) == 0
    text = capsys.readouterr().out
    assert CONTROL.search(text) is None
    document: Any = json.loads(text)
    if verb == ("log",):
        assert document["commits"][0]["message"] == EVIL


def test_what_is_printed_in_python_is_safe_too(repository: icefloe.Repository) -> None:
    old, new = _first_two(repository)
    parent = repository.lookup_snapshot(old).parent_id
    diff = repository.diff(from_snapshot_id=parent, to_snapshot_id=new)
    graph = repository.ancestry_graph()
    session = repository.readonly_session("main")
    texts = [str(diff), repr(diff), graph.text(), repr(repository), repr(session), str(repository.verify())]
    texts += [str(repository.plan_garbage_collection(dt.timedelta(0)))]
    texts += [repr(repository.lookup_snapshot(new))]
    for text in texts:
        assert CONTROL.search(text) is None, text
    for shown in (diff, graph, session, repository.lookup_snapshot(new)):
        out = io.StringIO()
        Console(file=out, width=200).print(shown)
        assert CONTROL.search(out.getvalue()) is None
        ElementTree.fromstring(shown._repr_html_())
        assert CONTROL.search(shown._repr_html_()) is None and "<b>x" not in shown._repr_html_()
    ElementTree.fromstring(graph.to_svg())


def test_errors_quote_names_without_control_characters() -> None:
    error = FormatError(f"the array {EVIL} is broken")
    assert CONTROL.search(str(error) + error.message + repr(error)) is None
    with pytest.raises(icefloe.IcefloeError) as raised:
        icefloe.Repository.create(icefloe.in_memory_storage()).lookup_branch(EVIL)
    assert CONTROL.search(str(raised.value)) is None


@given(st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d\x07[];m0\\PX^_"), max_size=60))
def test_no_text_stays_that_a_terminal_acts_on(text: str) -> None:
    shown = printable(text)
    assert CONTROL.search(shown) is None
    assert printable(shown) == shown
    shown.encode()
    out = io.StringIO()
    _SafeConsole(file=out, force_terminal=True, color_system=None, markup=False, emoji=False).print(text)
    assert CONTROL.search(out.getvalue()) is None


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=40))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text.replace("\u200e", "\\u200e")
