"""Caps on tags, in the rows of accounts: a budget for what releases tell about one attribute.

``docs/mathematics/caps.md`` says what a cap guarantees, and proves it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from service.ledger.accounts import budgets
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals

MOST_CAPS = 20
"""The largest number of caps of an account."""
OPENING = 1
"""The number of the entry that opens an account."""


class StatedCap(NamedTuple):
    """A cap as a steward states it."""

    tag: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap on a tag.

    Attributes:
        weights: orders and weights, fixed when it was set.
        since: the number of the entry that set it.
        totals: of the tagged parts of committed and held releases, in the account and in those under it.
    """

    tag: str
    budget: Budget
    weights: Weights
    since: int
    totals: Totals = Totals()


def promised_since_opening(caps: Iterable[Cap]) -> bool:
    """Return whether each mechanism of each release had to have a statement: the account was opened with a cap."""
    return any(cap.since == OPENING for cap in caps)


def read_caps(stored: str | None, totals: str | None) -> tuple[Cap, ...]:
    """Return the caps in the columns of an account's row, in the order of their tags."""
    if stored is None:
        return ()
    sums = json.loads(totals or "{}")
    return tuple(Cap(*fixed, budgets.read_totals(sums[fixed[0]])) for fixed in _read(stored))


@lru_cache(maxsize=1024)
def _read(stored: str) -> tuple[tuple[str, Budget, Weights, int], ...]:
    """Read all of the caps but their totals, cached because every charge does."""
    return tuple(
        (
            cap["tag"],
            budgets.read_budget(cap["budget"]),
            budgets.read_weights(json.dumps(cap["admission"])),
            cap["since"],
        )
        for cap in json.loads(stored)
    )


def write_caps(caps: Sequence[Cap]) -> str | None:
    """Return the column of the caps; equal caps have equal texts."""
    if not caps:
        return None
    return json.dumps([_document(cap) for cap in caps], ensure_ascii=False)


def _document(cap: Cap) -> dict[str, Any]:
    admission = json.loads(budgets.write_weights(cap.weights))
    return {"tag": cap.tag, "budget": budgets.write_budget(cap.budget), "admission": admission, "since": cap.since}


def write_cap_totals(caps: Sequence[Cap]) -> str | None:
    """Return the column of the caps' totals."""
    if not caps:
        return None
    return json.dumps({cap.tag: budgets.write_totals(cap.totals) for cap in caps}, ensure_ascii=False)
