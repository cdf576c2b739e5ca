"""Run the Python code of the pages of a documentation, block by block, with the official package or with ours.

    python -m benchmarks.documentation_blocks /path/to/icechunk-2.3.0 [--page howto] [--ours]

The blocks of a page share their variables, as in a notebook. A block that takes too long ends its process. The page is
then run again without that block.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import inspect
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documentation_context import fill_in, use_made_up_datasets, use_memory_for_buckets, with_real_ids

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```[ ]*python(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ \t]*$", re.M | re.S
)
SECONDS = 60
"""A block may take this long."""
NO_NETWORK = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "GCE_METADATA_HOST": "127.0.0.1:1",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://127.0.0.1:1",
    "NO_PROXY": "localhost,127.0.0.1",
}
"""Requests to the network fail at once."""
NOT_ENDED = "it did not end"
Outcomes = dict[int, str | None]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code of a page."""

    line: int
    code: str


def find_blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page, without those in comments."""
    return [
        Block(text.count("\n", 0, match.start()) + 1, textwrap.dedent(match["code"])) for match in FENCE.finditer(text)
    ]


def find_pages(source: Path) -> list[Path]:
    """Return the pages of the official source distribution that have Python blocks."""
    pages = sorted((source / "icechunk-python" / "docs" / "docs").rglob("*.md"))
    return [page for page in pages if find_blocks(page.read_text())]


def _free_names(code: str) -> set[str]:
    """Return the names that code uses and does not assign or import."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assigned = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assigned |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            assigned.add(node.name)
        elif isinstance(node, ast.arg):
            assigned.add(node.arg)
    return used - assigned


def _error_of(block: Block, page: str, known: dict[str, Any], *, alone: bool = False) -> str | None:
    """Run a block with the variables that are known, and return how it failed."""
    try:
        text = with_real_ids(block.code)
        fill_in(_free_names(text), known, alone=alone)
        code = compile(text, f"{page}:{block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, known))
        else:
            exec(code, known)
    except BaseException as found:  # noqa: BLE001 - whatever the block raises is its outcome
        return f"{type(found).__name__}: {found}"
    return None


def run_page(page: Path, outcomes: Path, skipped: set[int]) -> None:
    """Run the blocks of a page in this process. Append a line of JSON before and after each block."""
    use_made_up_datasets()
    use_memory_for_buckets()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # functions that blocks send to other processes are found there
    with outcomes.open("a", buffering=1) as out:
        for block in find_blocks(page.read_text()):
            if block.line in skipped:
                continue
            print(json.dumps({"line": block.line}), file=out)
            error = _error_of(block, page.name, main.__dict__)
            if error is not None:  # it may need what an earlier block would have made
                alone = (_error_of(block, page.name, {"__name__": "__main__"}, alone=each) for each in (True, False))
                error = error if all(alone) else None
            print(json.dumps({"line": block.line, "error": error}), file=out)


def run_apart(page: Path, *, ours: bool) -> Outcomes:
    """Run a page in processes of its own. Return the error of each block by its line, None for those that passed."""
    found: Outcomes = {}
    hung: set[int] = set()
    with tempfile.TemporaryDirectory() as name:
        while True:
            outcomes = _run_process(page, Path(name), hung, ours=ours)
            found |= {line: error for line, error in outcomes.items() if line not in hung}
            unfinished = {line for line, error in outcomes.items() if error == NOT_ENDED} - hung
            if not unfinished:
                return found
            hung |= unfinished


def _run_process(page: Path, folder: Path, hung: set[int], *, ours: bool) -> Outcomes:
    """Run a page without the blocks that hang, until it ends or a block takes too long."""
    outcomes = folder / "outcomes"
    outcomes.write_text("")
    work = folder / secrets.token_hex(4)
    work.mkdir()
    command = [sys.executable, "-m", "benchmarks.documentation_blocks", str(page), "--outcomes", str(outcomes)]
    command += ["--ours"] * ours + [part for line in sorted(hung) for part in ("--skip", str(line))]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, **NO_NETWORK, "PYTHONPATH": path}
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    written = -1
    while process.poll() is None and outcomes.stat().st_size != written:
        written = outcomes.stat().st_size
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found: Outcomes = {}
    for text in outcomes.read_text().splitlines():
        each = json.loads(text)
        found[each["line"]] = each.get("error", NOT_ENDED)
    return found


def main() -> int:
    """Run the pages below a folder, or one page in this process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="unpacked source distribution of the official package")
    parser.add_argument("--page", default="", help="run only pages whose path contains this text")
    parser.add_argument("--ours", action="store_true", help="use this package instead of the official one")
    parser.add_argument("--outcomes", type=Path)
    parser.add_argument("--skip", type=int, action="append", default=[])
    given = parser.parse_args()
    if given.outcomes is not None:
        if given.ours:
            from icefloe.icechunk import install

            install()
        run_page(given.source, given.outcomes, set(given.skip))
        return 0
    for page in find_pages(given.source):
        if given.page not in page.stem:
            continue
        found = run_apart(page, ours=given.ours)
        print(f"{page.name}: {sum(error is None for error in found.values())} of {len(found)}", flush=True)
        for line, error in found.items():
            if error is not None:
                print(f"  line {line}: {error:.200}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
