"""Reads of releases: what a list takes before it is read."""

from service.ledger.releases import releases
from service.ledger.releases.releases import Wanted
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from tests.ledger.charging import account_of, charge, open_account


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
