"""Constructors, URLs, credentials and translated errors."""

from __future__ import annotations

import datetime as dt
import inspect
import multiprocessing
import pickle
from pathlib import Path
from typing import ClassVar

import pytest
from obstore import exceptions as foreign

from icefloe.blocking import run_blocking
from icefloe.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
)
from icefloe.model.virtual_chunk_container import S3Options
from icefloe.storage import build
from icefloe.storage import credentials as creds
from icefloe.storage.build import resolve_storage, storage_from_url
from icefloe.storage.contract import Storage
from icefloe.storage.endpoints import (
    AwsProfile,
    AwsSettings,
    AzureEndpoint,
    Endpoint,
    GcsEndpoint,
    HttpEndpoint,
    S3Endpoint,
    read_profile,
    read_settings,
)
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.requests import OBSTORE_ERRORS, RetryPolicy, Translating, translate_obstore


def test_every_error_of_obstore_is_translated() -> None:
    theirs = {
        member
        for _, member in inspect.getmembers(foreign, inspect.isclass)
        if issubclass(member, Exception) and member.__module__.startswith("obstore")
    }
    assert len(theirs) >= 12 and theirs <= OBSTORE_ERRORS.keys()
    for kind in theirs:
        error = translate_obstore(kind("what went wrong\n\nDebug source: secret"), "read 'k'", "s3://b/")
        assert type(error) is OBSTORE_ERRORS[kind]
        assert "s3://b/" in str(error) and "what went wrong" in str(error) and "secret" not in str(error)


def test_a_foreign_error_is_the_cause_of_ours_and_ours_passes() -> None:
    with pytest.raises(PermissionDeniedError) as caught, Translating("read", "k", "s3://b/"):
        raise foreign.UnauthenticatedError("no")
    assert isinstance(caught.value.__cause__, foreign.UnauthenticatedError)
    with pytest.raises(StorageError, match="as it was"), Translating("read", "k", "s3://b/"):
        raise StorageError("as it was")


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("s3://bucket/some/prefix", {"region": "eu-central-1"}, "s3://bucket/some/prefix/"),
        ("s3a://bucket", {"anonymous": True}, "s3://bucket/"),
        ("gs://bucket/p", {"anonymous": True}, "gs://bucket/p/"),
        ("az://account/container/p/q", {"access_key": "a2V5"}, "az://account/container/p/q/"),
        ("az://container/p", {"account": "acc"}, "az://acc/container/p/"),
        ("abfss://container@acc.dfs.core.windows.net/p", {}, "az://acc/container/p/"),
        ("https://example.org/data/repo", {}, "https://example.org/data/repo/"),
        ("memory://shared/inner", {}, None),
    ],
)
def test_a_url_gives_a_storage_that_pickles(url: str, options: dict[str, object], shown: str | None) -> None:
    storage = storage_from_url(url, **options)
    assert shown is None or storage.url == shown
    assert pickle.loads(pickle.dumps(storage)) == storage
    assert resolve_storage(storage) is storage


def test_paths_and_file_urls_give_local_storages(tmp_path: Path) -> None:
    spaced = tmp_path / "a b"
    for given in (spaced, str(spaced), spaced.as_uri()):
        assert resolve_storage(given) == build.local_filesystem_storage(spaced)
    for bad in ("ftp://host/x", "", "file://other.host/x", "s3:///prefix", "memory:"):
        if bad == "memory:":
            continue
        with pytest.raises(InvalidInputError):
            storage_from_url(bad)
    with pytest.raises(InvalidInputError, match="nonsense"):
        storage_from_url("s3://bucket/p", nonsense=1)
    with pytest.raises(InvalidInputError):
        resolve_storage(5)  # type: ignore[arg-type]


def test_services_that_speak_s3_have_their_addresses() -> None:
    r2 = build.r2_storage(prefix="bucket/inner", account_id="abc", anonymous=True)
    assert r2.url == "s3://bucket/inner/"
    with pytest.raises(InvalidInputError):
        build.r2_storage(bucket="b")
    with pytest.raises(InvalidInputError, match="region"):
        build.tigris_storage(bucket="b", prefix="p")
    assert build.tigris_storage(bucket="b", prefix="p", use_weak_consistency=True, anonymous=True).read_only
    assert not build.tigris_storage(bucket="b", prefix="p", region="iad", anonymous=True).read_only
    assert build.known_to_sort(None, "b--use1-az4--x-s3") is False
    assert build.known_to_sort("http://127.0.0.1:9000", "b") is None


