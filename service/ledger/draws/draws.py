"""Draws: noise leaves the process only after the commit of its charge, and each draw happens once.

True counts are arguments and are never stored: only the noisy result is.
"""

import uuid
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, select

from service.errors import AlreadyDrawn, Conflict, ServiceError
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.lines import Line
from service.ledger.draws import count_codec, draw_rows, partitions, stored_draws
from service.ledger.draws.branch_rows import refuse_other_branch, take_branches
from service.ledger.draws.choice_branches import WHOLE, LaterDraw
from service.ledger.draws.journalled_partitions import journalled_counts
from service.ledger.draws.partitions import BranchRuns, Counts, PartitionsPerMechanism
from service.ledger.draws.places import Place, place_of
from service.ledger.draws.stored_draws import DrawRecord, Turn, is_committed
from service.ledger.draws.tabulation_layout import Layout
from service.ledger.idempotent_write import Operation, check_before_lock, idempotent_write
from service.ledger.journal.entries import Drawn, Filing
from service.ledger.journal.journal import BEFORE_FIRST
from service.ledger.releases.charges import charge
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.releases.reservations import lock_for_draw, release_for_draw
from service.ledger.storage.database import Database
from service.ledger.storage.drawn_partitions import DrawnFor
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.tables import Draw
from service.ledger.storage.transaction import count_metric, note_drawn, secret_of
from service.privacy.mechanisms import Mechanism
from service.privacy.plans.walking import mechanisms_of


@dataclass(frozen=True, slots=True)
class Sealed:
    """A result with everything that needs no lock: its place in the plan, and its bytes."""

    place: Place
    noisy: NDArray[np.int64]
    packed: bytes
    digest: str
    taken: PartitionsPerMechanism
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckedBefore:
    """Facts that a draw's check found before any lock, so that under it only later draws are looked at.

    Attributes:
        seq: the number of the account's last entry by then, or an earlier one.
        runs: how often the branches of choices were run, for each bound.
    """

    seq: int
    runs: list[BranchRuns]


@dataclass(frozen=True, slots=True)
class Later:
    """The draws that an account made since a draw's check before the lock, read under the lock.

    Attributes:
        draws: none if the plan has no choice above the draw, because its own row then shows every earlier one.
        runs: as found before the lock.
        unseen: those of the draws that were not compared before the lock.
        counts: the counters that the draw moves, as the journal's entries give them.
    """

    draws: Sequence[LaterDraw]
    runs: list[BranchRuns]
    unseen: Sequence[LaterDraw]
    counts: Counts = field(default_factory=dict)


class _LaterTabulation(Exception):
    """A large tabulation of the draw's level that was not compared before, found under the lock."""


class AnsweredDraw(NamedTuple):
    """A draw with the answer that refers to it, which is stored without the noisy counts."""

    answer: Answer
    record: DrawRecord


def draw(
    database: Database,
    request: Request,
    account_name: str,
    release_id: str,
    sealed: Sealed,
    refusal: ServiceError | None = None,
) -> AnsweredDraw:
    """Store the noisy counts of one mechanism of a release's plan, once. The first draw commits a reservation.

    Args:
        sealed: sampled before and without a lock; discarded if the draw is refused.
        refusal: an error to raise, unless the same request was answered before.

    Raises:
        NotFound: the account has no such release.
        Conflict: the release is proposed, voided or expired, or all partitions that it declares are drawn.
        AlreadyDrawn: this mechanism, partition and repetition has been drawn, or another branch of a ``choice`` above
            it.
    """

    def keep(connection: Connection, account: AccountRecord, later: Later, at: str) -> DrawRecord:
        return store(connection, account, release_id, sealed, later, request, at)

    def check(*_: object) -> None:
        if refusal is not None:
            raise refusal

    return draw_once(database, request, account_name, release_id, sealed, check, keep)


