"""Requests on held releases: commit, approve and void."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from service.errors import Conflict, Forbidden, InvalidInput
from service.ledger.access.key_events import require_valid, see_keys
from service.ledger.access.key_records import Role, includes
from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord, read_account
from service.ledger.accounts.approvals import Approval, asking
from service.ledger.accounts.lines import Line, ReservationsDue
from service.ledger.accounts.two_persons import require_listed_people, require_other_person
from service.ledger.idempotent_write import Operation
from service.ledger.journal.entries import Approved, HoldCommitted, Settlement, Voided
from service.ledger.journal.journal import Actor, Head, has_entry
from service.ledger.releases import release_rows
from service.ledger.releases.proposals import approvals_of, proposal_of
from service.ledger.releases.recorded_releases import present, read_approvals, read_recorded
from service.ledger.releases.releases import HELD, LONG, ReleaseRecord, state_of
from service.ledger.releases.reservation_rows import State
from service.ledger.releases.settlement import Held, held_of, settle
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.tables import Hold
from service.ledger.storage.transaction import leave_holds


@dataclass(frozen=True, slots=True)
class SettledRelease:
    """A release and its account after a step; ``approval`` is that of a release which stays proposed."""

    release: ReleaseRecord
    account: AccountRecord
    approval: Approval | None = None


Choose = Callable[[Connection, Sequence[AccountRecord], ReleaseRecord, Held | None], Settlement | None]
"""A function that returns a release's settlement under the lock of its line. It reads no plan; ``Held`` has the facts
of it."""


def commit(database: Database, request: Request, name: str, release_id: str) -> Operation[SettledRelease]:
    """Return the operation that commits a reservation, which spends the held budget.

    Raises:
        NotFound: the account has no such release.
        Conflict: it is proposed, voided or expired.
    """

    def choose(_: Connection, __: object, release: ReleaseRecord, ___: object) -> Settlement | None:
        return _commitment(release.state)

    return _step(database, request, name, release_id, lambda *_: choose, commits=True)


def void(
    database: Database,
    request: Request,
    name: str,
    release_id: str,
    reason: str,
    attestation: str | None,
    role: Role = "steward",
) -> Operation[SettledRelease]:
    """Return the operation that voids a held release.

    Nothing was drawn from it, because the first draw would have committed it.

    Args:
        attestation: the statement that nothing was published; None where the steward makes none.
        role: of the actor: an approver voids proposals only.

    Raises:
        NotFound: the account has no such release.
        Forbidden: an approver would void a reservation.
        Conflict: it is committed or expired.
        InvalidInput: part of it could be published without this service, and no attestation says that it was not.
    """

    keys = see_keys(database, request.secret)

    def choose(connection: Connection, _: object, release: ReleaseRecord, held: Held | None) -> Settlement | None:
        require_valid(connection, request.secret, request.actor, clock.now(), keys, role)
        if release.state == "reserved" and not includes(role, "steward"):
            raise Forbidden("expected a key with the role steward: approvers void proposals only")
        if release.state == "voided":
            return None
        if release.state in ("committed", "expired"):
            raise Conflict(f"the release is {release.state}; only a proposed or reserved release can be voided")
        if attestation is None and held is not None and not held.expires:
            raise InvalidInput.at(
                "/attestation",
                "expected a statement that nothing was published: the service does not draw all mechanisms of the plan",
            )
        return Voided(reason=reason, attestation=attestation)

    return _step(database, request, name, release_id, lambda *_: choose)


def approve(
    database: Database, request: Request, name: str, release_id: str, reason: str | None = None
) -> Operation[SettledRelease]:
    """Return the operation that approves a proposal.

    Once the rules of all accounts that ask for its approval are met, the release is reserved, or committed if no
    reservation was requested. Until then it stays proposed. The present rules count, so a rule that was changed
    counts the earlier approvals of those whom it admits.

    Args:
        reason: the approver's own words for the journal; None: none are given.

    Raises:
        NotFound: the account has no such release.
        Forbidden: the approver proposed it, is none of those who may approve it, or could have used the key of the
            proposer or of another approver; or somebody who is not on a list that names it could have used its key.
        Conflict: it was not proposed, or is voided or expired.
    """

    keys = see_keys(database, request.secret)

    def prepare(connection: Connection, account: AccountRecord, found: ReleaseRecord) -> Choose:
        origin = proposal_of(connection, account, found)
        read_approvals(connection, account, found)  # walks along the journal, so that it takes a moment under the lock

        def choose(
            connection: Connection, line: Sequence[AccountRecord], release: ReleaseRecord, _: Held | None
        ) -> Settlement | None:
            if origin is None:
                raise Conflict("the release was not proposed: it needs no approval")
            given = read_approvals(connection, line[-1], release)
            standing = Approval(origin.by, given, asking(line, origin.asking))
            known = require_other_person(connection, request, standing, "the release", keys)
            if release.state in ("reserved", "committed"):
                return None
            if release.state != "proposed":
                raise Conflict(f"the release is {release.state}; only a proposed release can be approved")
            approval = require_listed_people(standing, known, request.actor, "the release")
            if approval.has_no_need_of(request.principal):
                return None
            if not approval.is_met_with(request.principal):
                return Approved("proposed", reason)
            return Approved("committed" if release.expires_at is None else "reserved", reason)

        return choose

    return _step(database, request, name, release_id, prepare)


@dataclass(frozen=True, slots=True)
class DrawnRelease:
    """A release before a draw, as it was found before any lock.

    Attributes:
        head: the account's, at which it was found.
        held: what the draw commits; None if nothing.
    """

    release: ReleaseRecord
    head: Head
    held: Held | None


def release_for_draw(
    database: Database,
    name: str,
    release_id: str,
    also: Callable[[Connection, AccountRecord, ReleaseRecord], object] = lambda *_: None,
) -> DrawnRelease:
    """Return a release that is to be drawn from, with what its first draw commits, before any lock is taken.

    Args:
        name: of its account.
        also: called with the account and the release as they are then, to read what takes long.

    Raises:
        NotFound: the account has no such release.
        Altered: its row is not as the service wrote it, or the journal lacks its entry.
    """
    with database.read() as connection:
        account = read_account(connection, name)
        found = read_recorded(connection, account, release_id)
        also(connection, account, found)
    return DrawnRelease(found, account.head, _held(found, commits=True))


def lock_for_draw(connection: Connection, line: Line, drawn: DrawnRelease, actor: Actor, at: str) -> AccountRecord:
    """Lock the account of a release for a draw, and commit its reservation if there is one.

    Raises:
        NotFound: the account has no such release.
        Conflict: it is proposed, voided or expired.
        ReservationsDue: an overdue hold must expire first.
    """
    found = drawn.release
    if state_of(connection, line.account_id, found.id) == "committed":  # for ever: accounts above need no lock
        locked = [lines.lock_account(connection, line)]
    else:
        locked = lines.lock_line(connection, line, at)
        _refuse_over(connection, locked, found, at)
    release = present(connection, locked[-1], found, drawn.head)
    step = _commitment(release.state)
    if step is None:
        return locked[-1]
    return settle(connection, locked, [_require_read(drawn.held, found)], step, actor, at)[-1]


def _commitment(state: State) -> Settlement | None:
    """Return the settlement that commits a release in some state; None if it is committed."""
    if state == "committed":
        return None
    if state == "proposed":
        raise Conflict("the release is proposed; others must approve it first")
    if state != "reserved":
        raise Conflict(f"the release is {state}")
    return HoldCommitted()


def _step(
    database: Database,
    request: Request,
    name: str,
    release_id: str,
    prepare: Callable[[Connection, AccountRecord, ReleaseRecord], Choose],
    *,
    commits: bool = False,
) -> Operation[SettledRelease]:
    """Return the operation that takes a release to another state; it writes nothing if the release has that state.

    Args:
        prepare: called before the lock with the account and the release as they are then.
        commits: whether the step can only be a commitment.
    """
    line = lines.line_of(database, name)
    with database.read() as connection:
        account = read_account(connection, name)
        found = read_recorded(connection, account, release_id)
        choose = prepare(connection, account, found)
    held = _held(found, commits=commits)

    def work(connection: Connection, at: str) -> SettledRelease:
        locked = lines.lock_line(connection, line, at)
        _refuse_over(connection, locked, found, at)
        release = present(connection, locked[-1], found, account.head)
        step = choose(connection, locked, release, held)
        if step is None:
            return _settled(connection, release, locked[-1])
        after = settle(connection, locked, [_require_read(held, found)], step, request.actor, at)
        return _settled(connection, replace(release, state=step.next_state()), after[-1])

    return Operation(work, _is_committed)


def _settled(connection: Connection, release: ReleaseRecord, account: AccountRecord) -> SettledRelease:
    return SettledRelease(release, account, approvals_of(connection, account, [release]).get(release.id))


def _held(release: ReleaseRecord, *, commits: bool) -> Held | None:
    """Return the hold of a release, before any lock; None if it is not needed.

    A settled release stays settled. A proposal is not committed before others approve it, so a long one is not read.
    """
    is_needed = release.state == "reserved" or not commits or len(release.plan_text) <= LONG
    return held_of(release) if release.state in HELD and is_needed else None


def _require_read(held: Held | None, found: ReleaseRecord) -> Held:
    """Return the hold that was read before the lock.

    Raises:
        Conflict: it was not, as a long proposal, which was approved at the same moment.
        Altered: it was not, as the release had been settled.
    """
    if held is None and found.state == "proposed":
        raise Conflict("the release was approved at the same moment; repeat the request")
    if held is None:
        raise release_rows.altered(found.id)
    return held


def _refuse_over(connection: Connection, line: Sequence[AccountRecord], release: ReleaseRecord, at: str) -> None:
    """Refuse to continue with a release that is still held although its time is over.

    Args:
        line: locked, root first.
        release: as it was recorded before the lock; its own time is sealed, and that of an unread hold is not.

    Raises:
        ReservationsDue: the release's time is over, and it is still held.
        Conflict: likewise, and its expiry takes long. The server's own thread records it, with rests for others.
    """
    if release.expires_at is None or release.expires_at > at:
        return
    query = select(Hold.release_id).where(Hold.release_id == release.id, Hold.account_id == line[-1].id)
    if connection.execute(query.where(Hold.expires_at <= at)).first() is None:
        return
    if lines.expires_soon(connection, line, release.id):
        raise ReservationsDue(line[-1].id, release.id)
    leave_holds(connection)
    raise Conflict("the release is expired: the time of its reservation is over")


def _is_committed(connection: Connection, settled: SettledRelease) -> bool:
    return has_entry(connection, settled.account.id, settled.account.head)
