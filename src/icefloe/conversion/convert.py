"""Convert a repository from one generation to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from icefloe.blocking import run_blocking
from icefloe.conversion.steps import (
    Conversion,
    ConversionOptions,
    ConversionRequest,
    carry_out,
    check_in_place,
    check_target,
    finish_interrupted,
    plan,
)
from icefloe.conversion.survey import LossKind, parse_drops
from icefloe.conversion.transfer import Progress, Report, Verify
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ledger.switch_generation import shares_refs
from icefloe.model.capabilities import SpecVersion
from icefloe.repository import Repository
from icefloe.session.open_repository import RepositoryParts, open_engine, parse_spec_version
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage

Place = Storage | str | Path


def convert(
    source: Repository | Place,
    target: Place,
    to: SpecVersion | str | int,
    *,
    drop: Iterable[LossKind | str] = (),
    verify: Verify | str = Verify.SPOT,
    progress: Report | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Make a repository of another generation out of one, with all branches, tags, history and virtual references.

    The source stays as it is. Chunks are copied. A run that was interrupted is finished by the same call. Nobody finds
    a repository at the target before all of it is there and was compared with the source.

    Parameters
    ----------
    source
        A repository, or where it is.
    target
        An empty place. For the place of the source itself, see `upgrade`.
    to
        The generation to make: "repository", "icechunk2", ...
    drop
        What may be lost where the new generation has no place for it (see `LossKind`); anything else that does not fit
        is an UnsupportedError before anything is written.
    verify
        "model" compares every snapshot, node and reference, "spot" also the bytes of some chunk objects, "all" those of
        every one.
    progress
        Called with the name of a stage, how many of its steps are done, and how many there are.
    dry_run
        Only look, and tell what would be done.

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
    return run_blocking(convert_async(source, target, to, options, progress, dry_run=dry_run))


def upgrade(
    repository: Repository | Place,
    to: SpecVersion | str | int = SpecVersion.ICECHUNK2,
    *,
    drop: Iterable[LossKind | str] = (),
    verify: Verify | str = Verify.SPOT,
    keep_source: bool = False,
    progress: Report | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Bring a repository to another generation where it is; chunks stay where both generations can find them.

    Nobody else may write to it meanwhile. Until the very last step, which is one request, the old generation is found
    there, whole; from then on the new one. Old refs are removed afterwards unless `keep_source` is set; old snapshots
    and manifests stay until garbage is collected.
    """
    options = ConversionOptions(parse_drops(drop), _parse_verify(verify), keep_source)
    return run_blocking(upgrade_async(repository, to, options, progress, dry_run=dry_run))


def _parse_verify(given: Verify | str) -> Verify:
    try:
        return Verify(given)
    except ValueError as error:
        raise InvalidInputError(f"verify={given!r}: expected 'model', 'spot' or 'all'") from error


async def convert_async(
    source: Repository | Place,
    target: Place,
    to: SpecVersion | str | int,
    options: ConversionOptions | None = None,
    progress: Report | None = None,
    *,
    dry_run: bool = False,
) -> Conversion:
    """`convert`, awaited."""
    options = options or ConversionOptions()
    version, place = parse_spec_version(to), resolve_storage(target)
    engine = await _open(source)
    if place == engine.storage:
        raise InvalidInputError(
            f"{place.url} is the source itself; upgrade(...) (on the command line: --in-place) converts it where it is"
        )
    await check_target(place, version)
    request = ConversionRequest(engine, place, version, options, in_place=False)
    return await (plan(request) if dry_run else carry_out(request, Progress(progress)))


async def upgrade_async(
    repository: Repository | Place,
    to: SpecVersion | str | int = SpecVersion.ICECHUNK2,
    options: ConversionOptions | None = None,
    progress: Report | None = None,
    *,
    dry_run: bool = False,
) -> Conversion:
    """`upgrade`, awaited."""
    options = options or ConversionOptions()
    version = parse_spec_version(to)
    place = repository.storage if isinstance(repository, Repository) else resolve_storage(repository)
    engine = await _open(repository)
    if engine.storage != place:
        raise UnsupportedError(
            f"the files of {place.url} are in several places or in an early form; convert it to another place"
        )
    finished = None if dry_run else await finish_interrupted(place, engine.format.spec_version, options)
    if engine.format.spec_version is version:
        if finished is None:
            raise InvalidInputError(f"{place.url} is of generation {version.value!r} already")
        return finished
    request = ConversionRequest(engine, place, version, options, in_place=True)
    if dry_run:
        return await plan(request)
    losses = await check_in_place(request)
    if shares_refs(engine.format.spec_version, version):
        # Their refs have the same names. The one file of icechunk2 stands in for them while they are exchanged.
        bridge = ConversionRequest(engine, place, SpecVersion.ICECHUNK2, options, in_place=True)
        await carry_out(bridge, Progress(progress))
        request = replace(request, engine=await open_engine(place, None, engine.authorized))
        done = await carry_out(request, Progress(progress))
        return replace(done, losses=losses)
    return await carry_out(request, Progress(progress))


async def _open(source: Repository | Place) -> RepositoryParts:
    if isinstance(source, Repository):
        return source.engine
    return await open_engine(resolve_storage(source), None, {})


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Bring a repository to the newest official generation where it is; returns the upgraded repository.

    Nobody else may use it meanwhile. The given repository must not be used afterwards.

    Parameters
    ----------
    dry_run
        Only check that it can be done.
    delete_unused_v1_files
        Remove refs and configuration of the old generation.
    prefetch_concurrency
        Accepted for the sake of scripts; reads are scheduled by the library.
    """
    if repo.spec_version is SpecVersion.current():
        raise InvalidInputError(f"{repo.storage.url} is of generation {repo.spec_version.value!r} already")
    done = upgrade(repo, SpecVersion.current(), keep_source=not delete_unused_v1_files, dry_run=dry_run)
    return repo if done.repository is None else done.repository
