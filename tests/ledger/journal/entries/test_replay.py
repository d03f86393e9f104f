"""Recorded journals replayed beside a model in plain fractions, which reads the entries' JSON by itself."""

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from service.ledger.accounts.budgets import write_budget
from service.ledger.journal import entries
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.journal.journal import BEFORE_FIRST, Head, entry_hash
from tests.ledger.journal.entries.recorded import bodies


@dataclass
class _Model:
    """An account in plain terms."""

    budget: Any = None
    open: bool = True
    approval_above: str | None = None
    waiting: int | None = None
    metadata: Any = field(default_factory=dict)
    caps: dict[str, Any] = field(default_factory=dict)
    prices: dict[str, str | None] = field(default_factory=dict)  # the rho of each release that counts
    held: dict[str, str] = field(default_factory=dict)
    allotted: dict[str, str | None] = field(default_factory=dict)  # the rho of each allotted account's amount

    def take(self, said: dict[str, Any]) -> None:
        content, release = said["content"], said["release"]
        match said["kind"]:
            case "account_opened":
                self.budget, self.approval_above = content["budget"], content["approval_above"]
                self.caps = {cap["tag"]: cap["budget"] for cap in content.get("caps", ())}
            case "budget_changed":
                self.budget, self.waiting = content["budget"], None
            case "caps_changed":
                self.caps |= {cap["tag"]: cap["budget"] for cap in content["caps"]}
                self.waiting = None
            case "account_closed" | "account_reopened":
                self.open, self.waiting = said["kind"] == "account_reopened", None
            case "change_rejected" | "approvers_changed":
                self.waiting = None
            case "change_proposed":
                self.waiting = said["seq"]
            case "metadata_changed":
                self.approval_above = content["approval_above"]
            case "described" if release is None:
                self.metadata = content["metadata"]
            case "allotted":
                self.allotted[content["child"]] = content["price"]["rho"]
            case "repriced":
                self.prices[release] = content["price"]["rho"]
            case "approved" | "committed" | "reserved" | "proposed" | "voided" | "expired":
                self._move(release, content.get("to", said["kind"]), content)

    def _move(self, release: str, state: str, content: dict[str, Any]) -> None:
        if "price" in content:
            self.prices[release] = content["price"]["rho"]
        self.held.pop(release, None)
        if state in ("reserved", "proposed"):
            self.held[release] = state
        elif state != "committed":
            del self.prices[release]


@pytest.mark.parametrize("name", sorted(bodies()), ids=lambda name: name.rpartition("/")[2])
def test_a_recorded_journal_is_replayed_as_the_model_has_it(name: str) -> None:
    model, chain = _Model(), AccountState(name.rpartition(" ")[2])
    for body in bodies()[name]:
        stated = entries.read_text(body)
        stated.follow(chain, Head(stated.seq, entry_hash(chain.head.hash, body)))
        model.take(json.loads(body))
        counted = [*model.prices.values(), *model.allotted.values()]
        rhos = [None if rho is None else Fraction(rho) for rho in counted]
        assert write_budget(chain.current_budget) == model.budget
        assert {tag: write_budget(cap.budget) for tag, cap in chain.caps.items()} == model.caps
        assert (chain.state == "open", chain.approval_above) == (model.open, model.approval_above)
        assert (None if chain.proposed is None else chain.proposed.seq) == model.waiting
        assert chain.metadata == model.metadata
        assert {release: held.state for release, held in chain.held.items()} == model.held
        assert chain.releases == len(model.prices)
        if chain.periods is None:  # else they are those of windows, which the tests of periods compare
            assert chain.totals.rho.finite == sum((rho for rho in rhos if rho is not None), Fraction(0))
            assert chain.totals.rho.infinite == rhos.count(None)
    assert chain.head != BEFORE_FIRST


def test_what_is_read_without_parsing_is_what_parsing_gives() -> None:
    found = 0
    for body in (body for texts in bodies().values() for body in texts):
        fast, content = registered(body), entries.read_text(body).content
        assert (fast is not None) == isinstance(content, entries.Committed)
        if fast is not None and isinstance(content, entries.Committed):
            found += 1
            assert fast == content.charge
    assert found
