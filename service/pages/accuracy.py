"""The accuracy statements of a release and of a family of releases, for a publication: pages that print, and tables."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.pages.account import AccountStep
from service.pages.confidences import confidence_of, stated_confidence
from service.pages.release_search import ReleaseSearch, read_search
from service.pages.releases import ReleaseStep
from service.pages.shell.api_client import Query, Refused, Relayed, SignedIn, Visit, address, get
from service.pages.shell.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_MECHANISMS = 500
_OF_EACH = 50  # mechanisms of each release of a family
_BELOW = 50  # accounts under it whose releases are in statements of their own


@router.get("/releases/{release}/accuracy")
async def show_accuracy(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Render the release's accuracy statement."""
    confidence = confidence_of(visit)
    account_body, statement = await asyncio.gather(
        get(visit, address("accounts", account)),
        get(
            visit,
            address("accounts", account, "releases", release, "accuracy"),
            {"confidence": confidence.asked, "limit": _MECHANISMS + 1},
        ),
    )
    faults = confidence.faults
    shown = {"account": account_body, "release": statement, "most": _MECHANISMS, "faults": faults} | confidence.shown
    return page(visit.request, "accuracy.html", shown, status=422 if faults else 200)


@router.get("/releases/{release}/accuracy.csv")
async def accuracy_table(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Send the release's accuracy statement as a file."""
    path = address("accounts", account, "releases", release, "accuracy")
    query = {"confidence": stated_confidence(visit)}
    return Relayed(visit, path, query, accept=CSV, download=f"accuracy-{release}.csv")


@router.get("/accuracy")
async def show_family(account: AccountStep, visit: SignedIn) -> Response:
    """Render the accuracy statement of a family of releases, which a search finds."""
    search, confidence = read_search(visit), confidence_of(visit)
    account_body, (family, faults), below = await asyncio.gather(
        get(visit, address("accounts", account), {"with_gauge": "true"}),
        _family(visit, account, search, confidence.asked),
        get(visit, address("accounts"), {"parent": account, "limit": _BELOW, "with_gauge": "true"}),
    )
    faults |= confidence.faults
    shown = confidence.shown | {
        "account": account_body,
        "family": family,
        "below": [child for child in below["items"] if child["gauge"]["releases"]],
        "more_below": below["next_cursor"] is not None,
        "asked_for": search.asked,
        "query": {name: text for name, text in search.asked.items() if text} | {"confidence": confidence.asked},
        "faults": faults,
        "most": _OF_EACH,
    }
    return page(visit.request, "family.html", shown, status=422 if faults else 200)


@router.get("/accuracy.csv")
async def family_table(account: AccountStep, visit: SignedIn) -> Response:
    """Send the accuracy statement of a family as a file."""
    query = {**read_search(visit).query, "confidence": stated_confidence(visit)}
    path = f"{address('accounts', account)}/accuracy"
    return Relayed(visit, path, query, accept=CSV, download=f"accuracy-{account}.csv")


async def _family(visit: Visit, account: str, search: ReleaseSearch, confidence: str) -> tuple[Any, dict[str, str]]:
    """Return the statement; None, and the faults by field, if the search is refused."""
    query: Query = {**search.query, "confidence": confidence, "limit": _OF_EACH + 1}
    try:
        return await get(visit, f"{address('accounts', account)}/accuracy", query), {}
    except Refused as refused:
        if "/query" in refused.faults:
            return None, {"whole": refused.faults["/query"]}
        return None, search.faults_in(refused)
