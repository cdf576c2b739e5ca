"""One tree of errors serves `icefloe` and `icefloe.icechunk`: the classes, codes and situations of the official one."""

from __future__ import annotations

import datetime as dt
import inspect
import pickle

import pytest
import zarr

import icefloe
from icefloe import errors, icechunk
from icefloe.errors import ErrorKind

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.IcefloeError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_shows_its_text_has_a_code_and_pickles(cls: type[errors.IcefloeError]) -> None:
    error = cls(message="no array 'a'", path="/a")
    assert str(error) == error.message == "no array 'a'"
    assert error.kind in ErrorKind and error.kind == str(error.kind)
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is cls and (twin.message, twin.kind, twin.path) == (error.message, error.kind, "/a")


@pytest.mark.compat
def test_the_tree_and_the_codes_are_those_of_the_official_package() -> None:
    official = pytest.importorskip("icechunk", minversion="2.3")
    theirs = {kind.name: kind.value for kind in official.ErrorKind}
    assert theirs.items() <= {kind.name: kind.value for kind in ErrorKind}.items()
    found = {name: cls for name, cls in vars(official).items() if inspect.isclass(cls) and issubclass(cls, Exception)}
    assert len(found) > 12
    for name, cls in found.items():
        above = {base.__name__ for base in cls.__mro__}
        ours = getattr(errors, name).__mro__
        assert above - {base.__name__ for base in ours} <= {"IcechunkError"}, name


@pytest.fixture(params=["repository", "icechunk1", "icechunk2"])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    with repo.transaction("main", message="first") as store:
        group = zarr.create_group(store)
        group.create_array("a", shape=4, chunks=2, dtype="i4")
        group.create_group("b")
    return repo


def test_each_situation_has_the_class_and_code_of_the_official_package(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)
    repo.create_branch("dev", tip)

    def expect(cls: type[Exception], kind: str, call: str, *args: object, **kwargs: object) -> None:
        owner: object = repo
        for part in call.split(".")[:-1]:
            owner = getattr(owner, part)()
        with pytest.raises(cls) as found:
            getattr(owner, call.rpartition(".")[2])(*args, **kwargs)
        assert isinstance(found.value, errors.IcefloeError) and found.value.kind == kind

    expect(errors.RefNotFoundError, "ref-not-found", "lookup_branch", "nothing")
    expect(KeyError, "ref-not-found", "lookup_tag", "nothing")
    expect(errors.InvalidInputError, "invalid-snapshot-id", "readonly_session", snapshot_id="no id")
    expect(errors.SnapshotNotFoundError, "snapshot-not-found", "readonly_session", snapshot_id="0" * 20)
    expect(errors.AlreadyExistsError, "tag-already-exists", "create_tag", "v1", tip)
    expect(errors.AlreadyExistsError, "branch-already-exists", "create_branch", "dev", tip)
    expect(errors.SessionStateError, "cannot-delete-main", "delete_branch", "main")
    expect(errors.SessionStateError, "cannot-fork-read-only-session", "readonly_session.fork")
    expect(errors.SessionStateError, "commit-not-allowed", "readonly_session.commit", "no")
    expect(errors.SessionStateError, "commit-not-allowed", "readonly_session.rebase", icefloe.ConflictDetector())
    with pytest.raises(errors.InvalidInputError) as taken:
        icefloe.Repository.create(repo.storage)
    assert isinstance(taken.value, errors.AlreadyExistsError)

    session = repo.writable_session("main")
    with pytest.raises(errors.SessionStateError) as empty:
        session.commit("nothing")
    assert empty.value.kind == ErrorKind.NO_CHANGES_TO_COMMIT
    with pytest.raises(errors.AlreadyExistsError) as occupied:
        session.move("/a", "/b")
    assert occupied.value.kind == ErrorKind.MOVE_WONT_OVERWRITE
    with pytest.raises(errors.SessionStateError) as inside:
        session.move("/b", "/b/c")
    assert inside.value.kind == ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT
    with pytest.raises(KeyError):
        session.move("/nothing", "/c")


def test_a_failed_rebase_is_a_conflict_that_lists_what_conflicts(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_group(session.store).attrs["who"] = "us"
    with repo.transaction("main", message="others") as store:
        zarr.open_group(store).attrs["who"] = "they"
    with pytest.raises(errors.ConflictError) as conflict:
        session.commit("ours")
    assert conflict.value.kind == ErrorKind.COMMIT_CONFLICT and conflict.value.expected_parent
    with pytest.raises(errors.ConflictError) as failed:
        session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert isinstance(failed.value, errors.RebaseFailedError) and len(failed.value.conflicts) == 1
    assert failed.value.kind == ErrorKind.REBASE_FAILED


def test_misuse_raises_the_classes_and_kinds_of_the_official_package() -> None:
    old = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=1)
    new = icechunk.Repository.create(icechunk.in_memory_storage())
    with new.transaction("main", message="a group") as store:
        zarr.create_group(store)
    session, reader = new.writable_session("main"), new.readonly_session("main")
    for attempt, expected, kind in (
        (old.get_metadata, icechunk.FormatError, "unsupported-spec-version"),
        (lambda: list(old.ops_log()), icechunk.FormatError, "unsupported-spec-version"),
        (lambda: old.writable_session("main").amend("x"), icechunk.FormatError, "unsupported-spec-version"),
        (lambda: session.shift_array("/", (1,)), icechunk.InvalidInputError, "not-an-array"),
        (lambda: session.fork().rebase(icechunk.ConflictDetector()), icechunk.SessionStateError, "commit-not-allowed"),
        (lambda: reader.commit("x"), icechunk.SessionStateError, "commit-not-allowed"),
        (lambda: reader.rebase(icechunk.ConflictDetector()), icechunk.SessionStateError, "commit-not-allowed"),
        (
            lambda: new.readonly_session("main", as_of=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)),
            icechunk.SnapshotNotFoundError,
            "no-snapshot-at-time",
        ),
        (lambda: new.set_feature_flag("none", True), icechunk.InvalidInputError, "invalid-feature-flag"),
        (
            lambda: icechunk.upgrade_icechunk_repository(new, dry_run=True),
            icechunk.SessionStateError,
            "invalid-repository-migration",
        ),
    ):
        with pytest.raises(expected) as raised:
            attempt()
        assert raised.value.kind == kind
