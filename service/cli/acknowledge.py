"""The command by which an operator accepts a ledger that its high-water mark refuses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from sqlalchemy import Connection

from service.cli.output import one_line, tell
from service.errors import Conflict
from service.installation import high_water_file, open_installation, settings_of_command
from service.ledger.access.keys import unsound
from service.ledger.accounts import account_rows
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import note_nothing_to_adopt, waits_for_adoption
from service.ledger.installation.high_water import BrokenMark, HighWaterFile, Mark
from service.ledger.installation.ledger_versions import begin_version, prepare_version
from service.ledger.installation.missing_entries import (
    MissingEntry,
    by_name,
    last_entries,
    missing_entries,
    present_heads,
)
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import Head
from service.ledger.journal.linked_heads import is_linked
from service.ledger.storage import clock
from service.ledger.storage.group_commit import INSTALLATION, NO_ACCOUNT
from service.ledger.storage.secret import Secret

_NAMED = 1000  # journals that the entry lists
_LONGEST = 2000  # characters of a reason
_FAULTS = (
    "the ledger has faults. Restore a sound copy, or repair them first; with --leave-faults these accounts and keys are"
    " refused for ever:"
)
_ADOPTION = (
    "the ledger has rows without seals, as an older version left them. Add --adopt if this is a copy that an older"
    " version wrote: the next server seals these rows as they are. Otherwise add --no-adopt: they stay refused"
)


def acknowledge(
    reason: Annotated[str, typer.Option(help="What happened, for later readers of the journal.")],
    adopt: Annotated[
        bool | None,
        typer.Option(
            help="Seal, or refuse for ever, the rows without seals of a restored copy that an older version wrote.",
        ),
    ] = None,
    leave_faults: Annotated[
        bool,
        typer.Option("--leave-faults", help="Go on although accounts or keys have faults; they stay refused for ever."),
    ] = False,
) -> None:
    """Accept a ledger that is older than its high-water mark or has none, or a clock that is behind it.

    The installation's journal stores the reason with the missing entries, and the mark starts anew. If entries are
    missing, or there is no mark, the whole ledger is verified and sealed again, so that rows which somebody kept of
    the version that is given up are refused. A ledger with faults is not accepted, unless --leave-faults says so: then
    the accounts and keys that have them are not sealed again. From then on no row without a seal is sealed, unless
    --adopt says so for a copy that an older version wrote.
    """
    if not reason.strip() or len(reason) > _LONGEST:
        raise typer.BadParameter(f"expected a reason of 1 to {_LONGEST} characters", param_hint="--reason")
    settings = settings_of_command()
    database, secret = open_installation(settings, require_mark=False)
    file, now = high_water_file(settings, secret), clock.now()
    try:
        mark, fault = file.read(), None
    except BrokenMark as broken:
        mark, fault = None, str(broken)
    with database.read() as connection:
        installation_journal.require_version(connection, secret)
        found = _look(connection, secret, None if mark is None else mark.heads, adopt)
        behind = mark is not None and now < mark.written_at
        begins = bool(found.missing) or mark is None
        refused, version = _refused(begins or behind, found, adopt), None
        if refused is None and begins:
            version = prepare_version(connection, secret, verified=not adopt)
            if version.faults and not leave_faults and adopt is None:
                refused = "\n".join([_FAULTS, *map(one_line, version.faults.values())])
    if refused is not None:
        database.close()
        raise Conflict(refused)

    content = _content(reason, mark, found.missing, fault) | ({"adopt": True} if adopt else {})
    if version is not None:
        content |= version.content

    def work(connection: Connection) -> Head:
        installation_journal.require_version(connection, secret)
        if not adopt:
            note_nothing_to_adopt(connection, secret, now)
        if version is not None:
            begin_version(connection, secret, version)
        new = installation_journal.append(connection, secret, "mark_acknowledged", content, actor=None, at=now)
        told = found.heads.get(INSTALLATION)
        if told is not None and not is_linked(connection, NO_ACCOUNT, told, new):
            raise Conflict("the installation's journal lost entries at the same moment: run the command again")
        return new

    own = database.write(work, is_committed=lambda *_: False)
    _write_mark(file, mark, found, own)
    database.close()
    _tell(found, () if version is None else version.faults.values())


@dataclass(frozen=True, slots=True)
class _Found:
    """The ledger as the command found it.

    Attributes:
        missing: the entries of the mark that it lacks.
        heads: the present heads that can be marked, by the account's name.
        altered: the journals whose last entry is not as the service wrote it.
        unsealed: the accounts whose row is not as the service wrote it.
        waits: whether an older version left rows without seals.
    """

    missing: list[MissingEntry]
    heads: Mapping[str, Head]
    altered: Collection[str | bytes]
    unsealed: Sequence[str | bytes]
    waits: bool


def _look(connection: Connection, secret: Secret, marked: Mapping[str, Head] | None, adopt: bool | None) -> _Found:
    entries = last_entries(connection)
    missing = [] if marked is None else missing_entries(connection, marked, entries)
    unsealed = set() if adopt else account_rows.unsealed_among(connection, [one[0] for one in entries])
    sound = [one for one in entries if one[0] not in unsealed]
    heads, altered = present_heads(connection, secret, sound, {} if marked is None else marked)
    try:
        waits = waits_for_adoption(connection, secret)
    except BrokenChain as broken:
        raise unsound(broken) from None
    return _Found(missing, heads, altered, sorted((one[1] for one in entries if one[0] in unsealed), key=str), waits)


def _tell(found: _Found, faults: Iterable[str]) -> None:
    for name in found.unsealed:
        tell(f"the row of account {name!r} is not as the service wrote it; its head is not marked anew")
    for fault in faults:
        tell(f"{fault}; it stays refused")
    for one in found.missing:
        tell(str(one))
    if found.missing:
        typer.echo(
            "If clients repeat the requests behind the missing entries, the service draws and charges them again."
        )
    typer.echo("acknowledged; the high-water mark starts anew")


def _refused(is_due: bool, found: _Found, adopt: bool | None) -> str | None:
    """Return the reason why the command does nothing; None if it goes on.

    Args:
        is_due: whether the mark refuses the ledger, or cannot be used.
    """
    without_head = {one.journal for one in found.missing} & set(found.altered)
    if not is_due:
        return "nothing to acknowledge: the ledger has all entries of its high-water mark"
    if without_head:
        names = ", ".join(repr(name) if name else "the installation's journal" for name in sorted(without_head))
        return f"the last entry is not as the service wrote it: {names}"
    if found.waits == (adopt is not None):
        return None
    return _ADOPTION if found.waits else "an older version left no rows without seals that could be adopted"


def _write_mark(file: HighWaterFile, mark: Mark | None, found: _Found, own: Head) -> None:
    """Write the present heads of journals that lack entries, and of all journals if the mark was broken.

    Only what the operator is told is missing is forgotten, whatever the database shows and other servers mark.

    Args:
        own: the command's own entry in the installation's journal, which follows its present head.
    """
    # Of the others only the names are known from now on, so that no list passes over them.
    heads = {**by_name([*found.unsealed, *found.altered]), **found.heads}
    if mark is None:
        file.replace({**heads, INSTALLATION: own}, clock.now())
        return
    forgotten = {one.journal: one.marked for one in found.missing}
    if INSTALLATION in mark.heads:
        forgotten[INSTALLATION] = mark.heads[INSTALLATION]
    present = {name: head for name, head in heads.items() if name in forgotten}
    file.forget(forgotten, present | {INSTALLATION: own}, clock.now())


def _content(reason: str, mark: Mark | None, missing: list[MissingEntry], fault: str | None) -> dict[str, object]:
    """Return the content of the journal entry; names of accounts stay within the ledger."""
    return {
        "reason": reason,
        "mark": None if mark is None else {"written_at": mark.written_at, "entries": mark.entries},
        "fault": fault,
        "missing": len(missing),
        "journals": [
            {"account": one.account or None, "seq": one.marked.seq, "hash": one.marked.hash, "last": one.last}
            for one in missing[:_NAMED]
        ],
    }
