"""The command: what people see, what machines read, and what happens when something is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.servers.s3 import S3Server
from typer.main import get_command
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import COMMANDS, build_app, main

Run = Callable[..., str]
Ask = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A repository with two branches, a tag, a move, inline, native and virtual chunks."""
    where = str(tmp_path / "weather")
    data = tmp_path / "data"
    data.mkdir()
    (data / "raw.bin").write_bytes(np.arange(4, dtype="<f4").tobytes())
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(f"file://{data}/", icefloe.local_filesystem_store(str(data)))
    )
    repository = icefloe.Repository.create(where, config)
    with repository.transaction("main", message="First arrays", metadata={"author": "Ada"}) as store:
        root = zarr.create_group(store, attributes={"title": "weather"})
        surface = root.create_group("surface")
        surface.create_array(
            "t2m", shape=(8, 64), chunks=(2, 64), dtype="f8", dimension_names=["time", "x"], compressors=None
        )[:] = np.arange(512).reshape(8, 64)
        surface.create_array("x", data=np.arange(4, dtype="i4"))
        surface.create_array("raw", shape=4, chunks=4, dtype="<f4", compressors=None)
        store.set_virtual_ref("surface/raw/c/0", f"file://{data}/raw.bin", offset=0, length=16)
    first = repository.lookup_branch("main")
    repository.create_tag("v1", first)
    repository.create_branch("side", first)
    with repository.transaction("side", message="Side [bold]work[/]") as store:
        zarr.open_array(store, path="surface/t2m", mode="r+")[0] = -1
    session = repository.writable_session("main")
    session.move("/surface", "/ground")
    session.commit("Moved")
    return where


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, code: int = 0) -> str:
        result = main([str(each) for each in arguments])
        told = capsys.readouterr()
        assert result == code, told.err
        if code:
            assert told.out == ""
            return told.err
        return told.out

    return call


@pytest.fixture
def ask(run: Run) -> Ask:
    return lambda *arguments: json.loads(run(*arguments, "--json"))


def test_every_command_has_its_summary_and_json() -> None:
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        assert command.help.partition("\n")[0] == COMMANDS[name].summary
        assert "--json" in [option for parameter in command.params for option in parameter.opts]
        assert command.params[0].name == {"ingest": "sources", "sync": "sources", "demo": "folder"}.get(name, "repo")


def test_the_page_about_the_command_line_describes_every_command(repository_root: Path) -> None:
    page = (repository_root / "docs" / "cli.md").read_text()
    told = set(re.findall(r"^\| `([a-z-]+)", page, re.MULTILINE))
    assert set(COMMANDS) <= told


def test_help_names_every_command_without_loading_the_library() -> None:
    code = "import sys; from icefloe.cli.app import main; main(['--help']); sys.exit('zarr' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, command in COMMANDS.items():
        assert re.search(rf"\b{name}\b +{re.escape(command.summary[:30])}", told.stdout)


def test_info_in_a_pipe_imports_no_rich(place: str) -> None:
    code = f"import sys; from icefloe.cli.app import main; main(['info', {place!r}]); sys.exit('rich' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "2 groups, 3 arrays" in told.stdout


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_80_columns_and_uses_plain_words(name: str | None) -> None:
    arguments = ["--help"] if name is None else [name, "--help"]
    result = CliRunner().invoke(build_app(), arguments, env={"COLUMNS": "80"}, prog_name="icefloe")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert not re.search(r"\w\.\.\.|…", result.output)
    words = set(re.findall(r"[a-z]+", re.sub(r"in-\s*place", "", result.output).lower()))
    assert not words & {"place", "room", "door", "verb", "verbs"}


def test_an_option_reads_the_same_in_every_command() -> None:
    """Options of one name are declared once, so that their help and their short forms agree."""
    own = {"--branch", "--tag", "--snapshot", "--to", "--region", "--older-than", "--drop", "--unpack", "--group"}
    own |= {"--delete", "--chunks", "--message", "--engine", "--limit"}
    texts: dict[str, set[tuple[str, ...]]] = {}
    for command in get_command(build_app()).commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            name = next((each for each in parameter.opts if each.startswith("--")), None)
            if name is not None and name not in own:
                texts.setdefault(name, set()).add((*sorted(parameter.opts), str(parameter.help)))
    assert {name: found for name, found in texts.items() if len(found) > 1} == {}


