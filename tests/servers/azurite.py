"""Azurite: the emulator of Azure Blob Storage that Microsoft keeps, installed from npm into a cache folder."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import Launch, free_ports, running

VERSION = "3.37.0"
"""Earlier ones ignore offsets of listings."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every Azurite has."""
_LINES = "\n" * 12


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server. Pickles, so that tests can hand it to other processes."""

    port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_container(self) -> str:
        """A container nobody else uses; returns its name."""
        name = f"test-{uuid.uuid4().hex[:16]}"
        now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": "2021-12-02"}
        signed = "\n".join(f"{key}:{value}" for key, value in sorted(headers.items()))
        text = f"PUT{_LINES}{signed}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", b"", headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status == 201, f"Azurite refused to create {name}: {answer.status} {body[:300]!r}"
        return name

    def storage_options(self, container: str, endpoint_url: str | None = None) -> dict[str, Any]:
        """The arguments of `azure_storage` for a folder of a container."""
        return {
            "account": ACCOUNT,
            "container": container,
            "prefix": "repository",
            "access_key": KEY,
            "config": {"endpoint": f"{endpoint_url or self.endpoint_url}/{ACCOUNT}", "allow_http": "true"},
        }


@functools.cache
def azurite_missing() -> str | None:
    """Why it cannot run here, or None; installs it the first time."""
    if _program().exists():
        return None
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "Azurite, the emulator of Azure Blob Storage, needs node and npm: install nodejs and npm"
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), f"azurite@{VERSION}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode or not _program().exists():
        return f"Azurite cannot be installed: {' '.join(command)} failed: {ran.stderr[-300:]}"
    return None


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "icefloe-tests" / f"azurite-{VERSION}"


def _program() -> Path:
    return _folder() / "node_modules" / ".bin" / "azurite-blob"


@contextmanager
def azurite_server() -> Iterator[AzureServer]:
    with running(_plan) as process:
        yield AzureServer(process.port)


def _plan(folder: Path) -> Launch:
    (port,) = free_ports(1)
    command = [
        str(_program()),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--silent",
    ]
    return Launch(command, port, {**os.environ, "AZURITE_TELEMETRY": "false"})
