"""The `icefloe` command.

A command is a function in one of these modules, with a `register_NAME(app)` that adds it to a Typer app, and one line
in `app.VERBS` that names the module and says what the command does. `icefloe --help` reads only these lines: the
module of a command, and with it the library, is imported when the command is called.

What every command keeps to:

* The repository comes first, as a path or URL (`options.Place`), with `--option` for its storage.
* `--json` prints one JSON document to standard output and nothing else; `docs/cli.md` tells its keys.
* Errors are raised, not printed: `app.main` writes them to standard error and exits with 1. Usage errors exit
  with 2; raise `typer.BadParameter` for them.
* Results go to standard output, progress and remarks to standard error (`output.stderr`, `output.progress`).
* A command parses, calls and prints. Work that Python callers could want is in a lower package.

Modules
-------
- `app`: The entry point of the `icefloe` command: find the verb, run it, turn errors into a message and an exit
  code.
- `config`: The verbs `create` and `config`: make a repository, show or change its stored configuration.
- `demo`: `icefloe demo`: a month of synthetic weather from files to pictures, on local Spark.
- `demo_steps`: The steps of `icefloe demo`: make files, ingest them, branch, query, draw a picture.
- `describe`: Nodes, commits, diffs and refs as verbs print them, for people and as JSON.
- `export`: The verbs that write a repository elsewhere: export, convert, mirror.
- `ingest`: The verb `ingest`, and the Spark session of the verbs that need one.
- `inspect`: The verbs that show a repository: info, tree, ls, cat, log, show, diff.
- `maintenance`: The verbs of maintenance: expire, gc, compact, materialize, rewrite-manifests, verify.
- `options`: Arguments and options that several verbs share, and opening the repository that they name.
- `output`: Output of verbs: tables and text for people, JSON for machines, progress and remarks on standard error.
- `refs`: The verbs that change branches and tags: branch, tag, reset, merge.
- `sql`: The verbs `sql` and `analyze`: query arrays, and keep statistics per chunk for queries.
- `stats`: The verbs `stats` and `manifests`: chunks, objects and bytes per array, and the layout of manifests.
"""
