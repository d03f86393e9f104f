"""The check that an account's windows, in their own rows and in its row, follow from the journal."""

from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection, Row

from service.ledger.accounts import budgets
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.ordered_rows import BadRow, stream
from service.ledger.spending import window_rows, window_state
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.windows import in_quanta, maximum


def check_windows(connection: Connection, chain: AccountState, account: Row[Any], cursors: ExitStack) -> None:
    """Check the windows of an account with periods.

    Raises:
        BadRow: a row is missing, is one too many, or does not follow from the entries.
    """
    journalled, last = chain.windows, chain.head.seq
    if journalled is None:
        if account.period_state is not None:
            raise BadRow(last, "the account has windows and no periods")
    else:
        stored = window_state.read_state(account.period_state)
        known = _known(stored) == _known(journalled)
        if not known or not _is_maximum(chain, stored, journalled):
            raise BadRow(last, "the account's period_state does not follow from the journal")
        if account.totals != budgets.write_totals(stored.bound):
            raise BadRow(last, "the account's totals do not follow from the journal")
        if not window_rows.is_sum(secret_of(connection), account.id, stored.sum, journalled.present):
            raise BadRow(last, "the account's sum of its windows does not follow from the journal")
    _check_rows(connection, account.id, journalled or WindowState(), last, cursors)


def _known(windows: WindowState) -> tuple[object, ...]:
    """Return the facts about windows in an account's row other than their maximum and the sum of their rows."""
    return windows.common, windows.number, windows.several, windows.leads


def _is_maximum(chain: AccountState, stored: WindowState, journalled: WindowState) -> bool:
    """Return whether the maximum in an account's row follows from the windows of its journal.

    The maximum is taken over the windows, figure by figure; with ``several`` it is the sum of the largest windows. It
    must be that of the journal's windows. It may be above theirs only without ``several``, in an account of more
    windows than are read at a time, where voids and expiries do not lower it. Its figures may be in quanta, rounded up,
    although the charges that needed quanta were given back.
    """
    if stored.most == journalled.most:
        return True
    if stored.most.quanta and stored.most == in_quanta(chain.weights, journalled.most):
        return True
    most = maximum(chain.weights, [stored.most, journalled.most])
    too_many = stored.several is None and not stored.are_few(chain.weights)
    return too_many and most == stored.most


def _check_rows(
    connection: Connection, account_id: int, journalled: WindowState, last: int, cursors: ExitStack
) -> None:
    secret, missing = secret_of(connection), set(journalled.present)
    for row in stream(connection, window_rows.rows_of(account_id), cursors):
        window = journalled.present.get(row.place)
        if window is None or window_rows.row_of(account_id, row.place, window) != {
            name: value for name, value in row._mapping.items() if name != "seal"
        }:
            raise BadRow(last, "a row of window_totals does not follow from the journal")
        if not window_rows.is_sealed(secret, row):
            raise BadRow(last, "a row of window_totals was not written by the service")
        missing.discard(row.place)
    if missing:
        raise BadRow(last, "a window that releases touch has no row in window_totals")
