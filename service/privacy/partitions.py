"""Partitions of the input: the spelling of their names, and their declaration in a plan.

A mechanism is charged once for all of its partitions, because a record is in at most one of them. The caller promises
that they are disjoint sets of records; the service cannot check this. A plan declares its partitions before anything is
drawn. The declaration bounds how often fresh noise is drawn for one charge, whatever names are invented later.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.errors import InvalidInput

MOST_NAMES = 100_000  # in the lists of a plan
MOST_PARTITIONS = 10**9
LONGEST = 200  # characters of a name
_AT_ONCE = 250  # names that are compared, hashed or freed while no other thread runs: a millisecond at most
EXPECTED_NAME = (
    f"expected 1 to {LONGEST} visible characters in Unicode's normal form NFKC, without blanks around them or more"
    " than one between them"
)
_EXPECTED = f"expected a list of 1 to {MOST_NAMES} names, or a whole number of at least 1 and at most 10^9"

# Invisible letters, marks and symbols: Unicode's Default_Ignorable_Code_Point, as far as isprintable() admits them,
# and those whose glyph is a blank.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions that a plan declares for a mechanism.

    Attributes:
        most: the largest number of partitions for which it may be drawn, in each repetition.
        names: their names, if they are listed.
    """

    most: int
    names: frozenset[str] | None = None


def unclear(names: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of the names that are not clear.

    Readers can tell clear names apart: they have no invisible characters, and each has only one spelling.
    """
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        if not _are_clear(some):
            yield from (start + number for number, name in enumerate(some) if not _are_clear([name]))


def first_unclear(names: Sequence[str]) -> int | None:
    """Return the number of the first name that is not clear; None if all are."""
    return next(unclear(names), None)


def distinct(names: Sequence[str]) -> set[str]:
    """Return the distinct names, hashing a few at a time: there may be hundreds of thousands."""
    found: set[str] = set()
    for start in range(0, len(names), _AT_ONCE):
        found.update(names[start : start + _AT_ONCE])
    return found


def _are_clear(names: Sequence[str]) -> bool:
    """Tell whether all names are clear; checking them together is faster than one by one."""
    lengths = set(map(len, names))
    if 0 in lengths or max(lengths, default=0) > LONGEST or not "".join(names).isprintable():
        return False
    lines = "\n".join(["", *names, ""])  # no name contains the separator, and it composes with nothing
    if "\n " in lines or " \n" in lines or "  " in lines:
        return False
    return lines.isascii() or (_UNSEEN.search(lines) is None and unicodedata.is_normalized("NFKC", lines))


def read_partitions(stated: object, at: str) -> Partitions:
    """Return the partitions that a plan states, by their names or by their largest number.

    Args:
        at: JSON pointer of ``stated``.

    Raises:
        InvalidInput: it is neither; the fault is at ``at`` or below.
    """
    if isinstance(stated, int) and not isinstance(stated, bool) and 1 <= stated <= MOST_PARTITIONS:
        return Partitions(stated)
    if not isinstance(stated, list | tuple) or not 1 <= len(stated) <= MOST_NAMES:
        raise InvalidInput.at(at, _EXPECTED)
    if not set(map(type, stated)) <= {str}:
        raise InvalidInput.at(at, _EXPECTED)
    first = first_unclear(stated)
    if first is not None:
        raise InvalidInput.at(f"{at}/{first}", EXPECTED_NAME)
    names = frozenset(distinct(stated))
    if len(names) < len(stated):
        seen: set[str] = set()
        again = next(number for number, name in enumerate(stated) if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidInput.at(f"{at}/{again}", "expected each partition once")
    return Partitions(len(names), names)
