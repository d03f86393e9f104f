"""Two-person control: what one has proposed takes another to approve."""

from sqlalchemy import Connection

from service.errors import Forbidden
from service.ledger.access.key_events import people_behind, require_known, sound_keys
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Request


def require_other_person(connection: Connection, request: Request, proposer: Actor, what: str) -> None:
    """Refuse an approval by the one who proposed, or by anybody whom the keys do not tell from them.

    Whoever makes or rotates a key is shown its token, and can act as its principal. So nobody may be behind both keys.

    Raises:
        Forbidden: it is one principal, or somebody is behind both keys.
        Unauthenticated: the installation's journal does not know the key of the approval as a valid one.
        Unavailable: that journal, which tells who made which key, is not sound.
    """
    if proposer.name == request.principal:
        raise Forbidden(f"expected another principal than the one who proposed {what}")
    known = sound_keys(connection, request.secret)
    require_known(known, request.actor, clock.now())
    if people_behind(known, proposer) & people_behind(known, request.actor):
        raise Forbidden(
            f"expected a key that nobody made who could have proposed {what}: whoever makes or rotates a key knows it."
            " The operator makes keys that no steward knows: python -m service keys create"
        )
