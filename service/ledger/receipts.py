"""Receipts: what a release cost, signed, so that it can be shown to somebody who cannot ask the ledger."""

from service.ledger import journal
from service.ledger.signing import BadSignature, check_signature

STATEMENT = "receipt"
_COMMON = ("name", "plan", "tags", "delta")  # of the release and of the journal entry that charged it
_FIELDS = ("account", "release", "cost", "charged", "entry", "previous", "hash", "head", "issued_at")


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
