"""Writers of both libraries commit to one repository on a real object store at the same time: none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import zarr
from tests.formats.hand_made import GROUP_DOCUMENT, HandMade, group_node
from tests.servers.s3 import S3Server

from icefloe.errors import ConflictError
from icefloe.ids import new_node_id, new_object_id
from icefloe.model.snapshot import GroupNode, Snapshot, TransactionLog, later_than
from icefloe.storage.build import s3_storage

icechunk = pytest.importorskip("icechunk")
OFFICIAL = int(icechunk.__version__.split(".")[0])
pytestmark = [pytest.mark.compat, pytest.mark.s3]


@pytest.fixture(params=["ministack", "seaweedfs"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


def official(options: dict[str, Any]) -> Any:
    return icechunk.Repository.open(icechunk.s3_storage(**options))


async def commit_ours(repo: HandMade, name: str) -> None:
    """A new group, on top of whatever the branch holds by then."""
    while True:
        tip = await repo.ledger.fetch_tip("main")
        base = await repo.metadata_files.fetch_snapshot(tip.snapshot_id)
        node = GroupNode(new_node_id(), f"/{name}", GROUP_DOCUMENT)
        nodes = {**base.nodes, node.path: node}
        snapshot = Snapshot(
            new_object_id(),
            tip.snapshot_id,
            later_than(base.written_at),
            name,
            {},
            dict(sorted(nodes.items(), key=lambda item: item[0].encode())),
            base.manifests,
        )
        await repo.metadata_files.write_snapshot(snapshot)
        await repo.metadata_files.write_transaction_log(snapshot.id, TransactionLog(new_groups=frozenset([node.id])))
        try:
            await repo.ledger.advance("main", tip, snapshot)
        except ConflictError:
            continue
        return


def commit_theirs(options: dict[str, Any], names: list[str]) -> None:
    repo = official(options)
    for name in names:
        session = repo.writable_session("main")
        zarr.create_group(session.store, path=name, zarr_format=3)
        session.commit(name, rebase_with=icechunk.ConflictDetector(), rebase_tries=100)


@pytest.mark.parametrize("spec", [1] if OFFICIAL < 2 else [1, 2])
async def test_concurrent_commits_of_both_libraries_are_all_kept(server: S3Server, spec: int) -> None:
    options = server.storage_options(server.make_bucket())
    repo = HandMade.at(s3_storage(**options), spec)
    await repo.create()
    root = group_node("/")
    await repo.commit("root", [root], [], TransactionLog(new_groups=frozenset([root.id])))

    async def write_ours(writer: int) -> None:
        mine = HandMade.at(s3_storage(**options), spec)
        for number in range(4):
            await commit_ours(mine, f"ours-{writer}-{number}")

    theirs = [
        asyncio.to_thread(commit_theirs, options, [f"theirs-{writer}-{number}" for number in range(4)])
        for writer in range(2)
    ]
    await asyncio.gather(*theirs, *(write_ours(writer) for writer in range(2)))
    expected = {f"{who}-{writer}-{number}" for who in ("ours", "theirs") for writer in range(2) for number in range(4)}
    tip = (await repo.ledger.fetch_tip("main")).snapshot_id
    messages = [info.message async for info in repo.ledger.ancestry(tip)]
    assert sorted(messages) == sorted([*expected, "root", "Repository initialized"])
    assert messages == [info.message for info in official(options).ancestry(branch="main")]
    groups = zarr.open_group(official(options).readonly_session("main").store, mode="r")
    assert set(groups.group_keys()) == expected
    assert set((await repo.metadata_files.fetch_snapshot(tip)).nodes) == {"/", *(f"/{name}" for name in expected)}
