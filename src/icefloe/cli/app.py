"""The entry point: loads the verb that was asked for, runs it, and turns errors into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from icefloe.cli.output import stderr, stdout, styled
from icefloe.cli.verbs import VERBS
from icefloe.debug import debug_info, initialize_logs
from icefloe.errors import IcefloeError

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
            importlib.import_module(verb.module).register(app)
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
