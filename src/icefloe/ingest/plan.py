"""The whole plan of an ingest: a picklable value, made before anything is written."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from icefloe.errors import InvalidInputError
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.dataset_plan import DatasetPlan, ValueWrite, plan_dataset
from icefloe.ingest.existing import Existing
from icefloe.ingest.members import join_path, split_datasets, target_group
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.schema_report import SchemaIssue, SchemaReport, Severity, join_reports
from icefloe.ingest.source_model import SourceFailure, SourceSchema, intern_schemas
from icefloe.ingest.sources import natural_key
from icefloe.ingest.tasks import IngestTask, plan_native_tasks, plan_virtual_tasks
from icefloe.ingest.zarr_documents import group_document


@dataclass(frozen=True, slots=True, repr=False)
class IngestPlan:
    """What an ingest will do.

    documents   zarr.json by node path: new groups and arrays, and arrays that grow
    arrays      by path
    values      coordinates and other few values, written before the tasks run
    tasks       work that shares no chunk, in any order and place
    containers  URL prefixes a reader must authorise for the virtual references
    """

    documents: Mapping[str, bytes]
    arrays: Mapping[str, ArrayPlan]
    values: tuple[ValueWrite, ...]
    tasks: tuple[IngestTask, ...]
    containers: tuple[str, ...]
    report: SchemaReport
    options: IngestOptions
    sources: tuple[str, ...]
    source_bytes: int
    skipped: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = (
            f"{len(self.sources):,} sources, {len(self.arrays):,} arrays, {len(self.tasks):,} tasks, "
            f"{len(self.report.issues):,} differences"
        )
        return f"IngestPlan({self.options.mode}: {counts})"

    @property
    def total_bytes(self) -> int:
        """Decoded bytes that the tasks handle."""
        return sum(task.bytes for task in self.tasks)


def plan_ingest(
    schemas: Sequence[SourceSchema],
    options: IngestOptions,
    *,
    failures: Sequence[SourceFailure] = (),
    existing: Existing | None = None,
) -> IngestPlan:
    """Decide everything from the schemas of the first pass; raises nothing for differences, they are in the report.

    Call `plan.report.raise_on_errors()` before carrying the plan out.
    """
    if failures and options.on_error == "fail":
        shown = "\n".join(f"  {f.reason}" for f in failures[:20])
        raise InvalidInputError(
            f"{len(failures)} of {len(failures) + len(schemas)} sources cannot be read; nothing was written "
            f"(on_error='skip' leaves them out):\n{shown}",
            failures=list(failures),
        )
    if not schemas:
        raise InvalidInputError("no source can be read", failures=list(failures))
    existing = existing or Existing()
    placed, broken = _order(intern_schemas(schemas), failures)
    ordered = [schema for _, schema in placed]
    datasets = [
        plan_dataset(group, members, broken if _takes_failures(members) else (), options, existing)
        for group, members in split_datasets(placed, options).items()
        if any(m.variables for m in members)
    ]
    arrays = {a.path: a for d in datasets for a in d.arrays}
    groups = _group_attributes(ordered, datasets, options)
    documents = {p: group_document(a) for p, a in groups.items() if p not in existing.groups}
    # An array that keeps its shape keeps its document: writing it again would conflict with others for nothing.
    documents.update({a.path: a.document for a in arrays.values() if a.is_new or _grows(a, existing)})
    skipped = SchemaReport((*_skipped_members(ordered), *_unchecked(existing, datasets, options)))
    tasks = _number(datasets, options)
    return IngestPlan(
        documents=dict(sorted(documents.items())),
        arrays=arrays,
        values=tuple(v for d in datasets for v in d.values),
        tasks=tasks,
        containers=find_containers(ordered, options) if any(t.kind == "virtual" for t in tasks) else (),
        report=join_reports([*(d.report for d in datasets), skipped]),
        options=options,
        sources=tuple(s.file.url for s in ordered),
        source_bytes=sum(s.file.size_bytes for s in ordered),
        skipped=tuple(f.file.url for f in failures),
    )


def check_plan(plan: IngestPlan, existing: Existing) -> None:
    """Refuse what cannot be carried out, before anything is written."""
    plan.report.raise_on_errors()
    check_free(plan, existing)


def check_free(plan: IngestPlan, existing: Existing) -> None:
    """Refuse to write over arrays that nobody asked to extend or to write into."""
    taken = sorted(path for path in plan.arrays if path in existing.arrays)
    if taken and plan.options.append_dim is None and plan.options.region is None:
        raise InvalidInputError(
            f"the array /{taken[0]} exists; use append_dim to extend it, region to write into it, or another group",
            path=taken[0],
        )


def _order(
    schemas: Sequence[SourceSchema], failures: Sequence[SourceFailure]
) -> tuple[list[tuple[int, SourceSchema]], list[tuple[int, SourceFailure]]]:
    """Everything in natural order of URLs, with its position among all sources."""
    urls = sorted([*(s.file.url for s in schemas), *(f.file.url for f in failures)], key=natural_key)
    position = {url: index for index, url in enumerate(urls)}
    ordered = sorted(schemas, key=lambda s: position[s.file.url])
    return [(position[s.file.url], s) for s in ordered], [(position[f.file.url], f) for f in failures]


def _grows(array: ArrayPlan, existing: Existing) -> bool:
    return tuple(existing.arrays[array.path].document["shape"]) != array.shape


def _takes_failures(members: Sequence[Any]) -> bool:
    return any(m.variables for m in members)


def _number(datasets: Sequence[DatasetPlan], options: IngestOptions) -> tuple[IngestTask, ...]:
    tasks: list[IngestTask] = []
    for dataset in datasets:
        native = [a for a in dataset.arrays if a.kind == "native"]
        virtual = [a for a in dataset.arrays if a.kind == "virtual"]
        for arrays, window, files, size in plan_native_tasks(native, dataset.files, dataset.extent, options.task_bytes):
            tasks.append(IngestTask(len(tasks), "native", arrays, window, files, size))
        for arrays, window, files, size in plan_virtual_tasks(virtual, dataset.files, options.files_per_task):
            tasks.append(IngestTask(len(tasks), "virtual", arrays, window, files, size))
    return tuple(tasks)


def _group_attributes(
    schemas: Sequence[SourceSchema], datasets: Sequence[DatasetPlan], options: IngestOptions
) -> dict[str, Mapping[str, Any]]:
    """Every group of the target and those above it. One without variables is the first source's that has it."""
    found: dict[str, Mapping[str, Any]] = {"": {}}
    own = {dataset.group: dataset.attributes for dataset in datasets}
    for schema in {id(s.groups): s for s in schemas}.values() if options.variables is None else ():
        for path, attributes in schema.groups.items():
            own.setdefault(join_path(target_group(schema.file, options), path), attributes)
    for group, attributes in own.items():
        parts = group.split("/") if group else []
        for depth in range(1, len(parts)):
            found.setdefault("/".join(parts[:depth]), own.get("/".join(parts[:depth]), {}))
        found[group] = attributes
    return found


