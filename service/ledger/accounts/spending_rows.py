"""The rows of ``spending`` as they are stored, and the sum of them that each account's sealed row holds.

The sum is a keyed hash of the account's rows as a multiset: each row adds its occurrences times one code of its subplan
and what it reserves times another, modulo 2^256. So a charge moves the sum by what it adds, whatever was charged
before, and a reader adds up the rows and compares.

Whoever changes rows without the secret needs numbers of occurrences that add up to the same sum. The codes are HMACs,
which they cannot compute. Rows hold 63 bits, so that numbers chosen without the codes do it with a chance of 2^-192 at
most. Whoever saw sums of known rows could find such numbers by lattice reduction, as a few numbers of 63 bits suffice
for 256. So the sum is stored masked.

The mask's nonce is a code of the account and of the sum itself, so that no mask serves two sums. The journal's head
would not do as a nonce: where a backup of an older version is restored and adopted again, a row gets a sum at the same
head for a second time, of rows that somebody may have changed. A stored text tells only whether another of the account
is of the same sum.

Source: D. Clarke, S. Devadas, M. van Dijk, B. Gassend and G. E. Suh, "Incremental Multiset Hash Functions and Their
Application to Memory Integrity Checking", ASIACRYPT 2003: MSet-Add-Hash, with the sum's own code in place of a random
nonce.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from sqlalchemy import Connection, bindparam, delete, select, text, update

from service.ledger.storage.database import batch, secret_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Spending

Subplans = Counter[str]
"""Summands of plans as canonical JSON, with how often each occurs."""

FEW = 64  # rows that are read, or written, in a moment
_MODULUS = 1 << 256
_NONCE = 16  # bytes
_REMEMBERED, _SHORT = 4096, 1024  # codes or masks, and characters of a subplan whose code is

_COUNT = text(
    "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
    " VALUES (:account, :digest, :subplan, :occurrences, :reserved)"
    " ON CONFLICT (account_id, digest) DO UPDATE SET occurrences = spending.occurrences + excluded.occurrences,"
    " reserved = spending.reserved + excluded.reserved"
)
_COUNT_MANY = {
    "sqlite": text(
        "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
        " SELECT :account, json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
        " json_extract(value, '$[2]') * :committed, json_extract(value, '$[2]') * :held FROM json_each(:rows)"
        " WHERE true ON CONFLICT (account_id, digest) DO UPDATE SET"
        " occurrences = spending.occurrences + excluded.occurrences, reserved = spending.reserved + excluded.reserved"
    ),
    "postgresql": text(
        "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
        " SELECT :account, value ->> 0, value ->> 1,"
        " CAST(value ->> 2 AS bigint) * :committed, CAST(value ->> 2 AS bigint) * :held"
        " FROM json_array_elements(CAST(:rows AS json)) AS value ON CONFLICT (account_id, digest) DO UPDATE SET"
        " occurrences = spending.occurrences + excluded.occurrences, reserved = spending.reserved + excluded.reserved"
    ),
}
_HERE = (Spending.account_id == bindparam("account"), Spending.digest == bindparam("at"))
_LEFT = Spending.reserved - bindparam("count")
_COMMIT = update(Spending).where(*_HERE).values(reserved=_LEFT, occurrences=Spending.occurrences + bindparam("count"))
_FORGET = delete(Spending).where(*_HERE, Spending.occurrences == 0, Spending.reserved == bindparam("count"))
_RELEASE = update(Spending).where(*_HERE).values(reserved=_LEFT)
_READ = (
    select(Spending.subplan, Spending.occurrences, Spending.reserved)
    .where(Spending.account_id == bindparam("account"))
    .order_by(Spending.digest)  # so that figures are added up in one order, whatever the database
)


class Change(Protocol):
    """A change of the spending of each account of a line; ``accounts.save`` alone writes it, with the sums."""

    def write(self, connection: Connection, account_ids: Sequence[int]) -> int:
        """Write it to the rows of locked accounts, in one order, and return what it adds to the sum of each."""


class Unchanged:
    """No change of spending."""

    def write(self, connection: Connection, account_ids: Sequence[int]) -> int:  # noqa: ARG002 - as of any change
        """Write nothing."""
        return 0


NOTHING = Unchanged()


@dataclass(frozen=True, slots=True)
class Many:
    """Subplans that are many, as the text of rows: written where nobody waits, and counted by one statement.

    Attributes:
        committed: what they add to an account's sum where they are committed.
        held: where they are held.
    """

    rows: str
    committed: int
    held: int

    @classmethod
    def of(cls, secret: Secret, subplans: Subplans) -> "Many | None":
        """None where they are few: a statement a row takes less then."""
        if len(subplans) <= FEW:
            return None
        rows = json.dumps([[_digest(subplan), subplan, count] for subplan, count in sorted(subplans.items())])
        return cls(rows, sum_of(secret, subplans, Counter()), sum_of(secret, Counter(), subplans))


@dataclass(frozen=True, slots=True)
class Charged:
    """The subplans of new releases; ``many``: further ones, and whether they are held."""

    committed: Subplans
    held: Subplans
    many: list[tuple[Many, bool]] = field(default_factory=list)

    def write(self, connection: Connection, account_ids: Sequence[int]) -> int:
        """Count them; rows are touched in one order, so that no two charges deadlock."""
        rows = [
            {
                "digest": _digest(subplan),
                "subplan": subplan,
                "occurrences": self.committed[subplan],
                "reserved": self.held[subplan],
            }
            for subplan in sorted(self.committed.keys() | self.held.keys())
        ]
        if rows:
            connection.execute(_COUNT, [{"account": account_id} | row for account_id in account_ids for row in rows])
        added = sum_of(secret_of(connection), self.committed, self.held)
        for many, held in self.many:
            given = {"rows": many.rows, "committed": int(not held), "held": int(held)}
            for account_id in account_ids:
                connection.execute(_COUNT_MANY[connection.dialect.name], given | {"account": account_id})
            added += many.held if held else many.committed
        return added


@dataclass(frozen=True, slots=True)
class Settled:
    """Subplans that were held and are committed, or held no longer; what is not counted at all has no row."""

    subplans: Subplans
    committed: bool

    def write(self, connection: Connection, account_ids: Sequence[int]) -> int:
        """Count them so."""
        rows = [
            {"account": account_id, "at": _digest(subplan), "count": count}
            for account_id in account_ids
            for subplan, count in sorted(self.subplans.items())
        ]
        if not rows:
            return 0
        for statement in (_COMMIT,) if self.committed else (_FORGET, _RELEASE):
            connection.execute(statement, batch(rows))
        secret, none = secret_of(connection), Subplans()
        return sum_of(secret, self.subplans if self.committed else none, none) - sum_of(secret, none, self.subplans)


def read_rows(connection: Connection, account_id: int) -> tuple[Subplans, Subplans] | None:
    """Read what an account's rows count as committed and as held, whoever wrote them; None where they count nothing."""
    committed, held = Subplans(), Subplans()
    for row in connection.execute(_READ, {"account": account_id}):
        if not (isinstance(row.subplan, str) and isinstance(row.occurrences, int) and isinstance(row.reserved, int)):
            return None  # SQLite takes any type in any column
        for subplans, count in ((committed, row.occurrences), (held, row.reserved)):
            if count:
                subplans[row.subplan] += count
    return committed, held


