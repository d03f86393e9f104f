"""The authorization code flow without pages: the challenge, what an answer may be, and turns at the issuer."""

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from service.api.identity.authorization_code import (
    Attempt,
    IssuerSignIn,
    SignInFailed,
    challenge_of,
    parameters_of,
)
from service.api.identity.oidc import Tokens
from service.settings import Settings
from tests.api.local_issuer import AUDIENCE, CLIENT, LocalIssuer, local_issuer

_ATTEMPT = Attempt("the-state", "nonce", "verifier", "/", int(time.time()) + 86_400)  # all tests may take long


@pytest.fixture
def local() -> Iterator[LocalIssuer]:
    with local_issuer() as found:
        yield found


def _sign_in_at(local: LocalIssuer) -> IssuerSignIn:
    settings = Settings(
        oidc_issuer=local.url, oidc_audience=AUDIENCE, oidc_client_id=CLIENT, public_url="https://ledger.example"
    )
    sign_in = IssuerSignIn.configured(settings, Tokens.configured(settings))
    assert sign_in is not None
    return sign_in


async def _whole(sign_in: IssuerSignIn, local: LocalIssuer, sender: str) -> str:
    """Sign in, and return the principal's name, or the reason why not."""
    address, attempt = await sign_in.begin("/")
    back = dict(parse_qsl(urlsplit(local.authorize(urlsplit(address).query)).query))
    try:
        return (await sign_in.end(attempt, back, sender)).principal.name
    except SignInFailed as failure:
        return failure.reason


def test_the_challenge_is_that_of_the_standard() -> None:
    """Source: RFC 7636, appendix B."""
    assert challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    ("attempt", "query", "reason"),
    [
        (None, [("state", "the-state"), ("code", "c")], "not_begun"),
        (_ATTEMPT._replace(expires=int(time.time()) - 1), [("state", "the-state")], "not_begun"),
        (_ATTEMPT, [], "another_attempt"),
        (_ATTEMPT, [("state", "another"), ("code", "c")], "another_attempt"),
        (_ATTEMPT, [("state", "the-state\ud800"), ("code", "c")], "another_attempt"),
        (_ATTEMPT, [("state", "another"), ("state", "the-state")], "malformed"),
        (_ATTEMPT, [("state", "the-state"), ("code", "c" * 4097)], "malformed"),
    ],
)
def test_what_is_no_answer_to_an_attempt(attempt: Attempt | None, query: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(SignInFailed) as failure:
        parameters_of(attempt, query)
    assert failure.value.reason == reason


def test_an_answer_to_an_attempt() -> None:
    query = [("state", "the-state"), ("code", "c")]
    assert parameters_of(_ATTEMPT, query) == (_ATTEMPT, {"state": "the-state", "code": "c"})


def test_an_attempt_does_not_show_its_secrets_in_a_failure(local: LocalIssuer) -> None:
    local.token_raw = b"<html>"
    sign_in = _sign_in_at(local)

    async def fail() -> SignInFailed:
        address, attempt = await sign_in.begin("/")
        back = dict(parse_qsl(urlsplit(local.authorize(urlsplit(address).query)).query))
        with pytest.raises(SignInFailed) as failure:
            await sign_in.end(attempt, back, "a")
        return failure.value

    failure = asyncio.run(fail())
    (form,) = local.forms
    told = f"{failure!r} {failure} {failure.detail} {failure.__cause__}"
    assert not any(form[name] in told for name in ("code", "code_verifier"))


def test_one_address_does_not_keep_others_from_the_issuer(local: LocalIssuer) -> None:
    """Many slow exchanges of one address take turns; another address does not wait for them."""
    sign_in = _sign_in_at(local)
    local.token_delay = 0.4

    async def crowd() -> tuple[float, list[str]]:
        await sign_in.begin("/")  # so that the issuer's documents are there
        many = [asyncio.create_task(_whole(sign_in, local, "one")) for _ in range(12)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        assert await _whole(sign_in, local, "another") == "oidc:ann"
        return time.monotonic() - begun, await asyncio.gather(*many)

    took, others = asyncio.run(crowd())
    assert took < 1.5
    assert others == ["oidc:ann"] * 12


def test_an_address_has_a_bounded_number_of_attempts_that_wait(local: LocalIssuer) -> None:
    sign_in = _sign_in_at(local)
    local.token_delay = 0.2

    async def crowd() -> list[str]:
        await sign_in.begin("/")
        return await asyncio.gather(*(_whole(sign_in, local, "one") for _ in range(130)))

    reasons = asyncio.run(crowd())
    assert reasons.count("too_many_attempts") == 130 - 104
    assert set(reasons) == {"oidc:ann", "too_many_attempts"}
