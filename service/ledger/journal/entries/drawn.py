"""The entry of a draw."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries.base import (
    WRONG,
    Content,
    EntryView,
    Filing,
    Form,
    ParsedEntry,
    Rows,
    Text,
    Whole,
    text,
    whole,
)
from service.ledger.journal.journal import Kind
from service.ledger.storage.tables import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(Content):
    """Noisy counts that were drawn from a release, by their hash; the counts are never in the journal.

    Attributes:
        draw: its id.
        groups: the number of groups of a tabulation; None: a draw of one partition, or of the whole input.
        layout_hash: the hash of a tabulation's layout; None if there is none.
        level: of a tabulation; None if there is none.
        mechanism: its name.
        noisy_hash: of the counts.
        partition: its name; empty: the whole input.
        size: the number of counts.
    """

    KIND: ClassVar[Kind] = "drawn"
    CHANGES_BALANCE: ClassVar[bool] = False

    draw: Text
    groups: Annotated[int | None, Form(whole, omitted=True)] = None
    layout_hash: Annotated[str | None, Form(text, omitted=True)] = None
    level: Annotated[str | None, Form(text, omitted=True)] = None
    mechanism: Text
    noisy_hash: Text
    partition: Text
    repetition: Whole
    size: Whole

    def __post_init__(self) -> None:
        """Refuse a draw that has only some members of a tabulation."""
        if len({value is None for value in (self.groups, self.layout_hash, self.level)}) > 1:
            raise BrokenChain(WRONG)

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline: pipelines draw."""
        return "pipeline"

    def next_state(self) -> None:
        """Return no state: an earlier entry commits a held release."""

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Require that the release is not merely held, and change nothing.

        Raises:
            BrokenChain: the release is only held.
        """
        if entry.release in chain.held:
            raise BrokenChain("the release is drawn from before it is committed")

    def rows(self, filing: Filing) -> Rows:
        """Return the draw's row, without its counts."""
        row = {
            "id": self.draw,
            "release_id": filing.release,
            "mechanism": self.mechanism,
            "partition": self.partition,
            "repetition": self.repetition,
            "account_id": filing.account_id,
            "seq": filing.seq,
            "size": self.size,
            "noisy_hash": self.noisy_hash,
            "created_at": filing.time,
        }
        return Rows({Draw: [row]})

    def view(self) -> EntryView:
        """Return a view with a page of the release, and what was drawn of it."""
        parts = [
            f"the level {self.level}" if self.level is not None else self.mechanism if self.mechanism != "/" else "",
            f"partition {self.partition}" if self.partition else "",
            f"repetition {self.repetition}" if self.repetition else "",
            f"{self.size:,} {'count' if self.size == 1 else 'counts'}",
        ]
        return EntryView(is_release=True, detail=", ".join(filter(None, parts)))
