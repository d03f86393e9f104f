"""Draws as they are stored, for reading them again without drawing again.

A draw whose noisy counts were removed is read as an outline.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, case, func, literal, select

from service.errors import AlreadyDrawn, Altered, Conflict, Gone, NotFound
from service.ledger.accounts.accounts import AccountRecord, read_account
from service.ledger.draws import count_codec, draw_rows
from service.ledger.draws.choice_branches import WHOLE, LaterDraw
from service.ledger.draws.partitions import PartitionsPerMechanism
from service.ledger.draws.retention import is_removal
from service.ledger.draws.tabulation_layout import Layout, digest_of, inflated, read_layout
from service.ledger.journal.journal import Head, has_entry
from service.ledger.journal.linked_heads import contains
from service.ledger.spending.kept_figures import KeptFigures, is_kept, read_kept
from service.ledger.storage.idempotency import Answer
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.tables import Account, Draw, Entry, KnownCost, Tabulation
from service.ledger.storage.transaction import secret_of
from service.privacy.mechanisms import Mechanism
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of


@dataclass(frozen=True, slots=True)
class Turn:
    """The choice of a draw within a mechanism: the partition of the input, and the turn of its ``repeat`` nodes."""

    partition: str = WHOLE
    repetition: int = 0


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """A stored draw; ``head`` is its journal entry, and ``mechanism`` gives the noise's distribution."""

    id: str
    account_id: int
    release_id: str
    mechanism: Mechanism
    turn: Turn
    noisy: NDArray[np.int64] = field(compare=False)  # each draw has its own id
    head: Head
    created_at: str
    layout: Layout | None = None  # of a tabulation
    keys: tuple[str, ...] | None = None  # of the counts that a threshold let through, in their order


@dataclass(frozen=True, slots=True)
class DrawOutline:
    """A stored draw without its noisy counts, which may be millions or removed; ``size`` is their number."""

    id: str
    release_id: str
    mechanism: Mechanism
    turn: Turn
    size: int
    head: Head
    created_at: str
    layout: Layout | None
    noisy_removed_at: str | None


Mechanisms = Mapping[str | None, Mechanism]
"""A release's mechanisms by name. Reading them takes long for a long plan, so it is done outside transactions."""


def mechanisms_by_name(plan_text: str) -> Mechanisms:
    """Read a release's mechanisms, once for all of its draws."""
    return {mechanism.name: mechanism for mechanism in mechanisms_of(read_plan(json.loads(plan_text)))}


def read_draw(connection: Connection, account: AccountRecord, draw_id: str, mechanisms: Mechanisms) -> DrawRecord:
    """Return a draw of an account.

    Raises:
        NotFound: the account has none with this id.
        Gone: its noisy counts are no longer stored.
        Altered: its row is not as the service wrote it, or the journal lacks its entry.
    """
    row = connection.execute(_DRAWS.where(Draw.account_id == account.id, Draw.id == draw_id)).one_or_none()
    if row is None:
        raise NotFound("draw", draw_id)
    if row.noisy_removed_at is not None:
        raise Gone(draw_id, row.noisy_removed_at)
    record = _record(connection, row, mechanisms)
    _require_recorded(connection, account, [record])
    return record


def _require_recorded(connection: Connection, account: AccountRecord, draws: Sequence[DrawRecord]) -> None:
    """Refuse to give out noisy counts of draws that are not in the account's journal.

    Whoever owns the database can keep the row of a draw that was not committed, and show it for a moment.

    Raises:
        Altered: the journal lacks the entry of one.
    """
    if not contains(connection, account.chain, [draw.head for draw in draws]):
        raise draw_rows.altered(draws[0].id)


