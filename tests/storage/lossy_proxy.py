"""A proxy between client and server that loses answers on command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.proxy import body_length, has_no_body, read_body


@dataclass
class LossyProxy:
    """Forwards connections; of requests that start with `method`, the next `lose` answers never arrive.

    The next `refuse` ones are not handed on, and the answers of the next `truncate` GETs end in the middle.
    """

    target: str
    endpoint_url: str = ""
    lose: int = 0
    refuse: int = 0
    truncate: int = 0
    method: bytes = b"PUT"
    seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request after the other."""
        address = urlsplit(self.target)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(address.hostname, address.port)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    body = await reader.readexactly(body_length(head))
                    met = head.startswith(self.method)
                    if met:
                        self.seen += 1
                    if met and self.refuse > 0:
                        self.refuse -= 1
                        return
                    back.write(head + body)
                    await back.drain()
                    answer = await there.readuntil(b"\r\n\r\n")
                    content = b"" if has_no_body(head, answer) else await read_body(there, answer)
                    if met and self.lose > 0:
                        self.lose -= 1
                        return
                    if head.startswith(b"GET") and self.truncate > 0:
                        self.truncate -= 1
                        writer.write(answer + content[: len(content) // 2])
                        await writer.drain()
                        return
                    writer.write(answer + content)
                    await writer.drain()
            finally:
                back.close()
                writer.close()


@contextmanager
def lossy_proxy(target: str) -> Iterator[LossyProxy]:
    """A running proxy in a thread of its own."""
    proxy = LossyProxy(target)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 22)
        proxy.endpoint_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def work() -> None:
        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
