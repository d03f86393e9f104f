"""The distinct parts of plans, by which accounts count their spending."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from service.ledger.journal.canonical_json import canonical
from service.ledger.spending.spending_rows import Subplans
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.walking import Condensed, condense, parts_of, with_parts

_MOST_KEPT, _SHORT = 1 << 17, 1 << 8  # subplans that are kept in condensed form, and their characters; about 100 MB


def subplans_of(plan: Plan, tags: Iterable[str]) -> Subplans:
    """Return the summands of a plan as canonical JSON: without names, with the tags that hold for them.

    Args:
        tags: the release's own.
    """
    return Counter(
        _mechanism_text(part) if isinstance(part, Mechanism) else canonical(write_plan(part))
        for part in _summands(plan, frozenset(tags))
    )


def repeated_sizes(plan: Plan, tags: Iterable[str], size: int = 0, reads: str | None = None) -> Iterator[int]:
    """Yield for each summand of a plan the bytes that its text repeats from the nodes above it, before it is made.

    Args:
        tags: those that hold for the plan.
        size: their bytes; 0 where the plan is a whole one.
        reads: the statement that holds for the plan.
    """
    held = tags
    if plan.tags or not size:
        held = frozenset(tags).union(plan.tags)
        size = sum(len(canonical(tag).encode()) + 1 for tag in held)
    reads = plan.reads or reads
    if not isinstance(plan, Mechanism) and plan.SUM:
        for part in plan.children:
            yield from repeated_sizes(part, held, size, reads)
    else:
        yield size + len((reads or "").encode())


def charged_to(subplans: Subplans, periods: str | None) -> Subplans:
    """Return subplans as an account counts them that charges them to periods; None: it has none.

    Args:
        periods: as canonical JSON.
    """
    if periods is None:
        return subplans
    start = f"{_CHARGED_TO}{periods}{_THEN_PLAN}"
    return Counter({f"{start}{subplan}}}": count for subplan, count in subplans.items()})


_CHARGED_TO, _THEN_PLAN = '{"periods":', ',"plan":'  # no plan has a member of the first name


def allotted_to(account: str, plan: str) -> str:
    """Return the subplan by which an account counts what it has allotted to an account under it.

    Args:
        plan: that of the allotment, as canonical JSON.
    """
    return f'{_ALLOTTED_TO}{canonical(account)},"plan":{plan}}}'


_ALLOTTED_TO = '{"allotted":'  # likewise


def is_allotted(subplan: str) -> bool:
    """Return whether a subplan is that of an allotment."""
    return subplan.startswith((_ALLOTTED_TO, f'{_CHARGED_TO}"all","plan":{_ALLOTTED_TO}'))


def allotted_in(subplan: str) -> str:
    """Return the name of the account to which a subplan of an account without periods allots."""
    return str(json.loads(subplan)["allotted"])


def periods_in(subplan: str) -> str:
    """Return the periods that a subplan of an account with periods is charged to, as canonical JSON.

    Raises:
        ValueError: it is charged to none.
    """
    if not subplan.startswith(_CHARGED_TO):
        raise ValueError("expected a subplan that is charged to periods")
    return subplan[len(_CHARGED_TO) : subplan.index(_THEN_PLAN)]  # no period has this text


def plan_in(subplan: str) -> Plan:
    """Return the plan of a subplan, whatever periods it is charged to, and whether it is an allotment's."""
    stated = json.loads(subplan)
    if subplan.startswith(_CHARGED_TO):
        stated = stated["plan"]
    return read_plan(stated["plan"] if "allotted" in stated else stated)


def condensed_in(subplan: str) -> Condensed:
    """Return the condensed plan of a subplan; short ones are kept, so that no balance parses them again."""
    return _condensed(subplan) if len(subplan) <= _SHORT else condense(plan_in(subplan))


@lru_cache(maxsize=_MOST_KEPT)
def _condensed(subplan: str) -> Condensed:
    return condense(plan_in(subplan))


def _mechanism_text(mechanism: Mechanism) -> str:
    """Return a mechanism's text; kept where it adds noise: a declared curve may be long."""
    return _kept_text(mechanism) if mechanism.ADDITIVE else canonical(write_plan(mechanism))


@lru_cache(maxsize=4096)
def _kept_text(mechanism: Mechanism) -> str:
    """Return a mechanism's text, cached because pipelines register the same mechanisms again and again."""
    return canonical(write_plan(mechanism))


def nameless(plan: Plan) -> Plan:
    """Return the plan without the names and partitions of its mechanisms, on which no loss depends."""
    if isinstance(plan, Mechanism):
        return replace(plan, name=None, partitions=None)
    return with_parts(plan, map(nameless, parts_of(plan)))


def _summands(plan: Plan, tags: frozenset[str], reads: str | None = None) -> Iterator[Plan]:
    held, reads = tags.union(plan.tags), plan.reads or reads
    if not isinstance(plan, Mechanism) and plan.SUM:
        for part in plan.children:
            yield from _summands(part, held, reads)
    else:
        yield replace(nameless(plan), tags=tuple(sorted(held)), reads=reads)
