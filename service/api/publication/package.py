"""The content of a publication package: what is known of a release at one head of its journal."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from service.api.http import csv_answers
from service.api.publication import accuracy, allocation, noisy_tables, registry_entry
from service.api.publication.archive import Archive
from service.api.schemas.draw_responses import outline_body
from service.errors import Altered, Conflict, Gone, Incomplete
from service.ledger.accounts.accounts import AccountRecord, read_account
from service.ledger.descriptions.registry import as_recorded
from service.ledger.draws.draw_entries import entries_of_draws
from service.ledger.draws.stored_draws import (
    DrawOutline,
    DrawRecord,
    Mechanisms,
    list_draws,
    list_outlines,
    mechanisms_by_name,
)
from service.ledger.draws.tabulation_layout import Layout
from service.ledger.installation.signing import Signer
from service.ledger.journal.entries import Drawn
from service.ledger.releases.recorded_releases import numbers_of_later, read_recorded
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.storage.database import Database
from service.ledger.storage.paging import Page
from service.ledger.storage.tables import Draw
from service.ledger.verification.packages import COUNTS, DRAWS, GROUPS, MANIFEST, PLAN, RECEIPT
from service.ledger.verification.receipts import STATEMENT, receipt_of

T = TypeVar("T")
D = TypeVar("D", DrawOutline, DrawRecord | DrawOutline)

_PAGE, _COUNTS = 500, 1 << 17  # draws and noisy counts that are read at a time

_FILES = {
    RECEIPT: "the cost of the release, its state and the journal entry that charged it, signed",
    PLAN: "the mechanisms with their parameters",
    "accuracy.json": "the margin of error of each mechanism, with the guarantee and the population",
    "accuracy.csv": "the same as a table",
    "allocation.csv": "the share of each mechanism in the loss of the release",
    "registry-entry.yaml": "the entry for the Differential Privacy Deployments Registry",
    DRAWS: "the draws, each with its journal entry",
    f"{COUNTS}.csv": "noisy counts, in the order of the true counts of each draw, or of its keys",
    f"{COUNTS}.parquet": "the same as Parquet",
    f"{GROUPS}.csv": "noisy counts of tabulations",
    f"{GROUPS}.parquet": "the same as Parquet",
    MANIFEST: "the list of the files with their SHA-256 hashes, signed",
}
_README = """\
This is the publication package of the release {name!r} in the account {account!r}.

{files}

