"""Accuracy statements of a release and of a family: the margins of noisy counts, beside the guarantee."""

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.schemas.count_accuracy import CountAccuracy, count_accuracies
from service.api.schemas.exact_numbers import number_down, stated
from service.api.schemas.guarantees import BudgetModel, GuaranteeBody, guarantee_body
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import usual_delta
from service.ledger.draws.partitions import DrawnFor
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.releases.reservation_rows import State
from service.ledger.verification.receipts import counted_partitions, drawn_from
from service.privacy.accounting.guarantee import USUAL_ORDERS, guarantee
from service.privacy.mechanisms import Mechanism
from service.privacy.plans.condensed import condense_sequence
from service.privacy.plans.walking import Neighbouring, condense, runs_of

_FACTS = ("account", "release", "name", "state", "unit", "neighbouring", "epsilon", "delta", "rho")
_FIGURES = (
    "mechanism", "tags", "type", "parameters", "repetitions", "partitions_declared", "partitions_drawn", "confidence",
    "moe", "coverage", "standard_deviation", "drawn",
)  # fmt: skip


class MechanismAccuracy(CountAccuracy):
    """The accuracy of one noisy count of a mechanism, and its partitions."""

    partitions_declared: int | None = Field(description="null: none are declared.")
    partitions_drawn: int
    drawn: bool = Field(
        description="Whether this service drew it, for partitions or for the whole input. Nothing says whether it was"
        " published, nor whether others drew it."
    )


class AccuracyStatement(BaseModel):
    """The guarantee of a release and the accuracy of each of its mechanisms, for a publication."""

    account: str
    release: str
    name: str
    state: State
    unit: str
    neighbouring: Neighbouring
    epsilon: float | None = Field(
        description="The least at delta that holds under adaptive choice, or where there is none the least of all."
        " Rounded up; null: infinite."
    )
    delta: float
    pure: float | None = Field(
        description="The epsilon without a delta, which also holds under adaptive choice. Rounded up; null: infinite,"
        " or mechanisms have a delta."
    )
    rho: float | None = Field(description="Rounded up; null: infinite, or mechanisms have a delta.")
    confidence: float
    mechanisms: list[MechanismAccuracy]


class FamilyStatement(BaseModel):
    """The accuracy of several releases, and their loss together, for a publication."""

    account: str
    unit: str
    neighbouring: Neighbouring
    budget: BudgetModel
    confidence: float
    joint: GuaranteeBody = Field(
        description="The loss of all releases together, at the account's delta and at the Rényi order of its budget;"
        " its conversions are marked adaptive: false."
    )
    releases: list[AccuracyStatement]


class DrawnMechanisms(NamedTuple):
    """The mechanisms of a release that were drawn, by their names.

    Attributes:
        counters: of those that were drawn for partitions.
        whole: those that were drawn for the whole input.
    """

    counters: Mapping[str, DrawnFor]
    whole: frozenset[str]


def drawn_mechanisms(connection: Connection, owner: AccountRecord, release: ReleaseRecord) -> DrawnMechanisms:
    """Return the mechanisms of a release that were drawn, by all texts of its account's journal.

    Raises:
        Altered: an entry or a counter is not as the service wrote it.
    """
    draws = drawn_from(connection, owner, release)
    counters = {one.mechanism: one for one in counted_partitions(connection, release, draws)}
    return DrawnMechanisms(counters, frozenset(one.mechanism for one in draws if not one.partition))


def joint_loss(owner: AccountRecord, releases: Sequence[ReleaseRecord]) -> dict[str, Any]:
    """Return the loss of an account's releases together, as JSON; nothing is lost without releases."""
    plan = condense_sequence((condense(release.plan), 1) for release in releases)
    budget = owner.budget
    orders = USUAL_ORDERS if budget.alpha is None else (budget.alpha,)
    deltas = (usual_delta(budget),)
    return guarantee_body(guarantee(plan, owner.neighbouring, deltas=deltas, orders=orders, adaptive=False))


def statement_of(
    owner: AccountRecord,
    release: ReleaseRecord,
    cost: Mapping[str, Any],
    drawn: DrawnMechanisms,
    confidence: Fraction,
) -> dict[str, Any]:
    """Return the accuracy statement of a release, with an iterator of its mechanisms.

    Args:
        cost: the guarantee of the release, as JSON.
        drawn: its mechanisms that were drawn.
        confidence: of the margins.
    """
    (best,) = cost["best"]
    guarantee = best["adaptive"] or best["fixed"] or {}
    pure, zcdp = (None, None) if cost["delta"] else (cost["pure"], cost["zcdp"])  # they hold only beside a delta
    return {
        "account": owner.name,
        "release": release.id,
        "name": release.name,
        "state": release.state,
        "unit": owner.unit,
        "neighbouring": owner.neighbouring.value,
        "epsilon": guarantee.get("epsilon"),
        "delta": best["delta"],
        "pure": None if pure is None else pure["epsilon"],
        "rho": None if zcdp is None else zcdp["rho"],
        "confidence": stated(confidence, number_down),
        "mechanisms": _with_partitions(runs_of(release.plan), drawn, confidence),
    }


def table_of(statement: Mapping[str, Any]) -> tuple[Sequence[str], Iterator[list[Any]]]:
    """Return an accuracy statement as a table with a row for each mechanism: its columns, and its rows."""
    facts = [statement[name] for name in _FACTS]
    confidence = {"confidence": statement["confidence"]}
    rows = ([*facts, *_in_table(figures | confidence)] for figures in statement["mechanisms"])
    return (*_FACTS, *_FIGURES), rows


def table_of_family(
    statements: Sequence[Mapping[str, Any]], joint: Mapping[str, Any]
) -> tuple[Sequence[str], Iterator[list[Any]]]:
    """Return the statements of a family as one table; each row ends with the loss of all releases together."""
    (best,) = joint["best"]
    least = best["fixed"] or {}
    together = [least.get("epsilon"), best["delta"], None if joint["zcdp"] is None else joint["zcdp"]["rho"]]
    rows = ([*row, *together] for statement in statements for row in table_of(statement)[1])
    return (*_FACTS, *_FIGURES, "joint_epsilon", "joint_delta", "joint_rho"), rows


def _with_partitions(
    runs: Iterator[tuple[Mechanism, int]], drawn: DrawnMechanisms, confidence: Fraction
) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of each mechanism, with its partitions and whether it was drawn."""
    for mechanism, figures in count_accuracies(runs, confidence, {}):
        found = drawn.counters.get(mechanism.name or "")
        yield figures | {
            "partitions_declared": None if mechanism.partitions is None else mechanism.partitions.most,
            "partitions_drawn": 0 if found is None else found.drawn,
            "drawn": found is not None or mechanism.name in drawn.whole,
        }


def _in_table(figures: dict[str, Any]) -> list[Any]:
    return [json.dumps(figures[name]) if name == "parameters" else figures[name] for name in _FIGURES]
