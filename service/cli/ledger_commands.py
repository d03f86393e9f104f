"""Commands that verify, recompute, export, copy and import a ledger."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import make_url

from service.cli.output import plain, tell
from service.errors import Conflict, StartupRefused, Unavailable
from service.installation import (
    high_water_file,
    open_installation,
    open_to_verify,
    require_ledger,
    settings_of_command,
    writing,
)
from service.ledger.access.key_lives import lives_of
from service.ledger.accounts import accounts
from service.ledger.accounts.lines import MAX_DEPTH
from service.ledger.installation.high_water import HighWaterFile, Mark
from service.ledger.installation.mark_check import check_clock
from service.ledger.installation.missing_entries import last_entries, missing_entries
from service.ledger.installation.signing import BadSignature, signer_of
from service.ledger.journal.canonical_json import load_once
from service.ledger.journal.entry_texts import PriceKey, price_of
from service.ledger.journal.journal import Head, read_head, write_head
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.schema import schema_faults
from service.ledger.storage.secret import load_secret
from service.ledger.verification import exports
from service.ledger.verification.backup import back_up, file_faults
from service.ledger.verification.export_reader import Reader
from service.ledger.verification.imports import rebuild
from service.ledger.verification.receipts import check_receipt
from service.ledger.verification.recompute import RepricedRelease, recompute as price_again
from service.ledger.verification.verify import verify as verify_account
from service.ledger.verification.verify_installation import verify_installation
from service.rounding import down, up

_BAD, _OVER = 1, 3  # exit codes
_PAGE = 500
_SQLITE = b"SQLite format 3\0"  # the start of each file of SQLite

AccountOption = Annotated[list[str] | None, typer.Option("--account", help="Only this account; repeatable.")]
KeyOption = Annotated[str | None, typer.Option(help="The public key of the installation that signed it.")]
FileArgument = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]


def verify(
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="An export; without it, the ledger."),
    ] = None,
    account: AccountOption = None,
    head: Annotated[str | None, typer.Option(help="A head of the one --account that was kept: seq:hash.")] = None,
    public_key: KeyOption = None,
) -> None:
    """Verify the ledger, or an export in FILE without any database; exit with 1 where something is wrong."""
    if file is not None:
        _verify_file(file, public_key)
        return
    if head is not None and len(account or []) != 1:
        raise typer.BadParameter("expected one --account with --head")
    kept_heads = [] if head is None else [_head(head)]
    settings = settings_of_command()
    database, secret = open_to_verify(settings)
    mark, mark_fault = _mark(high_water_file(settings, secret))
    bad = mark_fault is not None
    if mark_fault is not None:
        tell(f"the high-water mark: {mark_fault}")
    # One moment of the database: somebody who writes it could show another ledger to each of two transactions.
    with database.read() as connection:
        entries = last_entries(connection)
        if not account:
            if mark is not None:
                tell(f"the high-water mark: {mark.entries} entries in {len(mark.heads)} journals, {mark.written_at}")
            unlike = schema_faults(connection) + file_faults(connection)
            faults = list(verify_installation(connection, secret))
            if mark is not None:
                faults += map(str, missing_entries(connection, mark.heads, entries))
            bad = bad or bool(unlike or faults)
            for one in unlike:
                tell(f"the database: {one}")
            for one in faults or ["all valid"]:
                tell(f"the installation: {one}")
        lives = lives_of(connection)
        for name in account or sorted((one[1] for one in entries), key=str):
            heads = kept_heads if mark is None else [*kept_heads, *mark.entries_of(name)]
            verdict = verify_account(connection, name, heads, lives, one_of_all=not account)
            bad = bad or not verdict.valid
            said = f"{verdict.entries} entries, all valid" if verdict.valid else verdict.first_bad
            tell(f"{plain(name)}: {said}")
    database.close()
    if not (account or entries):
        typer.echo("the ledger has no accounts")
    if bad:
        raise typer.Exit(_BAD)


def _mark(file: HighWaterFile) -> tuple[Mark | None, str | None]:
    """Read the high-water mark; None where there is none. The second value is its fault, if it has one."""
    try:
        mark = file.read()
        if mark is not None:
            check_clock(mark)
    except StartupRefused as refused:
        return None, str(refused)
    return mark, None


def _verify_file(file: Path, public_key: str | None) -> None:
    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) == _SQLITE:
            raise Conflict(
                f"expected an export, got an SQLite database in {file}: `verify` without FILE verifies the ledger of"
                " SERVICE_DATA_DIR or SERVICE_DATABASE_URL; to verify a copy, let SERVICE_DATABASE_URL be"
                f" sqlite:///{file.resolve()}"
            )
        opened.seek(0)
        reader = Reader(opened, public_key)
        for _ in reader.entries():
            pass
    for name, head in reader.heads.items():
        tell(f"{name}: {head.seq} entries, all valid, head {write_head(head)}")
    if public_key is None:
        typer.echo(f"signed with the public key {reader.public_key}; compare it with the one that you keep")


def verify_receipt(
    file: FileArgument, public_key: Annotated[str, typer.Option(help="The public key of the installation.")]
) -> None:
    """Verify a receipt without any database: its signature, its journal entry, and that they agree."""
    try:
        receipt = load_once(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise Conflict(f"expected a receipt as JSON in {file}, with each name once in an object") from None
    with naming_file(file):
        check_receipt(receipt, public_key)
    release, entry = receipt["release"], receipt["entry"]
    typer.echo(
        f"valid: {release['name']!r} in {receipt['account']!r}, {release['state']} when the receipt was issued,"
        f" {receipt['issued_at']}; charged {entry['time']} by entry {entry['seq']}:{receipt['hash']}"
    )


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Name the file of a statement that is not as an installation signed it.

    Raises:
        BadSignature: the refusal, which begins with the name.
    """
    try:
        yield
    except BadSignature as refused:
        raise BadSignature(f"{file}: {refused}") from None


