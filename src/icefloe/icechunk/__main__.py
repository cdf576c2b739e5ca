"""Run a script or a module whose `import icechunk` is this package: `python -m icefloe.icechunk script.py ...`."""

from __future__ import annotations

import os
import runpy
import sys

from icefloe.icechunk.installer import install

_USAGE = "usage: python -m icefloe.icechunk [--version 1|2] (script.py | -m module) [arguments ...]"


def main(arguments: list[str]) -> int:
    """Run what the arguments name."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.stderr.write(_USAGE + "\n")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    version = None
    if arguments[0] == "--version":
        if len(arguments) < 3 or arguments[1] not in ("1", "2"):
            sys.stderr.write(_USAGE + "\n")
            return 2
        version, arguments = int(arguments[1]), arguments[2:]
    install(version)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
