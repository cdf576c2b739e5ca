"""The blocks of code of the official documentation run on `icefloe.icechunk` as they run on the official package.

The pages are not part of this project. They are read from the unpacked source distribution of the official package.
`ICECHUNK_SOURCE` names its folder. Without it, a folder `official/icechunk-2...` beside the project is used.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest
from benchmarks.documentation_blocks import find_blocks, find_pages, run_apart
from benchmarks.documentation_context import with_real_ids

ROOT = Path(__file__).parents[2]


def _source() -> Path | None:
    if given := os.environ.get("ICECHUNK_SOURCE"):
        return Path(given)
    return max(ROOT.parent.glob("official/icechunk-2*/"), default=None)


def _official_version() -> str:
    try:
        return metadata.version("icechunk")
    except metadata.PackageNotFoundError:
        return "none"


PAGES = [] if (found := _source()) is None else find_pages(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not PAGES, reason="no source distribution of icechunk 2 at $ICECHUNK_SOURCE or in ../official")
@pytest.mark.skipif(not _official_version().startswith("2."), reason="the official package 2.x is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_that_runs_on_the_official_package_runs_on_the_drop_in(page: Path) -> None:
    theirs, ours = run_apart(page, ours=False), run_apart(page, ours=True)
    assert theirs, "no block was run"
    passed = [line for line, error in theirs.items() if error is None]
    assert {line: ours.get(line, "not run") for line in passed if ours.get(line, "not run") is not None} == {}


def test_blocks_are_found_with_their_lines_and_without_their_indent() -> None:
    text = """# A page

```python exec="on" session="a"
x = 1
```

=== "A tab"

    ```python
    if x:
        x = 2
    ```

<!-- ```python -->
<!-- x = 3 -->
<!-- ``` -->

```shell
x = 4
```
"""
    assert [(block.line, block.code) for block in find_blocks(text)] == [(3, "x = 1\n"), (9, "if x:\n    x = 2\n")]


@pytest.mark.long
def test_a_page_runs_with_the_variables_that_it_leaves_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    blocks = [
        'assert repo.list_branches() == {"main", "branch_name"}',
        "session.commit('what is there')",
        'repo.create_tag("t", "abc123"); repo.lookup_tag("t")',
        "import asyncio\nawait asyncio.sleep(0)",
        "nowhere.else_()",
        'icechunk.Repository.create(icechunk.s3_storage(bucket="b", prefix="p", region="eu"))',
    ]
    page.write_text("".join(f"```python\n{block}\n```\n" for block in blocks))
    found = list(run_apart(page, ours=True).values())
    assert [error is None for error in found] == [True, True, True, True, False, True], found
    assert "nowhere" in str(found[4])


def test_ids_that_a_page_made_up_become_real() -> None:
    assert with_real_ids('f("abc123")') == 'f(repo.lookup_branch("main"))'
