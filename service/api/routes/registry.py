"""Routes of entries of the public Differential Privacy Deployments Registry."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.http.accepted_types import prefers
from service.api.http.dependencies import CurrentDatabase, in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.publication import registry_prose as texts
from service.api.publication.registry_entry import RegistryEntry, as_yaml, entry_of, release_entry
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.api.schemas.exact_numbers import Exact
from service.api.schemas.guarantees import read_delta
from service.errors import Conflict
from service.ledger.accounts import accounts
from service.ledger.accounts.budgets import usual_delta
from service.ledger.descriptions.description_rows import recorded_metadata
from service.ledger.descriptions.registry import as_recorded, count_draws, largest_budget
from service.ledger.journal.entries import Drawn
from service.ledger.journal.journal import BEFORE_FIRST
from service.ledger.releases.recorded_releases import numbers_of_later, read_recorded
from service.ledger.releases.settlement import present_account
from service.ledger.spending import spending
from service.ledger.storage import clock

router = APIRouter(prefix="/v1/accounts/{account}", route_class=StrictRoute)

YAML = "application/yaml"


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The entry; JSON where Accept prefers it.",
        "content": {YAML: {"schema": {"$ref": "#/components/schemas/RegistryEntry"}}},
    }
}


@router.get("/releases/{release}/registry-entry", response_model=RegistryEntry, responses=_ANSWERS)
@in_helpers
def read_release_entry(
    account: AccountPath, release: ReleasePath, request: Request, database: CurrentDatabase, principal: CurrentPrincipal
) -> Response:
    """Render a release as an entry of the Differential Privacy Deployments Registry.

    The entry is YAML, or JSON by Accept. The ledger fills in the variant, the unit, the parameters (upper bounds, at
    the release's delta), the composition, the mechanisms and the noise generation. The rest are the release's metadata,
    or where it has none the account's. Where a required field is missing, the answer is 409 with the list of missing
    ones.
    """
    require(principal, "auditor", account)
    now = clock.now()
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        owner, record = as_recorded(connection, owner, read_recorded(connection, owner, release).seen(now))
        drawn = len(numbers_of_later(connection, owner, record, [Drawn.KIND]))
    if record.state in ("voided", "expired"):
        raise Conflict(f"the release is {record.state}: none of it was published")
    return _answer(request, release_entry(owner, record, drawn))


@router.get("/registry-entry", response_model=RegistryEntry, responses=_ANSWERS)
@in_helpers
def read_account_entry(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    delta: Annotated[
        Exact | None,
        Query(
            description="The delta at which the budget is shown as (epsilon, delta), or the delta that mechanisms"
            " may declare, if that is larger. By default 1e-10; an (epsilon, delta) budget is shown at"
            " its own delta."
        ),
    ] = None,
) -> Response:
    """Render an account as an entry of the Differential Privacy Deployments Registry.

    The entry covers all that the account and those under it publish; otherwise it is as that of a release. The
    parameters are the account's largest budget so far, because spending is no guarantee under adaptive choice; spending
    is given in the details. If the account is above that budget, after releases were priced again, the answer is 409.
    """
    require(principal, "auditor", account)
    requested = read_delta(delta, "/query/delta")
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        committed, held = spending.counts(connection, record)
        now = present_account(connection, record, clock.now())
        largest = largest_budget(connection, now.account)
        drawn = count_draws(connection, record.id)
        metadata = recorded_metadata(connection, record.chain, None, BEFORE_FIRST)
    owner, plan = now.account, spending.as_plan(committed + (held - now.expired))
    known = {
        "name": account,
        "description": owner.description,
        "release_type": "Many releases" if owner.releases != 1 else "One release",
        "url_slug": texts.slug(account),
        **texts.budget_parameters(owner, largest, usual_delta(largest) if requested is None else requested),
        "composition": texts.of_account(owner),
        "mechanisms": texts.mechanisms(plan, owner.neighbouring, drawn),
    }
    entry = entry_of(known, metadata, owner.unit, texts.adjacency(owner))
    RegistryEntry.model_validate(entry)
    return _answer(request, entry)


def _answer(request: Request, entry: dict[str, Any]) -> Response:
    accept = request.headers.get("accept", "")
    if prefers(accept, "application/json") and not prefers(accept, YAML):
        return ok(entry)
    return Response(as_yaml(entry), media_type=YAML)
