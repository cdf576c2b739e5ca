"""Convert a repository from one generation to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from icefloe.blocking import blocking_function
from icefloe.conversion.steps import (
    Conversion,
    ConversionOptions,
    ConversionRequest,
    check_in_place,
    check_target,
    finish_interrupted,
    plan,
    run_conversion,
)
from icefloe.conversion.survey import LossKind, parse_drops
from icefloe.conversion.transfer import Progress, Report, Verify
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ledger.generations import find_bridge
from icefloe.model.capabilities import SpecVersion
from icefloe.repository import Repository
from icefloe.session.open_repository import RepositoryContext, open_context, parse_spec_version
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import StorageLike

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
