"""Route of the caller's own principal."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.ledger.access.key_records import Role

router = APIRouter(prefix="/v1/principal", route_class=StrictRoute)


class PrincipalBody(BaseModel):
    """The principal of a key, and its permissions."""

    name: str
    role: Role
    accounts: list[str] | None = Field(description="The only accounts that the key may touch; null: all.")


@router.get("", response_model=PrincipalBody)
async def read_principal(principal: CurrentPrincipal) -> Response:
    """Read the caller's principal.

    The answer has the principal, role and accounts of the request's key.
    """
    reach = None if principal.accounts is None else sorted(principal.accounts)
    return ok({"name": principal.name, "role": principal.role, "accounts": reach})
