"""Route of the releases that wait for other persons."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.api.http.account_cursors import read_place, write_place
from service.api.http.dependencies import CurrentDatabase, CurrentSecret, in_helpers
from service.api.http.kept_figures import costs_of
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.schemas.approvals import ApprovalBody, Judge, Obstacle, WithObstacle, approval_member
from service.api.schemas.charges import ChargeBody, WithCharge, charge_member
from service.api.schemas.exact_numbers import Label
from service.api.schemas.moments import Moment
from service.ledger.access.key_events import see_keys
from service.ledger.accounts import accounts
from service.ledger.accounts.approvals import Approval
from service.ledger.draws import stored_draws
from service.ledger.releases import proposals, releases
from service.ledger.releases.releases import WantedProposals
from service.ledger.storage import clock
from service.privacy.accounting.pricing import MEMOISED_SIZE

router = APIRouter(prefix="/v1/proposals", route_class=StrictRoute)


class RejectionBody(BaseModel):
    """The rejection of a proposed release."""

    by: str
    at: str
    reason: str | None


class DecidingApprovalBody(RejectionBody):
    """The approval of a proposed release that was the last one it took."""

    drawn: bool = Field(description="Whether counts of the release were drawn.")


class ProposalBody(BaseModel):
    """A release that waits for other persons, or that they approved or rejected."""

    account: str
    id: str
    name: str
    proposed_by: str
    created_at: str
    expires_at: str | None = Field(description="The end of its reservation; null: it waits until somebody decides.")
    approval: ApprovalBody | SkipJsonSchema[None] = Field(
        None, description="Omitted where no account that asks for its approval states approvers."
    )
    obstacle: Obstacle = None
    charge: ChargeBody | SkipJsonSchema[None] = Field(
        None,
        description="Only in answers to with_charge=true; left out for plans of more than"
        f" {MEMOISED_SIZE} mechanisms and nodes.",
    )

    approved: DecidingApprovalBody | SkipJsonSchema[None] = Field(
        None, description="Only in answers to state=approved."
    )
    rejected: RejectionBody | SkipJsonSchema[None] = Field(None, description="Only in answers to state=rejected.")


class ProposalPage(BaseModel):
    """A page of proposals."""

    items: list[ProposalBody]
    next_cursor: str | None


_STATES: Mapping[str, Literal["proposed", "approved", "voided"]] = {
    "waiting": "proposed",
    "approved": "approved",
    "rejected": "voided",
}
_COLUMNS = ("account", "id", "name", "proposed_by", "created_at", "expires_at")


@router.get("", response_model=ProposalPage, responses=AS_TABLE)
@in_helpers
def list_proposals(
    request: Request,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    state: Annotated[
        Literal["waiting", "approved", "rejected"],
        Query(
            description="waiting: those that wait; approved: those that enough approved, and that are charged;"
            " rejected: those that were voided before enough approved them."
        ),
    ] = "waiting",
    proposed_by: Annotated[Label | None, Query(description="Only releases that this principal proposed.")] = None,
    since: Annotated[Moment | None, Query(description="Only releases proposed at this moment or later.")] = None,
    with_charge: WithCharge = False,
    with_obstacle: WithObstacle = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the releases that wait for other persons, or that these approved or rejected.

    The list has those of all accounts that the key reaches, in the order in which the accounts were opened and the
    releases registered.
    """
    now = clock.now()
    moment = None if since is None else clock.stamp(since)
    wanted = WantedProposals(_STATES[state], proposed_by, moment)
    seen = see_keys(database, secret) if with_obstacle else None
    with database.read() as connection:
        after = read_place(connection, cursor, principal.accounts)
        found = releases.list_proposals(connection, after, limit, principal.accounts, now, with_room(take), wanted)
        judge = Judge(connection, principal, seen) if with_obstacle else None
        approvals: dict[str, Approval] = {}
        charges: dict[str, dict[str, Any]] = {}
        decided: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys(one.account for one in found):
            waiting = [one.release for one in found if one.account == name]
            account = accounts.read_account(connection, name)
            approvals |= proposals.approvals_of(connection, account, waiting)
            for release in waiting if state != "waiting" else ():
                entry = proposals.decision_of(connection, account, release)
                if entry is not None and (entry.kind == "approved") == (state == "approved"):
                    reason = entry.content.view().reason
                    decided[release.id] = {state: {"by": entry.actor, "at": entry.time, "reason": reason}}
            if with_charge:
                costs = costs_of(connection, request, account, waiting)
                charges |= {
                    one.id: charge_member(account, one.plan, cost) for one, cost in zip(waiting, costs, strict=True)
                }
        drawn = stored_draws.drawn_among(connection, list(decided)) if state == "approved" else ()
        last = write_place(connection, (found[-1].account_id, found[-1].release.head.seq)) if found.more else None
    for id_, decision in decided.items() if state == "approved" else ():
        decision["approved"]["drawn"] = id_ in drawn
    shown = [
        {
            "account": one.account,
            "id": one.release.id,
            "name": one.release.name,
            "proposed_by": one.proposed_by,
            "created_at": one.release.created_at,
            "expires_at": one.release.expires_at,
            **approval_member(approvals.get(one.release.id), judge),
            **charges.get(one.release.id, {}),
            **decided.get(one.release.id, {}),
        }
        for one in found
        if state == "waiting" or one.release.id in decided
    ]
    return answer_list(accept, shown, last, _COLUMNS)
