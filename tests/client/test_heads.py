"""Heads that a client keeps on disk."""

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from privacy_budget_ledger import Client, Head, KeptHeads, errors, plans
from tests.api.calls import STEWARD
from tests.client.conftest import AT_ONCE, answered, faulty, opened
from tests.processes import Served

_FIRST, _SECOND, _OTHER = Head(1, "0" * 64), Head(2, "1" * 64), Head(2, "2" * 64)
_SMALL = plans.DiscreteGaussian(rho="0.01")


def test_the_newest_head_is_kept(tmp_path: Path) -> None:
    heads = KeptHeads(tmp_path / "new" / "directory")
    assert heads.of("town") is None
    heads.keep("town", _SECOND)
    heads.keep("town", _FIRST)  # of an older answer that is repeated
    assert heads.of("town") == KeptHeads(tmp_path / "new" / "directory").of("town") == _SECOND
    assert heads.of("village") is None


def test_a_head_of_the_same_number_and_another_hash_is_a_rollback(tmp_path: Path) -> None:
    heads = KeptHeads(tmp_path)
    heads.keep("town", _SECOND)
    with pytest.raises(errors.LedgerRolledBack, match="another hash"):
        heads.keep("town", _OTHER)
    assert heads.of("town") == _SECOND


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"head": 1}', '{"head": "1:abc"}', '"head"'])
def test_a_damaged_file_is_an_error_and_not_a_first_use(text: str, tmp_path: Path) -> None:
    heads = KeptHeads(tmp_path)
    (tmp_path / "town.json").write_text(text)
    with pytest.raises(errors.UnreadableHead, match=r"town\.json"):
        heads.of("town")
    with pytest.raises(errors.UnreadableHead):
        heads.keep("town", _SECOND)
    assert (tmp_path / "town.json").read_text() == text


def test_no_name_leaves_the_directory(tmp_path: Path) -> None:
    heads = KeptHeads(tmp_path / "heads")
    heads.keep("/".join(("..", "town")), _FIRST)
    heads.keep(".", _SECOND)
    assert heads.of("/".join(("..", "town"))) == _FIRST
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = KeptHeads(tmp_path)
    heads.keep("town", _FIRST)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", _full)
        with pytest.raises(errors.HeadNotKept, match=r"town\.json: No space left on device"):
            heads.keep("town", _SECOND)
    assert heads.of("town") == _FIRST
    assert [path.name for path in tmp_path.iterdir()] == ["town.json"]


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_heads_are_for_their_owner_alone(tmp_path: Path) -> None:
    KeptHeads(tmp_path / "heads").keep("town", _FIRST)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "heads", tmp_path / "heads" / "town.json")]
    assert modes == [0o700, 0o600]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "town.json").mkdir()
    with pytest.raises(errors.UnreadableHead, match=r"town\.json: Is a directory"):
        KeptHeads(tmp_path).of("town")


