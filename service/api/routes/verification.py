"""Routes for verification by others: signed heads, verification, exports, and the signing key."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from service.api.http.dependencies import CurrentDatabase, Streamed, in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import PartitionsBody, ReleasePath
from service.api.schemas.guarantees import GuaranteeBody, HeadBody, cost_of
from service.api.schemas.plan_models import Plan
from service.errors import InvalidInput, StartupRefused, Unavailable
from service.ledger.accounts import accounts
from service.ledger.installation import signing
from service.ledger.installation.high_water import BrokenMark
from service.ledger.installation.signing import Signer
from service.ledger.journal import journal
from service.ledger.journal.journal import Head
from service.ledger.storage import clock
from service.ledger.storage.schema import hold_schema
from service.ledger.verification import exports, receipts
from service.ledger.verification.verify import verify
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.numerics.numbers import parse_exact
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1", route_class=StrictRoute)

_PIECE = 1 << 18  # characters of an export that are sent together
_SOME_HEAD = "1:" + "0123456789abcdef" * 4


async def _signer(request: Request) -> Signer:  # async, as FastAPI would give it a thread otherwise
    return signing.signer_of(request.app.state.secret)


CurrentSigner = Annotated[Signer, Depends(_signer)]


class Installation(BaseModel):
    """The installation that signs, and the version that prices releases."""

    installation: str = Field(description="The first 32 digits of the public key's SHA-256.")
    algorithm: str = Field(examples=[signing.ALGORITHM])
    public_key: str = Field(description="32 bytes in hexadecimal.")
    accountant: str = Field(description="The version of the pricing rules.")


class SignedHead(HeadBody):
    """A head that the installation signs; signature is over the rest in RFC 8785 canonical JSON."""

    statement: str = Field(examples=["head"])
    account: str
    installation: str
    public_key: str
    signature: str


@router.get("/installation", response_model=Installation)
def read_installation(_: CurrentPrincipal, signer: CurrentSigner) -> Response:
    """Read the installation and its public key.

    Heads, receipts and exports are signed with this key. Keep a copy apart from the service: signatures can then be
    checked without the service.
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
    """Read the signed head of an account's journal.

    Keep it. If the account's journal no longer contains it, the account has been rolled back; If-Ledger-Includes:
    seq:hash
    refuses every request to such an account.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        return ok(signer.sign_head(account, accounts.read_account(connection, account).head))


class FirstBad(BaseModel):
    """The first entry that is faulty, or whose rows are faulty."""

    seq: int
    reason: str


class Verdict(BaseModel):
    """The result of a verification; entries: the number of sound ones."""

    valid: bool
    entries: int
    first_bad: FirstBad | None = None


@router.get("/accounts/{account}/verify", response_model=Verdict, response_model_exclude_none=True)
@in_helpers
def verify_account(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    head: Annotated[str | None, Query(description="A head that was kept: seq:hash.", examples=[_SOME_HEAD])] = None,
) -> Response:
    """Verify an account.

    The service reads the chain from its first entry, prices its releases again and adds them up. It compares every
    stored row and draw with the entry that wrote it, and the chain with the service's high-water mark. A writer of the
    database could rebuild a whole chain; the parameter head compares it with an entry that was kept elsewhere. The
    operation takes some seconds for a million entries, and charges go on meanwhile.
    """
    require(principal, "auditor", account)
    kept_heads: list[Head] = []
    if head is not None:
        try:
            kept_heads.append(journal.read_head(head))
        except ValueError as error:
            raise InvalidInput.at("/query/head", str(error)) from None
    try:
        mark = None if request.app.state.mark is None else request.app.state.mark.read()
    except BrokenMark as broken:
        raise Unavailable("the high-water mark cannot be read", for_operator=str(broken)) from None
    if mark is not None:
        kept_heads += mark.entries_of(account)
    with database.read() as connection:
        try:
            hold_schema(connection, to_read=True)
        except StartupRefused as refused:
            raise database.other_schema(connection, str(refused)) from None
        verdict = verify(connection, account, kept_heads)
    body: dict[str, Any] = {"valid": verdict.valid, "entries": verdict.entries}
    if verdict.first_bad is not None:
        body["first_bad"] = {"seq": verdict.first_bad.seq, "reason": verdict.first_bad.reason}
    return ok(body)


@router.get(
    "/accounts/{account}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
@in_helpers
def export_account(
    account: AccountPath, database: CurrentDatabase, principal: CurrentPrincipal, signer: CurrentSigner
) -> Response:
    """Export an account with those that share releases with it.

    The export is JSON Lines, sufficient to verify and to rebuild: the signed heads, every journal entry as it was
    hashed, and the noisy counts of every draw. An account under another shares its releases with it. The file therefore
    holds the whole family, from its root down, and the key must reach all of it.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        family = exports.members(connection, [account])
    for member in family:
        require(principal, "auditor", member.name)
    lines = exports.export(database, signer, family, clock.now())
    return Streamed(in_pieces(lines), media_type="application/x-ndjson")


def in_pieces(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines, many at a time: sending a piece takes longer than making a line."""
    waiting: list[str] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting)


class ReceiptRelease(BaseModel):
    """The release of a receipt."""

    id: str
    name: str
    state: Literal["proposed", "reserved", "committed", "voided", "expired"]
    plan: Plan
    tags: list[str]
    delta: str
    created_at: str
    expires_at: str | None


class Charged(BaseModel):
    """The amounts added to the account's totals, exactly, and the accountant's version."""

    price: dict[str, Any]
    accountant: str


class Receipt(BaseModel):
    """A release, its cost, and the journal entry that charged it; signature is over the rest."""

    statement: str = Field(examples=[receipts.STATEMENT])
    account: str
    unit: str
    neighbouring: Neighbouring
    release: ReceiptRelease
    partitions: list[PartitionsBody] = Field(
        description="For each mechanism that has been drawn for partitions so far."
    )
    charged: Charged
    cost: GuaranteeBody
    entry: dict[str, Any]
    previous: str
    hash: str
    head: HeadBody
    issued_at: str
    installation: str
    public_key: str
    signature: str


@router.get("/accounts/{account}/releases/{release}/receipt", response_model=Receipt)
@in_helpers
def read_receipt(
    account: AccountPath,
    release: ReleasePath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    signer: CurrentSigner,
) -> Response:
    """Read a receipt for a release.

    The receipt has the release's plan and tags, its cost, its state as the journal records it, the journal entry that
    charged it with the hash before it, and the account's head. A reservation whose time is over is reserved in it until
    its expiry is recorded. It is signed, so it can be checked without the service by python -m service verify-receipt
    FILE --public-key KEY.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        receipt = receipts.receipt_of(connection, owner, release, clock.now())
    plan, delta = read_plan(receipt["release"]["plan"]), parse_exact(receipt["release"]["delta"])
    receipt["cost"] = cost_of(plan, owner.neighbouring, (delta,))
    return ok(signer.sign(receipts.STATEMENT, receipt))
