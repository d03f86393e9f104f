"""Checks of a ledger after any fault, from outside: against what clients were told, and from scratch.

Nothing here uses the service's code. Hashes are computed anew by RFC 8785, totals from the operations' own costs.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import psycopg
from sqlalchemy import make_url

from tests.api.calls import Client, json_of, pages_of
from tests.faults import linearizable
from tests.faults.linearizable import NEVER, Read, Refusal, Write
from tests.faults.load import FINAL, SETTLED, Attempt, Balance, Operation, counted
from tests.postgres_server import libpq_url

_HALVES = {
    "a release without its entry": """
        SELECT releases.id FROM releases LEFT JOIN journal
        ON journal.account_id = releases.account_id AND journal.seq = releases.seq AND journal.release_id = releases.id
        AND journal.kind IN ('committed', 'reserved', 'proposed') WHERE journal.seq IS NULL""",
    "a hold of what is not held": """
        SELECT id FROM holds JOIN releases ON id = release_id WHERE state NOT IN ('reserved', 'proposed')""",
    "a held release without its hold": """
        SELECT id FROM releases WHERE state IN ('reserved', 'proposed')
        AND NOT EXISTS (SELECT 1 FROM holds WHERE release_id = id AND holds.account_id = releases.account_id)""",
    "a hold in an account but not in that above": """
        SELECT release_id FROM holds JOIN accounts ON accounts.id = account_id WHERE parent_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM holds above WHERE above.release_id = holds.release_id
        AND above.account_id = parent_id)""",
    "a draw without its entry": """
        SELECT draws.id FROM draws LEFT JOIN journal
        ON journal.account_id = draws.account_id AND journal.seq = draws.seq
        AND journal.release_id = draws.release_id AND journal.kind = 'drawn' WHERE journal.seq IS NULL""",
    "a draw of what is not committed": """
        SELECT draws.id FROM draws JOIN releases ON releases.id = release_id WHERE state <> 'committed'""",
    "an entry without its draw": """
        SELECT journal.seq FROM journal LEFT JOIN draws
        ON journal.account_id = draws.account_id AND journal.seq = draws.seq
        WHERE journal.kind = 'drawn' AND draws.id IS NULL""",
    "a tag without its release": """
        SELECT tag FROM release_tags LEFT JOIN releases
        ON releases.account_id = release_tags.account_id AND releases.seq = release_tags.seq
        WHERE releases.id IS NULL""",
    "a head that is not the last entry": """
        SELECT name FROM accounts LEFT JOIN journal ON journal.account_id = accounts.id AND journal.seq = head_seq
        AND journal.hash = head_hash WHERE journal.seq IS NULL
        OR EXISTS (SELECT 1 FROM journal later WHERE later.account_id = accounts.id AND later.seq > head_seq)""",
    "spending that is not that of the releases": """
        SELECT name FROM accounts WHERE releases <>
        (SELECT coalesce(sum(occurrences + reserved), 0) FROM spending WHERE account_id = accounts.id)""",
    "a number of releases that is not theirs": """
        SELECT name FROM accounts WHERE releases <> (SELECT count(*) FROM releases JOIN accounts own
        ON own.id = releases.account_id WHERE (own.id = accounts.id OR own.parent_id = accounts.id)
        AND releases.state NOT IN ('voided', 'expired'))""",
}  # the last two for plans of one mechanism, and for lines of two accounts


@dataclass(frozen=True)
class Found:
    """An account as it is read over HTTP.

    Attributes:
        offsets: of its periods; none: it has none.
        total: what counts against the cap; in an account with periods that of the worst window.
        owners: the entries of each operation, by its name, and those of the account itself, by its own.
        refused: the entries that note refusals, likewise.
        expired: those that say that the hold of an operation is over, likewise.
    """

    account: str
    offsets: Sequence[int]
    cap: Fraction
    total: Fraction
    head: dict[str, Any]
    entries: list[dict[str, Any]]
    releases: list[dict[str, Any]]
    owners: dict[str, list[int]]
    refused: dict[str, list[int]]
    expired: dict[str, list[int]]


def check(
    client: Client,
    account: str,
    operations: Sequence[Operation],
    balances: Sequence[Balance],
    under: Sequence[str] = (),
    offsets: Sequence[int] = (),
) -> Found:
    """All about an account at rest; ``operations`` are those that were ever tried on it and on those ``under`` it.

    Args:
        offsets: those of the account's periods; none: it has no periods.
    """
    found = _read(client, account, offsets)
    _check_chain(found)
    tried = [operation for operation in operations if operation.account in {account, *under}]
    is_committed = [operation for operation in tried if _has_landed(client, found, operation)]
    assert found.owners.keys() == {operation.name for operation in is_committed} | {account}
    own = [operation for operation in is_committed if operation.account == account]
    assert len(found.releases) == sum(operation.releases for operation in own)
    assert found.expired.keys() <= found.owners.keys()
    assert all(len(seqs) == 1 for seqs in found.expired.values())
    counted_now = [operation for operation in is_committed if operation.name not in found.expired]
    windows = _windows(offsets, [(operation.cost, operation.periods) for operation in counted_now])
    assert found.total == max(windows.values()) <= found.cap
    if offsets:
        _check_periods(client, account, offsets, windows)
    assert _unexplained(found, tried, [read for read in balances if read.account == account]) is None
    return found


def _windows(
    offsets: Sequence[int], costs: Sequence[tuple[Fraction, tuple[int, int] | None]]
) -> dict[int | None, Fraction]:
    """Return the sum of the costs in each window of an account with periods, and of all of them in another."""
    windows: dict[int | None, Fraction] = {} if offsets else {None: Fraction(0)}
    for cost, periods in costs:
        first, last = periods or (0, -1)
        touched = {period - offset for period in range(first, last + 1) for offset in offsets} if offsets else {None}
        for window in touched:
            windows[window] = windows.get(window, Fraction(0)) + cost
    return windows


def _check_periods(client: Client, account: str, offsets: Sequence[int], windows: dict[int | None, Fraction]) -> None:
    """Compare what the list of periods says with the worst of the windows that hold each."""
    page = json_of(client.get(f"/v1/accounts/{account}/periods"))
    assert page["items"]
    assert page["next_cursor"] is None
    for item in page["items"]:
        worst = max(windows.get(item["period"] - offset, Fraction(0)) for offset in offsets)
        assert worst <= Fraction(item["counted"]) <= worst + Fraction(1, 10**9)


def _read(client: Client, account: str, offsets: Sequence[int]) -> Found:
    path = f"/v1/accounts/{account}"
    balance = json_of(client.get(f"{path}/balance"))
    entries = list(_items(client, f"{path}/journal"))
    owners, refused, expired = _owners(account, [item["entry"] for item in entries])
    return Found(
        account=account,
        offsets=offsets,
        cap=Fraction(balance["budget"]["epsilon"]),
        total=counted(balance),
        head=balance["head"],
        entries=entries,
        releases=list(_items(client, f"{path}/releases")),
        owners=owners,
        refused=refused,
        expired=expired,
    )


def _items(client: Client, path: str) -> Iterator[Any]:
    return chain.from_iterable(pages_of(client, path, limit=1000))


_Owners = dict[str, list[int]]


def _owners(account: str, entries: Sequence[dict[str, Any]]) -> tuple[_Owners, _Owners, _Owners]:
    """Names of releases and partitions begin with their operation's; what settles a hold is named after it."""
    names: dict[str, str] = {}  # of the operations that registered releases, by the releases' ids
    owners: _Owners = {}
    refused: _Owners = {}
    expired: _Owners = {}
    for entry in entries:
        content, release = entry["content"], entry["release"]
        match entry["kind"]:
            case "refused":
                refused.setdefault(content["name"].partition("/")[0], []).append(entry["seq"])
                continue
            case "expired":
                expired.setdefault(names[release], []).append(entry["seq"])
                continue
            case "committed" | "reserved" if "name" in content:
                owner = names[release] = content["name"].partition("/")[0]
            case "committed" | "voided":
                owner = names[release] + SETTLED
            case "drawn":
                owner = content["partition"] or names[release]
            case _:
                owner = account
        owners.setdefault(owner, []).append(entry["seq"])
    return owners, refused, expired


