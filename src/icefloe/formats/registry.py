"""Which Format belongs to which generation."""

from __future__ import annotations

import importlib
from functools import cache

from icefloe.formats.contract import Format
from icefloe.model.capabilities import SpecVersion


@cache
def get_format(spec_version: SpecVersion) -> Format:
    """The Format of a generation.

    Every generation is a folder of its name that offers FORMAT; only those in use are loaded, because some bring
    large libraries with them.
    """
    module = importlib.import_module(f"icefloe.formats.{spec_version.value}")
    found: Format = module.FORMAT
    return found
