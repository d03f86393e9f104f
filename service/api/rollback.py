"""If-Ledger-Includes: a client that keeps a head is told when the ledger has forgotten it."""

from anyio import to_thread
from fastapi import Request

from service.errors import InvalidInput
from service.ledger.database import Database
from service.ledger.journal import Kept, read_head, require_kept

HEADER = "If-Ledger-Includes"
_POINTER = f"/header/{HEADER}"


async def check_kept(request: Request) -> None:
    """Refuse a request whose account does not hold the entry that it names; without the header nothing is asked.

    Requests that write look again in their own transaction: after a failover that may be another server.

    Raises:
        InvalidInput: the header is malformed, or the address names no account.
        LedgerRolledBack: the entry is not in the account's journal.
    """
    given = request.headers.getlist(HEADER)
    if not given:
        return
    account = request.path_params.get("account")
    if account is None:
        raise InvalidInput.at(_POINTER, "expected none: the address names no account")
    if len(given) > 1:
        raise InvalidInput.at(_POINTER, "expected once")
    try:
        kept = Kept(account, read_head(given[0].strip()))
    except ValueError as error:
        raise InvalidInput.at(_POINTER, str(error)) from None
    if not request.state.principal.may_use(account):
        return  # the handler says so; what is in the journal is not this key's to ask
    await to_thread.run_sync(_look, request.app.state.database, kept)
    request.state.kept = kept


def _look(database: Database, kept: Kept) -> None:
    with database.read() as connection:
        require_kept(connection, kept)
