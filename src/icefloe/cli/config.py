"""The commands `create` and `config`: create a repository, show or change its stored configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.syntax import Syntax
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.console import stderr, stdout, table
from icefloe.cli.options import Json, Repo, StorageOptions, open_repository, storage_at
from icefloe.cli.output import print_json, write_text
from icefloe.errors import InvalidInputError
from icefloe.formats.config_document import decode_config, encode_config
from icefloe.formats.config_yaml import config_from_yaml, decode_yaml, encode_yaml
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_value import Nested, Setting, all_settings, settings_of, unused_remarks
from icefloe.repository import Repository


def create(
    repo: Repo,
    spec_version: Annotated[
        str | None,
        typer.Option(
            "--spec-version",
            metavar="NAME",
            help="Generation: repository, dataset, store, icechunk1 or icechunk2.  [default: repository]",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", exists=True, dir_okay=False, metavar="FILE", help="YAML file with the configuration to store."
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do not fail if the repository exists.")] = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Create a repository.

    Examples
    --------
    icefloe create weather
    icefloe create s3://bucket/weather --config settings.yaml
    """
    storage = storage_at(repo, options)
    given = None if config is None else config_from_yaml(config.read_text())
    existed = exist_ok and Repository.exists(storage)
    if exist_ok:
        repository = Repository.open_or_create(storage, given, create_version=spec_version)
    else:
        repository = Repository.create(storage, given, spec_version=spec_version)
    tip = repository.lookup_branch("main")
    generation = repository.spec_version.value
    if json:
        print_json({"url": storage.url, "spec_version": generation, "created": not existed, "snapshot_id": tip})
    else:
        done = "Found" if existed else "Created"
        stdout().print(f"{done} a repository of generation {generation} at {storage.url}, main at {tip}")


