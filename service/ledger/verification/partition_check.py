"""Recounts of partitions: the draws against the plans' declarations, and against the ledger's counters."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Row, select, text

from service.ledger.draws import partitions
from service.ledger.draws.partition_bounds import DeclaredNumbers
from service.ledger.journal.entry_texts import read_text
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.releases import release_rows
from service.ledger.storage.tables import Account
from service.ledger.storage.transaction import secret_of
from service.privacy.mechanisms import Mechanism
from service.privacy.partitions import Partitions
from service.privacy.plans import Plan
from service.privacy.plans.walking import mechanisms_of

_REMEMBERED = 4096
_MISCOUNTED = "the partitions that are counted are not those of the draws"


class DrawnRelease:
    """A release that is drawn from, whose plan is parsed once."""

    def __init__(self, row: Row[*tuple[Any, ...]]) -> None:
        self.row = row

    @cached_property
    def plan(self) -> Plan:
        """Return the plan."""
        return read_text(self.row.plan)

    @cached_property
    def _declaring(self) -> dict[str | None, Mechanism]:
        if '"partitions"' not in self.row.plan:
            return {}
        return {mechanism.name: mechanism for mechanism in mechanisms_of(self.plan)}

    def declaring(self, name: str) -> Mechanism | None:
        """Return a mechanism by its name; None where the plan declares no partitions at all."""
        return self._declaring.get(name)


class PartitionRecount:
    """A recount of the partitions of an account's draws, draw by draw."""

    def __init__(self, connection: Connection, account_id: int) -> None:
        self._connection, self._account = connection, account_id
        self._last: tuple[str, DrawnRelease] | None = None  # a release's draws mostly come together
        self._tabulated: Counter[tuple[str, str]] = Counter()  # groups, by release and mechanism
        self._sound = set[partitions.Place]()  # counters that were checked; draws of one mostly come together
        self._numbers = DeclaredNumbers()
        self._secret = secret_of(connection)

    def release_of(self, seq: int, release_id: str) -> DrawnRelease:
        """Return the release of a draw.

        Raises:
            BadRow: its row, read again for the plan, is not the one that the service wrote.
        """
        if self._last is None or self._last[0] != release_id:
            row = self._connection.execute(release_rows.WITH_HASH, {"release": release_id}).one()
            if row.id != release_id or not release_rows.is_sealed(self._secret, row, row.hash):
                raise BadRow(seq, release_rows.unsealed(row.seal))
            self._last = release_id, DrawnRelease(row)
        return self._last[1]

    def check_draw(self, seq: int, row: Row[*tuple[Any, ...]], release: DrawnRelease) -> None:
        """Check the partition of a draw against the release's plan.

        Raises:
            BadRow: it is not declared, or not counted.
            BrokenChain: it is one more than is declared.
        """
        if row.partition:
            mechanism = release.declaring(row.mechanism)
            declared = None if mechanism is None else mechanism.partitions
            self._check(seq, row, row.mechanism, [row.partition], declared)
            if mechanism is not None:
                self._numbers.take(row.release_id, release.plan, row.repetition, [(mechanism, 1)])

    def check_tabulation(
        self,
        seq: int,
        row: Row[*tuple[Any, ...]],
        release: DrawnRelease,
        drawn: Sequence[tuple[Mechanism, Sequence[str]]],
    ) -> None:
        """Check the groups of a tabulation, each drawn by some mechanisms, against the release's plan.

        Args:
            drawn: each mechanism with the groups that it was drawn for.

        Raises:
            BadRow, BrokenChain: as ``check_draw``.
        """
        for mechanism, groups in drawn:
            if groups:
                self._check(seq, row, mechanism.name or "", groups, mechanism.partitions)
                self._tabulated[row.release_id, mechanism.name or ""] += len(groups)
        taken = [(mechanism, len(groups)) for mechanism, groups in drawn]
        self._numbers.take(row.release_id, release.plan, row.repetition, taken)

    def _check(
        self, seq: int, row: Row[*tuple[Any, ...]], name: str, names: Sequence[str], declared: Partitions | None
    ) -> None:
        if declared is not None and declared.names is not None and not declared.names.issuperset(names):
            raise BadRow(seq, "the draw is of a partition that the plan does not declare")
        place = row.release_id, name, row.repetition
        if place in self._sound:
            return
        counter = self._connection.execute(partitions.COUNTER, partitions.counter_key(*place)).one_or_none()
        most = None if declared is None else declared.most
        if counter is None or counter.most != most:
            raise BadRow(seq, "the partitions of the mechanism are not counted as its plan declares them")
        if not partitions.is_sealed(self._secret, counter):
            raise BadRow(seq, "the count of the mechanism's partitions was not written by the service")
        if len(self._sound) >= _REMEMBERED:
            self._sound.clear()
        self._sound.add(place)

    def check_end(self, last: int) -> None:
        """Compare the counters of each mechanism, and of the account, with all draws together.

        Args:
            last: the number of the account's last entry, for faults of no single entry.

        Raises:
            BadRow: a counter differs.
        """
        tabulated = dict(self._tabulated)
        for row in self._connection.execute(_UNCOUNTED, {"account": self._account}):
            if row.repetition or row.number != -tabulated.pop((row.release_id, row.mechanism), 0):
                raise BadRow(last, _MISCOUNTED)
        query = select(Account.partitions_drawn, Account.partitions_undeclared).where(Account.id == self._account)
        stored = tuple(self._connection.execute(query).one())
        if tabulated or stored != partitions.own_total(self._connection, self._account):
            raise BadRow(last, _MISCOUNTED)


# Drawn partitions minus counted ones, where these differ; the groups of tabulations are added separately. The database
# counts them, which needs no memory here.
_UNCOUNTED = text(
    "SELECT release_id, mechanism, repetition, sum(number) AS number FROM ("
    "SELECT d.release_id, d.mechanism, d.repetition, 1 AS number FROM draws d WHERE d.account_id = :account"
    " AND d.partition <> '' AND NOT EXISTS (SELECT 1 FROM tabulations t WHERE t.draw_id = d.id)"
    " UNION ALL SELECT p.release_id, p.mechanism, p.repetition, -p.drawn FROM partitions_drawn p"
    " JOIN releases r ON r.id = p.release_id WHERE r.account_id = :account"
    ") AS counted GROUP BY release_id, mechanism, repetition HAVING sum(number) <> 0"
)
