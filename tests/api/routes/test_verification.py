"""Signed heads, receipts, verification and exports over HTTP."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from service.api.routes.verification import in_pieces
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.signing import BadSignature, check_signature, signer_of
from service.ledger.journal.journal import Head
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.verification.export_reader import Reader
from service.ledger.verification.receipts import check_receipt
from service.privacy.accounting.pricing import ACCOUNTANT
from tests.api.calls import (
    Client,
    charge,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_AT = "/v1/accounts/people"


def _installation(client: Client) -> Any:
    return json_of(client.get("/v1/installation"))


def test_the_installation_names_the_key_that_signs(client: Client, secret: Secret) -> None:
    said = _installation(client)
    signer = signer_of(secret)
    assert said == {
        "installation": signer.installation,
        "algorithm": "Ed25519",
        "public_key": signer.public_key,
        "accountant": ACCOUNTANT,
    }
    assert secret.key.hex() not in json.dumps(said)


def test_a_head_is_signed(client: Client) -> None:
    opened = open_account(client)
    head = json_of(client.get(f"{_AT}/head"))
    assert {name: head[name] for name in ("seq", "hash")} == opened["head"]
    assert head["account"] == "people"
    check_signature(head, "head", _installation(client)["public_key"])
    with pytest.raises(BadSignature):
        check_signature(head | {"account": "others"}, "head", None)


# Receipts


def _receipt(client: Client, release_id: str) -> Any:
    return json_of(client.get(f"{_AT}/releases/{release_id}/receipt"))


def test_a_receipt_says_what_the_release_cost_and_is_checked_without_the_service(client: Client) -> None:
    open_account(client)
    plan = {"type": "sequence", "parts": [concentrated("0.1", name="é"), pure("1e-7", tags=["t"])]}
    made = release(client, plan, tags=["pl94"], name="the „first“")
    release(client, concentrated("0.2"))
    receipt = _receipt(client, made["id"])
    assert receipt["cost"] == made["cost"]
    assert (receipt["entry"]["seq"], receipt["hash"]) == (made["head"]["seq"], made["head"]["hash"])
    assert receipt["head"] == head_of(client)
    assert {name: receipt["release"][name] for name in ("id", "name", "state", "tags", "delta")} == {
        name: made[name] for name in ("id", "name", "state", "tags", "delta")
    }
    assert receipt["release"]["plan"] == receipt["entry"]["content"]["plan"]
    assert receipt["charged"] == {name: receipt["entry"]["content"][name] for name in ("price", "accountant")}
    check_receipt(receipt, _installation(client)["public_key"])


def test_the_receipt_of_a_reservation_says_its_state(client: Client) -> None:
    open_account(client)
    made = json_of(charge(client, pure("0.1"), reserve_for="PT1H"), 201)
    key = _installation(client)["public_key"]
    before = _receipt(client, made["id"])
    json_of(client.post(f"{_AT}/releases/{made['id']}/commit"))
    after = _receipt(client, made["id"])
    assert (before["release"]["state"], after["release"]["state"]) == ("reserved", "committed")
    assert before["release"]["expires_at"] == made["expires_at"]
    assert before["entry"] == after["entry"]
    for receipt in (before, after):
        check_receipt(receipt, key)


def _set(path: str, value: Any) -> Any:
    def change(receipt: Any) -> None:
        *way, last = path.split("/")
        for step in way:
            receipt = receipt[step]
        receipt[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("release/state", "voided"), _set("release/name", "another"), _set("release/plan/epsilon", "0.2"),
        _set("cost/delta", 0.5), _set("charged/price/epsilon", "1"), _set("entry/actor", "somebody"),
        _set("head/seq", 99), _set("issued_at", "2020-01-01T00:00:00.000000Z"), _set("signature", "00" * 64),
        _set("unit", "household"), lambda receipt: receipt.pop("head"), lambda receipt: receipt.update(more=1),
    ],
)  # fmt: skip
def test_a_receipt_that_was_changed_is_refused(embedded: Client, change: Any) -> None:
    open_account(embedded)
    made = release(embedded, pure("0.1"))
    receipt, key = _receipt(embedded, made["id"]), _installation(embedded)["public_key"]
    check_receipt(receipt, key)
    change(receipt)
    with pytest.raises(BadSignature):
        check_receipt(receipt, key)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("release/name", "another"), "the release's name is not that of its journal entry"),
        (_set("release/tags", ["t"]), "the release's tags is not"),
        (_set("entry/actor", "somebody"), "the hash is not that of the entry"),
        (_set("account", "others"), "belongs to another account or release"),
        (_set("head/seq", 1), "the head does not follow"),
        (_set("head/hash", "00" * 32), "the head does not follow"),
        (_set("release", 7), "expected the fields of a receipt"),
        (lambda receipt: receipt.pop("previous"), "the receipt has no previous"),
    ],
)  # fmt: skip
def test_a_receipt_that_contradicts_itself_is_refused_although_it_is_signed(
    embedded: Client, secret: Secret, change: Any, reason: str
) -> None:
    open_account(embedded)
    receipt = _receipt(embedded, release(embedded, pure("0.1"))["id"])
    change(receipt)
    for name in ("statement", "installation", "public_key", "signature"):
        del receipt[name]
    signer = signer_of(secret)
    with pytest.raises(BadSignature, match=reason):
        check_receipt(signer.sign("receipt", receipt), signer.public_key)


@pytest.mark.parametrize("document", [None, [], 7, "text", {}, {"statement": "receipt"}, {"statement": "head"}])
def test_what_is_no_receipt_is_refused(document: Any) -> None:
    with pytest.raises(BadSignature):
        check_receipt(document, "00" * 32)


def test_a_release_that_is_not_there_has_no_receipt(client: Client) -> None:
    open_account(client)
    problem_of(client.get(f"{_AT}/releases/nothing/receipt"), "not_found")
    problem_of(client.get("/v1/accounts/nobody/releases/nothing/receipt"), "not_found")


# Verification


def test_a_ledger_is_verified(client: Client) -> None:
    opened = open_account(client)
    release(client, concentrated("0.1"))
    assert json_of(client.get(f"{_AT}/verify")) == {"valid": True, "entries": 2}
    kept = f"{opened['head']['seq']}:{opened['head']['hash']}"
    assert json_of(client.get(f"{_AT}/verify?head={kept}")) == {"valid": True, "entries": 2}
    assert json_of(client.get(f"{_AT}/verify?head=2:{opened['head']['hash']}")) == {
        "valid": False,
        "entries": 1,
        "first_bad": {"seq": 2, "reason": "the entry is not the one that was kept"},
    }
    assert pointers_of(client.get(f"{_AT}/verify?head=1")) == ["/query/head"]
    problem_of(client.get("/v1/accounts/nobody/verify"), "not_found")


def test_what_was_changed_is_named(client: Client, database: Database) -> None:
    open_account(client)
    release(client, concentrated("0.1"))
    database.write(
        lambda connection: connection.execute(text("UPDATE spending SET occurrences = 7")),
        is_committed=lambda *_: False,
    )
    found = json_of(client.get(f"{_AT}/verify"))
    assert found["first_bad"] == {"seq": 2, "reason": "a row of spending does not follow from the journal"}


# Exports


def test_an_export_is_streamed_and_can_be_read(client: Client, secret: Secret) -> None:
    open_account(client)
    release(client, pure("0.1", name="é"))
    json_of(client.post(f"{_AT}/draws", json={"name": "d", "mechanism": pure("0.1"), "counts": [1, 2]}), 201)
    answer = client.get(f"{_AT}/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    reader = Reader(io.BytesIO(answer.content), signer_of(secret).public_key)
    kinds = [entered.entry.kind for entered in reader.entries()]
    assert kinds == ["account_opened", "committed", "committed", "drawn"]
    assert reader.line == 6
    problem_of(client.get("/v1/accounts/nobody/export"), "not_found")


def test_an_export_is_sent_many_lines_at_a_time() -> None:
    long = "x" * (1 << 17) + "\n"
    lines = [f"{number}\n" for number in range(1000)] + [long] * 5 + ["last\n"]
    pieces = list(in_pieces(iter(lines)))
    assert "".join(pieces) == "".join(lines)
    assert len(pieces) == 3
    assert all(piece.endswith("\n") for piece in pieces)
    assert list(in_pieces(iter([]))) == []


def test_an_account_under_another_is_exported_by_who_may_read_all_of_its_family(client: Client) -> None:
    for name, parent in (("agency", None), ("people", "agency"), ("others", "agency")):
        open_account(client, name, parent=parent)
    release(client, concentrated("0.1"))
    own = make_key(client, "auditor", accounts=["people"])
    family = make_key(client, "auditor", accounts=["people", "others", "agency"])
    problem_of(client.get(f"{_AT}/export", headers=own), "forbidden")
    lines = [json.loads(line) for line in client.get(f"{_AT}/export", headers=family).text.splitlines()]
    assert [account["account"] for account in lines[0]["accounts"]] == ["agency", "people", "others"]
    assert len(lines) == 1 + 3 + 2


def test_an_account_is_held_against_the_high_water_mark(
    app: FastAPI, client: Client, secret: Secret, tmp_path: Path
) -> None:
    open_account(client)
    file = HighWaterFile(tmp_path / "service.high-water", secret)
    app.state.mark = file
    assert json_of(client.get(f"{_AT}/verify"))["valid"], "there is no mark yet"
    file.advance(
        {"people": Head(3, "a" * 64)}, file.marked({"people": Head(3, "a" * 64)}), "2026-01-02T00:00:00.000000Z"
    )
    assert json_of(client.get(f"{_AT}/verify"))["first_bad"] == {"seq": 2, "reason": "the entry is missing"}
    file.path.write_bytes(b"no database")
    problem = problem_of(client.get(f"{_AT}/verify"), "unavailable")
    assert problem["detail"] == "the high-water mark cannot be read"
