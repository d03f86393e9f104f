"""Two-person control: one person proposes, and others, stewards or approvers, approve."""

from dataclasses import replace
from itertools import combinations

from sqlalchemy import Connection

from service.errors import Forbidden
from service.ledger.access.key_events import Known, SeenKeys, people_behind, require_known, sound_keys
from service.ledger.accounts.approvals import Approval, Objection
from service.ledger.accounts.approvers import Approvers
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Request


def objection_to(approval: Approval, known: Known, actor: Actor, what: str) -> Objection | None:
    """Return why an approval by an actor with the role for it would not count now; None if it would.

    Args:
        approval: all that was given so far.
        known: all keys.
        what: the proposed thing, for the message.
    """
    objection = _of_one_person(approval, known, actor, what) or _of_lists(approval, known, actor, what)
    if objection is None and counted(approval, known).has_no_need_of(actor.name):
        return Objection("approved", f"expected a principal that has not approved {what}: others must approve it too")
    return objection


def require_other_person(
    connection: Connection, request: Request, approval: Approval, what: str, seen: SeenKeys | None
) -> Known:
    """Refuse an approval by one who proposed or approved, or whom the keys cannot tell from one of these.

    A principal that makes or rotates a key receives its token, and can act as the key's principal. So no principal may
    have had two of the keys, neither that of the new approval nor those of the earlier ones, which an older version may
    have accepted without comparing all of them. The approvals of the same principal count once, so it is no other
    person than itself.

    Args:
        approval: all that was given so far.
        what: the proposed thing, for the message.
        seen: the keys that were read before the lock.

    Returns:
        All keys, by which the approval was judged.

    Raises:
        Forbidden: it is one principal, or one principal could have used two of the keys.
        Unauthenticated: the installation's journal does not know the key of the approval as a valid one.
        Unavailable: that journal, which records the makers of keys, is not sound.
    """
    known = sound_keys(connection, request.secret, seen)
    require_known(known, request.actor, clock.now(), "approver")
    _refuse(_of_one_person(approval, known, request.actor, what))
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
    _refuse(_of_lists(approval, known, actor, what))
    return counted(approval, known)


def counted(approval: Approval, known: Known) -> Approval:
    """Return an approval with those that count of the ones that were given."""
    lists = [rule.approvers for rule in approval.rules]
    given = tuple(one for one in approval.given if not any(strangers_to(rule, known, one) for rule in lists))
    return replace(approval, given=given)


def strangers_to(rule: Approvers, known: Known, actor: Actor) -> frozenset[str]:
    """Return the principals that a list does not name and that could have used the key of an actor whom it names."""
    if rule.of is None or actor.name not in rule.of:
        return frozenset()
    return people_behind(known, actor) - set(rule.of)


def _refuse(objection: Objection | None) -> None:
    if objection is not None:
        raise Forbidden(objection.reason)


def _of_one_person(approval: Approval, known: Known, actor: Actor, what: str) -> Objection | None:
    """Return the objection that an actor, or an earlier approver, is one who did so before, as the keys can tell."""
    if actor.name == approval.proposer.name:
        return approval.objection_to(actor.name, what)
    own = people_behind(known, actor)
    others = [("proposed", approval.proposer), *(("approved", one) for one in approval.given if one.name != actor.name)]
    for did, other in others:
        both = people_behind(known, other) & own
        if actor.name in both:
            return Objection(
                "known_key",
                f"expected another principal: {actor.name} knows the key of {other.name}, who {did} {what}, as a"
                " principal that makes or rotates a key does. Somebody else must approve it",
            )
        if both:
            return Objection(
                "known_key",
                f"expected a key that is unknown to every principal that could have {did} {what}:"
                f" {_know(both)} could have. {_remedy(known, actor)}",
            )
    behind = [(one.name, people_behind(known, one)) for _, one in others]
    for (one, hers), (another, theirs) in combinations(behind, 2):
        if one != another and hers & theirs:
            return Objection(
                "known_key",
                f"expected approvals of different persons, got those of {one} and {another}, whose keys one principal"
                f" knows: reject {what}, and propose it again",
            )
    return None


def _of_lists(approval: Approval, known: Known, actor: Actor, what: str) -> Objection | None:
    """Return the objection that an actor is on no list, or could be somebody who is not on a list that names it."""
    if (objection := approval.objection_to(actor.name, what)) is not None:
        return objection
    for rule in approval.rules:
        if strangers := strangers_to(rule.approvers, known, actor):
            return Objection(
                "known_key",
                f"expected a key that only the approvers of {rule.account} could have used: {_know(strangers)}"
                f" {'is' if len(strangers) == 1 else 'are'} not among them. {_remedy(known, actor)}",
            )
    return None


def _know(principals: frozenset[str]) -> str:
    names = " and ".join(sorted(principals))
    return f"{names}, who {'has' if len(principals) == 1 else 'have'} known this key since it was made or rotated,"


def _remedy(known: Known, actor: Actor) -> str:
    """Return what an actor can do about a key that somebody else knows."""
    if actor.key in known and not any(record.rotated_from == actor.key for record in known.values()):
        return f"Ask the operator of the service to rotate it: python -m service keys rotate {actor.key}"
    return "Ask the operator of the service for another key: python -m service keys create"
