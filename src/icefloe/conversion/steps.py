"""The steps of a conversion: survey, plan, write, compare, and then switch to the new generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from icefloe.conversion.survey import (
    Loss,
    LossKind,
    Survey,
    check_losses,
    fetch_refs,
    find_losses,
    fitting,
    join_losses,
    survey,
    unspeakable_refs,
)
from icefloe.conversion.transfer import Progress, Transfer, Verification, Verify, Work
from icefloe.conversion.translate import plan_identities, shares_names
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    UnsupportedError,
)
from icefloe.formats.config_document import encode_config
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.ledger.switch_generation import (
    JOURNAL_KEY,
    WholeHistory,
    find_generations,
    import_history,
    keeps_deleted_tags,
    remove_generation,
    remove_generation_name,
    shares_refs,
    takes_precedence,
)
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.session.open_repository import RepositoryParts, build_engine, find_spec_version, open_engine
from icefloe.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class Journal:
    """Which conversion is under way, and the numbers it gave to nodes."""

    source: SpecVersion
    target: SpecVersion
    root: ObjectId
    """The first snapshot of the source's history."""
    dropped: tuple[str, ...] = ()
    node_numbers: Mapping[NodeId, int] = field(default_factory=dict)
    salt: str = ""
    """What the names of new files are derived with, where files of an earlier conversion have the plain names."""

    def is_same_work(self, other: Journal) -> bool:
        """Whether another run does the same thing."""
        return (self.source, self.target, self.root, self.dropped) == (
            other.source,
            other.target,
            other.root,
            other.dropped,
        )

    def encode(self) -> bytes:
        document = {
            "what": "a conversion is under way here; `icefloe convert` with the same source and target finishes it",
            "from": self.source.value,
            "to": self.target.value,
            "root": self.root,
            "dropped": list(self.dropped),
            "salt": self.salt,
            "node_numbers": {node.hex(): number for node, number in self.node_numbers.items()},
        }
        return json.dumps(document, indent=1).encode()


def parse_journal(data: bytes) -> Journal:
    """The journal of bytes."""
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
        raise FormatError(f"{JOURNAL_KEY} does not tell of a conversion: {error!r}") from error


async def find_journal(storage: Storage) -> Journal | None:
    """The conversion that is under way at a place, if any."""
    try:
        return parse_journal(await storage.get(JOURNAL_KEY))
    except ObjectNotFoundError:
        return None


async def keep_journal(storage: Storage, journal: Journal) -> None:
    """Begin a conversion, or go on with the same one; ConflictError when another one is under way."""
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
    """Somebody began something else here."""
    return ConflictError(
        f"{storage.url} holds an unfinished conversion of {known.source.value!r} (first snapshot {known.root}) to "
        f"{known.target.value!r}; finish that one, or delete {JOURNAL_KEY} and everything it left",
        expected_parent=None,
        actual_parent=known.root,
    )


async def end_journal(storage: Storage) -> None:
    """The conversion is done."""
    await storage.delete([JOURNAL_KEY])


_ROUNDS = 10
"""How often a source that others write to is followed before the conversion gives up."""


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How a conversion is done."""

    drop: frozenset[LossKind] = frozenset()
    verify: Verify = Verify.SPOT
    keep_source: bool = False
    """In place: leave the refs of the old generation where they are, if both can stand beside each other."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did, or would do when it was only planned."""

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
    """Objects that hold chunks, copied or shared."""
    copied_objects: int = 0
    copied_bytes: int = 0
    repository: Repository | None = field(default=None, compare=False, repr=False)
    """The converted repository; None when it was only planned."""


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """What is to be made of what, and where."""

    engine: RepositoryParts
    place: Storage
    version: SpecVersion
    options: ConversionOptions
    in_place: bool

    @property
    def present(self) -> SpecVersion:
        return self.engine.format.spec_version

    @property
    def shares_files(self) -> bool:
        """Whether the new generation reads the files of the old one as they are."""
        return self.in_place and (self.present, self.version) == (SpecVersion.ICECHUNK1, SpecVersion.ICECHUNK2)

    def target(self, config: RepositoryConfig | None) -> RepositoryParts:
        """The parts of the repository that is being made."""
        return build_engine(self.place, self.version, config or RepositoryConfig.default(), self.engine.authorized)


