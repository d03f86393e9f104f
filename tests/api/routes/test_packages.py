"""Publication packages: read by other code, compared with other operations, and checked without the service."""

import csv
import hashlib
import io
import json
import struct
import zipfile
import zlib
from fractions import Fraction
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it publishes no types
import pytest
import rfc8785
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi.testclient import TestClient

from service.api.openapi import examples
from service.api.publication.archive import Archive
from service.api.routes import packages
from service.ledger.draws.retention import remove_noisy
from service.ledger.installation.signing import BadSignature, Signer, signer_of
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.packages import check_package
from tests.api.calls import json_of, make_key, open_account, pages_of, problem_of, release
from tests.ledger.writing import unprotected

_PLAN = {
    "type": "sequence",
    "parts": [
        {"type": "geometric", "name": "County/total", "epsilon": "1/10", "tags": ["County"], "partitions": 4},
        {"type": "repeat", "count": 2, "part": {"type": "geometric", "name": "County/age", "epsilon": "0.05"}},
        {"type": "geometric", "name": "Tract/total", "epsilon": "0.3", "tags": ["Tract", "x"]},
    ],
}
_NOISE = {"type": "geometric", "scale": "5", "cells": 1}
_LEVEL = {
    "type": "choice",
    "parts": [
        _NOISE | {"name": "Nation/total"},
        {"type": "sequence", "parts": [_NOISE | {"name": "Nation/step 1"}, _NOISE | {"name": "Nation/step 2"}]},
    ],
}
_PATH = "/v1/accounts/people/releases"


@pytest.fixture
def drawn(client: TestClient) -> Any:
    """A release that is drawn from for partitions, turns and the whole input."""
    open_account(client, budget={"definition": "approximate", "epsilon": "50", "delta": "1e-6"})
    made = release(client, _PLAN, name="=a release")
    for fields in (
        {"mechanism": "County/total", "partition": "=01", "counts": [1, 2]},
        {"mechanism": "County/total", "partition": "02", "counts": [2**40] * 3},
        {"mechanism": "County/age", "repetition": 1, "counts": list(range(100))},
        {"mechanism": "Tract/total", "counts": [7]},
    ):
        json_of(client.post(f"{_PATH}/{made['id']}/draws", json=fields), 201)
    return made


def _package(client: TestClient, made: Any, **query: str) -> bytes:
    answer = client.get(f"{_PATH}/{made['id']}/package", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="people-{made["id"]}.zip"'
    return answer.content


def _files(package: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def _key(client: TestClient) -> str:
    return str(json_of(client.get("/v1/installation"))["public_key"])


def _rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode(), newline="")))


