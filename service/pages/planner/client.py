"""The planner's requests to ``/v1``: the account, noise for the targets, its cost, and a dry run."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from service.api.schemas.guarantees import usual_delta_text
from service.pages.budget_form import budget_of
from service.pages.planner.form import (
    COLUMNS,
    UNREAD,
    Form,
    FormFaults,
    Mechanism,
    Proposal,
    Question,
    composition_of,
    digest_of,
    field_of_budget,
    field_of_question,
    field_of_release,
    filled,
    is_supposed,
    most_widened,
    periods_member,
    plan_of,
    questions,
    release_of,
    widened,
    with_margin,
    without_refused,
)
from service.pages.purposes import fault_of_purpose, record_purpose
from service.pages.shell.api_client import Refused, Visit, address, get, send
from service.pages.shell.layout import may

Account = Mapping[str, Any]
_MOST_LISTED = 1000
_MOST_TRIES = 16  # dry runs that lower margins again
_CHOICES = {"neighbouring": ("add_remove", "replace_one"), "definition": ("zcdp", "approximate", "pure", "rdp")}


async def open_accounts(visit: Visit) -> list[str]:
    """Return the names of all open accounts that the key reaches."""
    names: list[str] = []
    query: dict[str, str | int] = {"limit": _MOST_LISTED}
    while True:
        page = await get(visit, address("accounts"), query)
        names += [account["name"] for account in page["items"] if account["state"] == "open"]
        if page["next_cursor"] is None:
            return names
        query["cursor"] = page["next_cursor"]


async def account_named(visit: Visit, name: str) -> Account | None:
    """Return an account by its name; None if the key reaches no such account.

    The added member ``capped`` says whether the account, or one above it, has caps on tags.
    """
    if not name:
        return None
    account = await _account_in_reach(visit, name)
    return None if account is None else {**account, "capped": await _is_capped(visit, account)}


async def reached_account(visit: Visit, name: str) -> Account:
    """Return an account by its name.

    Raises:
        FormFaults: the key reaches no such account.
    """
    account = await account_named(visit, name)
    if account is None:
        raise FormFaults({"account": "expected one of the accounts in the list"})
    return account


async def _account_in_reach(visit: Visit, name: str) -> Account | None:
    try:
        account: Account = await get(visit, address("accounts", name), {"with_gauge": "true"})
    except Refused as refused:
        if refused.status not in (403, 404):
            raise
        return None
    return account


async def _is_capped(visit: Visit, account: Account) -> bool | None:
    """Return whether the account, or one above it, has caps on tags; None if the key does not reach one above."""
    above: Account | None = account
    while above is not None and "caps" not in above and above["parent"] is not None:
        above = await _account_in_reach(visit, above["parent"])
    return None if above is None else "caps" in above


async def supposed_account(visit: Visit, form: Form) -> Account:
    """Return the account that the form describes, which ``/v1`` does not have.

    Raises:
        FormFaults: its budget is invalid.
    """
    budget = budget_of({name: form[name] for name in ("definition", "cap", "alpha", "delta")} | {"declared": ""})
    faults = {
        name: "expected one of the list" for name in ("neighbouring", "definition") if form[name] not in _CHOICES[name]
    }
    if not form["unit"]:
        faults["unit"] = "expected what is protected, such as person or household"
    if faults:
        raise FormFaults(faults)
    trial = {"mechanism": "geometric", "queries": [{"name": "trial", "moe": "1"}], "budget": budget}
    try:
        await send(visit, "POST", address("calibrations", "allocation"), trial)
    except Refused as refused:
        raise FormFaults(faults_of(refused, partial(field_of_budget, form))) from None
    return {
        "name": "",
        "unit": form["unit"],
        "neighbouring": form["neighbouring"],
        "budget": budget,
        "state": "open",
        "parent": None,
        "capped": False,
    }


def delta_of(form: Form, account: Account) -> str:
    """Return the delta at which costs are shown: the typed one, or the account's."""
    return form["delta"] or usual_delta_text(account["budget"])


async def propose(visit: Visit, form: Form, account: Account, mechanism: Mechanism) -> Proposal:
    """Return a plan of one mechanism with all figures that the page shows.

    Raises:
        FormFaults: a field is invalid.
    """
    requests, answers, plan = await ask_plan(visit, form, account, mechanism)
    periods = periods_member(form, account)
    try:
        question = composition_of(plan, account, delta_of(form, account))
        cost = await send(visit, "POST", address("compositions"), question)
        rehearsal = await _dry_run(visit, account, {"name": "plan", "plan": plan} | periods)
        capacity = await _capacity(visit, account, {"plan": plan} | periods)
    except Refused as refused:
        raise FormFaults(faults_of(refused, partial(field_of_release, form))) from None
    return Proposal(mechanism, plan, requests, answers, cost, rehearsal, capacity, periods)


async def ask_plan(
    visit: Visit, form: Form, account: Account, mechanism: Mechanism
) -> tuple[list[Question], list[Mapping[str, Any]], dict[str, Any]]:
    """Return the plan that meets the targets, with the requests and answers from which it is made.

    A request is refused for some faults before others are looked for. So the other rows are requested without those
    that are refused, for a table with many rows to be mended at once.

    Raises:
        FormFaults: fields are invalid; the faults of all rows are collected.
    """
    try:
        return await _ask_plan(visit, form, account, mechanism)
    except FormFaults as wrong:
        others = without_refused(form, wrong.faults)
        if others is None:
            raise
        try:
            await ask_plan(visit, others, account, mechanism)
        except FormFaults as more:
            raise FormFaults(wrong.faults | more.faults) from None
        raise


