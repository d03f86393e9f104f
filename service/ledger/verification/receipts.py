"""Receipts: the signed cost of a release, for readers who cannot ask the ledger."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws.journalled_partitions import greatest_counters
from service.ledger.draws.partitions import DrawnFor, drawn_for
from service.ledger.installation.signing import BadSignature, check_signature
from service.ledger.journal import canonical_json, journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import Drawn, Registration, read
from service.ledger.journal.entry_texts import price_of
from service.ledger.releases.recorded_releases import charge_of, later_entries, require_recorded
from service.ledger.releases.release_rows import altered
from service.ledger.releases.releases import ReleaseRecord, read_release
from service.privacy.numerics.numbers import exact_text

STATEMENT = "receipt"
_FIELDS = ("account", "release", "cost", "charged", "entry", "previous", "hash", "head", "issued_at")


def receipt_of(connection: Connection, account: AccountRecord, release_id: str, at: str) -> dict[str, Any]:
    """Return the ledger's statement of a release for signing, without its cost in the notions for readers.

    Args:
        at: the moment of issue.

    Raises:
        NotFound: the account has no such release.
        Unavailable: its row, or an entry of it, is not as the service wrote it.
    """
    # In the state that the journal records, even where a reservation is over: a settlement that began before its end
    # may still be committed.
    release = read_release(connection, account.id, release_id)
    require_recorded(connection, account, release)
    charged = charge_of(connection, account, release)
    counters = counted_partitions(connection, release, drawn_from(connection, account, release))
    under_caps = {tag: price_of(amount) for tag, amount in charged.caps.items()}
    return {
        "account": account.name,
        "unit": account.unit,
        "neighbouring": account.neighbouring.value,
        "release": {
            "id": release.id,
            "name": release.name,
            "state": release.state,
            "plan": release.document,
            "tags": list(release.tags),
            "delta": exact_text(release.delta),
            "created_at": release.created_at,
            "expires_at": release.expires_at,
            **({} if release.periods is None else {"periods": json.loads(release.periods)}),
        },
        "partitions": [counter._asdict() for counter in counters],
        "charged": {
            "price": price_of(charged.price),
            "accountant": charged.accountant,
            **({"caps": under_caps} if under_caps else {}),
        },
        "entry": charged.entry,
        "previous": journal.hash_before(connection, account.id, release.head.seq),
        "hash": release.head.hash,
        "head": {"seq": account.head.seq, "hash": account.head.hash},
        "issued_at": at,
    }


def drawn_from(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> list[Drawn]:
    """Return the draws of a release, by all texts of its account's journal; raise as ``later_entries``."""
    contents = (entry.content for entry in later_entries(connection, account, release, [Drawn.KIND]))
    return [content for content in contents if isinstance(content, Drawn)]


def counted_partitions(connection: Connection, release: ReleaseRecord, drawn: Iterable[Drawn]) -> list[DrawnFor]:
    """Return the counters of the partitions that a release was drawn for, as its draws in the journal have them.

    Raises:
        Altered: a counter is not as the service wrote it, or does not follow from the journal.
    """
    counters = drawn_for(connection, [release.id]).get(release.id, [])
    if {counter.mechanism: counter.drawn for counter in counters} != greatest_counters(connection, release, drawn):
        raise altered(release.id, "its counters of partitions are not those of the journal's draws")
    return counters


def check_receipt(receipt: object, public_key: str) -> None:
    """Refuse a receipt that the holder of the public key's secret did not sign, or that contradicts itself.

    No database is needed: the receipt gives both the journal entry and the hash before it, from which the entry's hash
    is computed.

    Args:
        receipt: the parsed JSON.

    Raises:
        BadSignature: the text says what is wrong.
    """
    if not isinstance(receipt, dict):
        raise BadSignature("expected a JSON object")
    check_signature(receipt, STATEMENT, public_key)
    missing = [name for name in _FIELDS if name not in receipt]
    if missing:
        raise BadSignature(f"the receipt has no {missing[0]}")
    try:
        _check_entry(receipt)
    except (KeyError, TypeError, BrokenChain):
        raise BadSignature("expected the fields of a receipt") from None


def _check_entry(receipt: dict[str, Any]) -> None:
    release, head = receipt["release"], receipt["head"]
    if journal.entry_hash(receipt["previous"], canonical_json.canonical(receipt["entry"])) != receipt["hash"]:
        raise BadSignature("the hash is not that of the entry and the hash before it")
    entry = read(receipt["entry"])
    if (entry.account, entry.release) != (receipt["account"], release["id"]):
        raise BadSignature("the entry belongs to another account or release")
    said = entry.content
    if not isinstance(said, Registration):
        raise BadSignature("the entry registers no release")
    stated = {"name": said.name, "plan": json.loads(said.plan), "tags": list(said.tags), "delta": said.delta}
    if said.periods is not None or "periods" in release:
        stated["periods"] = None if said.periods is None else json.loads(said.periods)
    different = [name for name, value in stated.items() if value != release[name]]
    if different:
        raise BadSignature(f"the release's {different[0]} is not that of its journal entry")
    if head["seq"] < entry.seq or (head["seq"] == entry.seq and head["hash"] != receipt["hash"]):
        raise BadSignature("the head does not follow the entry")
