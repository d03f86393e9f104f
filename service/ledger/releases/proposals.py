"""Proposed releases: who proposed one, which accounts ask for its approval, and how far it is approved."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection

from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.approvals import Approval, asking
from service.ledger.journal.entries import ParsedEntry, read_members
from service.ledger.journal.entries.registration import read_asking
from service.ledger.journal.journal import Actor
from service.ledger.releases.recorded_releases import later_entries, read_approvals
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


def decision_of(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> ParsedEntry | None:
    """Return the entry that ended a release's wait: the last approval that it took, or its rejection.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    entries = later_entries(connection, account, release, ["approved", "voided"])
    return next((one for one in entries if one.kind == "voided" or one.content.next_state() != "proposed"), None)


def approvals_of(
    connection: Connection, account: AccountRecord, releases: Iterable[ReleaseRecord]
) -> dict[str, Approval]:
    """Return how far those of an account's releases are approved that are proposed, by their ids.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    waiting = [release for release in releases if release.state == "proposed"]
    line = lines.charged_line(lines.line_above(connection, account.name)) if waiting else ()
    reach = tuple(one.name for one in line if one.approval_above is not None)
    found: dict[str, Approval] = {}
    for release in waiting:
        proposal = proposal_of(connection, account, release)
        if proposal is not None:
            given = read_approvals(connection, account, release)
            found[release.id] = Approval(proposal.by, given, asking(line, proposal.asking), reach)
    return found
