"""Figures that the ledger stores already, and figures that a request computed and leaves to be stored."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from sqlalchemy import Connection

from service.api.schemas.guarantees import cost_of
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.spending import kept_figures
from service.ledger.spending.kept_figures import KeptFigures
from service.privacy.accounting.pricing import MEMOISED_SIZE
from service.privacy.plans.walking import condense

TO_KEEP = "to_keep"  # in the state of a request
_LARGEST = 1 << 16  # characters of figures that are kept


def costs_of(
    connection: Connection, request: Request, owner: AccountRecord, releases: Sequence[ReleaseRecord]
) -> list[dict[str, Any]]:
    """Return the guarantee of each release; that of a large plan is computed once and then stored."""
    subjects = [subject_of(release.id) for release in releases]
    there = kept_figures.read_kept(connection, request.app.state.secret, kept_figures.FOUND_BY, subjects)
    costs: list[dict[str, Any]] = []
    for subject, release in zip(subjects, releases, strict=True):
        if subject in there:
            costs.append(json.loads(there[subject]))
            continue
        plan = condense(release.plan)
        costs.append(cost_of(plan, owner.neighbouring, (release.delta,)))
        if plan.size > MEMOISED_SIZE:
            _store_later(request, KeptFigures(subject, kept_figures.FOUND_BY, json.dumps(costs[-1])))
    return costs


def subject_of(release_id: str) -> str:
    """Return the subject under which figures of a release are stored."""
    return f"release {release_id}"


class BalanceCache:
    """A stored answer about an account's balance at its present head."""

    def __init__(self, request: Request, account: AccountRecord, *asked: object) -> None:
        self._request = request
        digest = hashlib.sha256(repr(asked).encode()).hexdigest()
        # One of sixteen rows, which bounds the rows of an account however many different requests come.
        self._subject = f"balance {account.id} {digest[0]}"
        self._state = f"{kept_figures.FOUND_BY} {account.head.hash} {account.spending_sum} {digest}"

    def look_up(self, connection: Connection) -> dict[str, Any] | None:
        """Return the answer; None where it is not stored."""
        stored = kept_figures.read_kept(connection, self._request.app.state.secret, self._state, [self._subject])
        answer: dict[str, Any] | None = json.loads(stored[self._subject]) if stored else None
        return answer

    def store(self, answer: dict[str, Any]) -> None:
        """Leave an answer to be stored."""
        _store_later(self._request, KeptFigures(self._subject, self._state, json.dumps(answer)))


def _store_later(request: Request, figures: KeptFigures) -> None:
    if len(figures.cost) <= _LARGEST:
        request.scope["state"].setdefault(TO_KEEP, []).append(figures)
