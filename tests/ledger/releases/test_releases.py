"""Reads of releases: the size of a list before it is read, and lists beside rows that somebody else wrote."""

from functools import partial
from typing import Any

import pytest

from service.ledger.releases import releases
from service.ledger.releases.release_search import search_releases
from service.ledger.releases.releases import Wanted
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from tests.ledger.charging import account_of, charge, open_account
from tests.ledger.writing import run

_ACCOUNT = {"definition": "zcdp", "rho": "1"}
_PLAN: dict[str, Any] = {"type": "gaussian", "rho": "1/100"}


def test_the_size_of_a_list_counts_the_periods_that_releases_state(database: Database) -> None:
    open_account(database, periods={"calendar": "index", "participation": {"offsets": [0]}})
    plan = {"type": "discrete_gaussian", "rho": "0.1"}
    charge(database, plan, periods={"list": list(range(0, 400, 2))})
    charge(database, plan, periods="all")
    sizes: list[int] = []
    with database.read() as connection:
        page = releases.list_releases(connection, account_of(database).chain, 0, 9, Wanted(), clock.now(), sizes.append)
    assert len(page[0].periods or "") > 700
    assert sizes == [sum(len(one.plan_text) + len("[]") + len(one.periods or "") for one in page)]


def _listed(database: Database, limit: int, wanted: Wanted) -> list[list[str]]:
    """Return the ids in the list of an account, in both orders, and in that of all accounts, in pages."""
    account, now = account_of(database).chain, clock.now()
    found: list[list[str]] = []
    with database.read() as connection:
        for newest_first in (False, True):
            asked = partial(releases.list_releases, connection, account, newest_first=newest_first)
            page = asked(0, limit, wanted, now, lambda _: None)
            found.append([one.id for one in page])
            while page.more and page:
                page = asked(page[-1].head.seq, limit, wanted, now, lambda _: None)
                found[-1] += [one.id for one in page]
        found.append([])
        place: tuple[int, int] | None = (0, 0)
        while place is not None:
            some = search_releases(connection, place, limit, None, wanted, now, lambda _: None)
            found[-1] += [one.id for _, one in some.releases]
            place = some.last
    return found


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_tag_that_somebody_put_beside_a_release_does_not_list_it(database: Database, limit: int) -> None:
    """The attack: any role that may add rows could put a release into the accuracy statement of another family."""
    open_account(database, **_ACCOUNT)
    tagged, plain = _PLAN | {"tags": ["race"]}, _PLAN | {"name": "race"}
    inside = {"type": "repeat", "count": 2, "part": tagged}
    ids = [one.id for one in charge(database, tagged, plain, plain, inside, plain)]
    expected = [[ids[0], ids[3]], [ids[3], ids[0]], [ids[0], ids[3]]]
    assert _listed(database, limit, Wanted(tag="race")) == expected
    others = "SELECT account_id, 'race', seq FROM releases WHERE plan LIKE '%\"name\"%'"
    run(database, f"INSERT INTO release_tags (account_id, tag, seq) {others}")
    assert _listed(database, limit, Wanted(tag="race")) == expected


def test_an_approval_beyond_the_head_of_an_account_is_none(database: Database) -> None:
    open_account(database, **_ACCOUNT)
    (made,) = charge(database, _PLAN)
    columns = "account_id, seq, kind, release_id, body, hash"
    values = "1, 1000000, 'approved', :release, :body, 'x'"
    body = '{"account":"people","actor":"bob","content":{}}'
    run(database, f"INSERT INTO journal ({columns}) VALUES ({values})", release=made.id, body=body)
    assert _listed(database, 10, Wanted(approver="bob")) == [[], [], []]
