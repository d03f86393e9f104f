"""Two-person control: one person proposes, and others, stewards or approvers, approve."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

from sqlalchemy import Connection

from service.errors import Forbidden
from service.ledger.access.key_events import Known, SeenKeys, people_behind, require_known, sound_keys
from service.ledger.accounts.approvals import Approval
from service.ledger.accounts.approvers import Approvers
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Request

_BY_COMMAND = "The operator makes keys that no steward knows: python -m service keys create"


def require_other_person(
    connection: Connection,
    request: Request,
    proposer: Actor,
    what: str,
    seen: SeenKeys | None,
    approved: Iterable[Actor] = (),
) -> Known:
    """Refuse an approval by one who proposed or approved, or whom the keys cannot tell from one of these.

    A principal that makes or rotates a key receives its token, and can act as the key's principal. So no principal may
    have had two of the keys, neither that of the new approval nor those of the earlier ones, which an older version may
    have accepted without comparing all of them. The approvals of the same principal count once, so it is no other
    person than itself.

    Args:
        what: the proposed thing, for the message.
        seen: the keys that were read before the lock.
        approved: those that approved it already, by the texts of the journal.

    Returns:
        All keys, by which the approval was judged.

    Raises:
        Forbidden: it is one principal, or one principal could have used two of the keys.
        Unauthenticated: the installation's journal does not know the key of the approval as a valid one.
        Unavailable: that journal, which records the makers of keys, is not sound.
    """
    if proposer.name == request.principal:
        raise Forbidden(f"expected another principal than the one that proposed {what}")
    known = sound_keys(connection, request.secret, seen)
    require_known(known, request.actor, clock.now(), "approver")
    own = people_behind(known, request.actor)
    others = [("proposed", proposer), *(("approved", one) for one in approved if one.name != request.principal)]
    behind = [(did, one.name, people_behind(known, one)) for did, one in others]
    for did, _, people in behind:
        if people & own:
            raise Forbidden(
                f"expected a key that is unknown to every principal that could have {did} {what}: a principal that"
                f" makes or rotates a key knows it. {_BY_COMMAND}"
            )
    for (_, one, hers), (_, other, theirs) in combinations(behind, 2):
        if one != other and hers & theirs:
            raise Forbidden(
                f"expected approvals of different persons, got those of {one} and {other}, whose keys one principal"
                f" knows: reject {what}, and propose it again"
            )
    return known


def require_listed_people(approval: Approval, known: Known, actor: Actor, what: str) -> Approval:
    """Return what counts of the approvals that a proposal has; refuse one more if it would not count.

    A list names persons, and whoever makes a key can give it any name. So a key with a name of the list counts only if
    nobody beside the list could have used it.

    Args:
        known: all keys.
        actor: the one who approves now.
        what: the proposed thing, for the message.

    Raises:
        Forbidden: it may not approve, or a principal that is not on the list of an account could have used its key.
    """
    approval.require_one_who_may(actor.name, what)
    for rule in approval.rules:
        if not _is_of_list(rule.approvers, known, actor):
            raise Forbidden(
                f"expected a key that only the approvers of {rule.account} could have used: a principal that makes or"
                f" rotates a key knows it. {_BY_COMMAND}"
            )
    lists = [rule.approvers for rule in approval.rules]
    return replace(
        approval, given=tuple(one for one in approval.given if all(_is_of_list(rule, known, one) for rule in lists))
    )


def _is_of_list(rule: Approvers, known: Known, actor: Actor) -> bool:
    """Return whether a list that names an actor names all who could have used its key."""
    return rule.of is None or actor.name not in rule.of or people_behind(known, actor) <= set(rule.of)
