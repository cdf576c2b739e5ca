"""How a server process is started on free ports, watched until it answers, and ended for certain."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import http.client
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 60.0
START_ATTEMPTS = 3


class ServerDidNotStartError(Exception):
    """The server ended or stayed silent; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One try at starting a server: the command, and the port that must answer HTTP."""

    command: Sequence[str]
    port: int
    environment: Mapping[str, str]


@dataclass(slots=True)
class ServerProcess:
    """A running server and the folder it keeps everything in."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    ended: bool = field(default=False)

    def stop(self) -> None:
        """Kill the process and delete its folder; the data is worth nothing after the tests."""
        if self.ended:
            return
        self.ended = True
        self.process.kill()
        self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)

    def log_tail(self, length: int = 2000) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-length:]


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now, below 55000 so that nobody derives a twin above 65535."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port < 55000:
                ports.append(port)
        return ports


def start_server(plan: Callable[[Path], Launch]) -> ServerProcess:
    """Start a server in a folder of its own; another try on other ports when one was taken in between."""
    for attempt in range(START_ATTEMPTS):
        # Short path: Unix sockets inside it may not be longer than 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="s3-"))
        launch = plan(folder)
        with open(folder / "server.log", "wb") as log:
            process = subprocess.Popen(
                launch.command,
                cwd=folder,
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        server = ServerProcess(process, folder, launch.port)
        atexit.register(server.stop)
        if _answers(server):
            return server
        log_tail = server.log_tail()
        server.stop()
        if attempt == START_ATTEMPTS - 1:
            raise ServerDidNotStartError(f"{launch.command[0]} did not answer on port {launch.port}:\n{log_tail}")
    raise AssertionError("unreachable")


@contextlib.contextmanager
def running(plan: Callable[[Path], Launch]) -> Iterator[ServerProcess]:
    server = start_server(plan)
    try:
        yield server
    finally:
        server.stop()


def _answers(server: ServerProcess) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
            finally:
                connection.close()
            return True
        time.sleep(0.05)
    return False


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """A test process that is killed cannot clean up; the kernel does it."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
