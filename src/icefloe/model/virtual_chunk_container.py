"""Virtual chunk containers and the configuration of their object stores. Neither contains credentials."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias
from urllib.parse import unquote, urlsplit

from icefloe.display.card import ShownField, WithFields, code
from icefloe.errors import InvalidInputError

Checksum: TypeAlias = str | dt.datetime | None
"""The expected state of a file of virtual chunks: its ETag, or a time after which it was not modified."""

_SECRET = re.compile("key|token|secret|password|credential|service_account|sas|certificate_path", re.IGNORECASE)
"""Options of a client that contain credentials or their location. They are never stored."""


@dataclass(frozen=True, slots=True, repr=False)
class S3Options(WithFields):
    """How to connect to an S3 service.

    Parameters
    ----------
    region
        The region of the bucket.
    endpoint_url
        The endpoint of an S3-compatible service. None is AWS.
    allow_http
        Allow an endpoint without TLS.
    anonymous
        Do not sign requests.
    force_path_style
        Put the bucket in the path of URLs instead of the host name.
    network_stream_timeout_seconds
        How long a response can make no progress.
    requester_pays
        Accept the costs of requests to requester-pays buckets.
    checksum_algorithm
        The checksum of uploads, such as `SHA256`.

    Examples
    --------
    >>> S3Options(region="eu-west-1", anonymous=True).region
    'eu-west-1'
    """

    _full_name = "icechunk.storage.S3Options"
    _is_code = True

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
        """Create options from their stored form. Unknown keys are ignored. Null is the default.

        Parameters
        ----------
        given
            The options by name.

        Returns
        -------
        S3Options
            The options.

        Raises
        ------
        InvalidInputError
            A value has the wrong type.

        Examples
        --------
        >>> S3Options.from_dict({"region": "eu-west-1", "anonymous": None}).anonymous
        False
        """
        found: dict[str, Any] = {}
        for setting in fields(cls):
            value = given.get(setting.name)
            if value is None:
                continue
            wanted = _S3_TYPES.get(setting.name, str)
            if type(value) is not wanted:
                raise InvalidInputError(f"{setting.name} of an S3 store is {value!r}, expected a {wanted.__name__}")
            found[setting.name] = value
        return cls(**found)


_S3_TYPES: dict[str, type] = {
    "allow_http": bool,
    "anonymous": bool,
    "force_path_style": bool,
    "requester_pays": bool,
    "network_stream_timeout_seconds": int,
}


class ObjectStoreConfig(WithFields):
    """Base class of the object store configurations. Its class attributes are the kinds.

    Examples
    --------
    >>> ObjectStoreConfig.Gcs()
    icechunk.config.ObjectStoreConfig.Gcs({})
    >>> isinstance(s3_store(region="eu-west-1"), ObjectStoreConfig)
    True
    """

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

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return ()

    def _shown_fields(self) -> Iterator[ShownField]:
        for each in fields(self):  # type: ignore[arg-type]
            yield ShownField(each.name, getattr(self, each.name))

    def __repr__(self) -> str:
        return f"{self._full_name}({', '.join(code(each) for each in self._arguments)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the form that repositories store: the kind as key, its options as value.

        Returns
        -------
        dict
            One key with the options. Secrets are left out.

        Examples
        --------
        >>> azure_store({"account_name": "acme", "account_key": "secret"}).to_dict()
        {'azure': {'account_name': 'acme'}}
        """
        return {self.tag: self._content()}

    def _content(self) -> Any:
        raise NotImplementedError

    @staticmethod
    def from_dict(given: Mapping[str, Any] | str) -> ObjectStoreConfig:
        """Create a configuration from its stored form. Both spellings of the kinds are accepted.

        Parameters
        ----------
        given
            A mapping with one key, or the name of a kind without options.

        Returns
        -------
        ObjectStoreConfig
            The configuration.

        Raises
        ------
        InvalidInputError
            The kind is unknown, or there are several.

        Examples
        --------
        >>> ObjectStoreConfig.from_dict({"gcs": {}})
        icechunk.config.ObjectStoreConfig.Gcs({})
        """
        variant: Mapping[str, Any] = {given: None} if isinstance(given, str) else given
        if len(variant) != 1:
            raise InvalidInputError(
                f"expected an object store with one key such as {{'s3': {{...}}}}, found the keys {sorted(variant)}"
            )
        ((tag, content),) = variant.items()
        kind = _KINDS.get(tag.replace("_", "").lower())
        if kind is None:
            known = ", ".join(kind.tag for kind in _KINDS.values())
            raise InvalidInputError(f"unknown object store {tag!r}. Known: {known}")
        return _parse_content(kind, content)