def test_a_charge_whose_head_is_not_kept_continues_under_the_errors_key(
    served: Served, ledger: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = opened(ledger)
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", _full)
            with pytest.raises(errors.HeadNotKept) as caught:
                client.register(account.name, name="table", plan=_SMALL)
        key = caught.value.idempotency_key
        release = client.register(account.name, name="table", plan=_SMALL, idempotency_key=key)
    assert KeptHeads(tmp_path).of(account.name) == release.head == ledger.account(account.name).head


def test_threads_keep_the_newest(tmp_path: Path) -> None:
    heads = KeptHeads(tmp_path)
    keepers = [threading.Thread(target=heads.keep, args=("town", Head(seq, f"{seq:064x}"))) for seq in range(1, 40)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()
    assert heads.of("town") == Head(39, f"{39:064x}")


def test_a_client_keeps_the_heads_that_it_sees(served: Served, tmp_path: Path) -> None:
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        account = opened(client)
        kept = KeptHeads(tmp_path)
        assert kept.of(account.name) == account.head
        release = client.register(account.name, name="table", plan=_SMALL)
        assert kept.of(account.name) == release.head
        client.release(account.name, release.id)
        client.register(account.name, name="not yet", plan=_SMALL, dry_run=True)
        assert kept.of(account.name) == release.head
        assert json.loads((tmp_path / f"{account.name}.json").read_text()) == {
            "account": account.name,
            "head": str(release.head),
        }


def test_a_ledger_without_the_kept_head_is_refused(served: Served, ledger: Client, tmp_path: Path) -> None:
    account = opened(ledger)
    KeptHeads(tmp_path).keep(account.name, Head(7, "0" * 64))
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        with pytest.raises(errors.LedgerRolledBack) as caught:
            client.register(account.name, name="table", plan=_SMALL)
        with pytest.raises(errors.LedgerRolledBack):
            client.account(account.name)
    assert caught.value.members["account"] == account.name
    assert ledger.account(account.name).head == account.head  # nothing was charged
    assert KeptHeads(tmp_path).of(account.name) == Head(7, "0" * 64)


def test_answers_that_may_be_older_are_no_rollback(served: Served, tmp_path: Path) -> None:
    """A repeated answer, an old release, and the figures of an earlier moment have heads of their time."""
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        account = opened(client)
        first = client.register(account.name, name="first", plan=_SMALL, idempotency_key="first")
        second = client.register(account.name, name="second", plan=_SMALL)
        assert client.register(account.name, name="first", plan=_SMALL, idempotency_key="first").head == first.head
        assert client.release(account.name, first.id).head == first.head
        client.request("GET", f"/v1/accounts/{account.name}/balance?as_of=1")
        assert KeptHeads(tmp_path).of(account.name) == second.head
        wanted: dict[str, Any] = {"name": "drawn", "mechanism": _SMALL, "idempotency_key": "drawn"}
        drawn = client.draw(account.name, pl.DataFrame({"count": [1]}), **wanted)
        third = client.register(account.name, name="third", plan=_SMALL)
        again = client.draw(account.name, pl.DataFrame({"count": [1]}), **wanted)
        assert (again.replayed, again.head) == (True, drawn.head)
        assert KeptHeads(tmp_path).of(account.name) == third.head
        named = {"metadata": {"publication_date": "2026-11-26"}}
        described = client.request("PATCH", f"/v1/accounts/{account.name}/releases/{first.id}", json=named)
        assert KeptHeads(tmp_path).of(account.name) == Head(**described["head"])


def test_an_answer_with_an_older_head_than_the_expected_one_is_a_rollback(served: Served, tmp_path: Path) -> None:
    """A service that does not read the expected head is found out too."""
    old = f'"head": {{"seq": 1, "hash": "{"0" * 64}"}}'
    account = f'{{"name": "town", "state": "open", "remaining": {{}}, {old}}}'.encode()
    calls: list[Callable[[Client], object]] = [
        lambda client: client.account("town"),
        lambda client: client.request("GET", "/v1/accounts/town/history?points=2"),
        lambda client: client.request("POST", "/v1/accounts/town/releases", json={}, idempotency_key="mine"),
    ]
    for call in calls:
        KeptHeads(tmp_path).keep("town", _SECOND)
        client, _ = faulty(served, answered(200, account, Content_Type="application/json"), heads=tmp_path)
        with client, pytest.raises(errors.LedgerRolledBack, match="older than the one that was expected") as caught:
            call(client)
        assert (caught.value.status, caught.value.members["account"]) == (412, "town")
        assert KeptHeads(tmp_path).of("town") == _SECOND


def test_the_heads_of_batches_and_signed_heads_are_kept(served: Served, ledger: Client, tmp_path: Path) -> None:
    account = opened(ledger)
    path = f"/v1/accounts/{account.name}"
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        client.request("GET", f"{path}/head")
        assert KeptHeads(tmp_path).of(account.name) == account.head
        two = {"releases": [{"name": name, "plan": _SMALL.document()} for name in ("one", "two")]}
        client.request("POST", f"{path}/releases/batch", json=two)
        assert KeptHeads(tmp_path).of(account.name) == ledger.account(account.name).head != account.head