async def test_a_web_server_is_read_only() -> None:
    storage = storage_from_url("https://example.org/x")
    assert storage.read_only
    for write in (storage.put("a", b""), storage.create("a", b""), storage.delete(["a"]), storage.copy("a", "b")):
        with pytest.raises(ReadOnlyError):
            await write


def renew() -> creds.S3StaticCredentials:
    return creds.S3StaticCredentials("new-id", "new-secret", expires_after=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))


ALL_CREDENTIALS = [
    creds.s3_static_credentials(access_key_id="id", secret_access_key="hush", session_token="hush"),
    creds.s3_credentials(access_key_id="id", secret_access_key="hush"),
    creds.s3_credentials(anonymous=True),
    creds.s3_credentials(from_env=True),
    creds.s3_credentials(get_credentials=renew),
    creds.s3_refreshable_credentials(renew, scatter_initial_credentials=True),
    creds.gcs_credentials(bearer_token="hush"),
    creds.gcs_credentials(service_account_key="hush"),
    creds.gcs_anonymous_credentials(),
    creds.azure_credentials(access_key="hush"),
    creds.azure_credentials(sas_token="hush"),
    creds.azure_credentials(bearer_token="hush"),
    creds.azure_from_env_credentials(),
    creds.LocalFileSystemAccess(),
    creds.HttpAccess(),
]


@pytest.mark.parametrize("credential", ALL_CREDENTIALS, ids=lambda c: type(c).__name__)
def test_credentials_pickle_and_show_no_secret(credential: creds.AnyCredential) -> None:
    assert pickle.loads(pickle.dumps(credential)) == credential
    assert "hush" not in repr(credential) and "new-secret" not in repr(credential)
    assert creds.containers_credentials({"s3://b/": credential, "s3://c/": None})["s3://b/"] is credential


def test_no_secret_shows_in_a_storage() -> None:
    for endpoint in (
        S3Endpoint("b", credentials=creds.S3StaticCredentials("id", "hush"), headers={"x": "hush"}),
        GcsEndpoint("b", creds.gcs_credentials(bearer_token="hush")),
        AzureEndpoint("a", "c", creds.azure_credentials(access_key="hush")),
    ):
        assert "hush" not in repr(endpoint)
    storage = build.s3_storage(bucket="b", access_key_id="id", secret_access_key="hush")
    assert "hush" not in repr(storage) + storage.url


def test_credentials_are_of_one_kind() -> None:
    with pytest.raises(InvalidInputError, match="one of"):
        creds.s3_credentials(anonymous=True, from_env=True)
    with pytest.raises(InvalidInputError, match="give both"):
        creds.s3_credentials(access_key_id="id")
    with pytest.raises(InvalidInputError, match="one of"):
        creds.gcs_credentials(bearer_token="a", service_account_key="b")
    with pytest.raises(InvalidInputError):
        creds.azure_static_credentials()
    with pytest.raises(InvalidInputError, match="container"):
        creds.containers_credentials({"s3://b/": "secret"})  # type: ignore[dict-item]


def test_first_credentials_travel_along_until_they_expire() -> None:
    asked = []

    def function() -> creds.S3StaticCredentials:
        asked.append(1)
        age = dt.timedelta(hours=1 if len(asked) == 1 else 2)
        return creds.S3StaticCredentials(str(len(asked)), "x", expires_after=dt.datetime.now(dt.UTC) + age)

    kept = creds.s3_refreshable_credentials(function, scatter_initial_credentials=True)
    assert kept.current().access_key_id == kept.current().access_key_id == "1"
    kept._initial = creds.S3StaticCredentials("old", "x", expires_after=dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    assert kept.current().access_key_id == "2"
    plain = creds.s3_refreshable_credentials(function)
    travelled = pickle.loads(pickle.dumps(plain))  # a closure goes by value
    assert travelled.current().secret_access_key == "x"


@pytest.mark.s3
async def test_refreshable_credentials_are_asked_for(s3_server, tmp_path: Path) -> None:
    options = s3_server.storage_options(s3_server.make_bucket())
    key, secret = options.pop("access_key_id"), options.pop("secret_access_key")
    asked = []

    def function() -> creds.S3StaticCredentials:
        asked.append(1)
        return creds.S3StaticCredentials(key, secret, expires_after=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))

    storage: Storage = build.s3_storage(**options, get_credentials=function)
    for number in range(5):
        await storage.put(str(number), b"")
    assert 1 <= len(asked) <= 2


