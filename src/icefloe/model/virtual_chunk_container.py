"""A place outside the repository that chunks may be read from."""

from __future__ import annotations

from dataclasses import dataclass, field

from icefloe.errors import InvalidInputError
from icefloe.model.object_store_config import ObjectStoreConfig

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
    >>> from icefloe.model.object_store_config import local_filesystem_store
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
