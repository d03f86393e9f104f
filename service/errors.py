"""All refusals of the service, as one tree of exceptions that carry fields.

This module knows nothing of HTTP: ``service.api.http.problems`` maps each class to a status code. Messages state what
was expected and what was received, and never contain a count.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from service.rounding import STATED, down, up


class Fault(NamedTuple):
    """One fault of an input: its place (a JSON pointer, RFC 6901) and what is accepted there."""

    pointer: str
    detail: str


class ServiceError(Exception):
    """The root of the tree: a request was refused, and nothing was changed.

    ``for_operator`` replaces the message on the terminal and in the log, where it says more: clients must not learn
    where the database is.
    """

    for_operator: str | None = None

    def __reduce__(self) -> tuple[Callable[..., "ServiceError"], tuple[Any, ...]]:
        """Return how pickle makes the error again; by default it passes the message to the constructor."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[ServiceError], message: tuple[Any, ...], members: dict[str, Any]) -> ServiceError:
    error = kind.__new__(kind)
    error.args = message
    error.__dict__.update(members)
    return error


class InvalidInput(ServiceError):
    """An invalid request; ``faults`` list places and reasons."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults))
        self.faults = tuple(faults)

    @classmethod
    def at(cls, pointer: str, detail: str) -> "InvalidInput":
        return cls([Fault(pointer, detail)])


_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


def read_all(read: Callable[[_Item], _Read], items: Iterable[_Item]) -> list[_Read]:
    """Return what a function reads from each item.

    Raises:
        InvalidInput: it refuses some of them; the error has the faults of all.
    """
    done, faults = list[_Read](), list[Fault]()
    for item in items:
        try:
            done.append(read(item))
        except InvalidInput as refused:
            faults += refused.faults
    if faults:
        raise InvalidInput(faults)
    return done


class Unauthenticated(ServiceError):
    """A missing, unknown, expired or revoked key."""


class Forbidden(ServiceError):
    """A valid key without permission for the operation."""


class NotFound(ServiceError):
    """A resource that does not exist; ``kind`` is a noun such as ``account``."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind, self.name = kind, name


class Conflict(ServiceError):
    """A request that conflicts with the present state."""


class Incomplete(ServiceError):
    """Metadata that the operation needs are missing; ``missing`` lists them."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"the metadata lack {', '.join(missing)}")
        self.missing = tuple(missing)


class AccountClosed(ServiceError):
    """A closed account takes no charges; None: an account above, which the caller may not read."""

    def __init__(self, account: str | None) -> None:
        super().__init__("an account above this one is closed" if account is None else f"account {account!r} is closed")
        self.account = account

    def redacted(self, may_read: Callable[[str], bool]) -> "AccountClosed":
        """Return the error for a caller who may read only some accounts."""
        return self if self.account is None or may_read(self.account) else AccountClosed(None)


class Overrun(NamedTuple):
    """One cap that a charge exceeds. Figures are exact, in nats, or probabilities where ``cap`` is a delta.

    ``requested`` is None where it is infinite; ``remaining`` is never below 0. ``stated`` is ``remaining`` as a request
    stated it, where it is a new cap. ``tag`` and ``window`` say which part of the account the cap is on, where it is
    not on the whole account. An overrun without an account is of one above, which the caller may not read: all its
    figures are None.
    """

    account: str | None = None
    definition: str | None = None
    cap: str | None = None
    requested: Fraction | None = None
    remaining: Fraction | None = None
    stated: str | None = None
    tag: str | None = None
    window: str | None = None

    @property
    def part(self) -> str:
        """Return the part of the account that the cap is on, in words; empty for the whole account."""
        of_tag = "" if self.tag is None else f" for tag {self.tag!r}"
        return of_tag if self.window is None else f"{of_tag} in window {self.window!r}"


BELOW_SPENT = "The new budget is below what is spent"
"""The title of the refusal of a cap."""


class BudgetExceeded(ServiceError):
    """A charge exceeds these caps, of an account or of the accounts above it.

    ``noise_multiplier`` searches for the smallest factor on the plan's noise scales with which the plan would fit all
    caps. The search runs on request, after the accounts' locks are released. ``entry`` makes the journal's content of a
    refused release, also on request. ``pointer`` is the place of the charge in a request that does not register a
    release. ``subject`` is what was to be charged: a release or an allotment. ``of_change``: nothing is charged, but a
    change of caps is refused, each of which would be below what is spent and held (``requested``); ``remaining`` is the
    new cap then.
    """

    def __init__(
        self,
        failures: Sequence[Overrun],
        noise_multiplier: Callable[[], float | None] = lambda: None,
        entry: Callable[[], object] | None = None,
        pointer: str | None = None,
        *,
        subject: str = "release",
        of_change: bool = False,
    ) -> None:
        first = failures[0]
        requested = "an infinite loss" if first.requested is None else up(first.requested, STATED)
        if first.account is None:
            detail = f"an account above this one lacks room for the {subject}"
        elif of_change:
            detail = (
                f"the new {first.definition} cap of account {first.account!r} on {first.cap}{first.part} would be"
                f" {first.stated}, below what is spent and held: {requested}"
            )
        else:
            detail = (
                f"account {first.account!r} has {down(first.remaining, STATED)} left of its {first.definition} cap on"
                f" {first.cap}{first.part}; the {subject} needs {requested}"
            )
        super().__init__(detail)
        self.failures = tuple(failures)
        self.noise_multiplier = noise_multiplier
        self.entry = entry
        self.pointer = pointer
        self.subject = subject
        self.of_change = of_change

    @property
    def title(self) -> str:
        """Return what does not fit, in a few words."""
        if self.of_change:
            return BELOW_SPENT
        return f"The {self.subject} exceeds the budget"

    def redacted(self, may_read: Callable[[str], bool]) -> "BudgetExceeded":
        """Return the error for a caller who may read only some accounts: others are only said to have no room.

        The fitting noise is left out too, since it would reveal how much room there is.
        """
        seen = [failure for failure in self.failures if failure.account is not None and may_read(failure.account)]
        if len(seen) == len(self.failures):
            return self
        return BudgetExceeded([*seen, Overrun()], pointer=self.pointer, subject=self.subject, of_change=self.of_change)


class AlreadyDrawn(ServiceError):
    """The mechanism, partition and repetition has been drawn already; ``draw`` is the draw's id."""

    def __init__(self, draw: str, detail: str) -> None:
        super().__init__(detail)
        self.draw = draw


