"""Routes of scenarios: save, list, read, replace and delete what a planner's form states."""

import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from service.api.http.dependencies import Changing, CurrentDatabase, in_writers, ok, respond
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_cursor, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas.scenarios import ScenarioBody, ScenarioOutline, ScenarioPage, StateScenario, check_scenario
from service.errors import Forbidden
from service.ledger import scenarios
from service.ledger.access.authentication import Principal
from service.ledger.accounts import lines
from service.ledger.scenarios import ScenarioRecord, StatedScenario
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer

router = APIRouter(prefix="/v1/scenarios", route_class=StrictRoute)

_COLUMNS_OF_ROW = ("name", "account", "kind", "mechanism")
_LOCATION = {"Location": {"description": "The scenario's address.", "schema": {"type": "string"}}}

ScenarioPath = Annotated[str, Path(description="The scenario's id.", examples=[examples.SCENARIO_ID])]


@router.post(
    "",
    status_code=201,
    response_model=ScenarioBody,
    responses={201: {"description": "The scenario.", "headers": _LOCATION}},
    openapi_extra=examples.body(examples.SCENARIO),
)
@in_writers
def save_scenario(body: StateScenario, change: Changing) -> Response:
    """Save a scenario.

    A scenario is what the planner's form states: inputs, and no results. Nothing is charged or reserved. Every key may
    save one. Every key that may read its account may read it; one without an account is open to all keys. A principal
    keeps at most 200 scenarios. Typical counts are kept and shown: state public sizes, never true counts.
    """
    stated = _stated(change.database, change.principal, body)
    answer = change.carry_out(
        scenarios.save(change.request, stated), lambda saved: Answer(201, json.dumps(_body(saved)))
    )
    response = respond(answer)
    response.headers["Location"] = f"/v1/scenarios/{json.loads(answer.body or '')['id']}"
    return response


@router.get("", response_model=ScenarioPage, responses=AS_TABLE)
def list_scenarios(
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    account: Annotated[str | None, Query(max_length=100, description="Only those of this account.")] = None,
    accept: Accepted = USUAL,
) -> Response:
    """List scenarios.

    The oldest comes first; targets are not included. A key that is limited to accounts sees those of its accounts, and
    those without an account.
    """
    require(principal, "auditor", account)
    after, _, last_id = read_cursor(cursor).partition(" ")
    with database.read() as connection:
        found = scenarios.list_scenarios(
            connection,
            (after, last_id),
            limit,
            account=account,
            within=principal.accounts if principal.accounts is None else tuple(principal.accounts),
            before_reading=with_room(take),
        )
    last = f"{found[-1].created_at} {found[-1].id}" if found.more else None
    return answer_list(accept, [_outline(one) for one in found], last, tuple(ScenarioOutline.model_fields))


@router.get("/{scenario}", response_model=ScenarioBody)
def read_scenario(scenario: ScenarioPath, database: CurrentDatabase, principal: CurrentPrincipal) -> Response:
    """Read a scenario."""
    with database.read() as connection:
        found = scenarios.read_scenario(connection, scenario)
    require(principal, "auditor", found.account)
    return ok(_body(found))


@router.put("/{scenario}", response_model=ScenarioBody, openapi_extra=examples.body(examples.SCENARIO))
@in_writers
def replace_scenario(scenario: ScenarioPath, body: StateScenario, change: Changing) -> Response:
    """Replace a scenario.

    The whole content is replaced, the name included; its maker stays. Its maker may do so, and a steward.
    """
    stated = _stated(change.database, change.principal, body)
    return ok(_body(scenarios.exchange(change.database, scenario, stated, partial(_require_change, change.principal))))


@router.delete("/{scenario}", status_code=204)
@in_writers
def delete_scenario(scenario: ScenarioPath, change: Changing) -> Response:
    """Delete a scenario.

    Releases that were registered from it stay. Its maker may delete it, and a steward.
    """
    scenarios.remove(change.database, scenario, partial(_require_change, change.principal))
    return Response(status_code=204)


def _stated(database: Database, principal: Principal, body: StateScenario) -> StatedScenario:
    """Return the content that a request states, of an account in the key's reach.

    Raises:
        Forbidden: the key does not reach the account.
        InvalidInput: a field is missing, or does not belong to the scenario's kind.
        NotFound: there is no such account.
    """
    require(principal, "auditor", body.account)
    check_scenario(body)
    if body.account is not None:
        lines.line_of(database, body.account)
    inputs = body.model_dump(exclude_none=True, exclude=set(_COLUMNS_OF_ROW))
    return StatedScenario(body.name, body.account, body.kind, body.mechanism, inputs)


def _require_change(principal: Principal, scenario: ScenarioRecord) -> None:
    """Refuse a key that may not change a scenario.

    Raises:
        Forbidden: it is not its maker's, nor a steward's; or it is limited to other accounts.
    """
    require(principal, "auditor", scenario.account)
    if scenario.principal == principal.name:
        return
    if not principal.may_act_as("steward"):
        raise Forbidden(f"expected a key of the principal that made it, or with the role steward, got {principal.role}")
    if scenario.account is None and principal.accounts is not None:
        raise Forbidden("the key is limited to accounts: of scenarios without one it changes only its principal's own")


def _body(scenario: ScenarioRecord) -> dict[str, Any]:
    return _outline(scenario) | dict(scenario.inputs or {})


def _outline(scenario: ScenarioRecord) -> dict[str, Any]:
    return {
        **{name: getattr(scenario, name) for name in ("id", *_COLUMNS_OF_ROW)},
        "made_by": scenario.principal,
        "created_at": scenario.created_at,
        "changed_at": scenario.changed_at,
    }
