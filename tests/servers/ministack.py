"""ministack: an emulator of S3 that starts in a quarter of a second and is atomic by construction."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import Launch, free_ports, running
from tests.servers.s3 import S3Server


def ministack_missing() -> str | None:
    """Why it cannot run here, or None."""
    if importlib.util.find_spec("ministack") is None:
        return "the S3 emulator is not installed: pip install ministack"
    return None


@contextmanager
def ministack_server() -> Iterator[S3Server]:
    with running(_plan) as process:
        yield S3Server("ministack", f"http://127.0.0.1:{process.port}")


def _plan(folder: Path) -> Launch:
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
        "S3_DATA_DIR": str(folder / "s3"),
        "STATE_DIR": str(folder / "state"),
        "TMPDIR": str(folder),
    }
    return Launch([sys.executable, "-m", "ministack"], port, environment)
