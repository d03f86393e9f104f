"""What lets others check the ledger: signed heads, verification, exports, and the key that signs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from service.api.accounts import AccountPath
from service.api.auth import CurrentPrincipal, require
from service.api.body import StrictRoute
from service.api.context import CurrentDatabase, ok
from service.api.guarantees import HeadBody
from service.ledger import accounts, signing
from service.ledger.signing import Signer
from service.privacy.filter import ACCOUNTANT

router = APIRouter(prefix="/v1", tags=["trust"], route_class=StrictRoute)


async def _signer(request: Request) -> Signer:  # async, as FastAPI would give it a thread otherwise
    return signing.signer_of(request.app.state.secret)


CurrentSigner = Annotated[Signer, Depends(_signer)]


class Installation(BaseModel):
    """Who signs, and what prices releases here."""

    installation: str = Field(description="The first 32 digits of the public key's SHA-256.")
    algorithm: str = Field(examples=[signing.ALGORITHM])
    public_key: str = Field(description="32 bytes in hexadecimal.")
    accountant: str = Field(description="The version of what decides a price.")


class SignedHead(HeadBody):
    """A head that the installation vouches for; signature is over the rest in RFC 8785 canonical JSON."""

    statement: str = Field(examples=["head"])
    account: str
    installation: str
    public_key: str
    signature: str


@router.get("/installation", response_model=Installation)
def read_installation(_: CurrentPrincipal, signer: CurrentSigner) -> Response:
    """The installation and its public key.

    Heads, receipts and exports are signed with it. Keep the key apart from the service: what it signed can
    then be checked without asking the service.
    """
    return ok(
        {
            "installation": signer.installation,
            "algorithm": signing.ALGORITHM,
            "public_key": signer.public_key,
            "accountant": ACCOUNTANT,
        }
    )


@router.get("/accounts/{account}/head", response_model=SignedHead)
def read_head(
    account: AccountPath, database: CurrentDatabase, principal: CurrentPrincipal, signer: CurrentSigner
) -> Response:
    """The head of an account's journal, signed.

    Keep it: an account whose journal does not contain it any more has been rolled back, and If-Ledger-Includes:
    seq:hash refuses every request to such an account.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        return ok(signer.sign_head(account, accounts.read_account(connection, account).head))
