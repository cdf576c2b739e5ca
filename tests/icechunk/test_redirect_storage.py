"""A storage behind a redirect is looked up at its first use, and read like any other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zarr
from tests.servers.web import serving

from icefloe import icechunk


class Redirecting(BaseHTTPRequestHandler):
    """`/n` leads to `/n-1`, and `/0` to the repository."""

    target = ""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        step = self.path.strip("/")
        if not step.isdecimal():
            self.send_response(404)
        else:
            self.send_response(302)
            self.send_header("Location", f"/{int(step) - 1}" if int(step) else self.target)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    with repo.transaction("main", message="A group") as store:
        zarr.group(store, attributes={"a": 1})
    with serving(partial(Quiet, directory=str(tmp_path))) as files, serving(Redirecting) as redirecting:
        Redirecting.target = f"http+icechunk://127.0.0.1:{files.server_port}/repo"
        Redirecting.asked.clear()
        yield f"http://127.0.0.1:{redirecting.server_port}"


def test_the_server_is_asked_once_at_the_first_use(server: str) -> None:
    storage = icechunk.redirect_storage(f"{server}/3")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage and isinstance(storage, icechunk.Storage) and server in repr(storage)
    assert Redirecting.asked == []
    for each in (storage, copy):
        for _ in range(2):
            repo = icechunk.Repository.open(each, attribution=icechunk.Attribution(client="weatherlib/0.9"))
            assert dict(zarr.open_group(repo.readonly_session("main").store, mode="r").attrs) == {"a": 1}
    assert Redirecting.asked == ["/3", "/2", "/1", "/0"] * 2
    assert icechunk.Repository.exists(icechunk.redirect_storage(f"{server}/0"))


@pytest.mark.parametrize("path", ["/11", "/missing"])
def test_an_address_that_leads_to_no_storage_is_an_error_at_the_first_use(server: str, path: str) -> None:
    storage = icechunk.redirect_storage(server + path)
    for use in (icechunk.Repository.open, icechunk.Repository.exists, icechunk.Repository.fetch_config):
        with pytest.raises(icechunk.StorageError, match="redirect"):
            use(storage)
    nobody = icechunk.redirect_storage("http://127.0.0.1:1/repo")
    with pytest.raises(icechunk.StorageError, match="cannot be reached"):
        icechunk.Repository.open(nobody)