def _check_chain(found: Found) -> None:
    """Every hash is that of its entry, nothing is missing, and the journal says what the releases and totals do."""
    previous, seq = "00" * 32, 0
    for item in found.entries:
        seq += 1
        assert (item["previous"], item["entry"]["seq"]) == (previous, seq)
        previous = hashlib.sha256(bytes.fromhex(previous) + _canonical(item["entry"])).hexdigest()
        assert item["hash"] == previous
    assert found.head == {"seq": seq, "hash": previous}
    entries = [item["entry"] for item in found.entries]
    charges = [entry for entry in entries if "price" in entry["content"]]
    own = [(entry["release"], entry["seq"]) for entry in charges if "origin" not in entry["content"]]
    assert [(release["id"], release["head"]["seq"]) for release in found.releases] == own
    over = {entry["release"] for entry in entries if entry["kind"] in {"voided", "expired"}}
    stated = [entry["content"] for entry in charges if entry["release"] not in over]
    costs = [(Fraction(content["price"]["epsilon"]), _range(content.get("periods"))) for content in stated]
    assert max(_windows(found.offsets, costs).values()) == found.total


def _range(periods: dict[str, Any] | None) -> tuple[int, int] | None:
    """Return the first and the last period that an entry states."""
    if periods is None:
        return None
    return (periods["from"], periods["to"]) if "from" in periods else (periods["list"][0], periods["list"][-1])


