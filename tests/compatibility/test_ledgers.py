"""Ledgers that earlier versions exported: each is imported on either database, verified, priced again and asked."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from fractions import Fraction
from itertools import islice, product
from pathlib import Path
from typing import Any, get_args

import pytest

from service.ledger.journal.journal import Kind
from service.ledger.releases import expiry_keeper
from service.privacy.plans.walking import Neighbouring
from tests.api.calls import contract
from tests.compatibility.comparing import agree, loose_figures, sharpened, without_added
from tests.compatibility.earlier_accountant import price_as
from tests.compatibility.files import DATABASES, REFUSED, VERSIONS, read_answers
from tests.compatibility.installation import Installation, reports
from tests.compatibility.ledger import RELATIONS, mechanisms, nodes
from tests.ledger.ledgers import Clock

_RECEIPT = '{"statement": "receipt"'


def _moved(first: int) -> pytest.MarkDecorator:
    """Import one export of each version on the other kind of database; the longer suite each export on each kind.

    Args:
        first: the place in ``DATABASES`` of what the first version's export was written on, and every other's. Two
            tests with different ones import both exports of each version.
    """
    cases = []
    for number, version in enumerate(VERSIONS):
        for written_on, kind in product(DATABASES, DATABASES):
            here = written_on != kind and written_on == DATABASES[(number + first) % 2]
            marks = () if here else pytest.mark.statistics
            cases.append(pytest.param(version, written_on, kind, marks=marks, id=f"{version.name}-{written_on}-{kind}"))
    return pytest.mark.parametrize(("version", "written_on", "database_url"), cases, indirect=["database_url"])


@_moved(first=0)
def test_a_ledger_is_what_it_was_when_it_was_exported(
    version: Path, written_on: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    price_as(version, monkeypatch)
    file, installation = version / f"{written_on}.export.jsonl", Installation(tmp_path, database_url)
    exported = file.read_text(encoding="utf-8").splitlines()
    heads = json.loads(exported[0])["accounts"]

    imported = installation.run("import", str(file))
    assert imported.splitlines() == [
        f"{head['account']}: {head['seq']} entries, head {head['seq']}:{head['hash']}" for head in heads
    ]
    assert reports(installation, file) == (version / f"{written_on}.verify.txt").read_text(encoding="utf-8")
    for head in heads[::3]:  # of some, as each takes a command; the others' are those that the import printed
        kept = f"{head['seq']}:{head['hash']}"
        verdict = installation.run("verify", "--account", head["account"], "--head", kept)
        assert verdict == f"{head['account']}: {head['seq']} entries, all valid\n"
    again = installation.run("export").splitlines()
    assert again[1:] == exported[1:]
    assert json.loads(again[0])["accounts"] == heads


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_present_accountant_finds_no_price_too_low(version: Path, database_url: str, tmp_path: Path) -> None:
    """It prices only randomised response with more than two values otherwise, and lower."""
    file, installation = version / "sqlite.export.jsonl", Installation(tmp_path, database_url)
    installation.run("import", str(file))
    recorded = (version / "sqlite.verify.txt").read_text(encoding="utf-8")
    *found, last = reports(installation, file).splitlines()
    changes = [line for line in found if line not in recorded]
    for line in changes:
        _, release, change = line.split(": ")
        ((was, present),) = re.findall(r"^rho (\S+) -> (\S+)$", change)
        assert Fraction(present) < Fraction(was), line
        responses = [node for node in _nodes(_plan_of(file, release.removeprefix("release "))) if "values" in node]
        assert any(node["values"] > 2 for node in responses), line
    assert changes
    assert last == f"{len(changes)} releases priced otherwise; nothing was changed"


def _plan_of(file: Path, release: str) -> Any:
    entries = [
        json.loads(json.loads(line).get("entry", "{}")) for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return next(entry["content"]["plan"] for entry in entries if entry.get("release") == release)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.statistics)])
@_moved(first=1)
def test_a_ledger_answers_as_when_it_was_exported(
    version: Path, every: int, written_on: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit, and to the signatures of heads and receipts: every third answer, others of each database.

    What is spent is added up in the order of the digests of its rows. On PostgreSQL 0.4.0 did so as they lay in its
    file, and answered otherwise in the last digits.
    """
    price_as(version, monkeypatch)
    file, time = version / f"{written_on}.export.jsonl", Clock(monkeypatch)
    with file.open(encoding="utf-8") as opened:
        time.moment = datetime.fromisoformat(json.loads(opened.readline())["at"])
    installation = Installation(tmp_path, database_url)
    installation.run("import", str(file))
    loose = loose_figures(version)
    ordered = written_on == "sqlite" or version.name != "0.4.0"
    monkeypatch.setattr(expiry_keeper, "_LOOKS", 10**9)  # overdue reservations stay, however long the questions take
    first = DATABASES.index(written_on) % every
    with installation.client() as client:
        for question, answer in islice(read_answers(version / f"{written_on}.answers.tsv.gz"), first, None, every):
            found, added_up = question.asked(client) or REFUSED, "/balance" in question.path and not ordered
            if found.startswith(_RECEIPT) and answer.startswith(_RECEIPT):
                answer = _as_recorded(answer, found)  # noqa: PLW2901 - the answer as it is to be now
            if loose or added_up:
                assert agree(found, answer, question.path, everywhere=added_up), question
            else:
                expected = _figures(answer)
                same = without_added(_figures(found), expected) == expected
                assert same or sharpened(found, answer), question


