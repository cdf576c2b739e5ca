"""The entry point of the `icefloe` command: find the command, run it, turn errors into a message and an exit code."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from icefloe.debug import debug_info, initialize_logs
from icefloe.errors import FormatError, IcefloeError, InvalidInputError

_INSPECT = "Inspect a repository"
_CHANGE = "Change a repository"
_TRANSFER = "Import and export data"
_MAINTAIN = "Maintain a repository"


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What is known of a command before its module is imported."""

    module: str
    """The module below `icefloe.cli` with the function of the command."""
    summary: str
    """The first line of its help. A test compares it with the docstring of the function."""
    heading: str


COMMANDS: Mapping[str, Command] = {
    "info": Command("info", "Show a summary of a repository.", _INSPECT),
    "tree": Command("inspect", "Show groups and arrays as a tree.", _INSPECT),
    "ls": Command("inspect", "List a group, or the chunks of an array.", _INSPECT),
    "cat": Command("inspect", "Print array values, group metadata or a key.", _INSPECT),
    "log": Command("inspect", "List commits, newest first.", _INSPECT),
    "show": Command("inspect", "Show one commit and its changes.", _INSPECT),
    "diff": Command("inspect", "Show the changes between two revisions.", _INSPECT),
    "stats": Command("inspect", "Show chunks, objects and bytes per array.", _INSPECT),
    "manifests": Command("inspect", "Show the arrays and extents of each manifest.", _INSPECT),
    "sql": Command("sql", "Run a SQL query over arrays and metadata.", _INSPECT),
    "view": Command("inspect", "Show a repository in the browser.", _INSPECT),
    "create": Command("config", "Create a repository.", _CHANGE),
    "branch": Command("refs", "List, create or delete branches.", _CHANGE),
    "tag": Command("refs", "List, create or delete tags.", _CHANGE),
    "reset": Command("refs", "Point a branch at another snapshot.", _CHANGE),
    "reflog": Command("refs", "Show where a branch was, newest first.", _INSPECT),
    "merge": Command("refs", "Merge a branch, or apply or revert commits.", _CHANGE),
    "mv": Command("refs", "Move or rename a group or an array.", _CHANGE),
    "rm": Command("refs", "Delete groups or arrays with one commit.", _CHANGE),
    "attrs": Command("refs", "Show or change the attributes of a node.", _CHANGE),
    "config": Command("config", "Show or change the stored configuration.", _CHANGE),
    "status": Command("refs", "Show or set whether a repository accepts writes, in icechunk2.", _CHANGE),
    "flags": Command("refs", "Show or set the feature flags of a repository, in icechunk2.", _CHANGE),
    "ingest": Command("ingest", "Ingest NetCDF, HDF5, Zarr or other files.", _TRANSFER),
    "sync": Command("ingest", "Make an archive equal to its files.", _TRANSFER),
    "export": Command("export", "Export to Zarr, Parquet or a repository, on Spark.", _TRANSFER),
    "demo": Command("demo", "Run a demonstration with synthetic data, on Spark.", _TRANSFER),
    "expire": Command("maintenance", "Remove old snapshots from history.", _MAINTAIN),
    "gc": Command("maintenance", "Delete unreachable objects.", _MAINTAIN),
    "compact": Command(
        "maintenance", "Pack small chunks into larger objects, or merge them into larger chunks.", _MAINTAIN
    ),
    "materialize": Command("maintenance", "Copy virtual chunks into the repository.", _MAINTAIN),
    "rewrite-manifests": Command("maintenance", "Rewrite the manifests of a branch.", _MAINTAIN),
    "analyze": Command("sql", "Compute statistics of chunks, on Spark.", _MAINTAIN),
    "verify": Command("maintenance", "Check that all files exist and are intact.", _MAINTAIN),
    "mirror": Command("export", "Copy a repository to another location.", _MAINTAIN),
    "convert": Command("export", "Convert a repository to another generation.", _MAINTAIN),
}


_FAILED, _INTERRUPTED, _CLOSED_PIPE = 1, 130, 141
_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 for an error, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, as_json = _DEBUG in given, "--json" in given
    # The option is accepted at any position, but Typer knows it before the command only.
    given = [_DEBUG] * debug + [each for each in given if each != _DEBUG]
    collecting = gc.isenabled()
    try:
        try:
            # Nothing that is imported becomes garbage. Python would look for it a dozen times.
            gc.disable()
            _accept_all_characters()
            initialize_logs()
            build_app(_wanted(given))(args=given, prog_name="icefloe")
        finally:
            if collecting:
                gc.enable()
            # When Python exits, it is too late to handle a closed pipe.
            sys.stdout.flush()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed it. Without this, Python prints a second error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except IcefloeError as error:
        # What was read when the error occurred is a note. Of a broken file it is the name.
        notes = getattr(error, "__notes__", []) if isinstance(error, FormatError) else []
        lines = [*str(error).splitlines(), *notes] or [type(error).__name__]
        _report(error, *lines, debug=debug, as_json=as_json)
        return _FAILED
    except Exception as error:  # noqa: BLE001 - the outermost edge: print one line instead of a traceback
        _report(error, f"{type(error).__name__}: {error}", debug=debug, as_json=as_json)
        return _FAILED
    return 0


