"""Accounts with room for everything, loads on them one after the other, and the audit of all that was done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.api.calls import Client, json_of, open_account
from tests.faults import audit
from tests.faults.load import Balance, Load, Operation, charge, mixed, partitioned, perform, released, send, within
from tests.faults.processes import Replica
from tests.waiting import until

ABOVE, UNDER = "agency", ("people", "places")
ACCOUNTS = ("people", "places", "trades", "lapses", "waves")
LAPSING = "lapses"  # with holds that expire; a balance leaves out those that are over before the journal does
WAVES, OFFSETS = "waves", (0, 1, 3)  # an account with periods
CLIENTS = 8


@dataclass
class Scenario:
    """The operations so far on the replicas of one ledger."""

    servers: Sequence[Replica]
    client: Client
    url: str  # of the database
    done: list[Operation] = field(default_factory=list)
    balances: list[Balance] = field(default_factory=list)
    releases: dict[str, str] = field(default_factory=dict)  # those of which partitions are drawn, by account

    def open(self) -> None:
        """Open the accounts."""
        budget = {"definition": "pure", "epsilon": 10**6}
        open_account(self.client, ABOVE, budget)
        for account in ACCOUNTS:
            periods = {"calendar": "index", "participation": {"offsets": OFFSETS}} if account == WAVES else None
            open_account(self.client, account, budget, parent=ABOVE if account in UNDER else None, periods=periods)
            partitions = partitioned(account, "1")
            self.done.append(perform(self.client, within(partitions, (3, 4)) if account == WAVES else partitions))
            self.releases[account] = released(self.done[-1])

    def load(self, seed: int, clients: int = CLIENTS, *, gives_up: float = 0.1) -> Load:
        """Begin to charge and draw."""
        operations = mixed(ACCOUNTS, self.releases, LAPSING, WAVES, seed)
        return Load(self.servers, operations, clients, gives_up=gives_up, reads=[ABOVE, *UNDER, "trades"])

    def end(self, load: Load, allowed: set[int | None]) -> None:
        """Stop a load once all of it is answered; only these statuses (None: no answer) may have been met."""
        load.stop()
        self.done += load.operations
        self.balances += load.balances
        failed = [line for server in self.servers for line in server.said if '"level": "error"' in line]
        assert set(load.statuses()) <= allowed | {200, 201}, (load.statuses(), failed)
        for attempt in (attempt for operation in load.operations for attempt in operation.attempts):
            assert attempt.status != 503 or int(attempt.retry_after or 0) > 0

    def check(self, again: Sequence[Operation] = ()) -> None:
        """Audit every account; some operations are asked for again, and answered the same."""
        for operation in again:
            if operation.answer is not None:
                attempt = send(self.client, operation)
                assert (attempt.status, attempt.body) == (operation.answer.status, operation.answer.body)
                assert attempt.replayed
        self._expire()
        for account in ACCOUNTS:
            audit.check(self.client, account, self.done, self.balances, offsets=OFFSETS if account == WAVES else ())
        audit.check(self.client, ABOVE, self.done, self.balances, under=UNDER)
        audit.check_tables(self.url)

    def _expire(self) -> None:
        """Wait until all that was reserved for a second is over, and let a charge find it."""
        held = f"/v1/accounts/{LAPSING}/releases?state=reserved&limit=1000"
        until(lambda: not any(map(_lapses, json_of(self.client.get(held))["items"])), "what was reserved is over")
        self.done.append(perform(self.client, charge(LAPSING, f"finds-{len(self.done)}", "0.01")))

    def interrupted(self) -> list[Operation]:
        """Those that succeeded after an attempt that failed."""
        return [operation for operation in self.done if operation.succeeded and len(operation.attempts) > 1]


def _lapses(release: dict[str, Any]) -> bool:
    """Tell whether it was reserved for a second; those whose clients gave up before settling are reserved for a day."""
    made, ends = (datetime.fromisoformat(release[moment]) for moment in ("created_at", "expires_at"))
    return ends - made < timedelta(minutes=1)