{missing}Verify it with the public key of the installation, which you get from the agency and not from this package:

  python -m service verify-package FILE --public-key KEY
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A committed release with what is stated of it, at a head of its account.

    Attributes:
        drawn: the numbers of the journal's entries of all its draws.
    """

    owner: AccountRecord
    release: ReleaseRecord
    receipt: dict[str, Any]
    accuracy: dict[str, Any]
    entry: dict[str, Any] | None
    lacks: tuple[str, ...]
    drawn: tuple[int, ...]


def number_of_counts(connection: Connection, release_id: str) -> int:
    """Return the number of noisy counts that a release has and that are still stored."""
    query = select(func.coalesce(func.sum(Draw.size), 0)).where(Draw.release_id == release_id)
    return int(connection.execute(query.where(Draw.noisy_removed_at.is_(None))).scalar_one())


def publication_of(
    connection: Connection,
    account: str,
    release_id: str,
    cost_of: Callable[[AccountRecord, ReleaseRecord], dict[str, Any]],
    confidence: Fraction,
    at: str,
) -> Publication:
    """Return a release for its package.

    Args:
        cost_of: returns the guarantee of the release, as JSON.
        confidence: of the margins of error.

    Raises:
        NotFound: the account has no such release.
        Conflict: it is not committed.
        Altered: something is not as the service wrote it.
    """
    owner = read_account(connection, account)
    owner, release = as_recorded(connection, owner, read_recorded(connection, owner, release_id).seen(at))
    if release.state != "committed":
        raise Conflict(f"the release is {release.state}; only a committed release has a publication package")
    receipt = receipt_of(connection, owner, release_id, at)
    cost = cost_of(owner, release)
    stated = accuracy.statement_of(
        owner, release, cost, accuracy.drawn_mechanisms(connection, owner, release), confidence
    )
    drawn = tuple(numbers_of_later(connection, owner, release, [Drawn.KIND]))
    entry, lacks = None, tuple[str, ...]()
    try:
        entry = registry_entry.release_entry(owner, release, len(drawn))
    except Incomplete as incomplete:
        lacks = incomplete.missing
    listed = stated | {"mechanisms": list(stated["mechanisms"])}
    return Publication(owner, release, receipt | {"cost": cost}, listed, entry, lacks, drawn)


def packed(database: Database, signer: Signer, published: Publication) -> Iterator[bytes]:
    """Yield the package of a release as a ZIP archive.

    Raises:
        Gone: noisy counts were removed meanwhile.
        Altered: a draw is not as the service wrote it.
    """
    release, at = published.release, published.receipt["issued_at"]
    archive = Archive(at)
    yield from archive.add(RECEIPT, [_json(signer.sign(STATEMENT, published.receipt))])
    yield from archive.add(PLAN, [_json(release.document)])
    yield from archive.add("accuracy.json", [_json(published.accuracy)])
    yield from archive.add("accuracy.csv", csv_answers.written(*accuracy.table_of(published.accuracy)))
    rows = allocation.rows_of(release.plan)
    yield from archive.add("allocation.csv", csv_answers.written(allocation.COLUMNS, rows))
    if published.entry is not None:
        yield from archive.add("registry-entry.yaml", [registry_entry.as_yaml(published.entry)])
    draws = _Draws(database, published)
    yield from archive.add(DRAWS, draws.outlined())
    yield from _tables(archive, draws)
    yield from archive.add("README.txt", [_readme(published, archive.names)])
    facts = {
        "account": published.owner.name,
        "release": release.id,
        "name": release.name,
        "head": published.receipt["head"],
        "issued_at": at,
    }
    yield from archive.sign(signer, facts)


def _tables(archive: Archive, draws: "_Draws") -> Iterator[bytes]:
    """Write the noisy counts, as CSV and as Parquet."""
    counts = noisy_tables.schema_of(draws.mechanisms.values())
    for name, schema, tables in (
        (COUNTS, counts, partial(draws.counts, noisy_tables.counts_of(counts))),
        (GROUPS, noisy_tables.GROUPS, partial(draws.groups, noisy_tables.groups_of)),
    ):
        if name in draws.stored.values():
            yield from archive.add(f"{name}.csv", noisy_tables.as_csv(schema, tables()))
            yield from archive.add(f"{name}.parquet", noisy_tables.as_parquet(schema, tables()))


class _Draws:
    """The draws of a release up to the head of the package, read some at a time.

    Attributes:
        stored: the table of each draw whose noisy counts are stored, by its id; known after ``outlined``.
    """

    def __init__(self, database: Database, published: Publication) -> None:
        self._database, self._published = database, published
        self.mechanisms: Mechanisms = mechanisms_by_name(published.release.plan_text)
        self.stored: dict[str, str] = {}

    def outlined(self) -> Iterator[str]:
        """Yield a line for each draw, with its journal entry."""
        for connection, page in self._pages(self._outlines):
            entries = entries_of_draws(connection, self._published.owner.id, page)
            for draw, entry in zip(page, entries, strict=True):
                if draw.noisy_removed_at is None:
                    self.stored[draw.id] = COUNTS if draw.layout is None else GROUPS
                about = outline_body(draw)
                yield json.dumps({name: value for name, value in about.items() if name != "head"} | entry) + "\n"

    def counts(self, table: Callable[[DrawRecord], T]) -> Iterator[T]:
        """Yield the tables of the draws that are no tabulations; raise as ``_records``."""
        return (table(draw) for draw in self._records() if draw.layout is None)

    def groups(self, table: Callable[[DrawRecord, Layout], T]) -> Iterator[T]:
        """Yield the tables of the tabulations; raise as ``_records``."""
        return (table(draw, draw.layout) for draw in self._records() if draw.layout is not None)

    def _records(self) -> Iterator[DrawRecord]:
        """Yield the draws that ``outlined`` found with counts.

        Raises:
            Gone: one has none any more.
        """
        for _, page in self._pages(self._with_counts):
            for draw in page:
                if isinstance(draw, DrawRecord):
                    yield draw
                elif draw.id in self.stored:
                    raise Gone(draw.id, draw.noisy_removed_at or "")

    def _pages(self, read: Callable[[Connection, AccountRecord, int], Page[D]]) -> Iterator[tuple[Connection, list[D]]]:
        """Yield pages of the draws, which are all that the journal has; rows only find them.

        Raises:
            Altered: a draw is missing.
        """
        drawn, place, last = self._published.drawn, 0, 0
        while place < len(drawn):
            with self._database.read() as connection:
                page = read(connection, read_account(connection, self._published.owner.name), last)
                draws = [draw for draw in page if draw.head.seq <= drawn[-1]]
                numbers = tuple(draw.head.seq for draw in draws)
                if not draws or numbers != drawn[place : place + len(draws)]:
                    raise Altered("a draw of the release", f"a draw with an entry after {last} of the account")
                place, last = place + len(draws), numbers[-1]
                yield connection, draws

    def _outlines(self, connection: Connection, _: AccountRecord, after: int) -> Page[DrawOutline]:
        return list_outlines(connection, self._published.release.id, after, _PAGE, _COUNTS, self.mechanisms)

    def _with_counts(self, connection: Connection, owner: AccountRecord, after: int) -> Page[DrawRecord | DrawOutline]:
        return list_draws(connection, owner, self._published.release.id, after, _PAGE, _COUNTS, self.mechanisms)


def _readme(published: Publication, there: Collection[str]) -> str:
    missing = ""
    if published.lacks:
        missing = f"There is no registry entry: the release's metadata lack {', '.join(published.lacks)}.\n\n"
    files = "\n".join(f"  {name:<22}{text}" for name, text in _FILES.items() if name in there or name == MANIFEST)
    return _README.format(name=published.release.name, account=published.owner.name, missing=missing, files=files)


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