def _skipped_members(schemas: Sequence[SourceSchema]) -> list[SchemaIssue]:
    return [
        SchemaIssue("note", schema.file.url, path, "variable", "one that Zarr can hold", reason, "it is left out")
        for schema in schemas
        for path, reason in schema.skipped.items()
    ]


def _unchecked(existing: Existing, datasets: Sequence[DatasetPlan], options: IngestOptions) -> list[SchemaIssue]:
    """Coordinates of the repository that the sources should have been compared with, and could not be."""
    needed = {join_path(d.group, dim) for d in datasets for array in d.arrays for dim in array.dims}
    severity: Severity = "note" if options.unchecked else "error"
    resolution = (
        "the sources are not checked against it, as asked for"
        if options.unchecked
        else "open the repository with that authorisation (authorize_virtual_chunk_access, --authorize), or go on "
        "with unchecked=True (--unchecked): repeated cells and other grids are then not noticed"
    )
    return [
        SchemaIssue(severity, "", path, "the repository's values", "readable", reason, resolution)
        for path, reason in existing.unreadable.items()
        if path in needed
    ]


def find_containers(schemas: Sequence[SourceSchema], options: IngestOptions) -> tuple[str, ...]:
    """The prefixes that cover every referenced file: the one given, or the longest common folders."""
    folders = {
        folder
        for schema in schemas
        for folder in (schema.referenced or (schema.file.url.rstrip("/").rsplit("/", 1)[0] + "/",))
    }
    if options.container_prefix is not None:
        prefix = options.container_prefix.rstrip("/") + "/"
        outside = sorted(f for f in folders if not f.startswith(prefix))
        if outside:
            raise InvalidInputError(f"sources in {outside[0]} are not below the container prefix {prefix}")
        return (prefix,)
    places: dict[tuple[str, str], list[str]] = {}
    for folder in folders:
        parts = urlsplit(folder)
        # Files of one machine may have nothing in common but the root, which is too much to authorise.
        top = parts.path.split("/")[1] if parts.scheme == "file" else ""
        places.setdefault((f"{parts.scheme}://{parts.netloc}", top), []).append(parts.path)
    return tuple(sorted(f"{root}{posixpath.commonpath(paths).rstrip('/')}/" for (root, _), paths in places.items()))
