"""The pages of scenarios: their list, one with its results, several side by side, and their registration.

Results are worked out whenever a page is shown, against the account's present budget.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.api.http import csv_answers
from service.errors import InvalidInput
from service.pages.planner.client import (
    Account,
    PlanChanged,
    account_named,
    delta_of,
    faults_of,
    propose,
    reached_account,
    register,
    supposed_account,
)
from service.pages.planner.form import (
    KINDS,
    MECHANISMS,
    Form,
    FormFaults,
    Proposal,
    field_of_release,
    filled,
    label_of,
)
from service.pages.planner.routes import CHANGED
from service.pages.planner.saved import form_of_scenario
from service.pages.planner.view import noise_of, queries_by_row, side_of
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, disposition, get, send
from service.pages.shell.figures import loss_in, loss_in_full
from service.pages.shell.forms import Form as Sent, SentForm, text_of
from service.pages.shell.layout import may, page
from service.pages.shell.whole_tables import as_file

router = APIRouter(prefix="/scenarios", include_in_schema=False)

_ROWS = 100
_MOST_COMPARED = 4
_OF_RELEASE = ("release", "purpose", "tags", "reserve_for")
_COLUMNS = (
    *("scenario", "kind", "mechanism", "account", "unit", "neighbouring", "definition", "charge", "delta"),
    *("percent_of_budget", "percent_of_what_is_left", "fits", "target", "noise", "margin", "confidence", "fault"),
)

ScenarioStep = Annotated[str, Path()]


@dataclass(frozen=True, slots=True)
class Result:
    """A scenario with what it comes to now.

    Attributes:
        scenario: the answer of ``/v1``.
        form: the planner's form that states it.
        account: the account, or the supposed one; None if its budget is invalid.
        side: the figures of the plan; None if there is none.
        margins: of each target its name, its noise, its margin of error, and the margin's confidence.
        faults: why there is no plan.
    """

    scenario: Mapping[str, Any]
    form: Form
    account: Account | None
    side: Mapping[str, Any] | None
    margins: Sequence[Mapping[str, Any]]
    faults: Sequence[str]

    @property
    def delta(self) -> str:
        """The delta at which costs are shown."""
        return "" if self.account is None else delta_of(self.form, self.account)


@router.get("")
async def show_scenarios(visit: SignedIn) -> Response:
    """Render the scenarios, oldest first."""
    return await _list(visit)


async def _list(visit: Visit, ticked: Sequence[str] | None = None) -> Response:
    """Render the scenarios; ``ticked`` are the ids of too few or too many to compare."""
    parameters = visit.request.query_params
    query = {"limit": _ROWS, "cursor": parameters.get("cursor"), "account": parameters.get("account") or None}
    found = await get(visit, address("scenarios"), query)
    shown = {
        "scenarios": found["items"],
        "next_cursor": found["next_cursor"],
        "account": query["account"],
        "done": parameters.get("done"),
        "ticked": ticked,
        "most": _MOST_COMPARED,
    }
    return page(visit.request, "scenarios.html", shown | _NAMES, status=200 if ticked is None else 422)


@router.get("/compare")
async def compare(visit: SignedIn) -> Response:
    """Render two to four scenarios side by side."""
    ids = _ids(visit)
    if not 2 <= len(ids) <= _MOST_COMPARED:
        return await _list(visit, ids)
    results = await _asked(visit)
    targets = list(dict.fromkeys(one["name"] for result in results for one in result.margins))
    by_name = [{one["name"]: one for one in result.margins} for result in results]
    shown = {"results": results, "targets": targets, "by_name": by_name, "query": _query(visit)}
    return page(visit.request, "scenarios-compared.html", shown | _NAMES)


@router.get("/results.csv")
async def results_table(visit: SignedIn) -> Response:
    """Send one to four scenarios with their results as a table, with a row for each target."""
    rows = [row for result in await _asked(visit) for row in _rows(result)]
    return as_file(
        "".join(csv_answers.written(_COLUMNS, ([row[name] for name in _COLUMNS] for row in rows))), "scenarios.csv"
    )


@router.get("/results.json")
async def results_file(visit: SignedIn) -> Response:
    """Send one to four scenarios with their results as JSON."""
    body = [{"scenario": result.scenario, "result": _rows(result)} for result in await _asked(visit)]
    headers = {"Content-Disposition": disposition("scenarios.json"), "Cache-Control": "no-store"}
    return Response(json.dumps(body, indent=2, ensure_ascii=False), media_type="application/json", headers=headers)


@router.get("/{scenario}")
async def show_scenario(scenario: ScenarioStep, visit: SignedIn) -> Response:
    """Render a scenario with what it comes to now."""
    return await _show(visit, await _read(visit, scenario))


@router.post("/{scenario}/delete")
async def delete_scenario(scenario: ScenarioStep, visit: SignedIn, _: SentForm) -> Response:
    """Delete a scenario."""
    await send(visit, "DELETE", address("scenarios", scenario))
    return RedirectResponse("/scenarios?done=deleted", 303)


@router.post("/{scenario}/register")
async def register_scenario(scenario: ScenarioStep, visit: SignedIn, sent: SentForm) -> Response:
    """Register the plan that was shown, and redirect to its release; pressing again has no further effect."""
    found = await _read(visit, scenario)
    once = text_of(sent, "once")
    account = await account_named(visit, found["account"] or "")
    if not once or account is None:
        raise InvalidInput.at("/once", "expected the button of a scenario with an account")
    form = _with_release(form_of_scenario(found), sent)
    key = f"{once}-{found['mechanism']}"
    try:
        release = await register(visit, form, account, found["mechanism"], shown=text_of(sent, "shown"), once=key)
    except PlanChanged:
        return await _show(visit, found, form, notice=CHANGED)
    except FormFaults as wrong:
        return await _show(visit, found, form, status=422, faults=wrong.faults)
    except Refused as refused:
        if refused.faults:
            faults = faults_of(refused, partial(field_of_release, form))
            return await _show(visit, found, form, status=422, faults=faults)
        if refused.status not in (409, 422):
            raise
        return await _show(visit, found, form, status=refused.status, problem=refused.problem)
    return RedirectResponse(f"/accounts/{account['name']}/releases/{release['id']}?done=registered", 303)


def _with_release(form: Form, sent: Sent) -> Form:
    return replace(form, fields={**form.fields, **{name: text_of(sent, name) for name in _OF_RELEASE}})


async def _read(visit: Visit, scenario: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = await get(visit, address("scenarios", scenario))
    return found


async def _show(
    visit: Visit, scenario: Mapping[str, Any], form: Form | None = None, *, status: int = 200, **shown: Any
) -> Response:
    form = form_of_scenario(scenario) if form is None else form
    result = await _result(visit, scenario, form)
    session = visit.session
    context = {
        "results": [result],
        "result": result,
        "scenario": scenario,
        "form": form if form["release"] else replace(form, fields={**form.fields, "release": scenario["name"]}),
        "may_register": may(session.role, "pipeline"),
        "may_change": scenario["made_by"] == session.name or may(session.role, "steward"),
        "done": visit.request.query_params.get("done"),
        "faults": {},
        "notice": "",
        "query": f"id={scenario['id']}",
        **shown,
    }
    return page(visit.request, "scenario.html", context | _NAMES, status=status)


_NAMES: dict[str, Any] = {"kinds": KINDS, "mechanisms": MECHANISMS}


def _ids(visit: Visit) -> list[str]:
    return list(dict.fromkeys(visit.request.query_params.getlist("id")))


async def _asked(visit: Visit) -> list[Result]:
    """Return the scenarios that the query names, with their results.

    Raises:
        InvalidInput: they are too few or too many.
    """
    ids = _ids(visit)
    if not 1 <= len(ids) <= _MOST_COMPARED:
        raise InvalidInput.at("/query/id", f"expected 1 to {_MOST_COMPARED} scenarios")
    found = [await _read(visit, one) for one in ids]
    return [await _result(visit, one, form_of_scenario(one)) for one in found]


def _query(visit: Visit) -> str:
    return "&".join(f"id={one}" for one in _ids(visit))


async def _result(visit: Visit, scenario: Mapping[str, Any], form: Form) -> Result:
    account: Account | None = None
    try:
        if form["account"]:
            account = await reached_account(visit, form["account"])
        else:
            account = await supposed_account(visit, form)
        proposal = await propose(visit, form, account, scenario["mechanism"])
    except FormFaults as wrong:
        faults = [f"{label_of(form, name) or 'The scenario'}: {detail}" for name, detail in wrong.faults.items()]
        return Result(scenario, form, account, None, (), faults)
    return Result(scenario, form, account, side_of(proposal, account), _margins(form, proposal), ())


def _margins(form: Form, proposal: Proposal) -> list[dict[str, Any]]:
    """Return each target's name, noise, margin of error, and its confidence."""
    if form.kind == "safetab":
        confidence = form["confidence"]
        levels = proposal.answers[0]["levels"]
        return [{"name": one["name"], "noise": "", "moe": one["moe"], "confidence": confidence} for one in levels]
    by_row = queries_by_row(proposal)
    return [
        {
            "name": by_row[row]["name"],
            "noise": noise_of(by_row[row], whole=False),
            "moe": by_row[row]["moe"],
            "confidence": form.rows[row].get("confidence") or form["confidence"],
        }
        for row in filled(form)
    ]


def _rows(result: Result) -> list[dict[str, Any]]:
    """Return a result as rows of a table: one for each target."""
    scenario, account, side = result.scenario, result.account, result.side
    charge = None if account is None or side is None else loss_in(account["budget"], side["cost"])
    shared = dict.fromkeys(_COLUMNS) | {
        "scenario": scenario["name"],
        "kind": scenario["kind"],
        "mechanism": scenario["mechanism"],
        "account": scenario["account"],
        "fault": "; ".join(result.faults) or None,
    }
    if account is not None:
        shared |= {"unit": account["unit"], "neighbouring": account["neighbouring"], "delta": result.delta}
        shared["definition"] = account["budget"]["definition"]
    if side is not None:
        shared |= {
            "charge": None if charge is None else loss_in_full(charge),
            "percent_of_budget": _bare(side["percent"]),
            "percent_of_what_is_left": _bare(side["of_left"]),
            "fits": side["fits"],
        }
    targets = [
        {"target": one["name"], "noise": one["noise"]["exact"], "margin": one["moe"], "confidence": one["confidence"]}
        for one in result.margins
    ]
    return [shared | one for one in targets or [{}]]


def _bare(percent: str | None) -> str | None:
    return None if percent is None else percent.removesuffix(" %")
