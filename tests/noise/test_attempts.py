"""A request that failed gets its noise again; one that was committed never does."""

import pytest

from service.noise import Attempts, Keystream, attempts


def _bits(kept: Attempts, identity: str | None) -> bytes:
    return Keystream(kept.key(identity)).read(16)


def test_a_failed_attempt_repeats_its_noise_and_a_committed_one_is_forgotten() -> None:
    kept = Attempts()
    first = _bits(kept, "a")
    assert _bits(kept, "b") != first
    assert _bits(kept, "a") == first
    kept.forget("a")
    assert _bits(kept, "a") != first


def test_a_request_that_is_not_known_again_is_a_new_one() -> None:
    kept = Attempts()
    assert _bits(kept, None) != _bits(kept, None)


def test_the_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST", 3)
    kept = Attempts()
    first, *_, last = (_bits(kept, name) for name in "abcd")
    assert _bits(kept, "d") == last
    assert _bits(kept, "a") != first
