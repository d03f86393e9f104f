"""Routes of the planner: from margins of error to plans with their costs, and registration by a button."""

from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.errors import InvalidInput
from service.pages.planner.client import (
    Account,
    FormFaults,
    ask_plan,
    delta_of,
    faults_of,
    open_account_named,
    open_accounts,
    propose,
)
from service.pages.planner.form import (
    COLUMNS,
    MECHANISMS,
    Form,
    Kind,
    Mechanism,
    digest_of,
    empty_form,
    empty_row,
    field_of_release,
    form_of,
    label_of,
    periods_member,
    release_of,
    widened,
    with_row,
    without_row,
)
from service.pages.planner.view import level_rows, noise_rows, sides_of
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, send
from service.pages.shell.forms import SentForm, text_of
from service.pages.shell.layout import may, page

router = APIRouter(include_in_schema=False)

_CHANGED = "The form has changed since the plan was computed. Nothing was registered: this is the new plan."
_NO_ACCOUNT = "expected one of the accounts in the list"
_DIGITS = 10  # of the number of a row
_NO_BUTTON = "expected the value of a button of the page"


class _PlannerVisit(NamedTuple):
    """A visitor's form, and the account that it names, if any."""

    visit: Visit
    form: Form
    chosen: Account | None

    def account(self) -> Account:
        if self.chosen is None:
            raise FormFaults({"account": _NO_ACCOUNT})
        return self.chosen


@router.get("/plan")
async def start(visit: SignedIn) -> Response:
    """Render an empty form."""
    query = visit.request.query_params
    form = empty_form(_kind(query.get("kind", "tables")), query.get("account", ""))
    chosen = await open_account_named(visit, form["account"])
    return await _show(_PlannerVisit(visit, form, chosen))


@router.get("/plan/account")
async def show_account(visit: SignedIn) -> Response:
    """Render an account's definition and remaining budget: a fragment for the page's script."""
    chosen = await open_account_named(visit, visit.request.query_params.get("account", ""))
    return page(visit.request, "plan-account.html", {"chosen": chosen})


@router.post("/plan")
async def act(visit: SignedIn, sent: SentForm) -> Response:
    """Carry out the action of the pressed button."""
    form = form_of(_kind(text_of(sent, "kind")), lambda name: sent.texts.get(name, []))
    chosen = await open_account_named(visit, form["account"])
    desk = _PlannerVisit(visit, form, chosen)
    action, _, which = text_of(sent, "do").partition("-")
    try:
        match action:
            case "show":
                return await _show(desk)
            case "add":
                return await _show(desk._replace(form=with_row(desk.form)))
            case "remove" if which.isascii() and which.isdigit() and len(which) < _DIGITS:
                return await _show(desk._replace(form=without_row(desk.form, int(which))))
            case "plan":
                return await _show_plans(desk)
            case "widen":
                return await _show_plans(await _widen(desk, _mechanism(which)))
            case "register":
                return await _register(desk, _mechanism(which), text_of(sent, "once"), text_of(sent, f"shown-{which}"))
            case _:
                raise InvalidInput.at("/do", _NO_BUTTON)
    except FormFaults as wrong:
        return await _show(desk, status=422, faults=wrong.faults)


def _kind(text: str) -> Kind:
    if text not in COLUMNS:
        raise InvalidInput.at("/kind", f"expected one of {', '.join(COLUMNS)}")
    return text


def _mechanism(text: str) -> Mechanism:
    if text not in MECHANISMS:
        raise InvalidInput.at("/do", _NO_BUTTON)
    return text


async def _show(desk: _PlannerVisit, *, status: int = 200, **shown: Any) -> Response:
    """Render the page with the results so far."""
    context: dict[str, Any] = {
        "form": desk.form,
        "columns": COLUMNS[desk.form.kind],
        "initial": empty_row(desk.form.kind),
        "accounts": await open_accounts(desk.visit),
        "chosen": desk.chosen,
        "may_register": may(desk.visit.session.role, "pipeline"),
        "faults": {},
        "refusal": None,
        "notice": "",
        "delta": "",
        **dict.fromkeys(("sides", "noise", "levels", "analyses"), ()),
        **shown,
    }
    context["labels"] = {name: label_of(desk.form, name) for name in context["faults"]}
    return page(desk.visit.request, "plan.html", context, status=status)


async def _show_plans(desk: _PlannerVisit, *, status: int = 200, **shown: Any) -> Response:
    """Render the page with a plan of each mechanism."""
    account = desk.account()
    proposals = [await propose(desk.visit, desk.form, account, mechanism) for mechanism in MECHANISMS]
    context: dict[str, Any] = {"sides": sides_of(proposals, account), "delta": delta_of(desk.form, account)}
    if desk.form.kind == "tables":
        context["noise"] = noise_rows(desk.form, proposals)
    else:
        context["levels"] = level_rows(proposals)
        context["analyses"] = [proposal.answers[0]["analyses"] for proposal in proposals]
    return await _show(desk, status=status, **context, **shown)


async def _widen(desk: _PlannerVisit, mechanism: Mechanism) -> _PlannerVisit:
    """Return the form with margins of error with which the plan fits, where there are any."""
    rehearsal = (await propose(desk.visit, desk.form, desk.account(), mechanism)).rehearsal or {}
    factor = rehearsal.get("noise_multiplier_that_fits")
    return desk if factor is None else desk._replace(form=widened(desk.form, factor))


async def _register(desk: _PlannerVisit, mechanism: Mechanism, idempotency_key: str, shown: str) -> Response:
    """Register the displayed plan, once however often the button is pressed, and show the release."""
    if not idempotency_key:
        raise InvalidInput.at("/once", _NO_BUTTON)
    visit, form, account = desk.visit, desk.form, desk.account()
    _, _, plan = await ask_plan(visit, form, account, mechanism)
    name = account["name"]
    if digest_of(name, plan, periods_member(form, account)) != shown:
        return await _show_plans(desk, notice=_CHANGED)
    path = address("accounts", name, "releases")
    try:
        release = await send(
            visit, "POST", path, release_of(form, account, plan), once=f"{idempotency_key}-{mechanism}"
        )
    except Refused as refused:
        if refused.faults:
            faults = faults_of(refused, partial(field_of_release, form))
            return await _show_plans(desk, status=422, faults=faults)
        if refused.status in (409, 422):
            return await _show_plans(desk, status=refused.status, refusal=refused.problem)
        raise
    return RedirectResponse(f"/accounts/{name}/releases/{release['id']}", 303)
