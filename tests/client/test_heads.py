"""Heads that a client keeps on disk."""

import json
import threading
from pathlib import Path

import pytest

from privacy_budget_ledger import Client, Head, KeptHeads, errors, plans
from tests.api.calls import STEWARD
from tests.client.conftest import AT_ONCE, opened
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
        with pytest.raises(OSError, match="no space left"):
            heads.keep("town", _SECOND)
    assert heads.of("town") == _FIRST
    assert [path.name for path in tmp_path.iterdir()] == ["town.json"]


def _full(_: int) -> None:
    raise OSError("no space left on device")


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
