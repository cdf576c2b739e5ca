"""The commands that show content, history and size: tree, ls, cat, log, show, diff, stats, manifests, view."""

from __future__ import annotations

import base64
import itertools
import json as json_text
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from icefloe.blocking import run_blocking
from icefloe.cli.console import progress, stderr, stdout, styled, table
from icefloe.cli.options import (
    Authorize,
    Json,
    Limit,
    ListChunks,
    NodePath,
    Repo,
    RevisionOptions,
    StorageOptions,
    open_repository,
    resolve_revision,
)
from icefloe.cli.output import commit_json, print_json, write_text
from icefloe.display.card import first_line, format_bytes, format_count, format_time
from icefloe.display.graph import RICH_STYLES, AncestryGraph, graph_lines
from icefloe.errors import InvalidInputError, NodeNotFoundError, UnsupportedError, printable
from icefloe.formats.format import Format
from icefloe.ids import ObjectId
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, string_column
from icefloe.model.snapshot import ArrayNode, Diff, Extents, ManifestFileInfo, Node, SnapshotInfo
from icefloe.model.snapshot import Snapshot as SnapshotFile
from icefloe.model.zarr_document import as_lengths, key_encoding, parent_path, parse_document, parse_grid
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs
from icefloe.session.session import Session

_KINDS = (ChunkKind.NATIVE, ChunkKind.INLINE, ChunkKind.VIRTUAL)


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """Chunks and bytes by kind, with their objects and files. Chunks and arrays can share an object."""

    chunks: dict[str, int]
    bytes: dict[str, int]
    objects: npt.NDArray[np.void]
    """Distinct ids of the objects with native chunks."""
    files: pa.Array
    """Distinct locations of virtual chunks."""

    @property
    def total_chunks(self) -> int:
        return sum(self.chunks.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def count_chunks(table: ChunkTable) -> ChunkCount:
    """Count the chunks of one array."""
    chunks, sizes = {}, {}
    for kind in _KINDS:
        rows = table.kind == kind
        chunks[kind.name.lower()] = int(np.count_nonzero(rows))
        sizes[kind.name.lower()] = int(table.length[rows].sum())
    return ChunkCount(chunks, sizes, _objects(table), _files(table))


def _objects(table: ChunkTable) -> npt.NDArray[np.void]:
    if table.object_id is None:
        return np.empty(0, dtype="V1")
    native = np.ascontiguousarray(table.object_id[table.kind == ChunkKind.NATIVE])
    return np.unique(native.view(f"V{native.shape[1]}").ravel())


def _files(table: ChunkTable) -> pa.Array:
    if table.location is None:
        return pa.array([], type=pa.large_string())
    codes = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    # A dictionary may contain a location twice.
    return string_column(table.locations).arrow.take(pa.array(codes)).unique()


def add_counts(counts: Iterable[ChunkCount]) -> ChunkCount:
    """Add the counts of several arrays. Shared objects and files count once."""
    parts = list(counts)
    names = [kind.name.lower() for kind in _KINDS]
    objects = [part.objects for part in parts if len(part.objects)]
    return ChunkCount(
        {name: sum(part.chunks[name] for part in parts) for name in names},
        {name: sum(part.bytes[name] for part in parts) for name in names},
        np.unique(np.concatenate(objects)) if objects else np.empty(0, dtype="V1"),
        pa.chunked_array([part.files for part in parts], type=pa.large_string()).unique(),
    )


def stats(
    repo: Repo,
    path: NodePath = "/",
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show chunks, objects and bytes per array.

    Examples
    --------
    icefloe stats weather
    icefloe stats s3://bucket/weather surface --json
    """
    session = at.session(open_repository(repo, options))
    state = session.state
    start = "/" + path.strip("/")
    if start != "/":
        state.tree.node(start)
    arrays = [node for node in state.tree.subtree(start) if isinstance(node, ArrayNode)]
    counts = {
        node.path: count_chunks(run_blocking(state.chunk_table(node)))
        for node in progress(arrays, "counting chunks", len(arrays))
    }
    total = add_counts(counts.values())
    if json:
        per_array = [{"path": path, **_as_json(count)} for path, count in counts.items()]
        print_json({"snapshot_id": session.snapshot_id, "total": _as_json(total), "arrays": per_array})
        return
    stdout().print(_listing(counts, total, limit))


def _as_json(count: ChunkCount) -> dict[str, Any]:
    return {
        "chunks": count.chunks,
        "bytes": count.bytes,
        "objects": len(count.objects),
        "virtual_files": len(count.files),
    }


def _listing(counts: dict[str, ChunkCount], total: ChunkCount, limit: int) -> Table:
    numbers = ("chunks", "native", "inline", "virtual", "objects", "files", "bytes")
    listing = table("array", *numbers, right=numbers)
    largest = sorted(counts.items(), key=lambda item: (-item[1].total_bytes, item[0]))
    for path, count in largest[:limit] if limit else largest:
        listing.add_row(Text(path), *_cells(count))
    if limit and len(largest) > limit:
        listing.add_row(Text(f"… {len(largest) - limit:,} more arrays; --limit 0 shows all", style="dim"))
    listing.add_section()
    listing.add_row(Text("all", style="bold"), *_cells(total), style="bold")
    return listing


def _cells(count: ChunkCount) -> list[str]:
    by_kind = [f"{count.chunks[kind]:,}" if count.chunks[kind] else "·" for kind in ("native", "inline", "virtual")]
    shared = [f"{len(found):,}" if len(found) else "·" for found in (count.objects, count.files)]
    return [f"{count.total_chunks:,}", *by_kind, *shared, format_bytes(count.total_bytes)]


_MOST_ARRAYS = 4


def manifests(
    repo: Repo,
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show the arrays and extents of each manifest.

    Examples
    --------
    icefloe manifests weather
    icefloe manifests weather --tag v1 --json
    """
    base = run_blocking(at.session(open_repository(repo, options)).state.fetch_base())
    by_manifest = arrays_by_manifest(base)
    files = sorted(base.manifests.values(), key=lambda file: (-file.size_bytes, file.id))
    shown = files[:limit] if limit else files
    if json:
        listed = [_manifests_json(file, by_manifest.get(file.id, ())) for file in shown]
        print_json({"snapshot_id": base.id, "manifests": listed, "more": len(shown) < len(files)})
        return
    console = stdout()
    listing = table("manifest", "size", "chunks", "arrays and extents", right=("size", "chunks"))
    for file in shown:
        entries = by_manifest.get(file.id, ())
        lines = [Text.assemble(path, (f"  {_extent_text(extents)}", "dim")) for path, extents in entries[:_MOST_ARRAYS]]
        if len(entries) > _MOST_ARRAYS:
            lines.append(Text(f"… {len(entries) - _MOST_ARRAYS:,} more", style="dim"))
        size, refs = format_bytes(file.size_bytes), f"{file.num_chunk_refs:,}"
        listing.add_row(Text(file.id, style="yellow"), size, refs, Text("\n").join(lines))
    console.print(listing)
    total_bytes = sum(file.size_bytes for file in files)
    total_refs = sum(file.num_chunk_refs for file in files)
    rest = f"; the {len(shown):,} largest are shown, --limit 0 shows all" if len(shown) < len(files) else ""
    console.print(
        styled(
            f"\n[dim]{format_count(len(files), 'manifest')}, {format_bytes(total_bytes)}, "
            f"{format_count(total_refs, 'chunk')}{rest}[/]"
        )
    )


def arrays_by_manifest(base: SnapshotFile) -> dict[ObjectId, list[tuple[str, Extents]]]:
    """For each manifest, the arrays that refer to it, with the extents of the chunk grid."""
    by_manifest: dict[ObjectId, list[tuple[str, Extents]]] = {}
    for node in base.nodes.values():
        if isinstance(node, ArrayNode):
            for ref in node.manifests:
                by_manifest.setdefault(ref.manifest_id, []).append((node.path, ref.extents))
    return by_manifest


def _manifests_json(file: ManifestFileInfo, entries: Sequence[tuple[str, Extents]]) -> dict[str, Any]:
    arrays = [{"path": path, "extents": extents or None} for path, extents in entries]
    return {"id": file.id, "size_bytes": file.size_bytes, "chunk_refs": file.num_chunk_refs, "arrays": arrays}


def _extent_text(extents: Extents) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in extents) + "]" if extents else "whole"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a listing shows of a node."""

    path: str
    kind: str
    data_type: str | None = None
    shape: tuple[int, ...] = ()
    chunk_shape: tuple[int, ...] | None = None
    chunk_shapes: tuple[int | tuple[int, ...], ...] | None = None
    """The lengths of the chunks of a variable grid."""
    grid: tuple[int, ...] = ()
    dimension_names: tuple[str | None, ...] | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or "/"

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON, with the names that Zarr uses."""
        if self.kind == "group":
            return {"path": self.path, "kind": self.kind}
        return {
            "path": self.path,
            "kind": self.kind,
            "data_type": self.data_type,
            "shape": self.shape,
            "chunk_shape": self.chunk_shape,
            **({} if self.chunk_shapes is None else {"chunk_shapes": self.chunk_shapes}),
            "chunk_grid": self.grid,
            "dimension_names": self.dimension_names,
        }

    def chunks_text(self) -> str:
        """The chunk lengths: `24×180`. Those of a variable grid are the shortest and the longest: `28 to 31×180`."""
        return "×".join(map(str, as_lengths(self.chunk_shape or self.chunk_shapes or ())))

    def shape_text(self) -> str:
        """The shape, with dimension names if the array has them: `(time: 24, lat: 180)`."""
        names = self.dimension_names or (None,) * len(self.shape)
        parts = (f"{name}: {n}" if name else str(n) for name, n in zip(names, self.shape, strict=True))
        return f"({', '.join(parts)})"


def node_facts(node: Node) -> NodeFacts:
    """The facts of a node."""
    if not isinstance(node, ArrayNode):
        return NodeFacts(node.path, "group")
    document = parse_document(node.document)
    name = document.get("chunk_grid", {}).get("name")
    lengths = tuple(each.each for each in parse_grid(document)) if name == "rectilinear" else None
    return NodeFacts(
        path=node.path,
        kind="array",
        data_type=_data_type(document.get("data_type")),
        shape=node.shape,
        chunk_shape=_chunk_shape(document.get("chunk_grid", {})),
        chunk_shapes=lengths,
        grid=node.grid,
        dimension_names=node.dimension_names,
    )


def _data_type(given: Any) -> str:
    return str(given.get("name", given)) if isinstance(given, Mapping) else str(given)


def _chunk_shape(grid: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = grid.get("configuration", {}).get("chunk_shape")
    return None if shape is None else tuple(int(n) for n in shape)


def print_commit(console: Console, info: SnapshotInfo, names: Sequence[str] = ()) -> None:
    """Print a commit like git: id and refs, time, metadata, message."""
    head = Text.assemble(("snapshot ", "yellow"), (info.id, "yellow"))
    if names:
        head.append(f" ({', '.join(names)})", style="bold green")
    console.print(head, soft_wrap=True)
    console.print(Text.assemble(("Date:", "dim"), f"  {format_time(info.written_at)}"))
    for key, value in sorted(info.metadata.items()):
        shown = value if isinstance(value, str) else json_text.dumps(value, default=str, ensure_ascii=False)
        console.print(Text.assemble((f"{key}:", "dim"), f"  {shown}"), soft_wrap=True)
    console.print()
    for line in info.message.strip().splitlines():
        console.print(Text("    " + line), soft_wrap=True)


_MOST_CHUNKS = 8


def diff_json(diff: Diff, *, chunks: bool) -> dict[str, Any]:
    """A diff as JSON. With `chunks`, it has the coordinates of all changed chunks, otherwise only their number."""
    document: dict[str, Any] = {
        "new_groups": sorted(diff.new_groups),
        "new_arrays": sorted(diff.new_arrays),
        "deleted_groups": sorted(diff.deleted_groups),
        "deleted_arrays": sorted(diff.deleted_arrays),
        "updated_groups": sorted(diff.updated_groups),
        "updated_arrays": sorted(diff.updated_arrays),
        "moved_nodes": [{"from": old, "to": new} for old, new in diff.moved_nodes],
        "updated_chunk_counts": {path: len(coords) for path, coords in sorted(diff.chunk_coords.items())},
    }
    if chunks:
        document["updated_chunks"] = {path: coords.tolist() for path, coords in sorted(diff.chunk_coords.items())}
    return document


def _highest_moves(moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The moves without those of nodes below a moved group."""
    known = set(moves)

    def goes_along(old: str, new: str) -> bool:
        while old.rpartition("/")[2] == new.rpartition("/")[2] and old and new:
            old, new = old.rpartition("/")[0], new.rpartition("/")[0]
            if (old, new) in known:
                return True
        return False

    return [(old, new) for old, new in moves if not goes_along(old, new)]


def print_diff(console: Console, diff: Diff, *, chunks: bool) -> None:
    """Print a diff with one line per path: + new, - deleted, ~ changed, > moved."""
    if diff.is_empty():
        console.print(Text("no changes", style="dim"))
        return
    replaced = diff.replaced_arrays
    for path in sorted(replaced):
        console.print(Text.assemble((f"~ replaced array {path}", "yellow")), soft_wrap=True)
    for sign, style, groups, arrays in (
        ("+", "green", diff.new_groups, diff.new_arrays - replaced),
        ("-", "red", diff.deleted_groups, diff.deleted_arrays - replaced),
        ("~", "yellow", diff.updated_groups, diff.updated_arrays - replaced),
    ):
        named = [(path, "group") for path in groups] + [(path, "array") for path in arrays]
        for path, kind in sorted(named):
            console.print(Text.assemble((f"{sign} {kind} {path}", style)), soft_wrap=True)
    for old, new in _highest_moves(diff.moved_nodes):
        console.print(Text.assemble((f"> moved {old} → {new}", "cyan")), soft_wrap=True)
    for path, coords in sorted(diff.chunk_coords.items()):
        line = Text.assemble((f"~ {format_count(len(coords), 'chunk')} of {path}", "yellow"))
        shown = coords if chunks else coords[:_MOST_CHUNKS]
        listed = " ".join("/".join(map(str, row)) for row in shown.tolist())
        more = " …" if len(shown) < len(coords) else ""
        line.append(f"  {listed}{more}", style="dim")
        console.print(line, soft_wrap=True)


def tree(
    repo: Repo,
    path: NodePath = "/",
    depth: Annotated[
        int | None, typer.Option("--depth", "-d", min=1, metavar="COUNT", help="Maximum depth below PATH.")
    ] = None,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show groups and arrays as a tree.

    Examples
    --------
    icefloe tree weather
    icefloe tree weather surface --depth 1 --as-of 2026-03-01
    """
    session = at.session(open_repository(repo, options))
    start = "/" + path.strip("/")
    nodes = session.state.tree
    if start != "/" or nodes.find("/") is not None:
        nodes.node(start)
    found = [node_facts(node) for node in nodes.subtree(start)]
    found = [facts for facts in found if depth is None or _depth(facts.path) - _depth(start) <= depth]
    if json:
        print_json({"snapshot_id": session.snapshot_id, "nodes": [facts.as_json() for facts in found]})
        return
    stdout().print(_drawn(start, found))


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _drawn(start: str, found: list[NodeFacts]) -> Tree:
    root = Tree(Text(start, style="bold blue"))
    drawn = {start: root}
    for facts in found:
        if facts.path == start:
            if facts.kind == "array":
                root.label = Text.assemble((start, "bold"), " ", *_array(facts))
            continue
        above = parent_path(facts.path)
        while above is not None and above not in drawn:
            above = parent_path(above)
        if facts.kind == "group":
            text = Text(facts.name + "/", style="bold blue")
        else:
            text = Text.assemble(facts.name, " ", *_array(facts))
        drawn[facts.path] = drawn.get(above or start, root).add(text)
    if not found:
        root.label = Text.assemble((start, "bold blue"), " ", ("(empty)", "dim"))
    return root


def _array(facts: NodeFacts) -> tuple[tuple[str, str] | str, ...]:
    return (facts.shape_text(), "green"), " ", (str(facts.data_type), "cyan")


def ls(
    repo: Repo,
    path: NodePath = "/",
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List a group, or the chunks of an array.

    Examples
    --------
    icefloe ls weather surface
    icefloe ls weather surface/t2m --json
    """
    session = at.session(open_repository(repo, options))
    tree = session.state.tree
    start = "/" + path.strip("/")
    node = tree.find(start) if start == "/" else tree.node(start)
    if isinstance(node, ArrayNode):
        _list_chunks(session, node, limit, json=json)
    else:
        _list_group(session, start, json=json)


def _list_group(session: Session, start: str, *, json: bool) -> None:
    tree = session.state.tree
    below = "" if start == "/" else start
    found = [tree.find(f"{below}/{name}") for name in tree.child_names(start)]
    children = [node_facts(node) for node in found if node is not None]
    if json:
        print_json({"path": start, "kind": "group", "children": [facts.as_json() for facts in children]})
        return
    listing = table("name", "type", "shape", "chunks")
    for facts in children:
        if facts.kind == "group":
            listing.add_row(Text(facts.name + "/", style="bold blue"), Text("group", style="dim"), "", "")
        else:
            shape, chunks = Text(facts.shape_text(), style="green"), facts.chunks_text()
            listing.add_row(Text(facts.name), Text(str(facts.data_type), style="cyan"), shape, chunks)
    stdout().print(listing) if children else stdout().print(Text("empty", style="dim"))


def _list_chunks(session: Session, node: ArrayNode, limit: int, *, json: bool) -> None:
    found = run_blocking(session.state.chunk_table(node))
    shown = take(found, np.arange(min(limit, len(found)))) if limit else found
    encoding, generation = key_encoding(node.document), session.state.context.format
    start = "" if node.path == "/" else node.path[1:] + "/"
    entries = [
        {"key": start + encoding.suffix(list(coords)), **_reference(ref, generation)} for coords, ref in shown.rows()
    ]
    if json:
        about = node_facts(node).as_json()
        print_json({**about, "num_chunks": len(found), "chunks": entries, "more": len(shown) < len(found)})
        return
    console = stdout()
    listing = table("chunk", "kind", "bytes", "at", right=("bytes",))
    for entry in entries:
        at = entry.get("object") or entry.get("location")
        location = f"{at} +{entry['offset']}" if at and entry["offset"] else at or ""
        listing.add_row(Text(entry["key"]), entry["kind"], f"{entry['length']:,}", Text(location, style="dim"))
    console.print(listing)
    cells = int(np.prod(node.grid, dtype=np.float64)) if node.grid else 1
    written = f"{format_count(len(found), 'chunk')} of {cells:,}, {format_bytes(int(found.length.sum()))}"
    rest = f"; {len(shown):,} shown, --limit 0 shows all" if len(shown) < len(found) else ""
    console.print(Text(f"\n{written}{rest}", style="dim"))


def _reference(ref: ChunkRef, generation: Format) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": ref.kind.name.lower(), "length": ref.length, "offset": ref.offset}
    if ref.kind is ChunkKind.NATIVE and ref.object_id is not None:
        facts["object"] = generation.chunk_key(ref.object_id)
    if ref.kind is ChunkKind.VIRTUAL:
        facts |= {"location": ref.location, "etag": ref.etag, "last_modified": ref.last_modified}
    return facts


_MOST_VALUES = 1_000_000


def cat(
    repo: Repo,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Path of an array or a group, or a key such as t2m/c/0/0 or t2m/zarr.json.",
            show_default=False,
        ),
    ],
    region: Annotated[
        str | None,
        typer.Option("--slice", metavar="SLICES", help="Part of an array, in Python notation: '0:3,:,5'."),
    ] = None,
    authorize: Authorize = None,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Print array values, group metadata or a key.

    Examples
    --------
    icefloe cat weather surface/t2m --slice '0,:5,:5'
    icefloe cat weather surface/t2m/zarr.json --tag v1
    """
    session = at.session(open_repository(repo, options, authorize))
    node = session.state.tree.find("/" + path.strip("/"))
    if isinstance(node, ArrayNode):
        _cat_array(session, node, region, json=json)
        return
    key = path.strip("/") if node is None else f"{node.path}/zarr.json".lstrip("/")
    _cat_key(session, key, json=json)


def _cat_array(session: Session, node: ArrayNode, region: str | None, *, json: bool) -> None:
    import zarr  # noqa: PLC0415 - no other command here reads values

    array = zarr.open_array(session.store, path=node.path.strip("/"), mode="r")
    selection = parse_slices(region) if region is not None else ()
    count = _selected(node.shape, selection)
    if count > _MOST_VALUES:
        raise InvalidInputError(
            f"the selection of {node.path} has {count:,} values. At most {_MOST_VALUES:,} are printed. Select a part "
            "with --slice, for example --slice '0,:10'"
        )
    values = np.asarray(array[selection if selection else ...])
    if json:
        about = {"path": node.path, "shape": node.shape, "data_type": str(array.dtype), "slice": region}
        print_json({**about, "values": _jsonable(values)})
        return
    # On a terminal, numpy abbreviates long arrays. A pipe gets all values.
    threshold = 1000 if sys.stdout.isatty() else _MOST_VALUES + 1
    if values.dtype.kind in "UOT" and sys.stdout.isatty():
        values = np.vectorize(lambda value: printable(value) if isinstance(value, str) else value, otypes=[object])(
            values
        )
    text = np.array2string(values, threshold=threshold, max_line_width=stdout().width if threshold == 1000 else 120)
    write_text(text + "\n")


def parse_slices(text: str) -> tuple[slice | int, ...]:
    """Indices and slices separated by commas."""
    selection: list[slice | int] = []
    for part in text.split(","):
        pieces = part.strip().split(":")
        try:
            numbers = [int(piece) if piece.strip() else None for piece in pieces]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3 or (len(numbers) == 1 and numbers[0] is None):
            raise typer.BadParameter(f"{part!r} is neither an index nor START:STOP[:STEP]", param_hint="--slice")
        selection.append(numbers[0] if len(numbers) == 1 and numbers[0] is not None else slice(*numbers))
    return tuple(selection)


def _selected(shape: tuple[int, ...], selection: tuple[slice | int, ...]) -> int:
    """The number of values in a selection."""
    if len(selection) > len(shape):
        raise typer.BadParameter(f"{len(selection)} slices for {len(shape)} dimensions", param_hint="--slice")
    count = 1
    for axis, length in enumerate(shape):
        chosen = selection[axis] if axis < len(selection) else slice(None)
        count *= len(range(*chosen.indices(length))) if isinstance(chosen, slice) else 1
    return count


def _jsonable(values: npt.NDArray[Any]) -> Any:
    """Nested lists of JSON values. Values without a JSON type become text."""
    if values.dtype.kind in "biu":
        return values.tolist()
    if values.dtype.kind == "f":
        plain = values.astype(object)
        plain[~np.isfinite(values)] = None
        return plain.tolist()
    return values.astype(str).tolist()


def _cat_key(session: Session, key: str, *, json: bool) -> None:
    data = run_blocking(session.keyspace.fetch(key))
    if data is None:
        raise NodeNotFoundError(f"no array, group or key {key!r} in snapshot {session.snapshot_id}", path=key)
    if not json:
        sys.stdout.flush()
        is_document = key.rpartition("/")[2] == "zarr.json"
        if sys.stdout.isatty():
            write_text(bytes(data).decode("utf-8", "backslashreplace") + "\n")
            return
        sys.stdout.buffer.write(bytes(data) + (b"\n" if is_document else b""))
        sys.stdout.buffer.flush()
        return
    if key.rpartition("/")[2] == "zarr.json":
        print_json({"key": key, "size": len(data), "document": json_text.loads(bytes(data))})
    else:
        print_json({"key": key, "size": len(data), "base64": base64.b64encode(data).decode()})


def log(
    repo: Repo,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="Draw all branches and tags as a graph.")] = False,
    oneline: Annotated[bool, typer.Option("--oneline", help="Print one line per commit.")] = False,
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List commits, newest first.

    Examples
    --------
    icefloe log weather --graph
    icefloe log weather --branch experiment --oneline
    """
    repository = open_repository(repo, options)
    if graph:
        start = at.snapshot_id(repository) if at.is_given else None
        drawing = repository.ancestry_graph(snapshot_id=start, limit=limit or None)
        _print_json_graph(drawing) if json else _print_graph(stdout(), drawing)
        return
    _log(repository, at.snapshot_id(repository), limit, oneline=oneline, json=json)


def _log(repository: Repository, start: str, limit: int, *, oneline: bool, json: bool) -> None:
    ancestry = repository.ancestry(snapshot_id=start)
    names: dict[str, list[str]] = {}
    for ref in run_blocking(fetch_refs(repository.context)):
        names.setdefault(ref.snapshot_id, []).append(ref.name if ref.kind == "branch" else f"tag: {ref.name}")
    shown = list(itertools.islice(ancestry, limit)) if limit else ancestry
    if json:
        commits = [commit_json(info) | {"refs": names.get(info.id, [])} for info in shown]
        more = bool(limit) and next(ancestry, None) is not None
        print_json({"commits": commits, "more": more})
        return
    console = stdout()
    for info in shown:
        if oneline:
            labels = f" ({', '.join(names[info.id])})" if info.id in names else ""
            console.print(
                Text.assemble((info.id, "yellow"), (labels, "bold green"), f" {first_line(info.message)}"),
                soft_wrap=True,
            )
        else:
            print_commit(console, info, names.get(info.id, []))
            console.print()
    if limit and next(ancestry, None) is not None:
        console.print(Text(f"… there is more: these are the newest {limit}. --limit 0 shows all.", style="dim"))


def _print_json_graph(graph: AncestryGraph) -> None:
    rows = [
        {
            "id": row.commit.id,
            "parent_id": row.commit.parent_id,
            "merged_id": row.commit.merged_id,
            "written_at": row.commit.written_at,
            "message": row.commit.message,
            "column": row.own.column,
        }
        for row in graph.layout.rows
    ]
    refs = [{"name": ref.name, "kind": ref.kind, "snapshot_id": ref.snapshot_id} for ref in graph.refs]
    print_json({"commits": rows, "refs": refs, "more": any(row.cut for row in graph.layout.rows)})


def _print_graph(console: Console, graph: AncestryGraph) -> None:
    for line in graph_lines(graph.layout, graph.refs):
        text = Text.assemble(*((part, RICH_STYLES.get(style, "")) for part, style in line))
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", crop=console.is_terminal)


def show(
    repo: Repo,
    revision: Annotated[
        str | None, typer.Argument(metavar="REVISION", help="Branch, tag or snapshot id.  [default: main]")
    ] = None,
    chunks: ListChunks = False,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show one commit and its changes.

    Examples
    --------
    icefloe show weather
    icefloe show weather v1 --chunks
    """
    repository = open_repository(repo, options)
    if revision is not None:
        snapshot_id = resolve_revision(repository, revision)
    else:
        snapshot_id = at.snapshot_id(repository)
    info = repository.lookup_snapshot(snapshot_id)
    manifests = repository.list_manifest_files(snapshot_id)
    # The parent in the file may be outdated: expiry rewrites history.
    parent = next(repository.ancestry(snapshot_id=snapshot_id)).parent_id
    changes = Diff() if parent is None else repository.diff(from_snapshot_id=parent, to_snapshot_id=snapshot_id)
    total_bytes = sum(manifest.size_bytes for manifest in manifests)
    total_refs = sum(manifest.num_chunk_refs for manifest in manifests)
    if json:
        about = {"files": len(manifests), "bytes": total_bytes, "chunk_refs": total_refs}
        changed = diff_json(changes, chunks=chunks)
        print_json({**commit_json(info), "parent_id": parent, "manifests": about, "changes": changed})
        return
    console = stdout()
    print_commit(console, info)
    console.print(
        styled(
            f"\n[dim]{format_count(len(manifests), 'manifest')}, {format_bytes(total_bytes)}, "
            f"{format_count(total_refs, 'chunk')}; parent {parent or 'none'}[/]\n"
        )
    )
    print_diff(console, changes, chunks=chunks)


def diff(
    repo: Repo,
    old: Annotated[
        str | None,
        typer.Argument(metavar="FROM", help="Branch, tag or snapshot id.  [default: the parent of TO]"),
    ] = None,
    new: Annotated[str, typer.Argument(metavar="TO", help="Branch, tag or snapshot id.")] = "main",
    chunks: ListChunks = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show the changes between two revisions.

    Examples
    --------
    icefloe diff weather
    icefloe diff weather v1 main --chunks
    """
    repository = open_repository(repo, options)
    to_id = resolve_revision(repository, new)
    if old is None:
        from_id = next(repository.ancestry(snapshot_id=to_id)).parent_id
    else:
        from_id = resolve_revision(repository, old)
    found = Diff() if from_id is None else repository.diff(from_snapshot_id=from_id, to_snapshot_id=to_id)
    if json:
        print_json({"from": from_id, "to": to_id, **diff_json(found, chunks=chunks)})
        return
    stderr().print(Text(f"{from_id or 'nothing'} → {to_id}", style="dim"))
    print_diff(stdout(), found, chunks=chunks)


def view(
    repo: Repo,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on. With another address than a loopback one, the URL contains a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, metavar="NUMBER", help="Port. 0 chooses a free one.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL. Do not open a browser.")] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            help="Allow pages of this origin to read the API and Zarr over HTTP. * allows all. Can be repeated.",
        ),
    ] = None,
    authorize: Authorize = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show a repository in the browser.

    Examples
    --------
    icefloe view weather
    icefloe view s3://bucket/weather --port 8080 --no-browser
    """
    try:
        from icefloe.view.server import ViewServer  # noqa: PLC0415 - needs packages that are an extra
    except ImportError as error:
        raise UnsupportedError(
            f"the viewer needs more packages. Install them with: pip install 'icefloe[view]' ({error})"
        ) from error
    server = ViewServer(open_repository(repo, options, authorize), host, port, origins=cors or (), frames=("'none'",))
    sys.stdout.write(json_text.dumps({"url": server.url}) + "\n" if json else f"{server.url}\n")
    sys.stdout.flush()
    try:
        if not no_browser:
            server.open_browser()
        server.run()
    except KeyboardInterrupt:
        pass
