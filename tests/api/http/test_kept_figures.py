"""Figures that the ledger keeps: no two questions share a stored answer."""

from typing import Any

from fastapi import Request

from service.api.http.kept_figures import TO_KEEP, BalanceCache
from service.ledger.storage.database import Database
from tests.ledger.charging import account_of, open_account


def test_the_balance_without_a_tag_is_not_that_of_a_tag_named_none(database: Database) -> None:
    open_account(database)
    account = account_of(database)
    questions: list[tuple[object, ...]] = [(None, []), ("None", []), ("[]", None), (None, "[]"), (None, [], None)]
    stored: list[Any] = []
    for asked in questions:
        request = Request({"type": "http", "state": {}})
        BalanceCache(request, account, *asked).store({})
        stored += request.scope["state"][TO_KEEP]
    assert len({figures.state for figures in stored}) == len(questions)
