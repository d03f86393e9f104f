"""Facts for registry entries that accounts, releases and balances do not state."""

from dataclasses import replace

from sqlalchemy import Connection, func, select

from service.errors import Conflict
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.descriptions.description_rows import recorded_metadata
from service.ledger.draws.partitions import sealed_family
from service.ledger.journal.chains import chained
from service.ledger.journal.entries import AccountOpened, BudgetChanged, read_text
from service.ledger.journal.journal import BEFORE_FIRST, up_to
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.spending.worst_windows import as_worst_window
from service.ledger.storage.tables import Account, Draw, Entry
from service.privacy.accounting.privacy_filter import Budget, shortfalls
from service.privacy.accounting.totals import Totals

_AT_ONCE = 500  # accounts


def largest_budget(connection: Connection, account: AccountRecord) -> Budget:
    """Return the largest budget that an account has had, which bounds the loss of all its answers together.

    A budget that was lowered after answers were seen bounds only later ones. The journal is followed from its first
    entry, because otherwise an entry that raised the budget could be missed.

    Raises:
        Altered: the journal is not as the service wrote it.
        Conflict: more is counted than any budget allowed, since releases were priced again.
    """
    met = chained(connection, account.id, BEFORE_FIRST, account.head)
    bodies = [entry.body for entry in met if entry.kind in (AccountOpened.KIND, BudgetChanged.KIND)]
    contents = [read_text(body).content for body in bodies]
    stated = [content.budget for content in contents if isinstance(content, AccountOpened | BudgetChanged)]
    caps = [account.budget, *stated]
    largest = replace(
        account.budget,
        cap=max(budget.cap for budget in caps),
        delta=max(budget.delta for budget in caps),
        declared_delta=max(budget.declared_delta for budget in caps),
    )
    present = as_worst_window(connection, replace(account, budget=largest))
    if shortfalls(largest, account.weights, Totals(), present.totals):
        raise Conflict("the account is over its budget since releases were priced again: no budget bounds its releases")
    return largest


def as_recorded(
    connection: Connection, account: AccountRecord, release: ReleaseRecord
) -> tuple[AccountRecord, ReleaseRecord]:
    """Return an account and its release with their metadata by the journal's texts, which rows only find.

    Raises:
        Altered: the journal has other descriptions than the rows find.
    """
    own = recorded_metadata(connection, account.chain, None, BEFORE_FIRST)
    about = recorded_metadata(connection, account.chain, release.id, release.head)
    return replace(account, metadata=own), replace(release, metadata=about)


def count_draws(connection: Connection, account_id: int) -> int:
    """Return the number of draws of an account and those under it which have entries in their journals.

    Raises:
        Unavailable: the row of one of these accounts is not as the service wrote it.
    """
    own = (Entry.account_id == Draw.account_id) & (Entry.seq == Draw.seq) & (Entry.release_id == Draw.release_id)
    drawn = select(Entry.account_id, Entry.seq).select_from(Draw).join(Entry, own & (Entry.kind == "drawn")).distinct()
    entries = drawn.join(Account, (Account.id == Draw.account_id) & up_to(Entry.seq, Account.head_seq))
    family = [row.id for row in sealed_family(connection, account_id)]
    number = 0
    for first in range(0, len(family), _AT_ONCE):
        some = entries.where(Draw.account_id.in_(family[first : first + _AT_ONCE]))
        number += connection.execute(select(func.count()).select_from(some.subquery())).scalar_one()
    return number
