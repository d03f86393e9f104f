"""An issuer's keys: selection, lifetime, and frequency of fetches."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from jwt.algorithms import RSAAlgorithm

from service.api.identity import issuer_requests
from service.api.identity.issuer import Endpoints, Issuer
from service.errors import Unauthenticated, Unavailable
from tests.api.local_issuer import LocalIssuer, key_of, local_issuer, published


class Time:
    """A clock that stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def local() -> Iterator[LocalIssuer]:
    with local_issuer() as found:
        yield found


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def issuer(local: LocalIssuer, time: Time) -> Issuer:
    return Issuer(local.url, time)


def _knows(issuer: Issuer, key_id: str, algorithm: str = "RS256") -> bool:
    try:
        found = asyncio.run(issuer.key(key_id, algorithm))
    except Unauthenticated:
        return False
    return found.algorithm_name == algorithm and found.key_id == key_id


def _settle(issuer: Issuer) -> None:
    """Wait for the running fetch."""
    assert issuer._running is not None
    issuer._running.exception(30)


def test_a_known_key_asks_nobody(local: LocalIssuer, issuer: Issuer) -> None:
    assert all(_knows(issuer, "one") for _ in range(5))
    assert local.asked == ["/.well-known/openid-configuration", "/keys"]


def test_of_many_who_ask_at_once_one_fetches(local: LocalIssuer, issuer: Issuer) -> None:
    async def ask() -> int:
        return len(await asyncio.gather(*(issuer.key("one", "RS256") for _ in range(20))))

    assert asyncio.run(ask()) == 20
    assert len(local.asked) == 2


def test_unknown_keys_make_it_ask_now_and_then_only(local: LocalIssuer, issuer: Issuer, time: Time) -> None:
    assert not any(_knows(issuer, f"unknown-{number}") for number in range(20))
    assert len(local.asked) == 2
    local.keys.append(published("two", "ES256"))
    assert not _knows(issuer, "two", "ES256")
    time.now += 10
    assert _knows(issuer, "two", "ES256")
    assert len(local.asked) == 4


def test_old_keys_serve_while_new_ones_are_fetched_and_withdrawn_ones_end(
    local: LocalIssuer, issuer: Issuer, time: Time
) -> None:
    assert _knows(issuer, "one")
    local.keys[:] = [published("two", "RS256", 2)]
    time.now += 599
    assert _knows(issuer, "one")
    assert len(local.asked) == 2
    time.now += 1
    assert _knows(issuer, "one"), "nobody waits for the issuer whose token's key is known"
    _settle(issuer)
    assert not _knows(issuer, "one")
    assert _knows(issuer, "two")


def test_while_it_is_down_known_keys_serve_for_a_day(local: LocalIssuer, issuer: Issuer, time: Time) -> None:
    assert _knows(issuer, "one")
    local.status = 500
    time.now += 86_399
    assert _knows(issuer, "one")
    _settle(issuer)
    time.now += 10
    with pytest.raises(Unavailable):
        asyncio.run(issuer.key("one", "RS256"))


def test_while_it_is_down_unknown_keys_are_told_when_to_come_again(
    local: LocalIssuer, issuer: Issuer, time: Time
) -> None:
    local.status = 500
    for elapsed, wait, asked in ((0, 10, 1), (4, 6, 1), (5.5, 1, 1), (0.5, 10, 2)):
        time.now += elapsed
        with pytest.raises(Unavailable) as refused:
            asyncio.run(issuer.key("one", "RS256"))
        assert (refused.value.retry_after, len(local.asked)) == (wait, asked)
    local.status = 200
    time.now += 10
    assert _knows(issuer, "one")


@pytest.mark.parametrize(
    "change",
    [
        {"discovery": {"issuer": "https://another.example"}},
        {"discovery": {"issuer": None}},
        {"discovery": {"jwks_uri": "http://192.0.2.1/keys"}},
        {"discovery": {"jwks_uri": "file:///etc/passwd"}},
        {"discovery": {"jwks_uri": None}},
        {"discovery": {"jwks_uri": "http://127.0.0.1:1/nobody"}},
        {"status": 404},
        {"status": 302},
        {"status": 302, "headers": {"Location": "/keys"}},
        {"headers": {"Content_Encoding": "gzip"}},
        {"raw": b"{"},
        {"raw": b"[]"},
        {"raw": b'{"keys": {}}'},
        {"raw": b"[" * 100_000},
        {"raw": b" " * (2**20 + 1)},
        {"raw": b"\xff"},
    ],
)
def test_what_cannot_be_trusted_or_read_is_as_if_it_were_down(
    local: LocalIssuer, issuer: Issuer, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(local, name, value)
    with pytest.raises(Unavailable) as refused:
        asyncio.run(issuer.key("one", "RS256"))
    assert "192.0.2.1" not in str(refused.value)


def test_an_issuer_that_drips_is_not_waited_for(
    local: LocalIssuer, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each header comes in time, and the whole answer does not."""
    monkeypatch.setattr(issuer_requests, "_LONGEST", 0.5)
    local.drip = 0.05
    begun = monotonic()
    with pytest.raises(Unavailable):
        asyncio.run(issuer.key("one", "RS256"))
    assert monotonic() - begun < 5


def test_endpoints_are_cached_with_the_keys(local: LocalIssuer, issuer: Issuer, time: Time) -> None:
    assert _knows(issuer, "one")
    expected = Endpoints(f"{local.url}/authorize", f"{local.url}/token", states_issuer=True)
    assert asyncio.run(issuer.endpoints()) == expected
    assert len(local.asked) == 2
    local.discovery["token_endpoint"] = f"{local.url}/another"
    time.now += 600
    assert asyncio.run(issuer.endpoints()) == expected, "nobody waits for an issuer that is known"
    _settle(issuer)
    assert asyncio.run(issuer.endpoints()) == Endpoints(f"{local.url}/authorize", f"{local.url}/another", True)


def test_an_issuer_that_does_not_listen_is_down() -> None:
    with local_issuer() as gone:
        url = gone.url
    with pytest.raises(Unavailable):
        asyncio.run(Issuer(url).key("one", "RS256"))


def test_keys_of_other_uses_and_kinds_are_not_taken_and_hide_no_others(local: LocalIssuer, issuer: Issuer) -> None:
    private = json.loads(RSAAlgorithm.to_jwk(key_of("RS256")))
    local.keys[:] = [
        "no key",  # type: ignore[list-item]
        {},
        {"kid": "one", "kty": "RSA"},
        {"kid": "one", "kty": ["RSA"], "alg": {}},
        {"kid": "one", "kty": "oct", "k": "c2VjcmV0LXRoYXQtaXMtbG9uZy1lbm91Z2gtZm9yLWhzMjU2"},
        published("encryption", "RS256", use="enc"),
        published("weak", "weak"),
        published("other", "RS256", alg="RS512"),
        published("mixed", "RS256", alg="ES256"),
        private | {"kid": "private"},
        published("one", "RS256"),
        published("two", "ES256", alg=None),
        published("three", "EdDSA"),
    ]
    assert [_knows(issuer, *known) for known in (("one", "RS256"), ("two", "ES256"), ("three", "EdDSA"))] == [True] * 3
    assert sorted(issuer._fetched.keys) == [("one", "RS256"), ("three", "EdDSA"), ("two", "ES256")]


def test_a_machine_whose_certificates_cannot_be_read_cannot_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "certificates").write_text("none")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificates"))
    issuer = Issuer("https://login.example")
    for _ in range(2):
        with pytest.raises(Unavailable):
            asyncio.run(issuer.key("one", "RS256"))
