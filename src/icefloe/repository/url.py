"""URLs of a group or an array at a branch, a tag or a snapshot of a repository.

The form is the one of URL pipelines, which several Zarr libraries use: the location of the repository, `|icechunk:`,
and what to read from it.

    s3://bucket/repo|icechunk:                                the root group of the branch main
    s3://bucket/repo|icechunk:path/to/node                    a node of the branch main
    s3://bucket/repo|icechunk://branch.NAME/path/to/node      a node of a branch
    s3://bucket/repo|icechunk://tag.NAME/path/to/node         a node of a tag
    s3://bucket/repo|icechunk://SNAPSHOT_ID/path/to/node      a node of a snapshot

Characters such as `/`, `%`, `|` and `?` in names and paths are percent-encoded: `branch.feature%2Fx`. The node can also
follow in a part of its own, `|icechunk://tag.NAME/|zarr3:path/to/node`. `icechunk:@tag.NAME/path`, an earlier form, is
accepted too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from icefloe.errors import InvalidInputError
from icefloe.model.config import RepositoryConfig
from icefloe.repository.repository import Repository
from icefloe.session.ancestry import RefChoice
from icefloe.storage.build import REPOSITORY_PART, storage_from_url

if TYPE_CHECKING:
    import zarr

_SNAPSHOT_ID = re.compile(r"[0-9A-Z]{20}|[0-9A-Z]{26}")
_FORMATS = ("zarr3", "zarr")


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    """A group or an array of a repository at a branch, a tag or a snapshot. `str()` returns the URL.

    Parameters
    ----------
    location
        The URL or path of the repository.
    branch, tag, snapshot_id
        What to read. At most one is given. None of them means the branch `main`.
    path
        The path of the group or array, without a leading slash. Empty for the root group.

    Examples
    --------
    >>> url = RepositoryUrl.parse("s3://weather/era5|icechunk://tag.v1/surface")
    >>> url.location, url.tag, url.path
    ('s3://weather/era5', 'v1', 'surface')
    >>> str(RepositoryUrl("s3://weather/era5", branch="feature/x"))
    's3://weather/era5|icechunk://branch.feature%2Fx/'
    """

    location: str
    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    path: str = ""

    def __post_init__(self) -> None:
        RefChoice(self.branch, self.tag, self.snapshot_id)

    @classmethod
    def parse(cls, text: str) -> RepositoryUrl:
        """Parse a URL. The URL or path of a repository alone means the root group of the branch `main`.

        Parameters
        ----------
        text
            The URL.

        Returns
        -------
        RepositoryUrl
            Its parts.

        Raises
        ------
        InvalidInputError
            The part after `|icechunk:` has another form.

        Examples
        --------
        >>> RepositoryUrl.parse("/data/era5|icechunk:surface/t2m").path
        'surface/t2m'
        """
        found = REPOSITORY_PART.search(text)
        if found is None:
            return cls(text)
        inner, *further = (part.strip() for part in text[found.end() :].split("|"))
        ref, node = _split_ref(text, inner)
        nodes = [node, *(_node_of(text, part) for part in further)]
        path = "/".join(filter(None, (unquote(each).strip("/") for each in nodes)))
        return cls(text[: found.start()].strip(), **_parse_ref(text, ref), path=path)

    def __str__(self) -> str:
        path = quote(self.path)
        for kind, name in (("branch.", self.branch), ("tag.", self.tag), ("", self.snapshot_id)):
            if name is not None:
                return f"{self.location}|icechunk://{kind}{quote(name, safe='')}/{path}"
        return f"{self.location}|icechunk:{path}"

    def choose(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The revision of the URL together with arguments of `Repository.readonly_session`. Two branches are an error.

        Parameters
        ----------
        given
            `branch`, `tag`, `snapshot_id` and `as_of`, those that are given.

        Returns
        -------
        dict
            The arguments, with the revision of the URL.

        Raises
        ------
        InvalidInputError
            Both contain a branch, a tag or a snapshot.

        Examples
        --------
        >>> RepositoryUrl("/data/era5", tag="v1").choose({})
        {'tag': 'v1'}
        """
        named = {"branch": self.branch, "tag": self.tag, "snapshot_id": self.snapshot_id}
        own = {name: value for name, value in named.items() if value is not None}
        twice = sorted(given.keys() & named.keys())
        if own and twice:
            raise InvalidInputError(f"{self} contains {next(iter(own))}, and {twice[0]} is given too. Give one of them")
        return {**given, **own}

    def choose_path(self, group: str | None) -> str | None:
        """The path of the URL, or the given one. Two paths are an error.

        Parameters
        ----------
        group
            The path that was given besides the URL.

        Returns
        -------
        str or None
            The path. None if there is none.

        Raises
        ------
        InvalidInputError
            Both contain a path.

        Examples
        --------
        >>> RepositoryUrl("/data/era5", path="surface").choose_path(None)
        'surface'
        """
        if self.path and group is not None and group.strip("/"):
            raise InvalidInputError(f"{self} contains a path, and {group!r} is given too. Give one of them")
        return self.path or group


