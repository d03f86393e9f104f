"""The search of releases over all accounts, in pages of bounded work."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select, tuple_

from service.ledger.releases.releases import (
    HELD,
    RELEASES,
    SIZE,
    UNCOMMITTED,
    ReleaseRecord,
    Wanted,
    is_due,
    record_of,
    searched,
)
from service.ledger.storage.paging import CHARACTERS, BeforeReading, rows_of
from service.ledger.storage.tables import Account, Release, ReleaseTag

MOST_SEARCHED = 1 << 17
"""Releases that one page looks at, whether or not they match; it may end without having found any."""
_AN_ACCOUNT = 100  # releases that looking at one account counts as at least
_PLACE = (Release.account_id, Release.seq)
_END = 10**15 - 1  # above all numbers of accounts and of entries, of which a cursor has 15 digits
_place = tuple_(*_PLACE)

Place = tuple[int, int]
"""The place of a release in the search: the number of its account and that of the entry that charged it."""


class Found(NamedTuple):
    """A page of a search.

    Attributes:
        releases: each with the name of its account, in the order of the search.
        last: the place up to which the page searched; None: up to the end.
    """

    releases: list[tuple[str, ReleaseRecord]]
    last: Place | None


def search_releases(
    connection: Connection,
    after: Place,
    limit: int,
    only: frozenset[str] | None,
    wanted: Wanted,
    at: str,
    before_reading: BeforeReading,
    *,
    newest_first: bool = False,
) -> Found:
    """Return a page of the releases of all accounts that match, by account and in the order of their registration.

    Args:
        after: the place that the page follows; zeros for the first page.
        only: the names of the accounts to include; None: all.
        at: the moment of the question.
        newest_first: in the reverse order.

    Raises:
        Altered: a release is not as the service wrote it.
    """
    if newest_first and not any(after):
        after = _END, _END
    found: list[tuple[str, ReleaseRecord]] = []
    room, characters = MOST_SEARCHED, 0

    def reading(size: int) -> None:
        nonlocal characters
        characters += size
        before_reading(size)

    order = [column.desc() if newest_first else column.asc() for column in _PLACE]
    matching = RELEASES.order_by(*order).add_columns(Release.account_id, Account.name.label("account"))
    matching = matching.join(Account, Account.id == Release.account_id)
    matching = matching.where(*searched(connection, Account.name, Account.head_seq, wanted), *_in_state(wanted, at))
    if wanted.tag is not None:
        matching = matching.where(
            _tagged(wanted.tag, ReleaseTag.account_id == Release.account_id, ReleaseTag.seq == Release.seq)
        )
    # an account that the page before ended with is not looked at again
    first = after[0] - (after[1] == 0) if newest_first else after[0] + (after[1] == _END)
    for account in _accounts(connection, first, only, wanted, newest_first=newest_first):
        follow = list(_after(account, after, newest_first=newest_first))
        keys = select(*_PLACE).where(*follow).order_by(*order)
        number = connection.execute(
            select(func.count()).select_from(keys.limit(room).subquery("numbered"))
        ).scalar_one()
        query, last = matching.where(*follow), None
        if number == room:
            last = _place_in(connection.execute(keys.offset(room - 1).limit(1)).one())
            query = query.where(_until(account, last, newest_first=newest_first))
        rows = rows_of(connection, query, SIZE, limit - len(found), CHARACTERS - characters, before_reading=reading)
        records = ((row.account, record_of(connection, row)) for row in rows)
        found.extend((account, one.seen(at)) for account, one in records if one.carries(wanted.tag))
        if rows.more:
            return Found(found, _place_in(rows[-1]))
        room -= max(number, _AN_ACCOUNT)
        if account is not None and room <= 0:
            last = last or (account, 0 if newest_first else _END)
        if last is not None:
            return Found(found, last)
    return Found(found, None)


def _accounts(
    connection: Connection, first: int, only: frozenset[str] | None, wanted: Wanted, *, newest_first: bool
) -> Sequence[int] | Sequence[None]:
    """Return the numbers of the accounts to search one by one, from the first one; one None: all of them at once.

    Where the key, a tag or a rare state leaves few accounts, each is searched by itself.
    """
    accounts = select(Account.id).where(Account.id <= first if newest_first else Account.id >= first)
    accounts = accounts.order_by(Account.id.desc() if newest_first else Account.id)
    if wanted.tag is not None:
        accounts = accounts.where(_tagged(wanted.tag, ReleaseTag.account_id == Account.id))
    if wanted.state not in (None, "committed"):
        states = ("expired", *HELD) if wanted.state == "expired" else (wanted.state,)
        in_one = (exists().where(Release.account_id == Account.id, UNCOMMITTED, Release.state == one) for one in states)
        accounts = accounts.where(or_(*in_one))
    elif only is None and wanted.tag is None:
        return [None]
    if only is not None:
        accounts = accounts.where(Account.name.in_(only))
    return connection.execute(accounts).scalars().all()


def _after(account: int | None, place: Place, *, newest_first: bool) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of the releases of an account, or of all, that follow a place."""
    if account is None:
        yield _place < place if newest_first else _place > place
        return
    yield Release.account_id == account
    if newest_first:
        yield Release.seq < (place[1] if account == place[0] else _END)
    else:
        yield Release.seq > (place[1] if account == place[0] else 0)


def _until(account: int | None, place: Place, *, newest_first: bool) -> ColumnElement[bool]:
    at, stated = (_place, place) if account is None else (Release.seq, place[1])
    return at >= stated if newest_first else at <= stated


def _tagged(tag: str, *where: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(*where, ReleaseTag.tag == tag)


def _in_state(wanted: Wanted, at: str) -> Iterator[ColumnElement[bool]]:
    match wanted.state:
        case None:
            return
        case "expired":
            yield and_(UNCOMMITTED, or_(Release.state == "expired", and_(Release.state.in_(HELD), is_due(at))))
        case "committed" | "voided":
            yield Release.state == wanted.state
        case _:
            yield and_(UNCOMMITTED, Release.state == wanted.state, ~is_due(at))


def _place_in(row: Row[*tuple[Any, ...]]) -> Place:
    return row.account_id, row.seq
