"""Containers of virtual chunks and the object stores that they are in. No credentials are kept here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from icefloe.errors import InvalidInputError

_SECRET = re.compile("key|token|secret|password|credential|service_account|sas|certificate_path", re.IGNORECASE)
"""Options of a client that hold credentials or say where they lie; these are never stored."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How an S3 service is reached."""

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: int | None = None
    requester_pays: bool = False
    checksum_algorithm: str | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> S3Options:
        """Options as stored; unknown ones are left aside, null is the default."""
        found: dict[str, Any] = {}
        for setting in fields(cls):
            value = given.get(setting.name)
            if value is None:
                continue
            wanted = _S3_TYPES.get(setting.name, str)
            if type(value) is not wanted:
                raise InvalidInputError(f"{setting.name} of an S3 store is a {wanted.__name__}; found {value!r}")
            found[setting.name] = value
        return cls(**found)


_S3_TYPES: dict[str, type] = {
    "allow_http": bool,
    "anonymous": bool,
    "force_path_style": bool,
    "requester_pays": bool,
    "network_stream_timeout_seconds": int,
}


class ObjectStoreConfig:
    """One of the kinds of object stores; its members are the kinds."""

    __slots__ = ()
    tag: ClassVar[str]

    S3: ClassVar[type[S3ObjectStore]]
    S3Compatible: ClassVar[type[S3CompatibleObjectStore]]
    Tigris: ClassVar[type[TigrisObjectStore]]
    Gcs: ClassVar[type[GcsObjectStore]]
    Azure: ClassVar[type[AzureObjectStore]]
    Http: ClassVar[type[HttpObjectStore]]
    LocalFileSystem: ClassVar[type[LocalFileSystemObjectStore]]
    InMemory: ClassVar[type[InMemoryObjectStore]]

    def to_dict(self) -> dict[str, Any]:
        """The variant as repositories store it: its tag, and what it holds."""
        return {self.tag: self._content()}

    def _content(self) -> Any:
        raise NotImplementedError

    @staticmethod
    def from_dict(given: Mapping[str, Any] | str) -> ObjectStoreConfig:
        """The store of a stored variant, in this or the older spelling of the tags."""
        variant: Mapping[str, Any] = {given: None} if isinstance(given, str) else given
        if len(variant) != 1:
            raise InvalidInputError(f"an object store is one variant like {{'s3': {{...}}}}; found {sorted(variant)}")
        ((tag, content),) = variant.items()
        kind = _KINDS.get(tag.replace("_", "").lower())
        if kind is None:
            known = ", ".join(kind.tag for kind in _KINDS.values())
            raise InvalidInputError(f"{tag!r} is no object store; known are {known}")
        return _parse_content(kind, content)


@dataclass(frozen=True, slots=True)
class _S3Like(ObjectStoreConfig):
    options: S3Options = S3Options()

    def _content(self) -> Any:
        return asdict(self.options)


@dataclass(frozen=True, slots=True)
class S3ObjectStore(_S3Like):
    """Amazon S3."""

    tag: ClassVar[str] = "s3"


@dataclass(frozen=True, slots=True)
class S3CompatibleObjectStore(_S3Like):
    """Another service that speaks S3."""

    tag: ClassVar[str] = "s3_compatible"


@dataclass(frozen=True, slots=True)
class TigrisObjectStore(_S3Like):
    """Tigris."""

    tag: ClassVar[str] = "tigris"


@dataclass(frozen=True, slots=True)
class _WithOptions(ObjectStoreConfig):
    opts: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.tag, tuple(sorted(self.opts.items()))))

    def _content(self) -> Any:
        return {name: value for name, value in self.opts.items() if _SECRET.search(name) is None}


@dataclass(frozen=True, slots=True, eq=False)
class GcsObjectStore(_WithOptions):
    """Google Cloud Storage, with options of its client."""

    tag: ClassVar[str] = "gcs"


@dataclass(frozen=True, slots=True, eq=False)
class AzureObjectStore(_WithOptions):
    """Azure Blob Storage, with options of its client; `account_name` is one."""

    tag: ClassVar[str] = "azure"


@dataclass(frozen=True, slots=True, eq=False)
class HttpObjectStore(_WithOptions):
    """A web server, with options of the client and headers for each request."""

    tag: ClassVar[str] = "http"
    headers: Mapping[str, str] = field(default_factory=dict)

    def _content(self) -> Any:
        # Headers carry keys and cookies; whoever needs them gives them when opening.
        return {name: value for name, value in self.opts.items() if _SECRET.search(name) is None}


@dataclass(frozen=True, slots=True)
class LocalFileSystemObjectStore(ObjectStoreConfig):
    """A folder of local files."""

    tag: ClassVar[str] = "local_file_system"
    path: str = ""

    def _content(self) -> Any:
        return self.path


@dataclass(frozen=True, slots=True)
class InMemoryObjectStore(ObjectStoreConfig):
    """A memory; of use in tests only."""

    tag: ClassVar[str] = "in_memory"

    def _content(self) -> Any:
        return None


ObjectStoreConfig.S3 = S3ObjectStore
ObjectStoreConfig.S3Compatible = S3CompatibleObjectStore
ObjectStoreConfig.Tigris = TigrisObjectStore
ObjectStoreConfig.Gcs = GcsObjectStore
ObjectStoreConfig.Azure = AzureObjectStore
ObjectStoreConfig.Http = HttpObjectStore
ObjectStoreConfig.LocalFileSystem = LocalFileSystemObjectStore
ObjectStoreConfig.InMemory = InMemoryObjectStore

