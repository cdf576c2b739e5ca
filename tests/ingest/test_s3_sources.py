"""Sources on a real S3 server, ingested by value and by reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import Repository, RepositoryConfig, VirtualChunkContainer, s3_credentials, s3_storage, s3_store
from icefloe.blocking import run_blocking
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions, expand_sources
from icefloe.storage import storage_from_url
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_files_in_a_bucket_are_ingested_and_read_back(tmp_path: Path, ministack: Any, mode: Any) -> None:
    paths = write_month(tmp_path, days=3, nlat=19, nlon=36, variables=("t2m",), packed=True)
    bucket = ministack.make_bucket()
    files = s3_storage(**ministack.storage_options(bucket, "data"))
    for path in paths:
        run_blocking(files.put(f"in/{path.name}", path.read_bytes()))
    options = ministack.storage_options(bucket)
    storage = s3_storage(**options)
    repository = Repository.create(storage)
    prefix = f"s3://{bucket}/data/in/"
    container = VirtualChunkContainer(
        prefix,
        s3_store(
            region=options.get("region"),
            endpoint_url=options["endpoint_url"],
            allow_http=True,
            s3_compatible=True,
            force_path_style=True,
        ),
    )
    result = ingest_local(
        f"s3://{bucket}/data/in/*.nc",
        repository,
        IngestOptions(mode=mode),
        access=SourceAccess({f"s3://{bucket}/data": files}),
        containers=[container] if mode == "virtual" else [],
    )
    assert result.plan is not None and result.plan.containers == ((prefix,) if mode == "virtual" else ())
    secrets = s3_credentials(access_key_id=options["access_key_id"], secret_access_key=options["secret_access_key"])
    # Credentials go to an endpoint of the reader's own configuration, not to one that the repository names.
    own = RepositoryConfig(virtual_chunk_containers={prefix: container})
    reader = Repository.open(
        storage, own, authorize_virtual_chunk_access={prefix: secrets} if mode == "virtual" else None
    )
    found = xr.open_zarr(reader.readonly_session("main").store, consolidated=False)
    expected = xr.open_mfdataset([str(p) for p in paths], engine="netcdf4", data_vars="minimal")
    np.testing.assert_array_equal(found.t2m.values, expected.t2m.values)


@pytest.fixture(params=["ministack", "seaweedfs"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str, Any]:
    """A server, a bucket with two files below `in`, and what they hold."""
    server = request.getfixturevalue(request.param)
    bucket = server.make_bucket()
    paths = write_month(tmp_path, days=2, nlat=9, nlon=18, variables=("t2m",), packed=True)
    files = s3_storage(**server.storage_options(bucket, "in"))
    for path in paths:
        run_blocking(files.put(path.name, path.read_bytes()))
    expected = xr.open_mfdataset([str(p) for p in paths], engine="netcdf4", data_vars="minimal")
    return server, bucket, expected.t2m.values


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_is_used_for_sources_and_repository(
    archive: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server, bucket, expected = archive
    monkeypatch.setenv(name, server.endpoint_url)
    if name.endswith("_S3"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # that of the service comes first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_REGION", server.region)
    repository = Repository.create(storage_from_url(f"s3://{bucket}/repository-{name}"))
    ingest_local(f"s3://{bucket}/in/*.nc", repository, access=SourceAccess(options={"region": server.region}))
    found = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    np.testing.assert_array_equal(found.t2m.values, expected)


def test_a_profile_names_the_endpoint_the_region_and_the_keys(
    archive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket, _ = archive
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = {server.region}\nservices = lab-services\ns3 =\n  addressing_style = path\n"
        f"[services lab-services]\ns3 =\n  endpoint_url = {server.endpoint_url}\n"
    )
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    names = [file.name for file in expand_sources(f"s3://{bucket}/in/*.nc")]
    assert len(names) == 2


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_options_of_the_sources_are_apart_from_those_of_the_repository(archive: Any, tmp_path: Path, mode: Any) -> None:
    server, bucket, expected = archive
    options = {k: v for k, v in server.storage_options(bucket).items() if k not in ("bucket", "prefix")}
    repository = Repository.create(tmp_path / "repository")
    result = ingest_local(f"s3://{bucket}/in/*.nc", repository, IngestOptions(mode=mode), source_options=options)
    assert server.secret_key not in repr(SourceAccess(options=options))
    stored = Repository.fetch_config(repository.storage)
    assert server.secret_key not in repr(stored)
    authorized = None
    if mode == "virtual":
        assert result.plan is not None
        prefix = result.plan.containers[0]
        container = stored.virtual_chunk_containers[prefix]
        assert container.store.options.endpoint_url == server.endpoint_url
        secrets = s3_credentials(access_key_id=server.access_key, secret_access_key=server.secret_key)
        authorized = {prefix: secrets}
        config = RepositoryConfig(virtual_chunk_containers={prefix: VirtualChunkContainer(prefix, container.store)})
        repository = Repository.open(tmp_path / "repository", config, authorize_virtual_chunk_access=authorized)
    found = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    np.testing.assert_array_equal(found.t2m.values, expected)
