"""Versions of the ledger: each acknowledgement of missing entries gives up one, and begins another.

Somebody who writes the database may have kept rows of the version that is given up. They have right seals, and numbers
that are later than those of the present rows. So the rows that can change, and stored answers, get the seals of the new
version (``sealing``). They are verified before, because such rows may have been put back already.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, select

from service.errors import Conflict
from service.ledger.access.key_events import keys_and_misuses
from service.ledger.access.key_lives import lives_of
from service.ledger.installation import installation_journal
from service.ledger.installation.sealing import Owner, SealedRows, seal_again, sealed_rows
from service.ledger.storage import clock
from service.ledger.storage.idempotency import ANSWERS_TOO
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Delivery, DeliveryTry
from service.ledger.verification.verify import verify
from service.ledger.verification.verify_installation import key_faults

_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version of the ledger that is about to begin.

    Attributes:
        faults: the accounts and keys that do not follow from the journals, each with its fault in words; their rows
            keep the seals of the version that ends, and are refused from then on.
        rows: those that are sealed again, as they were when they were verified.
    """

    name: str
    faults: Mapping[Owner, str]
    rows: SealedRows

    @property
    def content(self) -> dict[str, object]:
        """The part of its entry in the installation's journal that begins it."""
        return {"version": self.name, "sealed_again": self.rows.number}


def prepare_version(connection: Connection, secret: Secret, *, verified: bool) -> NewVersion:
    """Verify the ledger, and return the version that may begin with it.

    Args:
        connection: a transaction that sees one moment of the database.
        verified: False: the rows are taken as they are, like those of an older version that are adopted.

    Raises:
        BrokenChain: the installation's journal is not sound.
    """
    faults = _faults(connection, secret) if verified else {}
    return NewVersion(ANSWERS_TOO + secrets.token_hex(_NAME_BYTES), faults, sealed_rows(connection, secret, faults))


def begin_version(connection: Connection, secret: Secret, new: NewVersion) -> None:
    """Seal the verified rows for the new version. The caller records it in the installation's journal.

    Messages are deleted, with their log: some may be about entries that are given up, of which a webhook would be told.

    Raises:
        Conflict: the rows are not those that were verified.
    """
    if seal_again(connection, secret, replace(secret, version=new.name), new.faults) != new.rows:
        raise Conflict("rows of the ledger changed at the same moment: run the command again")
    connection.execute(delete(DeliveryTry))
    connection.execute(delete(Delivery))


def start_version(connection: Connection, secret: Secret, reason: str) -> Secret:
    """Begin a version of an installation without accounts, in the transaction that imports those of another ledger.

    Somebody may have kept rows of that ledger, which may have had the same secret.

    Returns:
        The secret with the new version, by which the imported rows are sealed.
    """
    new = prepare_version(connection, secret, verified=True)
    begin_version(connection, secret, new)
    content = {"reason": reason, "mark": None} | new.content
    installation_journal.append(connection, secret, "mark_acknowledged", content, actor=None, at=clock.now())
    return replace(secret, version=new.name)


def _faults(connection: Connection, secret: Secret) -> dict[Owner, str]:
    known, _ = keys_and_misuses(connection, secret)
    lives, faults = lives_of(connection), dict[Owner, str](key_faults(connection, secret, known))
    for account_id, name in connection.execute(select(Account.id, Account.name).order_by(Account.id)).all():
        bad = verify(connection, name, lives=lives, one_of_all=True).first_bad
        if bad is not None:
            faults[account_id] = f"account {name!r}: {bad}"
    return faults
