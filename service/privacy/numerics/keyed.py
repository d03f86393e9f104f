"""Hashes of exact numbers that cannot be predicted outside this process, and memoised functions that use them.

Python hashes a number to itself modulo 2^61 - 1. So a client that chooses numbers can make them collide, and looking up
n colliding keys takes n² comparisons. Text is hashed under a key that is drawn when the process starts (SipHash), so
here numbers are hashed by their text. A number that a client states is never itself the key of a dict, a set or a memo.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import fields
from fractions import Fraction
from functools import cache, lru_cache, update_wrapper
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def keyed(*values: object) -> int:
    """Return a hash that is equal for equal values, also for an integer and a fraction, and inside tuples."""
    return hash(tuple([_as_text(value) if type(value) in _NUMBERS else value for value in values]))


def _as_text(value: Any) -> object:
    """Return the text of a number, or the hash of a tuple."""
    kind = type(value)
    if kind is Fraction:
        top, bottom = value.as_integer_ratio()
        return f"{top:x}" if bottom == 1 else f"{top:x}/{bottom:x}"  # hexadecimal: in linear time, however long it is
    if kind is int:
        return f"{value:x}"
    if kind is float:
        return repr(value)
    return keyed(*value) if value else value


_NUMBERS = frozenset((int, float, Fraction, tuple))


class Keyed:
    """A frozen dataclass that is hashed by the text of its numbers; the hash is computed once and kept."""

    __slots__ = ("_cached_hash",)
    _cached_hash: int

    def __init_subclass__(cls) -> None:
        """Define the hash in the class itself, so that ``dataclass`` does not replace it."""
        super().__init_subclass__()
        if "__hash__" not in cls.__dict__:
            cls.__hash__ = Keyed.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        found: int | None = getattr(self, "_cached_hash", None)  # an exception would take as long as the hash
        if found is None:
            kind: type = type(self)
            found = keyed(*_compared(kind)(self))
            object.__setattr__(self, "_cached_hash", found)
        return found


@cache
def _compared(kind: type) -> Callable[[object], tuple[object, ...]]:
    """Return a function that reads the compared fields of a dataclass; the class comes first, so it returns a tuple."""
    return attrgetter("__class__", *(field.name for field in fields(kind) if field.compare))


class FractionsKey(tuple[Fraction, ...]):
    """Fractions as a key whose hash is kept: an account's 250 orders are hashed once and not for every charge."""

    _cached_hash: int | None = None

    @classmethod
    def of(cls, values: Iterable[Fraction]) -> Self:
        """Return the values as a key; a key is returned as it is."""
        return values if isinstance(values, cls) else cls(values)

    def __hash__(self) -> int:
        if self._cached_hash is None:
            self._cached_hash = keyed(*self)
        return self._cached_hash


class ValuesKey:
    """Any values together as a key."""

    __slots__ = ("_hash", "values")

    def __init__(self, *values: Any) -> None:
        self.values = values
        self._hash = keyed(*values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValuesKey) and self.values == other.values


class KeptResults(Generic[R]):
    """The results that were used last, by a digest of all that they depend on.

    A memoised function would hold its arguments too, which may be plans of megabytes.

    Args:
        most: the number of results that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._found, self._mutex = most, OrderedDict[str, R](), threading.Lock()

    def get(self, digest: str) -> R | None:
        """Return the result with this digest; None where it is not kept."""
        with self._mutex:
            if digest in self._found:
                self._found.move_to_end(digest)
            return self._found.get(digest)

    def put(self, digest: str, result: R) -> None:
        """Keep a result, in place of the one that was not used for longest."""
        with self._mutex:
            self._found[digest] = result
            self._found.move_to_end(digest)
            if len(self._found) > self._most:
                self._found.popitem(last=False)


class MemoisedFunction(Generic[P, R]):
    """A function that memoises its results; ``__wrapped__`` does not."""

    def __init__(self, function: Callable[P, R], maxsize: int) -> None:
        update_wrapper(self, function)
        self.__wrapped__ = find = cast("Callable[..., R]", function)
        self._known = lru_cache(maxsize)(lambda key: find(*key.values))

    def __call__(self, *values: P.args, **named: P.kwargs) -> R:
        return self._known(ValuesKey(*values, **named))


def memoised(maxsize: int) -> Callable[[Callable[P, R]], MemoisedFunction[P, R]]:
    """Memoise a function of numbers that clients choose, as ``lru_cache`` does; arguments are given by position."""
    return lambda function: MemoisedFunction(function, maxsize)
