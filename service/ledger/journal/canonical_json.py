"""Canonical JSON (RFC 8785), in which entries are hashed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST_INTEGER = 2**53  # doubles, and so RFC 8785, cannot tell larger integers apart
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SORTING_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)
"""An encoder that gives the order of RFC 8785 too, if everything is ASCII, in a third of the time."""


def canonical(value: object) -> str:
    """Return RFC 8785 canonical JSON of a journal value: text, integers, booleans, null, lists and objects.

    Raises:
        TypeError: the value has another type. Numbers that are not integers are text in the ledger, exactly as they
            were stated, because a double might be a rounded value.
        ValueError: an integer beyond 2^53 in size, or text that is not Unicode (a lone surrogate).
    """
    _check(value)
    text = _SORTING_ENCODER.encode(value)
    if not text.isascii():
        text = _ENCODER.encode(_ordered(value))
        text.encode()  # RFC 8785 section 3.2.2.2: lone surrogates are an error (UnicodeEncodeError)
    return text


def load_once(text: str | bytes) -> Any:
    """Return the value of a JSON text whose objects have each name once; of two, some readers take the other one.

    Raises:
        ValueError: the text is not JSON, or has a name twice in an object.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("expected each name once in an object")
    return found


@dataclass(frozen=True, slots=True)
class CanonicalObject:
    """A JSON object in canonical form, so that long parts of an entry are written before an account is locked."""

    text: str

    @classmethod
    def of(cls, members: Mapping[str, str]) -> "CanonicalObject":
        """Return the object with these members, whose values are canonical JSON and whose names are plain ASCII."""
        return cls("{" + ",".join(f'"{name}":{members[name]}' for name in sorted(members)) + "}")


def _check(value: object) -> None:
    """Refuse values that the journal cannot hold."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError("expected text as the names of an object")
            _check(item)
    elif isinstance(value, list):
        for item in value:
            if type(item) is not str:  # a price at 250 orders is mostly text
                _check(item)
    elif not isinstance(value, int):
        raise TypeError(f"expected text, an integer, a boolean, null, a list or an object, got {type(value).__name__}")
    elif abs(value) > LARGEST_INTEGER:
        raise ValueError("expected an integer of at most 2^53 in size; larger numbers are text in the ledger")


def _ordered(value: object) -> object:
    """Return the value with the names of every object in the order of RFC 8785 section 3.2.3."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=utf_16_units)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def utf_16_units(name: str) -> bytes:
    """Return a name in big-endian UTF-16, so that bytes compare as code units do."""
    return name.encode("utf-16-be", "surrogatepass")


def read_canonical(text: str) -> Any:
    """Return the value of RFC 8785 canonical JSON.

    Raises:
        ValueError, TypeError, RecursionError: the text is not canonical, or states a value that the journal cannot
            hold.
    """
    value = DECODER.decode(text)
    # In pure ASCII, the order of names by characters is that by their UTF-16 code units.
    if text != (_SORTING_ENCODER.encode(value) if text.isascii() else canonical(value)):
        raise ValueError("expected canonical JSON")
    return value


def _small_integer(text: str) -> int:
    value = int(text)
    if abs(value) > LARGEST_INTEGER:
        raise ValueError("expected an integer of at most 2^53 in size")
    return value


def _no_double(_: str) -> float:
    raise ValueError("expected no number that is not an integer")


DECODER = json.JSONDecoder(parse_int=_small_integer, parse_float=_no_double, parse_constant=_no_double)
