"""The spending of an account: each distinct subplan with its number of occurrences.

Balances at any order, tag or delta are computed from this and not from the releases, of which there may be millions.
"""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, func, select

from service.errors import Altered
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.spending.spending_rows import FEW, Subplans, is_sum, read_rows
from service.ledger.spending.subplans import condensed_in, is_allotted, nameless, plan_in
from service.ledger.storage.tables import Spending
from service.ledger.storage.transaction import secret_of
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan, Repeat, Sequence
from service.privacy.plans.condensed import Condensed, condense_sequence
from service.privacy.plans.walking import condense, parts_of, restrict

_SHORT = 1 << 16  # characters in rows that are read quickly


def counts(connection: Connection, account: AccountRecord) -> tuple[Subplans, Subplans]:
    """Return the committed and the held spending of an account with the accounts under it.

    The account must have been read in the same transaction. Each row is a distinct charged subplan, so the length of
    the result depends on how unlike the account's plans are, and not on the number of releases.

    Raises:
        Altered: the rows are not as the service wrote them: their sum is not the one in the account's row.
    """
    found, secret = read_rows(connection, account.id), secret_of(connection)
    if found is None or not is_sum(secret, account.id, account.spending_sum, *found):
        raise Altered("the account's spending", f"a row of spending, of account {account.name!r},")
    return found


def is_read_quickly(connection: Connection, account: AccountRecord, rows: int, characters: int) -> bool:
    """Return whether an account has at most so many distinct charged subplans, with so many characters together."""
    is_sqlite = connection.dialect.name == "sqlite"
    length = func.length(Spending.subplan) if is_sqlite else func.octet_length(Spending.subplan)
    query = select(length).where(Spending.account_id == account.id).limit(rows + 1)
    number = total = 0
    for size in connection.execute(query).scalars():  # SQLite reads a text to tell its length, but no further text
        number, total = number + 1, total + size
        if number > rows or total > characters:
            return False
    return True


def small_spending(connection: Connection, account: AccountRecord) -> Subplans | None:
    """Return the committed and held spending of an account together, if it is small; None if it is larger.

    Raises:
        Altered: as ``counts``.
    """
    if not is_read_quickly(connection, account, FEW, _SHORT):
        return None
    committed, held = counts(connection, account)
    return committed + held


def as_plan(subplans: Subplans, tag: str | None = None) -> Plan:
    """Return subplans with their numbers of occurrences as one plan; with ``tag``, only those that carry it.

    An allotment counts for every tag: the releases of the allotted account may carry any.

    Returns:
        A sequence of repeats; without parts where there are no subplans, or none carries the tag.
    """
    parts: list[Plan] = []
    for subplan, occurrences in subplans.items():
        part: Plan | None = nameless(plan_in(subplan))
        if tag is not None and part is not None and not is_allotted(subplan):
            part = restrict(part, tag)
        if part is not None:
            parts.append(Repeat(part=part, count=occurrences))
    return Sequence(parts=tuple(parts))


def condensed(subplans: Subplans, tag: str | None = None) -> Condensed:
    """Return ``condense(as_plan(subplans, tag))``, without the plans in between."""
    return condense_sequence(_condensed_parts(subplans, tag))


def _condensed_parts(subplans: Subplans, tag: str | None) -> Iterator[tuple[Condensed, int]]:
    for subplan, occurrences in subplans.items():
        if tag is None or is_allotted(subplan):
            yield condensed_in(subplan), occurrences
        elif (part := restrict(plan_in(subplan), tag)) is not None:
            yield condense(part), occurrences


def tags_of(subplans: Iterable[str]) -> list[str]:
    """Return the tags that the subplans carry, in order."""
    found: set[str] = set()
    for subplan in subplans:
        if '"tags":[' in subplan:  # most have none, and parsing a plan takes longest
            found.update(*_tags(plan_in(subplan)))
    return sorted(found)


def _tags(plan: Plan) -> Iterator[tuple[str, ...]]:
    yield plan.tags
    for part in () if isinstance(plan, Mechanism) else parts_of(plan):
        yield from _tags(part)