def test_the_files_are_those_that_the_installation_signed(client: TestClient, drawn: Any) -> None:
    files = _files(_package(client, drawn))
    manifest = json.loads(files["manifest.json"])
    stated = {file["name"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    assert stated == {
        name: (len(text), hashlib.sha256(text).hexdigest()) for name, text in files.items() if name != "manifest.json"
    }
    assert set(files) == {
        *("README.txt", "receipt.json", "plan.json", "accuracy.json", "accuracy.csv", "allocation.csv", "draws.jsonl"),
        *("noisy-counts.csv", "noisy-counts.parquet", "manifest.json"),
    }
    signature = bytes.fromhex(manifest.pop("signature"))
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(_key(client))).verify(signature, rfc8785.dumps(manifest))
    assert manifest["head"] == json.loads(files["receipt.json"])["head"]
    assert "lack data_curators" in files["README.txt"].decode()


def test_the_noisy_counts_are_those_of_the_draws(client: TestClient, drawn: Any) -> None:
    """By csv and by pyarrow, compared with what reading the draws one by one answers."""
    files = _files(_package(client, drawn))
    (draws,) = pages_of(client, f"{_PATH}/{drawn['id']}/draws")
    expected = [
        (one["draw"], one["mechanism"]["name"], one["partition"], one["repetition"], place, count)
        for one in draws
        for place, count in enumerate(one["noisy"])
    ]
    table = pq.read_table(io.BytesIO(files["noisy-counts.parquet"]))
    assert [tuple(row.values()) for row in table.to_pylist()] == expected
    rows = _rows(files["noisy-counts.csv"])
    assert [(row["draw"], int(row["place"]), int(row["noisy"])) for row in rows] == [
        (draw, place, count) for draw, _, _, _, place, count in expected
    ]
    assert [row["partition"] for row in rows[:3]] == ["'=01", "'=01", "02"]  # no formula for a spreadsheet


def test_the_entries_are_those_of_the_journal(client: TestClient, drawn: Any) -> None:
    files = _files(_package(client, drawn))
    journal = {one["entry"]["seq"]: one for page in pages_of(client, "/v1/accounts/people/journal") for one in page}
    lines = [json.loads(line) for line in files["draws.jsonl"].splitlines()]
    assert len(lines) == 4
    for line in lines:
        entry = journal[line["entry"]["seq"]]
        assert (line["hash"], line["previous"]) == (entry["hash"], journal[line["entry"]["seq"] - 1]["hash"])
        body = bytes.fromhex(line["previous"]) + rfc8785.dumps(line["entry"])
        assert hashlib.sha256(body).hexdigest() == line["hash"]
        assert line["entry"]["content"]["size"] == line["size"]


def test_statements_agree_with_the_other_operations(client: TestClient, drawn: Any) -> None:
    files = _files(_package(client, drawn, confidence="0.9"))
    at = f"{_PATH}/{drawn['id']}"
    assert json.loads(files["accuracy.json"]) == json_of(client.get(f"{at}/accuracy?confidence=0.9"))
    assert (
        files["accuracy.csv"].decode()
        == client.get(f"{at}/accuracy?confidence=0.9", headers={"Accept": "text/csv"}).text
    )
    receipt, there = json.loads(files["receipt.json"]), json_of(client.get(f"{at}/receipt"))
    changing = {"issued_at", "signature"}
    assert {name: receipt[name] for name in receipt.keys() - changing} == {
        name: there[name] for name in there.keys() - changing
    }
    assert json.loads(files["plan.json"]) == json_of(client.get(at))["plan"]


def test_the_allocation_adds_up(client: TestClient, drawn: Any) -> None:
    rows = {row["mechanism"]: row for row in _rows(_files(_package(client, drawn))["allocation.csv"])}
    assert sum(Fraction(row["share"]) for row in rows.values()) == 1
    assert {name: Fraction(row["loss"]) for name, row in rows.items()} == {
        "County/total": Fraction(1, 10),
        "County/age": Fraction(1, 10),
        "Tract/total": Fraction(3, 10),
    }
    county = rows["County/total"]
    assert (county["level"], county["query"], county["runs"], county["unit"]) == ("County", "total", "1", "epsilon")
    assert [rows[name]["share_of_level"] for name in ("County/total", "County/age", "Tract/total")] == [
        "1/2",
        "1/2",
        "1",
    ]
    assert [row["share"] for row in rows.values()] == ["1/5", "1/5", "3/5"]
    for name in ("loss", "share", "share_of_level"):
        for row in rows.values():
            assert (
                Fraction(row[name])
                <= Fraction(row[f"{name}_decimal"])
                < Fraction(row[name]) * (1 + Fraction(1, 10**15))
            )


def test_a_complete_release_has_its_registry_entry(client: TestClient, drawn: Any) -> None:
    metadata = examples.RELEASE_CHANGE["metadata"] | {"description": "Totals for a test."}
    json_of(client.patch(f"{_PATH}/{drawn['id']}", json={"metadata": metadata}))
    files = _files(_package(client, drawn))
    entry = client.get(f"{_PATH}/{drawn['id']}/registry-entry", headers={"Accept": "application/json"})
    assert yaml.safe_load(files["registry-entry.yaml"]) == json_of(entry)


def test_tabulations_have_a_table_of_their_own(client: TestClient) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": 100})
    made = release(client, _LEVEL)
    groups = [{"group": "=a", "sex_by_age": [[30] * 90] * 2}, {"group": "b", "total_only": True, "total": 12}]
    json_of(client.post(f"{_PATH}/{made['id']}/tabulations", json={"level": "Nation", "groups": groups}), 201)
    package = _package(client, made)
    assert check_package(io.BytesIO(package), _key(client))["release"] == made["id"]
    files = _files(package)
    (draws,) = pages_of(client, f"{_PATH}/{made['id']}/draws")
    expected = [
        (draws[-1]["draw"], "Nation", group["group"], group["total_only"], group["detail"], place, count)
        for group in draws[-1]["groups"]
        for place, count in enumerate(group["noisy"])
    ]
    table = pq.read_table(io.BytesIO(files["tabulations.parquet"]))
    assert [tuple(row.values()) for row in table.to_pylist()] == expected
    assert [int(row["noisy"]) for row in _rows(files["tabulations.csv"])] == [row[-1] for row in expected]


def test_counts_with_a_granularity_are_exact_texts(client: TestClient) -> None:
    open_account(client)
    made = release(client, {"type": "geometric", "name": "a", "epsilon": "0.5", "granularity": "0.25"})
    json_of(client.post(f"{_PATH}/{made['id']}/draws", json={"mechanism": "a", "counts": ["1.25", "-3"]}), 201)
    package = _package(client, made)
    check_package(io.BytesIO(package), _key(client))
    (draws,) = pages_of(client, f"{_PATH}/{made['id']}/draws")
    table = pq.read_table(io.BytesIO(_files(package)["noisy-counts.parquet"]))
    assert table.column("noisy").to_pylist() == draws[0]["noisy"]


def test_a_release_without_draws_has_no_tables(client: TestClient) -> None:
    open_account(client)
    made = release(client, {"type": "gaussian", "rho": "0.1"})
    package = _package(client, made)
    check_package(io.BytesIO(package), _key(client))
    assert _files(package)["draws.jsonl"] == b""
    assert not [name for name in _files(package) if name.startswith("noisy")]


def test_counts_that_were_removed_are_said_to_be(client: TestClient, drawn: Any, database: Database) -> None:
    assert remove_noisy(database, "2100-01-01T00:00:00.000000Z", clock.now()) == 4
    package = _package(client, drawn)
    check_package(io.BytesIO(package), _key(client))
    assert all(json.loads(line)["noisy_removed_at"] for line in _files(package)["draws.jsonl"].splitlines())


def _signed_again(package: bytes, signer: Signer, changed: dict[str, bytes | None]) -> bytes:
    """Return a package with changed files, signed like the first: only what the files say can betray it."""
    files = _files(package)
    manifest = json.loads(files.pop("manifest.json"))
    facts = {name: manifest[name] for name in ("account", "release", "name", "head", "issued_at")}
    archive, parts = Archive(manifest["issued_at"]), list[bytes]()
    for name, text in (
        files | {name.replace("__", ".").replace("_", "-"): text for name, text in changed.items()}
    ).items():
        if text is not None:
            parts += archive.add(name, [text])
    return b"".join([*parts, *archive.sign(signer, facts)])


def _refusal(package: bytes, key: str) -> str:
    with pytest.raises(BadSignature) as refused:
        check_package(io.BytesIO(package), key)
    return str(refused.value)


def _local(name: str, data: bytes) -> bytes:
    """Return a file as a reader meets it that goes along the archive."""
    sizes = (zlib.crc32(data), len(data), len(data), len(name), 0)
    return struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0x5A21, *sizes) + name.encode() + data


