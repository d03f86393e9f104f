"""The page on which noisy counts are drawn: noise and a preview of its charge first, then the file of true counts.

The file is sent with the last form only, in memory, and is never kept or shown.
"""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.publication.noisy_tables import PARQUET
from service.errors import InvalidInput
from service.pages.account import AccountStep
from service.pages.drawing_form import (
    FIELDS,
    LONGEST_PURPOSE,
    NOISES,
    calibration_of,
    faults_of,
    mechanism_of,
    release_of,
)
from service.pages.planner.client import Account, account_named
from service.pages.planner.form import UNREAD
from service.pages.shell.api_client import Refused, SignedIn, Visit, act, address, ask, get, send
from service.pages.shell.forms import Form, SentForm, text_of
from service.pages.shell.layout import may, page
from service.pages.shell.whole_tables import as_file

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_NO_FILE = "expected a file with a line of names and a column count"
_FILES = {"csv": CSV, "parquet": PARQUET}
"""The media types of the file of noisy counts, by its ending."""
_PROPOSED = "proposed"
_NOT_OF_THE_FORM = (401, 403, 404)  # refusals of the key or of the account


@router.get("/draw")
async def start(account: AccountStep, visit: SignedIn) -> Response:
    """Render an empty form."""
    return await _show(visit, account, dict(FIELDS))


@router.post("/draw")
async def preview(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Render the charge and the accuracy of the chosen noise; nothing is registered."""
    return await _preview(visit, account, _typed(form))


@router.post("/draw/counts")
async def draw(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Register the noise that was shown, draw the counts of the file, and send the noisy counts as a file.

    Sending the same form again has no further effect: the answer is the same counts, as either kind of file.
    """
    typed, table, once = _typed(form), form.files.get("counts", b""), text_of(form, "once")
    ending = text_of(form, "file") or "csv"
    if not once or ending not in _FILES:
        raise InvalidInput.at("/file" if once else "/once", "expected the form of the page")
    # A draw whose answer was lost may be committed: the same key again has it answered, and not charged twice.
    kept: dict[str, Any] = {"once": once, "file": ending}
    if not table:
        return await _preview(visit, account, typed, status=422, faults={"counts": _NO_FILE}, **kept)
    found = await _account(visit, account)
    shown = text_of(form, "mechanism")
    release = release_of(typed, found, {})
    query = {name: release[name] for name in ("name", "tags")} | {"mechanism": shown}
    query |= {"periods": json.dumps(release["periods"])} if "periods" in release else {}
    query |= {"granularity": typed["granularity"]} if typed["granularity"] else {}
    headers = {"content-type": CSV, "accept": _FILES[ending], "idempotency-key": once}
    path = f"{address('accounts', account)}/draws"
    answer = await ask(
        visit,
        "POST",
        path,
        query=query,
        content=table,
        headers=headers,
        bounded=False,  # a file, which is not parsed
    )
    if answer.status != 201:
        refused = Refused(json.loads(answer.body))
        if refused.status in _NOT_OF_THE_FORM:
            raise refused
        faults = {"counts": "; ".join(detail for pointer, detail in refused.faults.items() if pointer[1:2].isdigit())}
        faults = faults_of(typed, refused.faults) | {name: text for name, text in faults.items() if text}
        problem = refused.problem
        return await _preview(visit, account, typed, status=refused.status, faults=faults, problem=problem, **kept)
    await _describe(visit, account, answer.headers["x-release"], typed["purpose"], once)
    return as_file(answer.body, f"noisy-{answer.headers['x-draw']}.{ending}", _FILES[ending])


async def _describe(visit: Visit, account: str, release: str, purpose: str, once: str) -> None:
    """Record the purpose of a drawn release, which was checked before."""
    if purpose:
        body = {"metadata": {"intended_use": purpose}}
        await act(visit, "PATCH", address("accounts", account, "releases", release), body, once=f"{once}-purpose")


def _typed(form: Form) -> dict[str, str]:
    return {name: text_of(form, name).strip() for name in FIELDS}


async def _account(visit: Visit, account: str) -> Account:
    found = await account_named(visit, account)
    if found is None:
        found = await get(visit, address("accounts", account))  # raises what stands against it
    return found


async def _preview(
    visit: Visit,
    account: str,
    typed: dict[str, str],
    *,
    status: int = 200,
    faults: Mapping[str, str] | None = None,
    problem: Mapping[str, Any] | None = None,
    **kept: Any,
) -> Response:
    """Render the form with the mechanism, its accuracy and its charge; after a refusal with its faults.

    ``kept`` are variables of the template with what was sent.
    """
    found = await _account(visit, account)
    wrong = _wrong(typed, found)
    if wrong:
        return await _show(visit, account, typed, status=422, faults=wrong)
    try:
        shown = await _figures(visit, found, typed)
    except Refused as refused:
        wrong = faults_of(typed, refused.faults)
        return await _show(visit, account, typed, status=refused.status, faults=wrong, problem=refused.problem)
    return await _show(visit, account, typed, status=status, faults=faults, problem=problem, preview=shown, **kept)


def _wrong(typed: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return the faults of the form that ``/v1`` would not find, or only after the draw."""
    wrong: dict[str, str] = {}
    if typed["noise"] not in NOISES:
        wrong["noise"] = "expected one of the kinds of noise in the list"
    if (
        len(typed["purpose"]) > LONGEST_PURPOSE
        or not typed["purpose"].replace("\n", "").replace("\r", "").isprintable()
    ):
        wrong["purpose"] = f"expected a text of at most {LONGEST_PURPOSE} characters without control characters"
    if account["capped"] and not typed["reads"]:
        wrong["reads"] = f'expected the tags of what it reads, or "{UNREAD}", as the account has caps'
    if typed["granularity"] and typed["noise"].endswith(" moe"):
        wrong["granularity"] = "expected none with a margin of error: choose noise by a parameter"
    return wrong


async def _figures(visit: Visit, account: Account, typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the mechanism, with its accuracy and the answer to a dry run.

    Raises:
        Refused: a field is invalid, or the account takes no such release.
    """
    calibration = calibration_of(typed, account["neighbouring"])
    calibrated = None
    if calibration is not None:
        calibrated = (await send(visit, "POST", address("calibrations", "moe"), calibration))["mechanism"]
    mechanism = mechanism_of(typed, account["neighbouring"], calibrated)
    path = f"{address('accounts', account['name'])}/releases"
    rehearsal = await send(visit, "POST", path, release_of(typed, account, mechanism), query={"dry_run": "true"})
    accuracy = await send(visit, "POST", address("accuracy"), {"mechanism": mechanism, "confidences": ["0.95"]})
    return {
        "mechanism": mechanism,
        "text": json.dumps(mechanism),
        "rehearsal": rehearsal,
        "margin": accuracy["margins"][0],
        "waits": rehearsal["state"] == _PROPOSED,
    }


async def _show(
    visit: Visit,
    account: str,
    typed: Mapping[str, str],
    *,
    status: int = 200,
    faults: Mapping[str, str] | None = None,
    **context: Any,
) -> Response:
    shown: dict[str, Any] = {
        "account": await _account(visit, account),
        "typed": typed,
        "noises": list(NOISES.items()),
        "faults": faults or {},
        "may_draw": may(visit.session.role, "pipeline"),
        "preview": None,
        "file": "csv",
        "problem": None,
    }
    return page(visit.request, "draw.html", shown | context, status=status)