def _split_ref(text: str, inner: str) -> tuple[str, str]:
    """The ref and the path of a node, both still encoded."""
    if "?" in inner or "#" in inner:
        raise _malformed(text, "a query or a fragment is not part of such a URL. Percent-encode ? and # in names")
    for start in ("//", "@"):
        if inner.startswith(start):
            ref, _, node = inner[len(start) :].partition("/")
            return ref, node
    return "", inner


def _parse_ref(text: str, ref: str) -> dict[str, str]:
    kind, dot, name = ref.partition(".")
    if dot and name and kind in ("branch", "tag"):
        return {kind: unquote(name)}
    if not ref:
        return {}
    if _SNAPSHOT_ID.fullmatch(ref):
        return {"snapshot_id": ref}
    raise _malformed(text, f"expected branch.NAME, tag.NAME or a snapshot id, found {ref!r}")


def _node_of(text: str, part: str) -> str:
    scheme, _, node = part.partition(":")
    if scheme.lower() not in _FORMATS:
        raise _malformed(text, f"only zarr3:PATH can follow, found {part!r}")
    return node


def _malformed(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{text!r} is not the URL of a repository at a ref: {why}. Examples: REPO|icechunk://branch.main/group, "
        "REPO|icechunk://tag.v1/group, REPO|icechunk://SNAPSHOT_ID/group"
    )


def open_url(
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    config: RepositoryConfig | None = None,
    authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
) -> zarr.Group | zarr.Array[Any]:
    """Open the group or array that a URL names, to read it.

    Parameters
    ----------
    url
        A URL such as `s3://bucket/repo|icechunk://tag.v1/group`, or the URL or path of a repository.
    storage_options
        Options of `icefloe.storage_from_url`, such as `region`.
    config
        Configuration, as in `Repository.open`.
    authorize_virtual_chunk_access
        Credentials for each virtual chunk container, by URL prefix.

    Returns
    -------
    zarr.Group or zarr.Array
        The node. It cannot be written to. `node.store.session` is the session that reads it.

    Raises
    ------
    InvalidInputError
        The URL is malformed.
    NotFoundError
        The repository, the ref or the snapshot does not exist.
    FileNotFoundError
        There is no such node.

    Examples
    --------
    >>> import icefloe, uuid, zarr
    >>> place = f"memory://{uuid.uuid4()}/repo"
    >>> repo = icefloe.Repository.create(place)
    >>> with repo.transaction("main", message="first") as store:
    ...     zarr.create_array(store, name="t", shape=3, dtype="i4")[:] = 7
    >>> repo.create_tag("v1", repo.lookup_branch("main"))
    >>> open_url(f"{place}|icechunk://tag.v1/t")[:].tolist()
    [7, 7, 7]
    """
    import zarr  # noqa: PLC0415 - half a second, which the other users of this module do not need

    parsed = RepositoryUrl.parse(url)
    storage = storage_from_url(parsed.location, **(storage_options or {}))
    repository = Repository.open(storage, config, authorize_virtual_chunk_access)
    session = repository.readonly_session(**(parsed.choose({}) or {"branch": "main"}))
    return zarr.open(session.store, path=parsed.path, mode="r", zarr_format=3)
