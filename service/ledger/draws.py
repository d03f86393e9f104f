"""Draws: noise leaves the process only after the commit of its charge, and each draw happens once.

True counts come in as an argument and go nowhere: what is stored is the noisy result.
"""

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, insert, select

from service.errors import AlreadyDrawn, Conflict, Gone, InvalidInput, NotFound
from service.ledger import accounts, journal, packing
from service.ledger.accounts import AccountRecord, Line
from service.ledger.branches import WHOLE, Fork, forks_above, refuse_other_branch, take_branches, way_to
from service.ledger.charges import Prepared, charge
from service.ledger.database import Database, tally
from service.ledger.holds import commit_for_draw
from service.ledger.idempotency import Request, StoredAnswer
from service.ledger.journal import Head, has_entry
from service.ledger.layouts import Layout, unpack_layout
from service.ledger.once import Outcome, Reload, Source, once_reloaded
from service.ledger.refusals import noted
from service.ledger.releases import state_of
from service.ledger.tables import Draw, Entry, Release, Tabulation
from service.privacy.mechanisms import Mechanism
from service.privacy.notation import read_plan
from service.privacy.plan import Plan, Repeat, mechanisms_of


@dataclass(frozen=True, slots=True)
class Turn:
    """Which draw of a mechanism: for which partition of the input and which turn of its ``repeat`` nodes."""

    partition: str = WHOLE
    repetition: int = 0


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """A stored draw; ``head`` is its journal entry. ``mechanism`` states the law of the noise."""

    id: str
    account_id: int
    release_id: str
    mechanism: Mechanism
    turn: Turn
    noisy: NDArray[np.int64] = field(compare=False)  # each draw has its own id
    head: Head
    created_at: str
    layout: Layout | None = None  # of a tabulation


