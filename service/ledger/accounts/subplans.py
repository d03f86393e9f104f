"""The distinct parts of plans, as accounts count what they have spent."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from service.ledger.accounts.spending_rows import Subplans
from service.ledger.journal.journal import canonical
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import parts_of, with_parts


def subplans_of(plan: Plan, tags: Iterable[str]) -> Subplans:
    """The summands of a plan as canonical JSON: without names, with the tags that hold for them."""
    return Counter(
        _mechanism_text(part) if isinstance(part, Mechanism) else canonical(write_plan(part))
        for part in _summands(plan, frozenset(tags))
    )


@lru_cache(maxsize=4096)
def _mechanism_text(mechanism: Mechanism) -> str:
    """Memoised, because pipelines register the same mechanisms again and again."""
    return canonical(write_plan(mechanism))


def nameless(plan: Plan) -> Plan:
    """The plan without the names and the partitions of its mechanisms, on which no loss depends."""
    if isinstance(plan, Mechanism):
        return replace(plan, name=None, partitions=None)
    return with_parts(plan, map(nameless, parts_of(plan)))


def _summands(plan: Plan, tags: frozenset[str]) -> Iterator[Plan]:
    held = tags.union(plan.tags)
    if not isinstance(plan, Mechanism) and plan.SUM:
        for part in plan.children:
            yield from _summands(part, held)
    else:
        yield replace(nameless(plan), tags=tuple(sorted(held)))