def config(
    repo: Repo,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Setting, for example caching.num_bytes_chunks.")
    ] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="New value, as YAML.")] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset this setting to its default. Can be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            exists=True,
            dir_okay=False,
            allow_dash=True,
            metavar="FILE",
            help="Replace the whole configuration by this YAML file. - is standard input.",
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all settings with their values, defaults and effects.")
    ] = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show or change the stored configuration.

    Without KEY, all settings that are set are printed as YAML, in the form that --file reads. The other settings have
    their defaults. With KEY, the value or the default of one setting is printed.

    Examples
    --------
    icefloe config weather --all
    icefloe config weather compression.level 5
    """
    repository = open_repository(repo, options)
    if sum((value is not None, bool(unset), file is not None)) > 1:
        raise typer.BadParameter("VALUE, --unset and --file exclude each other")
    if show_all:
        _show_all(repository, json=json)
        return
    if value is None and not unset and file is None:
        _show(repository, key, json=json)
        return
    document = _changed(repository, key, value, unset or [], file)
    for remark in unused_remarks(decode_config(document)):
        stderr().print(remark, markup=False)
    if json:
        print_json(document)
    else:
        stderr().print(Text(f"configuration of {repository.storage.url} saved", style="dim"))
        _print_yaml(document)


def _show(repository: Repository, key: str | None, *, json: bool) -> None:
    found: Any = encode_config(repository.config)
    for part in key.split(".") if key else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None and key is not None:
        found = _default_of(key)
        stderr().print(Text(f"{key} is not set; this is its default", style="dim"))
    if json:
        print_json(found)
    elif isinstance(found, Mapping):
        _print_yaml(found)
    else:
        stdout().print(yaml.safe_dump(found).removesuffix("...\n").rstrip(), markup=False)


def _default_of(key: str) -> Any:
    """The default of a setting, or the defaults of all settings below it, as in a document."""
    settings = all_settings(RepositoryConfig)
    if key in settings:
        return _encoded_default(settings[key])
    defaults: dict[str, Any] = {}
    for name, setting in settings.items():
        if name.startswith(f"{key}."):
            defaults = with_setting(defaults, name.removeprefix(f"{key}."), _encoded_default(setting))
    if not defaults:
        where = key.rpartition(".")[0]
        known = ", ".join(known_settings(f"{where}." if where else ""))
        raise InvalidInputError(f"unknown setting {key!r}. Known settings: {known}")
    return defaults


def _encoded_default(setting: Setting) -> Any:
    if setting.default is None or isinstance(setting.kind, Nested):
        return None
    return setting.kind.encode(setting.default)


def _show_all(repository: Repository, *, json: bool) -> None:
    """Print every setting: the value in effect, whether it is stored or the default, and what it does."""
    document = encode_config(repository.config)
    facts = []
    for name, setting in all_settings(RepositoryConfig).items():
        value: Any = document
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        effect = setting.doc if setting.unused is None else f"not used by Icefloe. {setting.unused}".rstrip(". ")
        default, source = _encoded_default(setting), "default" if value is None else "stored"
        facts.append({"setting": name, "value": value, "source": source, "default": default, "effect": effect})
    if json:
        print_json(facts)
        return
    listing = table("setting", "value", "from", "effect")
    for fact in facts:
        used = fact["default"] if fact["value"] is None else fact["value"]
        shown = (fact["setting"], "" if used is None else str(used), fact["source"], fact["effect"])
        style = "bold" if fact["source"] == "stored" else ""
        listing.add_row(*(Text(str(each), style=style) for each in shown))
    stdout().print(listing)


def _print_yaml(document: Mapping[str, Any]) -> None:
    text = encode_yaml(document).rstrip() if document else "# everything has its default"
    if sys.stdout.isatty():
        stdout().print(Syntax(text, "yaml", theme="ansi_dark", background_color="default"))
    else:
        write_text(text + "\n")


def _changed(
    repository: Repository, key: str | None, value: str | None, unset: list[str], file: Path | None
) -> dict[str, Any]:
    """Change the stored configuration in one step. A concurrent change raises ConflictError."""
    stored = run_blocking(repository.context.ledger.fetch_config())
    before = encode_config(decode_config(stored.document))
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        wanted = decode_yaml(text)
    elif key is not None and value is not None:
        wanted = with_setting(before, key, _parse_value(value))
    else:
        wanted = before
        for each in unset:
            wanted = without_setting(wanted, each)
    parsed = decode_config(wanted)
    _refuse_unknown(parsed.unknown, decode_config(stored.document).unknown)
    document = encode_config(parsed)
    run_blocking(repository.context.ledger.save_config(document, stored.version_token))
    return document


def _parse_value(text: str) -> Any:
    return decode_yaml(f"value: {text}")["value"]


def with_setting(document: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The document with one setting changed. `key` is its dotted name."""
    name, dot, rest = key.partition(".")
    if not dot:
        return {**document, name: value}
    inner = document.get(name)
    return {**document, name: with_setting(inner if isinstance(inner, Mapping) else {}, rest, value)}


def without_setting(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The document without one setting. InvalidInputError if it is not set."""
    name, dot, rest = key.partition(".")
    if name not in document or (dot and not isinstance(document[name], Mapping)):
        raise InvalidInputError(f"{key!r} is not set. Its default applies")
    if not dot:
        return {other: value for other, value in document.items() if other != name}
    inner = without_setting(document[name], rest)
    return {**document, name: inner} if inner else {o: v for o, v in document.items() if o != name}


def _refuse_unknown(found: Mapping[str, Any], before: Mapping[str, Any], where: str = "") -> None:
    """Refuse unknown settings, which are likely misspelt. Unknown settings that are stored already are kept."""
    for name, value in found.items():
        stored = before.get(name)
        if isinstance(value, Mapping) and (stored is None or isinstance(stored, Mapping)) and value:
            _refuse_unknown(value, stored or {}, f"{where}{name}.")
        elif name not in before:
            known = ", ".join(known_settings(where))
            raise InvalidInputError(f"unknown setting {where + name!r}. Known settings: {known}")


def known_settings(where: str) -> list[str]:
    """The names of the settings below a prefix such as `caching.`."""
    cls: type[Any] = RepositoryConfig
    for part in filter(None, where.split(".")):
        setting = settings_of(cls).get(part)
        if setting is None or not isinstance(setting.kind, Nested):
            return []
        cls = setting.kind.cls
    return sorted(settings_of(cls))
