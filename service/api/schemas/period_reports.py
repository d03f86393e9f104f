"""Reports of an account and a period as JSON."""

from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.api.schemas.approvals import ApproversModel
from service.api.schemas.charges import ChargeBody
from service.api.schemas.count_accuracy import CountAccuracy
from service.api.schemas.exact_numbers import number_down, number_up, short_exact, stated
from service.api.schemas.guarantees import BudgetModel, HeadBody, head_body
from service.ledger.accounts.budgets import write_budget
from service.ledger.releases.reservation_rows import State
from service.ledger.spending.period_records import AccountChange, ChildShare, Draws, PeriodReport, Standing
from service.ledger.spending.period_report import MOST_CHANGES, MOST_WAITING
from service.privacy.plans.walking import Neighbouring

MOST_CHILDREN = 1000
"""The accounts below that a report lists, in the order of their names."""
MOST_MECHANISMS = 20
"""The mechanisms of each release that a report lists."""


class StandingBody(BaseModel):
    """An account right after one of its journal's entries, in nats of its budget's definition."""

    head: HeadBody
    at: str = Field(description="The moment of the entry.")
    budget: BudgetModel
    cap: float = Field(description="The cap of the budget at that time.")
    spent: float | None = Field(
        description="The loss of committed releases and of allotments, by admission's count; rounded up. Null:"
        " infinite."
    )
    spent_exact: str | None = Field(description="spent as an exact number, where it is rational and short.")
    held: float | None = Field(
        description="By how much the reservations and proposals of that time raise the figure that is compared with the"
        " cap; rounded up. Null: infinite."
    )
    held_exact: str | None
    left: float = Field(description="What was left of the cap; rounded down, never below 0.")
    left_exact: str | None
    used: float | None = Field(
        description="The part of the budget that was spent or held, on the scale of the account's gauge: 1 is the whole"
        " budget. Rounded up; null: infinite."
    )
    allotted: float | None = Field(description="Of spent: what was allotted, counted alone; rounded up.")
    allotted_exact: str | None
    declared_delta: float = Field(description="The sum of the deltas that mechanisms declare; rounded up.")
    releases: int = Field(description="Committed and held releases, of the account and of those under it.")


class ChangeBody(BaseModel):
    """The figures at the end of a period less those at its beginning. Null: one of them is infinite."""

    cap: float
    spent: float | None = Field(description="Rounded up.")
    spent_exact: str | None
    held: float | None = Field(description="Rounded up.")
    held_exact: str | None
    left: float = Field(description="Rounded down.")
    left_exact: str | None


class ReportedDraws(BaseModel):
    """The draws of one release in the period."""

    number: int
    first_at: str
    last_at: str
    by: list[str] = Field(description="The principals, at most 20, in the order of their first draws.")


class ReportedApproval(BaseModel):
    """The approval of a release by one person."""

    by: str
    at: str
    reason: str | None = Field(description="In that person's words; null: none was given.")
    seq: int = Field(description="The number of its journal entry.")


class ReportedMechanism(CountAccuracy):
    """The accuracy of one noisy count of a mechanism, and whether it was drawn."""

    drawn: bool = Field(
        description="Whether this service drew it up to the end of the period, for partitions or the whole input."
    )


class ReportedRelease(BaseModel):
    """A release with an entry in the period; of steps outside the period, only registration and approval are stated."""

    release: str
    name: str
    tags: list[str]
    purpose: str | None = Field(description="The intended_use of its metadata, or else of the account's.")
    state_before: State | None = Field(description="At the beginning of the period; null: it was registered later.")
    state: State = Field(description="At the end of the period.")
    registered_at: str
    registered_by: str
    approved_at: str | None
    approved_by: str | None = Field(description="Where several persons approved it, the last one.")
    approval_reason: str | None = Field(description="In that person's words; null also where none was given.")
    approvals: list[ReportedApproval] = Field(
        description="All approvals up to the end of the period, in their order, also while others must still approve."
    )
    ended_at: str | None = Field(description="When a reservation or proposal was committed, voided or expired.")
    ended_by: str | None = Field(description="Null also where it expired.")
    end_reason: str | None = Field(description="Why it was approved or voided; null also where no reason was given.")
    draws: ReportedDraws | None
    charge: ChargeBody = Field(description="share is its part of the budget at the end of the period.")
    mechanisms: list[ReportedMechanism] = Field(description="At most 20; its accuracy statement has all.")
    mechanisms_number: int