@dataclass(frozen=True, slots=True, repr=False)
class _S3Like(ObjectStoreConfig):
    options: S3Options = S3Options()

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return (self.options,)

    def _shown_fields(self) -> Iterator[ShownField]:
        return self.options._shown_fields()

    def _content(self) -> Any:
        return asdict(self.options)


@dataclass(frozen=True, slots=True, repr=False)
class S3ObjectStore(_S3Like):
    """Amazon S3.

    Parameters
    ----------
    options
        How to connect.

    Examples
    --------
    >>> S3ObjectStore(S3Options(region="eu-west-1")).options.region
    'eu-west-1'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.S3"
    tag: ClassVar[str] = "s3"


@dataclass(frozen=True, slots=True, repr=False)
class S3CompatibleObjectStore(_S3Like):
    """A service with the S3 protocol that is not AWS.

    Parameters
    ----------
    options
        How to connect.

    Examples
    --------
    >>> S3CompatibleObjectStore(S3Options(endpoint_url="https://minio.example.org")).tag
    's3_compatible'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.S3Compatible"
    tag: ClassVar[str] = "s3_compatible"


@dataclass(frozen=True, slots=True, repr=False)
class TigrisObjectStore(_S3Like):
    """Tigris.

    Parameters
    ----------
    options
        How to connect.

    Examples
    --------
    >>> TigrisObjectStore().tag
    'tigris'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.Tigris"
    tag: ClassVar[str] = "tigris"


@dataclass(frozen=True, slots=True, repr=False)
class _WithOptions(ObjectStoreConfig):
    opts: Mapping[str, str] = field(default_factory=dict)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return ({name: "****" if _SECRET.search(name) else value for name, value in self.opts.items()},)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("opts", self._arguments[0])

    def __hash__(self) -> int:
        return hash((self.tag, tuple(sorted(self.opts.items()))))

    def _content(self) -> Any:
        return {name: value for name, value in self.opts.items() if _SECRET.search(name) is None}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GcsObjectStore(_WithOptions):
    """Google Cloud Storage.

    Parameters
    ----------
    opts
        Options of the obstore client.

    Examples
    --------
    >>> GcsObjectStore().tag
    'gcs'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.Gcs"
    tag: ClassVar[str] = "gcs"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AzureObjectStore(_WithOptions):
    """Azure Blob Storage.

    Parameters
    ----------
    opts
        Options of the obstore client. `account_name` is required to read.

    Examples
    --------
    >>> AzureObjectStore({"account_name": "acme"}).opts["account_name"]
    'acme'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.Azure"
    tag: ClassVar[str] = "azure"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HttpObjectStore(_WithOptions):
    """A web server.

    Parameters
    ----------
    opts
        Options of the obstore client.
    headers
        Headers of every request. They are not stored in repositories.

    Examples
    --------
    >>> HttpObjectStore(headers={"Authorization": "Bearer token"}).to_dict()
    {'http': {}}
    """

    _full_name = "icechunk.config.ObjectStoreConfig.Http"
    tag: ClassVar[str] = "http"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        hidden = dict.fromkeys(self.headers, "****")
        return (_WithOptions._arguments.fget(self)[0], *([hidden] if hidden else []))  # type: ignore[attr-defined]

    def _content(self) -> Any:
        # Headers can contain keys and cookies. They are given when a repository is opened.
        return {name: value for name, value in self.opts.items() if _SECRET.search(name) is None}


@dataclass(frozen=True, slots=True, repr=False)
class LocalFileSystemObjectStore(ObjectStoreConfig):
    """A directory of local files.

    Parameters
    ----------
    path
        The directory.

    Examples
    --------
    >>> LocalFileSystemObjectStore("/data").to_dict()
    {'local_file_system': '/data'}
    """

    _full_name = "icechunk.config.ObjectStoreConfig.LocalFileSystem"
    tag: ClassVar[str] = "local_file_system"
    path: str = ""

    @property
    def folder(self) -> str:
        """The folder on disk. The path may be given as a URL, such as `file:///data/`."""
        return unquote(urlsplit(self.path).path) if self.path.startswith("file://") else self.path

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return (self.path,)

    def _content(self) -> Any:
        return self.path


@dataclass(frozen=True, slots=True, repr=False)
class InMemoryObjectStore(ObjectStoreConfig):
    """An object store in memory, for tests.

    Examples
    --------
    >>> InMemoryObjectStore().tag
    'in_memory'
    """

    _full_name = "icechunk.config.ObjectStoreConfig.InMemory"
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
            raise InvalidInputError(f"a local_file_system store needs a path, found {content!r}")
        return LocalFileSystemObjectStore(content)
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise InvalidInputError(f"a {kind.tag} store needs a map of options, found {content!r}")
    if issubclass(kind, _S3Like):
        return kind(S3Options.from_dict(content))
    headers = content.get("headers") if kind is HttpObjectStore else None
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidInputError(f"the headers of an http store must be a map, found {headers!r}")
    opts = {name: str(value) for name, value in content.items() if not (headers is not None and name == "headers")}
    if kind is HttpObjectStore:
        return HttpObjectStore(opts, {str(name): str(value) for name, value in (headers or {}).items()})
    return GcsObjectStore(opts) if kind is GcsObjectStore else AzureObjectStore(opts)


def local_filesystem_store(path: str) -> LocalFileSystemObjectStore:
    """Configure a container of local files.

    Parameters
    ----------
    path
        The directory.

    Returns
    -------
    LocalFileSystemObjectStore
        The configuration.

    Examples
    --------
    >>> VirtualChunkContainer("file:///data/", local_filesystem_store("/data")).store.path
    '/data'
    """
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
    """Configure a container in Amazon S3 or in an S3-compatible service.

    Parameters
    ----------
    region
        The region of the bucket.
    endpoint_url
        The endpoint of an S3-compatible service. None is AWS.
    allow_http
        Allow an endpoint without TLS.
    anonymous
        Do not sign requests.
    s3_compatible
        The service is not AWS.
    force_path_style
        Put the bucket in the path of URLs instead of the host name.
    network_stream_timeout_seconds
        How long a response can make no progress.
    requester_pays
        Accept the costs of requests to requester-pays buckets.
    checksum_algorithm
        The checksum of uploads, such as `SHA256`.

    Returns
    -------
    S3ObjectStore or S3CompatibleObjectStore
        The configuration.

    Raises
    ------
    InvalidInputError
        The endpoint contains a user or a password.

    Examples
    --------
    >>> s3_store(region="eu-west-1", anonymous=True).options.anonymous
    True
    """
    if endpoint_url is not None and "@" in endpoint_url:
        raise InvalidInputError(
            "the endpoint_url of an S3 service contains a user or a password. Pass access keys instead"
        )
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
    """Configure a container in Google Cloud Storage.

    Parameters
    ----------
    opts
        Options of the obstore client.

    Returns
    -------
    GcsObjectStore
        The configuration.

    Examples
    --------
    >>> gcs_store()
    icechunk.config.ObjectStoreConfig.Gcs({})
    """
    return GcsObjectStore(dict(opts or {}))


def azure_store(opts: Mapping[str, str] | None = None) -> AzureObjectStore:
    """Configure a container in Azure Blob Storage.

    Parameters
    ----------
    opts
        Options of the obstore client. `account_name` is required to read.

    Returns
    -------
    AzureObjectStore
        The configuration.

    Examples
    --------
    >>> azure_store({"account_name": "acme"})
    icechunk.config.ObjectStoreConfig.Azure({
        "account_name": "acme",
    })
    """
    return AzureObjectStore(dict(opts or {}))


def http_store(opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> HttpObjectStore:
    """Configure a container on a web server.

    Parameters
    ----------
    opts
        Options of the obstore client.
    headers
        Headers of every request. They are not stored in repositories.

    Returns
    -------
    HttpObjectStore
        The configuration.

    Examples
    --------
    >>> http_store().to_dict()
    {'http': {}}
    """
    return HttpObjectStore(dict(opts or {}), dict(headers or {}))


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """The location of the bytes of one chunk in a file outside the repository.

    Parameters
    ----------
    index
        The chunk's coordinates in the chunk grid.
    location
        The URL of the file.
    offset
        The first byte.
    length
        The number of bytes.
    etag_checksum
        The ETag of the file. Reading fails if it has changed.
    last_updated_at_checksum
        Reading fails if the file was modified after this time.

    Examples
    --------
    >>> VirtualChunkSpec([0, 0], "s3://bucket/data.nc", offset=4096, length=1024).length
    1024
    """

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
"""URL schemes of each kind of store."""


@dataclass(frozen=True, slots=True, repr=False)
class VirtualChunkContainer(WithFields):
    """An object store for virtual chunks whose URLs start with a prefix.

    A container that was read from a repository is not trusted. It cannot decide which directory belongs to an
    authorised prefix, or where credentials are sent. To set these, pass a container in the configuration.

    Parameters
    ----------
    url_prefix
        The start of the URLs. It ends in `/`.
    store
        The object store of the files.
    name
        A name for locations of the form `vcc://name/...`.
    stored
        Whether the container was read from a repository. The library sets it.

    Examples
    --------
    >>> from icefloe.model.virtual_chunk_container import local_filesystem_store
    >>> VirtualChunkContainer("file:///data/", local_filesystem_store("/data"), name="data").name
    'data'
    """

    _full_name = "icechunk.virtual.VirtualChunkContainer"
    _is_code = True

    url_prefix: str
    store: ObjectStoreConfig
    name: str | None = None
    stored: bool = field(default=False, compare=False, repr=False)

    def _shown_fields(self) -> Iterator[ShownField]:
        for name in ("name", "url_prefix", "store"):
            yield ShownField(name, getattr(self, name))

    def check(self) -> None:
        """Check the prefix, the name and the store.

        Raises
        ------
        InvalidInputError
            The prefix is not a URL that ends in `/`, contains a password or does not match the store, or the name is
            empty or contains `/`.

        Examples
        --------
        >>> VirtualChunkContainer("s3://bucket/", s3_store(region="eu-west-1")).check()
        """
        scheme = str(self.url_prefix).partition("://")[0].lower()
        if not isinstance(self.url_prefix, str) or "://" not in self.url_prefix:
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} of a VirtualChunkContainer is not a URL, expected for example "
                "'s3://bucket/' or 'file:///data/'"
            )
        if not self.url_prefix.endswith("/"):
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} of a VirtualChunkContainer must end in '/', or it would match "
                f"other folders too. Use {self.url_prefix + '/'!r}"
            )
        if scheme in ("http", "https") and "@" in self.url_prefix.partition("://")[2].partition("/")[0]:
            raise InvalidInputError(
                "the url_prefix of a VirtualChunkContainer is stored and must not contain a user or a password. Pass "
                "credentials as headers of its http_store(...)"
            )
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise InvalidInputError(
                f"the name {self.name!r} of a VirtualChunkContainer must not be empty nor contain '/'"
            )
        if not isinstance(self.store, ObjectStoreConfig):
            raise InvalidInputError(
                f"the store of the VirtualChunkContainer {self.url_prefix!r} is {self.store!r}, expected "
                "s3_store(...), gcs_store(...), local_filesystem_store(...) or another store configuration"
            )
        allowed = SCHEMES.get(self.store.tag)
        if allowed is not None and scheme not in allowed:
            raise InvalidInputError(
                f"the url_prefix {self.url_prefix!r} does not match its {self.store.tag} store. Allowed schemes: "
                f"{', '.join(sorted(allowed))}"
            )
