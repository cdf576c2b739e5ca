"""What the tests of the project read from the source: docstrings and imports, parsed once for all of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """A source file."""

    docstring: str | None
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """All imports, also those inside functions."""


@functools.cache
def parse_module(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    return Module(ast.get_docstring(tree), tuple(_imports(tree)))


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Only statements contain statements. Leaving out expressions saves most of the time."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _imports(child)
