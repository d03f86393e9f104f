"""Authentication: the principal of a token, as the keys' rows and the installation's journal have it."""

from dataclasses import dataclass

import structlog
from sqlalchemy import bindparam, func, or_, select

from service.errors import Unavailable
from service.ledger.access.key_records import Role, includes
from service.ledger.access.key_rows import (
    SEALED,
    is_sealed,
    read_reach,
    read_role,
    token_code,
)
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import ApiKey, InstallationEntry

_log = structlog.get_logger("service.keys")


@dataclass(frozen=True)
class Principal:
    """The authenticated caller and its rights."""

    key_id: str | None  # None: an identity provider authenticated the caller
    name: str
    role: Role
    accounts: frozenset[str] | None  # None: all

    def may_act_as(self, role: Role) -> bool:
        """Return whether this principal's role includes another."""
        return includes(self.role, role)

    def may_use(self, account: str) -> bool:
        """Return whether this principal's key reaches an account."""
        return self.accounts is None or account in self.accounts


# Built once: every request runs it, and building it would cost more than running it.
_LAST_ENTRY = select(func.max(InstallationEntry.seq)).scalar_subquery()

_VALID = select(*SEALED, ApiKey.seal, _LAST_ENTRY.label("last_entry")).where(
    ApiKey.token_hash == bindparam("token_hash"),
    ApiKey.revoked_at.is_(None),
    or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > bindparam("at")),
)


def authenticate(database: Database, secret: Secret, token: str, at: str) -> Principal | None:
    """Return the token's principal; None if the token is unknown, expired or revoked, or its row was altered.

    The token is looked up by its code, so the time taken reveals nothing about other tokens. The database is queried
    every time, so a revocation holds at once, whichever server made it. Putting an old row back does not revive a key
    that the installation's journal ended, and a key that it did not make is refused, like one of an installation from
    which this one was imported: the statement that reads the row also tells whether the journal continued
    since this process read it. While the entries that follow there are not sound, no key is valid, because they may
    hide a revocation.

    Raises:
        Unavailable: the database does not answer, or the mark's keeper gets no answers, or the installation's journal
            was rolled back, or is not sound.
    """
    if (reason := database.unwatched()) is not None:
        raise Unavailable(reason)
    followed, known = database.followed, database.newest.number(INSTALLATION)  # read before the row
    row = database.ask(_VALID, {"token_hash": token_code(secret, token), "at": at})
    if row is None:
        return None
    if not is_sealed(secret, row[:-1]):
        _log.warning("the row of a key is not as this service wrote it", key=str(row.id))
        return None
    if followed is not None:
        _follow(database, secret, followed.seq, known, row.last_entry or 0)
    if followed is not None and not database.has_made(row.id):
        _log.warning("the installation's journal made no such key", key=str(row.id))
        return None
    if database.has_ended(row.id, at):
        _log.warning(
            "the row of a key says that the key is valid; by the installation's journal it has ended", key=row.id
        )
        return None
    accounts = read_reach(row.accounts)
    return Principal(row.id, row.name, read_role(row.role), None if accounts is None else frozenset(accounts))


def _follow(database: Database, secret: Secret, followed: int, known: int, last: int) -> None:
    """Read which keys other processes ended; while the journal is not sound, only the mark's keeper tries again.

    Args:
        followed: the number of the last entry whose ends of keys were known before the look-up.
        known: the number of the last entry that was known to be committed then.
        last: the number of its present last entry.

    Raises:
        Unavailable: the journal was rolled back, or is not sound, or the database does not answer.
    """
    if last < known:
        raise database.went_back(INSTALLATION, last)
    if last == followed:
        return
    if last <= database.followed_to:
        raise installation_journal.unsound_for_now("an earlier line of the log names its first bad entry")
    reached, fault = followed, f"entry {followed + 1}: an entry is missing"
    try:
        reached = installation_journal.follow(database, secret)
    except BrokenChain as broken:
        fault = str(broken)
    if reached < last:
        database.followed_to = last
        _log.error("the installation's journal is not as the service wrote it", broken=fault)
        raise installation_journal.unsound_for_now(fault)
