"""Hashes of exact numbers that cannot be foreseen outside this process, and memos by them.

Python hashes a number to itself modulo 2^61 - 1: a client that chooses numbers chooses which of them collide, and
looking up n colliding keys takes n² comparisons. Text is hashed under a key that is drawn when the process starts
(SipHash), so here numbers are hashed by their text. A number that a client states is never itself the key of a dict, a
set or a memo.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from fractions import Fraction
from functools import cache, lru_cache, update_wrapper
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def keyed(*values: object) -> int:
    """Return a hash that is equal for equal values, whole numbers and fractions alike; tuples are looked into."""
    return hash(tuple([_as_text(value) if type(value) in _NUMBERS else value for value in values]))


def _as_text(value: Any) -> object:
    """Return what is hashed of a number, or of a value that holds numbers."""
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
    """A frozen dataclass that is hashed by its numbers' text, once: not again at each node of a tree above it."""

    __slots__ = ("_cached_hash",)
    _cached_hash: int

    def __init_subclass__(cls) -> None:
        """Give the class the hash as its own, which a dataclass leaves as it is."""
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
    """Return the fields by which values of a dataclass are compared; and the class, so that there is more than one."""
    return attrgetter("__class__", *(field.name for field in fields(kind) if field.compare))


class FractionsKey(tuple[Fraction, ...]):  # its hash is kept
    """Fractions as a key: an account's 250 orders are hashed once and not for every charge."""

    _cached_hash: int | None = None

    @classmethod
    def of(cls, values: Iterable[Fraction]) -> Self:
        """Return the values as a key; themselves where they are one already."""
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


class MemoisedFunction(Generic[P, R]):
    """A function that memoises its results; ``__wrapped__`` does not."""

    def __init__(self, function: Callable[P, R], maxsize: int) -> None:
        update_wrapper(self, function)
        self.__wrapped__ = find = cast("Callable[..., R]", function)
        self._known = lru_cache(maxsize)(lambda key: find(*key.values))

    def __call__(self, *values: P.args, **named: P.kwargs) -> R:
        return self._known(ValuesKey(*values, **named))


def memoised(maxsize: int) -> Callable[[Callable[P, R]], MemoisedFunction[P, R]]:
    """Memoise a function of numbers that clients choose, which are given by position; as ``lru_cache``."""
    return lambda function: MemoisedFunction(function, maxsize)
