"""Routes of noisy counts: each is drawn once, and can be read again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, cast

import numpy as np
from fastapi import APIRouter, Header, Path, Query, Request, Response
from numpy.typing import NDArray
from pydantic import FailFast, Field
from sqlalchemy import Connection

from service.api.arrow import streams
from service.api.http.accepted_types import preferred, prefers
from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.http.dependencies import (
    AnswerInHelper,
    Change,
    Changing,
    CurrentDatabase,
    HelperResult,
    Streamed,
    heavy_in_helpers,
    in_writers,
    respond,
)
from service.api.http.field_names import is_listed, meant
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_seq, write_cursor
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import contract, examples
from service.api.publication.noisy_tables import PARQUET, stored_as_parquet
from service.api.routes.accounts import AccountPath
from service.api.routes.release_pricing import prepared
from service.api.routes.releases import ReleasePath
from service.api.schemas import count_tables
from service.api.schemas.charges import WithCharge, charge_member
from service.api.schemas.draw_responses import (
    DrawBody,
    DrawPage,
    SelectionBody,
    csv_of,
    identity_of,
    json_of,
    outline_body,
    page_of,
    stream_of,
)
from service.api.schemas.exact_numbers import Label, Strict, Tags
from service.api.schemas.granularity import Count, Granularity, on_lattice, unit_of, units_of
from service.api.schemas.guarantees import CostDelta, cost_of, read_delta
from service.api.schemas.periods import StatedPeriods
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import document_of, law_of, mechanism_of
from service.api.schemas.tabulation_responses import TabulationBody
from service.errors import InvalidInput
from service.ledger.accounts import accounts
from service.ledger.draws import draws, partitions, places, stored_draws as drawn
from service.ledger.draws.choice_branches import WHOLE
from service.ledger.draws.draws import AnsweredDraw
from service.ledger.draws.stored_draws import Turn
from service.ledger.releases import release_rows, releases
from service.ledger.releases.preparation import NewRelease
from service.ledger.storage.writing_time import require_few_counts
from service.noise import Keystream, add_noise
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import Mechanism as MechanismValue
from service.privacy.partitions import EXPECTED_NAME, first_unclear
from service.privacy.plans.walking import condense, mechanisms_of

NO_DRY_RUN = {
    "dry_run": "expected no dry run of a draw: counts are sent only to be drawn. POST the mechanism as the plan of a"
    " release, with dry_run=true, to see what it costs and whether it fits"
}
"""The answer to those who ask for a dry run of a draw."""


class DrawRoute(StrictRoute):
    """Route class for counts as JSON; those with a stream or a table match other routes."""

    media_types = f"application/json, {CSV} or {streams.MEDIA_TYPE}"
    instead = NO_DRY_RUN


router = APIRouter(prefix="/v1/accounts/{account}", route_class=DrawRoute)

PAGE_OF_COUNTS = 1_000_000
_MANY = 1 << 13  # counts: fewer are written as JSON in a millisecond
_A_COUNT = 40  # bytes that one count takes at most while it is read back and answered

AddNoise = Callable[[NoiseLaw, Fraction, Keystream], NDArray[np.int64]]
"""Function that adds a law's noise to counts; its result is in units of a granularity."""


class NewDraw(Strict):
    """A mechanism to register as a release of its own and to draw."""

    name: Label
    mechanism: Mechanism
    tags: Tags = Field(default_factory=list)
    delta: CostDelta = None
    granularity: Granularity = None
    periods: StatedPeriods = None


MOST_KEYS = 1 << 16
CountsOfKeys = Annotated[
    list[Count],
    FailFast(),
    Field(
        description="True counts; they are never stored or logged. Only with keys there may be none, so that a draw"
        " does not tell whether there are any."
    ),
]
Keys = Annotated[
    list[Label] | None,
    FailFast(),
    Field(
        max_length=MOST_KEYS,
        description="For a mechanism with a threshold: the keys of the counts, each once. Only those are stored and"
        " answered whose noisy count reaches it.",
    ),
]


class RegisterAndDraw(NewDraw):
    """A mechanism to register and draw, with the true counts."""

    counts: CountsOfKeys
    keys: Keys = None


Published = tuple[NDArray[np.int64], tuple[str, ...] | None]
"""Noisy counts, with their keys where others are suppressed."""


