"""Approvers of accounts in requests and answers, and how far a proposal is approved."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.schemas.exact_numbers import Label, Strict
from service.errors import Fault, InvalidInput
from service.ledger.access.authentication import Principal
from service.ledger.access.key_events import Known, SeenKeys, sound_keys
from service.ledger.access.keys import ISSUED, is_distinct_name
from service.ledger.accounts.able_approvers import NamedKeys
from service.ledger.accounts.approvals import Approval, Objection, ObjectionKind
from service.ledger.accounts.approvers import MOST_NAMES, MOST_PERSONS, Approvers
from service.ledger.accounts.two_persons import objection_to
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.transaction import secret_of

WithObstacle = Annotated[
    bool,
    Query(
        description="Include the reason why the caller cannot approve what waits, and the principals that are asked and"
        " have no key for it."
    ),
]


class ApproversModel(Strict):
    """The persons who must approve what an account asks approval for."""

    at_least: Annotated[int, Field(strict=True, ge=1, le=MOST_PERSONS)] = Field(
        description="The number of persons who must approve, beside the one who proposed; at most that of the names."
    )
    of: Annotated[list[Label], Field(min_length=1, max_length=MOST_NAMES)] | None = Field(
        None, description="The principals whose approval counts, by their names. Left out: any steward or approver."
    )


class AskedBody(BaseModel):
    """The present rule of an account that asks for an approval."""

    account: str
    at_least: int
    of: list[str] | None = Field(description="null: any steward or approver.")
    missing: int = Field(description="The number of persons who must still approve.")


class ApprovalBody(BaseModel):
    """The standing of a proposal's approval by the present rules of all accounts that ask; each of them must be met."""

    approved_by: list[str] = Field(description="Those who approved it, in the order in which they did.")
    may_approve: list[str] | None = Field(
        description="Those whose approval would count now. null: any steward or approver, except those who proposed or"
        " approved it."
    )
    asked: list[AskedBody]
    unable: list[str] | SkipJsonSchema[None] = Field(
        None,
        description="Only in answers to with_obstacle=true: those on a list who have not approved it, and have no valid"
        " key at present with which their approval would count. Principals of an issuer are not among them.",
    )


class ObstacleBody(BaseModel):
    """The reason why an approval by the caller would be refused, or would count nothing."""

    type: ObjectionKind = Field(
        description="role: that of the key; reach: the key is limited to other accounts; own_proposal: the caller"
        " proposed it; not_asked: it is not one of those whose approval is asked; known_key: others could have used the"
        " key; approved: the caller has approved it, and others must."
    )
    detail: str


Obstacle = Annotated[
    ObstacleBody | SkipJsonSchema[None],
    Field(
        description="Only in answers to with_obstacle=true, of what waits: why the caller cannot approve it; null: the"
        " caller can."
    ),
]


class UnableBody(BaseModel):
    """A principal on a list of approvers that could not approve at present."""

    principal: str
    reason: str = Field(
        description="A key that is limited to accounts reads nothing of the principal's keys, nor of who made them."
    )


class Judge:
    """The keys by which a caller's approvals are judged before they are given."""

    def __init__(self, connection: Connection, principal: Principal, seen: SeenKeys | None) -> None:
        """Read the keys.

        Args:
            connection: of a transaction that began later than ``seen`` was read.
            principal: the caller.
            seen: the keys that were read before; None: all are read.

        Raises:
            Unavailable: the installation's journal is not sound.
        """
        self._principal = principal
        self._known = sound_keys(connection, secret_of(connection), seen)
        self._named = NamedKeys(self._known, clock.now())

    def objection(self, approval: Approval, what: str) -> Objection | None:
        """Return why an approval by the caller would not count; None if it would."""
        caller = self._principal
        if not caller.may_act_as("approver"):
            return Objection("role", f"expected a key with the role approver, got {caller.role}")
        if out_of_reach := [name for name in approval.reach if not caller.may_use(name)]:
            return Objection("reach", f"expected a key that reaches {', '.join(out_of_reach)} as well")
        return objection_to(approval, self._known, Actor(caller.name, caller.key_id), what)

    def unable_on(self, approvers: Approvers | None) -> list[dict[str, str]]:
        """Return those on a list who could not approve at present, with the reasons."""
        found = () if approvers is None else self._named.unable(approvers, approvers.of or ())
        return [{"principal": name, "reason": _told(self._principal, name, reason)} for name, reason in found]

    def unable(self, approval: Approval) -> list[str]:
        """Return the listed principals that have not approved, and could not do so with any key that they have."""
        given = {*approval.names, approval.proposer.name}
        rules = [rule.approvers for rule in approval.rules]
        names = sorted({name for rule in rules for name in rule.of or ()} - given)
        return [name for name in names if any(self._named.lack_of(rule, name) for rule in rules if rule.of)]


