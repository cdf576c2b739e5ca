"""Whether a repository lets its writers use a feature."""

from __future__ import annotations

from icefloe.errors import SessionStateError
from icefloe.ledger.contract import Ledger
from icefloe.ledger.icechunk2 import Icechunk2Ledger


async def check_feature(ledger: Ledger, name: str) -> None:
    """SessionStateError where the repository has the feature switched off; others have no such switches."""
    if isinstance(ledger, Icechunk2Ledger) and (await ledger.fetch_flags()).get(name) is False:
        raise SessionStateError(
            f"the repository has the feature {name!r} switched off; repo.set_feature_flag({name!r}, None) allows it "
            "again",
            feature=name,
        )
