"""The specification's JSON schemas, as shipped with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Literal


def load_schema(name: Literal["reference", "snapshot", "manifest"]) -> dict[str, Any]:
    """The schema of one type of file."""
    text = resources.files("icefloe.formats.store").joinpath(f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
