"""Route of the publication package of a release."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.computations.accuracy import read_confidence
from service.api.http.dependencies import CurrentDatabase, Streamed, in_helpers
from service.api.http.kept_figures import costs_of
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.publication.package import number_of_counts, packed, publication_of
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.api.routes.verification import CurrentSigner
from service.api.schemas.exact_numbers import Exact
from service.errors import TooLarge
from service.ledger.accounts import accounts
from service.ledger.releases.releases import read_release
from service.ledger.storage import clock

router = APIRouter(prefix="/v1/accounts/{account}/releases", route_class=StrictRoute)

MEDIA_TYPE = "application/zip"
MOST_COUNTS = 1_000_000  # in a package over HTTP, which waits in memory until the client has read it

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The package.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary", "description": "A ZIP archive."}}},
    }
}


@router.get("/{release}/package", response_class=Response, responses=_ANSWERS)
@in_helpers
def download_package(
    account: AccountPath,
    release: ReleasePath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    signer: CurrentSigner,
    confidence: Annotated[
        Exact, Query(description="The confidence of the margins of error, above 0 and below 1.", examples=["0.9"])
    ] = "0.95",
) -> Response:
    """Download the publication package of a release.

    A ZIP archive with the noisy counts (CSV and Parquet), the plan, the allocation table, the accuracy statement, the
    receipt, the journal entries of the draws, the entry for the Differential Privacy Deployments Registry where its
    metadata are complete, and a signed list of these files. python -m service verify-package FILE --public-key KEY
    checks it without the service. The release is committed. A package of more than a million noisy counts is made by
    an operator: python -m service package.
    """
    require(principal, "auditor", account)
    asked, at = read_confidence(confidence, "/query/confidence"), clock.now()
    with database.read() as connection:
        record = read_release(connection, accounts.read_account(connection, account).id, release)
        if number_of_counts(connection, record.id) > MOST_COUNTS:
            raise TooLarge(
                f"expected a release with at most {MOST_COUNTS} noisy counts; an operator makes the package of a larger"
                " one: python -m service package"
            )
        published = publication_of(
            connection,
            account,
            release,
            lambda owner, found: costs_of(connection, request, owner, [found])[0],
            asked,
            at,
        )
    name = f"{account}-{record.id}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Streamed(packed(database, signer, published), headers=headers, media_type=MEDIA_TYPE)
