"""Hooks of the site: pages from outside of `docs/`, the API reference, and the executed notebooks."""

from __future__ import annotations

import ast
import importlib
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

OUTSIDE = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside of `docs/`, and their names in the site."""

FOLDERS = {"Cookbook": "cookbook", "Decisions": "decisions"}
"""Parts of the navigation that list the pages of a folder."""


@dataclass(frozen=True)
class Section:
    """A page of the reference: public names of one package, chosen by the modules that define them."""

    page: str
    title: str
    text: str
    package: str = "icefloe"
    homes: tuple[str, ...] = ()
    """Prefixes of modules. The first section whose prefix fits has the name. Without prefixes, it has the rest."""


SECTIONS = (
    Section("repository", "Repository", "Open, branch, tag, read and maintain a repository.", homes=("repository",)),
    Section(
        "session", "Sessions and conflicts", "Read and write through sessions, and commit.", homes=("session", "store")
    ),
    Section(
        "history",
        "History",
        "Snapshots, differences, graphs and the administration of a repository.",
        homes=("model.snapshot", "display", "model.administration", "model.capabilities"),
    ),
    Section(
        "configuration",
        "Configuration",
        "Settings of a repository. [Configuration](../configuration.md) lists all of them with their defaults.",
        homes=("model.config", "model.manifest", "formats.config"),
    ),
    Section("storage", "Storages", "Where a repository is kept.", homes=("storage.build", "storage.contract")),
    Section("credentials", "Credentials", "Credentials of storages and of virtual chunks.", homes=("storage",)),
    Section("virtual", "Virtual chunks", "Chunks in files outside of the repository.", homes=("model.virtual",)),
    Section(
        "maintenance",
        "Maintenance and conversion",
        "Values of expiry and garbage collection, and conversion between generations.",
        homes=("maintenance", "conversion"),
    ),
    Section("errors", "Errors", "All errors. [Errors](../errors.md) says what to do about each.", homes=("errors",)),
    Section("other", "Other names", "The codec pipeline, logs and versions."),
    Section("spark", "icefloe.spark", "Jobs, sources and sinks on Spark. Needs `icefloe[spark]`.", "icefloe.spark"),
    Section(
        "ingest",
        "icefloe.ingest",
        "Ingest in one process, and the parts of it. Needs `icefloe[ingest]`.",
        "icefloe.ingest",
    ),
    Section("tables", "icefloe.tables", "Arrays as tables.", "icefloe.tables"),
    Section("view", "icefloe.view", "The viewer as a web application.", "icefloe.view"),
    Section("xarray", "icefloe.xarray", "Write xarray objects. Needs `icefloe[xarray]`.", "icefloe.xarray"),
    Section("dask", "icefloe.dask", "Write Dask arrays.", "icefloe.dask"),
    Section("distributed", "icefloe.distributed", "Sessions of distributed writes.", "icefloe.distributed"),
    Section("storages", "icefloe.storage", "The contract of storages, and storages around others.", "icefloe.storage"),
    Section("testing", "icefloe.testing", "Storages and data for tests. Needs `icefloe[testing]`.", "icefloe.testing"),
    Section(
        "icechunk",
        "icefloe.icechunk",
        "The official package's names over the same engine. [Porting](../porting-from-icechunk.md) describes it.",
        "icefloe.icechunk",
    ),
)


def public_names(package: str) -> dict[str, str]:
    """Return the module of every public name of a package."""
    source = ROOT / "src" / Path(*package.split("."))
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError:
        return {}
    stub = source / "__init__.pyi"
    file = stub if stub.exists() else Path(module.__file__ or "")
    homes = {
        alias.asname or alias.name: node.module
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    return {name: homes.get(name, package) for name in getattr(module, "__all__", ()) if not name.startswith("__")}


def sections() -> Iterator[tuple[Section, dict[str, str]]]:
    """Yield every section that has names, with its names and their modules."""
    left = {section.package: public_names(section.package) for section in SECTIONS}
    for section in SECTIONS:
        names = left[section.package]
        prefixes = tuple(f"{section.package}.{home}" for home in section.homes)
        chosen = {name: home for name, home in names.items() if home.startswith(prefixes) or not prefixes}
        left[section.package] = {name: home for name, home in names.items() if name not in chosen}
        if chosen:
            yield section, chosen


def reference_page(section: Section, names: dict[str, str]) -> str:
    """Return the Markdown of a page of the reference."""
    lines = [f"# {section.title}", "", section.text, ""]
    same = {} if section.package == "icefloe" else same_as_icefloe(section.package, names)
    if same:
        lines += ["These names are the ones of `icefloe`:", ""]
        lines += [f"* [](){{#{section.package}.{name}}}[`{name}`][{target}]" for name, target in sorted(same.items())]
        lines += [""]
    for name, home in sorted(names.items(), key=lambda item: (item[0][0].islower(), item[0])):
        if name not in same:
            lines += [f"[](){{#{section.package}.{name}}}", "", f"::: {home}.{name}"]
            if section.package == "icefloe.icechunk":
                lines += ["    options:", "      inherited_members: false"]
            lines += [""]
    return "\n".join(lines)


def same_as_icefloe(package: str, names: dict[str, str]) -> dict[str, str]:
    """Return the names that are the same object under a name of `icefloe`, and that name."""
    if package != "icefloe.icechunk":
        return {name: f"icefloe.{name}" for name, home in names.items() if public_names("icefloe").get(name) == home}
    ours, theirs = importlib.import_module("icefloe"), importlib.import_module(package)
    shared = set(names) & set(ours.__all__)
    return {name: f"icefloe.{name}" for name in shared if getattr(ours, name) is getattr(theirs, name)}


def reference_index(listed: list[tuple[Section, dict[str, str]]]) -> str:
    """Return the Markdown of the first page of the reference."""
    lines = ["# Reference", "", "All public names. Every method that uses storage also has a variant for coroutines."]
    lines += ["It has the suffix `_async` and the same arguments.", ""]
    for section, names in listed:
        lines += [f"## [{section.title}]({section.page}.md)", "", section.text, ""]
        ordered = sorted(names, key=lambda name: (name[0].islower(), name))
        lines += [" · ".join(f"[`{name}`][{section.package}.{name}]" for name in ordered), ""]
    return "\n".join(lines)


# Notebooks ------------------------------------------------------------------------------------------------------------


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in a kernel. An error of a cell is an error of the build."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder of its own: no ports, and several kernels at a time.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, km=kernel, timeout=300, startup_timeout=300, resources=where)
        return client.execute()


def notebook_page(notebook: nbformat.NotebookNode, name: str) -> str:
    """Return the Markdown of an executed notebook."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown for output in cell.outputs if (shown := _output(output))]
    parts.append(f"*This page is a notebook: `docs/notebooks/{name}.ipynb`. It was run when the site was built.*")
    return "\n\n".join(parts) + "\n"