@dataclass(frozen=True, slots=True)
class DrawOutline:
    """A stored draw without its noisy counts, which may be millions, or removed; ``size`` is how many."""

    id: str
    release_id: str
    mechanism: Mechanism
    turn: Turn
    size: int
    head: Head
    created_at: str
    layout: Layout | None
    noisy_removed_at: str | None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A result with all of it that needs no lock: where it is in its plan, and its bytes."""

    mechanism: Mechanism
    turn: Turn
    forks: list[Fork]
    noisy: NDArray[np.int64]
    packed: bytes
    digest: str


def find_mechanism(plan: Plan, name: str, pointer: str) -> Mechanism:
    """The mechanism of a plan by its name.

    Raises:
        InvalidInput: there is none; the fault is at ``pointer``.
    """
    for mechanism in mechanisms_of(plan):
        if mechanism.name == name:
            return mechanism
    raise InvalidInput.at(pointer, "expected the name, or else the path, of a mechanism of the release's plan")


def check_turn(plan: Plan, mechanism: Mechanism, turn: Turn, pointer: str) -> None:
    """Refuse a repetition that the plan does not have."""
    repetitions = math.prod(node.count for node, _ in way_to(plan, mechanism) if isinstance(node, Repeat))
    if turn.repetition >= repetitions:
        raise InvalidInput.at(pointer, f"expected a repetition below {repetitions}, the product of the repeats above")


def draw(
    database: Database,
    request: Request,
    account_name: str,
    release_id: str,
    plan: Plan,
    mechanism: Mechanism,
    turn: Turn,
    noisy: NDArray[np.int64],
) -> Outcome[DrawRecord]:
    """Store the noisy counts of one mechanism of a release's plan, once. The first draw commits a reservation.

    ``noisy`` was sampled before and without a lock; it is thrown away where the draw is refused.

    Raises:
        TooLarge: more than the database holds in one value.
        NotFound: the account has no such release.
        Conflict: the release is proposed, voided or expired.
        AlreadyDrawn: this mechanism, partition and repetition has been drawn, or another branch of a
            ``choice`` above it.
    """

    sealed = seal(plan, mechanism, turn, noisy)
    line = accounts.line_of(database, account_name)

    def work(connection: Connection, at: str) -> DrawRecord:
        account = lock_for_draw(connection, line, release_id, request.principal, at)
        return store(connection, account, release_id, sealed, request.principal, at)

    return once_reloaded(database, request, work, status=201, landed=landed, reload=RELOAD)


def lock_for_draw(connection: Connection, line: Line, release_id: str, actor: str, at: str) -> AccountRecord:
    """The account of a release that is to be drawn, locked; a reservation is committed.

    Raises:
        NotFound: the account has no such release.
        Conflict: the release is proposed, voided or expired.
    """
    if state_of(connection, line.account_id, release_id) == "committed":
        return accounts.lock_account(connection, line)  # for ever, so that the accounts above need no lock
    return commit_for_draw(connection, line, release_id, actor, at)


def register_and_draw(
    database: Database,
    request: Request,
    prepared: Prepared,
    noisy: NDArray[np.int64],
) -> Outcome[DrawRecord]:
    """Charge a release of a single mechanism and store its draw, in one transaction.

    Raises:
        AccountClosed, BudgetExceeded, TooLarge: nothing is charged, and the noise is thrown away.
        Conflict: so is it where a second steward must approve the release.
    """

    plan, line = prepared.release.plan, prepared.line
    (mechanism,) = mechanisms_of(plan)
    sealed = seal(plan, mechanism, Turn(), noisy)

    def work(connection: Connection, at: str) -> DrawRecord:
        locked = accounts.lock_line(connection, line, at)
        (registered,) = charge(connection, locked, [prepared], request.principal, at)
        if registered.state == "proposed":
            raise Conflict("a release of this size needs a second steward: register it, have it approved, then draw")
        return store(connection, registered.account, registered.id, sealed, request.principal, at)

    return noted(
        database,
        request,
        line,
        lambda: once_reloaded(database, request, work, status=201, landed=landed, reload=RELOAD),
    )


def read_draw(connection: Connection, account_id: int, draw_id: str) -> DrawRecord:
    """A draw of an account.

    Raises:
        NotFound: the account has none with this id.
        Gone: its noisy counts are no longer kept.
    """
    row = connection.execute(_DRAWS.where(Draw.account_id == account_id, Draw.id == draw_id)).one_or_none()
    if row is None:
        raise NotFound("draw", draw_id)
    if row.noisy_removed_at is not None:
        raise Gone(draw_id, row.noisy_removed_at)
    return _record(row, _mechanisms(connection, row.release_id))


def list_draws(
    connection: Connection, release_id: str, after: int, limit: int, counts: int
) -> list[DrawRecord | DrawOutline]:
    """A page of a release's draws in order; it ends early once it holds about ``counts`` noisy counts.

    Outlines are of those whose noisy counts are no longer kept.
    """
    query = _DRAWS.where(Draw.release_id == release_id, Draw.seq > after).order_by(Draw.seq).limit(limit)
    mechanisms = _mechanisms(connection, release_id)
    page: list[DrawRecord | DrawOutline] = []
    with connection.execute(query, execution_options={"stream_results": True}) as rows:
        for row in rows:
            if row.noisy_removed_at is not None:
                page.append(_outline(row, mechanisms))
                continue
            page.append(_record(row, mechanisms))
            counts -= row.size
            if counts <= 0:
                break
    return page


def list_outlines(connection: Connection, release_id: str, after: int, limit: int) -> list[DrawOutline]:
    """A page of a release's draws in order, without reading their noisy counts."""
    query = _joined(_OUTLINE).where(Draw.release_id == release_id, Draw.seq > after).order_by(Draw.seq).limit(limit)
    mechanisms = _mechanisms(connection, release_id)
    return [_outline(row, mechanisms) for row in connection.execute(query)]


def seal(plan: Plan, mechanism: Mechanism, turn: Turn, noisy: NDArray[np.int64]) -> Sealed:
    """A result as it is stored.

    Raises:
        TooLarge: it is more than the database holds in one value.
    """
    return Sealed(
        mechanism=mechanism,
        turn=turn,
        forks=forks_above(plan, mechanism, turn.repetition),
        noisy=noisy,
        packed=packing.pack(noisy),
        digest=packing.digest(noisy),
    )


