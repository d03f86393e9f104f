"""JSON as RFC 8259 defines it: numbers keep their text, and nothing is guessed."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from typing import Any

from service.errors import Fault, InvalidInput

_MOST_FAULTS = 10  # reported of what JSON does not have
_LONGEST_STEP = 1000  # characters of a name in a pointer: all known ones are shorter
_LONGEST_POINTER = 2 * _LONGEST_STEP + 1  # any one step, escaped; of a deeper place, an outer one is named
# An escape and, for half of a surrogate pair, its other half; the group matches a lone half.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_FINITE = object()  # in the place of NaN or an infinity


class _Repeating(dict[str, Any]):
    """An object that has a name twice."""

    repeated: str


def parse(body: bytes) -> Any:
    """Parse JSON, with numbers as they are written: 0.1 is one tenth, and 1.0 is not an integer.

    Raises:
        InvalidInput: the body is not UTF-8 or not JSON, has NaN or an infinity, repeats a name in one object, or has
            text that is not Unicode. A ledger must not guess at any of these.
    """
    wrong: list[object] = []
    try:
        parsed = json.loads(
            body.decode("utf-8"),
            parse_float=Decimal,
            parse_constant=partial(_marked, wrong),
            object_pairs_hook=partial(_object, wrong),
        )
    except UnicodeError:
        raise _not_unicode() from None
    except RecursionError:
        raise InvalidInput.at("", "expected JSON with fewer nested levels") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput.at("", f"expected JSON; the text ends early or has a syntax error at {place}") from None
    except InvalidOperation:
        raise InvalidInput.at("", "expected numbers whose exponents have at most 18 digits") from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidInput.at("", "expected integers with fewer digits") from None
    if wrong:
        raise InvalidInput(list(islice(_faults(parsed), _MOST_FAULTS)))
    if _SURROGATE.search(body) and any(escape[1] for escape in _ESCAPE.finditer(body)):
        raise _not_unicode()
    return parsed


def pointer_step(name: object) -> str:
    """Return a name or a number as a step of a JSON pointer (RFC 6901); of a long name, its beginning."""
    return "/" + str(name)[:_LONGEST_STEP].replace("~", "~0").replace("/", "~1")


def _not_unicode() -> InvalidInput:
    return InvalidInput.at("", "expected JSON in UTF-8 without lone surrogates")


def _marked(wrong: list[object], _: str) -> object:
    wrong.append(_NOT_FINITE)
    return _NOT_FINITE


def _object(wrong: list[object], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeating = _Repeating(members)
    left = Counter(name for name, _ in pairs)
    repeating.repeated = next(name for name, _ in pairs if left[name] > 1)
    wrong.append(repeating)
    return repeating


def _faults(parsed: Any) -> Iterator[Fault]:
    """Yield the places of what JSON does not have, in order; the parser calls back without a place.

    The stack is explicit, since the parser nests deeper than Python's calls may.
    """
    steps, open_values = list[str](), [iter([("", parsed)])]
    while open_values:
        step, value = next(open_values[-1], (None, None))
        if step is None:
            open_values.pop()
            del steps[-1:]
        elif value is _NOT_FINITE:
            yield _fault([*steps, step], "expected a finite number; JSON has no NaN and no infinities")
        elif isinstance(value, dict | list):
            steps.append(step)
            if isinstance(value, _Repeating):
                yield _fault([*steps, pointer_step(value.repeated)], "expected each name once in an object")
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            open_values.append((pointer_step(name), one) for name, one in inner if _may_hold_faults(one))


def _fault(steps: list[str], detail: str) -> Fault:
    pointer = "".join(steps)
    if len(pointer) <= _LONGEST_POINTER:
        return Fault(pointer, detail)
    return Fault(pointer[: _LONGEST_POINTER + 1].rpartition("/")[0], f"{detail}; the place is deeper than the pointer")


def _may_hold_faults(value: Any) -> bool:
    return value is _NOT_FINITE or isinstance(value, dict | list)
