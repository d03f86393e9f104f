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
    """The root: something was refused, and nothing was changed."""


class InvalidInput(ServiceError):
    """The request says something that has no meaning; ``faults`` say where and why."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults))
        self.faults = tuple(faults)

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


class AccountClosed(ServiceError):
    """A closed account takes no charges."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {account!r} is closed")
        self.account = account


class BudgetExceeded(ServiceError):
    """A charge does not fit a cap. Figures are nats, or probabilities where ``cap`` is a delta.

    ``requested`` is None where it is infinite; ``remaining`` is rounded down, never below 0.
    ``noise_multiplier`` searches for the smallest factor on the plan's noise scales that would have
    fitted: a search, so it runs when somebody asks, after the account's lock is gone.
    """

    def __init__(
        self,
        account: str,
        definition: str,
        cap: str,
        requested: float | None,
        remaining: float,
        noise_multiplier: Callable[[], float | None] = lambda: None,
    ) -> None:
        asked = "an infinite loss" if requested is None else f"{requested:.17g}"
        super().__init__(
            f"account {account!r} has {remaining:.17g} of its {definition} cap on {cap} left; requested was {asked}"
        )
        self.account, self.definition, self.cap = account, definition, cap
        self.requested, self.remaining = requested, remaining
        self.noise_multiplier = noise_multiplier


class AlreadyDrawn(ServiceError):
    """This mechanism, partition and repetition has been drawn; ``draw`` is the draw's id."""

    def __init__(self, draw: str, detail: str) -> None:
        super().__init__(detail)
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


class Unavailable(ServiceError):
    """The ledger cannot answer now; trying again after ``retry_after`` seconds is safe."""

    def __init__(self, detail: str, retry_after: int = 5) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class StartupRefused(ServiceError):
    """The service must not start on this database: not migrated, or another installation's secret."""