def test_named_memories_are_shared() -> None:
    assert MemoryStorage.named("x") == MemoryStorage.named("x") != MemoryStorage()


def test_pauses_grow_and_are_bounded() -> None:
    policy = RetryPolicy(max_tries=12, initial_backoff_ms=100, max_backoff_ms=1000)
    for _ in range(20):
        pauses = list(policy.pauses())
        assert len(pauses) == 12 and all(0 <= pause <= min(0.1 * 2**turn, 1.0) for turn, pause in enumerate(pauses))
    with pytest.raises(InvalidInputError):
        RetryPolicy(max_tries=0)


@pytest.mark.parametrize("spread", [1, 1 << 21])
def test_ranges_of_an_object_share_requests_and_all_are_served(spread: int) -> None:
    class Ranges(MemoryStorage):
        asked: ClassVar[list[tuple[int, int]]] = []

        async def get_range(self, key: str, start: int, end: int) -> bytes:
            self.asked.append((start, end))
            return await super().get_range(key, start, end)

        get_ranges = Storage.get_ranges

    storage, data = Ranges(), bytes(range(256)) * (spread * 20 // 256 + 1)
    run_blocking(storage.put("k", data))
    starts, ends = [10 * spread, 0, 4 * spread, 9 * spread, 7], [11 * spread, 1, 5 * spread, 10 * spread, 7]
    Ranges.asked.clear()
    found = run_blocking(storage.get_ranges("k", starts, ends))
    assert found == [data[start:end] for start, end in zip(starts, ends, strict=True)]
    assert sorted(Ranges.asked) == ([(0, 11)] if spread == 1 else [(0, 1), (4 << 21, 5 << 21), (9 << 21, 11 << 21)])


@pytest.mark.parametrize(
    "endpoint",
    [
        S3Endpoint("b", S3Options(region="eu-west-1", requester_pays=True, checksum_algorithm="sha256")),
        S3Endpoint("b.with.dots", S3Options(endpoint_url="http://127.0.0.1:1", allow_http=True), headers={"x-a": "b"}),
        S3Endpoint("b", credentials=creds.S3StaticCredentials("id", "hush", "token")),
        S3Endpoint("b", credentials=creds.s3_refreshable_credentials(renew)),
        GcsEndpoint("b"),
        GcsEndpoint(
            "b", creds.gcs_credentials(bearer_token="t"), {"allow_http": "true", "base_url": "http://127.0.0.1:1"}
        ),
        GcsEndpoint("b", creds.gcs_refreshable_credentials(lambda: creds.GcsBearerCredential("t"))),
        AzureEndpoint("acc", "c", creds.azure_credentials(access_key="a2V5")),
        AzureEndpoint("acc", "c", creds.azure_credentials(sas_token="sig=x")),
        AzureEndpoint("acc", "c", creds.azure_credentials(bearer_token="t"), {"timeout": "30s"}),
        AzureEndpoint("acc", "c", config={"endpoint": "http://127.0.0.1:1", "allow_http": "true"}),
        HttpEndpoint("https://example.org/x/", {"timeout": "10s"}, {"authorization": "hush"}),
    ],
    ids=repr,
)
def test_every_endpoint_makes_a_client(endpoint: Endpoint) -> None:
    endpoint.connect(RetryPolicy())
    assert endpoint.url.endswith("/") and "hush" not in repr(endpoint)


def test_wrong_options_of_an_endpoint_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="nonsense"):
        HttpEndpoint("https://example.org", {"nonsense": "1"}).connect(RetryPolicy())
    with pytest.raises(UnsupportedError, match="crc32"):
        S3Endpoint("b", S3Options(checksum_algorithm="crc32")).connect(RetryPolicy())


