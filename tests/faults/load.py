"""Clients that charge and draw at once, keep to the contract for retries, and remember every attempt."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import httpx2

from tests.api.calls import Answer, Client
from tests.faults.processes import Replica, until

FINAL = {200, 201, 409}  # answers after which a client asks no more
COUNTS = [10, 0, 7]
_PAUSE = 0.05  # seconds before an attempt that follows a failed one


@dataclass(frozen=True)
class Attempt:
    """One request; without a status the connection broke before the answer was there."""

    asked: float
    answered: float
    status: int | None = None
    body: bytes = b""
    replayed: bool = False
    retry_after: str | None = None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Operation:
    """What a client wants, under one Idempotency-Key, and its attempts at it.

    Attributes:
        name: the key; the names of its releases, or its partition, begin with it.
        cost: what it takes of the account's cap.
        releases: how many it registers.
        draws: how many it draws.
    """

    name: str
    account: str
    path: str
    body: dict[str, Any]
    cost: Fraction
    releases: int
    draws: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def answer(self) -> Attempt | None:
        """The final answer, if there was one."""
        return next((attempt for attempt in self.attempts if attempt.status in FINAL), None)

    @property
    def succeeded(self) -> bool:
        return self.answer is not None and self.answer.status == 201


@dataclass(frozen=True)
class Balance:
    """A balance that was read, with when."""

    account: str
    asked: float
    answered: float
    seq: int
    spent: Fraction


def charge(account: str, name: str, epsilon: str) -> Operation:
    """Register one release."""
    body = {"name": name, "plan": _geometric(epsilon, tags=["small", "round"])}
    return Operation(name, account, f"/v1/accounts/{account}/releases", body, Fraction(epsilon), 1)


def batch(account: str, name: str, epsilon: str, size: int) -> Operation:
    """Register several, all or none."""
    releases = [{"name": f"{name}/{number}", "plan": _geometric(epsilon)} for number in range(size)]
    path = f"/v1/accounts/{account}/releases/batch"
    return Operation(name, account, path, {"releases": releases}, size * Fraction(epsilon), size)


def register_and_draw(account: str, name: str, epsilon: str) -> Operation:
    """Register one mechanism and draw it."""
    body = {"name": name, "mechanism": _geometric(epsilon), "counts": COUNTS}
    return Operation(name, account, f"/v1/accounts/{account}/draws", body, Fraction(epsilon), 1, 1)


def draw(account: str, name: str, release: str) -> Operation:
    """Draw a partition of a release that is there."""
    body = {"mechanism": "m", "partition": name, "counts": COUNTS}
    return Operation(name, account, f"/v1/accounts/{account}/releases/{release}/draws", body, Fraction(0), 0, 1)


def partitioned(account: str, epsilon: str) -> Operation:
    """Register the release of which partitions are drawn."""
    name = f"partitioned-{account}"
    body = {"name": name, "plan": _geometric(epsilon, name="m")}
    return Operation(name, account, f"/v1/accounts/{account}/releases", body, Fraction(epsilon), 1)


def _geometric(epsilon: str, **fields: Any) -> dict[str, Any]:
    return {"type": "geometric", "epsilon": epsilon, **fields}


def mixed(accounts: Sequence[str], releases: dict[str, str], seed: int) -> Iterator[Operation]:
    """Operations of every kind on some accounts, without an end; ``releases`` are those to draw partitions of."""
    random_ = random.Random(seed)
    while True:
        account, name = random_.choice(accounts), f"{random_.getrandbits(64):016x}"
        match random_.choices(["charge", "batch", "both", "draw"], [4, 1, 2, 2])[0]:
            case "charge":
                yield charge(account, name, random_.choice(["0.1", "0.01", "1/3"]))
            case "batch":
                yield batch(account, name, random_.choice(["0.1", "0.02"]), random_.randint(2, 20))
            case "both":
                yield register_and_draw(account, name, "0.05")
            case _:
                yield draw(account, name, releases[account])


class Load:
    """Clients that take operations from one source until it ends or they are told to stop.

    Each finishes what it has begun: while there is no final answer it asks again with the same key, as soon as the
    replica that it asks is up. One in ten gives up at the first failure, so that its outcome stays unknown.
    """

    def __init__(
        self, replicas: Sequence[Replica], operations: Iterator[Operation], clients: int, *, gives_up: float = 0.1
    ) -> None:
        self.operations: list[Operation] = []  # those that were begun, in that order
        self.balances: list[Balance] = []
        self._source = operations
        self._gives_up = gives_up
        self._mutex, self._stopping, self._abandoned = threading.Lock(), threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(clients)
        self._running = [
            self._threads.submit(self._run, replicas[number % len(replicas)], number) for number in range(clients)
        ]

    def final(self) -> int:
        """How many operations have their final answer."""
        return sum(operation.answer is not None for operation in [*self.operations])

    def refused(self) -> int:
        """How many attempts were answered with 503."""
        return self.statuses()[503]

    def wait_for(self, count: Callable[[], int], goal: int) -> None:
        """Until so many of something have come about, or there are no more operations."""
        until(lambda: count() >= goal or self._ended(), f"{goal} of {count.__name__}")

    def _ended(self) -> bool:
        """Raises what a client failed with."""
        return all(one.done() and one.result() is None for one in self._running)

    def stop(self) -> None:
        """Begin nothing new, and wait until everything that was begun has its answer."""
        self._stopping.set()
        self.wait()

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Where a test fails, its clients need not wait for servers that it would have started again."""
        if kind is not None:
            self._stopping.set()
            self._abandoned.set()

    def wait(self) -> None:
        """Until every client has ended."""
        for one in self._running:
            one.result(300)
        self._threads.shutdown()

    def _run(self, replica: Replica, number: int) -> None:
        random_ = random.Random(number)
        with replica.client() as client:
            while not self._stopping.is_set():
                with self._mutex:
                    operation = next(self._source, None)
                    if operation is None:
                        return
                    self.operations.append(operation)
                self._finish(replica, client, operation, gives_up=random_.random() < self._gives_up)
                if random_.random() < 0.1:
                    self._look(client, operation.account)

    def _finish(self, replica: Replica, client: Client, operation: Operation, *, gives_up: bool) -> None:
        while not self._abandoned.is_set():
            if not replica.up.wait(1):
                continue
            attempt = send(client, operation)
            operation.attempts.append(attempt)
            if attempt.status in FINAL:
                return
            if gives_up or not (attempt.status is None or attempt.status == 503):
                return
            time.sleep(_PAUSE)

    def _look(self, client: Client, account: str) -> None:
        """Read a balance; where the server is away there is nothing to remember."""
        asked = time.monotonic()
        try:
            answer = client.get(f"/v1/accounts/{account}/balance")
        except httpx2.TransportError:
            return
        answered = time.monotonic()
        if answer.is_success:
            body = answer.json()
            spent = Fraction(body["spent"]["pure"]["epsilon_exact"])
            self.balances.append(Balance(account, asked, answered, body["head"]["seq"], spent))

    def statuses(self) -> Counter[int | None]:
        """Of all attempts."""
        return Counter(attempt.status for operation in [*self.operations] for attempt in [*operation.attempts])


def send(client: Client, operation: Operation) -> Attempt:
    """One attempt."""
    asked = time.monotonic()
    try:
        answer: Answer = client.post(operation.path, json=operation.body, headers={"Idempotency-Key": operation.name})
    except httpx2.TransportError:
        return Attempt(asked, time.monotonic())
    return Attempt(
        asked,
        time.monotonic(),
        answer.status_code,
        answer.content,
        answer.headers.get("Idempotent-Replay") == "true",
        answer.headers.get("Retry-After"),
    )


def perform(client: Client, operation: Operation) -> Operation:
    """An operation alone, which must succeed."""
    operation.attempts.append(send(client, operation))
    assert operation.succeeded, operation.attempts[-1]
    return operation