class ReportedChange(BaseModel):
    """A change of the account, or a proposal or rejection of one."""

    seq: int
    kind: str
    at: str
    by: str | None = Field(description="The principal that made it; of a proposed one, that approved or rejected it.")
    reason: str | None
    former_budget: BudgetModel | None = Field(description="The budget until then, where it changes.")
    budget: BudgetModel | None
    approval_above: str | None = Field(description="The new threshold, where it changes.")
    caps: list[str] | None = Field(description="The tags whose caps change.")
    approvers: ApproversModel | None = Field(description="The new approvers, where they change.")
    proposed_by: str | None = Field(description="Of a change that was proposed: the principal that proposed it.")
    proposed_at: str | None
    proposal_reason: str | None


class ReportedChild(BaseModel):
    """An account below, and what it has charged to this one, in the definition of this account's budget.

    In an account with periods, all its releases are counted together, whatever periods they read.
    """

    account: str
    funding: Literal["shared", "allotted"]
    spent_before: float | None = Field(description="At the beginning of the period; rounded up. Null: infinite.")
    spent: float | None = Field(description="At the end: of committed releases, or the whole allotment.")
    spent_exact: str | None
    counted: float | None = Field(description="spent with what it holds at the end; rounded up.")
    counted_exact: str | None
    used: float | None = Field(description="counted as a part of the budget, on the scale of the gauge; rounded up.")
    releases: int


class WaitingRelease(BaseModel):
    """A proposed release."""

    release: str
    name: str
    proposed_by: str
    proposed_at: str
    expires_at: str | None


class WaitingChange(BaseModel):
    """A proposed change of the account."""

    seq: int
    budget: BudgetModel | None
    state: Literal["open"] | None
    caps: list[str] | None
    approvers: ApproversModel | None
    proposed_by: str
    proposed_at: str
    reason: str | None


class WaitingBody(BaseModel):
    """Proposals that wait for approval at the end of the period."""

    releases: list[WaitingRelease] = Field(description=f"The oldest, at most {MOST_WAITING}.")
    number: int = Field(description="Of all proposed releases.")
    change: WaitingChange | None


class ReportNumbers(BaseModel):
    """Counts of the whole period; of releases of the account itself, without those of accounts under it."""

    releases: int = Field(description="Releases with an entry in the period.")
    registered: int
    approved: int
    committed: int = Field(description="At once, by a commit, by an approval or by a first draw.")
    voided: int
    expired: int
    draws: int
    priced_again: int
    changes: int = Field(description="Changes of the account, with proposals and rejections.")


class WholeBudget(BaseModel):
    """The bound on all releases together once the whole budget is spent; null: no epsilon bounds them at the delta."""

    epsilon: float | str | None
    delta: str | None


class ReportBody(BaseModel):
    """An account and a period, by the account's journal.

    releases is a page; all other figures are of the whole period. They are in the budget's own definition, by
    admission's count: in an account with periods, each of the window in which it is largest, under an (epsilon, delta)
    budget a bound that no window exceeds. A reservation counts until an entry records its expiry.
    """

    account: str
    unit: str
    neighbouring: Neighbouring
    parent: str | None
    since: str | None = Field(description="The beginning of the period; null: since the account was opened.")
    until: str = Field(description="Its end, which is not part of it.")
    made_at: str
    budget: BudgetModel = Field(description="At the end of the period.")
    delta: str = Field(description="The delta at which losses of the account are also shown as (epsilon, delta).")
    whole_budget: WholeBudget
    beginning: StandingBody | None = Field(description="Null: the account was opened in the period.")
    end: StandingBody
    change: ChangeBody
    numbers: ReportNumbers
    confidence: float
    releases: list[ReportedRelease]
    next_cursor: str | None
    changes: list[ReportedChange] = Field(description=f"The last ones, at most {MOST_CHANGES}.")
    children: list[ReportedChild] = Field(description=f"By name; at most {MOST_CHILDREN}.")
    children_number: int
    waiting: WaitingBody
    head: HeadBody = Field(
        description="The journal's last entry when the report was made; seq is the number of all entries. The journal"
        " up to it gives all figures."
    )


def figure(name: str, value: Fraction | None) -> dict[str, Any]:
    """Return the two members of a loss: rounded up, and exact where it is short; None is infinite."""
    if value is None:
        return {name: None, f"{name}_exact": None}
    return {name: number_up(value), f"{name}_exact": short_exact(value)}


def _rest(name: str, value: Fraction) -> dict[str, Any]:
    return {name: number_down(value), f"{name}_exact": short_exact(value)}


