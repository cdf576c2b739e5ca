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
from icefloe.ingest.local import ingest_local
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.synthetic import write_month

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
            region=options.get("region"), endpoint_url=options["endpoint_url"], allow_http=True, s3_compatible=True,
            force_path_style=True,
        ),
    )  # fmt: skip
    result = ingest_local(
        f"s3://{bucket}/data/in/*.nc", repository, IngestOptions(mode=mode),
        access=SourceAccess({f"s3://{bucket}/data": files}), containers=[container] if mode == "virtual" else [],
    )  # fmt: skip
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
