"""Everything the service refuses, as one tree of exceptions that carry fields.

Nothing here knows HTTP: ``service.api.problems`` maps each class to a status code. Messages say
what was expected against what was got, and never contain a count.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Fault(NamedTuple):
    """One thing wrong with an input: where it is (a JSON pointer, RFC 6901) and what is wrong."""

    pointer: str
    detail: str


class ServiceError(Exception):
    """The root: something was refused, and nothing was changed.

    ``for_operator`` is what the terminal and the log say in place of the message, where they say more: clients are not
    told where the database is.
    """

    for_operator: str | None = None


class InvalidInput(ServiceError):
    """The request says something that has no meaning; ``faults`` say where and why."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["InvalidInput"], tuple[tuple[Fault, ...]]]:
        """Return how it is made again: Python's own way would give the constructor the message."""
        return type(self), (self.faults,)

    @classmethod
    def at(cls, pointer: str, detail: str) -> "InvalidInput":
        return cls([Fault(pointer, detail)])


class Unauthenticated(ServiceError):
    """No key, or one that is unknown, expired or revoked."""


class Forbidden(ServiceError):
    """The key is valid but may not do this."""


class NotFound(ServiceError):
    """There is no such thing; ``kind`` is a noun such as ``account``."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind, self.name = kind, name


class Conflict(ServiceError):
    """The request contradicts what is already there."""


class Incomplete(ServiceError):
    """What was asked for needs metadata that nobody has given; ``missing`` names them."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"the metadata lack {', '.join(missing)}")
        self.missing = tuple(missing)


class AccountClosed(ServiceError):
    """A closed account takes no charges; None: it is one above, which whoever is told may not read."""

    def __init__(self, account: str | None) -> None:
        super().__init__("an account above this one is closed" if account is None else f"account {account!r} is closed")
        self.account = account

    def told(self, may_read: Callable[[str], bool]) -> "AccountClosed":
        """The same to somebody who may read some accounts only."""
        return self if self.account is None or may_read(self.account) else AccountClosed(None)


class Overrun(NamedTuple):
    """One cap that a charge does not fit. Figures are nats, or probabilities where ``cap`` is a delta.

    ``requested`` is None where it is infinite; ``remaining`` is rounded down, never below 0. Beside
    each is its exact text. Without an account it is one above, which whoever is told may not read: all is None.
    """

    account: str | None = None
    definition: str | None = None
    cap: str | None = None
    requested: float | None = None
    remaining: float | None = None
    requested_exact: str | None = None
    remaining_exact: str | None = None


class BudgetExceeded(ServiceError):
    """A charge does not fit these caps, of an account or of those that it is under.

    ``noise_multiplier`` searches for the smallest factor on the plan's noise scales that would have
    fitted all of them: a search, so it runs when somebody asks, after the accounts' locks are gone.
    ``entry`` is what the journal keeps of a refused release, likewise made when it is asked for.
    """

    def __init__(
        self,
        failures: Sequence[Overrun],
        noise_multiplier: Callable[[], float | None] = lambda: None,
        entry: Callable[[], object] | None = None,
    ) -> None:
        first = failures[0]
        asked = "an infinite loss" if first.requested is None else f"{first.requested!r}"
        super().__init__(
            "an account above this one has no room for it"
            if first.account is None
            else f"account {first.account!r} has {first.remaining!r} of its {first.definition} cap on {first.cap} left;"
            f" requested was {asked}"
        )
        self.failures = tuple(failures)
        self.noise_multiplier = noise_multiplier
        self.entry = entry

    def told(self, may_read: Callable[[str], bool]) -> "BudgetExceeded":
        """The same to somebody who may read some accounts only: of others, that one above has no room.

        Nor how much more noise would have fitted, which gives away how much room there is.
        """
        seen = [failure for failure in self.failures if failure.account is not None and may_read(failure.account)]
        return self if len(seen) == len(self.failures) else BudgetExceeded([*seen, Overrun()])


class AlreadyDrawn(ServiceError):
    """This mechanism, partition and repetition has been drawn; ``draw`` is the draw's id."""

    def __init__(self, draw: str, detail: str) -> None:
        super().__init__(detail)
        self.draw = draw


class Gone(ServiceError):
    """The noisy counts of this draw were removed when their retention ended; ``draw`` is its id."""

    def __init__(self, draw: str, removed_at: str) -> None:
        super().__init__(f"the noisy counts were removed at {removed_at}, when their retention had ended")
        self.draw = draw


class LedgerRolledBack(ServiceError):
    """An entry that the caller has seen is not in the account's journal: an old backup was restored."""

    def __init__(self, account: str) -> None:
        super().__init__(f"the journal of {account!r} does not contain the entry that If-Ledger-Includes names")
        self.account = account


class IdempotencyConflict(ServiceError):
    """An Idempotency-Key comes back with another request."""


class UnsupportedMediaType(ServiceError):
    """The body is not of a media type that this operation reads."""


class TooLarge(ServiceError):
    """The request exceeds a size limit."""


class TooManyRequests(ServiceError):
    """Somebody asks more often than is allowed; trying again after ``retry_after`` seconds is safe."""

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Unavailable(ServiceError):
    """The ledger cannot answer now; trying again after ``retry_after`` seconds is safe."""

    def __init__(self, detail: str, retry_after: int = 5, *, for_operator: str | None = None) -> None:
        super().__init__(detail)
        self.retry_after, self.for_operator = retry_after, for_operator


class Altered(Unavailable):
    """A row of the ledger that is not as the service wrote it.

    Attributes:
        what: of what it is the row, for whoever asked, who may not be told whose it is.
        row: it by name, for the operator.
    """

    def __init__(self, what: str, row: str, reason: str = "run verify") -> None:
        super().__init__(
            f"{what} is not as the service wrote it; nothing is done with it before an operator has looked",
            retry_after=60,
            for_operator=f"{row} is not as the service wrote it: {reason}",
        )


class StartupRefused(ServiceError):
    """The service must not start on this database: not migrated, or another installation's secret."""