def _as_recorded(answer: str, found: str) -> str:
    """Return a receipt in which a release whose time is over is held, as the one that was found states it.

    Until 0.8.0 receipts stated it as expired although its expiry was not recorded yet.
    """
    before, now = json.loads(answer), json.loads(found)
    state, end = now["release"]["state"], now["release"]["expires_at"]
    if state not in ("proposed", "reserved") or end is None or end > now["issued_at"]:
        return answer
    held = answer.replace('"state": "expired"', f'"state": "{state}"', 1)
    return held.replace(before["signature"], now["signature"])


def _figures(answer: str) -> Any:
    """An answer with its numbers as they are written; members may come in another order."""
    return json.loads(answer, parse_float=str, parse_int=str)


def _receipts(version: Path, written_on: str) -> Iterator[Any]:
    for _, answer in read_answers(version / f"{written_on}.answers.tsv.gz"):
        if answer.startswith(_RECEIPT):
            yield json.loads(answer)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("written_on", DATABASES)
@pytest.mark.parametrize("most", [4, pytest.param(1000, marks=pytest.mark.statistics)])
def test_receipts_stay_valid(version: Path, written_on: str, most: int, tmp_path: Path) -> None:
    """As many of each state, as each is verified by a command of its own."""
    installation, states = Installation(tmp_path, f"sqlite:///{tmp_path / 'none.db'}"), Counter[str]()
    for receipt in _receipts(version, written_on):
        if states[receipt["release"]["state"]] == most:
            continue
        file = tmp_path / "receipt.json"
        file.write_text(json.dumps(receipt), encoding="utf-8")
        said = installation.run("verify-receipt", str(file), "--public-key", receipt["public_key"])
        assert said.startswith(f"valid: {receipt['release']['name']!r} in {receipt['account']!r}, ")
        states[receipt["release"]["state"]] += 1
    assert states.keys() == {"proposed", "reserved", "committed", "voided", "expired"}


class _Known:
    """The names that the code knows, taken from the contract where it lists them."""

    def __init__(self) -> None:
        schemas = contract()["components"]["schemas"]
        self.kinds = set(get_args(Kind))
        self.nodes = set(schemas["Plan"]["discriminator"]["mapping"])
        self.definitions = set(schemas["Definition"]["enum"])
        self.states = set(schemas["ReceiptRelease"]["properties"]["state"]["enum"])
        self.relations = {relation.value for relation in Neighbouring}


class _Written(_Known):
    """The names that an export holds."""

    def __init__(self, file: Path) -> None:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        entries = [json.loads(line["entry"]) for line in lines if "entry" in line]
        contents = [entry["content"] for entry in entries]
        plans = [node for content in contents for node in _nodes(content.get("plan"))]
        self.kinds = {entry["kind"] for entry in entries}
        self.nodes = {node["type"] for node in plans}
        self.definitions = {content["budget"]["definition"] for content in contents if content.get("budget")}
        self.states = set()
        self.relations = {content["neighbouring"] for content in contents if "neighbouring" in content}
        self.partitions = {type(node.get("partitions")) for node in plans}
        self.draws = {frozenset(line) for line in lines if "draw" in line}
        self.actors = {("key" in entry, entry["actor"] is None) for entry in entries}
        self.parents = {content["parent"] is None for content in contents if "parent" in content}


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if plan is not None:
        yield plan
        for part in (*plan.get("parts", ()), plan.get("part")):
            yield from _nodes(part)


@pytest.mark.parametrize("written_on", DATABASES)
def test_the_fixtures_hold_everything_that_the_code_knows(written_on: str) -> None:
    """A new kind of entry, state or budget needs a fixture: see README.md."""
    known, found = _Known(), [_Written(version / f"{written_on}.export.jsonl") for version in VERSIONS]
    for what in ("kinds", "definitions", "relations"):
        assert set().union(*(getattr(one, what) for one in found)) >= getattr(known, what), what
    states = {receipt["release"]["state"] for version in VERSIONS for receipt in _receipts(version, written_on)}
    assert states >= known.states


def test_the_next_fixtures_hold_every_mechanism_and_node() -> None:
    """Earlier ones hold those of their time: a new one enters the fixtures of the version that is written next."""
    plans = [plan for relation in RELATIONS for plan in (*mechanisms(relation), *nodes(relation))]
    assert {node["type"] for plan in plans for node in _nodes(plan)} == _Known().nodes


@pytest.mark.parametrize("written_on", DATABASES)
def test_the_fixtures_hold_what_no_list_names(written_on: str) -> None:
    first = _Written(VERSIONS[0] / f"{written_on}.export.jsonl")
    assert first.partitions == {type(None), int, list}
    removed = {"noisy_removed_at"}
    drawn = {"draw", "noisy"}
    assert first.draws == {frozenset(drawn | more) for more in (set(), removed, {"layout"} | removed, {"layout"})}
    assert first.actors == {(True, False), (False, False), (False, True)}
    assert first.parents == {True, False}
