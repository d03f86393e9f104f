"""Route of the releases that wait for other persons."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.api.http.dependencies import CurrentDatabase, in_helpers
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_pair, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.schemas.approvals import ApprovalBody, approval_member
from service.ledger.accounts import accounts
from service.ledger.accounts.approvals import Approval
from service.ledger.releases import proposals, releases
from service.ledger.storage import clock

router = APIRouter(prefix="/v1/proposals", route_class=StrictRoute)


class ProposalBody(BaseModel):
    """A release that waits for other persons."""

    account: str
    id: str
    name: str
    proposed_by: str
    created_at: str
    expires_at: str | None = Field(description="The end of its reservation; null: it waits until somebody decides.")
    approval: ApprovalBody | SkipJsonSchema[None] = Field(
        None, description="Omitted where no account that asks for its approval states approvers."
    )


class ProposalPage(BaseModel):
    """A page of proposals."""

    items: list[ProposalBody]
    next_cursor: str | None


_COLUMNS = ("account", "id", "name", "proposed_by", "created_at", "expires_at")


@router.get("", response_model=ProposalPage, responses=AS_TABLE)
@in_helpers
def list_proposals(
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the releases that wait for other persons.

    The list has those of all accounts that the key reaches, in the order in which the accounts were opened and the
    releases registered.
    """
    after, now = read_pair(cursor), clock.now()
    with database.read() as connection:
        found = releases.list_proposals(connection, after, limit, principal.accounts, now, with_room(take))
        approvals: dict[str, Approval] = {}
        for name in dict.fromkeys(one.account for one in found):
            waiting = [one.release for one in found if one.account == name]
            approvals |= proposals.approvals_of(connection, accounts.read_account(connection, name), waiting)
    shown = [
        {
            "account": one.account,
            "id": one.release.id,
            "name": one.release.name,
            "proposed_by": one.proposed_by,
            "created_at": one.release.created_at,
            "expires_at": one.release.expires_at,
            **approval_member(approvals.get(one.release.id)),
        }
        for one in found
    ]
    last = f"{found[-1].account_id} {found[-1].release.head.seq}" if found.more else None
    return answer_list(accept, shown, last, _COLUMNS)