class DrawPlace(Strict):
    """The mechanism of a registered release to draw, and its partition and repetition."""

    mechanism: Label = Field(description="The name of the mechanism in the plan, or its path.")
    partition: Label | None = Field(
        None,
        description="The name of the disjoint set of records that was counted: one that the plan declares, or else a"
        " name in Unicode's normal form NFKC without invisible characters. Without it, the whole input.",
    )
    repetition: Annotated[int, Field(strict=True, ge=0, lt=10**12)] = Field(
        0, description="The number of the repetition, where the mechanism is repeated."
    )


class DrawSelection(DrawPlace):
    """The mechanism of a registered release to draw for counts, with their granularity."""

    granularity: Granularity = None


class DrawMechanism(DrawSelection):
    """The mechanism of a registered release to draw, with the true counts."""

    counts: CountsOfKeys
    keys: Keys = None


DrawPath = Annotated[str, Path(description="The draw's id.", examples=[examples.DRAW_ID])]


@router.post(
    "/draws",
    status_code=201,
    response_model=DrawBody,
    responses=contract.bulk_answer(201, table=True, charged=True),
    openapi_extra=contract.bulk_body(examples.DRAW, examples.DRAW_QUERY, table=True),
)
@heavy_in_helpers
@in_writers
def register_and_draw(
    account: AccountPath, body: RegisterAndDraw, change: Changing, with_charge: WithCharge = False
) -> Response:
    """Register a mechanism and draw its noisy counts, in one step.

    The charge and the noisy counts are stored in one transaction, and answered after its commit. Counts may also be
    sent as an Arrow IPC stream with an int64 column `count`, with the other fields in the query. The answer is then the
    same stream with `noisy` in place of that column. Or they are sent as a table (text/csv) with a column `count`; the
    answer is the same table with `noisy` in its place, and the margin of error of each, as Parquet where Accept asks
    for it. With application/json as Accept the answer to both is JSON, without labels. A mechanism with a threshold
    takes keys, or a table with a column `key`; what does not reach it is not stored. With `?with_charge=true` the
    header X-Charge has the charge in the definition of the account's budget, and its part of the budget. A draw that
    would take more than two seconds to write is refused with 422: one of more than some 41 million counts on SQLite, 10
    million on PostgreSQL. Draw more in parts.
    """
    noisy, size = noisy_counts(body.counts), len(body.counts)
    drawn = register(account, body, change, noisy, size, "/counts", keys=body.keys)
    return respond_drawn(drawn, charge_header(account, drawn, change, asked=with_charge))


@router.post(
    "/releases/{release}/draws",
    status_code=201,
    response_model=DrawBody,
    responses=contract.bulk_answer(201, table=True),
    openapi_extra=contract.bulk_body(examples.DRAW_OF_RELEASE, examples.DRAW_OF_RELEASE_QUERY, table=True),
)
@heavy_in_helpers
@in_writers
def draw_mechanism(account: AccountPath, release: ReleasePath, body: DrawMechanism, change: Changing) -> Response:
    """Draw the noisy counts of a mechanism of a registered release.

    The first draw commits a reservation. Each mechanism, partition and repetition is drawn once. Under a choice, the
    first draw fixes the branch for its partition and repetition.

    The partitions of one mechanism must be disjoint sets of records. The ledger counts one charge for all of them and
    relies on your promise, as it does for the mechanism's sensitivity. Where the plan declares partitions, others are
    refused with 422, and more than it declares with 409. Where it declares none, the answer's declared_partitions is
    null.

    Counts may also be sent as an Arrow IPC stream with an int64 column `count`, with the other fields in the query. The
    answer is then the same stream with `noisy` in place of that column; likewise a table (text/csv), with the margins
    of error, as Parquet where Accept asks for it. With application/json as Accept the answer to both is JSON, without
    labels. A mechanism with a threshold takes keys, or a table with a column `key`; what does not reach it is not
    stored. A draw that would take more than two seconds to write is refused with 422: one of more than some 41 million
    counts on SQLite, 10 million on PostgreSQL.
    """
    noisy, size = noisy_counts(body.counts), len(body.counts)
    return respond_drawn(draw_of(account, release, body, change, noisy, size, "/counts", keys=body.keys))


