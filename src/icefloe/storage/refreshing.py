"""Credentials that a function of the user renews, which travel to workers with it."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import pickle
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from icefloe.errors import InvalidInputError

try:
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    cloudpickle = None


class Expiring(Protocol):
    """Anything that is valid for some time, or for ever."""

    @property
    def expires_after(self) -> dt.datetime | None: ...


E = TypeVar("E", bound=Expiring)


class RefreshableCredentials(Generic[E]):
    """Credentials that `get_credentials` gives, asked again when the last ones expire.

    With `scatter_initial_credentials` the first ones are fetched now and travel along, so that many workers do not
    all ask at once.
    """

    def __init__(self, get_credentials: Callable[[], E], scatter_initial_credentials: bool = False) -> None:
        self.get_credentials = get_credentials
        self.scatter_initial_credentials = scatter_initial_credentials
        self._initial: E | None = get_credentials() if scatter_initial_credentials else None

    def __repr__(self) -> str:
        name = getattr(self.get_credentials, "__qualname__", type(self.get_credentials).__name__)
        return f"{type(self).__name__}({name})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_credentials == getattr(other, "get_credentials", None)

    def __hash__(self) -> int:
        return hash(self.get_credentials)

    def current(self) -> E:
        """Credentials that are valid now; may call the user's function."""
        initial = self._initial
        if initial is not None and (initial.expires_after is None or initial.expires_after > dt.datetime.now(dt.UTC)):
            return initial
        self._initial = None
        given = self.get_credentials()
        if inspect.isawaitable(given):
            given = asyncio.run(_wait(given))
        return given

    def __getstate__(self) -> dict[str, Any]:
        return {
            "function": _pickle_function(self.get_credentials),
            "scatter": self.scatter_initial_credentials,
            "initial": self._initial,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.get_credentials = pickle.loads(state["function"])
        self.scatter_initial_credentials = state["scatter"]
        self._initial = state["initial"]


async def _wait(given: Any) -> Any:
    return await given


def _pickle_function(function: Callable[..., Any]) -> bytes:
    """By reference where the worker can import it, by value where cloudpickle is installed."""
    try:
        data = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if cloudpickle is None:
            raise InvalidInputError(
                f"{function!r} cannot travel to another process: define it at the top of a module, "
                "or install cloudpickle"
            ) from error
        by_value: bytes = cloudpickle.dumps(function)
        return by_value
    return data