class _Commands(TyperGroup):
    """The list of commands in `icefloe --help`, with a heading for each kind."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for heading in dict.fromkeys(command.heading for command in COMMANDS.values()):
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.summary)
                        for name, command in COMMANDS.items()
                        if command.heading == heading
                    ]
                )


_EXAMPLES = "\n\nExamples\n--------\n"


class _Command(TyperCommand):
    """A command whose help ends with examples, one a line. They are not wrapped."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not self.epilog:
            return
        with formatter.section("Examples"):
            for line in self.epilog.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def build_app(load: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The Typer app with some commands loaded. If none is, all have only their line of help."""
    app = typer.Typer(
        name="icefloe",
        cls=_Commands,
        help="Versioned storage for Zarr arrays.",
        epilog="`icefloe COMMAND --help` describes a command. Exit codes: 0 success, 1 error, 2 wrong usage.",
        no_args_is_help=True,
        # Plain text wraps at any width. The tables of rich truncate option names in 80 columns.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    loaded = [name for name in COMMANDS if name in load]
    for name in loaded:
        module = importlib.import_module(f"icefloe.cli.{COMMANDS[name].module}")
        run = expand_groups(getattr(module, name.replace("-", "_")))
        description, _, examples = inspect.cleandoc(run.__doc__ or "").partition(_EXAMPLES)
        app.command(name, cls=_Command, help=description, epilog=examples)(run)
    for name, command in COMMANDS.items() if not loaded else ():
        app.command(name, help=command.summary)(_not_loaded)
    return app


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with the fields of its option groups as parameters of their own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = hints[name]
        if not dataclasses.is_dataclass(group):
            parameters.append(parameter.replace(annotation=group))
            continue
        assert isinstance(group, type)
        types = get_type_hints(group, include_extras=True)
        fields = dataclasses.fields(group)
        groups[name] = group, [field.name for field in fields]
        parameters += [
            parameter.replace(name=field.name, annotation=types[field.name], default=field.default) for field in fields
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        if isinstance(given.get("repo"), str) and "|" in given["repo"]:
            given = _expand_url(given)
        for name, (group, fields) in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields})
        gc.enable()
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _expand_url(given: dict[str, Any]) -> dict[str, Any]:
    """Replace a URL such as `s3://bucket/repo|icechunk://tag.v1/group` by the options that it contains."""
    from icefloe.repository.url import RepositoryUrl  # noqa: PLC0415 - few commands get such a URL

    url = RepositoryUrl.parse(given["repo"])
    if given["repo"] == url.location:
        return given
    node = next((name for name in ("path", "group") if name in given), None)
    # Only the commands that read a revision have the option --as-of. Others work on a branch, or on all of them.
    if "as_of" not in given or (url.path and node is None):
        raise InvalidInputError(
            f"{given['repo']!r} names a snapshot or a node, and this command works on the whole repository. Give "
            f"{url.location!r}"
        )
    revision = {"branch": given["branch"], "tag": given["tag"], "snapshot_id": given["snapshot"]}
    chosen = url.choose({name: value for name, value in revision.items() if value is not None})
    snapshot = chosen.pop("snapshot_id", None)
    given = {**given, **chosen, "snapshot": snapshot, "repo": url.location}
    return given if node is None else {**given, node: url.choose_path(given[node])}


def _wanted(arguments: Sequence[str]) -> Collection[str]:
    if any(name.endswith("_COMPLETE") and "ICEFLOE" in name for name in os.environ):
        return tuple(COMMANDS)
    return tuple(each for each in arguments if not each.startswith("-"))[:1]


def _not_loaded() -> None:
    raise AssertionError("this command was not loaded")


def _version(asked: bool) -> None:
    if asked:
        for name, version in debug_info().items():
            sys.stdout.write(f"{name} {version}\n")
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the versions of all packages and exit."),
    ] = False,
) -> None:
    pass


def _accept_all_characters() -> None:
    """Write characters that the terminal does not know as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="backslashreplace")


def _report(error: Exception, message: str, *details: str, debug: bool, as_json: bool) -> None:
    from icefloe.cli.console import stderr, styled  # noqa: PLC0415 - rich is slow to import

    if as_json:
        from icefloe.cli.output import print_json  # noqa: PLC0415

        facts = {"type": type(error).__name__, "message": " ".join(message.split()), "details": list(details)}
        print_json({"error": facts})
        if not debug:
            return
    console = stderr()
    if debug:
        console.print_exception(show_locals=False)
    console.print(styled("[bold red]error:[/] "), end="")
    console.print(" ".join(message.split()), markup=False, highlight=False, soft_wrap=True)
    # An error of several files or nodes has one line for each.
    for detail in details:
        console.print(detail, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