def register(
    account: str,
    new_draw: NewDraw,
    change: Change,
    noisy: AddNoise,
    size: int,
    at: str,
    below: str = "",
    keys: Sequence[str] | None = None,
) -> AnsweredDraw:
    """Charge a release of one mechanism and store its draw.

    Args:
        account: the name of the account.
        new_draw: the mechanism and the release's fields.
        change: the request.
        noisy: adds a law's noise to the counts.
        size: how many counts there are.
        at: the pointer of the counts.
        below: the pointer under which faults of the fields are reported.
        keys: of the counts, where the mechanism has a threshold.
    """
    require(change.principal, "pipeline", account)
    require_few_counts(change.database.kind, size, at)
    model, mechanism = drawn_mechanism(new_draw, below)
    _check_keys(mechanism, keys, size, below)
    delta = read_delta(new_draw.delta, f"{below}/delta")
    new = NewRelease(
        new_draw.name,
        mechanism,
        document_of(model),
        tuple(new_draw.tags),
        delta,
        f"{below}/mechanism",
        periods=new_draw.periods,
        periods_at=f"{below}/periods",
    )
    # The counts come first: an error in them is reported before the account is read.
    drawn, published = _published(mechanism, _noise_units(mechanism, noisy, change.keystream(), below), keys)
    (ready,), _ = prepared(change, account, [new], costs=False)
    return change.write(draws.register_and_draw, ready, drawn, published)


def charge_header(account: str, drawn: AnsweredDraw, change: Change, *, asked: bool) -> dict[str, str]:
    """Return the header with the charge of a release that was registered and drawn, where it was asked for.

    It is no part of the body, which is the noisy counts in every form, and the same in a replay.
    """
    if not asked:
        return {}
    with change.database.read() as connection:
        owner = accounts.read_account(connection, account)
        release = releases.read_release(connection, owner.id, drawn.record.release_id)
    plan = condense(release.plan)
    cost = cost_of(plan, owner.neighbouring, (release.delta,))
    return {"X-Charge": json.dumps(charge_member(owner, plan, cost)["charge"])}


def drawn_mechanism(new_draw: NewDraw, below: str = "") -> tuple[Strict, MechanismValue]:
    """Return a mechanism to register, with the granularity beside it: as it was sent, and as a value."""
    model = on_lattice(new_draw.mechanism, new_draw.granularity, below)
    return model, mechanism_of(model, f"{below}/mechanism")


def draw_of(
    account: str,
    release: str,
    selection: DrawSelection,
    change: Change,
    noisy: AddNoise,
    size: int,
    at: str,
    below: str = "",
    keys: Sequence[str] | None = None,
) -> AnsweredDraw:
    """Store a draw of a mechanism of a registered release; the arguments are those of ``register``."""

    def values(mechanism: MechanismValue) -> Published:
        _check_keys(mechanism, keys, size, below)
        unit_of(mechanism, selection.granularity, below)
        return _published(mechanism, _noise_units(mechanism, noisy, change.keystream(), below), keys)

    require(change.principal, "pipeline", account)
    require_few_counts(change.database.kind, size, at)
    return store_values(account, release, selection, change, values, below)


def store_values(
    account: str,
    release: str,
    selection: DrawPlace,
    change: Change,
    values: Callable[[MechanismValue], Published],
    below: str = "",
) -> AnsweredDraw:
    """Store what a mechanism of a registered release draws, once.

    Args:
        account: the name of the account.
        release: the release's id.
        selection: the mechanism and its turn.
        change: the request.
        values: draws for the mechanism; returns what is published, with its keys where others are suppressed.
        below: the pointer under which faults of the fields are reported.
    """
    place = _place(account, release, selection, change, below)
    mechanism = place.mechanism
    places.check_turn(place, f"{below}/repetition")
    names = [] if selection.partition is None else [selection.partition]
    if names and mechanism.threshold is not None and (mechanism.partitions is None or not mechanism.partitions.names):
        raise InvalidInput.at(f"{below}/partition", _UNNAMED)
    named, required = f"{below}/partition", change.require_partitions
    refusal = partitions.refusal(mechanism, names, lambda _: named, required=required)
    drawn = draws.seal(place, *values(mechanism))
    return change.write(draws.draw, account, release, drawn, refusal)