_KINDS: dict[str, type[ObjectStoreConfig]] = {
    kind.tag.replace("_", ""): kind
    for kind in (
        S3ObjectStore,
        S3CompatibleObjectStore,
        TigrisObjectStore,
        GcsObjectStore,
        AzureObjectStore,
        HttpObjectStore,
        LocalFileSystemObjectStore,
        InMemoryObjectStore,
    )
}


def _parse_content(kind: type[ObjectStoreConfig], content: Any) -> ObjectStoreConfig:
    if kind is InMemoryObjectStore:
        return InMemoryObjectStore()
    if kind is LocalFileSystemObjectStore:
        if not isinstance(content, str):
            raise InvalidInputError(f"a local_file_system store holds a path; found {content!r}")
        return LocalFileSystemObjectStore(content)
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise InvalidInputError(f"a {kind.tag} store holds options; found {content!r}")
    if issubclass(kind, _S3Like):
        return kind(S3Options.from_dict(content))
    headers = content.get("headers") if kind is HttpObjectStore else None
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidInputError(f"the headers of an http store are a map; found {headers!r}")
    opts = {name: str(value) for name, value in content.items() if not (headers is not None and name == "headers")}
    if kind is HttpObjectStore:
        return HttpObjectStore(opts, {str(name): str(value) for name, value in (headers or {}).items()})
    return GcsObjectStore(opts) if kind is GcsObjectStore else AzureObjectStore(opts)


def local_filesystem_store(path: str) -> LocalFileSystemObjectStore:
    """Virtual files below a local folder."""
    return LocalFileSystemObjectStore(str(path))


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    anonymous: bool = False,
    s3_compatible: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: str | None = None,
) -> S3ObjectStore | S3CompatibleObjectStore:
    """Virtual files in S3, or in a service that speaks it."""
    if endpoint_url is not None and "@" in endpoint_url:
        raise InvalidInputError("the endpoint_url of an S3 service holds no user and no password; give access keys")
    options = S3Options(
        region,
        endpoint_url,
        allow_http,
        anonymous,
        force_path_style,
        network_stream_timeout_seconds,
        requester_pays,
        checksum_algorithm,
    )
    return S3CompatibleObjectStore(options) if s3_compatible else S3ObjectStore(options)


def gcs_store(opts: Mapping[str, str] | None = None) -> GcsObjectStore:
    """Virtual files in Google Cloud Storage."""
    return GcsObjectStore(dict(opts or {}))


def azure_store(opts: Mapping[str, str] | None = None) -> AzureObjectStore:
    """Virtual files in Azure Blob Storage; `opts` holds `account_name`."""
    return AzureObjectStore(dict(opts or {}))


def http_store(opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> HttpObjectStore:
    """Virtual files on a web server."""
    return HttpObjectStore(dict(opts or {}), dict(headers or {}))


@dataclass(frozen=True)
class VirtualChunkSpec:
    """Where the bytes of one chunk lie in a file outside the repository."""

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: dt.datetime | None = None


SCHEMES: dict[str, frozenset[str]] = {
    "s3": frozenset({"s3", "s3a", "s3n"}),
    "s3_compatible": frozenset({"s3", "s3a", "s3n"}),
    "tigris": frozenset({"tigris", "s3"}),
    "gcs": frozenset({"gs", "gcs"}),
    "azure": frozenset({"az", "abfs", "abfss", "azure"}),
    "local_file_system": frozenset({"file"}),
    "http": frozenset({"http", "https"}),
    "in_memory": frozenset({"memory"}),
}
"""Schemes of the URLs that each kind of store answers for."""


@dataclass(frozen=True, slots=True)
class VirtualChunkContainer:
    """URLs that start with `url_prefix` are read from `store`; a `name` allows `vcc://name/...` locations.

    `stored` is true for a container that was read from a repository. Such a container is data of whoever wrote the
    repository: it never decides which folder an authorised prefix stands for, nor where credentials are sent. Give a
    container of your own in the configuration to decide that.

    Examples
    --------
    >>> from icefloe.model.virtual_chunk_container import local_filesystem_store
    >>> VirtualChunkContainer("file:///data/", local_filesystem_store("/data"), name="data").name
    'data'
    """

    url_prefix: str
    store: ObjectStoreConfig
    name: str | None = None
    stored: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        """Refuse a prefix or a name that no location could match safely."""
        scheme = str(self.url_prefix).partition("://")[0].lower()
        if not isinstance(self.url_prefix, str) or "://" not in self.url_prefix:
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} of a VirtualChunkContainer is not a URL; "
                "allowed: scheme://..., for instance 's3://bucket/' or 'file:///data/'"
            )
        if not self.url_prefix.endswith("/"):
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} of a VirtualChunkContainer must end in '/', "
                f"or it would also cover its siblings; write {self.url_prefix + '/'!r}"
            )
        if scheme in ("http", "https") and "@" in self.url_prefix.partition("://")[2].partition("/")[0]:
            raise InvalidInputError(
                "the url_prefix of a VirtualChunkContainer is stored and must not hold a user or a password; give "
                "credentials as headers of its http_store(...)"
            )
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise InvalidInputError(
                f"the name {self.name!r} of a VirtualChunkContainer must not be empty nor contain '/'"
            )
        if not isinstance(self.store, ObjectStoreConfig):
            raise InvalidInputError(
                f"the store of the VirtualChunkContainer {self.url_prefix!r} is {self.store!r}; "
                "allowed: s3_store(...), gcs_store(...), local_filesystem_store(...) and their like"
            )
        allowed = SCHEMES.get(self.store.tag)
        if allowed is not None and scheme not in allowed:
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} does not fit its {self.store.tag} store; "
                f"allowed schemes: {', '.join(sorted(allowed))}"
            )
