"""Points of the journals: the next one is found, and those of the journals that were used last are kept."""

import pytest

from service.ledger.storage import chain_points
from service.ledger.storage.chain_points import ChainPoints
from service.ledger.storage.newest_heads import KnownHead


def _head(account: str, seq: int) -> KnownHead:
    return KnownHead(account, seq, f"{seq:064x}")


def test_the_next_point_is_at_or_after_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_points, "_APART", 4)
    points = ChainPoints()
    points.add([_head("a", seq) for seq in (7, 8, 9, 16)])
    assert points.next("b", 1, 100) is None
    expected = {1: 8, 7: 8, 8: 8, 9: 16, 16: 16}
    assert {seq: points.next("a", seq, 100) for seq in expected} == {
        seq: _head("a", at) for seq, at in expected.items()
    }
    assert points.next("a", 9, 15) is None
    assert points.next("a", 17, 100) is None


def test_the_journals_that_were_used_last_keep_their_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_points, "_APART", 1)
    monkeypatch.setattr(chain_points, "_MOST", 5)
    points = ChainPoints()
    for account in "abc":
        points.add([_head(account, seq) for seq in (1, 2)])
        points.add([_head("a", 1)])
    assert [points.next(account, 1, 2) is None for account in "abc"] == [False, True, False]
