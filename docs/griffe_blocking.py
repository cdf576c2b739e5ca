"""A Griffe extension for the reference: the blocking methods that `icefloe.blocking` makes from the async ones."""

from __future__ import annotations

import copy
from typing import Any

import griffe


class BlockingMethods(griffe.Extension):
    """Shows `name = blocking(name_async)` as a method with the signature and the docstring of `name_async`."""

    def on_members(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Replace the attributes of a class or module that are made by `blocking` and its variants."""
        for name, member in list(obj.members.items()):
            if member.is_alias or not member.is_attribute or not isinstance(member.value, griffe.ExprCall):
                continue
            if not str(member.value.function).startswith("blocking"):
                continue
            source = obj.members.get(str(member.value.arguments[0]))
            if source is not None and not source.is_alias and source.is_function:
                made = copy.copy(source)
                made.name, made.parent, made.labels = name, obj, source.labels - {"async"}
                if source.docstring is not None:
                    text = source.docstring
                    made.docstring = griffe.Docstring(text.value, lineno=text.lineno, parent=made)
                obj.members[name] = made
