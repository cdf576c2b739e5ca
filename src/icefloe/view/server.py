"""Runs the viewer: chooses the port and the token, serves in a thread or until it is interrupted, and shows itself."""

from __future__ import annotations

import html
import ipaddress
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Sequence
from typing import Any

import uvicorn

from icefloe.errors import InvalidInputError, StorageError
from icefloe.repository import Repository
from icefloe.view.web_app import Access, create_app

_NOTEBOOKS = ("'self'", "http://localhost:*", "http://127.0.0.1:*", "https://localhost:*", "vscode-webview:")
"""Pages that may show the viewer of `Repository.view` in a frame."""
_START_SECONDS = 20.0
_IDLE_SECONDS = 5
_SHUTDOWN_SECONDS = 2
_CONNECTIONS = 128


class ViewServer:
    """A viewer of a repository in the browser.

    In a notebook, the object shows the viewer in a frame.

    Parameters
    ----------
    repository
        The repository to show.
    host
        The address to listen on. Other addresses than loopback ones need a token, which is part of the URL.
    port
        The port. 0 chooses a free one.
    origins
        Origins of other pages that may read the API and Zarr over HTTP.
    frames
        Sources of pages that may show the viewer in a frame.
    """

    def __init__(
        self,
        repository: Repository,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        origins: Sequence[str] = (),
        frames: Sequence[str] = _NOTEBOOKS,
    ) -> None:
        self._socket = _bind(host, port)
        bound: int = self._socket.getsockname()[1]
        self.port = bound
        loopback = is_loopback(host)
        self._token = None if loopback else secrets.token_urlsafe(24)
        hosts = Access().hosts if loopback else _names_of(host)
        access = Access(
            hosts | {host.lower()} if hosts is not None else None,
            self._token,
            tuple(origins),
            tuple(frames),
            f"icefloe_view_{bound}",
        )
        shown = host if host not in ("0.0.0.0", "::", "") else socket.gethostname()
        shown = f"[{shown}]" if ":" in shown else shown
        query = "" if self._token is None else f"?token={self._token}"
        self.url = f"http://{shown}:{bound}/{query}"
        """The address to open. It contains the token if there is one."""
        config = uvicorn.Config(
            create_app(repository, access),
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self) -> ViewServer:
        """Serve in a thread until `stop` is called or the program ends."""
        thread = threading.Thread(target=self._serve, name="icefloe-view", daemon=True)
        self._thread = thread
        thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise StorageError(f"the viewer at {self.url} did not start")
            time.sleep(0.005)
        return self

    def run(self) -> None:
        """Serve until the process is interrupted."""
        self._serve()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop serving. Returns when the thread has ended."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_SHUTDOWN_SECONDS + _IDLE_SECONDS)
        self._socket.close()

    def open_browser(self) -> bool:
        """Open the viewer in the browser of this machine. Returns whether there is one."""
        try:
            return webbrowser.open(self.url)
        except webbrowser.Error:
            return False

    def __enter__(self) -> ViewServer:
        return self.start() if self._thread is None else self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<icefloe viewer at {self.url}>"

    def _repr_html_(self) -> str:
        address = html.escape(self.url, quote=True)
        style = "width:100%;height:640px;border:1px solid rgba(128,128,128,.4);border-radius:8px"
        return (
            f'<iframe src="{address}" title="Icefloe viewer" style="{style}"></iframe>'
            f'<p><a href="{address}" target="_blank" rel="noopener">{address}</a></p>'
        )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _names_of(host: str) -> frozenset[str] | None:
    """The names in the Host header of an address that is not loopback. None if it has all addresses of the machine."""
    return None if host in ("0.0.0.0", "::", "") else frozenset()


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InvalidInputError(f"port {port}: expected a number from 0 to 65535")
    try:
        address: Any = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        family, kind, protocol, _, place = address
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        # A browser that is opened before the server accepts connections waits.
        bound.listen(_CONNECTIONS)
    except OSError as error:
        raise InvalidInputError(f"the viewer cannot listen on {host}:{port}: {error.strerror or error}") from error
    return bound
