"""Who is calling."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.auth import CurrentPrincipal
from service.api.body import StrictRoute
from service.api.context import ok
from service.ledger.key_records import Role

router = APIRouter(prefix="/v1/principal", route_class=StrictRoute)


class PrincipalBody(BaseModel):
    """Whom a key belongs to, and what it may do."""

    name: str
    role: Role
    accounts: list[str] | None = Field(description="The only accounts that the key may touch; null: all.")


@router.get("", response_model=PrincipalBody)
async def read_principal(principal: CurrentPrincipal) -> Response:
    """Who is calling.

    The principal, role and reach of the key that the request came with.
    """
    reach = None if principal.accounts is None else sorted(principal.accounts)
    return ok({"name": principal.name, "role": principal.role, "accounts": reach})