def draw_once(
    database: Database,
    request: Request,
    account_name: str,
    release_id: str,
    sealed: Sealed,
    check: Callable[[Connection, Sequence[LaterDraw] | None], None],
    keep: Callable[[Connection, AccountRecord, Later, str], DrawRecord],
) -> AnsweredDraw:
    """Check a draw before the lock and under it, and store it, unless the request was answered before.

    Args:
        check: raises further errors; called before the lock, and then under it with the draws that were made since.
        keep: stores the draw in the ledger of the locked account, at a moment.

    Raises:
        ServiceError: as ``draw``, or as ``check``.
    """
    line = lines.line_of(database, account_name)

    def first(connection: Connection) -> CheckedBefore:
        check(connection, None)
        return check_draw_first(connection, line, release_id, sealed)

    def count(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> Counts:
        return journalled_counts(connection, account, release, turns) if turns else {}

    place, looked, looks = sealed.place, set[str](), 0
    seen = check_before_lock(database, request, first)
    turns = [(mechanism.name or "", place.turn.repetition) for mechanism, number in sealed.taken if number]
    found = release_for_draw(database, line.name, release_id, count)

    def look_again(connection: Connection) -> None:
        nonlocal looks
        looks += 1
        unseen = _later(connection, line.account_id, place, seen, looked).unseen
        check(connection, unseen)
        _refuse_other_branch(connection, release_id, place, unseen)
        looked.update(one.id for one in unseen)

    def work(connection: Connection, at: str) -> DrawRecord:
        account = lock_for_draw(connection, line, found, request.actor, at)
        later = _later(connection, account.id, place, seen, looked)
        if looks < _LOOKS and any(one.release_id == release_id and place.is_in(one) for one in later.unseen):
            raise _LaterTabulation
        check(connection, later.unseen)
        counts = count(connection, account, found.release)
        return keep(connection, account, replace(later, counts=counts), at)

    while True:
        try:
            return _write(database, request, line.name, Operation(work, is_committed), place.mechanism)
        except _LaterTabulation:  # looked at outside the lock, as the names of its groups are megabytes
            with database.read() as connection:
                look_again(connection)


def _write(
    database: Database, request: Request, account: str, operation: Operation[DrawRecord], mechanism: Mechanism
) -> AnsweredDraw:
    done = idempotent_write(database, request, operation, lambda made: Answer(201, draw_id=made.id))
    if done.result is not None:
        return AnsweredDraw(done.answer, done.result)
    with database.read() as connection:
        record = stored_draws.read_answered(connection, account, done.answer, mechanism)
    return AnsweredDraw(done.answer, record)


def check_draw_first(connection: Connection, line: Line, release_id: str, sealed: Sealed) -> CheckedBefore:
    """Refuse a draw that the ledger refuses already, before any lock; return the facts that bound its check under one.

    Raises:
        Conflict, AlreadyDrawn: as ``draw``.
    """
    place = sealed.place
    turn = place.turn
    seq = accounts.read_account(connection, line.name).head.seq  # first, because what follows may be newer
    _refuse_second_draw(connection, release_id, place.mechanism.name or "", turn)
    _refuse_other_branch(connection, release_id, place)
    counts = partitions.counts_after(connection, release_id, turn.repetition, sealed.taken)
    runs = partitions.branch_runs_of(connection, release_id, place.bounds)
    partitions.refuse_beyond(connection, release_id, place.bounds, runs, counts)
    return CheckedBefore(seq, runs)


def register_and_draw(
    database: Database,
    request: Request,
    prepared: Prepared,
    noisy: NDArray[np.int64],
    keys: tuple[str, ...] | None = None,
) -> AnsweredDraw:
    """Charge a release of a single mechanism and store its draw, in one transaction.

    Raises:
        AccountClosed, BudgetExceeded, TooLarge: nothing is charged, and the noise is discarded.
        Conflict: others must approve the release; again nothing is charged and the noise is discarded.
    """

    plan, line = prepared.plan(), prepared.line
    (mechanism,) = mechanisms_of(plan)
    sealed = seal(place_of(plan, mechanism, Turn()), noisy, keys)

    def work(connection: Connection, at: str) -> DrawRecord:
        locked = lines.lock_line(connection, line, at)
        (registered,) = charge(connection, locked, [prepared], request.actor, at)
        if registered.state == "proposed":
            raise Conflict("a release of this size needs approval by others: register it, have it approved, then draw")
        return store(connection, registered.account, registered.id, sealed, _NONE_LATER, request, at)

    return _write(database, request, line.name, Operation(work, is_committed, charges=line), mechanism)


def seal(place: Place, noisy: NDArray[np.int64], keys: tuple[str, ...] | None = None) -> Sealed:
    """Return a result in its stored form; ``keys`` are those of the counts that a threshold let through.

    Raises:
        TooLarge: it is more than the database holds in one value.
    """
    return Sealed(
        place=place,
        noisy=noisy,
        packed=count_codec.pack(noisy, keys),
        digest=count_codec.digest(noisy, keys),
        taken=((place.mechanism, 0 if place.turn.partition == WHOLE else 1),),
        keys=keys,
    )


def store(
    connection: Connection,
    account: AccountRecord,
    release_id: str,
    sealed: Sealed,
    later: Later,
    request: Request,
    at: str,
    layout: Layout | None = None,
    layout_hash: str | None = None,
) -> DrawRecord:
    """Write a draw into the ledger of a locked account; a tabulation's journal entry also states its groups.

    Args:
        later: the draws since the check before the lock.
    """
    place, turn = sealed.place, sealed.place.turn
    name = place.mechanism.name or ""
    _refuse_second_draw(connection, release_id, name, turn)
    _refuse_other_branch(connection, release_id, place, later.unseen)
    account, counts = partitions.take(connection, account, release_id, turn.repetition, sealed.taken, later.counts)
    partitions.refuse_beyond(connection, release_id, place.bounds, later.runs, counts, later.draws)
    if counts:
        note_drawn(connection, DrawnFor(account.name, release_id, counts))
    request.before_noise()  # the entry has a hash of the noisy counts
    draw_id = str(uuid.uuid4())
    entry = Drawn(
        draw=draw_id,
        mechanism=name,
        partition=turn.partition,
        repetition=turn.repetition,
        size=len(sealed.noisy),
        noisy_hash=sealed.digest,
        level=None if layout is None else layout.level,
        groups=None if layout is None else len(layout.groups),
        layout_hash=layout_hash,
    )
    head = entry.append(connection, account.chain, actor=request.actor, release_id=release_id, at=at)
    (row,) = entry.rows(Filing(account.id, head.seq, release_id, at)).added[Draw]
    code = draw_rows.seal_of(secret_of(connection), row, head.hash, entry.layout_hash)
    connection.execute(_INSERT, row | {"noisy": sealed.packed, "seal": code})
    count_metric(connection, "draws")
    count_metric(connection, "values", number=len(sealed.noisy))
    take_branches(connection, release_id, place.choice_points, turn.partition, draw_id)
    accounts.save(connection, [replace(account, head=head)])
    return DrawRecord(draw_id, account.id, release_id, place.mechanism, turn, sealed.noisy, head, at, keys=sealed.keys)


_INSERT = insert(Draw)
_NONE_LATER = Later((), [], ())
_LOOKS = 3  # times that a draw looks again before it looks under the lock; each time another tabulation was faster


def _later(
    connection: Connection, account_id: int, place: Place, seen: CheckedBefore | None, looked: Container[str]
) -> Later:
    """Return the draws since the check before the lock, or all draws of the account if there was none."""
    seen = seen or CheckedBefore(BEFORE_FIRST.seq, [{} for _ in place.bounds])
    bounded = bool(place.choice_points)  # the bounds are of these
    draws = stored_draws.draws_since(connection, account_id, seen.seq) if bounded else ()
    return Later(draws, seen.runs, [one for one in draws if one.id not in looked])


def _refuse_other_branch(
    connection: Connection, release_id: str, place: Place, since: Sequence[LaterDraw] | None = None
) -> None:
    points, partition = place.choice_points, place.turn.partition
    refuse_other_branch(connection, release_id, points, partition, since, is_tabulation=place.is_tabulation)


_OF_WHOLE = "the whole input has been drawn for this mechanism and repetition, and with it every partition"
_OF_PARTITION = "a partition has been drawn for this mechanism and repetition, which is a part of the whole input"


def _refuse_second_draw(connection: Connection, release_id: str, name: str, turn: Turn) -> None:
    """Refuse a second draw; a draw of the whole input overlaps every partition, so each excludes the other."""
    query = select(Draw.id, Draw.partition).where(Draw.repetition == turn.repetition)
    if turn.partition == WHOLE:
        query = query.where(Draw.release_id + Draw.mechanism == release_id + name)
    else:
        of = Draw.release_id == release_id, Draw.mechanism == name
        query = query.where(*of, Draw.partition.in_((turn.partition, WHOLE)))
    drawn = connection.execute(query.limit(1)).one_or_none()
    if drawn is None:
        return
    detail = "this mechanism, partition and repetition has been drawn"
    if turn.partition != drawn.partition:
        detail = _OF_PARTITION if turn.partition == WHOLE else _OF_WHOLE
    raise AlreadyDrawn(drawn.id, detail)
