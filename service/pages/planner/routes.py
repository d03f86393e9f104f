"""The planner's routes: from margins of error to plans with their costs, and the registration of a plan."""

from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.errors import InvalidInput
from service.pages.planner.client import (
    Account,
    PlanChanged,
    account_named,
    delta_of,
    faults_of,
    open_accounts,
    propose,
    reached_account,
    register,
    supposed_account,
    widen,
)
from service.pages.planner.form import (
    COLUMNS,
    KINDS,
    MECHANISMS,
    Form,
    FormFaults,
    Kind,
    Mechanism,
    empty_form,
    empty_row,
    field_of_release,
    form_of,
    is_supposed,
    label_of,
    margin_notes,
    may_widen,
    mechanisms_of,
    with_kind,
    with_row,
    without_row,
)
from service.pages.planner.pasted import LONGEST_TABLE, with_pasted
from service.pages.planner.saved import field_of_scenario, form_of_scenario, scenario_of
from service.pages.planner.view import level_rows, noise_rows, sides_of
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get, send
from service.pages.shell.forms import Form as Sent, SentForm, text_of, texts_of
from service.pages.shell.layout import may, page

router = APIRouter(include_in_schema=False)

CHANGED = "The form has changed since the plan was computed. Nothing was registered: this is the new plan."
_NO_ACCOUNT = "expected one of the accounts in the list"
_MOST_DIGITS = 9  # of the number of a row
_NO_BUTTON = "expected the value of a button of the page"


class _PlannerVisit(NamedTuple):
    """A request with the planner's form, and the account that the form names, if any."""

    visit: Visit
    form: Form
    chosen: Account | None

    async def account(self) -> Account:
        """Return the account, or the supposed one.

        Raises:
            FormFaults: the form names none in the key's reach, or what it supposes is invalid.
        """
        if self.chosen is not None:
            return self.chosen
        if self.form["account"]:
            return await reached_account(self.visit, self.form["account"])
        return await supposed_account(self.visit, self.form)


@router.get("/plan")
async def start(visit: SignedIn) -> Response:
    """Render an empty form, or that of a scenario."""
    query = visit.request.query_params
    if query.get("scenario"):
        form = form_of_scenario(await get(visit, address("scenarios", query["scenario"])))
    else:
        form = empty_form(_kind(query.get("kind", "margins")), query.get("account", ""))
    chosen = await account_named(visit, form["account"])
    return await _show(_PlannerVisit(visit, form, chosen))


@router.get("/plan/account")
async def show_account(visit: SignedIn) -> Response:
    """Render an account's definition and remaining budget: a fragment for the page's script."""
    chosen = await account_named(visit, visit.request.query_params.get("account", ""))
    return page(visit.request, "plan-account.html", {"chosen": chosen})


@router.post("/plan")
async def act(visit: SignedIn, sent: SentForm) -> Response:
    """Perform the action of the pressed button."""
    form = form_of(_kind(text_of(sent, "kind")), partial(texts_of, sent))
    chosen = await account_named(visit, form["account"])
    planning = _PlannerVisit(visit, form, chosen)
    action, _, which = text_of(sent, "do").partition("-")
    try:
        match action:
            case "show":
                return await _show(planning)
            case "kind":
                return await _show(planning._replace(form=with_kind(planning.form, _kind(which))))
            case "add":
                return await _show(planning._replace(form=with_row(planning.form)))
            case "remove" if which.isascii() and which.isdigit() and len(which) <= _MOST_DIGITS:
                return await _show(planning._replace(form=without_row(planning.form, int(which))))
            case "read":
                return await _show(planning._replace(form=_with_rows(planning.form, sent)))
            case "plan":
                return await _show_plans(planning)
            case "save":
                return await _save(planning, _mechanism(which), text_of(sent, "once"))
            case "widen":
                return await _show_plans(await _widen(planning, _mechanism(which)))
            case "register":
                return await _register(
                    planning, _mechanism(which), text_of(sent, "once"), text_of(sent, f"shown-{which}")
                )
            case _:
                raise InvalidInput.at("/do", _NO_BUTTON)
    except FormFaults as wrong:
        pasted = text_of(sent, "targets") if wrong.faults.keys() & {"targets", "file"} else ""
        return await _show(planning, status=422, faults=wrong.faults, pasted=pasted)


def _with_rows(form: Form, sent: Sent) -> Form:
    """Return the form with the rows of the uploaded file, or else of the pasted table.

    Raises:
        FormFaults: the file is too large or no text in UTF-8, or the table is refused.
    """
    file = sent.files.get("file", b"")
    if not file:
        return with_pasted(form, text_of(sent, "targets"))
    if len(file) > LONGEST_TABLE:
        raise FormFaults({"file": f"expected a file of at most {LONGEST_TABLE >> 10} KiB"})
    try:
        return with_pasted(form, file.decode())
    except UnicodeDecodeError:
        raise FormFaults(
            {"file": "expected a CSV file in UTF-8: save it from the spreadsheet as “CSV UTF-8”"}
        ) from None
    except FormFaults as wrong:
        raise FormFaults({"file": wrong.faults["targets"]}) from None