def _behind(package: bytes, inserted: bytes, start: int) -> bytes:
    """Return a package with bytes before its list of files, which says where it begins."""
    end = package.rindex(b"PK\5\6")
    moved = struct.pack("<I", start + len(inserted))
    return package[:start] + inserted + package[start : end + 16] + moved + package[end + 20 :]


def test_a_package_has_no_byte_beside_its_files(client: TestClient, drawn: Any) -> None:
    """The attack: bytes that no signature covers, which other readers of archives, or of pages, find."""
    package, key = _package(client, drawn), _key(client)
    (start,) = struct.unpack("<I", package[(end := package.rindex(b"PK\5\6")) + 16 : end + 20])
    hidden = _local("noisy-counts.csv", b"draw,noisy\r\nx,9999\r\n")
    altered = {
        "a second table": _behind(package, hidden, start),
        "a page": b"<html>9999<!--" + package,
        "another archive": package + package,
        "a comment": package[:-2] + struct.pack("<H", 5) + b"hello",
        "bytes after it": package + b"9999",
    }
    assert check_package(io.BytesIO(package), key)
    for one in altered.values():
        _refusal(one, key)


def test_a_name_that_stands_twice_is_refused(client: TestClient, drawn: Any) -> None:
    package = _package(client, drawn)
    files = _files(package)
    twice = files["manifest.json"].replace(b"{", b'{"account":"evil",', 1)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | {"manifest.json": twice}).items():
            archive.writestr(name, content)
    assert "not as the service writes it" in _refusal(sink.getvalue(), _key(client))


