"""Prices, plans and tags as entries and rows have them, in text; each distinct text is read once."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from service.ledger import budgets, subplans
from service.ledger.spending_rows import Subplans
from service.privacy.notation import read_plan, walk
from service.privacy.plan import Plan
from service.privacy.pricing import Price

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


class Registered(NamedTuple):
    """What an entry says of a release that was registered at once; ``own``: in this account, not in one under it."""

    amount: Amount
    subject: Subject
    own: bool


def registered(body: str) -> Registered | None:
    """What the canonical text of an entry says, without parsing it; None where that must be parsed after all.

    Names are in order and quotes within texts are escaped, so a name with its quotes stands nowhere else: what
    follows the plan is found from the end, whatever the plan holds.
    """
    start, at = _UP_TO_PLAN.match(body), body.rfind(_PRICE)
    if start is None or at < start.end():
        return None
    tags_at, committed = body.find(_TAGS, at), body.rfind(_COMMITTED)
    named = body.rfind(_KEY, max(tags_at, 0), max(committed, 0))
    end = committed - 1 if named < 0 else named  # older entries, and those of an issuer's principals, name no key
    if not at < tags_at < end:
        return None
    amount = amount_in(body[at + len(_PRICE) - 1 : tags_at + 1])
    tags = _tags(body[tags_at + len(_TAGS) - 1 : end])
    if amount is None or tags is None:
        return None
    return Registered(amount, (body[start.end() : at], tags), start[1] is None)


_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_UP_TO_PLAN = re.compile(
    rf'\{{"account":{_TEXT},"actor":{_TEXT},"content":\{{"accountant":{_TEXT},"delta":{_TEXT},"name":{_TEXT},'
    rf'("origin":\{{"account":{_TEXT},"seq":[0-9]+\}},)?"plan":'
)
_PRICE, _TAGS, _KEY, _COMMITTED = ',"price":{', '},"tags":[', '},"key":"', ',"kind":"committed","release":"'


@lru_cache(maxsize=_REMEMBERED)
def _tags(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(json.loads(text))
    except ValueError:
        return None