def _output(output: Any) -> str | None:
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else None
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<div class="output" markdown="0">{_one_line(data["image/svg+xml"])}</div>'
    if "text/html" in data:
        return f'<div class="output" markdown="0">{_one_line(data["text/html"])}</div>'
    if "image/png" in data:
        return f'<div class="output"><img alt="" src="data:image/png;base64,{data["image/png"].strip()}"></div>'
    return _text(data["text/plain"]) if "text/plain" in data else None


def _text(text: str) -> str:
    return f'<pre class="output"><code>{escape(text.rstrip())}</code></pre>'


def _one_line(html: str) -> str:
    """Return HTML without empty lines, which would end the block in Markdown."""
    return re.sub(r"\n\s*\n", "\n", html.strip())


# Hooks ----------------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that are lists of files."""
    found = {
        "Reference": ["reference/index.md", *(f"reference/{section.page}.md" for section, _ in sections())],
        "Notebooks": [f"notebooks/{path.stem}.md" for path in sorted((DOCS / "notebooks").glob("*.ipynb"))],
        **{name: _pages(folder) for name, folder in FOLDERS.items()},
    }

    def fill(items: list[Any]) -> list[Any]:
        filled = []
        for item in items:
            if isinstance(item, dict):
                ((title, value),) = item.items()
                filled.append({title: fill(value) if isinstance(value, list) else found.get(title, value)})
            else:
                filled.append(item)
        return filled

    config.nav = fill(config.nav)
    return config


def _pages(folder: str) -> list[str]:
    """Return the pages of a folder in the order in which its index links to them."""
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / folder / "index.md").read_text())
    return [f"{folder}/{name}" for name in dict.fromkeys(["index.md", *linked])]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not Markdown files in `docs/`."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    listed = list(sections())
    files.append(File.generated(config, "reference/index.md", content=reference_index(listed)))
    for section, names in listed:
        files.append(File.generated(config, f"reference/{section.page}.md", content=reference_page(section, names)))
    paths = sorted((DOCS / "notebooks").glob("*.ipynb"))
    with ThreadPoolExecutor(2) as threads:
        for path, notebook in zip(paths, threads.map(execute, paths), strict=True):
            page = notebook_page(notebook, path.stem)
            files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between `docs/` and the rest of the project at the pages of the site."""
    depth = "../" * page.file.src_uri.count("/")
    for source, name in OUTSIDE.items():
        markdown = markdown.replace(f"]({depth}../{source}", f"]({depth}{name}")
        if page.file.src_uri in OUTSIDE.values():
            markdown = markdown.replace(f"]({source}", f"]({name}")
    if page.file.src_uri in OUTSIDE.values():
        markdown = re.sub(r'(\]\(|src=")docs/', r"\1", markdown)
        markdown = re.sub(r"\[([^\]]+)\]\((?:LICENSE|examples/[^)]*)\)", r"\1", markdown)
    markdown = re.sub(r"(\]\((?:docs/)?notebooks/[\w-]+)\.ipynb\)", r"\1.md)", markdown)
    # The words after the language of a fence are for the tests.
    return re.sub(r"^( *```+\w+)(?: (?:no-run|run|spark|default))+$", r"\1", markdown, flags=re.MULTILINE)
