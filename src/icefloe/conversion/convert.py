"""Convert a repository to another generation: survey, plan, write, compare, and then switch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from icefloe.blocking import blocking_function
from icefloe.conversion.survey import (
    Loss,
    LossKind,
    Survey,
    check_losses,
    fetch_refs,
    find_losses,
    join_losses,
    parse_drops,
    survey,
    unrepresentable_refs,
    without_unstorable_fields,
)
from icefloe.conversion.transfer import Progress, Report, Transfer, Verification, Verify, Work
from icefloe.conversion.translate import plan_id_mapping, shares_names
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    RepositoryExistsError,
    UnsupportedError,
)
from icefloe.formats.config_document import encode_config
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.ledger.generations import GENERATIONS, find_bridge, find_generations, remove_generation, takes_precedence
from icefloe.ledger.ledger import JOURNAL_KEY, WholeHistory
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.session.open_repository import (
    RepositoryContext,
    build_context,
    find_spec_version,
    open_context,
    parse_spec_version,
)
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage, StorageLike


@dataclass(frozen=True, slots=True)
class Journal:
    """The record of an unfinished conversion, with the numbers that it assigned to nodes."""

    source: SpecVersion
    target: SpecVersion
    root: ObjectId
    """The first snapshot of the source's history."""
    dropped: tuple[str, ...] = ()
    node_numbers: Mapping[NodeId, int] = field(default_factory=dict)
    salt: str = ""
    """A salt for the names of new files, if an earlier conversion already used the names without a salt."""

    def is_same_work(self, other: Journal) -> bool:
        """Whether another run does the same conversion."""
        return (self.source, self.target, self.root, self.dropped) == (
            other.source,
            other.target,
            other.root,
            other.dropped,
        )

    def encode(self) -> bytes:
        document = {
            "what": "a conversion is in progress here. `icefloe convert` with the same source and target finishes it",
            "from": self.source.value,
            "to": self.target.value,
            "root": self.root,
            "dropped": list(self.dropped),
            "salt": self.salt,
            "node_numbers": {node.hex(): number for node, number in self.node_numbers.items()},
        }
        return json.dumps(document, indent=1).encode()


