"""A request that failed gets its noise again; one that was committed never does."""

from contextlib import suppress

import pytest

from service.noise import Attempts, attempts


def _bits(kept: Attempts, identity: str | None, *, fails: bool) -> bytes:
    with suppress(ZeroDivisionError), kept.keystream(identity) as keystream:
        found = keystream.read(16)
        _ = 1 / (not fails)
    return found


def test_a_failed_attempt_repeats_its_noise_and_a_committed_one_is_forgotten() -> None:
    kept = Attempts()
    first = _bits(kept, "a", fails=True)
    assert _bits(kept, "b", fails=True) != first
    assert _bits(kept, "a", fails=True) == first
    assert _bits(kept, "a", fails=False) == first
    assert _bits(kept, "a", fails=False) != first


def test_a_request_that_is_not_known_again_is_a_new_one() -> None:
    kept = Attempts()
    assert _bits(kept, None, fails=True) != _bits(kept, None, fails=True)


def test_the_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST", 3)
    kept = Attempts()
    first, *_, last = (_bits(kept, name, fails=True) for name in "abcd")
    assert _bits(kept, "d", fails=True) == last
    assert _bits(kept, "a", fails=True) != first