def _place(account: str, release: str, selection: DrawPlace, change: Change, below: str) -> places.Place:
    """Find the mechanism in the release's plan; a helper reads the plan where it is long."""
    turn = Turn(WHOLE if selection.partition is None else selection.partition, selection.repetition)
    with change.database.read() as connection:
        account_id = accounts.read_account(connection, account).id
        is_long = releases.plan_size(connection, release, account_id) > releases.LONG
        elsewhere = change.elsewhere if is_long else None
        record = None if elsewhere is not None else releases.read_release(connection, account_id, release)
    if elsewhere is not None:
        body = selection.model_dump(include={"mechanism", "partition", "repetition"}) | {"counts": [0]}
        (place,) = elsewhere("POST", f"/v1/accounts/{account}/releases/{release}/draws", json.dumps(body).encode())
    elif record is not None:
        plan = record.plan
        mechanism = next((one for one in mechanisms_of(plan) if one.name == selection.mechanism), None)
        place = None if mechanism is None else places.place_of(plan, mechanism, turn)
    if change.prices_only:
        raise HelperResult([place])
    if place is None:
        names = [] if record is None else [one.name for one in mechanisms_of(record.plan) if one.name is not None]
        raise InvalidInput.at(f"{below}/mechanism", _expected_mechanism(selection.mechanism, names))
    return cast("places.Place", place)


def _expected_mechanism(name: str, known: Sequence[str]) -> str:
    """Return the detail of a mechanism that the plan does not have, with the names of those that it has."""
    listed = f", one of {', '.join(known)}" if is_listed(known) else ""
    alike = meant(name, known) if is_listed(known) else None
    hint = "" if alike is None else f"; did you mean {alike}?"
    return f"expected the name, or else the path, of a mechanism of the release's plan{listed}{hint}"


_COLUMNS = (
    "draw", "mechanism.name", "mechanism.type", "level", "partition", "declared_partitions", "repetition", "size",
    "margin_of_error.moe", "margin_of_error.confidence", "created_at", "noisy_removed_at", "head.seq", "head.hash",
)  # fmt: skip


@router.get("/releases/{release}/draws", response_model=DrawPage, responses=AS_TABLE)
def list_draws(
    account: AccountPath,
    release: ReleasePath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    noisy: Annotated[
        bool, Query(description="Include the noisy counts; without them, each draw has their number. A table has none.")
    ] = True,
    accept: Accepted = USUAL,
) -> Response:
    """List the draws of a release.

    The oldest draw comes first, with its noisy counts. Draws whose counts have been removed are listed without them.
    """
    require(principal, "auditor", account)

    def before_reading(size: int) -> None:
        take(_A_COUNT * size)
        _leave_large(request, size)

    with database.read() as connection:
        account_id = accounts.read_account(connection, account).id
        releases.state_of(connection, account_id, release)
        text = _plan_text(request, connection, release)
    mechanisms = drawn.mechanisms_by_name(text)
    with database.read() as connection:
        arguments = release, read_seq(cursor), limit, PAGE_OF_COUNTS, mechanisms, before_reading
        if not noisy or prefers(accept, CSV):
            outlines = drawn.list_outlines(connection, *arguments)
            last_seq = outlines[-1].head.seq if outlines.more else None
            return answer_list(accept, [outline_body(outline) for outline in outlines], last_seq, _COLUMNS)
        records = drawn.list_draws(connection, accounts.read_account(connection, account), *arguments)
    last = write_cursor(records[-1].head.seq) if records.more else None
    return Streamed(page_of(records, last), media_type="application/json")