def test_the_app_runs_under_the_test_runner_of_typer(place: str) -> None:
    result = CliRunner().invoke(build_app(), ["branch", place, "--json"])
    assert result.exit_code == 0
    assert [branch["name"] for branch in json.loads(result.stdout)] == ["main", "side"]


@pytest.mark.long
def test_a_real_process_prints_and_exits(place: str, tmp_path: Path) -> None:
    def icefloe_command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "icefloe.cli.app", *arguments], capture_output=True, text=True, cwd=tmp_path
        )

    assert "├─╯" in icefloe_command("log", place, "--graph").stdout
    missing = icefloe_command("info", "nowhere")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.count("\n") == 1
    assert missing.stderr.startswith("error: no repository at ")
    assert "Traceback" in icefloe_command("info", "nowhere", "--debug").stderr
    wrong = icefloe_command("log", place, "--colour-me-surprised")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Did you mean 'log'" in icefloe_command("lgo", place).stderr


@pytest.mark.long
def test_a_reader_that_closes_the_pipe_is_no_error(place: str) -> None:
    command = f'"{sys.executable}" -m icefloe.cli.app cat "{place}" ground/t2m | true; exit ${{PIPESTATUS[0]}}'
    told = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert told.returncode in (0, 1, 141)
    assert told.stderr == ""


