"""The page that draws the counts of a registered release: a mechanism, its partition and repetition, and a file.

The file is sent on in memory, and is never kept or shown.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Response

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
from service.pages.drawable import offer_of
from service.pages.releases import ReleaseStep, read_release
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get
from service.pages.shell.fault_texts import plain
from service.pages.shell.forms import SentFiles, text_of
from service.pages.shell.layout import page
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of

router = APIRouter(prefix="/accounts/{account}/releases/{release}/draw", include_in_schema=False)

_FIELDS = {"mechanism": "", "partition": "", "repetition": "0", "disjoint": ""}
_OF_QUERY = ("mechanism", "partition", "repetition")
_UNDECLARED = (
    "the plan declares no partitions: leave this blank to draw the whole input, or tick below that its records are"
    " in no other partition"
)
_MOST_DRAWS = 1000  # that are looked at for what is left to draw; beyond them, what is drawn is refused
_MOST_LISTED = 500  # partitions that are chosen from a list; the name of one of more is typed


@router.get("")
async def start(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Render the form of a mechanism, or the choice between several."""
    chosen = visit.request.query_params.get("mechanism", "")
    return await _show(visit, account, release, _FIELDS | {"mechanism": chosen})


@router.post("")
async def draw(account: AccountStep, release: ReleaseStep, visit: SignedIn, form: SentFiles) -> Response:
    """Draw the counts of the file, and render the page with the noisy counts.

    Sending the same form again has no further effect: the answer is the same counts, as either kind of file.
    """
    sent = counts_of(form)
    typed = {name: text_of(form, name) for name in _FIELDS}
    if not sent.table:
        return await _show(visit, account, release, typed, status=422, faults={"counts": NO_FILE}, **sent.kept)
    query = {"mechanism": typed["mechanism"], "partition": typed["partition"] or None}
    query["repetition"] = typed["repetition"] or "0"
    path = address("accounts", account, "releases", release)
    if typed["partition"] and not typed["disjoint"] and await _is_undeclared(visit, path, typed["mechanism"]):
        return await _show(visit, account, release, typed, status=422, faults={"partition": _UNDECLARED}, **sent.kept)
    try:
        answer = await draw_counts(visit, f"{path}/draws", query, sent)
    except Refused as refused:
        context = {"refused": refused, "table": sent.table, **sent.kept}
        return await _show(visit, account, release, typed, status=refused.status, **context)
    return await show_drawn(visit, account, answer, sent, charged=False)


async def _is_undeclared(visit: Visit, path: str, mechanism: str) -> bool:
    """Return whether the plan declares no partitions of a mechanism; of an unknown one, ``/v1`` refuses the draw."""
    plan = (await read_release(visit, path)).get("plan")
    if plan is None:
        return False
    found = await to_thread.run_sync(read_plan, plan)
    return any(one.name == mechanism and one.partitions is None for one in mechanisms_of(found))


def _faults_of(faults: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of a refused draw by the fields of the form."""
    found = {name: plain(faults[f"/query/{name}"]) for name in _OF_QUERY if f"/query/{name}" in faults}
    return found | (
        {"repetition": "expected a whole number of the plan's repetitions"} if "repetition" in found else {}
    )


async def _show(
    visit: Visit,
    account: str,
    release: str,
    typed: Mapping[str, str],
    *,
    status: int = 200,
    faults: Mapping[str, str] | None = None,
    refused: Refused | None = None,
    table: bytes = b"",
    **kept: Any,
) -> Response:
    path = address("accounts", account, "releases", release)
    found, draws = await asyncio.gather(
        read_release(visit, path), get(visit, f"{path}/draws", {"noisy": "false", "limit": _MOST_DRAWS})
    )
    offer = await to_thread.run_sync(offer_of, found, draws["items"], visit.session.role)
    chosen = offer.find(typed["mechanism"])
    pointers = refused.faults if refused else {}
    if refused:
        faults = fault_of_file(refused, chosen.granularity if chosen else None, table) | _faults_of(refused.faults)
    shown: dict[str, Any] = {
        "release": found,
        "offer": offer,
        "chosen": chosen,
        "typed": typed,
        "most_listed": _MOST_LISTED,
        "faults": faults or {},
        "shown_at": [one for one in pointers if (chosen and is_of_file(one)) or _faults_of({one: ""})],
        "problem": None if refused is None else problem_in_words(refused),
        "file": "csv",
    }
    return page(visit.request, "release-draw.html", shown | kept, status=status)
