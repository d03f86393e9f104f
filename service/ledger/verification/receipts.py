"""Receipts: the signed cost of a release, for readers who cannot ask the ledger."""

import json
from typing import Any

from sqlalchemy import Connection, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_price
from service.ledger.accounts.caps import price_under
from service.ledger.draws import partitions
from service.ledger.installation.signing import BadSignature, check_signature
from service.ledger.journal import canonical_json, journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import Content, Registration, read
from service.ledger.journal.entry_texts import PriceKey, price_key_of, price_of as key_text, price_of_key
from service.ledger.releases import release_rows
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.releases.releases import ReleaseRecord, entry_of
from service.ledger.storage.tables import Release
from service.privacy.accounting.pricing import ACCOUNTANT, price as price_of
from service.privacy.accounting.totals import is_charge_of
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.tagged import tagged_part

STATEMENT = "receipt"
_FIELDS = ("account", "release", "cost", "charged", "entry", "previous", "hash", "head", "issued_at")


def receipt_of(connection: Connection, account: AccountRecord, release_id: str, at: str) -> dict[str, Any]:
    """Return the ledger's statement of a release for signing, without its cost in the notions for readers.

    Args:
        at: the moment of issue, at which the release's state is stated.

    Raises:
        NotFound: the account has no such release.
        Unavailable: its row, or an entry of it, is not as the service wrote it.
    """
    release = read_recorded(connection, account, release_id).seen(at)
    charged = connection.execute(select(Release.price, Release.accountant).where(Release.id == release.id)).one()
    entry, price = entry_of(connection, account.id, release), json.loads(charged.price)
    content = read(entry).content
    _require_price(account, release, content, price_key_of(price), charged.accountant)
    under_caps = _under_caps(account, release, content, charged.accountant)
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
        "partitions": [drawn._asdict() for drawn in partitions.drawn_for(connection, [release.id]).get(release.id, ())],
        "charged": {"price": price, "accountant": charged.accountant, **({"caps": under_caps} if under_caps else {})},
        "entry": entry,
        "previous": journal.hash_before(connection, account.id, release.head.seq),
        "hash": release.head.hash,
        "head": {"seq": account.head.seq, "hash": account.head.hash},
        "issued_at": at,
    }


def _require_price(
    account: AccountRecord, release: ReleaseRecord, content: Content, price: PriceKey, accountant: str
) -> None:
    """Refuse to sign a price that is neither the entry's nor the present accountant's.

    Raises:
        Unavailable: the row has another price.
    """
    if isinstance(content, Registration) and (price, accountant) == (content.price, content.accountant):
        return
    asked = price_of(release.plan, account.neighbouring, account.weights.orders)
    if accountant != ACCOUNTANT or not is_charge_of(price_of_key(price), asked):
        raise release_rows.altered(release.id)


def _under_caps(account: AccountRecord, release: ReleaseRecord, content: Content, accountant: str) -> dict[str, Any]:
    """Return the prices under the account's caps: those of the entry, or of the accountant that priced it again."""
    if not isinstance(content, Registration) or content.caps is None:
        return {}
    if accountant == content.accountant:
        return {tag: key_text(amount) for tag, amount in content.caps}
    caps = {cap.tag: cap for cap in account.caps}
    parts = {tag: tagged_part(release.plan, release.tags, tag) for tag, _ in content.caps}
    return {
        tag: write_price(price_under(part, caps[tag].weights, account.neighbouring))
        for tag, part in parts.items()
        if part is not None
    }


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