def test_create_makes_a_repository_once(run: Run, ask: Ask, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("inline_chunk_threshold_bytes: 64\n")
    made = ask("create", str(tmp_path / "new"), "--config", str(config))
    assert made["created"] and made["spec_version"] == "repository"
    assert icefloe.Repository.open(tmp_path / "new").config.inline_chunk_threshold_bytes == 64
    assert "already" in run("create", str(tmp_path / "new"), code=1)
    assert ask("create", str(tmp_path / "new"), "--exist-ok")["created"] is False
    assert ask("create", str(tmp_path / "old"), "--spec-version", "icechunk1")["spec_version"] == "icechunk1"
    assert "spec_version='x'" in run("create", str(tmp_path / "x"), "--spec-version", "x", code=1)


def test_info_tells_what_there_is(run: Run, ask: Ask, place: str) -> None:
    facts = ask("info", place)
    assert (facts["branches"], facts["tags"]) == (["main", "side"], ["v1"])
    assert (facts["groups"], facts["arrays"], facts["chunk_refs"]) == (2, 3, 6)
    assert facts["snapshot"]["message"] == "Moved"
    assert "2 groups, 3 arrays" in run("info", place)


def test_tree_shows_nodes_at_any_point(run: Run, ask: Ask, place: str) -> None:
    assert [node["path"] for node in ask("tree", place)["nodes"]] == [
        "/",
        "/ground",
        "/ground/raw",
        "/ground/t2m",
        "/ground/x",
    ]
    assert [node["path"] for node in ask("tree", place, "--depth", "1")["nodes"]] == ["/", "/ground"]
    told = run("tree", place, "--tag", "v1")
    assert "t2m (time: 8, x: 64) float64" in told
    assert "nope" in run("tree", place, "nope", code=1)


def test_log_lists_and_draws(run: Run, ask: Ask, place: str) -> None:
    commits = ask("log", place)
    assert [commit["message"] for commit in commits["commits"]] == ["Moved", "First arrays", "Repository initialized"]
    assert commits["commits"][1]["metadata"] == {"author": "Ada"}
    assert commits["commits"][1]["refs"] == ["tag: v1"]
    assert ask("log", place, "-n", "1")["more"] is True
    assert "there is more" in run("log", place, "-n", "1")
    assert [line.split(" ", 1)[1] for line in run("log", place, "--oneline", "-b", "side").splitlines()] == [
        "(side) Side [bold]work[/]",
        "(tag: v1) First arrays",
        "Repository initialized",
    ]
    graph = ask("log", place, "--graph")
    assert {commit["column"] for commit in graph["commits"]} == {0, 1}
    assert {ref["name"] for ref in graph["refs"]} == {"main", "side", "v1"}
    assert "(side) Side [bold]work[/]" in run("log", place, "--graph")


@pytest.mark.long
def test_time_travel_goes_to_the_branch_as_it_was(run: Run, ask: Ask, tmp_path: Path) -> None:
    where = str(tmp_path / "slow")
    repository = icefloe.Repository.create(where)
    with repository.transaction("main", message="old") as store:
        zarr.create_group(store)
    time.sleep(1.1)
    with repository.transaction("main", message="new") as store:
        zarr.create_array(store, name="a", shape=1, dtype="i1")
    written = next(repository.ancestry(branch="main")).written_at
    before = written.replace(microsecond=0)
    assert ask("log", where, "--as-of", f"{before:%Y-%m-%dT%H:%M:%S}")["commits"][0]["message"] == "old"
    assert "no commit at" in run("info", where, "--as-of", "1999-01-01", code=1)
    assert "as_of" in run(
        "info", where, "--as-of", "1999-01-01", "--snapshot", repository.lookup_branch("main"), code=1
    )


def test_show_and_diff_tell_changes(run: Run, ask: Ask, place: str) -> None:
    shown = ask("show", place, "side", "--chunks")
    assert shown["message"] == "Side [bold]work[/]"
    assert shown["changes"]["updated_chunks"] == {"/surface/t2m": [[0, 0]]}
    assert ask("show", place, shown["id"][:10].lower())["id"] == shown["id"]
    assert ask("show", place, "--tag", "v1")["message"] == "First arrays"
    assert ask("diff", place)["moved_nodes"][0] == {"from": "/surface", "to": "/ground"}
    between = ask("diff", place, "v1", "side")
    assert between["updated_chunk_counts"] == {"/surface/t2m": 1}
    assert run("diff", place).splitlines() == ["> moved /surface → /ground"]
    assert "+ array /surface/t2m" in run("show", place, "v1")
    assert "no changes" in run("diff", place, "v1", "v1")


def test_branches_are_listed_made_reset_and_deleted(run: Run, ask: Ask, place: str) -> None:
    main_tip = ask("branch", place)[0]["snapshot_id"]
    assert ask("branch", place, "new", "v1")["created"] == "new"
    moved = ask("reset", place, "new", "main")
    assert (moved["branch"], moved["to"]) == ("new", main_tip)
    assert "error" in run("reset", place, "new", "v1", "--expect", ask("show", place, "v1")["id"], code=1)
    assert ask("branch", place, "--delete", "new") == {"deleted": ["new"]}
    assert [branch["name"] for branch in ask("branch", place)] == ["main", "side"]
    assert "main" in run("branch", place, "--delete", "main", code=1)
    assert "is not a branch, tag or snapshot" in run("branch", place, "x", "nowhere", code=1)
    run("branch", place, "x", "--delete", "side", code=2)
    assert "First arrays" not in run("branch", place)


def test_tags_are_listed_made_and_not_moved(run: Run, ask: Ask, place: str) -> None:
    assert ask("tag", place, "v2", "side")["created"] == "v2"
    assert [tag["name"] for tag in ask("tag", place)] == ["v1", "v2"]
    assert "error" in run("tag", place, "v2", "main", code=1)
    assert "error" in run("tag", place, "--delete", "v2", code=1)


def test_a_tag_can_be_deleted_where_the_generation_allows_it(run: Run, ask: Ask, tmp_path: Path) -> None:
    where = str(tmp_path / "two")
    run("create", where, "--spec-version", "icechunk2")
    run("tag", where, "v1")
    assert ask("tag", where, "--delete", "v1") == {"deleted": ["v1"]}
    assert ask("tag", where) == []


def test_ls_lists_groups_and_chunks(run: Run, ask: Ask, place: str) -> None:
    assert [child["path"] for child in ask("ls", place, "ground")["children"]] == [
        "/ground/raw",
        "/ground/t2m",
        "/ground/x",
    ]
    chunks = ask("ls", place, "ground/t2m", "-n", "3")
    assert (chunks["num_chunks"], len(chunks["chunks"]), chunks["more"]) == (4, 3, True)
    assert chunks["chunks"][0]["key"] == "ground/t2m/c/0/0"
    assert chunks["chunks"][0]["object"].startswith("chunks/")
    virtual = ask("ls", place, "ground/raw")["chunks"][0]
    assert (virtual["kind"], virtual["length"]) == ("virtual", 16)
    assert virtual["location"].endswith("/raw.bin")
    assert "4 chunks of 4" in run("ls", place, "ground/t2m")


@pytest.mark.long
def test_cat_prints_values_documents_and_bytes(run: Run, ask: Ask, place: str, tmp_path: Path) -> None:
    assert run("cat", place, "ground/x") == "[0 1 2 3]\n"
    assert ask("cat", place, "ground/t2m", "--slice", "1,:3")["values"] == [64.0, 65.0, 66.0]
    assert json.loads(run("cat", place, "/"))["attributes"] == {"title": "weather"}
    assert ask("cat", place, "ground/x/zarr.json")["document"]["shape"] == [4]
    raw = subprocess.run(
        [sys.executable, "-m", "icefloe.cli.app", "cat", place, "ground/t2m/c/0/0"], capture_output=True, check=True
    ).stdout
    assert raw == np.arange(128, dtype="f8").tobytes()
    assert "no array, group or key" in run("cat", place, "ground/nope", code=1)
    run("cat", place, "ground/x", "--slice", "a:b", code=2)
    run("cat", place, "ground/x", "--slice", "0,0", code=2)


def test_virtual_chunks_are_read_where_the_user_says_so(run: Run, ask: Ask, place: str, tmp_path: Path) -> None:
    assert "error" in run("cat", place, "ground/raw", code=1)
    prefix = f"file://{tmp_path / 'data'}/"
    assert ask("cat", place, "ground/raw", "--authorize", prefix)["values"] == [0.0, 1.0, 2.0, 3.0]


def test_manifests_and_stats_add_up(run: Run, ask: Ask, place: str) -> None:
    files = ask("manifests", place)["manifests"]
    assert sum(file["chunk_refs"] for file in files) == 6
    assert {array["path"] for file in files for array in file["arrays"]} == {"/ground/t2m", "/ground/x", "/ground/raw"}
    stats = ask("stats", place)
    assert stats["total"]["chunks"] == {"native": 4, "inline": 1, "virtual": 1}
    assert stats["total"]["bytes"]["native"] == 8 * 64 * 8
    assert stats["total"]["virtual_files"] == 1
    per_array = {array["path"]: array for array in stats["arrays"]}
    assert per_array["/ground/t2m"]["objects"] == stats["total"]["objects"] > 0
    assert "/ground/t2m" in run("manifests", place)
    assert re.search(r"all +6", run("stats", place))
    assert [array["path"] for array in ask("stats", place, "ground/x")["arrays"]] == ["/ground/x"]


def test_config_shows_sets_and_unsets(run: Run, ask: Ask, place: str, tmp_path: Path) -> None:
    run("config", place, "caching.num_bytes_chunks", "1000")
    run("config", place, "inline_chunk_threshold_bytes", "7")
    assert ask("config", place, "caching") == {"num_bytes_chunks": 1000}
    assert run("config", place, "inline_chunk_threshold_bytes") == "7\n"
    stored = icefloe.Repository.open(place).config
    assert stored.inline_chunk_threshold_bytes == 7
    assert len(stored.virtual_chunk_containers or {}) == 1
    text = run("config", place)
    (tmp_path / "again.yaml").write_text(text)
    run("config", place, "--unset", "caching.num_bytes_chunks")
    assert "caching" not in ask("config", place)
    run("config", place, "--file", str(tmp_path / "again.yaml"))
    assert run("config", place) == text
    refused = run("config", place, "inline_chunk_treshold_bytes", "7", code=1)
    assert "unknown setting 'inline_chunk_treshold_bytes'" in refused
    assert "inline_chunk_threshold_bytes" in refused
    assert "num_bytes_chunks" in run("config", place, "caching.num_bytes_chunk", "7", code=1)
    assert "Allowed" in run("config", place, "inline_chunk_threshold_bytes", "many", code=1)
    assert "not set" in run("config", place, "--unset", "compression", code=1)
    run("config", place, "a", "1", "--unset", "b", code=2)


def test_config_shows_defaults_and_names_settings_without_effect(run: Run, ask: Ask, place: str) -> None:
    assert ask("config", place, "caching.num_chunk_refs") == 15_000_000
    assert ask("config", place, "chunk_packing")["by"] == "mixed"
    assert "Known settings: " in run("config", place, "caching.nothing", code=1)
    listed = {each["setting"]: each for each in ask("config", place, "--all")}
    assert listed["inline_chunk_threshold_bytes"]["default"] == 512
    assert all(each["effect"] for each in listed.values() if each["setting"] != "manifest")
    assert "storage.retries.max_tries" in run("config", place, "--all")


def test_a_setting_without_effect_says_so_when_it_is_set(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", place, "get_partial_values_concurrency", "7"]) == 0
    told = capsys.readouterr().err
    assert "get_partial_values_concurrency" in told and "does not use it" in told and "max_concurrent_requests" in told
    assert main(["config", place, "--unset", "get_partial_values_concurrency"]) == 0
    assert "does not use it" not in capsys.readouterr().err


def test_storage_options_reach_the_storage(run: Run, place: str) -> None:
    assert "colour" in run("info", place, "--option", "colour=blue", code=1)
    run("info", place, "--option", "colour", code=2)


@pytest.mark.parametrize("generation", ["dataset", "store", "repository", "icechunk1", "icechunk2"])
def test_commands_that_inspect_work_on_every_generation(run: Run, ask: Ask, tmp_path: Path, generation: str) -> None:
    where = str(tmp_path / generation)
    run("create", where, "--spec-version", generation)
    with icefloe.Repository.open(where).transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(10_000, dtype="i8"), chunks=(5_000,))
    for verb in ("info", "tree", "ls", "log", "show", "diff", "stats", "manifests", "branch", "tag", "config"):
        assert ask(verb, where) is not None
        run(verb, where)
    assert ask("log", where, "--graph")["commits"][0]["message"] == "data"
    assert ask("cat", where, "a", "--slice", "9998:")["values"] == [9998, 9999]
    short = ask("log", where)["commits"][0]["id"][:12]
    assert ask("show", where, short)["message"] == "data"


@pytest.mark.long
@pytest.mark.compat
def test_repositories_of_official_releases_are_shown(run: Run, ask: Ask, fixtures_folder: Path) -> None:
    for where in sorted(str(path) for path in fixtures_folder.glob("*/repo")):
        for verb in ("info", "tree", "log", "show", "diff", "stats", "manifests", "branch", "tag", "ls"):
            assert ask(verb, where) is not None
        assert "Repository initialized" in run("log", where, "--graph")


@pytest.mark.s3
def test_a_repository_on_an_object_store_is_named_by_url(ask: Ask, s3_server: S3Server, s3_bucket: str) -> None:
    given = {
        key: value for key, value in s3_server.storage_options(s3_bucket).items() if key not in ("bucket", "prefix")
    }
    options = [part for key, value in given.items() for part in ("-o", f"{key}={json.dumps(value)}")]
    where = f"s3://{s3_bucket}/weather"
    assert ask("create", where, *options)["url"] == where + "/"
    assert ask("branch", where, "dev", *options)["created"] == "dev"
    assert len(ask("log", where, "--graph", *options)["refs"]) == 2


@pytest.mark.long
def test_colours_are_for_terminals_only(place: str) -> None:
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    script = f'"{sys.executable}" -m icefloe.cli.app log "{place}" --graph'
    piped = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert "\x1b" not in piped.stdout
    on_screen = subprocess.run(
        ["script", "-qec", script, "/dev/null"],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert "\x1b[" in on_screen.stdout
