"""The operations of a client, without input or output, and the values that they return."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from privacy_budget_ledger import frames
from privacy_budget_ledger.balances import Balance
from privacy_budget_ledger.budgets import Budget
from privacy_budget_ledger.errors import InvalidFrame, LedgerError
from privacy_budget_ledger.exact import Exact, exact_text
from privacy_budget_ledger.exchange import Answer, Exchange, Operation, key_of
from privacy_budget_ledger.heads import Head
from privacy_budget_ledger.plans import Mechanism, Partitions, Plan, read_plan

F = TypeVar("F")
_ZIP = "application/zip"
_PAGE = 1000  # releases that are asked for at once
_FOUND = "/v1/releases"
State = Literal["proposed", "reserved", "committed", "voided", "expired"]
"""The states of releases."""


@dataclass(frozen=True)
class Account:
    """An account; ``document`` is the whole answer."""

    name: str
    state: str
    remaining: Mapping[str, Any]
    head: Head
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Release:
    """A release; ``document`` is the whole answer.

    A dry run answers with the release that would be registered: its id is empty, and the head is the account's.
    """

    id: str
    account: str
    name: str
    state: str
    remaining: Mapping[str, Any]
    head: Head
    document: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        """Return the fields; of a dry run, what would be registered."""
        if self.is_dry_run:
            return f"<dry run, nothing is registered: {self.name!r} of {self.account!r} would be {self.state}>"
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def is_dry_run(self) -> bool:
        """True for the answer to a dry run, which registered nothing."""
        return not self.id

    @property
    def plan(self) -> Plan:
        """The plan, as it was registered."""
        return read_plan(self.document["plan"])


@dataclass(frozen=True)
class NewRelease:
    """A release to register; ``Operations.register`` explains the fields."""

    name: str
    plan: Plan
    tags: Sequence[str] = ()
    partitions: Partitions | None = None
    delta: Exact | None = None
    reserve_for: timedelta | None = None
    periods: Any = None

    def document(self) -> dict[str, Any]:
        """Return the release as JSON."""
        return _stated(
            name=self.name,
            plan=self.plan.document(),
            tags=list(self.tags) or None,
            partitions=list(self.partitions) if isinstance(self.partitions, tuple) else self.partitions,
            delta=_text(self.delta),
            reserve_for=None if self.reserve_for is None else _duration(self.reserve_for),
            periods=self.periods,
        )


@dataclass(frozen=True)
class Drawn(Generic[F]):
    """Noisy counts.

    Attributes:
        frame: the table, with ``noisy`` in the place of its counts.
        release: the release's id.
        draws: the draws' ids; there are several where partitions were drawn.
        head: the head that the last draw made.
        replayed: whether all of it was drawn by an earlier call with the same idempotency key.
    """

    frame: F = field(repr=False)
    release: str
    draws: tuple[str, ...]
    head: Head
    replayed: bool


class Operations:
    """The operations; each is carried out by a client.

    All that change the ledger take an ``idempotency_key``: at most 255 printable ASCII characters. Without one, each
    call makes its own, with which all its attempts are sent.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Operation[Any]:
        """Send any request of the service's interface, such as ``GET /v1/principal``; return the parsed answer."""
        return self._exchange.json(_whole, method.upper(), path, json, params, idempotency_key)

    def open_account(
        self,
        /,
        name: str,
        *,
        unit: str,
        neighbouring: Literal["add_remove", "replace_one"],
        budget: Budget,
        idempotency_key: str | None = None,
        **further: Any,
    ) -> Operation[Account]:
        """Open an account; ``further`` fields are those of the interface, such as parent, approvers or periods."""
        stated = {"unit": unit, "neighbouring": neighbouring, "budget": budget.document()}
        body = {"name": name, **stated, **further}
        return self._exchange.json(_account, "POST", "/v1/accounts", body, key=idempotency_key)

    def account(self, name: str) -> Operation[Account]:
        """Read an account, with what remains of its budget."""
        return self._exchange.json(_account, "GET", _path(name))

    def calibrate(
        self,
        /,
        mechanism: Literal["geometric", "discrete_gaussian", "discrete_osgt", "laplace", "gaussian", "osgt"],
        *,
        moe: Exact,
        confidence: Exact = "0.95",
        **further: Any,
    ) -> Operation[Mechanism]:
        """Return the mechanism that costs least while noise stays within a margin of error.

        ``further`` fields are those of the interface, such as cells, or the offset m of offset tails.
        """
        target = {"mechanism": mechanism, "moe": exact_text(moe), "confidence": exact_text(confidence), **further}
        return self._exchange.json(_calibrated, "POST", "/v1/calibrations/moe", target)

    def register(
        self,
        account: str,
        *,
        name: str,
        plan: Plan,
        tags: Sequence[str] = (),
        partitions: Partitions | None = None,
        delta: Exact | None = None,
        reserve_for: timedelta | None = None,
        periods: Any = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Operation[Release]:
        """Register a release: charge its plan, or refuse it with ``BudgetExceeded``.

        Args:
            account: the account's name.
            name: of the release.
            plan: what it computes.
            tags: what it reveals something about.
            partitions: those that may be drawn, or their number.
            delta: at which the cost is shown.
            reserve_for: only hold the release, for this time.
            periods: those that it reads, in an account with periods.
            dry_run: compute the answer and register nothing; ``is_dry_run`` of the result says so.
            idempotency_key: with which a repeated call gets the same answer.
        """
        new = NewRelease(name, plan, tags, partitions, delta, reserve_for, periods)
        path = _path(account, "releases")
        return self._exchange.json(_release, "POST", path, new.document(), _dry_run(dry_run), idempotency_key)

    def register_batch(
        self,
        account: str,
        releases: Sequence[NewRelease],
        *,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Operation[tuple[Release, ...]]:
        """Register several releases, all or none, in one transaction; ``register`` explains the arguments."""
        body = {"releases": [one.document() for one in releases]}
        path = _path(account, "releases", "batch")
        return self._exchange.json(_batch, "POST", path, body, _dry_run(dry_run), idempotency_key)

    def release(self, account: str, release: str) -> Operation[Release]:
        """Read a release."""
        return self._exchange.json(_release, "GET", _path(account, "releases", release))

    def releases(
        self,
        account: str,
        *,
        name: str | None = None,
        tag: str | None = None,
        state: State | None = None,
        registered_by: str | None = None,
        since: date | datetime | str | None = None,
        before: date | datetime | str | None = None,
        newest_first: bool = False,
        most: int | None = None,
    ) -> Operation[tuple[Release, ...]]:
        """Return the releases of an account that match all that is asked for, in the order of their registration.

        Args:
            account: the account's name.
            name: a part of their names, whatever the case of ASCII letters.
            tag: on themselves or on a node.
            state: in which they are.
            registered_by: the name of the principal.
            since: the moment or the day, in UTC, from which on they were registered.
            before: the moment or the day, in UTC, before which they were registered.
            newest_first: in the reverse order.
            most: how many to return at most.
        """
        asked = _searched(name, tag, state, registered_by, since, before, newest_first)
        return (yield from self._listed(_path(account, "releases"), asked, most))

    def find_releases(
        self,
        *,
        name: str | None = None,
        tag: str | None = None,
        state: State | None = None,
        registered_by: str | None = None,
        since: date | datetime | str | None = None,
        before: date | datetime | str | None = None,
        newest_first: bool = False,
        most: int | None = None,
    ) -> Operation[tuple[Release, ...]]:
        """Return the releases of all accounts that the key reaches, as ``releases`` returns those of one account.

        They are in the order in which the accounts were opened and the releases registered. With ``newest_first``, both
        are reversed: first those of the account that was opened last.
        """
        asked = _searched(name, tag, state, registered_by, since, before, newest_first)
        return (yield from self._listed(_FOUND, asked, most))

    def _listed(self, path: str, asked: dict[str, str], most: int | None) -> Operation[tuple[Release, ...]]:
        """Return the releases of a list, page by page."""
        found: list[Release] = []
        cursor: str | None = None
        while most is None or len(found) < most:
            params = asked | _stated(limit=_PAGE if most is None else min(_PAGE, most - len(found)), cursor=cursor)
            items, cursor = yield from self._exchange.json(_page, "GET", path, None, params)
            found += items
            if cursor is None:
                break
        return tuple(found)

    def balance(self, account: str, *, tag: str | None = None, delta: Exact | None = None) -> Operation[Balance]:
        """Return what an account has spent, holds and has left, as the interface answers; its text is short.

        Args:
            account: the account's name.
            tag: of which the spending is shown beside the whole.
            delta: at which epsilon is shown.
        """
        asked = _stated(tag=tag, delta=_text(delta))
        return self._exchange.json(Balance, "GET", _path(account, "balance"), None, asked)

    def receipt(self, account: str, release: str) -> Operation[Any]:
        """Return the signed receipt of a release."""
        return self._exchange.json(_whole, "GET", _path(account, "releases", release, "receipt"))

    def accuracy(self, account: str, release: str, *, confidence: Exact = "0.95") -> Operation[Any]:
        """Return the accuracy statement of a release: for each mechanism its margin of error and standard deviation.

        Args:
            account: the account's name.
            release: the release's id.
            confidence: of the margins of error.
        """
        path = _path(account, "releases", release, "accuracy")
        return self._exchange.json(_whole, "GET", path, None, {"confidence": exact_text(confidence)})

    def package(self, account: str, release: str, *, confidence: Exact = "0.95") -> Operation[bytes]:
        """Return the signed publication package of a committed release, a ZIP archive.

        Args:
            account: the account's name.
            release: the release's id.
            confidence: of the margins of error.
        """
        path = _path(account, "releases", release, "package")
        return self._exchange.file(path, {"confidence": exact_text(confidence)}, _ZIP)

    def commit(self, account: str, release: str, *, idempotency_key: str | None = None) -> Operation[Release]:
        """Commit a reserved release."""
        path = _path(account, "releases", release, "commit")
        return self._exchange.json(_release, "POST", path, key=idempotency_key)

    def void(
        self, account: str, release: str, *, reason: str, idempotency_key: str | None = None
    ) -> Operation[Release]:
        """Void a reserved release of which nothing was drawn or published."""
        path = _path(account, "releases", release, "void")
        return self._exchange.json(_release, "POST", path, {"reason": reason}, key=idempotency_key)

    def draw(
        self,
        account: str,
        frame: F,
        *,
        name: str,
        mechanism: Mechanism,
        count: str = frames.COUNT,
        tags: Sequence[str] = (),
        delta: Exact | None = None,
        granularity: Exact | None = None,
        periods: Any = None,
        idempotency_key: str | None = None,
    ) -> Operation[Drawn[F]]:
        """Register a mechanism and draw its noisy counts, in one step.

        Args:
            account: the account's name.
            frame: a table of pandas, polars or Arrow. Under the same key its rows must be in the same order.
            name: of the release.
            mechanism: the noise.
            count: the column of true counts; only this column is sent.
            tags: what the release reveals something about.
            delta: at which its cost is shown.
            granularity: the mechanism's, where it has one; the column then counts units of it.
            periods: those that the release reads, in an account with periods.
            idempotency_key: with which a repeated call gets the same answer.
        """
        params = _stated(
            name=name,
            mechanism=json.dumps(mechanism.document()),
            tags=list(tags) or None,
            delta=_text(delta),
            granularity=_text(granularity),
            periods=None if periods is None else json.dumps(periods),
        )
        return self._drawn(_path(account, "draws"), frame, count, params, key_of(idempotency_key))

    def draw_release(
        self,
        account: str,
        release: str,
        frame: F,
        *,
        mechanism: str,
        count: str = frames.COUNT,
        partition: str | None = None,
        repetition: int = 0,
        granularity: Exact | None = None,
        idempotency_key: str | None = None,
    ) -> Operation[Drawn[F]]:
        """Draw the noisy counts of a mechanism of a registered release.

        Args:
            account: the account's name.
            release: the release's id.
            frame: a table of pandas, polars or Arrow. Under the same key its rows must be in the same order.
            mechanism: its name or path in the plan.
            count: the column of true counts; only this column is sent.
            partition: the disjoint subset of the input that was counted.
            repetition: its number, where the mechanism is repeated.
            granularity: the mechanism's, where it has one; the column then counts units of it.
            idempotency_key: with which a repeated call gets the same answer.
        """
        path = _path(account, "releases", release, "draws")
        params = _selection(mechanism, partition, repetition, granularity)
        return self._drawn(path, frame, count, params, key_of(idempotency_key))

    def draw_partitions(
        self,
        account: str,
        release: str,
        frame: F,
        *,
        mechanism: str,
        by: str,
        count: str = frames.COUNT,
        repetition: int = 0,
        granularity: Exact | None = None,
        idempotency_key: str | None = None,
    ) -> Operation[Drawn[F]]:
        """Draw the noisy counts of a mechanism, each value of a column as a partition of its own.

        Each partition is a draw. If one fails, those before it are drawn: the same call with the error's idempotency
        key continues where it ended.

        Args:
            account: the account's name.
            release: the release's id.
            frame: a table of pandas, polars or Arrow. Under the same key its rows must be in the same order.
            mechanism: its name or path in the plan.
            by: a column of texts that name the partitions.
            count: the column of true counts; only this column is sent.
            repetition: its number, where the mechanism is repeated.
            granularity: the mechanism's, where it has one; the column then counts units of it.
            idempotency_key: with which a repeated call gets the same answer.
        """
        key, path = key_of(idempotency_key), _path(account, "releases", release, "draws")
        counts, places = frames.counts_of(frame, count), frames.places_of(frames.texts_of(frame, by))
        if not places:
            raise InvalidFrame("expected at least one row")
        parts, answers = [], []
        for partition, rows in places.items():
            params = _selection(mechanism, partition, repetition, granularity)
            part = counts.take(rows)
            noisy, drawn = yield from self._noisy(path, part, params, part_key(key, partition), key)
            parts.append((rows, noisy))
            answers.append(drawn)
        return Drawn(
            frames.with_noisy(frame, count, frames.joined(parts)),
            release,
            tuple(draw for one in answers for draw in one.draws),
            answers[-1].head,
            all(one.replayed for one in answers),
        )

    def _drawn(self, path: str, frame: F, count: str, params: Mapping[str, Any], key: str) -> Operation[Drawn[F]]:
        noisy, drawn = yield from self._noisy(path, frames.counts_of(frame, count), params, key, key)
        table = frames.with_noisy(frame, count, noisy)
        return Drawn(table, drawn.release, drawn.draws, drawn.head, drawn.replayed)

    def _noisy(
        self, path: str, counts: Any, params: Mapping[str, Any], key: str, of_call: str
    ) -> Operation[tuple[Any, Drawn[None]]]:
        """Send counts; return the noisy ones, and what the answer says of them."""

        def read(answer: Answer) -> tuple[Any, Drawn[None]]:
            headers = answer.headers
            draw, head = (headers["X-Draw"],), Head.read(headers["X-Ledger-Head"])
            drawn = Drawn(None, headers["X-Release"], draw, head, headers.get("Idempotent-Replay") == "true")
            return frames.noisy_of(answer.content, len(counts)), drawn

        try:
            return (yield from self._exchange.arrow(read, path, frames.stream_of(counts), params, key))
        except LedgerError as error:
            error.idempotency_key = of_call
            raise


def part_key(key: str, part: str) -> str:
    """Return the idempotency key of a part of a call, such as a partition."""
    return sha256(f"{key}\n{part}".encode()).hexdigest()


def _whole(answer: Any) -> Any:
    return answer


def _calibrated(answer: Mapping[str, Any]) -> Mechanism:
    plan = read_plan(answer["mechanism"])
    if not isinstance(plan, Mechanism):
        raise TypeError("expected a mechanism")
    return plan


def _dry_run(asked: bool) -> dict[str, str] | None:
    return {"dry_run": "true"} if asked else None


def _path(*parts: str) -> str:
    return "/".join(["/v1/accounts", *(quote(part, safe="") for part in parts)])


def _stated(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _searched(
    name: str | None,
    tag: str | None,
    state: State | None,
    registered_by: str | None,
    since: date | datetime | str | None,
    before: date | datetime | str | None,
    newest_first: bool,
) -> dict[str, Any]:
    """Return the query of a search of releases."""
    order = "desc" if newest_first else None
    named = {"name": name, "tag": tag, "state": state, "registered_by": registered_by, "order": order}
    return _stated(**named, since=_moment(since), before=_moment(before))


def _selection(mechanism: str, partition: str | None, repetition: int, granularity: Exact | None) -> dict[str, Any]:
    where = {"mechanism": mechanism, "partition": partition, "repetition": str(repetition)}
    return _stated(**where, granularity=_text(granularity))


def _text(number: Exact | None) -> str | None:
    return None if number is None else exact_text(number)


def _duration(time: timedelta) -> str:
    if time.microseconds or time <= timedelta(0):
        raise ValueError("expected a time of whole seconds above 0")
    return f"P{time.days}DT{time.seconds}S"


def _account(answer: Mapping[str, Any]) -> Account:
    return Account(answer["name"], answer["state"], answer["remaining"], _head(answer), answer)


def _release(answer: Mapping[str, Any]) -> Release:
    of_account = answer["account"], answer["name"], answer["state"], answer["remaining"]
    return Release(answer["id"] or "", *of_account, _head(answer), answer)


def _batch(answer: Mapping[str, Any]) -> tuple[Release, ...]:
    return tuple(map(_release, answer["releases"]))


def _page(answer: Mapping[str, Any]) -> tuple[list[Release], str | None]:
    return list(map(_release, answer["items"])), answer["next_cursor"]


def _moment(stated: date | datetime | str | None) -> str | None:
    if isinstance(stated, datetime) and stated.tzinfo is None:
        raise ValueError("expected a moment with a time zone, or a day")
    return stated.isoformat() if isinstance(stated, date) else stated


def _head(answer: Mapping[str, Any]) -> Head:
    return Head(answer["head"]["seq"], answer["head"]["hash"])