def _kind(text: str) -> Kind:
    if text not in COLUMNS:
        raise InvalidInput.at("/kind", f"expected one of {', '.join(COLUMNS)}")
    return text


def _mechanism(text: str) -> Mechanism:
    if text not in MECHANISMS:
        raise InvalidInput.at("/do", _NO_BUTTON)
    return text


async def _show(planning: _PlannerVisit, *, status: int = 200, **shown: Any) -> Response:
    """Render the page with the results so far."""
    context: dict[str, Any] = {
        "form": planning.form,
        "kinds": KINDS,
        "widening": may_widen(planning.form.kind),
        "pasted": "",
        "columns": COLUMNS[planning.form.kind],
        "notes": margin_notes(planning.form),
        "initial": empty_row(planning.form.kind),
        "accounts": await open_accounts(planning.visit),
        "chosen": planning.chosen,
        "may_register": may(planning.visit.session.role, "pipeline"),
        "faults": {},
        "notice": "",
        "delta": "",
        **dict.fromkeys(("sides", "noise", "levels", "analyses"), ()),
        **shown,
    }
    context["labels"] = {name: label_of(planning.form, name) for name in context["faults"]}
    return page(planning.visit.request, "plan.html", context, status=status, back=True)


async def _show_plans(planning: _PlannerVisit, *, status: int = 200, **shown: Any) -> Response:
    """Render the page with a plan of each mechanism."""
    form, account = planning.form, await planning.account()
    proposals = [await propose(planning.visit, form, account, mechanism) for mechanism in mechanisms_of(form.kind)]
    context: dict[str, Any] = {"sides": sides_of(form, proposals, account), "delta": delta_of(form, account)}
    context["planned"] = account
    if form.kind != "safetab":
        context["noise"] = noise_rows(form, proposals)
    else:
        context["levels"] = level_rows(proposals)
        context["analyses"] = [proposal.answers[0]["analyses"] for proposal in proposals]
    return await _show(planning, status=status, **context, **shown)


async def _widen(planning: _PlannerVisit, mechanism: Mechanism) -> _PlannerVisit:
    """Return the request with margins of error wide enough for the plan to fit; unchanged if there are none."""
    if not may_widen(planning.form.kind):
        raise InvalidInput.at("/do", _NO_BUTTON)
    return planning._replace(form=await widen(planning.visit, planning.form, await planning.account(), mechanism))


async def _register(planning: _PlannerVisit, mechanism: Mechanism, idempotency_key: str, shown: str) -> Response:
    """Register the displayed plan and redirect to its release; pressing the button again has no further effect."""
    if not idempotency_key:
        raise InvalidInput.at("/once", _NO_BUTTON)
    visit, form, account = planning.visit, planning.form, await planning.account()
    if is_supposed(account):
        raise FormFaults({"account": _NO_ACCOUNT})
    try:
        release = await register(visit, form, account, mechanism, shown=shown, once=f"{idempotency_key}-{mechanism}")
    except FormFaults as wrong:
        if "purpose" not in wrong.faults:
            raise
        return await _show_plans(planning, status=422, faults=wrong.faults)
    except PlanChanged:
        return await _show_plans(planning, notice=CHANGED)
    except Refused as refused:
        if refused.faults:
            faults = faults_of(refused, partial(field_of_release, form))
            return await _show_plans(planning, status=422, faults=faults)
        if refused.status in (409, 422):
            return await _show_plans(planning, status=refused.status, problem=refused.problem)
        raise
    return RedirectResponse(f"/accounts/{account['name']}/releases/{release['id']}?done=registered", 303)


async def _save(planning: _PlannerVisit, mechanism: Mechanism, idempotency_key: str) -> Response:
    """Save the form as a scenario and redirect to it; under its own name, an opened scenario is replaced."""
    visit, form, account = planning.visit, planning.form, await planning.account()
    body = scenario_of(form, mechanism, account)
    try:
        replaced = form["scenario"] if await _has_name(visit, form) else ""
        if replaced:
            saved = await send(visit, "PUT", address("scenarios", replaced), body)
        else:
            saved = await send(visit, "POST", address("scenarios"), body, once=f"{idempotency_key}-save-{mechanism}")
    except Refused as refused:
        if refused.status == 409:
            taken = "expected a name that none of your scenarios has"
            return await _show_plans(planning, status=409, faults={"scenario_name": taken})
        if not refused.faults:
            return await _show_plans(planning, status=refused.status, problem=refused.problem)
        faults = faults_of(refused, partial(field_of_scenario, form))
        return await _show_plans(planning, status=422, faults=faults)
    return RedirectResponse(f"/scenarios/{saved['id']}?done=saved", 303)


async def _has_name(visit: Visit, form: Form) -> bool:
    """Return whether the scenario that was opened still exists and has the typed name."""
    if not form["scenario"]:
        return False
    try:
        opened = await get(visit, address("scenarios", form["scenario"]))
    except Refused as refused:
        if refused.status != 404:
            raise
        return False
    return bool(opened["name"] == form["scenario_name"])
