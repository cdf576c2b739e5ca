"""Credentials reach the tasks of a table, and no plan, log, event or error that Spark keeps of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from tests.servers.s3 import S3Server
from tests.spark.tables.conftest import ENCODING

import icefloe
from icefloe.xarray import to_icechunk

pytestmark = [pytest.mark.spark(4, 0), pytest.mark.s3]


@pytest.mark.timeout(400)
def test_a_job_with_credentials_tells_them_nowhere(
    seaweed_server: S3Server, repository_root: Path, tmp_path: Path, weather: xr.Dataset
) -> None:
    storage = seaweed_server.storage_options(seaweed_server.make_bucket())
    session = icefloe.Repository.create(icefloe.s3_storage(**storage)).writable_session("main")
    to_icechunk(weather, session, encoding=ENCODING)
    session.commit("weather")
    source = str(repository_root / "src")
    # Nothing in the environment, so that whatever tasks know came with the repository; the server asks for it.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables |= {"PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable}
    arguments = json.dumps({"package": source, "folder": str(tmp_path), "storage": storage})
    driver = Path(__file__).with_name("secret_driver.py")
    # The arguments go by the standard input: a command line is for everybody to read.
    ran = subprocess.run(
        [sys.executable, str(driver)], input=arguments, env=variables, capture_output=True, text=True, timeout=380
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    north = weather.t2m.sel(lat=weather.lat > 0)
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert told == {
        "rows": int((north > 250).sum()),
        "written": int((north > 250).sum()),
        "failed": True,
        "sum": pytest.approx(float(weather.t2m.sum(dtype="f8")), rel=1e-6),
    }
    events = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    # Each of them is there, and says what it should.
    assert "icefloe_reads_" in ran.stdout and "USER_RAISED_EXCEPTION] row" in ran.stdout
    assert "DEBUG org.apache.spark.sql" in ran.stderr and "icefloe.tables" in ran.stderr
    assert "SparkListenerTaskEnd" in events and "icefloe_reads_" in events
    for text in (ran.stdout, ran.stderr, events):
        assert seaweed_server.secret_key not in text
        assert seaweed_server.secret_key.encode().hex() not in text
