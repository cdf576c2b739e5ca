"""The web application: the page, the JSON API with its OpenAPI document, Zarr over HTTP, and the checks of requests.

Every endpoint is an entry of `ENDPOINTS`. The routes and the OpenAPI document are both made of this table. Endpoints
are blocking functions, which run in the worker threads of the server.

Over HTTP, a revision is a plain read-only Zarr v3 store with ranges, ETags and cache headers.
Groups have consolidated metadata in their zarr.json, because HTTP cannot list a folder. The ETag of a chunk is made
of its reference, so that a chunk that later commits did not change keeps its ETag, and a conditional request reads no
chunk.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from icefloe import __version__
from icefloe.blocking import run_blocking
from icefloe.errors import (
    ContainerError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    VirtualChunkError,
)
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.snapshot import ArrayNode, GroupNode
from icefloe.model.zarr_document import DocumentKey, parse_key
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.view import revisions, storage_use
from icefloe.view.revisions import Revision, ViewedRepository
from icefloe.view.slices import MOST_PIXELS, SliceReader, SliceRequest

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

_log = logging.getLogger("icefloe.view")
STATIC = Path(__file__).parent / "static"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SLICE_TYPE = "application/octet-stream"
_REMEMBERED = "private, max-age=86400"
"""Answers about a snapshot id do not change. The data of a snapshot is immutable."""
MOST_BYTES = 1 << 30
"""The largest answer. Clients ask for larger chunks in ranges."""
_MOST_CONSOLIDATED = 20_000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


# -- requests -----------------------------------------------------------------------------------------------------


class Arguments:
    """The parameters of a request, with checks."""

    def __init__(self, given: Mapping[str, str], viewed: ViewedRepository) -> None:
        self._given, self._viewed = given, viewed

    def text(self, name: str, default: str | None = None) -> str:
        """A text. Raises InvalidInputError if it is missing and has no default."""
        value = self._given.get(name, default)
        if value is None:
            raise InvalidInputError(f"the parameter {name!r} is missing")
        return value

    def find(self, name: str) -> str | None:
        """A text that may be missing."""
        return self._given.get(name) or None

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """An integer between two bounds."""
        text = self._given.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?\d{1,18}", text) or not low <= int(text) <= high:
            raise InvalidInputError(f"{name}={text!r}: expected an integer from {low:,} to {high:,}")
        return int(text)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number between two bounds."""
        text = self._given.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise InvalidInputError(f"{name}={text!r}: expected a number from {low:g} to {high:g}")
        return value

    def revision(self, name: str = "ref") -> Revision:
        """The snapshot of a ref."""
        return self._viewed.resolve(self.text(name, "main" if name == "ref" else None))

    def snapshot(self, name: str = "ref") -> str:
        """The snapshot id of a ref."""
        return self.revision(name).snapshot_id

    def axes(self, rank: int) -> tuple[int, ...]:
        """The dimensions y and x of a plane. Without y, there is only x. Arrays of rank 0 have none."""
        if rank == 0:
            return ()
        x = self.integer("x", rank - 1, 0, rank - 1)
        if "y" not in self._given:
            return (x,)
        y = self.integer("y", 0, 0, rank - 1)
        if x == y:
            raise InvalidInputError(f"x and y are the same dimension {x}")
        return y, x

    def index(self, shape: Sequence[int]) -> tuple[int, ...]:
        """An index for each dimension, separated by commas. Missing ones are 0."""
        parts = self._given.get("index", "").split(",")
        found = []
        for axis, length in enumerate(shape):
            text = parts[axis].strip() if axis < len(parts) else ""
            if not re.fullmatch(r"\d{0,18}", text) or int(text or 0) >= max(length, 1):
                raise InvalidInputError(f"index {text!r} of dimension {axis}: expected an integer below {length:,}")
            found.append(int(text or 0))
        return tuple(found)

    def window(self, lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """FIRST:END for each axis, separated by commas. The default is all of it."""
        text = self._given.get("window")
        if text is None:
            return tuple((0, length) for length in lengths)
        found = []
        for part, length in zip(text.split(","), lengths):
            first, _, end = part.partition(":")
            if not (first.isdigit() and end.isdigit()) or len(part) > 40 or int(first) > int(end):
                raise InvalidInputError(f"window={text!r}: expected FIRST:END for each axis")
            found.append((min(int(first), length), min(int(end), length)))
        if len(found) != len(lengths):
            raise InvalidInputError(f"window={text!r}: expected FIRST:END for {len(lengths)} axes")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class View:
    """The viewed repository and the reader of its slices."""

    repository: ViewedRepository
    slices: SliceReader

    def request(self, arguments: Arguments, snapshot_id: str, *, table: bool = False) -> SliceRequest:
        """The slice that a request asks for."""
        node = revisions.find_array(self.repository.session(snapshot_id), arguments.text("path"))
        axes = arguments.axes(len(node.shape))
        pixels = [MOST_PIXELS] * 2
        if not table:
            pixels = [
                arguments.integer("height", 768, 1, MOST_PIXELS),
                arguments.integer("width", 1024, 1, MOST_PIXELS),
            ]
        window = arguments.window([node.shape[axis] for axis in axes])
        overviews = not table and bool(arguments.integer("overviews", 0, 0, 1))
        return SliceRequest(axes, arguments.index(node.shape), window, tuple(pixels[2 - len(axes) :]), overviews)

    def plane(self, arguments: Arguments, snapshot_id: str) -> storage_use.Plane:
        """The plane of the chunk grid that a request asks for."""
        node = revisions.find_array(self.repository.session(snapshot_id), arguments.text("path"))
        return storage_use.Plane(arguments.axes(len(node.grid)), arguments.index(node.grid))


# -- endpoints ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an endpoint, for the OpenAPI document."""

    name: str
    description: str
    type: str = "string"
    required: bool = False
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the API, what it answers, and its parameters."""

    path: str
    summary: str
    answer: Callable[[View, Arguments], Any]
    parameters: tuple[Parameter, ...] = ()
    content_type: str = "application/json"


_REF = Parameter("ref", "Branch, tag, snapshot id, or BRANCH@TIME. The default is main.")
_PATH = Parameter("path", "Path of a node.", required=True)
_PLANE = (
    Parameter("y", "Dimension of the rows. Without it, there is one axis.", "integer"),
    Parameter("x", "Dimension of the columns. The default is the last one.", "integer"),
    Parameter("index", "Index for each dimension, separated by commas. Those of the axes are not used."),
)
_WINDOW = Parameter("window", "FIRST:END for each axis, separated by commas. The default is all of it.")


def _history(view: View, given: Arguments) -> Any:
    return revisions.history(view.repository, given.find("ref"), given.integer("limit", 100, 1, 5000))


def _tree(view: View, given: Arguments) -> Any:
    offset, limit = given.integer("offset", 0, 0, 10**9), given.integer("limit", 500, 1, 5000)
    return revisions.children(view.repository, given.snapshot(), given.text("path", "/"), offset, limit)


def _search(view: View, given: Arguments) -> Any:
    return revisions.search_nodes(
        view.repository, given.snapshot(), given.text("text"), given.integer("limit", 50, 1, 500)
    )


def _revision(view: View, given: Arguments) -> Any:
    found = given.revision()
    return {"snapshot_id": found.snapshot_id, "moves": found.moves}


def _slice(view: View, given: Arguments) -> bytes:
    snapshot_id = given.snapshot()
    return view.slices.read_slice(snapshot_id, given.text("path"), view.request(given, snapshot_id))


def _table(view: View, given: Arguments) -> Any:
    snapshot_id = given.snapshot()
    return view.slices.read_table(snapshot_id, given.text("path"), view.request(given, snapshot_id, table=True))


def _chunks(view: View, given: Arguments) -> Any:
    snapshot_id = given.snapshot()
    plane = view.plane(given, snapshot_id)
    origins = given.integer("origins", 0, 0, 1) == 1
    return storage_use.chunk_map(view.repository, snapshot_id, given.text("path"), plane, origins=origins)


def _compare(view: View, given: Arguments) -> Any:
    old, new = given.snapshot("from"), given.snapshot("to")
    plane = view.plane(given, new) if given.find("x") else None
    return storage_use.compare_array(view.repository, old, new, given.text("path"), plane)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "/api/repository",
        "Location and generation of the repository, and its branches and tags.",
        lambda view, given: revisions.repository_facts(view.repository),
    ),
    Endpoint("/api/revision", "The snapshot that a ref names now.", _revision, (_REF,)),
    Endpoint(
        "/api/history",
        "The newest commits with their columns in the graph.",
        _history,
        (
            Parameter("ref", "Only the history of this ref. The default is all branches and tags."),
            Parameter("limit", "Number of commits.", "integer"),
        ),
    ),
    Endpoint(
        "/api/commits/{id}",
        "One commit: its description, its content and its changes.",
        lambda view, given: revisions.commit_facts(view.repository, given.snapshot("id")),
        (Parameter("id", "Snapshot id, or another ref.", required=True, where="path"),),
    ),
    Endpoint(
        "/api/diff",
        "The changes between two revisions.",
        lambda view, given: revisions.difference(view.repository, given.text("from"), given.text("to")),
        (
            Parameter("from", "The earlier revision.", required=True),
            Parameter("to", "The later revision.", required=True),
        ),
    ),
    Endpoint(
        "/api/tree",
        "The nodes directly below a group.",
        _tree,
        (
            _REF,
            Parameter("path", "Path of the group. The default is the root."),
            Parameter("offset", "Number of nodes to skip.", "integer"),
            Parameter("limit", "Number of nodes.", "integer"),
        ),
    ),
    Endpoint(
        "/api/search",
        "The nodes whose path contains a text.",
        _search,
        (
            _REF,
            Parameter("text", "The text, in any case.", required=True),
            Parameter("limit", "Number of nodes.", "integer"),
        ),
    ),
    Endpoint(
        "/api/node",
        "Metadata, attributes and sizes of a group or an array.",
        lambda view, given: revisions.node_facts(view.repository, given.snapshot(), given.text("path")),
        (_REF, _PATH),
    ),
    Endpoint(
        "/api/sizes",
        "Bytes on storage of all arrays.",
        lambda view, given: storage_use.sizes(view.repository, given.snapshot()),
        (_REF,),
    ),
    Endpoint(
        "/api/growth",
        "Bytes of the content of each commit of a history, and bytes that were new.",
        lambda view, given: storage_use.growth(view.repository, given.snapshot(), given.integer("limit", 100, 1, 500)),
        (_REF, Parameter("limit", "Number of commits.", "integer")),
    ),
    Endpoint(
        "/api/slice",
        "Values of a slice, thinned out for a screen: length of a JSON header (uint32), header, padding, floats.",
        _slice,
        (
            _REF,
            _PATH,
            *_PLANE,
            _WINDOW,
            Parameter("width", "Largest number of columns.", "integer"),
            Parameter("height", "Largest number of rows.", "integer"),
            Parameter("overviews", "1: a map may have values of an overview of the array.", "integer"),
        ),
        _SLICE_TYPE,
    ),
    Endpoint("/api/table", "Values of a slice as texts, of any type.", _table, (_REF, _PATH, *_PLANE, _WINDOW)),
    Endpoint(
        "/api/chunks",
        "The chunks on a plane of the chunk grid: kind, object and size.",
        _chunks,
        (_REF, _PATH, *_PLANE, Parameter("origins", "1 also finds the commit that wrote each chunk.", "integer")),
    ),
    Endpoint(
        "/api/compare",
        "How an array differs between two revisions: metadata, and changed chunks on a plane of the grid.",
        _compare,
        (
            Parameter("from", "The earlier revision.", required=True),
            Parameter("to", "The later revision.", required=True),
            _PATH,
            *_PLANE,
        ),
    ),
    Endpoint(
        "/api/maintenance",
        "What an expiry and a garbage collection would do now.",
        lambda view, given: storage_use.maintenance(
            view.repository, given.number("keep_days", 30, 0, 36500), given.number("grace_days", 7, 0, 36500)
        ),
        (
            Parameter("keep_days", "Age of the commits that an expiry would remove.", "number"),
            Parameter("grace_days", "Age of the unreferenced objects that a collection would delete.", "number"),
        ),
    ),
    Endpoint("/api/openapi.json", "This document.", lambda view, given: openapi()),
)


def openapi() -> dict[str, Any]:
    """The OpenAPI document of all endpoints."""
    error = {
        "description": "An error.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths[endpoint.path] = {
            "get": {
                "summary": endpoint.summary,
                "operationId": re.sub(r"\W+", "_", endpoint.path.removeprefix("/api/")).strip("_"),
                "parameters": [_parameter_json(each) for each in endpoint.parameters],
                "responses": {
                    "200": {"description": endpoint.summary, "content": {endpoint.content_type: {"schema": {}}}},
                    "4XX": error,
                    "5XX": error,
                },
            }
        }
    refs = Parameter("ref", "Branch, tag or snapshot id.", required=True, where="path")
    keys = Parameter("key", "Key of the Zarr store, for example t2m/zarr.json.", required=True, where="path")
    paths["/zarr/{ref}/{key}"] = {
        "get": {
            "summary": "A key of a revision as a read-only Zarr v3 store, with ranges and ETags.",
            "operationId": "zarr",
            "parameters": [_parameter_json(refs), _parameter_json(keys)],
            "responses": {
                "200": {"description": "The value.", "content": {"*/*": {"schema": {}}}},
                "206": {"description": "The range of the value.", "content": {"*/*": {"schema": {}}}},
                "304": {"description": "Not changed."},
                "404": {"description": "There is no such key."},
                "416": {"description": "The range is outside of the value."},
            },
        }
    }
    schema = {
        "type": "object",
        "required": ["error", "kind"],
        "properties": {
            "error": {"type": "string", "description": "What was asked, what was found, what to do."},
            "kind": {"type": "string", "description": "The class of the error."},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Icefloe viewer",
            "version": __version__,
            "description": "A read-only API of one repository.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": schema}},
    }


def _parameter_json(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": {"type": parameter.type},
    }


# -- responses ----------------------------------------------------------------------------------------------------


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=_other_json)
    return Response(text, status, headers, "application/json")


def _other_json(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


_STATUS: tuple[tuple[type[IcefloeError], int], ...] = (
    (NotFoundError, 404),
    (PermissionDeniedError, 403),
    (VirtualChunkError, 403),
    (InvalidInputError, 400),
    (StorageError, 502),
    (FormatError, 500),
)


def error_response(error: Exception) -> Response:
    """An error as JSON. Errors that are not ours are only named, because their texts may contain anything."""
    if isinstance(error, IcefloeError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        text = str(error)[:2000]
        if isinstance(error, ContainerError):
            text += "\nFor this viewer: icefloe view REPO --authorize PREFIX"
        return _json({"error": text, "kind": type(error).__name__}, status)
    _log.error("a request failed", exc_info=error)
    text = f"the viewer failed with {type(error).__name__}. The log of the server has the details"
    return _json({"error": text, "kind": "InternalError"}, 500)


def _route(endpoint: Endpoint, view: View) -> Route:
    def answer(request: Request) -> Response:
        given = {**request.query_params, **request.path_params}
        arguments = Arguments(given, view.repository)
        try:
            value = endpoint.answer(view, arguments)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a response
            return error_response(error)
        named = [given[name] for name in ("ref", "from", "to", "id") if name in given]
        immutable = bool(named) and all(_is_snapshot_id(text, view) for text in named)
        headers = {"cache-control": _REMEMBERED if immutable else "no-store"}
        if isinstance(value, bytes):
            return Response(value, 200, headers, endpoint.content_type)
        return _json(value, headers=headers)

    path = endpoint.path.replace("{id}", "{id:path}")
    return Route(path, answer, methods=["GET"])


def _is_snapshot_id(text: str, view: View) -> bool:
    # Branches win over snapshot ids of the same text. Their names would have to look like an id.
    width = view.repository.context.capabilities.object_id_bytes
    return len(text) == -(-width * 8 // 5) and text.isalnum() and text.isupper()


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body of a response. A body of None is sent as an empty one."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def read_key(
    viewed: ViewedRepository, revision: Revision, key: str, headers: dict[str, str], *, head: bool = False
) -> Answer:
    """Answer a GET or HEAD request for a key."""
    session = viewed.session(revision.snapshot_id)
    caching = "no-cache" if revision.moves else "private, max-age=31536000, immutable"
    found = _find(viewed, session, key)
    if found is None:
        # A chunk that was never written may be written in the next commit.
        return Answer(404, {"cache-control": caching, "content-type": "text/plain; charset=utf-8"}, b"no such key\n")
    content_type = "application/json" if key.rpartition("/")[2] == "zarr.json" else "application/octet-stream"
    common = {
        "etag": found.etag,
        "cache-control": caching,
        "accept-ranges": "bytes",
        "content-type": content_type,
        "icefloe-snapshot": session.snapshot_id,
    }
    if found.etag in _etags(headers.get("if-none-match", "")) or headers.get("if-none-match", "").strip() == "*":
        return Answer(304, common)
    wanted = headers.get("range")
    if wanted is not None and headers.get("if-range", found.etag) != found.etag:
        wanted = None
    bounds = None if wanted is None else _parse_range(wanted, found.length)
    if bounds is not None and bounds[0] >= bounds[1]:
        return Answer(416, {**common, "content-range": f"bytes */{found.length}"})
    first, end = bounds or (0, found.length)
    if end - first > MOST_BYTES:
        raise InvalidInputError(f"{key!r} has {end - first:,} bytes. Ask for ranges of at most {MOST_BYTES:,} bytes")
    common["content-length"] = str(end - first)
    if bounds is not None:
        common["content-range"] = f"bytes {first}-{end - 1}/{found.length}"
    body = b"" if head else found.read(session, key, None if bounds is None else bounds)
    return Answer(200 if bounds is None else 206, common, body)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a key names: a document, or the reference of a chunk."""

    etag: str
    length: int
    document: bytes | None = None

    def read(self, session: Session, key: str, bounds: tuple[int, int] | None) -> bytes:
        if self.document is not None:
            return self.document if bounds is None else self.document[bounds[0] : bounds[1]]
        data = run_blocking(session.keyspace.fetch(key, *(bounds or ())))
        return b"" if data is None else bytes(data)


def _find(viewed: ViewedRepository, session: Session, key: str) -> _Found | None:
    chunk = session.keyspace.find_chunk(key)
    if chunk is not None:
        ref = run_blocking(session.state.find_chunk(*chunk))
        return _Found(_etag(repr(_identity(ref)).encode()), ref.length) if isinstance(ref, ChunkRef) else None
    parsed = parse_key(key)
    if not isinstance(parsed, DocumentKey):
        return None
    document = viewed.facts.get(("document", session.snapshot_id, parsed.path), lambda: _document(session, parsed.path))
    return None if document is None else _Found(_etag(document), len(document), document)


def _identity(ref: ChunkRef) -> tuple[Any, ...]:
    return ref.kind, ref.object_id, ref.location, ref.etag, ref.last_modified, ref.offset, ref.length, ref.data


def _etag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'


def _etags(header: str) -> set[str]:
    return {each.strip().removeprefix("W/") for each in header.split(",")}


def _parse_range(text: str, length: int) -> tuple[int, int] | None:
    """[first, end) of a range. None for what is not a single range, which is answered as a whole."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        return max(0, length - int(found[2])) if int(found[2]) else length, length
    return int(found[1]), min(length, int(found[2]) + 1) if found[2] else length


def _document(session: Session, path: str) -> bytes | None:
    """The zarr.json of a node. A group has the documents of all nodes below it, unless there are too many."""
    node = session.state.tree.find(path)
    if node is None and path == "/":
        node = GroupNode(b"", "/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
        document: bytes | None = node.document
    elif node is None:
        return None
    else:
        document = run_blocking(session.state.fetch_document(path))
    if document is None or isinstance(node, ArrayNode):
        return document
    below = [each for each in session.state.tree.subtree(path) if each.path != path]
    if len(below) > _MOST_CONSOLIDATED:
        return document
    start = len(path.rstrip("/")) + 1
    metadata = {}
    for each in below:
        own = run_blocking(session.state.fetch_document(each.path))
        if own is not None:
            metadata[each.path[start:]] = json.loads(own)
    whole = json.loads(document)
    whole["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": metadata}
    return json.dumps(whole, separators=(",", ":")).encode()


class _Zarr:
    """The ASGI application below `/zarr`. It reads the raw path, because names of refs may contain `%2F`."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
        ref, _, key = raw.partition("/zarr/")[2].partition("/")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # Some clients write two slashes before the key. A key that is not found would read as the fill value.
        key = unquote(key).lstrip("/")
        response = await run_in_threadpool(self._answer, unquote(ref), key, headers, head=scope["method"] == "HEAD")
        await response(scope, receive, send)

    def _answer(self, ref: str, key: str, headers: dict[str, str], *, head: bool) -> Response:
        try:
            revision = self._view.repository.resolve(ref)
            found = read_key(self._view.repository, revision, key, headers, head=head)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a response
            return error_response(error)
        response = Response(found.body, found.status)
        response.headers.update(found.headers)
        if "content-length" in found.headers:
            response.headers["content-length"] = found.headers["content-length"]
        return response


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    content_type: str
    etag: str


def _load_static() -> dict[str, _File]:
    """The files of the page by name. Only these are served, so that no path can lead to another file."""
    files = {}
    for path in sorted(STATIC.iterdir()):
        body = path.read_bytes()
        kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0] or "text/plain"
        if kind.startswith("text/") or kind.endswith("json"):
            kind += "; charset=utf-8"
        files[path.name] = _File(body, kind, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')
    return files


def _static_routes() -> list[Route]:
    files = _load_static()

    def answer(request: Request) -> Response:
        file = files.get(request.path_params.get("name", "index.html"))
        if file is None:
            return _json({"error": "there is no such file", "kind": "NotFoundError"}, 404)
        headers = {"etag": file.etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, 200, headers, file.content_type)

    return [Route("/", answer, methods=["GET"]), Route("/static/{name}", answer, methods=["GET"])]


# -- safety -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a viewer."""

    hosts: frozenset[str] | None = _LOOPBACK
    """Accepted names in the Host header. None accepts all. Other sites can point their names to this address."""
    token: str | None = None
    """A secret that requests must have: as the parameter `token`, as a cookie, or as a bearer token."""
    origins: tuple[str, ...] = ()
    """Origins of other pages that may read the API and Zarr over HTTP. `*` allows all."""
    frames: tuple[str, ...] = ("'none'",)
    """Sources of pages that may show the viewer in a frame."""
    cookie: str = field(default="icefloe_view")


class Guard:
    """Checks every request before the application sees it, and sets the headers of every response."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
            "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors {' '.join(access.frames)}"
        )
        self._headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        allowed = self._allowed_origin(scope["path"], headers.get("origin"))
        refusal = self._refuse(scope, headers, allowed)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._further(message["headers"], allowed)]
            await send(message)

        answer = refusal if refusal is not None else self._app
        await answer(scope, receive, send_with_headers)

    def _further(self, sent: Headers, allowed: str | None) -> list[tuple[bytes, bytes]]:
        more = dict(self._headers)
        more["cross-origin-resource-policy"] = "cross-origin" if allowed else "same-origin"
        if allowed:
            more["access-control-allow-origin"] = allowed
            more["access-control-expose-headers"] = (
                "ETag, Content-Range, Content-Length, Accept-Ranges, Icefloe-Snapshot"
            )
            more["vary"] = "Origin"
        known = {name.lower() for name, _ in sent}
        if b"cache-control" not in known:
            more["cache-control"] = "no-store"
        return [(name.encode(), value.encode("latin-1")) for name, value in more.items() if name.encode() not in known]

    def _allowed_origin(self, path: str, origin: str | None) -> str | None:
        if origin is None or not path.startswith(("/api/", "/zarr/")):
            return None
        if "*" in self._access.origins:
            return "*"
        return origin if origin in self._access.origins else None

    def _refuse(self, scope: Scope, headers: Mapping[str, str], allowed: str | None) -> Response | None:
        """The response to a request that is not served, or None."""
        if self._access.hosts is not None and _host_name(headers.get("host", "")) not in self._access.hosts:
            return _text(421, "this viewer is not known by the name in the Host header")
        if scope["method"] == "OPTIONS" and allowed:
            preflight = {
                "access-control-allow-methods": "GET, HEAD",
                "access-control-allow-headers": "Range, If-None-Match, Authorization",
                "access-control-max-age": "600",
            }
            return Response(status_code=204, headers=preflight)
        if scope["method"] not in ("GET", "HEAD"):
            return Response("this viewer is read-only", 405, {"allow": "GET, HEAD"}, "text/plain")
        # A page of another site can start requests, but it must not learn anything from them, not even their duration.
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and not allowed and headers.get("sec-fetch-mode") != "navigate":
            return _text(403, "requests of other sites are not served. `--cors ORIGIN` allows them")
        return self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        token = self._access.token
        if token is None:
            return None
        query = parse_qsl(bytes(scope.get("query_string", b"")).decode("latin-1"))
        given = dict(query).get("token", "")
        if given and hmac.compare_digest(given.encode(), token.encode()):
            if scope["path"] != "/":
                return None
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            response = Response(status_code=303, headers={"location": f"/?{rest}" if rest else "/"})
            response.set_cookie(self._access.cookie, token, httponly=True, samesite="strict", path="/")
            return response
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        for proof in (_cookies(headers.get("cookie", "")).get(self._access.cookie, ""), bearer):
            if proof and hmac.compare_digest(proof.encode("utf-8", "replace"), token.encode()):
                return None
        return _text(401, "open the URL that `icefloe view` printed: it contains the token of this viewer")


def _text(status: int, text: str) -> Response:
    return Response(text + "\n", status, {}, "text/plain; charset=utf-8")


def _host_name(host: str) -> str:
    """The name in a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[").lower()
    return host.partition(":")[0].lower()


def _cookies(header: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return {name: value for name, _, value in pairs}


def create_app(repository: Repository, access: Access | None = None) -> Guard:
    """The ASGI application that shows a repository."""
    viewed = ViewedRepository(repository)
    view = View(viewed, SliceReader(viewed))
    routes: list[Any] = [_route(endpoint, view) for endpoint in ENDPOINTS]
    routes += [Mount("/zarr", app=_Zarr(view)), *_static_routes()]
    return Guard(Starlette(routes=routes), access or Access())
