"""Sources cut into datasets: one member per file and group, with names as they will be in the repository."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icefloe.errors import InvalidInputError, suggest
from icefloe.ingest.cf import is_time_units
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.source_model import Coordinate, SourceFile, SourceSchema, SourceVariable

_NAMING_ATTRIBUTES = ("coordinates", "bounds", "grid_mapping", "ancillary_variables", "cell_measures", "formula_terms")


@dataclass(frozen=True, slots=True)
class Member:
    """What one file brings to one dataset; variables and dimensions under their target names."""

    file: SourceFile
    format: str
    order: int
    """Position among the sources."""
    variables: Mapping[str, SourceVariable]
    coordinates: Mapping[str, Coordinate]
    attributes: Mapping[str, Any]

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for variable in self.variables.values():
            sizes.update(zip(variable.dims, variable.shape, strict=True))
        return sizes


def join_path(*parts: str) -> str:
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


def split_datasets(schemas: Sequence[tuple[int, SourceSchema]], options: IngestOptions) -> dict[str, list[Member]]:
    """Members by target group; groups without variables of their own have none. Schemas come with their position."""
    _check_names([schema for _, schema in schemas], options)
    datasets: dict[str, list[Member]] = {}
    shared: dict[tuple[int, ...], tuple[Any, dict[str, SourceVariable]]] = {}
    for order, schema in schemas:
        below = target_group(schema.file, options)
        for group in _groups(schema):
            chosen = _select(schema, group, options)
            if not chosen and group:
                continue
            # Alike files share one mapping, so that plans of many files stay small; the variables are kept beside it,
            # or their ids could come again.
            key = tuple(id(v) for v in chosen.values())
            if key not in shared:
                shared[key] = (chosen, _inherit_units(_renamed(schema.file, chosen, options.rename)))
            renamed = shared[key][1]
            member = Member(
                schema.file, schema.format, order, renamed, _coordinates(schema, group, renamed, options.rename),
                schema.groups.get(group, {}),
            )  # fmt: skip
            datasets.setdefault(join_path(below, group), []).append(member)
    return datasets


def target_group(file: SourceFile, options: IngestOptions) -> str:
    """The group of the target under which a file's groups lie."""
    return join_path(options.group, _group_of(file, options))


def _group_of(file: SourceFile, options: IngestOptions) -> str:
    if options.group_pattern is None:
        return ""
    match = re.search(options.group_pattern, file.url)
    if match is None:
        raise InvalidInputError(f"{file.url} does not match the group pattern {options.group_pattern!r}", url=file.url)
    return "/".join(part for part in match.groups() if part)


def _groups(schema: SourceSchema) -> list[str]:
    found = {path.rpartition("/")[0] for path in schema.variables}
    return sorted(found | set(schema.groups) | {""})


def _check_names(schemas: Sequence[SourceSchema], options: IngestOptions) -> None:
    """Refuse names that nothing has. Variables are named as in the sources, targets by their new names."""
    present = {name for schema in schemas for path, v in schema.variables.items() for name in (path, v.name)}
    dims = {d for schema in schemas for v in schema.variables.values() for d in v.dims}
    for name in (*(options.variables or ()), *options.drop_variables):
        if name not in present:
            shown = ", ".join(sorted(present)[:30])
            raise InvalidInputError(f"no source has a variable {name!r}{suggest(name, present)}; there are {shown}")
    for name in options.rename:
        if name not in present | dims:
            near = suggest(name, present | dims)
            raise InvalidInputError(f"no source has a variable or dimension {name!r} to rename{near}")
    renamed = {options.rename.get(d, d) for d in dims}
    for name in options.chunks:
        if name not in renamed | {options.append_dim, *(options.concat_dims or ())}:
            raise InvalidInputError(f"chunks: no source has a dimension {name!r}{suggest(name, renamed)}")
    targets = {options.rename.get(name, name) for name in present}
    for name in options.dtypes:
        if name.rpartition("/")[2] not in targets:
            raise InvalidInputError(f"dtypes: no source has a variable {name!r}{suggest(name, targets)}")


def _select(schema: SourceSchema, group: str, options: IngestOptions) -> dict[str, SourceVariable]:
    here = {v.name: v for path, v in schema.variables.items() if path.rpartition("/")[0] == group}
    if options.variables is not None:
        wanted = {n for n, v in here.items() if n in options.variables or v.path in options.variables}
        needed = {d for n in wanted for d in here[n].dims}
        for name in list(wanted):
            needed.update(_named_by(here[name]))
        for name in [n for n in needed if n in here]:
            needed.update(_named_by(here[name]))
        here = {n: v for n, v in here.items() if n in wanted or n in needed}
    return {n: v for n, v in here.items() if n not in options.drop_variables and v.path not in options.drop_variables}


def _named_by(variable: SourceVariable) -> set[str]:
    """Variables that another one's attributes refer to."""
    texts = [str(variable.attributes[a]) for a in _NAMING_ATTRIBUTES if a in variable.attributes]
    return {word.rstrip(":") for text in texts for word in text.split()}


def _renamed(
    file: SourceFile, chosen: Mapping[str, SourceVariable], names: Mapping[str, str]
) -> dict[str, SourceVariable]:
    """Variables by their new names, of which no two may be the same."""
    renamed: dict[str, SourceVariable] = {}
    for name, variable in chosen.items():
        new = names.get(name, name)
        if new in renamed:
            raise InvalidInputError(
                f"two variables of {file.url} would be named {new!r}: {renamed[new].path} and {variable.path}; "
                "leave one out with drop_variables, or rename both",
                url=file.url,
            )
        renamed[new] = _rename(variable, names)
    return renamed


def _rename(variable: SourceVariable, names: Mapping[str, str]) -> SourceVariable:
    if not names:
        return variable
    attributes = dict(variable.attributes)
    for key in _NAMING_ATTRIBUTES:
        if isinstance(attributes.get(key), str):
            attributes[key] = " ".join(names.get(word, word) for word in attributes[key].split())
    return replace(variable, dims=tuple(names.get(d, d) for d in variable.dims), attributes=attributes)


def _inherit_units(variables: dict[str, SourceVariable]) -> dict[str, SourceVariable]:
    """Bounds of a time coordinate count in its units; with them written out they are converted with it."""
    found = dict(variables)
    for variable in variables.values():
        bounds = found.get(str(variable.attributes.get("bounds")))
        if bounds is not None and is_time_units(variable.attributes.get("units")) and "units" not in bounds.attributes:
            passed = {k: variable.attributes[k] for k in ("units", "calendar") if k in variable.attributes}
            name = str(variable.attributes["bounds"])
            found[name] = replace(bounds, attributes={**bounds.attributes, **passed})
    return found


def _coordinates(
    schema: SourceSchema, group: str, variables: Mapping[str, SourceVariable], names: Mapping[str, str]
) -> dict[str, Coordinate]:
    """Coordinates of the group's dimensions; a group inherits those of the groups around it."""
    found: dict[str, Coordinate] = {}
    parts = group.split("/") if group else []
    for depth in range(len(parts) + 1):
        around = "/".join(parts[:depth])
        for path, coordinate in schema.coordinates.items():
            folder, _, name = path.rpartition("/")
            if folder == around:
                found[names.get(name, name)] = coordinate
    dims = {d for v in variables.values() for d in v.dims}
    return {name: c for name, c in found.items() if name in dims or name in variables}