def store(
    connection: Connection,
    account: AccountRecord,
    release_id: str,
    sealed: Sealed,
    actor: str,
    at: str,
    more: Mapping[str, object] = MappingProxyType({}),
) -> DrawRecord:
    """Write a draw into the ledger of a locked account; its journal entry also says ``more``."""
    name, turn = sealed.mechanism.name or "", sealed.turn
    _refuse_second_draw(connection, release_id, name, turn)
    refuse_other_branch(connection, release_id, sealed.forks, turn.partition)
    draw_id = str(uuid.uuid4())
    connection.execute(
        insert(Draw).values(
            id=draw_id,
            release_id=release_id,
            mechanism=name,
            partition=turn.partition,
            repetition=turn.repetition,
            account_id=account.id,
            seq=account.head.seq + 1,
            size=len(sealed.noisy),
            noisy=sealed.packed,
            noisy_hash=sealed.digest,
            created_at=at,
        )
    )
    tally(connection, "draws")
    tally(connection, "values", number=len(sealed.noisy))
    take_branches(connection, release_id, sealed.forks, turn.partition, draw_id)
    content: dict[str, object] = {
        "draw": draw_id,
        "mechanism": name,
        "partition": turn.partition,
        "repetition": turn.repetition,
        "size": len(sealed.noisy),
        "noisy_hash": sealed.digest,
        **more,
    }
    head = journal.append(connection, account.chain, "drawn", content, actor=actor, release_id=release_id, at=at)
    accounts.save_head(connection, account.id, head)
    return DrawRecord(draw_id, account.id, release_id, sealed.mechanism, turn, sealed.noisy, head, at)


def _refuse_second_draw(connection: Connection, release_id: str, name: str, turn: Turn) -> None:
    """The whole input overlaps every partition, so a draw of it excludes all others, and they it."""
    query = select(Draw.id).where(
        Draw.release_id == release_id, Draw.mechanism == name, Draw.repetition == turn.repetition
    )
    if turn.partition != WHOLE:
        query = query.where(Draw.partition.in_((turn.partition, WHOLE)))
    drawn = connection.execute(query.limit(1)).scalar_one_or_none()
    if drawn is not None:
        raise AlreadyDrawn(drawn, "this mechanism, partition and repetition has been drawn")


def forks_of(plan: Plan, name: str, repetition: int) -> list[Fork]:
    """The choices above the mechanism of this name, with the branches that a draw of it takes."""
    return forks_above(plan, find_mechanism(plan, name, ""), repetition)


def landed(connection: Connection, record: DrawRecord) -> bool:
    """Whether an earlier attempt at this draw is in the ledger."""
    return has_entry(connection, record.account_id, record.head)


def _load(connection: Connection, stored: StoredAnswer) -> DrawRecord:
    row = connection.execute(_DRAWS.where(Draw.id == stored.draw_id)).one()
    if row.noisy_removed_at is not None:
        raise AlreadyDrawn(row.id, "this request was answered before, and the noisy counts are no longer kept")
    return _record(row, _mechanisms(connection, row.release_id))


RELOAD: Reload[DrawRecord] = Reload(lambda record: Source(draw_id=record.id), _load)

_OUTLINE = select(
    Draw.id,
    Draw.account_id,
    Draw.release_id,
    Draw.mechanism,
    Draw.partition,
    Draw.repetition,
    Draw.size,
    Draw.seq,
    Draw.created_at,
    Draw.noisy_removed_at,
    Entry.hash,
    Tabulation.layout,
)


def _joined(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return query.join(Entry, (Entry.account_id == Draw.account_id) & (Entry.seq == Draw.seq)).outerjoin(
        Tabulation, Tabulation.draw_id == Draw.id
    )


_DRAWS = _joined(_OUTLINE.add_columns(Draw.noisy))


def _mechanisms(connection: Connection, release_id: str) -> dict[str | None, Mechanism]:
    """A release's mechanisms by name, read once for all of its draws."""
    plan = connection.execute(select(Release.plan).where(Release.id == release_id)).scalar_one()
    return {mechanism.name: mechanism for mechanism in mechanisms_of(read_plan(json.loads(plan)))}


def _record(row: Row[*tuple[Any, ...]], mechanisms: Mapping[str | None, Mechanism]) -> DrawRecord:
    return DrawRecord(
        id=row.id,
        account_id=row.account_id,
        release_id=row.release_id,
        mechanism=mechanisms[row.mechanism],
        turn=Turn(row.partition, row.repetition),
        noisy=packing.unpack(row.noisy, row.size),
        head=Head(row.seq, row.hash),
        created_at=row.created_at,
        layout=None if row.layout is None else unpack_layout(row.layout),
    )


def _outline(row: Row[*tuple[Any, ...]], mechanisms: Mapping[str | None, Mechanism]) -> DrawOutline:
    return DrawOutline(
        id=row.id,
        release_id=row.release_id,
        mechanism=mechanisms[row.mechanism],
        turn=Turn(row.partition, row.repetition),
        size=row.size,
        head=Head(row.seq, row.hash),
        created_at=row.created_at,
        layout=None if row.layout is None else unpack_layout(row.layout),
        noisy_removed_at=row.noisy_removed_at,
    )
