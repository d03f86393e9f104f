"""The entry of a release that did not fit a budget."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries.base import EntryView, Form, OfAccount, ParsedEntry, Text, TextOrNone, text
from service.ledger.journal.journal import Kind


@dataclass(frozen=True, slots=True)
class Refused(OfAccount):
    """A refused release, with the first cap that it did not fit.

    Attributes:
        account: the account of the cap. None: one above, which readers of this journal may not know; then the cap is
            left out too.
        cap: its name in the budget.
        definition: of the budget.
        name: of the release.
        plan_digest: SHA-256 of the plan's canonical JSON.
        remaining: of the cap, exactly.
        requested: of the cap, exactly; None where it is infinite.
        tag: of the cap, where it is one on a tag.
        window: the name of the window that the cap is of; None: the account has none, or it is not known.
    """

    KIND: ClassVar[Kind] = "refused"
    CHANGES_BALANCE: ClassVar[bool] = False

    account: TextOrNone
    cap: TextOrNone
    definition: TextOrNone
    name: Text
    plan_digest: Text
    remaining: TextOrNone
    requested: TextOrNone
    tag: Annotated[str | None, Form(text, omitted=True)] = None
    window: Annotated[str | None, Form(text, omitted=True)] = None

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline: pipelines ask for releases."""
        return "pipeline"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Change nothing."""

    def view(self) -> EntryView:
        """Return the name of the refused release, and the account and the window that it did not fit."""
        where = "" if self.window is None else f" in window {self.window}"
        return EntryView(remark=f"{self.name}, which did not fit {self.account or 'an account above'}{where}")
