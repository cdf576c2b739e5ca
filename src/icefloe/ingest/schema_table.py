"""The schemas of many sources. What similar sources share is in memory once, and the rest in columns.

Sources are alike if their schemas differ only in files, in short coordinates, in hashes, and in the attributes of
variables. Plans compare attributes, so that for them the sources of a kind also have the same ones. In many archives
every file has other attributes: the attributes of a source are the number of a text with the differences from the first
one.
"""

from __future__ import annotations

import itertools
import operator
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.ingest.catalogue import CataloguedSource, SourceBatch, dtype_of
from icefloe.ingest.source_files import Column, SourceFiles, constant_column
from icefloe.ingest.source_model import (
    SchemaInterner,
    SourceFile,
    SourceSchema,
    SourceVariable,
    hash_value,
    pack_value,
    summarise_coordinate,
)
from icefloe.ingest.sources import IngestOptions

_MOST_KINDS = 64
"""Sources with more kinds of attributes than this are not divided into kinds."""
_LONGEST_ROW = 256
"""The longest coordinate with a row for each source. Sources that differ in a longer one are not similar."""


class SchemaTable:
    """Schemas of many sources.

    Sources are added in the natural order of their names. A plan takes the attributes of a group from its first source.
    If all sources belong to one group and none of them is left out, those of the others are not kept.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest import expand_sources, parse_schema
    >>> for day in range(3):
    ...     xarray.Dataset({"t": ("time", [20.0])}, {"time": [day]}).to_netcdf(f"table{day}.nc")
    >>> table = SchemaTable([parse_schema(file) for file in expand_sources("table*.nc")])
    >>> len(table), [schema.coordinates["time"].first for schema in table]
    (3, [0, 1, 2])
    """

    def __init__(self, schemas: Iterable[SourceSchema] = (), options: IngestOptions | None = None) -> None:
        self._alike: dict[bytes, AlikeSources] = {}
        # Different sources share equal variables and coordinates too.
        self._interner = SchemaInterner()
        self._has_attributes = options is None or options.group_pattern is not None or options.overlap != "error"
        self._parts: list[SourceFiles] = []
        self._end = 0
        self._changed: dict[int, SourceFile] = {}
        """Files that their parsers describe in another way, by position. Only in a table without files."""
        self.add(schemas)

    def add(self, schemas: Iterable[SourceSchema], files: Sequence[SourceFile] = ()) -> None:
        """Add schemas. `files` are those that were read. Some of them may have no schema."""
        # Objects are known by their identity only as long as the caller holds them.
        added, keys = list(schemas), _Keys(self._has_attributes)
        read = files or [schema.file for schema in added]
        known = {file.url: (place, file) for place, file in enumerate(read)}
        changed: dict[int, SourceFile] = {}
        parts: dict[bytes, list[tuple[int, SourceSchema]]] = {}
        for schema in added:
            place, file = known[schema.file.url]
            if file != schema.file:
                changed[place] = schema.file
            parts.setdefault(keys.of(schema), []).append((self._end + place, schema))
        for key, part in parts.items():
            alike = self._alike.get(key)
            if alike is None:
                alike = self._alike[key] = AlikeSources(self._interner.share([part[0][1]])[0])
            alike.add([schema for _, schema in part], [place for place, _ in part])
        self._add_files(read, changed)

    def _add_files(self, files: Sequence[SourceFile], changed: Mapping[int, SourceFile]) -> None:
        own = (changed.get(place, file) for place, file in enumerate(files)) if changed else files
        self._parts.append(SourceFiles.of(own))
        self._end += len(files)

    def without_files(self, files: Sequence[SourceFile]) -> SchemaTable:
        """Return the table with positions in `files` instead of the files, for a process that has them too."""
        places = {file.url: place for place, file in enumerate(files)}
        own = list(SourceFiles.join(self._parts))
        moved = np.array([places[file.url] for file in own], dtype=np.int64)
        pairs = zip(moved.tolist(), own, strict=True)
        self._changed = {place: file for place, file in pairs if file != files[place]}
        for alike in self._alike.values():
            alike.move(moved)
        self._interner, self._parts = SchemaInterner(), []
        return self

    def join(self, other: SchemaTable, files: Sequence[SourceFile]) -> None:
        """Add the schemas of a table that has positions in `files`. The other table must not be used any more."""
        moved = np.arange(self._end, self._end + len(files))
        for key, alike in other._alike.items():
            alike.move(moved)
            known = self._alike.get(key)
            if known is None:
                alike.template = self._interner.share([alike.template])[0]
                self._alike[key] = alike
            else:
                known.join(alike)
        self._add_files(files, other._changed)

    def __len__(self) -> int:
        return sum(map(len, self._alike.values()))

    def __iter__(self) -> Iterator[SourceSchema]:
        """Every schema. Similar ones follow each other."""
        self._interner = SchemaInterner()  # it is large if all schemas differ, and few will be added
        files = list(self.described())
        return itertools.chain.from_iterable(alike.schemas(range(len(alike)), files) for alike in self._alike.values())

    def kinds(self) -> Sequence[AlikeSources] | None:
        """Return sources with equal schemas and attributes, or None if there are many kinds of attributes."""
        if any(len(alike.variants) > _MOST_KINDS for alike in self._alike.values()):
            return None
        return [kind for alike in self._alike.values() for kind in alike.divide()]

    def described(self) -> SourceFiles:
        """Return all files that were read. The places of sources are positions in them."""
        self._parts = [SourceFiles.join(self._parts)]
        return self._parts[0]

    def files(self, format: str | None = None) -> SourceFiles:
        """Return the files of all sources, or those of a format, in the order in which they were added."""
        every = self._alike.values()
        chosen = [alike.places for alike in every if format is None or alike.template.format == format]
        return self.described().take(np.sort(np.concatenate(chosen or [np.zeros(0, np.int64)])))

    def referenced(self) -> set[str]:
        """Return the directories of files that sources refer to, if they are not their own."""
        return {folder for alike in self._alike.values() for folder in alike.template.referenced}


