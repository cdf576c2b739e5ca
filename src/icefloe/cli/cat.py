"""`icefloe cat`: the bytes of a key, the document of a group, or the values of an array."""

from __future__ import annotations

import base64
import json as json_text
import sys
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
import zarr

from icefloe.blocking import run_blocking
from icefloe.cli.arguments import AsOf, Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout, write_text
from icefloe.errors import InvalidInputError, NodeNotFoundError, printable
from icefloe.model.nodes import ArrayNode
from icefloe.session.session import Session

_MOST_VALUES = 1_000_000


def register(app: typer.Typer) -> None:
    app.command("cat")(cat)


def cat(
    place: Place,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="An array, a group, or a key such as t2m/c/0/0 or t2m/zarr.json.", show_default=False
        ),
    ],
    region: Annotated[
        str | None,
        typer.Option("--slice", metavar="SLICES", help="Part of an array: '0:3,:,5', as Python would index it."),
    ] = None,
    authorize: Annotated[
        list[str] | None,
        typer.Option(
            "--authorize",
            metavar="PREFIX",
            help="Read virtual chunks below this prefix, with the credentials of the environment; can be repeated.",
        ),
    ] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Print a key's bytes, a group's document or the values of an array."""
    allowed = dict.fromkeys(authorize or ())
    session = Point(branch, tag, snapshot, as_of).session(open_repository(place, options, allowed))
    node = session.workspace.tree.find("/" + path.strip("/"))
    if isinstance(node, ArrayNode):
        _cat_array(session, node, region, json=json)
        return
    key = path.strip("/") if node is None else f"{node.path}/zarr.json".lstrip("/")
    _cat_key(session, key, json=json)


def _cat_array(session: Session, node: ArrayNode, region: str | None, *, json: bool) -> None:
    array = zarr.open_array(session.store, path=node.path.strip("/"), mode="r")
    selection = parse_slices(region) if region is not None else ()
    count = _selected(node.shape, selection)
    if count > _MOST_VALUES:
        raise InvalidInputError(
            f"{node.path} has {count:,} values there, more than the {_MOST_VALUES:,} that are printed; "
            "choose a part with --slice, for instance --slice '0,:10'"
        )
    values = np.asarray(array[selection if selection else ...])
    if json:
        about = {"path": node.path, "shape": node.shape, "data_type": str(array.dtype), "slice": region}
        print_json({**about, "values": _jsonable(values)})
        return
    # numpy shows the ends of what is long; a pipe gets everything.
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
    """How many values a selection takes."""
    if len(selection) > len(shape):
        raise typer.BadParameter(f"{len(selection)} slices for {len(shape)} dimensions", param_hint="--slice")
    count = 1
    for axis, length in enumerate(shape):
        chosen = selection[axis] if axis < len(selection) else slice(None)
        count *= len(range(*chosen.indices(length))) if isinstance(chosen, slice) else 1
    return count


def _jsonable(values: npt.NDArray[Any]) -> Any:
    """Lists of plain values; what JSON has no word for becomes text."""
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
