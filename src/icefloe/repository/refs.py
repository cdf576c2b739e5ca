"""Branches and tags of a repository, as its user sees them."""

from __future__ import annotations

from icefloe.blocking import run_blocking
from icefloe.ids import ObjectId
from icefloe.session.engine import Engine


class RefsDoor:
    """The part of `Repository` that names snapshots."""

    _engine: Engine

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """A new branch at a snapshot; AlreadyExistsError when the name is taken."""
        run_blocking(self.create_branch_async(branch, snapshot_id))

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """`create_branch`, awaited."""
        await self._engine.check_writable()
        await self._engine.archive.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.create_branch(branch, snapshot_id)

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return run_blocking(self.list_branches_async())

    async def list_branches_async(self) -> set[str]:
        """`list_branches`, awaited."""
        return await self._engine.ledger.list_branches()

    def lookup_branch(self, branch: str) -> ObjectId:
        """The snapshot at which a branch stands."""
        return run_blocking(self.lookup_branch_async(branch))

    async def lookup_branch_async(self, branch: str) -> ObjectId:
        """`lookup_branch`, awaited."""
        return (await self._engine.ledger.fetch_tip(branch)).snapshot_id

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Point a branch at another snapshot, if it is still at `from_snapshot_id` when that is given."""
        run_blocking(self.reset_branch_async(branch, snapshot_id, from_snapshot_id=from_snapshot_id))

    async def reset_branch_async(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """`reset_branch`, awaited."""
        await self._engine.archive.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.reset_branch(branch, snapshot_id, from_snapshot_id)

    def delete_branch(self, branch: str) -> None:
        """Remove a branch; its snapshots stay until they are collected. `main` cannot be removed."""
        run_blocking(self.delete_branch_async(branch))

    async def delete_branch_async(self, branch: str) -> None:
        """`delete_branch`, awaited."""
        await self._engine.ledger.delete_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """A name for a snapshot that never moves."""
        run_blocking(self.create_tag_async(tag, snapshot_id))

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """`create_tag`, awaited."""
        await self._engine.check_writable()
        await self._engine.archive.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.create_tag(tag, snapshot_id)

    def list_tags(self) -> set[str]:
        """Names of all tags."""
        return run_blocking(self.list_tags_async())

    async def list_tags_async(self) -> set[str]:
        """`list_tags`, awaited."""
        return await self._engine.ledger.list_tags()

    def lookup_tag(self, tag: str) -> ObjectId:
        """The snapshot a tag names."""
        return run_blocking(self.lookup_tag_async(tag))

    async def lookup_tag_async(self, tag: str) -> ObjectId:
        """`lookup_tag`, awaited."""
        return await self._engine.ledger.fetch_tag(tag)

    def delete_tag(self, tag: str) -> None:
        """Remove a tag, where the generation allows it; the name cannot be used again."""
        run_blocking(self.delete_tag_async(tag))

    async def delete_tag_async(self, tag: str) -> None:
        """`delete_tag`, awaited."""
        await self._engine.ledger.delete_tag(tag)