_FIXED_FIELDS = operator.attrgetter(*(each.name for each in fields(SourceVariable) if each.name != "attributes"))


class _Keys:
    """Hashes that are equal for equal parts of schemas. A part that many schemas share is hashed once."""

    def __init__(self, has_attributes: bool) -> None:
        self._has_attributes = has_attributes
        self._known: dict[int, bytes] = {}

    def of(self, schema: SourceSchema) -> bytes:
        """Return a hash that is equal for sources that differ only in file, attributes and columns."""
        varying = _varying(schema)
        groups = schema.groups if self._has_attributes else [*schema.groups]
        rest = [schema.format, groups, schema.skipped, schema.referenced, schema.left_out]
        coordinates = [
            (path, c.size, dtype_of(c), "" if path in varying else c.digest) for path, c in schema.coordinates.items()
        ]
        return hash_value([self._hash(schema.variables), coordinates, rest, [*schema.digests]])

    def _hash(self, variables: Mapping[str, SourceVariable]) -> bytes:
        if id(variables) not in self._known:
            found = [(path, _FIXED_FIELDS(variable)) for path, variable in variables.items()]
            self._known[id(variables)] = hash_value(found)
        return self._known[id(variables)]


P = TypeVar("P")


def _extend(
    columns: dict[str, list[P | int]] | None, parts: Mapping[str, P], before: int, count: int
) -> dict[str, list[P | int]] | None:
    """Add rows to columns. There are `before` rows already, and columns without a part have those of a template."""
    if parts:
        columns = {} if columns is None else columns
        for path in parts:
            columns.setdefault(path, [before])
    for path, rows in (columns or {}).items():
        part = parts.get(path)
        rows.append(count if part is None else part)
    return columns


