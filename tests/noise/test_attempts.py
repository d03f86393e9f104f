"""A request that failed gets its noise again; one that was committed, or refused before, never does."""

import gc
import pickle

import pytest

from service.noise import Attempts, Keystream, attempts


def _bits(kept: Attempts, identity: str, principal: str = "ann", *, fails: bool = True) -> bytes:
    """The noise of an attempt, which reaches the database where it ``fails`` there."""
    key = kept.key(identity)
    assert key is not None
    if fails:
        kept.keep(principal, identity, key)
    return Keystream(key.key).read(16)


def test_a_failed_attempt_repeats_its_noise_and_a_committed_one_is_forgotten() -> None:
    kept = Attempts()
    first = _bits(kept, "a")
    assert _bits(kept, "b") != first
    assert _bits(kept, "a") == first
    kept.forget("ann", "a")
    assert _bits(kept, "a") != first


def test_attempts_that_are_under_way_share_their_noise_and_leave_nothing_behind() -> None:
    kept = Attempts()
    one, other = kept.key("a"), kept.key("a")
    assert one is not None
    assert other is one
    before = one.key
    assert pickle.loads(pickle.dumps(one)).key == before
    assert before.hex() not in repr(one)
    assert str(before) not in repr(one)
    del one, other
    gc.collect()
    after = kept.key("a")
    assert after is not None
    assert after.key != before


def test_a_request_that_is_not_known_again_is_a_new_one() -> None:
    assert Attempts().key(None) is None
    assert Keystream().read(16) != Keystream().read(16)


def test_only_a_principals_own_failures_push_out_its_oldest_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST", 3)
    kept = Attempts()
    first, *_, last = (_bits(kept, name) for name in "abc")
    for number in range(9):
        _bits(kept, f"refused {number}", fails=False)
        _bits(kept, f"of another {number}", "bob")
    assert _bits(kept, "a") == first
    _bits(kept, "d")
    assert _bits(kept, "c") == last
    assert _bits(kept, "a") != first
