"""Rollback detection with If-Ledger-Includes: a client sends a head that it keeps, and the service checks it."""

from anyio import to_thread
from fastapi import Request

from service.errors import InvalidInput
from service.ledger.journal.journal import ExpectedHead, read_head, require_expected_head
from service.ledger.storage.database import Database

HEADER = "If-Ledger-Includes"
_POINTER = f"/header/{HEADER}"


async def check_kept(request: Request) -> None:
    """Refuse a request whose account does not contain the entry in its header; without the header nothing is checked.

    Requests that write check again in their own transaction: after a failover another server may handle it.

    Raises:
        InvalidInput: the header is malformed, or the address names no account.
        LedgerRolledBack: the entry is not in the account's journal.
    """
    headers = request.headers.getlist(HEADER)
    if not headers:
        return
    account = request.path_params.get("account")
    if account is None:
        raise InvalidInput.at(_POINTER, "expected no such header: the address names no account")
    if len(headers) > 1:
        raise InvalidInput.at(_POINTER, "expected the header once")
    try:
        reference = ExpectedHead(account, read_head(headers[0].strip()))
    except ValueError as error:
        raise InvalidInput.at(_POINTER, str(error)) from None
    if not request.state.principal.may_use(account):
        return  # the handler refuses it; this key may not read the journal
    await to_thread.run_sync(_check_journal, request.app.state.database, reference)
    request.state.kept = reference


def _check_journal(database: Database, reference: ExpectedHead) -> None:
    with database.read() as connection:
        require_expected_head(connection, reference)
