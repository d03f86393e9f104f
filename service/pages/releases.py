"""The pages of one release: its plan as a tree, its cost, draws and receipt, and the possible actions."""

import asyncio
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.publication.noisy_tables import PARQUET
from service.pages.account import AccountStep, refusal
from service.pages.drawable import offer_of
from service.pages.plan_tree import MOST_NODES, MOST_PRICED, price_nodes, state_accuracy, tree_of
from service.pages.shell.api_client import WITHOUT_PLAN, Refused, Relayed, SignedIn, TooLong, Visit, act, address, get
from service.pages.shell.forms import Form, SentForm, text_of
from service.pages.shell.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

ReleaseStep = Annotated[str, Path()]
_DRAWS = 100
_EVENTS = 50
_MARGINS = 10  # of mechanisms that those who decide see at once
_MARGINS_IN_PLAN = 100
_DONE = {"commit": "committed", "void": "voided", "approve": "approved"}


@router.get("/releases/{release}")
async def show_release(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Render the release."""
    return await _render(visit, account, release)


@router.post("/releases/{release}/commit")
async def commit(account: AccountStep, release: ReleaseStep, visit: SignedIn, form: SentForm) -> Response:
    """Commit a reservation."""
    return await _settle(visit, account, release, "commit", form)


@router.post("/releases/{release}/approve")
async def approve(account: AccountStep, release: ReleaseStep, visit: SignedIn, form: SentForm) -> Response:
    """Approve a proposal."""
    return await _settle(visit, account, release, "approve", form)


@router.post("/releases/{release}/void")
async def void(account: AccountStep, release: ReleaseStep, visit: SignedIn, form: SentForm) -> Response:
    """Void a proposal or reservation."""
    return await _settle(visit, account, release, "void", form)


@router.get("/releases/{release}/receipt")
async def receipt(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Send the signed receipt as a file."""
    path = address("accounts", account, "releases", release, "receipt")
    return Relayed(visit, path, download=f"receipt-{release}.json")


@router.get("/releases/{release}/registry-entry")
async def registry_entry(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Send the release's registry entry as a file; without the required metadata, the answer lists what is missing."""
    path = address("accounts", account, "releases", release, "registry-entry")
    return Relayed(visit, path, accept="application/yaml", download=f"release-{release}.yaml")


@router.get("/releases/{release}/package")
async def download_package(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Send the release's signed publication package as a file."""
    path = address("accounts", account, "releases", release, "package")
    return Relayed(visit, path, accept="application/zip", download=f"package-{release}.zip")


@router.get("/draws/{draw}.csv")
async def draw_table(account: AccountStep, draw: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send a draw's noisy counts as a table."""
    return Relayed(visit, address("accounts", account, "draws", draw), accept=CSV, download=f"draw-{draw}.csv")


@router.get("/draws/{draw}.parquet")
async def draw_parquet(account: AccountStep, draw: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send a draw's noisy counts as a Parquet file."""
    return Relayed(visit, address("accounts", account, "draws", draw), accept=PARQUET, download=f"draw-{draw}.parquet")


@router.get("/draws/{draw}")
async def draw(account: AccountStep, draw: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send a draw's noisy counts as a file."""
    return Relayed(visit, address("accounts", account, "draws", draw), download=f"draw-{draw}.json")


async def _settle(visit: Visit, account: str, release: str, action: str, form: Form) -> Response:
    body: dict[str, str | None] | None = None
    fields: dict[str, str] = {}
    if action == "approve":
        fields = {"reason": text_of(form, "reason")}
        body = {"reason": fields["reason"] or None}
    if action == "void":
        fields = {name: text_of(form, name) for name in ("reason", "attestation")}
        body = {"reason": fields["reason"], "attestation": fields["attestation"] or None}
    path = address("accounts", account, "releases", release, action)
    try:
        await act(visit, "POST", path, body, once=text_of(form, "once"))
    except Refused as refused:
        return await _render(visit, account, release, fields, refused)
    return RedirectResponse(f"/accounts/{account}/releases/{release}?done={_DONE[action]}", 303)


async def _render(
    visit: Visit, account: str, release: str, given: dict[str, str] | None = None, refused: Refused | None = None
) -> Response:
    path = address("accounts", account, "releases", release)
    account_body, release_body, drawn, events, installation, margins = await asyncio.gather(
        get(visit, address("accounts", account)),
        read_release(visit, path),
        get(visit, f"{path}/draws", {"noisy": "false", "limit": _DRAWS}),
        get(visit, f"{path}/events", {"limit": _EVENTS}),
        get(visit, address("installation")),
        _margins(visit, path),
    )
    if release_body["state"] == "proposed":  # what is left with it is shown to those who decide
        account_body = await get(visit, address("accounts", account), {"with_gauge": "true"})
    tree, complete = None, False
    if "plan" in release_body:
        tree = await to_thread.run_sync(tree_of, release_body["plan"])
        state_accuracy(tree, margins["mechanisms"] if margins else ())
        complete = await price_nodes(visit, tree, account_body["neighbouring"])
    offer = await to_thread.run_sync(offer_of, release_body, drawn["items"], visit.session.role)
    shown = {
        "account": account_body,
        "release": release_body,
        "margins": margins,
        "most_margins": _MARGINS,
        "tree": tree,
        "all_priced": complete,
        "most_nodes": MOST_NODES,
        "most_priced": MOST_PRICED,
        "draws": drawn["items"],
        "offer": offer,
        "more_draws": drawn["next_cursor"] is not None,
        "events": events["items"],
        "more_events": events["next_cursor"] is not None,
        "installation": installation,
        "given": given or {},
        "done": visit.request.query_params.get("done"),
    }
    return page(
        visit.request,
        "release.html",
        shown | refusal(refused, ["/reason", "/attestation"]),
        status=refused.status if refused else 200,
    )


async def _margins(visit: Visit, path: str) -> Any:
    """Return the accuracy statement of a release up to some mechanisms; None: it is too long or takes too much work."""
    try:
        return await get(visit, f"{path}/accuracy", {"limit": _MARGINS_IN_PLAN})
    except Refused:
        return None


async def read_release(visit: Visit, path: str) -> dict[str, Any]:
    """Return a release with its charge; without its plan if that is too long for a page."""
    with_charge = {"with_charge": "true", "with_obstacle": "true"}
    try:
        found: dict[str, Any] = await get(visit, path, with_charge)
    except TooLong:
        found = await get(visit, path, with_charge | WITHOUT_PLAN)
    return found