def recompute(
    account: AccountOption = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the new prices into journal and totals.")] = False,
) -> None:
    """Price every release again with the present accountant; exit with 3 where an account is over its budget."""
    over, differ = False, 0
    with writing(settings_of_command()) as (database, _):
        for name in account or _names(database):
            repriced = price_again(database, name, apply=apply)
            over, differ = over or bool(repriced.over or repriced.over_caps), differ + len(repriced.prices)
            for line in _described(name, repriced):
                typer.echo(line)
        over = _charge_allotments_again(database) or over if apply else over
    done = "priced again" if apply else "priced otherwise; nothing was changed"
    typer.echo(f"{differ} {'release' if differ == 1 else 'releases'} {done}")
    if over:
        raise typer.Exit(_OVER)


def _charge_allotments_again(database: Database) -> bool:
    """Charge what accounts have allotted until nothing differs; return whether one is over its budget.

    An account charges above it what it is itself charged for its allotments, so this takes as many rounds as accounts
    are allotted in a line.
    """
    over = False
    for _ in range(MAX_DEPTH):
        differs = False
        with database.read() as connection:
            names = accounts.allotting_names(connection)
        for name in names:
            repriced = price_again(database, name, apply=True)
            if repriced.allotments:
                differs, over = True, over or bool(repriced.over or repriced.over_caps)
                for line in _described(name, repriced):
                    typer.echo(line)
        if not differs:
            break
    return over


def _described(name: str, repriced: RepricedRelease) -> Iterator[str]:
    for release, old, new in repriced.prices:
        yield f"{name}: release {release}: {', '.join(_changes(old, new))}"
    for tagged in repriced.under_caps:
        what = "earlier releases" if tagged.release is None else f"release {tagged.release}"
        yield f"{name}: {what}, under the cap on {tagged.tag!r}: {', '.join(_changes(tagged.old, tagged.new))}"
    for allotment in repriced.allotments:
        yield f"{name}: allotment to {allotment.child}: {', '.join(_changes(allotment.old, allotment.new))}"
    over = [("its budget", gap) for gap in repriced.over]
    for what, gap in [*over, *((f"its cap on {tag!r}", gap) for tag, gap in repriced.over_caps)]:
        charged = "an infinite loss" if gap.requested is None else up(gap.requested)
        yield f"{name}: over {what}: {charged} of {gap.cap} is charged, {down(gap.remaining)} allowed"


def _changes(old: PriceKey, new: PriceKey) -> Iterator[str]:
    before, after = price_of(old), price_of(new)
    for figure in ("epsilon", "rho", "delta", "linear"):
        if before[figure] != after[figure]:
            yield f"{figure} {before[figure] or 'infinite'} -> {after[figure] or 'infinite'}"
    if before["quanta"] != after["quanta"]:
        yield "Rényi curve"


def export(
    account: AccountOption = None,
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="A file; without it, standard output.")] = None,
) -> None:
    """Export the ledger, or the families of some accounts, as JSON Lines."""
    database, secret = open_installation(settings_of_command())
    with database.read() as connection:
        exported = exports.members(connection, account or None)
    lines = exports.export(database, signer_of(secret), exported, clock.now())
    if output is None:
        for line in lines:
            typer.echo(line, nl=False)
    else:
        write_whole((line.encode() for line in lines), output)
    database.close()


def write_whole(parts: Iterable[bytes], path: Path) -> None:
    """Write the whole file or nothing, for this user alone; an earlier file stays until the new one is whole.

    Raises:
        Unavailable: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def backup(file: Annotated[Path, typer.Argument(dir_okay=False, help="A new file.")]) -> None:
    """Copy an embedded ledger to FILE while it is in use, and print the accounts' heads at that moment.

    A head is called not certain where its row has not the installation's seal, or that could not be checked.
    """
    settings = settings_of_command()
    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() != "sqlite":
        raise Conflict("expected an embedded database; PostgreSQL is backed up by pg_dump or its base backups")
    require_ledger(url)
    try:
        secret = load_secret(settings.resolved_secret_file, make=False)
    except StartupRefused as refused:  # the copy does not need it
        secret = None
        tell(f"seals are not checked: {refused}")
    # Opened without a migration, since a backup is made before an upgrade.
    for name, head, doubt in back_up(Path(str(url.database)), file, secret):
        doubted = "" if doubt is None else f"not certain, as {doubt}: "
        tell(f"{plain(name)}: {doubted}{head.seq} entries, head {write_head(head)}")


def import_export(file: FileArgument, public_key: KeyOption = None) -> None:
    """Rebuild a ledger from an export, into an installation without accounts.

    An export of this installation's own secret is accepted as it is; an export of another one needs its --public-key.
    """
    # The imported ledger may be older than the high-water mark: the next start refuses it until it is acknowledged.
    with writing(settings_of_command(), begin=True, require_mark=False) as (database, secret):
        heads = rebuild(database, lambda: file.open("rb"), public_key or signer_of(secret).public_key)
    for name, head in heads.items():
        typer.echo(f"{name}: {head.seq} entries, head {write_head(head)}")


def _names(database: Database) -> Iterator[str]:
    last = ""
    while True:
        with database.read() as connection:
            page = accounts.names_after(connection, last, _PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1]


def _head(text: str) -> Head:
    try:
        return read_head(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
