"""The number of requests to an object store, counted by a proxy."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from tests.servers.ministack import ministack_server

from benchmarks.harness import Meter, Workload

_REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) \S+ HTTP/1\.1\r\n")


class CountingProxy:
    """A proxy between clients and a server on this machine. It counts requests."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if counted:
                    self.counts.update(match.decode() for match in _REQUEST.findall(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            target.close()


def _storage(library: Any, port: int, bucket: str) -> Any:
    return library.s3_storage(
        bucket=bucket,
        prefix="repo",
        region="us-east-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        allow_http=True,
        force_path_style=True,
        access_key_id="test",
        secret_access_key="test",
    )


def measure(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Run all workloads on one server, which ends with this process."""
    with ministack_server() as server:
        proxy = CountingProxy(int(server.endpoint_url.rpartition(":")[2]))
        bucket = server.make_bucket()
        repo = library.Repository.create(_storage(library, proxy.port, bucket))
        session = repo.writable_session("main")
        root = zarr.group(session.store)
        root.create_array("time", shape=(1000,), chunks=(1000,), dtype="f8", compressors=None)[:] = np.arange(1000)
        values = np.random.default_rng(1).integers(0, 2**31, (4000, 1024), dtype="i4")
        root.create_array("small", shape=values.shape, chunks=(1, 1024), dtype="i4", compressors=None)[:] = values
        session.commit("data")
        questions = {
            "open + coordinate": lambda store: zarr.open_array(store, path="time", mode="r")[:],
            "open + one chunk": lambda store: zarr.open_array(store, path="small", mode="r")[17],
            "open + 1,000 neighbours": lambda store: zarr.open_array(store, path="small", mode="r")[1000:2000],
        }
        for name, ask in questions.items():
            before = sum(proxy.counts.values())
            with meter.timed():
                opened = library.Repository.open(_storage(library, proxy.port, bucket))
                ask(opened.readonly_session("main").store)
            meter.count(name, sum(proxy.counts.values()) - before)
        (folder / "counts.json").write_text(json.dumps(proxy.counts))


WORKLOADS = [Workload("requests on S3", "How often is the store asked?", {"reads": measure})]
