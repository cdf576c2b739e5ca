"""The `icefloe` command.

A verb is one module here with a function `register(app)` that adds its command to a Typer app, and one line in
`verbs.py` that names the module, says in one line what the verb does, and under which heading it is listed. That line
is all `icefloe --help` reads: a verb's module, and with it the library, is imported only when the verb is called, so
modules import what they need at the top, as everywhere.

    # cli/hello.py                                  # cli/verbs.py
    def register(app: typer.Typer) -> None:         "hello": Verb("icefloe.cli.hello", "Greet a repository.", LOOK),
        app.command("hello")(hello)

    def hello(place: Place, options: StorageOptions = None, json: Json = False) -> None:
        repository = open_repository(place, options)
        if json:
            print_json({"hello": repository.storage.url})
        else:
            stdout().print(f"Hello, {repository.storage.url}")

What every verb keeps to:

* The repository comes first, as a path or URL (`arguments.Place`), with `--option` for its storage.
* `--json` prints one JSON document to standard output and nothing else; `docs/cli.md` tells its keys.
* Errors are raised, not printed: `app.main` writes them to standard error and exits with 1. Usage errors exit
  with 2; raise `typer.BadParameter` for them.
* What a reader may want to pipe goes to standard output, progress and remarks to standard error (`output.stderr`,
  `progress.progress`).
* A verb only asks and shows. Work that others could want from Python belongs in a room below.
"""
