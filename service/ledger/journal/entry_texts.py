"""The text forms of prices, plans and tags in entries and rows; each distinct text is parsed once."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from service.ledger.accounts import budgets
from service.ledger.spending import subplans
from service.ledger.spending.spending_rows import Subplans
from service.privacy.accounting.pricing import Price
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan, walk

_REMEMBERED = 4096  # distinct plans, prices and lists of tags
SHORT = 1 << 12  # characters; shorter plans are remembered

PriceKey = tuple[str | None, str | None, str, str, tuple[str | None, ...]]
"""The key of a price as the journal writes it: epsilon, rho, delta, linear, quanta."""

SpendingKey = tuple[str, tuple[str, ...]]
"""The plan of a release as text, and its own tags, to which its spending is counted."""

NOTHING: PriceKey = ("0", "0", "0", "0", ())

write = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=True).encode


def price_key_of(price: Mapping[str, Any]) -> PriceKey:
    """Return the key of the price that an entry states."""
    return price["epsilon"], price["rho"], price["delta"], price["linear"], tuple(price["quanta"])


def price_of(amount: PriceKey) -> dict[str, Any]:
    """Return the entry's form of a price from its key."""
    return dict(zip(_FIGURES, (*amount[:4], list(amount[4])), strict=True))


_FIGURES = ("epsilon", "rho", "delta", "linear", "quanta")


@lru_cache(maxsize=1024)
def price_of_key(amount: PriceKey) -> Price:
    """Return the price of a key.

    Raises:
        TypeError, ValueError: the service writes no such key.
    """
    return budgets.read_price(price_of(amount))


@lru_cache(maxsize=_REMEMBERED)
def price_key_in(text: str) -> PriceKey | None:
    """Return the price key in the text of a row or an entry; None if the text is no price."""
    try:
        return price_key_of(json.loads(text))
    except (KeyError, TypeError, ValueError):
        return None


def spending_key_of(content: Mapping[str, Any]) -> SpendingKey:
    """Return the plan and tags that an entry registers, as the key of its spending."""
    return write(content["plan"]), tuple(content["tags"])


def spending_key_in(plan: str, tags: str) -> tuple[SpendingKey, str, str]:
    """Return the spending key of a row's release, with the texts of its plan and tags as the journal writes them.

    Args:
        plan: JSON, in the client's order of names.
        tags: a JSON list.

    Returns:
        A key of no release, and empty texts, where one of them cannot be read.
    """
    return (_subject if len(plan) < SHORT else _subject.__wrapped__)(plan, tags)


@lru_cache(maxsize=_REMEMBERED)
def _subject(plan: str, tags: str) -> tuple[SpendingKey, str, str]:
    try:
        content = {"plan": json.loads(plan), "tags": json.loads(tags)}
        subject = spending_key_of(content)
    except (TypeError, ValueError, RecursionError):
        return ("", ()), "", ""  # a key of no release
    return subject, subject[0], write(content["tags"])


def subplans_of(subject: SpendingKey) -> Subplans:
    """Return the priced subplans of a release, by their text."""
    return (_subplans if len(subject[0]) < SHORT else _subplans.__wrapped__)(subject)


@lru_cache(maxsize=_REMEMBERED)
def _subplans(subject: SpendingKey) -> Subplans:
    plan, tags = subject
    return subplans.subplans_of(read_text(plan), tags)


def tags_of(subject: SpendingKey) -> frozenset[str]:
    """Return the tags by which a release is listed: its own and those of every node of its plan."""
    return (_all_tags if len(subject[0]) < SHORT else _all_tags.__wrapped__)(subject)


@lru_cache(maxsize=_REMEMBERED)
def _all_tags(subject: SpendingKey) -> frozenset[str]:
    plan, tags = subject
    if '"tags":[' not in plan:  # most have none, and parsing a plan takes longest
        return frozenset(tags)
    return frozenset(tag for _, node in walk(read_text(plan)) for tag in node.tags).union(tags)


def read_text(plan: str) -> Plan:
    """Return the plan that a text states, cached because pricing, counting and the search for tags all read it."""
    return (_plan if len(plan) < SHORT else _plan.__wrapped__)(plan)


@lru_cache(maxsize=256)
def _plan(text: str) -> Plan:
    return read_plan(json.loads(text))
