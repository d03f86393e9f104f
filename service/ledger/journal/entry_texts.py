"""Prices, plans and tags as entries and rows have them, in text; each distinct text is read once."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from service.ledger.accounts import budgets, subplans
from service.ledger.accounts.spending_rows import Subplans
from service.privacy.accounting.pricing import Price
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan, walk

_REMEMBERED = 4096  # distinct plans, prices and lists of tags
SHORT = 1 << 12  # characters of a plan that is worth remembering

Amount = tuple[str | None, str | None, str, str, tuple[str | None, ...]]
"""A price as the journal writes it, to be counted: epsilon, rho, delta, linear, quanta."""

Subject = tuple[str, tuple[str, ...]]
"""What a release spends on: its plan as text, and its own tags."""

NOTHING: Amount = ("0", "0", "0", "0", ())

write = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=True).encode


def amount_of(price: Mapping[str, Any]) -> Amount:
    """A price as its entry writes it."""
    return price["epsilon"], price["rho"], price["delta"], price["linear"], tuple(price["quanta"])


def price_of(amount: Amount) -> dict[str, Any]:
    """The same as the entry's price."""
    return dict(zip(_FIGURES, (*amount[:4], list(amount[4])), strict=True))


_FIGURES = ("epsilon", "rho", "delta", "linear", "quanta")


@lru_cache(maxsize=1024)
def read_amount(amount: Amount) -> Price:
    """The price that it is.

    Raises:
        TypeError, ValueError: the service writes none like it.
    """
    return budgets.read_price(price_of(amount))


@lru_cache(maxsize=_REMEMBERED)
def amount_in(text: str) -> Amount | None:
    """A price in a row or an entry; None where it is none."""
    try:
        return amount_of(json.loads(text))
    except (KeyError, TypeError, ValueError):
        return None


def subject_of(content: Mapping[str, Any]) -> Subject:
    """What an entry that registers a release spends on."""
    return write(content["plan"]), tuple(content["tags"])


def subject_in(plan: str, tags: str) -> tuple[Subject, str, str]:
    """What the release of a row spends on, with the texts of its plan and tags as the journal writes them."""
    return (_subject if len(plan) < SHORT else _subject.__wrapped__)(plan, tags)


@lru_cache(maxsize=_REMEMBERED)
def _subject(plan: str, tags: str) -> tuple[Subject, str, str]:
    try:
        content = {"plan": json.loads(plan), "tags": json.loads(tags)}
        subject = subject_of(content)
    except (TypeError, ValueError, RecursionError):
        return ("", ()), "", ""  # of no release
    return subject, subject[0], write(content["tags"])


def subplans_of(subject: Subject) -> Subplans:
    """The priced subplans of a release, by their text."""
    return (_subplans if len(subject[0]) < SHORT else _subplans.__wrapped__)(subject)


@lru_cache(maxsize=_REMEMBERED)
def _subplans(subject: Subject) -> Subplans:
    plan, tags = subject
    return subplans.subplans_of(read_text(plan), tags)


def tags_of(subject: Subject) -> frozenset[str]:
    """The tags by which a release is listed: its own and those of every node of its plan."""
    return (_all_tags if len(subject[0]) < SHORT else _all_tags.__wrapped__)(subject)


@lru_cache(maxsize=_REMEMBERED)
def _all_tags(subject: Subject) -> frozenset[str]:
    plan, tags = subject
    return frozenset(tag for _, node in walk(read_text(plan)) for tag in node.tags).union(tags)


def read_text(plan: str) -> Plan:
    """The plan that a text states; remembered for a moment, as it is priced, counted and searched for tags."""
    return (_plan if len(plan) < SHORT else _plan.__wrapped__)(plan)


@lru_cache(maxsize=256)
def _plan(text: str) -> Plan:
    return read_plan(json.loads(text))