def test_a_changed_package_is_refused(client: TestClient, drawn: Any) -> None:
    package, key = _package(client, drawn), _key(client)
    check_package(io.BytesIO(package), key)
    files = _files(package)
    assert "another public key" in _refusal(package, "0" * 64)
    for name in files:
        changed = io.BytesIO()
        with zipfile.ZipFile(changed, "w") as archive:
            for each, text in files.items():
                archive.writestr(each, text.replace(b"1", b"2", 1) if each == name else text)
        if files[name] != files[name].replace(b"1", b"2", 1):
            _refusal(changed.getvalue(), key)
    for broken in (package[:-30], b"", b"PK\x05\x06" + b"\0" * 18, package[:100] + b"\0" + package[101:]):
        _refusal(broken, key)


@pytest.mark.parametrize("name", ["README.txt", "accuracy.csv"])
def test_a_package_that_lacks_a_file_or_has_one_more_is_refused(client: TestClient, drawn: Any, name: str) -> None:
    files = _files(_package(client, drawn))
    for kept in ({each: text for each, text in files.items() if each != name}, files | {"another.txt": b""}):
        changed = io.BytesIO()
        with zipfile.ZipFile(changed, "w") as archive:
            for each, text in kept.items():
                archive.writestr(each, text)
        assert "is not both in the archive and in manifest.json" in _refusal(changed.getvalue(), _key(client))


def test_files_that_disagree_are_refused_although_they_are_signed(
    client: TestClient, drawn: Any, database: Database
) -> None:
    package, key = _package(client, drawn), _key(client)
    assert database.secret is not None
    signer, files = signer_of(database.secret), _files(package)
    check_package(io.BytesIO(_signed_again(package, signer, {})), key)
    counts = _rows(files["noisy-counts.csv"])
    line = f"{counts[0]['draw']},County/total,'=01,0,0,{counts[0]['noisy']}".encode()
    assert line in files["noisy-counts.csv"]
    more = line[: line.rindex(b",") + 1] + str(int(counts[0]["noisy"]) + 1).encode()
    table, lines = files["noisy-counts.csv"], files["draws.jsonl"].splitlines(keepends=True)
    unlike = "not those of its journal entry"
    other = json.loads(files["receipt.json"]) | {"issued_at": "2026-01-01T00:00:00.000000Z"}
    cases: list[tuple[dict[str, bytes | None], str | None]] = [
        ({"noisy-counts.csv": table.replace(line, more)}, unlike),
        (
            {"noisy-counts.csv": files["noisy-counts.csv"].replace(line + b"\r\n", b"")},
            "not those of its journal entry",
        ),
        ({"noisy-counts.csv": table + line + b"\r\n"}, "twice"),
        ({"noisy-counts.parquet": None}, "expected noisy-counts.parquet"),
        ({"draws.jsonl": b"".join(lines[1:])}, "1 partitions of 'County/total', but receipt.json for 2"),
        ({"draws.jsonl": b"".join(lines[:-1])}, "does not have"),
        ({"draws.jsonl": b"".join([lines[0], *lines])}, "3 partitions of 'County/total', but receipt.json for 2"),
        ({"draws.jsonl": files["draws.jsonl"].replace(b'"size": 2,', b'"size": 3,')}, None),
        ({"draws.jsonl": files["draws.jsonl"].replace(b'"repetition":0', b'"repetition":1')}, None),
        ({"plan.json": files["plan.json"].replace(b"0.05", b"0.06")}, "plan.json is not the plan"),
        ({"receipt.json": json.dumps(other).encode()}, "signature"),
        ({"receipt.json": b"[]"}, "expected a JSON object"),
        ({"draws.jsonl": b"{}"}, "not as the service writes it"),
    ]
    for changed, reason in cases:
        altered = _signed_again(package, signer, changed)
        if reason is None:  # what the line says beside its entry is for readers only
            check_package(io.BytesIO(altered), key)
        else:
            assert reason in _refusal(altered, key), changed