def release_and_size(connection: Connection, account_id: int, draw_id: str) -> tuple[str, int]:
    """Return the release of an account's draw, and its number of noisy counts.

    Raises:
        NotFound: the account has none with this id.
    """
    query = select(Draw.release_id, Draw.size).where(Draw.account_id == account_id, Draw.id == draw_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound("draw", draw_id)
    return row.release_id, row.size


def drawn_among(connection: Connection, release_ids: Sequence[str]) -> frozenset[str]:
    """Return those of some releases of which counts were drawn."""
    query = select(Draw.release_id).where(Draw.release_id.in_(release_ids)).distinct()
    return frozenset(connection.execute(query).scalars())


def read_layouts(connection: Connection, draw_ids: Sequence[str], *, at_once: bool) -> Iterator[tuple[str, Layout]]:
    """Yield tabulations with their layouts.

    Args:
        at_once: whether all rows are in memory together, and not one after the other, which takes longer.

    Raises:
        Altered: a row is not as the service wrote it.
    """
    if not draw_ids:
        return
    query = _joined(_OUTLINE).where(Draw.id.in_(draw_ids))
    with connection.execute(query if at_once else query.execution_options(yield_per=1)) as rows:
        for row in rows:
            layout = _checked(connection, row)
            if layout is None:
                raise draw_rows.altered(row.id)
            yield row.id, layout


def taken_by(draw_id: str, layout_hash: str, taken: PartitionsPerMechanism) -> KeptFigures:
    """Return the numbers of partitions that a tabulation took of each mechanism, as stored beside its layout.

    The layout also gives them, but it may be megabytes, and so may the plan, which gives the mechanisms.
    """
    numbers = [(mechanism.name or "", number) for mechanism, number in taken if number]
    return KeptFigures(_TAKEN_BY + draw_id, layout_hash, json.dumps(numbers))


def known_taken(connection: Connection, draw_id: str, layout_hash: str) -> list[tuple[str, int]] | None:
    """Return the numbers of partitions that were stored for a tabulation with ``taken_by``; None if there are none."""
    subject = _TAKEN_BY + draw_id
    cost = read_kept(connection, secret_of(connection), layout_hash, [subject]).get(subject)
    return None if cost is None else [(mechanism, number) for mechanism, number in json.loads(cost)]


def taken_after(connection: Connection, release_id: str, seq: int) -> Counter[tuple[str, int]]:
    """Return for how many partitions each mechanism and repetition of a release was drawn after a journal entry.

    Neither layouts nor plans are read.

    Args:
        seq: the number of the entry; its own draw is not counted.

    Returns:
        Numbers by mechanism and repetition.

    Raises:
        Altered: the row of a draw, or the numbers of a tabulation, are not as the service wrote them.
    """
    later = Counter[tuple[str, int]]()
    query = _TAKEN.where(Draw.release_id == release_id, Draw.seq > seq).execution_options(yield_per=_AT_ONCE)
    with connection.execute(query) as rows:
        for row in rows:
            for mechanism, number in _taken(connection, row):
                later[mechanism, row.repetition] += number
    return later


def draws_since(connection: Connection, account_id: int, seq: int) -> list[LaterDraw]:
    """Return the draws that an account's journal has after an entry, of all its releases.

    Raises:
        Altered: as ``taken_after``.
    """
    rows = connection.execute(_TAKEN.where(Draw.account_id == account_id, Draw.seq > seq)).all()
    return [
        LaterDraw(
            row.id,
            row.release_id,
            row.mechanism,
            row.partition,
            row.repetition,
            row.subject is not None,
            _taken(connection, row),
        )
        for row in rows
    ]


def _taken(connection: Connection, row: Row[*tuple[Any, ...]]) -> list[tuple[str, int]]:
    """Return the number of partitions that a draw took of each mechanism, after checking its row.

    Raises:
        Altered: the row, or the numbers of a tabulation, are not as the service wrote them.
    """
    secret = secret_of(connection)
    kept = row.subject is None or is_kept(secret, KeptFigures(row.subject, row.state, row.cost), row.known_seal)
    sealed = draw_rows.is_sealed(secret, row, row.hash, row.state)  # the state is the layout's hash
    if not (kept and sealed and 1 <= row.seq <= row.head_seq):
        raise Altered("the draw", f"the row of draw {row.id!r}, or that of known_costs of this tabulation,")
    if row.subject is not None:
        return [(mechanism, number) for mechanism, number in json.loads(row.cost)]
    return [] if row.partition == WHOLE else [(row.mechanism, 1)]


def list_draws(
    connection: Connection,
    account: AccountRecord,
    release_id: str,
    after: int,
    limit: int,
    counts: int,
    mechanisms: Mechanisms,
    before_reading: BeforeReading | None = None,
) -> Page[DrawRecord | DrawOutline]:
    """Return a page of a release's draws in order; it ends early once it holds ``counts`` noisy counts.

    Draws whose noisy counts were removed are outlines.

    Args:
        after: the number of the entry that the page follows; 0 for the first page.
        limit: draws at most.

    Raises:
        Altered: a row is not as the service wrote it, or the journal lacks its entry.
    """
    query = _DRAWS.where(Draw.release_id == release_id, Draw.seq > after).order_by(Draw.seq)
    rows = rows_of(connection, query, _SIZE, limit, counts, before_reading)
    page = page_of(
        rows, lambda row: (_record if row.noisy_removed_at is None else _outline)(connection, row, mechanisms)
    )
    _require_recorded(connection, account, [draw for draw in page if isinstance(draw, DrawRecord)])
    return page


def list_outlines(
    connection: Connection,
    release_id: str,
    after: int,
    limit: int,
    counts: int,
    mechanisms: Mechanisms,
    before_reading: BeforeReading | None = None,
) -> Page[DrawOutline]:
    """Return a page of a release's draws without noisy counts, in order; only draws with a layout use ``counts``.

    Args:
        after: the number of the entry that the page follows; 0 for the first page.
        limit: draws at most.
    """
    query = _joined(_OUTLINE).where(Draw.release_id == release_id, Draw.seq > after).order_by(Draw.seq)
    rows = rows_of(connection, query, _SIZE_OF_OUTLINE, limit, counts, before_reading)
    return page_of(rows, lambda row: _outline(connection, row, mechanisms))


def is_committed(connection: Connection, record: DrawRecord) -> bool:
    """Return whether an earlier attempt at this draw is in the ledger."""
    return has_entry(connection, record.account_id, record.head)


def read_answered(connection: Connection, account: str, answer: Answer, mechanism: Mechanism) -> DrawRecord:
    """Return the draw of a request that was answered before; it names the mechanism, so the plan is not read.

    Args:
        account: that the request was to, by name.

    Raises:
        AlreadyDrawn: its noisy counts are no longer kept.
        Conflict: the draw, or its entry in the journal, is gone.
        Unavailable: the account's row is older than, or does not follow from, a known head.
    """
    found = read_account(connection, account)  # in this transaction, as the next one may be shown another journal
    row = connection.execute(_DRAWS.where(Draw.id == answer.draw_id)).one_or_none()
    if row is None:
        raise _gone()
    if row.noisy_removed_at is not None:
        raise AlreadyDrawn(row.id, "this request was answered before, and the noisy counts are no longer kept")
    record = _record(connection, row, {row.mechanism: mechanism})
    if not contains(connection, found.chain, [record.head]):
        raise _gone()
    return record


def _gone() -> Conflict:
    return Conflict(
        "the draw of the stored answer to this Idempotency-Key, or its entry in the journal, is gone: the ledger was"
        " changed outside the service, and an operator must verify it"
    )


_AT_ONCE = 1000
_OUTLINE = select(*draw_rows.FIXED, Draw.noisy_removed_at, Draw.seal, Entry.hash, Tabulation.layout, Account.head_seq)


def _joined(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return (
        query.join(Entry, (Entry.account_id == Draw.account_id) & (Entry.seq == Draw.seq))
        .join(Account, Account.id == Draw.account_id)
        .outerjoin(Tabulation, Tabulation.draw_id == Draw.id)
    )


_DRAWS = _joined(_OUTLINE.add_columns(Draw.noisy))
_TAKEN_BY = "tabulation "
_TAKEN = (
    select(*draw_rows.FIXED, Draw.seal, Entry.hash, Account.head_seq)
    .add_columns(KnownCost.subject, KnownCost.state, KnownCost.cost, KnownCost.seal.label("known_seal"))
    .join(Entry, (Entry.account_id == Draw.account_id) & (Entry.seq == Draw.seq))
    .join(Account, Account.id == Draw.account_id)
    .outerjoin(KnownCost, KnownCost.subject == literal(_TAKEN_BY) + Draw.id)
)
_OF_LAYOUT = func.coalesce(func.length(Tabulation.layout), 0)
_SIZE_OF_OUTLINE = case((Tabulation.layout.is_(None), 0), else_=Draw.size + _OF_LAYOUT)
_SIZE = case((Draw.noisy_removed_at.is_(None), Draw.size + _OF_LAYOUT), else_=_SIZE_OF_OUTLINE)


def _record(connection: Connection, row: Row[*tuple[Any, ...]], mechanisms: Mechanisms) -> DrawRecord:
    layout = _checked(connection, row)
    try:
        noisy, keys = count_codec.unpack(row.noisy, row.size), count_codec.unpack_keys(row.noisy, row.size)
    except (MemoryError, ValueError):
        raise draw_rows.altered(row.id) from None
    if count_codec.digest(noisy, keys) != row.noisy_hash:
        raise draw_rows.altered(row.id)
    return DrawRecord(
        id=row.id,
        account_id=row.account_id,
        release_id=row.release_id,
        mechanism=mechanisms[row.mechanism],
        turn=Turn(row.partition, row.repetition),
        noisy=noisy,
        head=Head(row.seq, row.hash),
        created_at=row.created_at,
        layout=layout,
        keys=keys,
    )


def _outline(connection: Connection, row: Row[*tuple[Any, ...]], mechanisms: Mechanisms) -> DrawOutline:
    layout = _checked(connection, row)
    if row.noisy_removed_at is not None and not is_removal(row.noisy_removed_at, row.created_at):
        raise draw_rows.altered(row.id)
    return DrawOutline(
        id=row.id,
        release_id=row.release_id,
        mechanism=mechanisms[row.mechanism],
        turn=Turn(row.partition, row.repetition),
        size=row.size,
        head=Head(row.seq, row.hash),
        created_at=row.created_at,
        layout=layout,
        noisy_removed_at=row.noisy_removed_at,
    )


def _checked(connection: Connection, row: Row[*tuple[Any, ...]]) -> Layout | None:
    """Require that the service wrote a row of draws, and return its layout if it is of a tabulation.

    Raises:
        Altered: it did not, or the row is of an entry beyond the account's head.
    """
    try:
        written = None if row.layout is None else inflated(row.layout)
        layout_hash = None if written is None else digest_of(written)
        sealed = draw_rows.is_sealed(secret_of(connection), row, row.hash, layout_hash)
        if sealed and 1 <= row.seq <= row.head_seq:
            return None if written is None else read_layout(written)
    except ValueError:
        pass
    raise draw_rows.altered(row.id)
