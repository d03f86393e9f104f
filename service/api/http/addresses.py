"""Addresses of the contract, and the one that an unknown address was probably meant as."""

from collections.abc import Collection
from difflib import SequenceMatcher

_LONGEST = 200  # characters of an address that is compared
_MOST_STEPS = 10
_ALIKE = 0.7  # of each step, from 0 to 1


def is_contract(path: str) -> bool:
    """Return whether an address belongs to the contract; all others answer HEAD as they answer GET."""
    return path == "/v1" or path.startswith("/v1/")


def address_meant(path: str, templates: Collection[str]) -> str | None:
    """Return the address of the contract that is most like an unknown one; None where none is much like it.

    Args:
        path: the unknown address.
        templates: the known addresses, with their parameters in braces; these match every name.
    """
    steps = [step for step in path.split("/") if step]
    if len(path) > _LONGEST or len(steps) > _MOST_STEPS:
        return None
    steps = steps if steps[:1] == ["v1"] else ["v1", *steps]
    known = [template.strip("/").split("/") for template in sorted(templates)]
    meant = max(known, key=lambda template: _likeness(template, steps), default=steps)
    address = "".join(f"/{given if own.startswith('{') else own}" for own, given in zip(meant, steps, strict=False))
    return address if _likeness(meant, steps) and address != path else None


def _likeness(template: list[str], steps: list[str]) -> float:
    """Return how much an address is like a template; 0 where one of its steps is unlike the template's."""
    if len(template) != len(steps):
        return 0.0
    pairs = [(own, given) for own, given in zip(template, steps, strict=True) if not own.startswith("{")]
    likeness = [SequenceMatcher(None, own, given).ratio() for own, given in pairs]
    return sum(likeness) if min(likeness, default=0.0) >= _ALIKE else 0.0
