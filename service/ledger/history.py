"""The journal replayed: what an account was at any of its entries."""

import json
from collections import Counter
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from service.ledger import budgets, journal, spending
from service.ledger.accounts import AccountRecord
from service.ledger.journal import Head
from service.privacy.filter import Totals, add
from service.privacy.notation import read_plan
from service.privacy.plan import Plan

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Moment:
    """An account as its journal had it: the record, what it had spent, on how many releases."""

    account: AccountRecord
    spent: Plan
    releases: int


def replay(connection: Connection, account: AccountRecord, until: int, tag: str | None = None) -> Moment:
    """The account right after entry ``until``, from nothing but its journal; ``spent`` counts what carries ``tag``.

    At the head this gives the stored totals bit for bit: they are sums of the journalled prices.
    """
    moment, releases = replace(account, totals=Totals(), state="open", head=journal.BEFORE_FIRST), 0
    subplans: Counter[str] = Counter()
    while moment.head.seq < until:
        page = journal.entries(connection, account.id, moment.head.seq, min(_PAGE, until - moment.head.seq))
        if not page:
            break
        for entry in page:
            content = json.loads(entry.body)["content"]
            moment = replace(_after(moment, entry.kind, content), head=Head(entry.seq, entry.hash))
            if entry.kind == "committed":
                releases += 1
                subplans.update(spending.subplans_of(read_plan(content["plan"]), content["tags"]))
    return Moment(moment, spending.composed(subplans.items(), tag), releases)


def _after(account: AccountRecord, kind: str, content: dict[str, object]) -> AccountRecord:
    match kind, content:
        case "committed", {"price": dict(price)}:
            return replace(account, totals=add(account.totals, budgets.read_price(price)))
        case "account_opened" | "budget_changed", {"budget": dict(budget)}:
            return replace(account, budget=budgets.read_budget(budget))
        case "account_closed", _:
            return replace(account, state="closed")
        case "account_reopened", _:
            return replace(account, state="open")
        case _:
            return account
