"""Proposed releases: who proposed one, which accounts ask for its approval, and how far it is approved."""

from typing import NamedTuple

from sqlalchemy import Connection

from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.approvals import Approval, asking
from service.ledger.journal.entries import read_members
from service.ledger.journal.entries.registration import read_asking
from service.ledger.journal.journal import Actor
from service.ledger.releases.recorded_releases import read_approvals
from service.ledger.releases.releases import ReleaseRecord, entry_of


class ProposedBy(NamedTuple):
    """The proposal of a release.

    Attributes:
        by: the actor that proposed it.
        asking: the accounts that ask for its approval; None: an older version proposed it, which did not state them.
    """

    by: Actor
    asking: tuple[str, ...] | None


def proposal_of(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> ProposedBy | None:
    """Return the proposal of a release; None if it was not proposed. The entry holds the plan, maybe a long one.

    Raises:
        Altered: the entry is not as the service wrote it.
    """
    members = entry_of(connection, account.id, release)
    around = read_members(members)
    if around.kind != "proposed":
        return None
    stated = members["content"].get("approval_of")
    return ProposedBy(around.by, None if stated is None else read_asking(stated))


def approval_of(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> Approval | None:
    """Return how far a proposed release is approved; None for other releases.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    if release.state != "proposed":
        return None
    proposal = proposal_of(connection, account, release)
    if proposal is None:
        return None
    line = lines.charged_line(lines.line_above(connection, account.name))
    return Approval(proposal.by.name, read_approvals(connection, account, release), asking(line, proposal.asking))
