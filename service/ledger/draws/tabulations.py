"""Tabulations: many groups of one level, drawn in one transaction, each group once ever.

To the ledger, a tabulation is a draw of the level's second step for a partition of its own, the set of its groups. Each
of them takes what is below the level's choice for itself, so that no later draw or tabulation can have it again.
"""

import uuid
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert

from service.errors import ServiceError
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws import draws, places, stored_draws, tabulated_groups
from service.ledger.draws.choice_branches import SMALL, LaterDraw
from service.ledger.draws.stored_draws import DrawRecord, Turn
from service.ledger.draws.tabulation_layout import Layout, seal_layout, tabulated
from service.ledger.spending import kept_figures
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.tables import Tabulation
from service.privacy.planning.levels import Level
from service.privacy.plans import Plan


def tabulate(
    database: Database,
    request: Request,
    account_name: str,
    release_id: str,
    plan: Plan,
    level: Level,
    layout: Layout,
    noisy: NDArray[np.int64],
    refusal: ServiceError | None = None,
) -> draws.AnsweredDraw:
    """Store the noisy counts of groups of a level, once. The first draw commits a reservation.

    Args:
        layout: its groups are in the order of their counts.
        noisy: sampled before and without a lock; discarded if the tabulation is refused.
        refusal: an error to raise, unless the same request was answered before.

    Raises:
        TooLarge: more than the database holds in one value.
        NotFound: the account has no such release.
        Conflict: the release is proposed, voided or expired, or the groups are more than it declares.
        AlreadyDrawn: one of the groups has been drawn at this level, or the whole input has.
    """
    turn = Turn(f"tabulation {uuid.uuid4()}")
    sealed, sealed_layout = draws.seal(places.place_of(plan, level.step_2, turn), noisy), seal_layout(layout)
    at_once = len(noisy) <= SMALL
    taken = [(mechanism, len(groups)) for mechanism, groups in tabulated(level, layout)]
    place = replace(sealed.place, bounds=places.bounds_of(plan, taken, turn.repetition), is_tabulation=True)
    sealed = replace(sealed, taken=taken, place=place)

    def check(connection: Connection, since: Sequence[LaterDraw] | None) -> None:
        if refusal is not None:
            raise refusal
        tabulated_groups.refuse_drawn_groups(connection, release_id, level, layout.groups, since)

    def keep(connection: Connection, account: AccountRecord, later: draws.Later, at: str) -> DrawRecord:
        stored = draws.store(connection, account, release_id, sealed, later, request, at, layout, sealed_layout.digest)
        write_layout(connection, stored.id, sealed_layout.packed)
        if at_once:
            tabulated_groups.record_at_once(connection, release_id, level, layout, stored.id, len(noisy))
        kept_figures.write(connection, request.secret, [stored_draws.taken_by(stored.id, sealed_layout.digest, taken)])
        return replace(stored, layout=layout)

    drawn = draws.draw_once(database, request, account_name, release_id, sealed, check, keep)
    if not (at_once or drawn.answer.replayed):
        tabulated_groups.record(database, release_id, level, layout, drawn.record.id, failing=False)
    return drawn


def write_layout(connection: Connection, draw_id: str, packed: bytes) -> None:
    """Write a tabulation's row beside that of its draw."""
    connection.execute(insert(Tabulation).values(draw_id=draw_id, layout=packed))