class Gone(ServiceError):
    """The noisy counts of the draw were removed when their retention ended; ``draw`` is its id."""

    def __init__(self, draw: str, removed_at: str) -> None:
        super().__init__(f"the noisy counts were removed at {removed_at}, when their retention had ended")
        self.draw = draw


class LedgerRolledBack(ServiceError):
    """An entry that the caller has seen is missing from the account's journal: an old backup was restored.

    ``head``: of a caller that knows only the number of an entry, the number of the journal's last one.
    """

    def __init__(self, account: str, head: int | None = None) -> None:
        named = "If-Ledger-Includes names" if head is None else f"the request goes on after: its last one is {head}"
        super().__init__(f"the journal of {account!r} does not contain the entry that {named}")
        self.account = account


class IdempotencyConflict(ServiceError):
    """An Idempotency-Key that was used with another request."""


class NotAcceptable(ServiceError):
    """A request that accepts none of the media types of its answer."""


class UnsupportedMediaType(ServiceError):
    """A body of a media type that the operation does not accept."""


class TooLarge(ServiceError):
    """The request exceeds a size limit."""


class TooManyRequests(ServiceError):
    """The caller exceeds a rate limit; repeating the request after ``retry_after`` seconds is safe."""

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Unavailable(ServiceError):
    """The ledger cannot answer now; repeating the request after ``retry_after`` seconds is safe."""

    def __init__(self, detail: str, retry_after: int = 5, *, for_operator: str | None = None) -> None:
        super().__init__(detail)
        self.retry_after, self.for_operator = retry_after, for_operator


class Altered(Unavailable):
    """A row of the ledger that differs from what the service wrote."""

    def __init__(self, what: str, row: str, reason: str = "run verify") -> None:
        """Make the error.

        Args:
            what: the kind of the row, for clients, which may not learn whose row it is.
            row: the row by name, for the operator.
            reason: what the operator should do or know.
        """
        super().__init__(
            f"{what} is not as the service wrote it; an operator must verify the ledger before it is used",
            retry_after=60,
            for_operator=f"{row} is not as the service wrote it: {reason}",
        )


class OtherSchema(Unavailable):
    """A refusal: the database has another schema than the migrations make; ``fault`` says in words which."""

    def __init__(self, fault: str) -> None:
        """Make the error."""
        super().__init__("the database's tables are not as the service made them", retry_after=60, for_operator=fault)
        self.fault = fault


class StartupRefused(ServiceError):
    """A start that must not go on: the database is not migrated, or belongs to another installation's secret."""