async def plan(request: ConversionRequest) -> Conversion:
    """What a conversion would do; nothing is written."""
    found = await survey(request.engine)
    return _describe(request, found, await _losses_on_the_way(request, found))


async def carry_out(request: ConversionRequest, progress: Progress) -> Conversion:
    """Convert; whoever is interrupted does it again."""
    for _ in range(_ROUNDS):
        found = await survey(request.engine)
        target = request.target(found.config)
        losses = await find_losses(found, target.format, target.ledger)
        check_losses(losses, request.options.drop, request.version)
        if LossKind.COMMIT_WORDS in request.options.drop:
            found = replace(found, history=tuple(fitting(info, target.format) for info in found.history))
        work = await _begin(request, found, target)
        if not request.in_place and await find_spec_version(request.place) is request.version:
            await end_journal(request.place)
            return await _finished(request, found, losses, None)
        transfer = Transfer(work, progress)
        if request.shares_files:
            transfer.take_over()
        else:
            await transfer.run()
            await Verification(transfer, request.options.verify, progress).run()
        # Commits that were made meanwhile are carried over in another round; what is there already is left alone.
        if await fetch_refs(request.engine) == found.standing:
            await _land(request, work, transfer)
            return await _finished(request, found, losses, transfer)
    raise ConflictError(
        f"branches of {request.engine.storage.url} moved in each of {_ROUNDS} rounds; convert while nobody writes"
    )


async def _begin(request: ConversionRequest, found: Survey, target: RepositoryParts) -> Work:
    """Note in the target what is being done, before the first file is written."""
    known = await find_journal(request.place)
    salt = await _choose_salt(request, target) if known is None else known.salt
    identities = plan_identities(
        request.engine.format,
        target.format,
        same_root=request.in_place and not request.shares_files,
        nodes=found.nodes,
        known={} if known is None else known.node_numbers,
        salt=salt,
    )
    words = tuple(sorted(kind.value for kind in request.options.drop))
    journal = Journal(request.present, request.version, found.root, words, identities.node_numbers, salt)
    await keep_journal(request.place, journal)
    return Work(found, target, identities, request.options.drop, request.in_place)


async def _choose_salt(request: ConversionRequest, target: RepositoryParts) -> str:
    """Set where snapshots that the new generation left here when it was converted before are still around."""
    source = request.engine.format
    if not request.in_place or request.shares_files or shares_names(source, target.format):
        return ""
    left = await request.place.list_names(target.format.snapshots_folder)
    return f"{source.spec_version.value}>{request.version.value} {new_object_id()}" if left else ""


async def _land(request: ConversionRequest, work: Work, transfer: Transfer) -> None:
    """Let the new generation be found, and take the refs of the old one away."""
    history = _whole_history(work, transfer)
    try:
        await import_history(work.target.ledger, history, replace_leftovers=request.in_place)
    except AlreadyExistsError:
        if await find_spec_version(request.place) is not request.version:
            raise
    if request.in_place:
        await remove_generation_name(request.place, request.present)
    if request.in_place and not request.options.keep_source:
        await remove_generation(request.place, request.present, request.version)
    opened = await open_engine(request.place, None, request.engine.authorized)
    if opened.format.spec_version is not request.version:
        raise FormatError(
            f"{request.place.url} still opens as {opened.format.spec_version.value!r}; refs of that generation are left"
        )
    found = await fetch_refs(opened)
    if (found.branches, found.tags) != (history.branches, history.tags):
        raise FormatError(f"the refs of {request.place.url} are not those of the source: {found!r:.200}")
    await end_journal(request.place)