@router.get("/draws/{draw}", response_model=DrawBody | TabulationBody | SelectionBody, responses=contract.draw_answer())
def read_draw(
    account: AccountPath,
    draw: DrawPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    accept: Annotated[
        str,
        Header(
            description=f"{streams.MEDIA_TYPE} for an Arrow IPC stream of one column, {CSV} for a table,"
            f" {PARQUET} for a table with the columns of a publication package; else JSON."
        ),
    ] = "application/json",
) -> Response:
    """Read a draw.

    The answer has the stored noisy counts, as JSON, Arrow, CSV or Parquet; they never change. That of a selection has
    the selected place, which is the one count of a table. An operator can have them
    removed some days after the draw. The answer is 410 from then on, and a second draw stays refused.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        account_id = accounts.read_account(connection, account).id
        release, size = drawn.release_and_size(connection, account_id, draw)
        take(_A_COUNT * size)
        kind = preferred(accept, (streams.MEDIA_TYPE, CSV, PARQUET))
        if kind != streams.MEDIA_TYPE:
            _leave_large(request, size)
        text = _plan_text(request, connection, release)
    mechanisms = drawn.mechanisms_by_name(text)
    with database.read() as connection:
        record = drawn.read_draw(connection, accounts.read_account(connection, account), draw, mechanisms)
    if kind == streams.MEDIA_TYPE:
        return Streamed(stream_of(record), headers=identity_of(record), media_type=kind)
    if kind == CSV:
        return Streamed(csv_of(record), headers=identity_of(record), media_type=kind)
    if kind == PARQUET:
        return Streamed(stored_as_parquet(record), headers=identity_of(record), media_type=kind)
    return Streamed(json_of(record), media_type="application/json")


def _leave_large(request: Request, size: int) -> None:
    """Leave many counts to a helper, after reserving their memory here: as JSON they would hold the interpreter.

    Raises:
        AnswerInHelper: there are many counts, and there are helper processes.
    """
    if size > _MANY and request.app.state.helpers is not None:
        raise AnswerInHelper


def _plan_text(request: Request, connection: Connection, release: str) -> str:
    """Return a release's plan as text, to be parsed after the transaction.

    Raises:
        AnswerInHelper: the plan is long, and there are helper processes.
    """
    if request.app.state.helpers is not None and releases.plan_size(connection, release) > releases.LONG:
        raise AnswerInHelper
    return release_rows.sealed_plan(connection, release)


def noisy_counts(counts: Sequence[int | Fraction]) -> AddNoise:
    """Return a function that adds noise to the counts of a JSON body."""
    return lambda law, unit, keystream: add_noise(units_of(counts, unit, "/counts"), law, keystream)


def _noise_units(mechanism: MechanismValue, noisy: AddNoise, keystream: Keystream, below: str) -> NDArray[np.int64]:
    pointer = f"{below}/mechanism"
    law = law_of(mechanism, pointer)
    try:
        return noisy(law, unit_of(mechanism), keystream)
    except ValueError as error:  # the law is too wide for 64-bit results; the message names the limit, not a count
        raise InvalidInput.at(pointer, str(error)) from None


_UNNAMED = (
    "expected a partition that the plan names, or none, as the mechanism has a threshold: the journal keeps the name"
    " of a partition also where all of its counts are suppressed"
)


def _check_keys(mechanism: MechanismValue, keys: Sequence[str] | None, size: int, below: str) -> None:
    """Require keys where a mechanism has a threshold, and in JSON none elsewhere.

    Raises:
        InvalidInput: there are none or other ones; no fault names a key, which may be secret.
    """
    at = f"/{count_tables.KEY}" if below else "/keys"
    if keys is None and not size:
        raise InvalidInput.at("/counts", "expected a list of at least 1, got 0")
    if mechanism.threshold is None:
        if keys is not None and not below:  # a column of a table may have any name
            raise InvalidInput.at(at, "expected none: the mechanism has no threshold, so all counts are published")
        return
    if keys is None and below:
        detail = f"expected JSON with keys, or a table with a column named {count_tables.KEY}, as it has a threshold"
        raise InvalidInput.at(f"{below}/mechanism", detail)
    if keys is None:
        raise InvalidInput.at(at, "expected the keys of the counts, as the mechanism has a threshold")
    if len(keys) > MOST_KEYS:
        raise InvalidInput.at(at, f"expected at most {MOST_KEYS} keys; draw partitions that the plan names")
    if len(keys) != size:
        raise InvalidInput.at(at, "expected as many keys as there are counts")
    if len(set(keys)) < size:
        raise InvalidInput.at(at, "expected each key once")
    wrong = first_unclear(keys)
    if wrong is not None:
        raise InvalidInput.at(f"{at}/{wrong}", EXPECTED_NAME)


def _published(mechanism: MechanismValue, noisy: NDArray[np.int64], keys: Sequence[str] | None) -> Published:
    """Return the noisy counts that are published, with their keys where others are suppressed.

    They are ordered by their keys: the order in which they were sent may depend on the others, or on the true counts.
    """
    if mechanism.threshold is None or keys is None:
        return noisy, None
    places = sorted(np.flatnonzero(noisy >= mechanism.threshold).tolist(), key=keys.__getitem__)
    return noisy[places], tuple(keys[place] for place in places)


def respond_drawn(drawn: AnsweredDraw, headers: dict[str, str] | None = None) -> Response:
    """Return the answer of a draw as JSON, made of what is stored."""
    answer = respond(replace(drawn.answer, body="".join(json_of(drawn.record))))
    answer.headers.update(headers or {})
    return answer
