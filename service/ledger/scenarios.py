"""Scenarios: what a planner's form stated, saved under a name. Results are not saved, but computed when they are shown.

A scenario charges nothing and proves nothing, so its row is neither sealed nor journalled.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, text, tuple_, update

from service.errors import Conflict, InvalidInput, NotFound
from service.ledger.idempotent_write import Operation
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.tables import Scenario

MOST_OF_ONE = 200
"""The number of scenarios that one principal may keep."""
LONGEST = 1 << 16
"""Characters of one scenario's inputs as JSON."""

Check = Callable[["ScenarioRecord"], None]

_OUTLINE = (
    Scenario.id,
    Scenario.name,
    Scenario.account,
    Scenario.kind,
    Scenario.mechanism,
    Scenario.principal,
    Scenario.created_at,
    Scenario.changed_at,
)
_LOCK = text(f"SELECT pg_catalog.pg_advisory_xact_lock({0x7363656E})")  # "scen": of all that add a scenario


@dataclass(frozen=True, slots=True)
class ScenarioRecord:
    """A scenario.

    Attributes:
        account: the account's name; None if it was planned without one.
        inputs: all other inputs, as JSON; None in a list.
    """

    id: str
    name: str
    account: str | None
    kind: str
    mechanism: str
    principal: str
    created_at: str
    changed_at: str
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StatedScenario:
    """The content of a scenario, as a request states it; the attributes are those of ``ScenarioRecord``."""

    name: str
    account: str | None
    kind: str
    mechanism: str
    inputs: Mapping[str, Any]

    def columns(self) -> dict[str, str | None]:
        """Return the values of the row.

        Raises:
            InvalidInput: the scenario is too large.
        """
        text = json.dumps(self.inputs)
        if len(text) > LONGEST:
            raise InvalidInput.at("", f"expected a scenario of at most {LONGEST} characters")
        return {
            "name": self.name,
            "account": self.account,
            "kind": self.kind,
            "mechanism": self.mechanism,
            "inputs": text,
        }


def save(request: Request, stated: StatedScenario) -> Operation[ScenarioRecord]:
    """Return the operation that saves a new scenario.

    Raises:
        Conflict: the principal has a scenario of this name.
        InvalidInput: the scenario is too large, or the principal has too many.
    """
    columns = stated.columns()

    def work(connection: Connection, at: str) -> ScenarioRecord:
        if connection.dialect.name == "postgresql":  # one request at a time counts and adds, as on SQLite
            connection.execute(_LOCK)
        own = select(func.count()).select_from(Scenario).where(Scenario.principal == request.principal)
        if connection.execute(own).scalar_one() >= MOST_OF_ONE:
            raise InvalidInput.at("", f"expected at most {MOST_OF_ONE} scenarios of one principal: delete one first")
        _require_free(connection, request.principal, stated.name)
        scenario_id = str(uuid.uuid4())
        row = {"id": scenario_id, "principal": request.principal, "created_at": at, "changed_at": at} | columns
        connection.execute(insert(Scenario).values(row))
        return read_scenario(connection, scenario_id)

    return Operation(work, lambda connection, saved: _find(connection, saved.id) is not None)


def exchange(database: Database, scenario_id: str, stated: StatedScenario, check: Check) -> ScenarioRecord:
    """Replace the content of a scenario, and return it; doing so again has the same result.

    Raises:
        Conflict: its maker has another scenario of this name.
        InvalidInput: the scenario is too large.
        NotFound: there is no such scenario.
        Exception: any error that ``check`` raises for the present one; nothing is changed then.
    """
    columns = stated.columns()

    def work(connection: Connection) -> ScenarioRecord:
        present = _locked(connection, scenario_id, check)
        if present.name != stated.name:
            _require_free(connection, present.principal, stated.name)
        changed = update(Scenario).where(Scenario.id == scenario_id).values(changed_at=clock.now(), **columns)
        connection.execute(changed)
        return read_scenario(connection, scenario_id)

    return database.write(work, is_committed=lambda *_: False)


def remove(database: Database, scenario_id: str, check: Check) -> None:
    """Delete a scenario.

    Raises:
        NotFound: there is no such scenario.
        Exception: any error that ``check`` raises for it; nothing is changed then.
    """

    def work(connection: Connection) -> None:
        _locked(connection, scenario_id, check)
        connection.execute(delete(Scenario).where(Scenario.id == scenario_id))

    database.write(work, is_committed=lambda connection, _: _find(connection, scenario_id) is None)


def read_scenario(connection: Connection, scenario_id: str) -> ScenarioRecord:
    """Return a scenario with its inputs.

    Raises:
        NotFound: there is no such scenario.
    """
    row = _find(connection, scenario_id)
    if row is None:
        raise NotFound("scenario", scenario_id)
    return replace(ScenarioRecord(*row[:-1]), inputs=_inputs(row.inputs))


def list_scenarios(
    connection: Connection,
    after: tuple[str, str],
    limit: int,
    *,
    account: str | None,
    within: Sequence[str] | None,
    before_reading: BeforeReading,
) -> Page[ScenarioRecord]:
    """Return a page of scenarios without their inputs, oldest first.

    Args:
        connection: to the database.
        after: the time and id of the last scenario before the page.
        limit: the largest number of scenarios.
        account: only those of this account.
        within: only those of these accounts, and those without an account; None: all.
        before_reading: is told the size of the page.
    """
    query = select(*_OUTLINE).where(tuple_(Scenario.created_at, Scenario.id) > after)
    if account is not None:
        query = query.where(Scenario.account == account)
    if within is not None:
        query = query.where(or_(Scenario.account.is_(None), Scenario.account.in_(within)))
    size = func.length(Scenario.name) + 500
    ordered = query.order_by(Scenario.created_at, Scenario.id)
    return page_of(
        rows_of(connection, ordered, size, limit, before_reading=before_reading), lambda row: ScenarioRecord(*row)
    )


def _locked(connection: Connection, scenario_id: str, check: Check) -> ScenarioRecord:
    """Return a scenario without its inputs, whose row is locked, after ``check`` has seen it."""
    row = connection.execute(select(*_OUTLINE).where(Scenario.id == scenario_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound("scenario", scenario_id)
    present = ScenarioRecord(*row)
    check(present)
    return present


def _find(connection: Connection, scenario_id: str) -> Row[*tuple[Any, ...]] | None:
    return connection.execute(select(*_OUTLINE, Scenario.inputs).where(Scenario.id == scenario_id)).one_or_none()


def _require_free(connection: Connection, principal: str, name: str) -> None:
    same = select(Scenario.id).where(Scenario.principal == principal, Scenario.name == name)
    if connection.execute(same).first() is not None:
        raise Conflict(f"the principal has a scenario {name!r} already: replace it, or choose another name")


def _inputs(text: str) -> dict[str, Any]:
    """Return the stored inputs; the row is not sealed, so its text may have been replaced.

    Raises:
        Conflict: the text is no JSON object.
    """
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        raise Conflict("the stored scenario is not as this service wrote it: delete it, and save it again")
    return stated
