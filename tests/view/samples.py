"""Repositories for tests of the viewer, a client for its API, and the browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt
import zarr

import icefloe
from icefloe.view.server import ViewServer

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
"""Text that takes over a page which inserts it as HTML."""


def weather(spec_version: str = "repository", storage: Any = None) -> icefloe.Repository:
    """A repository with packed values, coordinates, two branches, a tag and a merge."""
    repo = icefloe.Repository.create(
        icefloe.in_memory_storage() if storage is None else storage, spec_version=spec_version
    )
    repo.set_default_commit_metadata({"author": "Ada"})
    with repo.transaction("main", message="coordinates and temperature") as store:
        root = zarr.create_group(store, attributes={"title": "weather"})
        times, latitudes, longitudes = np.arange(12.0) * 6, np.linspace(90, -90, 19), np.arange(36.0) * 10
        for name, values, units in (
            ("time", times, "hours since 2020-01-01"),
            ("latitude", latitudes, "degrees_north"),
            ("longitude", longitudes, "degrees_east"),
        ):
            made = root.create_array(name, data=values, dimension_names=[name])
            made.attrs["units"] = units
        packed = root.create_array(
            "t2m",
            shape=(12, 19, 36),
            chunks=(4, 10, 18),
            dtype="i2",
            dimension_names=["time", "latitude", "longitude"],
            attributes={
                "units": "K",
                "long_name": "2 metre temperature",
                "scale_factor": 0.01,
                "add_offset": 273.15,
                "_FillValue": -32768,
            },
        )
        packed[:] = stored_temperature()
        deep = root.create_group("model/run")
        deep.create_array("steps", data=np.arange(5), dimension_names=["step"])
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("warmer", repo.lookup_branch("main"))
    with repo.transaction("warmer", message="warmer in the first chunk") as store:
        array = zarr.open_array(store, path="t2m")
        array[:4, :10, :18] = array[:4, :10, :18] + 200
    with repo.transaction("main", message="one more array") as store:
        zarr.open_group(store).create_array("humidity", data=np.linspace(0, 100, 12), dimension_names=["time"])
    repo.create_branch("qc", repo.lookup_tag("v1"))
    with repo.transaction("qc", message="quality flags") as store:
        zarr.open_group(store).create_array("flags", data=np.zeros(12, dtype="u1"), dimension_names=["time"])
    repo.merge("qc", "main", message="merge qc")
    return repo


def stored_temperature() -> npt.NDArray[np.int16]:
    """The packed values of the array `t2m`. One of them is missing."""
    row = np.linspace(-2000, 2000, 19 * 36).reshape(19, 36)
    values = (row[None] + 10 * np.arange(12)[:, None, None]).astype("i2")
    values[0, 9, 18] = -32768
    return values


def temperature() -> npt.NDArray[np.float64]:
    """The values that the array `t2m` means."""
    stored = stored_temperature()
    return np.where(stored == -32768, np.nan, stored * 0.01 + 273.15)


def hostile() -> icefloe.Repository:
    """A repository whose texts are markup, with arrays of unusual types, ranks and values."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    repo.set_default_commit_metadata({"author": HOSTILE, HOSTILE: HOSTILE})
    with repo.transaction("main", message=HOSTILE) as store:
        root = zarr.create_group(store, attributes={HOSTILE: HOSTILE, "big": 2**60})
        name = "<b onmouseover=alert(1)>bold"
        root.create_array(name, data=np.arange(6.0).reshape(2, 3), attributes={"units": HOSTILE, "long_name": HOSTILE})
        root.create_group("<script>alert(1)<").create_array("x", data=np.arange(3))
        values = np.array([[np.nan, np.inf, -np.inf], [1e300, -1e300, 0.0]])
        root.create_array("wild", data=values, dimension_names=["y", "x"])
        root.create_array("empty", shape=(0, 5), dtype="f4")
        root.create_array("scalar", data=np.float64(7.5))
        root.create_array("missing", shape=(8, 8), chunks=(4, 4), dtype="f4", fill_value=np.nan)
        root.create_array("deep", data=np.arange(2**12, dtype="i4").reshape((2,) * 12))
        root.create_array("large", data=np.array([2**63 - 1, -(2**63), 0]))
        root.create_array("texts", shape=2, dtype=str)[:] = np.array([HOSTILE, "plain"], dtype=object)
        pairs = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
        root.create_array("pairs", data=pairs)
        root.create_array("waves", data=np.array([1 + 2j, 3 - 4j]))
        root.create_array("days", data=np.array(["2020-01-01", "NaT"], dtype="M8[D]"))
        root.create_array("odd", data=np.arange(4), attributes={"scale_factor": "two", "units": ["K"]})
    return repo


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def slice(self) -> tuple[dict[str, Any], npt.NDArray[Any]]:
        """The header and the values of a slice."""
        (length,) = struct.unpack("<I", self.body[:4])
        header = json.loads(self.body[4 : 4 + length])
        return header, np.frombuffer(self.body[4 + length :], dtype=f"<{header['data_type']}").reshape(header["shape"])


class Client:
    """Sends requests to a viewer. Paths are sent as they are given."""

    def __init__(self, server: ViewServer) -> None:
        self.server = server
        self._parts = urlsplit(server.url)

    def request(self, path: str, method: str = "GET", **headers: str) -> Reply:
        assert self._parts.hostname
        connection = http.client.HTTPConnection(self._parts.hostname, self._parts.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, endpoint: str, **params: Any) -> Any:
        """The JSON of an endpoint."""
        reply = self.reply(endpoint, **params)
        assert reply.status == 200, reply.body
        return reply.json()

    def reply(self, endpoint: str, **params: Any) -> Reply:
        """The answer of an endpoint. A parameter `from_` is sent as `from`."""
        query = urlencode({name.rstrip("_"): value for name, value in params.items()})
        return self.request(f"/api/{quote(endpoint)}{'?' + query if query else ''}")

    def slice(self, **params: Any) -> tuple[dict[str, Any], npt.NDArray[Any]]:
        reply = self.reply("slice", **params)
        assert reply.status == 200, reply.body
        return reply.slice()


def find_browser() -> str | None:
    """The Chromium or Chrome of this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("ICEFLOE_BROWSER") or next(filter(None, map(shutil.which, names)), None)
