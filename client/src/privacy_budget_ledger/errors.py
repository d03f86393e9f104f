"""Errors: one class for each problem that the service answers with, and those that arise in this package.

No message contains a count, and no error refers to the request that had the counts.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

PROBLEMS: dict[str, type["Problem"]] = {}
"""The class of each problem, by its code."""


class LedgerError(Exception):
    """An operation that failed.

    Attributes:
        idempotency_key: the key of the operation, where it had one; the same call with this key continues it.
    """

    idempotency_key: str | None = None


class ConnectionFailed(LedgerError):
    """No answer came, after all attempts. The service may have done what was asked: repeat it with the same key."""


class UnexpectedAnswer(LedgerError):
    """The answer is neither a result nor a problem of the service, as from a proxy."""


class InvalidFrame(LedgerError, ValueError):
    """A table cannot be drawn; nothing was sent."""


class UnreadableHead(LedgerError):
    """A file of kept heads is damaged. Compare the ledger with other evidence before you remove the file."""


class HeadNotKept(LedgerError):
    """The service has done what was asked, and the head of its answer could not be kept on disk.

    Mend the disk and repeat the call with the same key: it gets the same answer, and its head is kept.
    """


class Fault(NamedTuple):
    """A fault of an invalid request: its place, a JSON pointer, and a text of what is expected there and what came."""

    pointer: str
    detail: str


class Problem(LedgerError):
    """A problem that the service answered with.

    Attributes:
        status: of HTTP.
        code: the last part of the problem's type.
        detail: the service's sentence about it.
        members: all members of the problem.
        retry_after: seconds after which another attempt makes sense; None where the service named none.
    """

    def __init_subclass__(cls, code: str) -> None:
        """Enter the class of a code in the table."""
        PROBLEMS[code] = cls

    def __init__(self, status: int, members: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status, self.members, self.retry_after = status, members, retry_after
        self.code = str(members.get("type", "")).rpartition("/")[2]
        self.detail = str(members.get("detail", ""))
        super().__init__(f"{members.get('title', self.code)}: {self.detail}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how it is copied, and sent from one process to another."""
        return (
            type(self),
            (self.status, dict(self.members), self.retry_after),
            {"idempotency_key": self.idempotency_key},
        )


class InvalidRequest(Problem, code="validation"):
    """The request is invalid; ``errors`` says where and what is accepted there."""

    @property
    def errors(self) -> list[Fault]:
        """The faults of the request."""
        return [Fault(fault["pointer"], fault["detail"]) for fault in self.members.get("errors", ())]

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *(f"{place or 'the body'}: {detail}" for place, detail in self.errors)])


class BudgetExceeded(Problem, code="budget_exceeded"):
    """The release does not fit; nothing was charged."""

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Every cap that the release exceeds: account, cap, requested and remaining."""
        return list(self.members.get("failures", ()))

    @property
    def noise_multiplier_that_fits(self) -> float | None:
        """The factor on every noise scale with which it would fit."""
        return self.members.get("noise_multiplier_that_fits")


class AlreadyDrawn(Problem, code="already_drawn"):
    """The counts are drawn already; ``draw`` is the id of the stored draw, where the service names it."""

    @property
    def draw(self) -> str | None:
        """The id of the stored draw."""
        return self.members.get("draw")

    def __str__(self) -> str:
        account = re.match("/v1/accounts/[^/]+/", str(self.members.get("instance", "")))
        if account is None or self.draw is None:
            return super().__str__()
        return f"{super().__str__()}; the noisy counts are at GET {account[0]}draws/{self.draw}"


class Incomplete(Problem, code="incomplete"):
    """Metadata are missing; ``missing`` lists their names."""

    @property
    def missing(self) -> list[str]:
        """The names of the missing metadata."""
        return list(self.members.get("missing", ()))


class LedgerRolledBack(Problem, code="ledger_rolled_back"):
    """The ledger does not contain the head that was kept: most likely an old backup was restored. Stop publishing."""


class Unauthenticated(Problem, code="unauthenticated"):
    """The key is unknown, expired or revoked."""


class Forbidden(Problem, code="forbidden"):
    """The key lacks the role or the account."""


class NotFound(Problem, code="not_found"):
    """The address, or a name or id in it, is unknown."""


class MethodNotAllowed(Problem, code="method_not_allowed"):
    """The address has no such method."""


class NotAcceptable(Problem, code="not_acceptable"):
    """No media type of the answer is accepted."""


class Gone(Problem, code="gone"):
    """The noisy counts are no longer kept."""


class AccountClosed(Problem, code="account_closed"):
    """The account is closed."""


class Conflict(Problem, code="conflict"):
    """The request conflicts with the present state."""


class TooLarge(Problem, code="too_large"):
    """The request is too large."""


class UnsupportedMediaType(Problem, code="unsupported_media_type"):
    """The body has another media type."""


class IdempotencyConflict(Problem, code="idempotency_conflict"):
    """The idempotency key belongs to another request."""


class BadRequest(Problem, code="bad_request"):
    """The request breaks the rules of HTTP."""


class TooSlow(Problem, code="too_slow"):
    """The request arrived too slowly."""


class TooManyRequests(Problem, code="too_many_requests"):
    """A limit on the rate of requests was reached, in all attempts."""


class Unavailable(Problem, code="unavailable"):
    """The ledger is unavailable, in all attempts."""


class InternalError(Problem, code="internal"):
    """The service failed."""


def problem_of(status: int, members: Mapping[str, Any], retry_after: float | None = None) -> Problem:
    """Return the error of a problem; one that this version of the package does not know is a plain ``Problem``."""
    code = str(members.get("type", "")).rpartition("/")[2]
    return PROBLEMS.get(code, Problem)(status, members, retry_after)