def _varying(schema: SourceSchema) -> list[str]:
    """Return the paths of coordinates of which a table has a row for each source."""
    return [
        path
        for path, each in schema.coordinates.items()
        if each.values is not None and each.values.dtype.kind in "biuf" and each.size <= _LONGEST_ROW
    ]


class AlikeSources:
    """Sources with equal schemas, and columns of what differs between them."""

    __slots__ = ("_codes", "_count", "_hashes", "_places", "_values", "template", "variants")

    def __init__(self, template: SourceSchema) -> None:
        self.template = template
        self.variants: dict[bytes, int] = {b"": 0}
        """Attributes that differ from those of the template, as texts with their numbers."""
        self._codes: list[npt.NDArray[np.int32]] = []
        self._places: list[npt.NDArray[np.int64]] = []
        self._count = 0
        # Rows by path, if a source has another value than the template. A number counts rows of the template.
        self._values: dict[str, list[npt.NDArray[Any] | int]] | None = None
        self._hashes: dict[str, list[Sequence[str] | int]] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """The position of each source among the files of the table."""
        if len(self._places) != 1:
            self._places = [np.concatenate(self._places)]
        return self._places[0]

    def move(self, places: npt.NDArray[np.int64]) -> None:
        """Replace every place by the one that a column has for it."""
        self._places = [places[self.places]]

    def add(self, schemas: Sequence[SourceSchema], places: Sequence[int]) -> None:
        """Add sources."""
        values: dict[str, npt.NDArray[Any]] = {}
        for path in _varying(self.template):
            found, own = [schema.coordinates[path] for schema in schemas], self.template.coordinates[path]
            if not all(each is own or each.digest == own.digest for each in found):
                values[path] = np.stack([v for each in found if (v := each.values) is not None])
        hashes: dict[str, Sequence[str]] = {}
        for path, known in self.template.digests.items():
            texts = [schema.digests[path] for schema in schemas]
            if not all(each == known for each in texts):
                hashes[path] = Column(pa.array(texts, pa.string()))
        packed = {path: pack_value(each.attributes) for path, each in self.template.variables.items()}
        numbers = {id(self.template.variables): 0}
        for schema in schemas:
            if id(schema.variables) not in numbers:
                numbers[id(schema.variables)] = self._number(schema.variables, packed)
        codes = np.array([numbers[id(schema.variables)] for schema in schemas], dtype=np.int32)
        self._add(values, hashes, codes, np.array(places, dtype=np.int64))

    def _number(self, variables: Mapping[str, SourceVariable], packed: Mapping[str, bytes]) -> int:
        """Return the number of the attributes of some variables. The template has `packed`."""
        differing = [(p, each.attributes) for p, each in variables.items() if pack_value(each.attributes) != packed[p]]
        return self.variants.setdefault(pack_value(differing) if differing else b"", len(self.variants))

    def _add(
        self,
        values: Mapping[str, npt.NDArray[Any]],
        hashes: Mapping[str, Sequence[str]],
        codes: npt.NDArray[np.int32],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Add rows. Columns that are not given have the values of the template."""
        self._codes.append(codes)
        self._values = _extend(self._values, values, self._count, len(places))
        self._hashes = _extend(self._hashes, hashes, self._count, len(places))
        self._places.append(places)
        self._count += len(places)

    def join(self, other: AlikeSources) -> None:
        """Add the sources of another process."""
        values, hashes = other.values(), dict[str, Sequence[str]](other.hashes())
        for path in _varying(self.template):
            own, theirs = self.template.coordinates[path], other.template.coordinates[path]
            if path not in values and own.digest != theirs.digest and theirs.values is not None:
                values[path] = np.broadcast_to(theirs.values, (len(other), theirs.size))
        for path, digest in other.template.digests.items():
            if path not in hashes and digest != self.template.digests[path]:
                hashes[path] = Column(pa.repeat(digest, len(other)))
        packed = {path: pack_value(each.attributes) for path, each in self.template.variables.items()}
        numbers = [self._number(each, packed) for each in other.variables()]
        self._add(values, hashes, np.array(numbers, dtype=np.int32)[other.codes], other.places)

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """The number of the attributes of each source."""
        if len(self._codes) != 1:
            self._codes = [np.concatenate(self._codes)]
        return self._codes[0]

    def variables(self) -> Iterator[Mapping[str, SourceVariable]]:
        """Yield the variables with the attributes of each variant. Equal variables are the same objects."""
        for text in self.variants:
            made = dict(self.template.variables)
            for path, attributes in pickle.loads(text) if text else ():
                made[path] = replace(made[path], attributes=attributes)
            yield made if text else self.template.variables

    def divide(self) -> list[AlikeSources]:
        """Return the sources of each variant."""
        if len(self.variants) == 1:
            return [self]
        values, hashes, found = self.values(), self.hashes(), list[AlikeSources]()
        for number, variables in enumerate(self.variables()):
            rows = np.flatnonzero(self.codes == number)
            if not len(rows):
                continue
            own = {path: each[rows] for path, each in values.items()}
            texts = {path: each.take(rows) for path, each in hashes.items()}
            template = replace(
                self.template,
                variables=variables,
                coordinates={
                    **self.template.coordinates,
                    **{p: summarise_coordinate(each[0]) for p, each in own.items()},
                },
                digests={**self.template.digests, **{path: each[0] for path, each in texts.items()}},
            )
            made = AlikeSources(template)
            # What does not differ between these sources is in their template.
            own = {path: each for path, each in own.items() if bool((each != each[:1]).any())}
            texts = {path: each for path, each in texts.items() if any(text != each[0] for text in each)}
            made._add(own, texts, np.zeros(len(rows), dtype=np.int32), self.places[rows])
            found.append(made)
        return found

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Return the coordinates that differ between sources, by path, with one row for each source."""
        found: dict[str, npt.NDArray[Any]] = {}
        for path, rows in (self._values or {}).items():
            own = self.template.coordinates[path].values
            assert own is not None
            parts = [np.broadcast_to(own, (each, len(own))) if isinstance(each, int) else each for each in rows]
            found[path] = np.concatenate(parts) if len(parts) > 1 else parts[0]
            rows[:] = [found[path]]
        return found

    def hashes(self) -> dict[str, Column[str]]:
        """Return the hashes of variables that differ between sources, by path."""
        found: dict[str, Column[str]] = {}
        for path, texts in (self._hashes or {}).items():
            own = self.template.digests[path]
            parts = [_text_array([own] * each if isinstance(each, int) else each) for each in texts]
            found[path] = Column(pa.concat_arrays(parts) if len(parts) > 1 else parts[0])
            texts[:] = [found[path]]
        return found

    def schemas(self, rows: Iterable[int], files: Sequence[SourceFile]) -> Iterator[SourceSchema]:
        """Return the schemas of some sources. `files` are those of the table."""
        values, hashes, template, places = self.values(), self.hashes(), self.template, self.places
        variables, codes = [*self.variables()], self.codes
        for row in rows:
            made = {path: summarise_coordinate(each[row]) for path, each in values.items()}
            texts = {path: each[row] for path, each in hashes.items()}
            yield replace(
                template,
                file=files[int(places[row])],
                variables=variables[codes[row]],
                coordinates={**template.coordinates, **made} if made else template.coordinates,
                digests={**template.digests, **texts} if texts else template.digests,
            )

    def batch(self, files: SourceFiles) -> SourceBatch:
        """Return the sources as a batch. Its columns have what differs between them."""
        own = files.take(self.places).columns
        return SourceBatch(
            CataloguedSource(self.template.file, {}, self.template),
            (*own, constant_column(None, len(self)), constant_column(0, len(self))),
            values=self.values(),
            hashes=self.hashes(),
        )


def _text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array. A column that another process has sent is a list."""
    return texts.array() if isinstance(texts, Column) else pa.array(texts, pa.string())
