"""Common operations on S3 take fewer requests than with the official package."""

from __future__ import annotations

import pytest
from benchmarks.proxy import proxied
from benchmarks.requests import measure
from tests.servers.s3 import S3Server

import icefloe

EXPIRY = "open, expire 12 commits"


@pytest.mark.s3
@pytest.mark.slow
def test_every_operation_takes_fewer_requests_than_in_the_official_package(ministack: S3Server) -> None:
    official = pytest.importorskip("icechunk")
    if int(official.__version__.partition(".")[0]) < 2:
        pytest.skip(
            f"version {official.__version__} of the official package writes other files, which take fewer requests"
        )
    with proxied(ministack.endpoint_url) as proxy:
        theirs = measure(official, ministack, proxy)
        ours = measure(icefloe, ministack, proxy)
        shared = measure(icefloe, ministack, proxy, "icechunk2")
    for name in theirs:
        assert shared[name].total < theirs[name].total, name
        assert ours[name].total < theirs[name].total, name


@pytest.mark.s3
def test_requests_of_common_operations_do_not_grow(ministack: S3Server) -> None:
    most = {
        "open": 4,
        "open, read one chunk": 6,
        "open, read 100 neighbours": 6,
        "open, list 21 arrays": 4,
        "small commit": 7,
        "open, create a tag, list tags, read it": 12,
        EXPIRY: 7,
        "open, collect garbage": 71,
    }
    with proxied(ministack.endpoint_url) as proxy:
        found = {name: counts.total for name, counts in measure(icefloe, ministack, proxy).items()}
    assert {name: count for name, count in found.items() if count > most[name]} == {}


@pytest.mark.s3
def test_requests_in_the_official_format_do_not_grow(ministack: S3Server) -> None:
    most = {
        "open": 6,
        "open, read one chunk": 8,
        "open, read 100 neighbours": 8,
        "open, list 21 arrays": 6,
        "small commit": 9,
        "open, create a tag, list tags, read it": 13,
        EXPIRY: 7,
        "open, collect garbage": 33,
    }
    with proxied(ministack.endpoint_url) as proxy:
        found = {name: counts.total for name, counts in measure(icefloe, ministack, proxy, "icechunk2").items()}
    assert {name: count for name, count in found.items() if count > most[name]} == {}