async def _ask_plan(
    visit: Visit, form: Form, account: Account, mechanism: Mechanism
) -> tuple[list[Question], list[Mapping[str, Any]], dict[str, Any]]:
    if account["capped"] and not form["reads"]:
        raise FormFaults({"reads": f'expected the tags of what it reads, or "{UNREAD}", as the account has caps'})
    if not filled(form):
        first = COLUMNS[form.kind][0]
        raise FormFaults({f"{first.name}-0": "expected at least one row that is filled in"})
    requests = questions(form, mechanism, account, delta_of(form, account))
    answers: list[Mapping[str, Any]] = []
    faults: dict[str, str] = {}
    for question in requests:
        try:
            answers.append(await send(visit, "POST", question.path, question.body))
        except Refused as refused:
            found = faults_of(refused, partial(field_of_question, form, question))
            if question.rows and (fault := found.get(f"confidence-{question.rows[0]}")):  # one for all of its rows
                found |= {f"confidence-{row}": fault for row in question.rows}
            faults |= found
    if faults:
        raise FormFaults(faults)
    return requests, answers, plan_of(form, requests, answers, labelled=account["capped"] is False)


async def widen(visit: Visit, form: Form, account: Account, mechanism: Mechanism) -> Form:
    """Return the form with margins of error wide enough for the plan to fit; unchanged if no such width is known.

    All noise is widened alike first, and then margins are lowered again, one after another, as far as a few dry runs
    tell: a small margin, which is rounded up, may have taken most of the room.
    """
    rehearsal = (await propose(visit, form, account, mechanism)).rehearsal or {}
    factor = rehearsal.get("noise_multiplier_that_fits")
    if factor is None:
        return form
    found, tries = widened(form, factor), _MOST_TRIES
    for row in most_widened(form, found):
        low, high = max(1, int(Fraction(form.rows[row]["moe"]))), int(found.rows[row]["moe"])
        trial = low  # the margin that was asked for, where there is room for it
        while low < high and tries:
            tries -= 1
            candidate = with_margin(found, row, trial)
            if await _fits(visit, candidate, account, mechanism):
                found, high = candidate, trial
            else:
                low = trial + 1
            trial = (low + high) // 2
    return found


async def _fits(visit: Visit, form: Form, account: Account, mechanism: Mechanism) -> bool:
    _, _, plan = await ask_plan(visit, form, account, mechanism)
    rehearsal = await _dry_run(visit, account, {"name": "plan", "plan": plan} | periods_member(form, account))
    return rehearsal is not None and "type" not in rehearsal


class PlanChanged(Exception):
    """The plan that is to be registered is not the one that was shown."""


async def register(
    visit: Visit, form: Form, account: Account, mechanism: Mechanism, *, shown: str, once: str
) -> Mapping[str, Any]:
    """Register the plan of a form with its purpose, and return the release; repeating it has no further effect.

    Args:
        visit: the request of the signed-in user.
        form: the planner's form.
        account: the account that is charged.
        mechanism: that of the plan.
        shown: the digest of the plan that was shown.
        once: the Idempotency-Key.

    Raises:
        FormFaults: a field is invalid.
        PlanChanged: the plan is not the one that was shown.
        Refused: the release is refused.
    """
    if faults := fault_of_purpose(form["purpose"]):
        raise FormFaults(faults)
    _, _, plan = await ask_plan(visit, form, account, mechanism)
    if digest_of(account["name"], plan, periods_member(form, account)) != shown:
        raise PlanChanged
    path = address("accounts", account["name"], "releases")
    release: Mapping[str, Any] = await send(visit, "POST", path, release_of(form, account, plan), once=once)
    await record_purpose(visit, account["name"], release["id"], form["purpose"], once)
    return release


async def _dry_run(visit: Visit, account: Account, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the dry run's answer, or its problem if it is refused; None if the key may not register, or nowhere."""
    if is_supposed(account) or not may(visit.session.role, "pipeline"):
        return None
    path = address("accounts", account["name"], "releases")
    try:
        answer: Mapping[str, Any] = await send(visit, "POST", path, body, query={"dry_run": "true"})
    except Refused as refused:
        if refused.status == 409:
            return refused.problem
        raise
    return answer


async def _capacity(visit: Visit, account: Account, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how often a plan fits; None if the key may not ask, or the account is supposed or takes no releases."""
    if is_supposed(account):
        return None
    try:
        answer: Mapping[str, Any] = await send(visit, "POST", address("accounts", account["name"], "capacity"), body)
    except Refused as refused:
        if refused.status not in (403, 409):
            raise
        return None
    return answer


def faults_of(refused: Refused, field_of: Callable[[str], str]) -> dict[str, str]:
    """Return the reasons of a refusal by field.

    Raises:
        Refused: the problem is not a fault of the form.
    """
    if not refused.faults:
        raise refused
    return {field_of(pointer): detail for pointer, detail in refused.faults.items()}
