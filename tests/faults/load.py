"""Clients that charge and draw at once, keep to the contract for retries, and remember every attempt."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import httpx2

from tests.api.calls import Answer, Client
from tests.faults.processes import Replica
from tests.waiting import until

FINAL = {200, 201, 409}  # answers after which a client asks no more
AGAIN = {None, 502, 503, 504}  # after which it asks the same once more: no answer, or that none was to be had
COUNTS = [10, 0, 7]
SETTLED = ":settled"  # how the name ends of what commits or voids a hold
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
    """A request of a client under one Idempotency-Key, and its attempts at it.

    Attributes:
        name: the key; the names of its releases, or its partition, begin with it.
        cost: what it takes of the cap; below 0 where it gives something back.
        releases: how many it registers.
        settles: how many held releases it commits or voids.
        draws: how many it draws.
        periods: the first and the last period that its releases read, in an account with periods.
        then: what the client does with the release that it got.
    """

    name: str
    account: str
    path: str
    body: dict[str, Any] | None
    cost: Fraction = Fraction(0)
    releases: int = 0
    settles: int = 0
    draws: int = 0
    periods: tuple[int, int] | None = None
    then: "Callable[[str], Operation] | None" = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def answer(self) -> Attempt | None:
        """The final answer, if there was one."""
        return next((attempt for attempt in self.attempts if attempt.status in FINAL), None)

    @property
    def succeeded(self) -> bool:
        return self.answer is not None and self.answer.status in {200, 201}


@dataclass(frozen=True)
class Balance:
    """A balance that was read, with when."""

    account: str
    asked: float
    answered: float
    seq: int
    total: Fraction


def charge(account: str, name: str, epsilon: str) -> Operation:
    """Register one release."""
    body = {"name": name, "plan": _geometric(epsilon, tags=["small", "round"])}
    return Operation(name, account, f"/v1/accounts/{account}/releases", body, Fraction(epsilon), releases=1)


def batch(account: str, name: str, epsilon: str, size: int) -> Operation:
    """Register several, all or none."""
    releases = [{"name": f"{name}/{number}", "plan": _geometric(epsilon)} for number in range(size)]
    path = f"/v1/accounts/{account}/releases/batch"
    return Operation(name, account, path, {"releases": releases}, size * Fraction(epsilon), releases=size)


def register_and_draw(account: str, name: str, epsilon: str) -> Operation:
    """Register one mechanism and draw it."""
    body = {"name": name, "mechanism": _geometric(epsilon), "counts": COUNTS}
    return Operation(name, account, f"/v1/accounts/{account}/draws", body, Fraction(epsilon), releases=1, draws=1)


def partitioned(account: str, epsilon: str) -> Operation:
    """Register the release of which partitions are drawn."""
    name = f"partitioned-{account}"
    body = {"name": name, "plan": _geometric(epsilon, name="m")}
    return Operation(name, account, f"/v1/accounts/{account}/releases", body, Fraction(epsilon), releases=1)


def draw(account: str, name: str, release: str) -> Operation:
    """Draw a partition of a release that is committed."""
    body = {"mechanism": "m", "partition": name, "counts": COUNTS}
    return Operation(name, account, f"/v1/accounts/{account}/releases/{release}/draws", body, draws=1)


def lapse(account: str, name: str, epsilon: str) -> Operation:
    """Reserve a release for a second."""
    body = {"name": name, "plan": _geometric(epsilon), "reserve_for": "PT1S"}
    return Operation(name, account, f"/v1/accounts/{account}/releases", body, Fraction(epsilon), releases=1)


def hold(account: str, name: str, epsilon: str, end: str) -> Operation:
    """Reserve a release, and then ``commit``, ``void`` or ``draw`` it."""
    body = {"name": name, "plan": _geometric(epsilon, name="m"), "reserve_for": "P1D"}
    path, cost = f"/v1/accounts/{account}/releases", Fraction(epsilon)

    def then(release: str) -> Operation:
        if end == "draw":  # which commits
            return replace(draw(account, name + SETTLED, release), settles=1)
        given_back, reason = (-cost, {"reason": "not needed"}) if end == "void" else (Fraction(0), None)
        return Operation(name + SETTLED, account, f"{path}/{release}/{end}", reason, given_back, settles=1)

    return Operation(name, account, path, body, cost, releases=1, then=then)


def within(operation: Operation, periods: tuple[int, int]) -> Operation:
    """Return the same operation with releases that read these periods."""
    first, last = periods
    stated, body, then = {"periods": {"from": first, "to": last}}, operation.body or {}, operation.then
    if "releases" in body:
        body = {"releases": [release | stated for release in body["releases"]]}
    elif operation.releases:
        body = body | stated
    following = None if then is None else lambda release: replace(then(release), periods=periods)
    return replace(operation, body=body, periods=periods, then=following)


def _geometric(epsilon: str, **fields: Any) -> dict[str, Any]:
    return {"type": "geometric", "epsilon": epsilon, **fields}


def mixed(
    accounts: Sequence[str], releases: dict[str, str], lapsing: str, with_periods: str, seed: int
) -> Iterator[Operation]:
    """Operations of every kind on some accounts, without an end; ``releases`` are those to draw partitions of.

    In the account ``lapsing`` there are also holds that expire. The account ``with_periods`` has periods.
    """
    random_ = random.Random(seed)
    for operation in _without_periods(accounts, releases, lapsing, random_):
        if operation.account == with_periods:
            first = random_.randint(1, 6)
            yield within(operation, (first, first + random_.randint(0, 3)))
        else:
            yield operation


def _without_periods(
    accounts: Sequence[str], releases: dict[str, str], lapsing: str, random_: random.Random
) -> Iterator[Operation]:
    while True:
        account, name = random_.choice(accounts), f"{random_.getrandbits(64):016x}"
        match random_.choices(["charge", "batch", "both", "draw", "hold", "lapse"], [4, 1, 2, 2, 2, 1])[0]:
            case "lapse":
                yield lapse(lapsing, name, random_.choice(["0.1", "0.03"]))
            case "charge":
                yield charge(account, name, random_.choice(["0.1", "0.01", "1/3"]))
            case "batch":
                yield batch(account, name, random_.choice(["0.1", "0.02"]), random_.randint(2, 20))
            case "both":
                yield register_and_draw(account, name, "0.05")
            case "hold":
                yield hold(account, name, random_.choice(["0.1", "0.03"]), random_.choice(["commit", "void", "draw"]))
            case _:
                yield draw(account, name, releases[account])


class Load:
    """Clients that take operations from one source until it ends or they are told to stop.

    Each finishes what it has begun: while there is no final answer it asks again with the same key, as soon as the
    replica that it asks is up. One in ten gives up at the first failure, so that its outcome stays unknown. Now and
    then they read the balance of one of the accounts ``reads``.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        operations: Iterator[Operation],
        clients: int,
        *,
        gives_up: float = 0.1,
        reads: Sequence[str],
    ) -> None:
        self.operations: list[Operation] = []  # those that were begun, in that order
        self.balances: list[Balance] = []
        self._source = operations
        self._gives_up, self._reads = gives_up, reads
        self._mutex, self._stopping, self._abandoned = threading.Lock(), threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(clients)
        self._running = [
            self._threads.submit(self._run, replicas[number % len(replicas)], number) for number in range(clients)
        ]

    def final(self) -> int:
        """Count the operations that have their final answer."""
        return sum(operation.answer is not None for operation in [*self.operations])

    def refused(self) -> int:
        """Count the attempts that were answered with 503."""
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
        """End the load: if a test fails, its clients need not wait for servers that it would have started again."""
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
                if operation.then is not None and operation.succeeded:
                    following = operation.then(released(operation))
                    self.operations.append(following)
                    self._finish(replica, client, following, gives_up=random_.random() < self._gives_up)
                if random_.random() < 0.1:
                    self._look(client, random_.choice(self._reads))

    def _finish(self, replica: Replica, client: Client, operation: Operation, *, gives_up: bool) -> None:
        while not self._abandoned.is_set():
            if not replica.up.wait(1):
                continue
            attempt = send(client, operation)
            operation.attempts.append(attempt)
            if attempt.status in FINAL:
                return
            if gives_up or attempt.status not in AGAIN:
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
            self.balances.append(Balance(account, asked, answered, body["head"]["seq"], counted(body)))

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


def released(operation: Operation) -> str:
    """The id of the release that an operation registered."""
    assert operation.answer is not None
    return str(operation.answer.json()["id"])


def counted(balance: Any) -> Fraction:
    """Return what counts against the cap: committed and held amounts."""
    return sum((Fraction(balance[part]["pure"]["epsilon_exact"]) for part in ("spent", "reserved")), Fraction(0))


def perform(client: Client, operation: Operation) -> Operation:
    """An operation alone, which must succeed."""
    operation.attempts.append(send(client, operation))
    assert operation.succeeded, operation.attempts[-1]
    return operation
