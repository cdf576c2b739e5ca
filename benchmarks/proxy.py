"""A proxy in front of an object store on this machine: it delays requests and counts them.

It is a process of its own, `python -m benchmarks.proxy PORT SECONDS`, so that it does not share an interpreter with
the clients that are measured. `GET /-/counts` returns what passed since the last time as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

_REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_COUNTS = b"GET /-/counts "


@dataclass
class Counts:
    """What passed: requests by method and folder, and bytes in both directions without those of headers."""

    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.requests.values())

    @property
    def bytes(self) -> int:
        """The bytes of all bodies, in both directions."""
        return self.sent_bytes + self.received_bytes

    def of(self, *names: str) -> int:
        """The requests of some methods, or of a method and a folder such as `PUT snapshots`."""
        return sum(count for key, count in self.requests.items() if key in names or key.split(" ")[0] in names)


class _Proxy:
    def __init__(self, port: int, seconds: float) -> None:
        self.port, self.seconds = port, seconds
        self.counts = Counts()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    if head.startswith(_COUNTS):
                        self._tell(writer)
                        continue
                    body = await reader.readexactly(body_length(head))
                    self._count(head, len(body))
                    await asyncio.sleep(self.seconds)
                    back.write(head + body)
                    answer = await there.readuntil(b"\r\n\r\n")
                    content = b"" if has_no_body(head, answer) else await read_body(there, answer)
                    self.counts.received_bytes += len(content)
                    writer.write(answer + content)
                    await writer.drain()
            finally:
                back.close()
                writer.close()

    def _count(self, head: bytes, size: int) -> None:
        found = _REQUEST.match(head)
        assert found is not None, head[:80]
        method, path = found[1].decode(), urlsplit(found[2].decode())
        folders = unquote(path.path).strip("/").split("/")
        # The bucket and the folder of the repository come first.
        name = "list" if "list-type" in path.query else folders[2] if len(folders) > 2 else folders[-1]
        if "delete" in path.query:
            name = "delete"
        self.counts.requests[f"{method} {name}"] += 1
        self.counts.sent_bytes += size

    def _tell(self, writer: asyncio.StreamWriter) -> None:
        told, self.counts = self.counts, Counts()
        body = json.dumps(
            {"requests": told.requests, "sent_bytes": told.sent_bytes, "received_bytes": told.received_bytes}
        ).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


def body_length(head: bytes) -> int:
    """The length of the body that follows a head of HTTP. Zero if the head does not say it."""
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


def has_no_body(head: bytes, answer: bytes) -> bool:
    """Whether the answer to a request has no body, whatever its length says."""
    return head.startswith(b"HEAD") or answer.split(b" ", 2)[1] in (b"204", b"304")


async def read_body(there: asyncio.StreamReader, answer: bytes) -> bytes:
    """The body of an answer, with the lengths of its pieces if it comes in pieces."""
    if b"transfer-encoding: chunked" not in answer.lower():
        return await there.readexactly(body_length(answer))
    parts = []
    while True:
        line = await there.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts += [line, await there.readexactly(size + 2)]
        if not size:
            return b"".join(parts)


async def _run(port: int, seconds: float) -> None:
    proxy = _Proxy(port, seconds)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 26, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent ends


@dataclass
class Proxy:
    """A running proxy."""

    port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take_counts(self) -> Counts:
        """What passed since the last call."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/-/counts")
            told: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return Counts(Counter(told["requests"]), told["sent_bytes"], told["received_bytes"])


@contextlib.contextmanager
def proxied(endpoint_url: str, seconds: float = 0.0) -> Iterator[Proxy]:
    """A proxy in front of a server. Every request waits so many seconds before it is handed on."""
    command = [sys.executable, __file__, str(urlsplit(endpoint_url).port), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Proxy(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(timeout=30)


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), float(sys.argv[2])))
