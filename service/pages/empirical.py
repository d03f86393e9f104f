"""The page that measures empirical privacy loss from uploaded residuals.

An upload is used for one answer and is never stored.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Response

from service.api.http.memory_room import Take, room_of
from service.errors import Forbidden, InvalidInput
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, ask, send
from service.pages.shell.forms import Form, SentFiles, number_of, text_of
from service.pages.shell.layout import PICTURES_WITHIN, may, page
from service.pages.shell.number_column import MOST_BYTES, MOST_NUMBERS, as_json, memory_of, read_column

router = APIRouter(include_in_schema=False)

_SETTING = {"bandwidth": "0.1", "percentile": "95", "multiplier": "1", "bootstrap": "200"}
_OF_NOISE = _SETTING | {"shift": "1", "confidence": "0.95"}
_OF_RUNS = {"runs_confidence": "0.95", "delta": "0"}
_RUNS = ("outputs", "neighbouring_outputs")
_WHOLE = ("bootstrap", "shift")
_MOST_ROWS = 200  # of the curve's table


async def _steward(visit: SignedIn) -> Visit:
    """Return the request of a steward. A dependency before the form's, so that no other role has a file read.

    Raises:
        Forbidden: the user has another role.
    """
    if not may(visit.session.role, "steward"):
        raise Forbidden("expected a key with the role steward: the figures of this page are not protected")
    return visit


StewardSignedIn = Annotated[Visit, Depends(_steward, scope="function")]


@router.get("/empirical")
async def start(visit: StewardSignedIn) -> Response:
    """Render the forms with the default parameters."""
    return _show(visit, {})


@router.post("/empirical/noise")
async def measure(visit: StewardSignedIn, sent: SentFiles) -> Response:
    """Render the loss that residuals show: the published estimate, the certified lower bound and the picture."""
    typed = {name: number_of(sent, name) for name in _OF_NOISE}
    faults: dict[str, str] = {}
    columns = await _columns(visit, sent, ("residuals", "counts"), faults)
    if "residuals" not in columns:
        faults.setdefault("residuals", "expected a file or pasted text, one number per line")
    if faults:
        return _show(visit, typed, faults=faults, status=422)
    question = {**columns, **{name: _read(name, typed[name]) for name in _SETTING}}
    bounding = {"residuals": columns["residuals"], "shift": _read("shift", typed["shift"])}
    estimate = await _answer(visit, "loss", question, faults)
    bound = await _answer(visit, "lower-bound", bounding | {"confidence": typed["confidence"]}, faults)
    if estimate is None or bound is None:
        return _show(visit, typed, faults=faults, status=422)
    # Without replicates: a second request would draw other ones than those in the displayed estimate.
    picture = await _picture(visit, question | {"bootstrap": 0})
    curve = estimate["curve"][:: -(-len(estimate["curve"]) // _MOST_ROWS)]
    return _show(
        visit,
        typed,
        estimate=estimate | {"curve": curve},
        bound=bound,
        picture=picture,
        with_counts="counts" in columns,
    )


@router.post("/empirical/runs")
async def compare(visit: StewardSignedIn, sent: SentFiles) -> Response:
    """Render the lower bound on the loss that the outputs of runs on two neighbouring inputs prove."""
    typed = {name: number_of(sent, name) for name in _OF_RUNS}
    faults: dict[str, str] = {}
    columns = await _columns(visit, sent, _RUNS, faults)
    for name in _RUNS:
        if name not in columns:
            faults.setdefault(name, "expected a file, one number per line")
    if faults:
        return _show(visit, typed, faults=faults, status=422)
    question = {**columns, "confidence": typed["runs_confidence"], "delta": typed["delta"]}
    bound = await _answer(visit, "lower-bound", question, faults, {"confidence": "runs_confidence"})
    if bound is None:
        return _show(visit, typed, faults=faults, status=422)
    return _show(visit, typed, runs_bound=bound)


def _show(visit: Visit, typed: Mapping[str, str], *, status: int = 200, **shown: Any) -> Response:
    """Render the page; of the submitted form, only the parameters are shown again."""
    context: dict[str, Any] = {
        "typed": {**_OF_NOISE, **_OF_RUNS, **typed},
        "most_numbers": MOST_NUMBERS,
        "most_mebibytes": MOST_BYTES >> 20,
        "faults": {},
        "estimate": None,
        "bound": None,
        "picture": "",
        "with_counts": False,
        "runs_bound": None,
        **shown,
    }
    return page(visit.request, "empirical.html", context, status=status, policy=PICTURES_WITHIN)


async def _columns(visit: Visit, sent: Form, names: Sequence[str], faults: dict[str, str]) -> dict[str, Any]:
    """Return the numbers of each uploaded file or pasted text, by field; a field without either is left out.

    An invalid field is left out too, and its reason is added to ``faults``.

    Raises:
        TooLarge, Unavailable: there is not enough memory for the numbers.
    """
    return await to_thread.run_sync(_read_columns, room_of(visit.request.scope), sent, names, faults)


def _read_columns(room: Take, sent: Form, names: Sequence[str], faults: dict[str, str]) -> dict[str, Any]:
    given = {
        name: [part for part in (sent.files.get(name), text_of(sent, f"{name}_pasted").encode()) if part]
        for name in names
    }
    parts = [part for some in given.values() for part in some]
    room(sum(map(len, parts)) + sum(map(memory_of, parts)))
    columns: dict[str, Any] = {}
    for name, some in given.items():
        try:
            if len(some) > 1:
                raise InvalidInput.at(f"/{name}", "expected a file or pasted text, got both")
            numbers = read_column(b"".join(some), f"/{name}")
        except InvalidInput as error:
            faults[name] = error.faults[0].detail
        else:
            columns |= {name: numbers} if numbers else {}
    return columns


def _read(name: str, text: str) -> str | int:
    """Return a parameter as ``/v1`` expects it; text that is not a whole number is passed on for ``/v1`` to refuse."""
    return int(text) if name in _WHOLE and text.isascii() and text.isdigit() and len(text) < 10 else text


async def _answer(
    visit: Visit,
    resource: str,
    question: Mapping[str, Any],
    faults: dict[str, str],
    names: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return an answer of ``/v1``; None if the form is invalid, with the reasons added to ``faults`` by field.

    Args:
        visit: the request of the signed-in user.
        resource: the last step of the path below ``empirical``.
        question: the body of the request.
        faults: the reasons so far, by field.
        names: the fields of those members of the body that have another name.
    """
    try:
        content = await to_thread.run_sync(as_json, question)
        answer: dict[str, Any] = await send(visit, "POST", address("empirical", resource), content)
    except Refused as refused:
        if not refused.faults:
            raise
        for pointer, detail in refused.faults.items():
            name, _, place = pointer.removeprefix("/").partition("/")
            where = f"number {int(place) + 1} of the column: " if place.isdigit() else ""
            faults[(names or {}).get(name, name)] = where + detail
        return None
    return answer


async def _picture(visit: Visit, question: Mapping[str, Any]) -> str:
    """Return the picture as a data URL: nothing is stored from which a later request could draw it."""
    answer = await ask(
        visit,
        "POST",
        address("empirical", "loss"),
        content=await to_thread.run_sync(as_json, question),
        headers={"accept": "image/svg+xml"},
    )
    if answer.status != 200:
        raise Refused(json.loads(answer.body))
    return f"data:image/svg+xml;base64,{base64.b64encode(answer.body).decode()}"
