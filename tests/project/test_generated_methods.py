"""Public classes have one implementation of each method. The blocking form is made from the async form."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import pydoc
import typing
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import blocking as generator
from icefloe.blocking import awaitable, blocking, blocking_classmethod, blocking_staticmethod
from icefloe.session.session import ForkSession, Session
from icefloe.store import IcechunkStore

SOURCE = Path(generator.__file__).parent
PUBLIC = (icefloe.Repository, Session, ForkSession, IcechunkStore)
MODULES = [
    *sorted((SOURCE / "repository").glob("*.py")),
    SOURCE / "session/session.py",
    SOURCE / "session/session_chunks.py",
    SOURCE / "store.py",
]


def function_of(owner: type, name: str) -> Any:
    """Return the function of a method, a class method or a static method."""
    member = inspect.getattr_static(owner, name)
    return getattr(member, "__func__", member)


def pairs() -> list[Any]:
    """Return every public method that has an async form, with the name of that form."""
    found = {}
    for owner in PUBLIC:
        for name in dir(owner):
            blocking_name = name.removesuffix("_async").removeprefix("async_")
            if name != blocking_name and not name.startswith("_"):
                found[f"{owner.__name__}.{blocking_name}"] = (owner, blocking_name, name)
    return [pytest.param(*each, id=key) for key, each in found.items()]


def generated(function: Any) -> bool:
    return bool(function.__code__.co_filename == generator.__file__)


@pytest.mark.parametrize(("owner", "name", "async_name"), pairs())
def test_a_method_and_its_async_form_are_one_implementation(owner: type, name: str, async_name: str) -> None:
    plain, waiting = function_of(owner, name), function_of(owner, async_name)
    assert generated(plain) != generated(waiting), "exactly one of both is written by hand"
    assert (plain.__wrapped__ is waiting) if generated(plain) else (waiting.__wrapped__ is plain)
    kinds = [type(inspect.getattr_static(owner, each)) for each in (name, async_name)]
    assert kinds[0] is kinds[1]
    assert not inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(waiting) or inspect.isasyncgenfunction(waiting)


@pytest.mark.parametrize(("owner", "name", "async_name"), pairs())
def test_a_method_and_its_async_form_have_one_signature_and_one_docstring(
    owner: type, name: str, async_name: str
) -> None:
    plain, waiting = function_of(owner, name), function_of(owner, async_name)
    signatures = [inspect.signature(each) for each in (plain, waiting)]
    assert signatures[0].parameters == signatures[1].parameters
    if not inspect.isasyncgenfunction(waiting):
        assert signatures[0].return_annotation == signatures[1].return_annotation
    assert plain.__doc__ == waiting.__doc__ and plain.__doc__
    assert (plain.__name__, waiting.__name__) == (name, async_name)
    assert plain.__qualname__ == waiting.__qualname__.removesuffix(async_name) + name
    assert plain.__module__ == waiting.__module__
    assert f"{name}(" in pydoc.plain(pydoc.render_doc(getattr(owner, name)))


def test_no_public_method_runs_the_event_loop_in_a_body_of_its_own() -> None:
    by_hand = []
    for file in MODULES:
        for owner in [each for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)]:
            for method in [each for each in owner.body if isinstance(each, ast.FunctionDef)]:
                called = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
                # Pickles and the cards of notebooks have no async form.
                if called & {"run_blocking", "iterate_blocking"} and method.name not in (
                    "__getstate__",
                    "__setstate__",
                    "_card",
                ):
                    by_hand.append(f"{owner.name}.{method.name}")
    assert by_hand == []


class Shelf:
    """Methods of every kind."""

    def __init__(self, items: list[str]) -> None:
        self.items = items

    async def count_async(self, prefix: str, *, least: int = 0) -> int:
        """Count items."""
        await asyncio.sleep(0)
        return max(least, sum(item.startswith(prefix) for item in self.items))

    count = blocking(count_async)

    async def walk_async(self, step: int = 1) -> AsyncIterator[str]:
        """Walk over items."""
        for item in self.items[::step]:
            yield item

    walk = blocking(walk_async)

    @classmethod
    async def of_async(cls, *items: str) -> Shelf:
        """Make a shelf."""
        return cls(list(items))

    of = blocking_classmethod(of_async)

    @staticmethod
    async def join_async(*items: str) -> str:
        """Join items."""
        return "".join(items)

    join = blocking_staticmethod(join_async)

    def first(self) -> str:
        """Return the first item."""
        return self.items[0]

    first_async = awaitable(first)


class LongShelf(Shelf):
    """A subclass that overrides async methods only."""

    async def count_async(self, prefix: str, *, least: int = 0) -> int:
        return 100 + await super().count_async(prefix, least=least)


def test_every_kind_of_method_has_a_blocking_form() -> None:
    shelf = Shelf.of("a", "ab", "b")
    assert shelf.count("a") == 2
    assert shelf.count("x", least=5) == 5
    assert list(shelf.walk(step=2)) == ["a", "b"]
    assert Shelf.join("a", "b") == shelf.join("a", "b") == "ab"
    assert asyncio.run(shelf.first_async()) == "a"


def test_the_blocking_form_follows_a_subclass_that_overrides_the_async_form() -> None:
    shelf = LongShelf.of("a")
    assert type(shelf) is LongShelf
    assert shelf.count("a") == 101


def test_types_of_the_blocking_form_are_those_of_the_awaited_values() -> None:
    assert typing.get_type_hints(Shelf.count) == {"prefix": str, "least": int, "return": int}
    assert typing.get_type_hints(Shelf.walk)["return"] == Iterator[str]
    assert inspect.signature(Shelf.walk).return_annotation == Iterator["str"]
    assert typing.get_type_hints(Shelf.of)["return"] is Shelf
    assert typing.get_type_hints(icefloe.Repository.ancestry)["return"] == Iterator[icefloe.SnapshotInfo]


def test_wrong_arguments_are_reported_with_the_name_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"Shelf\.count\(\) missing 1 required positional argument: 'prefix'"):
        Shelf([]).count()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Shelf\.join\(\) got an unexpected keyword argument 'sep'"):
        Shelf.join("a", sep=",")  # type: ignore[call-arg]


def test_generated_methods_pickle() -> None:
    for method in (Shelf.count, Shelf.of, Shelf.join, Shelf.first_async):
        restored: Any = pickle.loads(pickle.dumps(method))
        assert restored == method
    bound: Any = pickle.loads(pickle.dumps(Shelf(["a"]).count))
    assert bound("a") == 1
