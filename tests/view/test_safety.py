"""Who can use a viewer, and what its answers allow: hosts, tokens, methods, headers, limits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.view.samples import Client, weather

import icefloe
from icefloe.cli.app import main
from icefloe.view.revisions import public_url
from icefloe.view.server import ViewServer, is_loopback
from icefloe.view.web_app import STATIC, Access, create_app


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ViewServer(weather()) as server:
        yield Client(server)


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Client, str]]:
    """A viewer on all addresses, which needs a token."""
    with ViewServer(weather(), "0.0.0.0") as server:
        token = server.url.partition("token=")[2]
        server.url = f"http://127.0.0.1:{server.port}/"
        yield Client(server), token


def test_another_name_in_the_host_header_is_refused(client: Client) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert client.request("/api/repository", Host=host).status in (400, 421)
    for host in ("localhost", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert client.request("/api/repository", Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_served(client: Client, method: str) -> None:
    for path in ("/", "/api/repository", "/zarr/main/zarr.json"):
        assert client.request(path, method).status == 405


def test_requests_of_other_sites_are_refused(client: Client) -> None:
    assert client.request("/api/repository", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert client.request("/api/repository", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors").status == 403
    assert client.request("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200
    assert client.request("/api/repository", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200


def test_every_answer_has_the_headers_of_a_careful_server(client: Client) -> None:
    for path in ("/", "/static/app.js", "/api/repository", "/api/nowhere", "/zarr/main/zarr.json", "/nothing"):
        headers = client.request(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_only_files_of_the_page_are_served(client: Client) -> None:
    for path in sorted(STATIC.iterdir()):
        reply = client.request(f"/static/{path.name}")
        assert reply.status == 200 and reply.body == path.read_bytes()
        again = client.request(f"/static/{path.name}", If_None_Match=reply.headers["etag"])
        assert again.status == 304
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/server.py", "/etc/passwd", "nothing.js"):
        assert client.request(f"/static/{name}").status == 404


def test_the_page_loads_nothing_from_elsewhere_and_writes_no_markup() -> None:
    for path in STATIC.glob("*"):
        text = path.read_text()
        addresses = set(re.findall(r"""(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s"'`)]*""", text)) - {"//www.w3.org/2000/svg"}
        assert {each for each in addresses if "w3.org" not in each} == set(), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path


def test_the_token_is_needed_on_other_addresses(guarded: tuple[Client, str]) -> None:
    client, token = guarded
    assert len(token) >= 32
    for path in ("/", "/api/repository", "/zarr/main/zarr.json", "/static/app.js"):
        assert client.request(path).status == 401
        assert client.request(f"{path}?token=wrong").status == 401
        assert client.request(path, Authorization="Bearer wrong").status == 401
        assert client.request(path, Authorization=f"Bearer {token}").status == 200
    first = client.request(f"/?token={token}&a=b")
    assert first.status == 303 and first.headers["location"] == "/?a=b"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert client.request("/api/repository", Cookie=cookie.partition(";")[0]).status == 200
    assert client.request(f"/zarr/main/zarr.json?token={token}").status == 200
    assert token not in client.request("/", Authorization=f"Bearer {token}").body.decode()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
    ],
)
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_credentials_are_not_in_the_url_of_a_repository() -> None:
    assert public_url("https://user:secret@host/path?sig=abc#x") == "https://host/path"
    assert public_url("file:///data/repo/") == "file:///data/repo/"


def test_a_port_that_is_taken_is_an_error() -> None:
    with ViewServer(weather()) as server, pytest.raises(icefloe.InvalidInputError, match="cannot listen"):
        ViewServer(weather(), port=server.port)


def test_frames_are_allowed_for_notebooks_only() -> None:
    repo = weather()
    with repo.view() as viewer:
        policy = Client(viewer).request("/").headers["content-security-policy"]
        assert "frame-ancestors 'self' http://localhost:*" in policy
        assert f'src="{viewer.url}"' in viewer._repr_html_()
        assert viewer.url in repr(viewer)
    assert Access().frames == ("'none'",) and create_app(repo) is not None


@pytest.mark.long
def test_the_command_prints_the_url_first_and_ends_when_interrupted(tmp_path: Path) -> None:
    weather(storage=str(tmp_path / "repo"))
    command = [sys.executable, "-m", "icefloe.cli.app", "view", str(tmp_path / "repo"), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)

        class Known:
            pass

        known = Known()
        known.url = url  # type: ignore[attr-defined]
        assert Client(known).get("repository")["generation"] == "repository"  # type: ignore[arg-type]
    finally:
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "", "")


def test_the_command_says_which_packages_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weather(storage=str(tmp_path / "repo"))
    monkeypatch.setitem(sys.modules, "icefloe.view.server", None)
    assert main(["view", str(tmp_path / "repo")]) == 1
    assert "pip install 'icefloe[view]'" in capsys.readouterr().err
