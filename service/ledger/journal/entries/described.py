"""The entry of an edit of the metadata of an account, or of a release."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from service.ledger.accounts.metadata import Metadata, check_metadata, write_metadata
from service.ledger.journal.account_state import Chain
from service.ledger.journal.entries.base import Content, Filing, Form, Rows, Shown, Stated
from service.ledger.journal.journal import Kind
from service.ledger.storage.tables import Description


@dataclass(frozen=True, slots=True)
class Described(Content):
    """The metadata as they are after an edit, of the release that the entry names, or else of the account."""

    KIND: ClassVar[Kind] = "described"

    metadata: Annotated[Metadata, Form(check_metadata, write_metadata)]

    @classmethod
    def changes_balance(cls) -> bool:
        """Whether it can change what is counted: it does not."""
        return False

    def needs_steward(self, release: str | None) -> bool:
        """Whether only a steward makes such an entry: pipelines describe their releases."""
        return release is None

    def brings_to(self) -> None:
        """Return no state."""

    def replay(self, chain: Chain, entry: Stated) -> None:
        """Describe the account; what is said of releases is not followed."""
        if entry.release is None:
            chain.metadata = self.metadata

    def rows(self, filing: Filing) -> Rows:
        """Return the row of the description."""
        row = {"account_id": filing.account_id, "seq": filing.seq, "release_id": filing.release}
        return Rows({Description: [row | {"document": write_metadata(self.metadata)}]})

    def shown(self) -> Shown:
        """Return nothing beside the kind."""
        return Shown()
