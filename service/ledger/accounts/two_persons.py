"""Two-person control: one person proposes, and others, stewards or approvers, approve."""

from collections.abc import Iterable

from sqlalchemy import Connection

from service.errors import Forbidden
from service.ledger.access.key_events import SeenKeys, people_behind, require_known, sound_keys
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Request


def require_other_person(
    connection: Connection,
    request: Request,
    proposer: Actor,
    what: str,
    seen: SeenKeys | None,
    approved: Iterable[Actor] = (),
) -> None:
    """Refuse an approval by one who proposed or approved, or whom the keys cannot tell from one of these.

    A principal that makes or rotates a key receives its token, and can act as the key's principal. So no principal may
    have had two of the keys. The approvals of the same principal count once, so it is no other person than itself.

    Args:
        what: the proposed thing, for the message.
        seen: the keys that were read before the lock.
        approved: those that approved it already.

    Raises:
        Forbidden: it is one principal, or one principal could have used both keys.
        Unauthenticated: the installation's journal does not know the key of the approval as a valid one.
        Unavailable: that journal, which records the makers of keys, is not sound.
    """
    if proposer.name == request.principal:
        raise Forbidden(f"expected another principal than the one that proposed {what}")
    known = sound_keys(connection, request.secret, seen)
    require_known(known, request.actor, clock.now(), "approver")
    own = people_behind(known, request.actor)
    others = [("proposed", proposer), *(("approved", one) for one in approved if one.name != request.principal)]
    for did, other in others:
        if people_behind(known, other) & own:
            raise Forbidden(
                f"expected a key that is unknown to every principal that could have {did} {what}: a principal that"
                " makes or rotates a key knows it. The operator makes keys that no steward knows: python -m service"
                " keys create"
            )
