"""The entry point of the `icefloe` command: find the verb, run it, turn errors into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from icefloe.cli.output import stderr, stdout, styled
from icefloe.debug import debug_info, initialize_logs
from icefloe.errors import IcefloeError

LOOK = "Look"
CHANGE = "Change"
DATA = "Bring in and take out"
CARE = "Take care"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb before its module is loaded."""

    module: str
    summary: str
    """The first line of its help; a test holds both together."""
    heading: str


VERBS: Mapping[str, Verb] = {
    "info": Verb("icefloe.cli.inspect", "What a repository is and holds, at a glance.", LOOK),
    "tree": Verb("icefloe.cli.inspect", "Groups and arrays as a tree.", LOOK),
    "ls": Verb("icefloe.cli.inspect", "What is in a group, or the chunks of an array.", LOOK),
    "cat": Verb("icefloe.cli.inspect", "Print a key's bytes, a group's document or the values of an array.", LOOK),
    "log": Verb("icefloe.cli.inspect", "Commits, newest first; with --graph all branches as a drawing.", LOOK),
    "show": Verb("icefloe.cli.inspect", "One commit: who, when, why, and what it changed.", LOOK),
    "diff": Verb("icefloe.cli.inspect", "What changed between two points of history.", LOOK),
    "stats": Verb("icefloe.cli.stats", "Chunks by kind, objects and bytes, per array.", LOOK),
    "manifests": Verb("icefloe.cli.stats", "Which arrays sit in which manifest, with sizes and extents.", LOOK),
    "sql": Verb("icefloe.cli.sql", "Query arrays and metadata with Spark SQL.", LOOK),
    "create": Verb("icefloe.cli.config", "Make a new repository.", CHANGE),
    "branch": Verb("icefloe.cli.refs", "List, create or delete branches.", CHANGE),
    "tag": Verb("icefloe.cli.refs", "List, create or delete tags.", CHANGE),
    "reset": Verb("icefloe.cli.refs", "Point a branch at another snapshot.", CHANGE),
    "config": Verb("icefloe.cli.config", "Show or change the configuration kept in a repository.", CHANGE),
    "ingest": Verb("icefloe.cli.ingest", "Ingest NetCDF, HDF5, Zarr and other files with one commit, on Spark.", DATA),
    "export": Verb(
        "icefloe.cli.export", "Write a snapshot, or a part of it, as plain Zarr, Parquet or another repository.", DATA
    ),
    "demo": Verb(
        "icefloe.cli.demo", "Make a month of weather, ingest it on Spark, branch, travel back, draw a picture.", DATA
    ),
    "convert": Verb(
        "icefloe.cli.export",
        "Make a repository of another generation, with all its history, elsewhere or in its place.",
        CARE,
    ),
    "merge": Verb("icefloe.cli.refs", "Merge a branch into another; pick, revert or squash commits.", CHANGE),
    "expire": Verb("icefloe.cli.maintenance", "Take old snapshots out of history; `gc` then frees their files.", CARE),
    "gc": Verb("icefloe.cli.maintenance", "Delete what no branch or tag leads to and what is old enough.", CARE),
    "compact": Verb(
        "icefloe.cli.maintenance",
        "Pack small chunks together, drop dead bytes, or undo that; data stay as they are.",
        CARE,
    ),
    "materialize": Verb(
        "icefloe.cli.maintenance",
        "Copy virtual chunks into a repository, so that it no longer needs the files they lie in.",
        CARE,
    ),
    "rewrite-manifests": Verb(
        "icefloe.cli.maintenance", "Pack the manifests of a branch anew, after the configuration.", CARE
    ),
    "analyze": Verb(
        "icefloe.cli.sql",
        "Find and keep minimum, maximum and counts of every chunk that has none yet, on Spark.",
        CARE,
    ),
    "mirror": Verb(
        "icefloe.cli.export", "Make another place a copy of a repository; again, only what is new is copied.", CARE
    ),
    "verify": Verb(
        "icefloe.cli.maintenance",
        "Check that all a repository holds is there and is whole; exits with 1 when it is not.",
        CARE,
    ),
}


_FAILED, _INTERRUPTED, _CLOSED_PIPE = 1, 130, 141
_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 for an error, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in given
    # It may stand anywhere, but belongs to the command as a whole.
    given = [_DEBUG] * debug + [each for each in given if each != _DEBUG]
    try:
        try:
            initialize_logs()
            build_app(_wanted(given))(args=given, prog_name="icefloe")
            stdout().file.flush()
        finally:
            # Here rather than when Python exits, which can only complain about a reader that is gone.
            sys.stdout.flush()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except IcefloeError as error:
        _report(*(str(error).splitlines() or [type(error).__name__]), debug=debug)
        return _FAILED
    except Exception as error:  # noqa: BLE001 - the outermost edge: a person gets a line, not a traceback
        _report(f"{type(error).__name__}: {error}", debug=debug)
        return _FAILED
    return 0


def build_app(load: Collection[str] = tuple(VERBS)) -> typer.Typer:
    """The command with some verbs loaded; of the others only their line of help is there."""
    app = typer.Typer(
        name="icefloe",
        help="Versioned storage for Zarr arrays. Every verb takes the path or URL of a repository first.",
        epilog="Errors exit with 1, wrong usage with 2. [bold]icefloe VERB --help[/] tells the options of a verb.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, verb in VERBS.items():
        if name in load:
            getattr(importlib.import_module(verb.module), f"register_{name.replace('-', '_')}")(app)
        else:
            app.command(name, help=verb.summary)(_not_loaded)
        app.registered_commands[-1].rich_help_panel = verb.heading
    return app


def _wanted(arguments: Sequence[str]) -> Collection[str]:
    if any(name.endswith("_COMPLETE") and "ICEFLOE" in name for name in os.environ):
        return tuple(VERBS)
    return tuple(each for each in arguments if not each.startswith("-"))[:1]


def _not_loaded() -> None:
    raise AssertionError("this verb was not loaded")


def _version(asked: bool) -> None:
    if asked:
        for name, version in debug_info().items():
            stdout().print(f"{name} {version}", highlight=False)
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions of everything that matters.")
    ] = False,
) -> None:
    pass


def _report(message: str, *details: str, debug: bool) -> None:
    console = stderr()
    if debug:
        console.print_exception(show_locals=False)
    console.print(styled("[bold red]error:[/] "), end="")
    console.print(" ".join(message.split()), markup=False, highlight=False, soft_wrap=True)
    # What several files or nodes are to blame for is a line each.
    for detail in details:
        console.print(detail, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
