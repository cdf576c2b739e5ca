"""A repository as its user sees it.

`Repository` is one class made of doors, each a mixin that needs nothing but `self._engine`: `RefsDoor` (branches and
tags) and `HistoryDoor` (ancestry, graph, diff) live here; a lower room that offers verbs of its own keeps its door
there (`icefloe.<room>.door`) and is listed among the bases in `repository.py`.
"""

from icefloe.repository.repository import Repository

__all__ = ["Repository"]
