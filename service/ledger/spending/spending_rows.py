"""The stored rows of ``spending``, and their sum, which each account's sealed row holds.

The sum is a keyed hash of the account's rows as a multiset: each row adds its committed occurrences times one code of
its subplan and its held occurrences times another, modulo 2^256. So a charge moves the sum by its own addition,
whatever was charged before. A reader adds up the rows and compares.

An attacker who changes rows without the secret needs numbers of occurrences that add up to the same sum. The codes are
HMACs, which the attacker cannot compute. Rows hold 63 bits, so numbers chosen without the codes succeed with a
probability of 2^-192 at most. An attacker who saw sums of known rows could find such numbers by lattice reduction,
because a few numbers of 63 bits suffice for 256. So the sum is stored masked.

The mask's nonce is a code of the account and of the sum itself, so that no mask serves two sums. The journal's head
would not do as a nonce: where a backup of an older version is restored and adopted again, a row gets a sum at the same
head for a second time, of rows that may have been altered. A stored text reveals only whether it has the same sum as
another text of the account.

Source: D. Clarke, S. Devadas, M. van Dijk, B. Gassend and G. E. Suh, "Incremental Multiset Hash Functions and Their
Application to Memory Integrity Checking", ASIACRYPT 2003: MSet-Add-Hash, with the sum's own code in place of a random
nonce.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, delete, select, text, update

from service.errors import Altered
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Spending
from service.ledger.storage.transaction import batch, secret_of

Subplans = Counter[str]
"""Summands of plans as canonical JSON, with their numbers of occurrences."""

FEW = 64  # rows that are read, or written, quickly
_MODULUS = 1 << 256
_NONCE = 16  # bytes
_REMEMBERED = 4096  # masks

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
_HELD = (*_HERE, Spending.reserved >= bindparam("count"))
_COMMIT = update(Spending).where(*_HELD).values(reserved=_LEFT, occurrences=Spending.occurrences + bindparam("count"))
_FORGET = delete(Spending).where(*_HERE, Spending.occurrences == 0, Spending.reserved == bindparam("count"))
_REMOVE = delete(Spending).where(*_HERE, Spending.occurrences == 1, Spending.reserved == 0)
_RELEASE = update(Spending).where(*_HELD).values(reserved=_LEFT)
_READ = (
    select(Spending.subplan, Spending.occurrences, Spending.reserved)
    .where(Spending.account_id == bindparam("account"))
    .order_by(Spending.digest)  # so that figures are added up in one order on every database
)


class SpendingChange(Protocol):
    """A change of the spending of each account of a line; only ``accounts.save`` writes it, with the sums."""

    def write(self, connection: Connection, account_ids: Sequence[int]) -> Mapping[int, int]:
        """Write the change to the rows of locked accounts, in one order; return its addition to the sum of each.

        Returns:
            Whole numbers of either sign, which count modulo 2^256; an account without one has no change.
        """


class NoSpendingChange:
    """No change of spending."""

    def write(
        self,
        connection: Connection,  # noqa: ARG002 - as of any change
        account_ids: Sequence[int],  # noqa: ARG002
    ) -> Mapping[int, int]:
        """Write nothing."""
        return {}


NOTHING = NoSpendingChange()


@dataclass(frozen=True, slots=True)
class ManySubplans:
    """Many subplans, as the text of rows: written before locking, and counted by one statement.

    Attributes:
        committed: the addition to an account's sum if they are committed.
        held: the addition if they are held.
    """

    rows: str
    committed: int
    held: int

    @classmethod
    def of(cls, secret: Secret, subplans: Subplans) -> "ManySubplans | None":
        """Return the subplans in this form; None if they are few, where one statement for each row is faster."""
        if len(subplans) <= FEW:
            return None
        # By digest, the order of the table's key: SQLite inserts them in two thirds of the time.
        rows = json.dumps(sorted([_digest(subplan), subplan, count] for subplan, count in subplans.items()))
        return cls(rows, sum_of(secret, subplans, Counter()), sum_of(secret, Counter(), subplans))


@dataclass(frozen=True, slots=True)
class ChargedSubplans:
    """The subplans of new releases; ``many`` has further ones, and whether they are held."""

    committed: Subplans
    held: Subplans
    many: list[tuple[ManySubplans, bool]] = field(default_factory=list)

    def write(self, connection: Connection, account_ids: Sequence[int]) -> Mapping[int, int]:
        """Count the charged subplans; rows are touched in one order, so that no two charges deadlock."""
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
        return dict.fromkeys(account_ids, added)


@dataclass(frozen=True, slots=True)
class SettledSubplans:
    """Held subplans that are committed, or held no longer."""

    subplans: Subplans
    committed: bool

    def write(self, connection: Connection, account_ids: Sequence[int]) -> Mapping[int, int]:
        """Move or remove the held counts of the subplans.

        Raises:
            Altered: an account holds fewer: the row of a hold was put back after its release was settled.
        """
        rows = [
            {"account": account_id, "at": _digest(subplan), "count": count}
            for account_id in account_ids
            for subplan, count in sorted(self.subplans.items())
        ]
        if not rows:
            return {}
        statements = (_COMMIT,) if self.committed else (_FORGET, _RELEASE)
        changed = sum(connection.execute(statement, batch(rows)).rowcount for statement in statements)
        if changed != len(rows):
            raise Altered("what the account holds", f"a row of holds, of the account with the id {account_ids[0]},")
        secret, none = secret_of(connection), Subplans()
        committed = self.subplans if self.committed else none
        return dict.fromkeys(account_ids, sum_of(secret, committed, none) - sum_of(secret, none, self.subplans))


@dataclass(frozen=True, slots=True)
class ReplacedSubplan:
    """A committed subplan that occurs once and takes the place of another; None: there is no other."""

    old: str | None
    new: str

    def write(self, connection: Connection, account_ids: Sequence[int]) -> Mapping[int, int]:
        """Remove the row of the former subplan, and write that of the new one."""
        secret, none, added = secret_of(connection), Subplans(), Subplans([self.new])
        if self.old is not None:
            gone = connection.execute(
                _REMOVE, batch([{"account": one, "at": _digest(self.old)} for one in account_ids])
            )
            if gone.rowcount != len(account_ids):
                raise Altered("what is allotted", f"a row of allotments, of the account with the id {account_ids[0]},")
        row = {"digest": _digest(self.new), "subplan": self.new, "occurrences": 1, "reserved": 0}
        connection.execute(_COUNT, [{"account": account_id} | row for account_id in account_ids])
        former = none if self.old is None else Subplans([self.old])
        return dict.fromkeys(account_ids, sum_of(secret, added, none) - sum_of(secret, former, none))


@dataclass(frozen=True, slots=True)
class UnlikeChanges:
    """Changes of the accounts of a line that differ, as releases read other periods of each; by the accounts' ids."""

    changes: Mapping[tuple[int, ...], SpendingChange]

    def write(self, connection: Connection, account_ids: Sequence[int]) -> Mapping[int, int]:
        """Write each change to its accounts, which must be of these."""
        added: Counter[int] = Counter()
        for changed, change in self.changes.items():
            if not set(account_ids).issuperset(changed):
                raise ValueError("expected changes of the accounts that are saved")
            for account_id, one in change.write(connection, changed).items():
                added[account_id] += one
        return added


