"""The entry of an edit of an account's or a release's metadata."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from service.ledger.access.key_records import Role
from service.ledger.descriptions.metadata import Metadata, check_metadata, write_metadata
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries.base import Content, EntryView, Filing, Form, ParsedEntry, Rows
from service.ledger.journal.journal import Kind
from service.ledger.storage.tables import Description


@dataclass(frozen=True, slots=True)
class Described(Content):
    """The metadata after an edit, of the release that the entry names, or else of the account."""

    KIND: ClassVar[Kind] = "described"
    CHANGES_BALANCE: ClassVar[bool] = False

    metadata: Annotated[Metadata, Form(check_metadata, write_metadata)]

    def least_role(self, release: str | None) -> Role:
        """Return steward for the description of an account; pipelines may describe their releases."""
        return "steward" if release is None else "pipeline"

    def next_state(self) -> None:
        """Return no state."""

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Set the account's metadata; metadata of releases are not tracked."""
        if entry.release is None:
            chain.metadata = self.metadata

    def rows(self, filing: Filing) -> Rows:
        """Return the row of the description."""
        row = {"account_id": filing.account_id, "seq": filing.seq, "release_id": filing.release}
        return Rows({Description: [row | {"document": write_metadata(self.metadata)}]})

    def view(self) -> EntryView:
        """Return an empty view beyond the kind."""
        return EntryView()
