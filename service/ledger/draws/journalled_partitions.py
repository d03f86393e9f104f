"""The partitions that a release was drawn for, counted from the journal's own texts."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws.stored_draws import known_taken
from service.ledger.draws.tabulation_layout import Layout, digest_of, inflated, read_layout, tabulated
from service.ledger.journal.entries import Drawn
from service.ledger.journal.journal import Head
from service.ledger.releases.recorded_releases import later_entries
from service.ledger.releases.release_rows import altered
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.storage.database import Database
from service.ledger.storage.drawn_partitions import Place
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.tables import Tabulation
from service.ledger.storage.transaction import DATABASE
from service.privacy.planning.levels import find_level


def greatest_counters(connection: Connection, release: ReleaseRecord, drawn: Iterable[Drawn]) -> dict[str, int]:
    """Return for how many partitions each mechanism was drawn, in the repetition with the most of them.

    Args:
        drawn: the contents of all entries of the release's draws, as the chain meets them.

    Returns:
        Numbers by mechanism; mechanisms that were drawn for no partition are left out.

    Raises:
        Altered: the layout of a tabulation is not the one that its entry states.
    """
    return greatest_numbers(_numbers_of(connection, release, drawn))


def journalled_counts(
    connection: Connection, account: AccountRecord, release: ReleaseRecord, turns: Collection[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return for how many partitions turns of a release were drawn, by all texts of the account's journal.

    The process keeps the numbers of committed entries. It reads entries only where another process added some. An
    attacker can put a counter back to an earlier state, with its seal, but cannot hide an entry.

    Args:
        account: with a head that this process knows, or has locked.
        turns: mechanisms and repetitions.

    Raises:
        Altered: the journal, or the layout of a tabulation, is not as the service wrote it.
    """
    database: Database = connection.info[DATABASE]
    reached, counted = database.drawn.get(account.name, release.id, turns)
    if reached is not None and reached.seq >= account.head.seq:  # a reader may see an earlier moment
        return counted
    after = release.head if reached is None else Head(*reached)
    entries = later_entries(connection, account, release, [Drawn.KIND], after)
    numbers = _numbers_of(connection, release, (one.content for one in entries if isinstance(one.content, Drawn)))
    head = KnownHead(account.name, account.head.seq, account.head.hash)
    if database.newest.up_to(account.name, head.seq) == head:  # under a lock it may be of an uncommitted entry
        database.drawn.add(account.name, release.id, reached, Place(head.seq, head.hash), numbers)
    return {turn: counted[turn] + numbers[turn] for turn in turns}


def _numbers_of(connection: Connection, release: ReleaseRecord, drawn: Iterable[Drawn]) -> Counter[tuple[str, int]]:
    """Return for how many partitions each mechanism and repetition was drawn; raise as ``greatest_counters``."""
    numbers = Counter[tuple[str, int]]()
    for one in drawn:
        if one.layout_hash is not None:
            for mechanism, number in _of_tabulation(connection, release, one, one.layout_hash):
                numbers[mechanism, one.repetition] += number
        elif one.partition:
            numbers[one.mechanism, one.repetition] += 1
    return numbers


def greatest_numbers(drawn: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return the greatest number of each mechanism, given those of its repetitions."""
    greatest: dict[str, int] = {}
    for (mechanism, _), number in drawn.items():
        greatest[mechanism] = max(number, greatest.get(mechanism, 0))
    return greatest


def _of_tabulation(
    connection: Connection, release: ReleaseRecord, drawn: Drawn, layout_hash: str
) -> list[tuple[str, int]]:
    """Return the number of partitions that a tabulation took of each mechanism.

    It is stored beside the layout, but not for tabulations that were imported or are older than these figures.
    """
    known = known_taken(connection, drawn.draw, layout_hash)
    if known is not None:
        return known
    level = find_level(release.plan, drawn.level or "")
    if level is None:
        raise altered(release.id, "a draw is of a level that its plan does not have")
    layout = _layout(connection, release, drawn.draw, layout_hash)
    return [(mechanism.name or "", len(groups)) for mechanism, groups in tabulated(level, layout) if groups]


def _layout(connection: Connection, release: ReleaseRecord, draw_id: str, layout_hash: str) -> Layout:
    packed = connection.execute(select(Tabulation.layout).where(Tabulation.draw_id == draw_id)).scalar_one_or_none()
    try:
        written = inflated(packed or b"")
        if digest_of(written) == layout_hash:
            return read_layout(written)
    except ValueError:
        pass
    raise altered(release.id, "the layout of a tabulation is not the one that its entry states")
