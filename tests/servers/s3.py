"""An S3 server as tests see it: an address, credentials, and fresh buckets."""

from __future__ import annotations

import http.client
import time
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. Pickles, so that tests can hand it to other processes."""

    name: str
    endpoint_url: str
    access_key: str = "icefloe-tests"
    secret_key: str = "icefloe-tests-secret"
    region: str = "us-east-1"

    def make_bucket(self) -> str:
        """A bucket nobody else uses; returns its name."""
        bucket = f"test-{uuid.uuid4().hex[:16]}"
        for attempt in range(20):
            status, body = self.request("PUT", f"/{bucket}")
            if status == 200:
                return bucket
            # A server that answers may still be gathering its parts.
            if status < 500:
                break
            time.sleep(0.1 * (attempt + 1))
        raise AssertionError(f"{self.name} refused to create bucket {bucket}: {status} {body[:300]!r}")

    def storage_options(self, bucket: str, prefix: str = "repository") -> dict[str, Any]:
        """The arguments of `s3_storage` for a folder of a bucket."""
        return {
            "bucket": bucket,
            "prefix": prefix,
            "region": self.region,
            "endpoint_url": self.endpoint_url,
            "allow_http": True,
            "force_path_style": True,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """A signed request, for what the storage room does not do by itself."""
        url = f"{self.endpoint_url}{path}"
        unsigned = AWSRequest(method=method, url=url, data=body)
        S3SigV4Auth(Credentials(self.access_key, self.secret_key), "s3", self.region).add_auth(unsigned)
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        try:
            connection.request(method, path, body, dict(unsigned.headers.items()))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
