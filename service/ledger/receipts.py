"""Receipts: what a release cost, signed, so that it can be shown to somebody who cannot ask the ledger."""

import json
from typing import Any

from sqlalchemy import Connection, select

from service.ledger import journal, partitions
from service.ledger.accounts import AccountRecord
from service.ledger.releases import read_charged_release
from service.ledger.signing import BadSignature, check_signature
from service.ledger.tables import Entry, Release
from service.privacy.numbers import exact_text

STATEMENT = "receipt"
_COMMON = ("name", "plan", "tags", "delta")  # of the release and of the journal entry that charged it
_FIELDS = ("account", "release", "cost", "charged", "entry", "previous", "hash", "head", "issued_at")


def receipt_of(connection: Connection, account: AccountRecord, release_id: str, at: str) -> dict[str, Any]:
    """What the ledger says of a release, to be signed: all but what it costs in the notions that people read.

    Raises:
        NotFound: the account has no such release.
        Unavailable: its row is not what its entry says.
    """
    release = read_charged_release(connection, account, release_id).seen(at)
    charged = connection.execute(select(Release.price, Release.accountant).where(Release.id == release.id)).one()
    body = select(Entry.body).where(Entry.account_id == account.id, Entry.seq == release.head.seq)
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
        },
        "partitions": [drawn._asdict() for drawn in partitions.drawn_for(connection, [release.id]).get(release.id, ())],
        "charged": {"price": json.loads(charged.price), "accountant": charged.accountant},
        "entry": json.loads(connection.execute(body).scalar_one()),
        "previous": journal.hash_before(connection, account.id, release.head.seq),
        "hash": release.head.hash,
        "head": {"seq": account.head.seq, "hash": account.head.hash},
        "issued_at": at,
    }


def check_receipt(receipt: object, public_key: str) -> None:
    """Refuse a receipt that the holder of the public key's secret did not sign, or that contradicts itself.

    No database is asked: the journal entry is hashed with the hash before it, as the receipt gives both.

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
    except (KeyError, TypeError):
        raise BadSignature("expected the fields of a receipt") from None


def _check_entry(receipt: dict[str, Any]) -> None:
    release, entry, head = receipt["release"], receipt["entry"], receipt["head"]
    if journal.entry_hash(receipt["previous"], journal.canonical(entry)) != receipt["hash"]:
        raise BadSignature("the hash is not that of the entry and the hash before it")
    if (entry["account"], entry["release"]) != (receipt["account"], release["id"]):
        raise BadSignature("the entry is of another account or release")
    different = [name for name in _COMMON if entry["content"][name] != release[name]]
    if different:
        raise BadSignature(f"the release's {different[0]} is not that of its journal entry")
    if head["seq"] < entry["seq"] or (head["seq"] == entry["seq"] and head["hash"] != receipt["hash"]):
        raise BadSignature("the head does not follow the entry")
