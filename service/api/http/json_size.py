"""Upper bounds on the memory of a parsed JSON body, counted before it is parsed.

Only characters are counted, inside texts as well as outside. A text full of brackets therefore counts as more than it
is, and nothing counts as less. The costs were measured: of a value from the body to the stored array of a draw, and of
an object to the priced node of a plan.
"""

from collections.abc import Callable

import numpy as np

from service.errors import TooLarge

HELD = 1 << 16  # bytes of a body up to which measuring may hold the interpreter, for some microseconds
_PART = 1 << 20
_ASCII, _OTHER = 3, 9  # times its bytes: the text and its parts; four bytes a character where one is not ASCII
_NUMBER = 120  # bytes: the parsed number, its value, and its place in lists and arrays
_DECIMAL = 240  # further bytes of a number that is not an integer
_LIST, _OBJECT, _TEXT = 400, 2500, 500


def check_size(body: bytes, most_items: int, take: Callable[[int], None]) -> None:
    """Reserve the memory that a body's content takes when it is parsed.

    Args:
        body: JSON text.
        most_items: the limit on arrays, objects and texts together.
        take: reserves so many bytes of the shared memory limit.

    Raises:
        TooLarge: the body has too many arrays, objects and texts, or takes too much memory by itself.
        Unavailable: the memory is in use by other requests.
    """
    count = counter(body)
    lists, objects, texts = _items(count)
    check_items(lists + objects + texts, most_items)
    values = 1 + count(b",") + lists + objects
    decimals = min(values, count(b".") + count(b"e") + count(b"E"))
    own = len(body) * ((_ASCII if body.isascii() else _OTHER) - 1)
    costs = _NUMBER * values + _DECIMAL * decimals + _LIST * lists + _OBJECT * objects + _TEXT * texts
    take(own + costs)


def items_in(part: bytes) -> int:
    """Return a lower bound on the number of arrays, objects and texts in a part of a body."""
    return max(0, sum(_items(counter(part))) - 1)  # a text that began in the part before may end here


def check_items(items: int, most_items: int) -> None:
    """Refuse a body with too many items.

    Raises:
        TooLarge: the body has more than ``most_items``.
    """
    if items > most_items:
        detail = f"expected JSON of at most {most_items} arrays, objects and texts, by their brackets and quotes"
        raise TooLarge(detail)


def _items(count: Callable[[bytes], int]) -> tuple[int, int, int]:
    return count(b"["), count(b"{"), -(-count(b'"') // 2)


def counter(body: bytes) -> Callable[[bytes], int]:
    """Return a function that counts a character; for a large body it does not hold the interpreter."""
    if len(body) <= HELD:
        return body.count
    data = np.frombuffer(body, np.uint8)

    def count(character: bytes) -> int:
        code = ord(character)
        return sum(int(np.count_nonzero(data[at : at + _PART] == code)) for at in range(0, data.size, _PART))

    return count