def _one_request(endpoint: S3Endpoint) -> None:
    import asyncio

    asyncio.run(ObstoreStorage(endpoint).put("k", b"x"))


@pytest.mark.s3
def test_a_process_may_exit_right_after_its_last_request(s3_server) -> None:
    """Threads of the request library must not meet an interpreter that is going away."""
    options = s3_server.storage_options(s3_server.make_bucket())
    endpoint = S3Endpoint(
        options["bucket"],
        S3Options(region="us-east-1", endpoint_url=options["endpoint_url"], allow_http=True),
        creds.S3StaticCredentials(options["access_key_id"], options["secret_access_key"]),
    )
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_one_request, args=(endpoint,)) for _ in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def test_profiles_of_the_aws_tools_are_read(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = s%x\n"
        "[work]\naws_access_key_id=w\naws_secret_access_key=x\naws_session_token=t\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\n[profile work]\nregion=us-west-2\n[profile sso]\n")
    files = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }
    default = read_profile(files)
    assert default.credentials == creds.S3StaticCredentials("d", "s%x") and default.region == "eu-west-1"
    work = read_profile(files | {"AWS_PROFILE": "work"})
    assert work.credentials == creds.S3StaticCredentials("w", "x", "t") and work.region == "us-west-2"
    assert read_profile(files | {"AWS_ACCESS_KEY_ID": "a"}).credentials is None
    with pytest.raises(InvalidInputError, match="sso"):
        read_profile(files | {"AWS_PROFILE": "sso"})
    assert read_profile({name: str(tmp_path / "absent") for name in files}).credentials is None
    (tmp_path / "config").write_text("no section")
    with pytest.raises(InvalidInputError, match="config"):
        read_profile(files)


def test_settings_of_s3_are_asked_in_the_order_of_the_aws_tools() -> None:
    profile = AwsProfile(endpoint_url="https://profile", addressing_style="virtual")
    assert read_settings({}, None) == AwsSettings()
    assert read_settings({}, profile) == AwsSettings("https://profile", False, False)
    general = {"AWS_ENDPOINT_URL": "http://general"}
    assert read_settings(general, profile) == AwsSettings("http://general", False, True)
    own = general | {"AWS_ENDPOINT_URL_S3": "https://own", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}
    assert read_settings(own, profile) == AwsSettings("https://own", True, False)
    assert read_settings({"AWS_ALLOW_HTTP": "true"}).allow_http
    ignored = own | {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"}
    assert read_settings(ignored, profile) == AwsSettings(None, True, False, ignores_endpoints=True)
    of_profile = AwsProfile(endpoint_url="https://profile", ignores_endpoints=True)
    assert read_settings(general, of_profile).endpoint_url is None
    again = general | {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}
    assert read_settings(again, of_profile).endpoint_url == "http://general"


@pytest.mark.parametrize(
    ("region", "wanted"),
    [("eu-west-1", "https://b.s3.eu-west-1.amazonaws.com"), ("cn-north-1", "https://b.s3.cn-north-1.amazonaws.com.cn")],
)
def test_an_ignored_endpoint_of_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, region: str, wanted: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    endpoint = S3Endpoint("b", S3Options(region=region))
    store = endpoint.connect(RetryPolicy())
    assert store.config["endpoint"] == wanted


@pytest.mark.parametrize(
    "told", ["builder error", "relative URL without a base", "Missing bucket name", "URL scheme is not allowed"]
)
def test_an_error_of_the_configuration_does_not_advise_to_try_again(told: str) -> None:
    error = translate_obstore(foreign.GenericError(f"Generic S3 error: {told}"), "read 'k'", "s3://b/")
    assert isinstance(error, InvalidInputError)
    assert "Check the address and the options" in str(error) and "again" not in str(error)
    other = translate_obstore(foreign.GenericError("Generic S3 error: timed out"), "read 'k'", "s3://b/")
    assert "trying again later may help" in str(other)


def test_missing_credentials_are_named_as_such() -> None:
    told = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - Server returned 403"
    error = translate_obstore(foreign.GenericError(told), "read 'k'", "s3://b/")
    assert isinstance(error, PermissionDeniedError)
    assert "no credentials were found" in str(error) and "anonymous=true" in str(error)
