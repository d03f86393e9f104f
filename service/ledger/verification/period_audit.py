"""The audit of periods along lines of accounts, for readers of exports: from openings and registrations alone."""

from service.ledger.accounts import account_periods
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import AccountOpened, Registration
from service.privacy.periods import Periods, nests_in


class PeriodAudit:
    """The periods of the accounts and of the releases of an export, as far as it was read."""

    def __init__(self) -> None:
        self._accounts: dict[str, AccountOpened] = {}
        self._releases: dict[str, str] = {}  # of accounts with periods

    def open(self, account: str, opening: AccountOpened) -> None:
        """Take the opening of an account, after those of the accounts above it.

        Raises:
            BrokenChain: its calendar does not nest in that of an account above.
        """
        self._accounts[account] = opening
        above = opening.parent
        while above is not None and opening.periods is not None:
            other = self._accounts[above]
            if other.periods is not None and not nests_in(opening.periods.calendar, other.periods.calendar):
                raise BrokenChain("the account cannot be under its parent")
            above = other.parent

    def check_release(self, account: Periods | None, release: str, content: Registration) -> None:
        """Require that an account is charged for the periods that a release of an account under it reads.

        Args:
            account: the periods of the charged account.

        Raises:
            BrokenChain: it is charged for others.
        """
        if content.origin is None:
            if content.periods is not None:
                self._releases[release] = content.periods
            return
        if account is None:
            return
        origin = self._accounts.get(content.origin.account)
        if origin is None:
            raise BrokenChain("the release was not registered where the entry states")
        below = None if origin.periods is None else account_periods.write(origin.periods)
        if content.periods != account_periods.read_by_another(account, below, self._releases.get(release)):
            raise BrokenChain("the release's periods are not those that it reads")