def read_rows(connection: Connection, account_id: int) -> tuple[Subplans, Subplans] | None:
    """Return an account's committed and held rows, without a check of their sum; None if one has invalid values."""
    committed, held = Subplans(), Subplans()
    rows: Iterable[Any] = connection.execute(_READ, {"account": account_id})
    for subplan, occurrences, reserved in rows:
        if not (isinstance(subplan, str) and isinstance(occurrences, int) and isinstance(reserved, int)):
            return None  # SQLite takes any type in any column
        if occurrences < 0 or reserved < 0:
            return None
        if occurrences:
            committed[subplan] = committed.get(subplan, 0) + occurrences  # in half the time of +=
        if reserved:
            held[subplan] = held.get(subplan, 0) + reserved
    return committed, held


def sum_of(secret: Secret, committed: Subplans, held: Subplans) -> int:
    """Return the sum of committed and held subplans: of all rows of an account, or of an addition to them."""
    return sum(
        count * secret.number(purpose, subplan)
        for purpose, subplans in (("spending committed", committed), ("spending reserved", held))
        for subplan, count in subplans.items()
    )


def sum_after(secret: Secret, account_id: int, stored: str | None, added: int) -> str:
    """Return the text of an account's sum after an addition; a new account has no sum yet.

    Args:
        stored: the text of the present sum; None for a new account.
        added: to the sum, of either sign; it counts modulo 2^256.
    """
    if stored is None:
        return stored_sum(secret, account_id, added)
    masked = int(stored[2 * _NONCE :], 16)
    return stored_sum(secret, account_id, masked - _mask(secret, account_id, stored[: 2 * _NONCE]) + added)


def stored_sum(secret: Secret, account_id: int, total: int) -> str:
    """Return the text of a sum for the account's row: a nonce, and the sum under the nonce's mask.

    Args:
        total: any whole number; it counts modulo 2^256.
    """
    total %= _MODULUS
    nonce = secret.hmac("spending nonce", b"%d" % account_id, total.to_bytes(32, "big"))[:_NONCE].hex()
    return f"{nonce}{(total + _mask(secret, account_id, nonce)) % _MODULUS:064x}"


def is_sum(secret: Secret, account_id: int, stored: object, committed: Subplans, held: Subplans) -> bool:
    """Return whether a text is that of the sum of an account's committed and held subplans."""
    return secret.is_text(stored, stored_sum(secret, account_id, sum_of(secret, committed, held)))


@lru_cache(maxsize=_REMEMBERED)  # the next charge removes the mask that this one applied
def _mask(secret: Secret, account_id: int, nonce: str) -> int:
    return int.from_bytes(secret.hmac("spending mask", b"%d" % account_id, nonce.encode()), "big")


def _digest(subplan: str) -> str:
    return hashlib.sha256(subplan.encode()).hexdigest()
