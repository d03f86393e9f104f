"""What a JSON body unfolds to, from above: counted before it is parsed, as Python's parser takes all that comes.

Only characters are counted, whether they stand in texts or not. So a text full of brackets counts as more than it is,
and nothing counts as less. The costs were measured: of a value from the body to the array that a draw stores, and of
an object to the priced node of a plan.
"""

from collections.abc import Callable

import numpy as np

from service.errors import TooLarge

HELD = 1 << 16  # bytes of a body up to which measuring it holds the interpreter, for some microseconds
_PART = 1 << 20
_ASCII, _OTHER = 3, 9  # times its bytes: the text, its parts; of four bytes a character where one is not ASCII
_NUMBER = 120  # bytes: what is parsed, what is read of it, and its place in lists and arrays
_DECIMAL = 240  # more, where it is no integer
_LIST, _OBJECT, _TEXT = 400, 2500, 500


def check_size(body: bytes, most_items: int, take: Callable[[int], None]) -> None:
    """Take the room of what a body unfolds to.

    Raises:
        TooLarge: it has more arrays, objects and texts than it may, or takes too much memory by itself.
        Unavailable: there is no room for it now.
    """
    count = _counter(body)
    lists, objects, texts = _items(count)
    check_items(lists + objects + texts, most_items)
    values = 1 + count(b",") + lists + objects
    decimals = min(values, count(b".") + count(b"e") + count(b"E"))
    own = len(body) * ((_ASCII if body.isascii() else _OTHER) - 1)
    costs = _NUMBER * values + _DECIMAL * decimals + _LIST * lists + _OBJECT * objects + _TEXT * texts
    take(own + costs)


def items_in(part: bytes) -> int:
    """How many arrays, objects and texts there are in a part of a body, at the least."""
    return max(0, sum(_items(_counter(part))) - 1)  # a text may end here that began in the part before


def check_items(items: int, most_items: int) -> None:
    """Refuse a body with too many.

    Raises:
        TooLarge: it has.
    """
    if items > most_items:
        detail = f"expected JSON of at most {most_items} arrays, objects and texts, by their brackets and quotes"
        raise TooLarge(detail)


def _items(count: Callable[[bytes], int]) -> tuple[int, int, int]:
    return count(b"["), count(b"{"), -(-count(b'"') // 2)


def _counter(body: bytes) -> Callable[[bytes], int]:
    """Counts a character; of a large body without holding the interpreter, while others are served."""
    if len(body) <= HELD:
        return body.count
    data = np.frombuffer(body, np.uint8)

    def count(character: bytes) -> int:
        code = ord(character)
        return sum(int(np.count_nonzero(data[at : at + _PART] == code)) for at in range(0, data.size, _PART))

    return count