def _whole_history(work: Work, transfer: Transfer) -> WholeHistory:
    """Refs and commits as the target keeps them."""
    found, ids, ledger = work.survey, work.identities, work.target.ledger
    left_out = unspeakable_refs(found, ledger)
    administration = found.administration if work.target.capabilities.repository_metadata else None
    return WholeHistory(
        snapshots=tuple(transfer.infos.values()),
        branches={n: ids.file(tip) for n, tip in found.refs.branches.items() if ("branch", n) not in left_out},
        tags={n: ids.file(target) for n, target in found.refs.tags.items() if ("tag", n) not in left_out},
        deleted_tags=found.refs.deleted_tags if keeps_deleted_tags(ledger) else frozenset(),
        config=None if found.config is None else encode_config(found.config),
        administration=administration,
        migrated_from=found.engine.format.spec_version.number if work.same_root else None,
    )


async def finish_interrupted(place: Storage, present: SpecVersion, options: ConversionOptions) -> Conversion | None:
    """Tidy up after a run in place that ended between its last step and the tidying."""
    journal = await find_journal(place)
    if journal is None or journal.target is not present:
        return None
    if not options.keep_source:
        await remove_generation(place, journal.source, journal.target)
    await end_journal(place)
    engine = await open_engine(place, None, {})
    found = await survey(engine)
    request = ConversionRequest(engine, place, present, ConversionOptions(), in_place=True)
    described = _describe(request, found, ())
    return replace(described, from_version=journal.source, repository=Repository(engine))


async def check_target(place: Storage, version: SpecVersion) -> None:
    """A target is empty, or holds what an interrupted run left."""
    found = await find_spec_version(place)
    journal = await find_journal(place)
    if journal is not None:
        if journal.target is not version or found not in (None, version):
            raise other_conversion(place, journal)
        return
    if found is not None:
        raise AlreadyExistsError(f"there is a repository of generation {found.value!r} at {place.url} already")
    if not await place.is_empty():
        raise AlreadyExistsError(f"{place.url} holds other objects; choose an empty place")


async def check_in_place(request: ConversionRequest) -> tuple[Loss, ...]:
    """Whether one generation can take the place of another, and what is lost by it; nothing is written."""
    await request.engine.ledger.check_writable()
    if request.options.keep_source and not takes_precedence(request.version, request.present):
        raise InvalidInputError(
            f"{request.present.value!r} cannot be kept beside {request.version.value!r}: it would be the one that is "
            "found; convert to another place"
        )
    journal = await find_journal(request.place)
    ours = {request.present} if journal is None else {request.present, journal.source, journal.target}
    others = await find_generations(request.place) - ours
    if others:
        listed = ", ".join(repr(version.value) for version in sorted(others))
        raise UnsupportedError(
            f"{request.place.url} also holds refs of {listed}, left by an earlier conversion; remove them first"
        )
    losses = await _losses_on_the_way(request, await survey(request.engine))
    check_losses(losses, request.options.drop, request.version)
    return losses


async def _losses_on_the_way(request: ConversionRequest, found: Survey) -> tuple[Loss, ...]:
    """What does not fit into the target, nor, where that stands in for it meanwhile, into icechunk2."""
    losses: tuple[Loss, ...] = ()
    bridged = request.in_place and shares_refs(request.present, request.version)
    for version in (request.version, SpecVersion.ICECHUNK2) if bridged else (request.version,):
        target = replace(request, version=version).target(found.config)
        losses = join_losses(losses, await find_losses(found, target.format, target.ledger))
    return losses


def _describe(request: ConversionRequest, found: Survey, losses: tuple[Loss, ...]) -> Conversion:
    return Conversion(
        source=request.engine.storage.url,
        target=request.place.url,
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
    opened = await open_engine(request.place, None, request.engine.authorized)
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
