"""The `icefloe` command.

A command is a function in one of these modules, and one line in `app.COMMANDS` with the module and a summary.
`icefloe --help` reads only these lines. The module of a command, and with it the library, is imported when the command
is called.

All commands follow these rules:

* The repository is the first argument, as a path or URL (`options.Repo`). `--option` passes options to its storage.
* Arguments and options that several commands share are declared in `options`.
* `--json` prints one JSON document to standard output and nothing else. `docs/cli.md` describes the documents.
* The docstring is the help. Its section `Examples` has one or two command lines of at most 78 characters.
* Errors are raised, not printed. `app.main` writes them to standard error and exits with 1. Usage errors exit
  with 2: raise `typer.BadParameter`.
* Results are written to standard output, progress and messages to standard error (`console.stderr`, `console.Bars`).
* A command parses its arguments, calls the library and prints. Functions that are useful in Python are in a lower
  package.

Modules
-------
- `app`: The entry point of the `icefloe` command: find the command, run it, turn errors into a message and an exit
  code.
- `config`: The commands `create` and `config`: create a repository, show or change its stored configuration.
- `console`: Output with rich: consoles, tables and progress bars.
- `demo`: The command `demo`: ingest, branch, query and draw a month of synthetic weather, on local Spark.
- `export`: The commands that write a repository to another location: export, convert, mirror.
- `info`: The command `info`. It imports no more than it needs, because it is short and called often.
- `ingest`: The commands `ingest` and `sync`.
- `inspect`: The commands that show content, history and size: tree, ls, cat, log, show, diff, stats, manifests,
  view.
- `maintenance`: The commands for maintenance: expire, gc, compact, materialize, rewrite-manifests, verify.
- `options`: Arguments and options that several commands share, and the values that commands make of them.
- `output`: Output of commands without rich: JSON documents, text from a repository, and the facts of `info`.
- `refs`: The commands that change branches, tags, nodes and the status of a repository.
- `sql`: The commands `sql` and `analyze`: query arrays, and compute the chunk statistics that queries use.
"""
