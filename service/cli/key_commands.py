"""Commands for API keys: ``python -m service keys``."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from sqlalchemy import Connection

from service.cli.output import tell
from service.errors import Conflict, NotFound
from service.installation import open_installation, settings_of_command, writing
from service.ledger.access import key_rows, keys
from service.ledger.access.key_events import keys_of, sound_keys
from service.ledger.access.key_records import KeyRecord, Role
from service.ledger.accounts import accounts
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret

app = typer.Typer(no_args_is_help=True, help="API keys.")

_PAGE = 500
_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"]
_MOST_DAYS, _MOST_HOURS = 36_500, 366 * 24

_SHORTEST = 8  # characters by which a key may be called

KeyArgument = Annotated[
    str, typer.Argument(help=f"The key's id, as `keys list` shows it, or its beginning of at least {_SHORTEST}.")
]


@app.command("create")
def create(
    role: Annotated[Role, typer.Option()],
    name: Annotated[str, typer.Option(help="The principal that acts with the key.")],
    account: Annotated[
        list[str] | None, typer.Option(help="Limit the key to this account, which need not exist yet; repeatable.")
    ] = None,
    expires_at: Annotated[
        datetime | None, typer.Option(formats=_FORMATS, help="The time at which it expires, in UTC.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=_MOST_DAYS, help="The number of days after which it expires.")
    ] = None,
) -> None:
    """Create a key, and print its id and, only this once, the key."""
    if expires_at is not None and days is not None:
        raise typer.BadParameter("expected --expires-at or --days, not both")
    now = clock.now()
    end = None if days is None else clock.later(now, timedelta(days))
    if expires_at is not None:
        end = clock.stamp(expires_at.replace(tzinfo=UTC))

    with writing(settings_of_command(), begin=True) as (database, secret):

        def work(connection: Connection) -> tuple[KeyRecord, str]:
            return keys.create_key(
                connection, secret, name=name, role=role, accounts=account or None, expires_at=end, at=now
            )

        _show(*database.write(work, is_committed=_is_committed))
        with database.read() as connection:
            unopened = accounts.unopened(connection, account or [])
    if unopened:
        typer.echo(f"note: there is no account {', '.join(unopened)} yet", err=True)


@app.command("rotate")
def rotate(
    key_id: KeyArgument,
    overlap_hours: Annotated[
        str,
        typer.Option(
            help="The hours for which the old key stays valid beside the new one: a whole number,"
            f" at most {_MOST_HOURS}."
        ),
    ] = "24",
) -> None:
    """Replace a key with a new one of the same principal, and print its id and, only this once, the new key."""
    if not re.fullmatch("[0-9]{1,5}", overlap_hours) or int(overlap_hours) > _MOST_HOURS:
        expected = f"expected a whole number of hours from 0 to {_MOST_HOURS}, got {overlap_hours}"
        raise typer.BadParameter(expected, param_hint="--overlap-hours")
    with writing(settings_of_command()) as (database, secret):
        now, overlap = clock.now(), timedelta(hours=int(overlap_hours))
        key_id = _whole_id(database, key_id)
        _show(
            *database.write(
                lambda connection: keys.rotate_key(connection, secret, key_id, overlap=overlap, at=now, by=None),
                is_committed=_is_committed,
            )
        )


@app.command("revoke")
def revoke(key_id: KeyArgument) -> None:
    """Revoke a key by its id; it is refused from then on."""
    with writing(settings_of_command()) as (database, secret):
        key_id = _whole_id(database, key_id)
        record = database.write(
            lambda connection: keys.revoke_key(connection, secret, key_id, at=clock.now(), by=None),
            is_committed=lambda *_: False,
        )
        fault = _journal_fault(database, secret)
    if not record.sealed:
        typer.echo("warning: the key's row was not as the service wrote it; run verify", err=True)
    if fault is not None:
        typer.echo(
            f"warning: the installation's journal is not sound ({fault}): running servers refuse every key, and may"
            " not learn of this revocation. Stop them, repair the journal or restore the newest sound copy, and"
            " revoke the key again",
            err=True,
        )
    typer.echo(f"revoked {key_id}")


def _whole_id(database: Database, stated: str) -> str:
    """Return the id of the key that an operator states, by the whole id or by a beginning that no other key has.

    Raises:
        NotFound: there is no such key.
        Conflict: the beginning is short, or several ids have it.
    """
    with database.read() as connection:
        found = key_rows.ids_that_begin(connection, stated)
    if stated in found:
        return stated
    if not found:
        raise NotFound("key", stated)
    if len(stated) < _SHORTEST:
        raise Conflict(f"expected a key's id, or its beginning of at least {_SHORTEST} characters, got {len(stated)}")
    if len(found) > 1:
        raise Conflict(f"expected the beginning of one id; several keys begin with {stated!r}: {', '.join(found)}")
    return found[0]


def _journal_fault(database: Database, secret: Secret) -> str | None:
    """Return what is wrong with the installation's journal, in words; None where it is sound."""
    try:
        with database.read() as connection:
            keys_of(connection, secret)
    except BrokenChain as broken:
        return str(broken)
    return None


@app.command("list")
def list_all() -> None:
    """List the keys: id, role, principal, state, accounts, creator, last use."""
    database, secret = _open()
    now = clock.now()
    for record in _all_keys(database, secret):
        state = _state(record, now) + ("" if record.accounts is None else f", for {' '.join(record.accounts)}")
        creator = f"made by {record.created_by or 'the operator'}"
        used = f"last used {record.last_used_at or 'never'}"
        tell(f"{record.id}  {record.role:8}  {record.name}  {state}, {creator}, {used}")
    database.close()


@app.command("history")
def history() -> None:
    """Print the history of keys, oldest first: time, principal and key of each change."""
    database, secret = _open()
    try:
        with database.read() as connection:
            for entry in installation_journal.read(connection, secret):
                if entry["kind"].startswith("key_"):
                    by = "the operator" if entry["actor"] is None else " ".join([entry["actor"], entry.get("key", "")])
                    what = entry["kind"].replace("_", " ")
                    typer.echo(
                        f"{entry['seq']}  {entry['time']}  {what} by {by.strip()}: {json.dumps(entry['content'])}"
                    )
    except BrokenChain as broken:
        typer.echo(f"error: the installation's journal: {broken}", err=True)
        raise typer.Exit(1) from None
    database.close()


def _state(record: KeyRecord, now: str) -> str:
    if not record.sealed:
        return "refused: its row is not as this service wrote it, or is older than seals and was not adopted"
    if record.revoked_at:
        return f"revoked {record.revoked_at}"
    if record.expires_at is None:
        return "valid"
    return f"{'expires' if record.expires_at > now else 'expired'} {record.expires_at}"


def _show(record: KeyRecord, token: str) -> None:
    typer.echo("The id of the key, and the key itself, which is shown this once:", err=True)
    typer.echo(f"{record.id}\n{token}")


def _is_committed(connection: Connection, created: tuple[KeyRecord, str]) -> bool:
    return key_rows.has_key(connection, created[0].id)


def _all_keys(database: Database, secret: Secret) -> list[KeyRecord]:
    records: list[KeyRecord] = []
    with database.read() as connection:
        known = sound_keys(connection, secret)
        while page := keys.list_keys(connection, secret, records[-1].id if records else None, _PAGE, known=known):
            records.extend(page)
    return records


def _open() -> tuple[Database, Secret]:
    return open_installation(settings_of_command())
