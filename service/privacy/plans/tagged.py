"""The part of a plan that reads one attribute, and the price of another value of it (``docs/mathematics/caps.md``)."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from service.errors import Fault
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Group, Plan, Repeat
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, children_with_pointers, condense, parts_of, restrict, with_parts

Kept = Callable[[frozenset[str], str | None], bool]
"""Decides whether to keep a mechanism, by the tags and the promise on it and on the nodes above it."""


def tagged_part(plan: Plan, release_tags: Collection[str], tag: str) -> Plan | None:
    """Return the part of a release that carries a tag; None if nothing does.

    Args:
        release_tags: the release's own, which hold for all of its plan.
    """
    return plan if tag in release_tags else restrict(plan, tag)


def possibly_tagged_part(plan: Plan, tag: str, *, stated: bool) -> Plan | None:
    """Return the part of an earlier release that counts for a cap that was set later; None if nothing does.

    Args:
        plan: with the tags that hold for it.
        stated: whether the account already had caps at the time of the release, so that tags were a promise. If not,
            every mechanism counts.
    """
    return _kept(plan, lambda tags, reads: not stated or tag in tags or reads is not None or not tags)


def _kept(plan: Plan, kept: Kept, tags: frozenset[str] = frozenset(), reads: str | None = None) -> Plan | None:
    tags, reads = tags.union(plan.tags), plan.reads or reads
    if isinstance(plan, Mechanism):
        return plan if kept(tags, reads) else None
    parts = [part for part in (_kept(part, kept, tags, reads) for part in parts_of(plan)) if part is not None]
    return with_parts(plan, parts) if parts else None


def as_replacement(part: Plan, neighbouring: Neighbouring) -> Condensed:
    """Return a tagged part in the form whose price, under the account's relation, bounds another value's effect.

    Under ``replace_one`` this is the part as it is. Under ``add_remove`` another value is a removal and an addition:
    two records that change together, unless a mechanism says how many cells another value moves. Below ``parallel``
    and ``choice`` another value may also move the record from one part to another, which moves ``cells`` in each.
    """
    if neighbouring is Neighbouring.REPLACE_ONE:
        return condense(part)
    return _without_profiles(condense(_both_sides(part, divided=False)))


def _both_sides(plan: Plan, *, divided: bool) -> Plan:
    if not isinstance(plan, Mechanism):
        return with_parts(plan, [_both_sides(part, divided=divided or plan.DIVIDES) for part in parts_of(plan)])
    if plan.moves:  # it undoes one of them and does another
        return Repeat(part=plan, count=2)
    if plan.cells_replaced is None:
        return Group(part=plan, size=2)
    cells = max(plan.cells_replaced, 2 * (plan.cells or 1)) if divided else plan.cells_replaced
    return replace(plan, cells=cells, cells_replaced=None)


def _without_profiles(node: Condensed) -> Condensed:
    """Return the plan with each division marked as one of a group, as the bound does not hold for whole profiles."""
    if not node.parts:
        return node
    parts = tuple((_without_profiles(part), count) for part, count in node.parts)
    return replace(node, parts=parts, group=1 if node.degree is None else 2)


def statement_faults(
    plan: Plan, capped: Collection[str], account: str | None, pointer: str, release_tags: Collection[str]
) -> Iterator[Fault]:
    """Yield a fault for each mechanism without a statement, and for each promise that a tag contradicts.

    A statement is a tag or ``reads`` in the plan, on the mechanism or on a node above it. The release's own tags name
    what all of it reads; they do not say that it reads nothing else.

    Args:
        capped: the tags with a cap.
        account: the name of the account that has the caps, for the detail; None for an account above, of which the
            caller may know neither the name nor the tags.
        pointer: the JSON pointer of ``plan``.
        release_tags: the release's own.
    """
    yield from _faults(plan, frozenset(capped), account, pointer, frozenset(), frozenset(release_tags), None)


def _faults(
    plan: Plan,
    capped: frozenset[str],
    account: str | None,
    at: str,
    tags: frozenset[str],
    release_tags: frozenset[str],
    promise: str | None,
) -> Iterator[Fault]:
    tags, promise = tags.union(plan.tags), at if plan.reads is not None else promise
    for step, part in children_with_pointers(plan):
        yield from _faults(part, capped, account, at + step, tags, release_tags, promise)
    if not isinstance(plan, Mechanism):
        return
    contradicting = sorted(capped & (tags | release_tags))
    if promise is not None and contradicting:
        capped_by = f"the tag {contradicting[0]!r}, on which the account {account} has a cap"
        beside = "a tag on which an account above has a cap" if account is None else capped_by
        yield Fault(f"{promise}/reads", f"expected none beside {beside}")
    elif promise is None and not tags:
        whose = "an account above" if account is None else f"the account {account}"
        yield Fault(at, f'expected tags, or "reads": "nothing capped", as {whose} has caps')