def parse_journal(data: bytes) -> Journal:
    """Decode a journal."""
    try:
        document = json.loads(data)
        return Journal(
            SpecVersion(document["from"]),
            SpecVersion(document["to"]),
            document["root"],
            tuple(document["dropped"]),
            {bytes.fromhex(node): int(number) for node, number in document["node_numbers"].items()},
            str(document.get("salt", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{JOURNAL_KEY} is not the journal of a conversion: {error!r}") from error


async def find_journal(storage: Storage) -> Journal | None:
    """The unfinished conversion in a storage, if there is one."""
    try:
        return parse_journal(await storage.get(JOURNAL_KEY))
    except ObjectNotFoundError:
        return None


async def save_journal(storage: Storage, journal: Journal) -> None:
    """Start or continue a conversion. ConflictError if another conversion is unfinished."""
    try:
        await storage.create(JOURNAL_KEY, journal.encode(), unique=False)
        return
    except AlreadyExistsError:
        found = await storage.get_versioned(JOURNAL_KEY)
    known = parse_journal(found.data)
    if not known.is_same_work(journal):
        raise other_conversion(storage, known)
    if known != journal:
        await storage.swap(JOURNAL_KEY, journal.encode(), found.version, unique=False)


def other_conversion(storage: Storage, known: Journal) -> ConflictError:
    """The error for a storage with another unfinished conversion."""
    return ConflictError(
        message=f"{storage.url} contains an unfinished conversion of {known.source.value!r} (first snapshot "
        f"{known.root}) to "
        f"{known.target.value!r}. Finish it, or delete {JOURNAL_KEY} and the files that it wrote",
        expected_parent=None,
        actual_parent=known.root,
    )


async def delete_journal(storage: Storage) -> None:
    """Remove the journal after a conversion."""
    await storage.delete([JOURNAL_KEY])


_ROUNDS = 10
"""The number of times that new commits of the source are converted before the conversion fails."""


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of a conversion."""

    drop: frozenset[LossKind] = frozenset()
    verify: Verify = Verify.SPOT
    keep_source: bool = False
    """In place: keep the refs of the old generation, if both generations can coexist."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion, or its plan.

    Parameters
    ----------
    source, target
        The URLs of both repositories.
    from_version, to_version
        The generations of both repositories.
    branches, tags, snapshots, manifests
        The numbers of converted objects.
    losses
        What the new generation cannot store.
    chunk_objects
        The number of chunk objects, copied or shared.
    copied_objects, copied_bytes
        The number and the size of the copied chunk objects.
    repository
        The converted repository. None for a plan.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> plan = icefloe.convert(repo, icefloe.in_memory_storage(), "icechunk2", dry_run=True)
    >>> plan.branches, plan.snapshots, plan.repository
    (1, 1, None)
    """

    source: str
    target: str
    from_version: SpecVersion
    to_version: SpecVersion
    branches: int
    tags: int
    snapshots: int
    manifests: int
    losses: tuple[Loss, ...] = ()
    chunk_objects: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0
    repository: Repository | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """The source, the target and the options of a conversion."""

    context: RepositoryContext
    storage: Storage
    version: SpecVersion
    options: ConversionOptions
    in_place: bool

    @property
    def present(self) -> SpecVersion:
        return self.context.format.spec_version

    @property
    def shares_files(self) -> bool:
        """Whether the new generation reads the files of the old one without changes."""
        return self.in_place and GENERATIONS[self.version].reads_files_of is self.present

    def target(self, config: RepositoryConfig | None) -> RepositoryContext:
        """The context of the new repository."""
        return build_context(self.storage, self.version, config or RepositoryConfig.default(), self.context.authorized)


async def plan(request: ConversionRequest) -> Conversion:
    """Plan a conversion. Nothing is written."""
    found = await survey(request.context)
    return _describe(request, found, await _find_all_losses(request, found))


async def run_conversion(request: ConversionRequest, progress: Progress) -> Conversion:
    """Run a conversion. After an interruption, run it again."""
    for _ in range(_ROUNDS):
        found = await survey(request.context)
        target = request.target(found.config)
        losses = await find_losses(found, target.format, target.ledger)
        check_losses(losses, request.options.drop, request.version)
        if LossKind.COMMIT_METADATA in request.options.drop:
            found = replace(
                found, history=tuple(without_unstorable_fields(info, target.format) for info in found.history)
            )
        work = await _begin(request, found, target)
        if not request.in_place and await find_spec_version(request.storage) is request.version:
            await delete_journal(request.storage)
            return await _finished(request, found, losses, None)
        transfer = Transfer(work, progress)
        if request.shares_files:
            transfer.take_over()
        else:
            await transfer.run()
            await Verification(transfer, request.options.verify, progress).run()
        if request.in_place:
            # From here on, no session commits to the old generation. What they committed before is read below.
            await request.context.ledger.announce_conversion()
        # New commits are converted in another round, which skips the files that exist already.
        if await fetch_refs(request.context) == found.stored_refs:
            await _switch_refs(request, work, transfer)
            return await _finished(request, found, losses, transfer)
    raise ConflictError(
        message=f"branches of {request.context.storage.url} changed in each of {_ROUNDS} attempts. Stop all writers, "
        "then try again"
    )


async def _begin(request: ConversionRequest, found: Survey, target: RepositoryContext) -> Work:
    """Write the journal to the target, before the first file."""
    known = await find_journal(request.storage)
    salt = await _choose_salt(request, target) if known is None else known.salt
    identities = plan_id_mapping(
        request.context.format,
        target.format,
        same_root=request.in_place and not request.shares_files,
        nodes=found.nodes,
        known={} if known is None else known.node_numbers,
        salt=salt,
    )
    words = tuple(sorted(kind.value for kind in request.options.drop))
    journal = Journal(request.present, request.version, found.root, words, identities.node_numbers, salt)
    await save_journal(request.storage, journal)
    return Work(found, target, identities, request.options.drop, request.in_place)


async def _choose_salt(request: ConversionRequest, target: RepositoryContext) -> str:
    """The salt. It is set if the target still contains snapshots from an earlier conversion."""
    source = request.context.format
    if not request.in_place or request.shares_files or shares_names(source, target.format):
        return ""
    left = await request.storage.list_names(target.format.snapshots_folder)
    return f"{source.spec_version.value}>{request.version.value} {new_object_id()}" if left else ""


async def _switch_refs(request: ConversionRequest, work: Work, transfer: Transfer) -> None:
    """Create the refs of the new generation, then remove those of the old one."""
    history = _history_for_target(work, transfer)
    try:
        await work.target.ledger.import_history(history, replace_leftovers=request.in_place)
    except AlreadyExistsError:
        if await find_spec_version(request.storage) is not request.version:
            raise
    if request.in_place:
        await GENERATIONS[request.present].remove_name(request.storage)
    if request.in_place and not request.options.keep_source:
        await remove_generation(request.storage, request.present, request.version)
    opened = await open_context(request.storage, None, request.context.authorized)
    if opened.format.spec_version is not request.version:
        raise FormatError(
            f"{request.storage.url} still opens as {opened.format.spec_version.value!r}, because "
            "it has refs of that generation"
        )
    await _check_imported(opened, history)
    await delete_journal(request.storage)


async def _check_imported(opened: RepositoryContext, history: WholeHistory) -> None:
    """Check that a converted repository has the refs of its source. Others may have committed to it already."""
    found = await fetch_refs(opened)
    for name, tip in history.branches.items():
        now = found.branches.get(name)
        if now == tip:
            continue
        if now is None or not any([info.id == tip async for info in opened.ledger.ancestry(now)]):
            raise FormatError(
                f"branch {name!r} of {opened.storage.url} is at {now} after the conversion, and its history does not "
                f"contain {tip}, the tip of that branch before it"
            )
    missing = {name: target for name, target in history.tags.items() if found.tags.get(name) != target}
    if missing:
        raise FormatError(f"tags of {opened.storage.url} are missing after the conversion: {missing!r:.200}")


def _history_for_target(work: Work, transfer: Transfer) -> WholeHistory:
    """The refs and commits of the target."""
    found, ids, ledger = work.survey, work.identities, work.target.ledger
    left_out = unrepresentable_refs(found, ledger)
    administration = found.administration if work.target.capabilities.repository_metadata else None
    return WholeHistory(
        snapshots=tuple(transfer.infos.values()),
        branches={n: ids.file(tip) for n, tip in found.refs.branches.items() if ("branch", n) not in left_out},
        tags={n: ids.file(target) for n, target in found.refs.tags.items() if ("tag", n) not in left_out},
        deleted_tags=found.refs.deleted_tags if ledger.keeps_deleted_tags else frozenset(),
        config=None if found.config is None else encode_config(found.config),
        administration=administration,
        migrated_from=found.context.format.spec_version.number if work.same_root else None,
    )


async def finish_interrupted(target: Storage, present: SpecVersion, options: ConversionOptions) -> Conversion | None:
    """Remove old refs and the journal after a run in place that was interrupted after its last step."""
    journal = await find_journal(target)
    if journal is None or journal.target is not present:
        return None
    if not options.keep_source:
        await remove_generation(target, journal.source, journal.target)
    await delete_journal(target)
    context = await open_context(target, None, {})
    found = await survey(context)
    request = ConversionRequest(context, target, present, ConversionOptions(), in_place=True)
    described = _describe(request, found, ())
    return replace(described, from_version=journal.source, repository=Repository(context))


async def check_target(target: Storage, version: SpecVersion) -> None:
    """Check that the target is empty or contains an interrupted run of the same conversion."""
    found = await find_spec_version(target)
    journal = await find_journal(target)
    if journal is not None:
        if journal.target is not version or found not in (None, version):
            raise other_conversion(target, journal)
        return
    if found is not None:
        raise RepositoryExistsError(f"there is a repository of generation {found.value!r} at {target.url} already")
    if not await target.is_empty():
        raise RepositoryExistsError(f"{target.url} contains other objects. Choose an empty location")


async def check_in_place(request: ConversionRequest) -> tuple[Loss, ...]:
    """Check that a conversion in place is possible, and return its losses. Nothing is written."""
    await request.context.ledger.check_convertible()
    if request.options.keep_source and not takes_precedence(request.version, request.present):
        raise InvalidInputError(
            f"{request.present.value!r} cannot be kept beside {request.version.value!r}, because the repository would "
            "still open as the old generation. Convert it to another location"
        )
    journal = await find_journal(request.storage)
    ours = {request.present} if journal is None else {request.present, journal.source, journal.target}
    others = await find_generations(request.storage) - ours
    if others:
        listed = ", ".join(repr(version.value) for version in sorted(others))
        raise UnsupportedError(
            f"{request.storage.url} also contains refs of {listed} from an earlier conversion. Remove them first"
        )
    losses = await _find_all_losses(request, await survey(request.context))
    check_losses(losses, request.options.drop, request.version)
    return losses


async def _find_all_losses(request: ConversionRequest, found: Survey) -> tuple[Loss, ...]:
    """What the target, or the intermediate generation, cannot store."""
    losses: tuple[Loss, ...] = ()
    between = find_bridge(request.present, request.version) if request.in_place else None
    for version in (request.version,) if between is None else (request.version, between):
        target = replace(request, version=version).target(found.config)
        losses = join_losses(losses, await find_losses(found, target.format, target.ledger))
    return losses


def _describe(request: ConversionRequest, found: Survey, losses: tuple[Loss, ...]) -> Conversion:
    return Conversion(
        source=request.context.storage.url,
        target=request.storage.url,
        from_version=request.present,
        to_version=request.version,
        branches=len(found.refs.branches),
        tags=len(found.refs.tags),
        snapshots=len(found.history),
        manifests=len(found.manifests),
        losses=losses,
    )


async def _finished(
    request: ConversionRequest, found: Survey, losses: tuple[Loss, ...], transfer: Transfer | None
) -> Conversion:
    opened = await open_context(request.storage, None, request.context.authorized)
    described = replace(_describe(request, found, losses), repository=Repository(opened))
    if transfer is None:
        return described
    chunks = transfer.chunks
    return replace(
        described,
        chunk_objects=chunks.objects,
        copied_objects=chunks.copied,
        copied_bytes=chunks.copied_bytes,
    )


NEWEST_OFFICIAL = SpecVersion.current()


async def convert_async(
    source: Repository | StorageLike,
    target: StorageLike,
    to: SpecVersion | str | int,
    *,
    drop: Iterable[LossKind | str] = (),
    verify: Verify | str = Verify.SPOT,
    progress: Report | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Convert a repository to another generation, at another location.

    Branches, tags, history and virtual references are kept. The source does not change. Chunks are copied. The same
    call finishes an interrupted run. The target becomes a repository only after everything is written and compared
    with the source.

    Parameters
    ----------
    source
        A repository, its storage, or its path or URL.
    target
        An empty location. Use `upgrade` to convert a repository in place.
    to
        The new generation: "repository", "icechunk2", ...
    drop
        What may be lost if the new generation cannot store it, see `LossKind`. Anything else that the new generation
        cannot store raises UnsupportedError before anything is written.
    verify
        What to compare. "model" compares every snapshot, node and reference. "spot" also compares the bytes of some
        chunk objects, "all" those of every chunk object.
    progress
        Called with the name of a stage, the number of finished steps, and the number of all steps.
    dry_run
        Only return the plan. Do not write.

    Returns
    -------
    Conversion
        What was converted, and the new repository.

    Raises
    ------
    InvalidInputError
        The target is the source, or an argument is wrong.
    AlreadyExistsError
        The target is not empty.
    UnsupportedError
        The new generation cannot store something that is not in `drop`. Nothing was written.
    ConflictError
        The branches of the source kept changing, or the target contains another unfinished conversion.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="t", shape=3, dtype="f4")
    >>> done = icefloe.convert(repo, icefloe.in_memory_storage(), "icechunk2")
    >>> [info.message for info in done.repository.ancestry(branch="main")]
    ['data', 'Repository initialized']
    """
    options = ConversionOptions(parse_drops(drop), _parse_verify(verify))
    version, storage = parse_spec_version(to), resolve_storage(target)
    context = await _open(source)
    if storage == context.storage:
        raise InvalidInputError(f"{storage.url} is the source itself. Use upgrade(...) or `icefloe convert --in-place`")
    await check_target(storage, version)
    request = ConversionRequest(context, storage, version, options, in_place=False)
    return await (plan(request) if dry_run else run_conversion(request, Progress(progress)))


convert = blocking_function(convert_async)


async def upgrade_async(
    repository: Repository | StorageLike,
    to: SpecVersion | str | int = NEWEST_OFFICIAL,
    *,
    drop: Iterable[LossKind | str] = (),
    verify: Verify | str = Verify.SPOT,
    keep_source: bool = False,
    progress: Report | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Convert a repository to another generation in place.

    Chunks are not copied if both generations find them under the same names. Stop all writers first. The last step is
    one request. Before it, the repository opens as the old generation, after it as the new one. Then the old refs are
    removed, unless `keep_source` is set. Old snapshots and manifests stay until garbage collection deletes them.

    Parameters
    ----------
    repository
        A repository, its storage, or its path or URL.
    to
        The new generation: "repository", "icechunk2", ...
    drop
        What may be lost if the new generation cannot store it, see `convert`.
    verify
        What to compare, see `convert`.
    keep_source
        Keep the refs of the old generation. This is only possible if the repository then opens as the new generation.
    progress
        Called with the name of a stage, the number of finished steps, and the number of all steps.
    dry_run
        Only return the plan. Do not write.

    Returns
    -------
    Conversion
        What was converted, and the new repository.

    Raises
    ------
    InvalidInputError
        An argument is wrong.
    UnsupportedError
        The new generation cannot store something that is not in `drop`. Nothing was written.
    ConflictError
        The branches of the repository kept changing.

    Examples
    --------
    >>> import icefloe
    >>> storage = icefloe.in_memory_storage()
    >>> repo = icefloe.Repository.create(storage, spec_version="icechunk1")
    >>> icefloe.upgrade(repo, "icechunk2").to_version.value
    'icechunk2'
    """
    options = ConversionOptions(parse_drops(drop), _parse_verify(verify), keep_source)
    version = parse_spec_version(to)
    storage = repository.storage if isinstance(repository, Repository) else resolve_storage(repository)
    context = await _open(repository)
    if context.storage != storage:
        raise UnsupportedError(
            f"the files of {storage.url} are in several locations or in an early form. Convert it to another location"
        )
    finished = None if dry_run else await finish_interrupted(storage, context.format.spec_version, options)
    if context.format.spec_version is version:
        if finished is None:
            raise InvalidInputError(f"{storage.url} is of generation {version.value!r} already")
        return finished
    request = ConversionRequest(context, storage, version, options, in_place=True)
    if dry_run:
        return await plan(request)
    losses = await check_in_place(request)
    between = find_bridge(context.format.spec_version, version)
    if between is not None:
        # The refs of both have the same names. The repository is of a third generation while they are replaced.
        await run_conversion(replace(request, version=between), Progress(progress))
        request = replace(request, context=await open_context(storage, None, context.authorized))
        done = await run_conversion(request, Progress(progress))
        return replace(done, losses=losses)
    return await run_conversion(request, Progress(progress))


upgrade = blocking_function(upgrade_async)


def _parse_verify(given: Verify | str) -> Verify:
    try:
        return Verify(given)
    except ValueError as error:
        raise InvalidInputError(f"verify={given!r}: expected 'model', 'spot' or 'all'") from error


async def _open(source: Repository | StorageLike) -> RepositoryContext:
    if isinstance(source, Repository):
        return source.context
    return await open_context(resolve_storage(source), None, {})


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Convert a repository to the newest official generation in place, and return it.

    Stop all other users first. Do not use the given repository afterwards.

    Parameters
    ----------
    repo
        The repository.
    dry_run
        Only check that the conversion is possible.
    delete_unused_v1_files
        Remove refs and configuration of the old generation.
    prefetch_concurrency
        Accepted for compatibility. It has no effect.

    Returns
    -------
    Repository
        The converted repository. The given one for a dry run.

    Raises
    ------
    InvalidInputError
        The repository is of the newest official generation already.
    UnsupportedError
        The new generation cannot store something. Nothing was written.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk1")
    >>> icefloe.upgrade_icechunk_repository(repo, dry_run=False).spec_version.value
    'icechunk2'
    """
    if repo.spec_version is NEWEST_OFFICIAL:
        raise InvalidInputError(f"{repo.storage.url} is of generation {repo.spec_version.value!r} already")
    done = upgrade(repo, NEWEST_OFFICIAL, keep_source=not delete_unused_v1_files, dry_run=dry_run)
    return repo if done.repository is None else done.repository