def _told(caller: Principal, name: str, reason: str) -> str:
    """Return what a caller may know of the reason why a principal cannot approve; limited keys list no keys."""
    return reason if caller.accounts is None else f"{name} has no key that can approve"


def stated_approvers(model: ApproversModel) -> Approvers:
    """Return the approvers that a request states, in the order of their names.

    Raises:
        InvalidInput: a name is stated twice, or fewer are stated than must approve, or so many are names that no
            principal can have that nothing could ever be approved.
    """
    names = model.of
    if names is None:
        return Approvers(model.at_least)
    faults = [
        Fault(f"/approvers/of/{number}", "expected a name that is not stated before")
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    possible = [name for name in names if name.startswith(ISSUED) or is_distinct_name(name)]
    if model.at_least > len(possible):
        faults += [
            Fault(
                f"/approvers/of/{number}",
                "expected a name that a key can have: printable text without outer or double spaces",
            )
            for number, name in enumerate(names)
            if name not in possible
        ]
    if model.at_least > len(names):
        expected = f"expected at most the number of names, {len(names)}; got {model.at_least}"
        faults.append(Fault("/approvers/at_least", expected))
    if faults:
        raise InvalidInput(faults)
    return Approvers(model.at_least, tuple(sorted(names)))


def require_able(approvers: Approvers, stated: Sequence[str], known: Known, caller: Principal) -> None:
    """Refuse approvers of whom one could not approve at present.

    Args:
        stated: their names in the order of the request.
        known: all keys.

    Raises:
        InvalidInput: one has no valid key with which an approval would count.
    """
    unable = dict(NamedKeys(known, clock.now()).unable(approvers, stated))
    if unable:
        raise InvalidInput(
            [
                Fault(
                    f"/approvers/of/{number}",
                    f"expected a principal that can approve: {_told(caller, name, unable[name])}",
                )
                for number, name in enumerate(stated)
                if name in unable
            ]
        )


def approvers_member(approvers: Approvers | None) -> dict[str, Any]:
    """Return the member of an account with its approvers; none where it states none."""
    return {} if approvers is None else {"approvers": approvers.document()}


def approval_member(approval: Approval | None, judge: Judge | None = None, what: str = "the release") -> dict[str, Any]:
    """Return the member with the standing of an approval; none where no account states approvers for it.

    Args:
        judge: adds why the caller cannot approve it, also where no account states approvers.
        what: the proposed thing, for the reason.
    """
    if approval is None:
        return {}
    members: dict[str, Any] = {}
    if judge is not None:
        objection = judge.objection(approval, what)
        members["obstacle"] = None if objection is None else {"type": objection.kind, "detail": objection.reason}
    if not any(rule.is_stated for rule in approval.rules):
        return members
    asked = [
        {
            "account": rule.account,
            "at_least": rule.approvers.at_least,
            "of": None if rule.approvers.of is None else list(rule.approvers.of),
            "missing": approval.missing(rule),
        }
        for rule in approval.rules
    ]
    members["approval"] = {"approved_by": approval.names, "may_approve": approval.may_approve, "asked": asked}
    if judge is not None:
        members["approval"]["unable"] = judge.unable(approval)
    return members