def _held(standing: Standing) -> Fraction | None:
    counted, spent = standing.spending.counted, standing.spending.committed
    return None if counted is None or spent is None else counted - spent


def standing_body(standing: Standing) -> dict[str, Any]:
    """Return an account at one of its entries as JSON."""
    spending = standing.spending
    return {
        "head": head_body(standing.head),
        "at": spending.at,
        "budget": write_budget(standing.budget),
        "cap": stated(spending.cap, number_down),
        **figure("spent", spending.committed),
        **figure("held", _held(standing)),
        **_rest("left", spending.remaining),
        "used": None if standing.used is None else number_up(standing.used),
        **figure("allotted", standing.allotted),
        "declared_delta": number_up(spending.delta),
        "releases": spending.releases,
    }


def change_body(beginning: Standing | None, end: Standing) -> dict[str, Any]:
    """Return the change of an account's figures in a period as JSON; before it is opened, all of them are 0."""

    def less(later: Fraction | None, earlier: Fraction | None) -> Fraction | None:
        return None if later is None or earlier is None else later - earlier

    nothing = Fraction(0)
    cap, spent, held, left = nothing, nothing, nothing, nothing
    before: tuple[Fraction, Fraction | None, Fraction | None, Fraction] = (cap, spent, held, left)
    if beginning is not None:
        spending = beginning.spending
        before = (spending.cap, spending.committed, _held(beginning), spending.remaining)
    return {
        "cap": stated(end.spending.cap - before[0], number_down),
        **figure("spent", less(end.spending.committed, before[1])),
        **figure("held", less(_held(end), before[2])),
        **_rest("left", end.spending.remaining - before[3]),
    }


def draws_body(draws: Draws | None) -> dict[str, Any] | None:
    """Return the draws of a release in a period as JSON."""
    if draws is None:
        return None
    return {"number": draws.number, "first_at": draws.first, "last_at": draws.last, "by": draws.by}


def reported_change(change: AccountChange) -> dict[str, Any]:
    """Return a change of an account as JSON."""
    entry, content, proposal = change.entry, change.entry.content, change.proposal
    budget, caps, approvers = (getattr(content, name, None) for name in ("budget", "caps", "approvers"))
    is_new = change.former is None
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "at": entry.time,
        "by": entry.actor,
        "reason": content.view().reason,
        "former_budget": None if budget is None or is_new or change.former is None else write_budget(change.former),
        "budget": None if budget is None else write_budget(budget),
        "approval_above": getattr(content, "approval_above", None),
        "caps": None if caps is None else [cap.tag for cap in caps],
        "approvers": None if approvers is None else approvers.document(),
        "proposed_by": None if proposal is None else proposal.by.name,
        "proposed_at": None if proposal is None else proposal.at,
        "proposal_reason": None if proposal is None else proposal.reason,
    }


def reported_child(name: str, share: ChildShare) -> dict[str, Any]:
    """Return the part of an account below as JSON."""
    return {
        "account": name,
        "funding": "allotted" if share.allotted else "shared",
        "spent_before": None if share.before is None else number_up(share.before),
        **figure("spent", share.spent),
        **figure("counted", share.counted),
        "used": None if share.used is None else number_up(share.used),
        "releases": share.releases,
    }


def numbers_body(report: PeriodReport) -> dict[str, int]:
    """Return the counts of a period as JSON."""
    numbers = report.numbers
    names = {name: name for name in ReportNumbers.model_fields} | {"draws": "drawn", "priced_again": "repriced"}
    return {name: numbers[counted] for name, counted in names.items()}


def waiting_body(report: PeriodReport) -> dict[str, Any]:
    """Return the proposals that wait at the end of a period as JSON."""
    releases = [
        {
            "release": one.release,
            "name": one.name,
            "proposed_by": one.by,
            "proposed_at": one.at,
            "expires_at": one.expires_at,
        }
        for one in report.waiting
    ]
    return {"releases": releases, "number": report.number_waiting, "change": _waiting_change(report)}


def _waiting_change(report: PeriodReport) -> dict[str, Any] | None:
    proposed = report.proposed
    if proposed is None:
        return None
    caps = proposed.change.get("caps")
    return {
        "seq": proposed.seq,
        "budget": proposed.change.get("budget"),
        "state": proposed.change.get("state"),
        "caps": None if caps is None else [cap["tag"] for cap in caps],
        "approvers": proposed.change.get("approvers"),
        "proposed_by": proposed.by.name,
        "proposed_at": proposed.at,
        "reason": proposed.reason,
    }