@pytest.mark.parametrize(
    "hidden",
    [
        "",
        "WHERE partition = ''",
        "WHERE seq = (SELECT min(seq) FROM draws)",
        "WHERE seq = (SELECT max(seq) FROM draws)",
    ],
)
def test_a_package_without_all_draws_is_not_made(
    client: TestClient, drawn: Any, database: Database, hidden: str
) -> None:
    """The attack: whoever writes the database hides draws for the moment in which the package is made."""
    unprotected(database, "draws", f"DELETE FROM draws {hidden}")
    broken_off = _package(client, drawn)
    assert "expected a whole ZIP archive" in _refusal(broken_off, _key(client))


@pytest.mark.parametrize(
    "shown",
    [
        "DELETE FROM descriptions WHERE seq = (SELECT max(seq) FROM descriptions)",  # earlier metadata
        "DELETE FROM descriptions WHERE release_id IS NOT NULL",
        "DELETE FROM descriptions WHERE release_id IS NULL",
        "UPDATE descriptions SET release_id = NULL WHERE seq = (SELECT max(seq) FROM descriptions)",
    ],
)
def test_no_document_has_other_metadata_than_the_journal(
    client: TestClient, drawn: Any, database: Database, shown: str
) -> None:
    at = f"{_PATH}/{drawn['id']}"
    json_of(client.patch("/v1/accounts/people", json={"metadata": {"intended_use": "of all"}}))
    for use in ("early", "late"):
        metadata = examples.RELEASE_CHANGE["metadata"] | {"description": "Totals.", "intended_use": use}
        json_of(client.patch(at, json={"metadata": metadata}))
    entry = json_of(client.get(f"{at}/registry-entry", headers={"Accept": "application/json"}))
    assert entry["deployment"]["basic"]["intended_use"] == "late"

    unprotected(database, "descriptions", shown)
    for path in (f"{at}/registry-entry", f"{at}/package"):
        assert "the description is not as" in problem_of(client.get(path), "unavailable")["detail"]


def test_who_may_have_one_and_of_what(client: TestClient, drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at = f"{_PATH}/{drawn['id']}/package"
    assert client.get(at, headers=make_key(client, "auditor")).status_code == 200
    problem_of(client.get(at, headers=make_key(client, "auditor", accounts=["elsewhere"])), "forbidden")
    problem_of(client.get(f"{_PATH}/none/package"), "not_found")
    problem_of(client.get(at, params={"confidence": "1"}), "validation")
    problem_of(client.get(at, params={"other": "1"}), "validation")
    problem_of(client.get(at, headers={"Accept": "text/html"}), "not_acceptable")
    held = release(client, {"type": "gaussian", "rho": "0.1"}, reserve_for="P1D")
    assert "is reserved" in problem_of(client.get(f"{_PATH}/{held['id']}/package"), "conflict")["detail"]
    monkeypatch.setattr(packages, "MOST_COUNTS", 105)
    assert "at most 105" in problem_of(client.get(at), "too_large")["detail"]
