"""Which names a branch or tag may have."""

from __future__ import annotations

from icefloe.errors import InvalidInputError
from icefloe.model.paths import check_unicode

MAIN = "main"
_MAX_BYTES = 200
"""Names are parts of file names, with something before and behind them."""


def check_new_name(name: str, what: str) -> str:
    """A name for a branch or tag that is about to be made."""
    check_name(name, what)
    if any(ord(symbol) < 32 or ord(symbol) == 127 for symbol in name):
        raise InvalidInputError(f"{name!r} is not a {what} name: control characters are not allowed")
    if len(name.encode("utf-8", "replace")) > _MAX_BYTES:
        raise InvalidInputError(f"a {what} name of {len(name)} characters; at most {_MAX_BYTES} bytes are allowed")
    return name


def check_name(name: str, what: str) -> str:
    """A name that may exist already: other writers allow more than we do."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"a {what} needs a name, found {name!r}")
    check_unicode(name, f"the {what} name")
    if "/" in name:
        raise InvalidInputError(f"{name!r} is not a {what} name: `/` is not allowed")
    return name
