"""The page on which noisy counts are drawn: noise and a preview of its charge first, then the file of true counts.

The file is sent with the last form only, in memory, and is never kept or shown.
"""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.errors import InvalidInput
from service.pages.account import AccountStep
from service.pages.counts_form import (
    NO_FILE,
    counts_of,
    draw_counts,
    fault_of_file,
    is_of_file,
    problem_in_words,
    show_drawn,
)
from service.pages.drawing_form import (
    FIELDS,
    NOISES,
    NUMBERS,
    calibration_of,
    faults_of,
    mechanism_of,
    release_of,
    usual_noise,
)
from service.pages.plan_tree import tree_of
from service.pages.planner.client import Account, account_named
from service.pages.planner.form import NO_SHARE, UNREAD
from service.pages.purposes import fault_of_purpose, record_purpose
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get, send
from service.pages.shell.forms import Form, SentFiles, SentForm, number_of, text_of
from service.pages.shell.layout import may, page
from service.pages.shell.typed_numbers import whole_text, with_point
from service.privacy.numerics.numbers import exact_text, parse_exact

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_OF_FILES = "0.95"
"""The confidence of the margins that a file of noisy counts states."""
_PROPOSED = "proposed"


@router.get("/draw")
async def start(account: AccountStep, visit: SignedIn) -> Response:
    """Render an empty form."""
    found = await _account(visit, account)
    return _show(visit, found, FIELDS | {"noise": usual_noise(found["budget"]["definition"])})


@router.post("/draw")
async def preview(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Render the charge and the accuracy of the chosen noise; nothing is registered."""
    return await _preview(visit, account, _typed(form))


@router.post("/draw/counts")
async def draw(account: AccountStep, visit: SignedIn, form: SentFiles) -> Response:
    """Register the noise that was shown, draw the counts of the file, and render the page with the noisy counts.

    Sending the same form again has no further effect: the answer is the same counts, as either kind of file.
    """
    typed, sent = _typed(form), counts_of(form)
    if not sent.table:
        return await _preview(visit, account, typed, status=422, faults={"counts": NO_FILE}, **sent.kept)
    found = await _account(visit, account)
    release = release_of(typed, found, {})
    query = {name: release[name] for name in ("name", "tags")} | {"mechanism": text_of(form, "mechanism")}
    query |= {"periods": json.dumps(release["periods"])} if "periods" in release else {}
    query |= {"granularity": typed["granularity"]} if typed["granularity"] else {}
    try:
        answer = await draw_counts(visit, f"{address('accounts', account)}/draws", query, sent)
    except Refused as refused:
        faults = fault_of_file(refused, typed["granularity"], sent.table) | faults_of(typed, refused.faults)
        return await _preview(visit, account, typed, status=refused.status, faults=faults, refused=refused, **sent.kept)
    await record_purpose(visit, account, answer.headers["x-release"], typed["purpose"], sent.once)
    return await show_drawn(visit, account, answer, sent, charged=True)


@router.post("/draw/propose")
async def propose(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Propose the noise that was shown as a release, and redirect to it; once it is approved, its page draws it."""
    typed, once, found = _typed(form), text_of(form, "once"), await _account(visit, account)
    try:
        mechanism = json.loads(text_of(form, "mechanism"))
    except ValueError:
        raise InvalidInput.at("/mechanism", "expected the form of the page") from None
    try:
        body = release_of(typed, found, mechanism)
        release = await send(visit, "POST", f"{address('accounts', account)}/releases", body, once=once)
    except Refused as refused:
        faults = faults_of(typed, refused.faults)
        return await _preview(visit, account, typed, status=refused.status, faults=faults, refused=refused, once=once)
    await record_purpose(visit, account, release["id"], typed["purpose"], once)
    return RedirectResponse(f"/accounts/{account}/releases/{release['id']}?done=proposed", 303)


def _typed(form: Form) -> dict[str, str]:
    texts = {name: text_of(form, name) for name in FIELDS} | {"confidence": number_of(form, "confidence")}
    typed = texts | {name: with_point(texts[name]) for name in NUMBERS}
    return typed | ({"figure": whole_text(texts["figure"])} if texts["noise"].endswith(" moe") else {})


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
    refused: Refused | None = None,
    **kept: Any,
) -> Response:
    """Render the form with the mechanism, its accuracy and its charge; after a refusal with its faults.

    ``kept`` are variables of the template with what was sent.
    """
    found = await _account(visit, account)
    wrong = _wrong(typed, found)
    if wrong:
        return _show(visit, found, typed, status=422, faults=wrong)
    try:
        shown = await _figures(visit, found, typed)
    except Refused as other:
        wrong = faults_of(typed, other.faults)
        first = refused or other  # after a draw that is refused, the reason for that counts
        return _show(visit, found, typed, status=first.status, faults=wrong, refused=first)
    return _show(visit, found, typed, status=status, faults=faults, refused=refused, preview=shown, **kept)


def _wrong(typed: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return the faults of the form that ``/v1`` would not find, or only after the draw."""
    wrong = fault_of_purpose(typed["purpose"])
    if typed["noise"] not in NOISES:
        wrong["noise"] = "expected one of the kinds of noise in the list"
    if account["capped"] and not typed["reads"]:
        wrong["reads"] = f'expected the tags of what it reads, or "{UNREAD}", as the account has caps'
    if typed["figure"].endswith("%") and typed["noise"].endswith(" moe"):
        wrong["figure"] = NO_SHARE
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
    asked = [_OF_FILES] if calibration is None else [typed["confidence"], _OF_FILES]
    accuracy = await send(visit, "POST", address("accuracy"), {"mechanism": mechanism, "confidences": asked})
    return {
        "mechanism": mechanism,
        "text": json.dumps(mechanism),
        "words": tree_of(mechanism),
        "rehearsal": rehearsal,
        "margin": accuracy["margins"][0],
        "probability": exact_text(100 * parse_exact(asked[0])),
        "of_file": None if parse_exact(asked[0]) == parse_exact(_OF_FILES) else accuracy["margins"][-1],
        "waits": rehearsal["state"] == _PROPOSED,
    }


def _show(
    visit: Visit,
    account: Account,
    typed: Mapping[str, str],
    *,
    status: int = 200,
    faults: Mapping[str, str] | None = None,
    refused: Refused | None = None,
    **context: Any,
) -> Response:
    pointers = {} if refused is None else refused.faults
    shown: dict[str, Any] = {
        "account": account,
        "typed": typed,
        "noises": list(NOISES.items()),
        "faults": faults or {},
        "shown_at": [one for one in pointers if is_of_file(one) or faults_of(typed, {one: ""})],
        "may_draw": may(visit.session.role, "pipeline"),
        "preview": None,
        "file": "csv",
        "problem": None if refused is None else problem_in_words(refused),
    }
    return page(visit.request, "draw.html", shown | context, status=status, back=True)