def sum_of(secret: Secret, committed: Subplans, held: Subplans) -> int:
    """Return the sum of what is committed and held: of all rows of an account, or of some that are added to them."""
    return sum(
        count * _code(secret, purpose, subplan)
        for purpose, subplans in (("spending committed", committed), ("spending reserved", held))
        for subplan, count in subplans.items()
    )


def moved(secret: Secret, account_id: int, stored: str | None, added: int) -> str:
    """Return the text of an account's sum after an addition; a new account has no sum yet."""
    if stored is None:
        return stored_sum(secret, account_id, added)
    masked = int(stored[2 * _NONCE :], 16)
    return stored_sum(secret, account_id, masked - _mask(secret, account_id, stored[: 2 * _NONCE]) + added)


def stored_sum(secret: Secret, account_id: int, total: int) -> str:
    """Return the text of a sum as the account's row holds it: a nonce, and the sum under the mask that it makes."""
    total %= _MODULUS
    nonce = secret.hmac("spending nonce", b"%d" % account_id, total.to_bytes(32, "big"))[:_NONCE].hex()
    return f"{nonce}{(total + _mask(secret, account_id, nonce)) % _MODULUS:064x}"


def is_sum(secret: Secret, account_id: int, stored: object, committed: Subplans, held: Subplans) -> bool:
    """Whether this is the text of the sum of what an account has committed and holds."""
    return isinstance(stored, str) and secret.is_text(
        stored, stored_sum(secret, account_id, sum_of(secret, committed, held))
    )


@lru_cache(maxsize=_REMEMBERED)  # the next charge takes off what this one put on
def _mask(secret: Secret, account_id: int, nonce: str) -> int:
    return int.from_bytes(secret.hmac("spending mask", b"%d" % account_id, nonce.encode()), "big")


def _code(secret: Secret, purpose: str, subplan: str) -> int:
    if len(subplan) > _SHORT:
        return int.from_bytes(secret.hmac(purpose, subplan.encode()), "big")
    return _known_code(secret, purpose, subplan)


@lru_cache(maxsize=_REMEMBERED)
def _known_code(secret: Secret, purpose: str, subplan: str) -> int:
    """Memoised by texts alone, because pipelines register the same mechanisms again and again."""
    return int.from_bytes(secret.hmac(purpose, subplan.encode()), "big")


def _digest(subplan: str) -> str:
    return hashlib.sha256(subplan.encode()).hexdigest()