def _canonical(value: Any) -> bytes:
    """RFC 8785 of a value without numbers other than integers: names in the order of their UTF-16 code units."""

    def ordered(value: Any) -> Any:
        assert not isinstance(value, float)
        if isinstance(value, dict):
            return {
                name: ordered(value[name]) for name in sorted(value, key=lambda name: str(name).encode("utf-16-be"))
            }
        return list(map(ordered, value)) if isinstance(value, list) else value

    return json.dumps(ordered(value), ensure_ascii=False, separators=(",", ":")).encode()


def _has_landed(client: Client, found: Found, operation: Operation) -> bool:
    """Tell whether an operation is in the ledger: whole, as its client was told, and surely if it was told."""
    places = found.owners.get(operation.name)
    if places is None:
        told_here = operation.account == found.account or operation.releases or operation.settles
        assert not (operation.succeeded and told_here), f"acknowledged and lost: {operation}"
        return False
    above = operation.account != found.account  # to where no draws are reported
    entries = operation.releases + operation.settles + (0 if above else operation.draws)
    assert len(places) == entries, f"half there, or twice: {operation}"
    assert places == [*range(places[0], places[-1] + 1)], f"torn apart: {operation}"
    answers = {attempt.body for attempt in operation.attempts if attempt.status in FINAL}
    assert len(answers) <= 1, f"several answers to one key: {operation}"
    for told in map(json.loads, answers):
        assert operation.succeeded, f"refused and there: {operation}"
        if above:
            continue
        last = told["releases"][-1] if "releases" in told else told
        entry = found.entries[places[-1] - 1]
        assert last["head"] == {"seq": places[-1], "hash": entry["hash"]}
        if operation.draws:
            assert entry["entry"]["content"]["draw"] == told["draw"]
            assert entry["entry"]["content"]["noisy_hash"] == _noisy_hash(told["noisy"])
            if len(operation.attempts) > 1:
                assert json_of(client.get(f"/v1/accounts/{operation.account}/draws/{told['draw']}")) == told
    return True


def _noisy_hash(noisy: Sequence[int]) -> str:
    return hashlib.sha256(b"".join(value.to_bytes(8, "little", signed=True) for value in noisy)).hexdigest()


def _unexplained(found: Found, tried: Sequence[Operation], balances: Sequence[Balance]) -> str | None:
    """Return the answers to an account's operations that no order of them explains.

    A refusal is noted in a transaction of its own, before it is told: a write that changes nothing.
    """
    writes = [Write(-NEVER, -NEVER, seq, seq, Fraction(0)) for seq in found.owners[found.account]]
    others: list[Read | Refusal] = [Read(one.asked, one.answered, one.seq, one.total) for one in balances]
    for operation in tried:
        asked, answer = operation.attempts[0].asked, operation.answer
        answered = NEVER if answer is None else answer.answered
        places = found.owners.get(operation.name)
        noted = found.refused.get(operation.name, [])
        writes += [Write(asked, answered, seq, seq, Fraction(0)) for seq in noted]
        writes += [Write(asked, NEVER, seq, seq, -operation.cost) for seq in found.expired.get(operation.name, [])]
        if places is not None:
            writes.append(Write(asked, answered, places[0], places[-1], operation.cost))
        elif answer is not None and not operation.succeeded:
            assert noted or operation.account != found.account
            others += [
                Refusal(asked, answered, operation.cost, remaining)
                for remaining in _remaining(found, operation, answer)
            ]
    return linearizable.fault(found.cap, writes, others)


def _remaining(found: Found, operation: Operation, answer: Attempt) -> list[float | None]:
    """Return what a refusal said is left in this account, if it failed; of a batch, what its first ones leave."""
    problem = answer.json()
    assert problem["type"] == "/problems/budget_exceeded", problem
    failed = [failure["remaining"] for failure in problem["failures"] if failure["account"] == found.account]
    return [None if operation.releases > 1 else remaining for remaining in failed]


def check_tables(url: str) -> None:
    """No half of anything is in the database itself, and SQLite's file is whole."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(f"file:{make_url(url).database}?mode=ro", uri=True)) as session:
            assert session.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert session.execute("PRAGMA foreign_key_check").fetchall() == []
            halves = {what: session.execute(query).fetchall() for what, query in _HALVES.items()}
    else:
        with psycopg.connect(libpq_url(url)) as session:
            halves = {what: session.execute(query.encode()).fetchall() for what, query in _HALVES.items()}
    assert {what: rows for what, rows in halves.items() if rows} == {}
