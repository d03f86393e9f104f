"""Signing in at an OpenID Connect issuer, from the button to the session; failures and attacks."""

import base64
import hashlib
import hmac
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from service.api.identity import authorization_code, issuer_requests
from service.api.identity.authorization_code import challenge_of
from service.ledger.storage import clock
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.pages.shell.session import COOKIE, unseal
from tests.api.calls import STEWARD, Answer, Client, application, bearer, json_of
from tests.api.local_issuer import AUDIENCE, CLIENT, LocalIssuer, key_of, local_issuer, published
from tests.pages.visits import hidden, sign_in, submit

_SECRET = Secret(bytes(range(32)))
_HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
_ATTEMPT = "ledger_sign_in"
_PUBLIC = "https://ledger.example"


@pytest.fixture
def local() -> Iterator[LocalIssuer]:
    with local_issuer() as found:
        yield found


@contextmanager
def _browser_of(app: Any, base: str = "http://testserver") -> Iterator[Client]:
    with TestClient(app, headers=_HTML, follow_redirects=False, raise_server_exceptions=False, base_url=base) as opened:
        yield opened


@pytest.fixture
def configured(_filled: Path, tmp_path: Path, local: LocalIssuer) -> Iterator[Callable[..., Client]]:
    """Return a function that starts the service over the issuer, with settings, and returns a browser at it."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Client:
            shutil.copyfile(_filled, tmp_path / "ledger.db")
            usual = {"oidc_issuer": local.url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
            usual |= {"oidc_name": "Agency login", "public_url": _PUBLIC}
            app = application(open_database(f"sqlite:///{tmp_path / 'ledger.db'}"), _SECRET, **usual | settings)
            return stack.enter_context(_browser_of(app))

        yield start


@pytest.fixture
def browser(configured: Callable[..., Client]) -> Client:
    return configured()


def _depart(browser: Client, onward: str = "/") -> str:
    """Press the button, and return the address at the issuer."""
    answer = browser.get("/sign-in/oidc", params={"next": onward})
    assert answer.status_code == 303, answer.text
    return answer.headers["Location"]


def _at_issuer(address: str) -> str:
    """Sign in at the issuer, and return the address to which it sends the browser back, without the host."""
    sent = httpx2.get(address, follow_redirects=False)
    assert sent.status_code == 302
    assert sent.headers["Location"].startswith(_PUBLIC)
    return sent.headers["Location"].removeprefix(_PUBLIC)


def _sign_in(browser: Client, onward: str = "/") -> Answer:
    return browser.get(_at_issuer(_depart(browser, onward)))


def _with(address: str, **changes: str | None) -> str:
    """Return an address with other parameters; None leaves one out."""
    path, _, query = address.partition("?")
    given = {name: value for name, value in (dict(parse_qsl(query)) | changes).items() if value is not None}
    return f"{path}?{urlencode(given)}"


def _assert_failed(answer: Answer, status: int, *texts: str) -> None:
    """The page says what happened and leads back, and nobody is signed in."""
    assert answer.status_code == status, answer.text
    for text in texts:
        assert text in answer.text
    assert "Back to sign-in" in answer.text
    assert COOKIE not in answer.headers.get("Set-Cookie", "")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert answer.headers["Cache-Control"] == "no-store"


def _assert_nobody(browser: Client) -> None:
    assert "Your key" in browser.get("/").text


# The way in


def test_the_button_is_beside_the_key(browser: Client) -> None:
    text = browser.get("/", params={"next": "/accounts/persons?a=1&b=2"}).text
    assert re.search(
        r'href="/sign-in/oidc\?next=/accounts/persons%3Fa%3D1%26b%3D2">Sign in with Agency login</a>', text
    )
    assert "Your key" in text


def test_without_a_client_there_is_no_button_and_no_page(visitor: Client, configured: Callable[..., Client]) -> None:
    keys_only = configured(oidc_client_id=None, public_url=None)
    for client in (visitor, keys_only):
        assert "Sign in with" not in client.get("/").text
        for path in ("/sign-in/oidc", "/sign-in/oidc/callback?code=a&state=b"):
            assert client.get(path).status_code == 404


def test_the_issuer_is_named_by_its_host_otherwise(configured: Callable[..., Client], local: LocalIssuer) -> None:
    assert f"Sign in with {urlsplit(local.url).netloc}" in configured(oidc_name=None).get("/").text


def test_the_browser_is_sent_with_a_challenge_and_keeps_the_rest(browser: Client, local: LocalIssuer) -> None:
    answer = browser.get("/sign-in/oidc")
    address = urlsplit(answer.headers["Location"])
    assert f"{address.scheme}://{address.netloc}{address.path}" == f"{local.url}/authorize"
    sent = {name: value for name, (value,) in parse_qs(address.query, strict_parsing=True).items()}
    assert len({sent.pop("state"), sent.pop("nonce"), sent.pop("code_challenge")}) == 3
    assert sent == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": f"{_PUBLIC}/sign-in/oidc/callback",
        "scope": "openid",
        "code_challenge_method": "S256",
    }
    attributes = {part.strip().lower() for part in answer.headers["Set-Cookie"].split(";")[1:]}
    assert attributes == {"httponly", "path=/", "samesite=lax", "max-age=600"}
    kept = answer.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    opened = base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4))
    assert not any(value.encode() in opened or value in kept for value in parse_qs(address.query)["state"])


def test_no_two_attempts_are_alike(browser: Client) -> None:
    seen = [parse_qs(urlsplit(_depart(browser)).query) for _ in range(3)]
    for name in ("state", "nonce", "code_challenge"):
        assert len({values[name][0] for values in seen}) == 3


def test_over_https_the_attempt_stays_there(browser: Client) -> None:
    with _browser_of(browser.app, "https://testserver") as secure:  # type: ignore[attr-defined]
        cookie = secure.get("/sign-in/oidc").headers["Set-Cookie"]
        assert cookie.startswith(f"__Host-{_ATTEMPT}=")
        assert "secure" in {part.strip().lower() for part in cookie.split(";")}
        answer = secure.get(_at_issuer(_depart(secure)))
        assert answer.status_code == 200
        assert sorted(secure.cookies) == [f"__Host-{COOKIE}"]


def test_a_person_signs_in_and_out(browser: Client, local: LocalIssuer) -> None:
    local.person = {"sub": "ann"}
    answer = _sign_in(browser, "/accounts/persons?a=1&b=2")
    assert answer.status_code == 200, "a redirect would not carry the session's cookie"
    assert '<meta http-equiv="refresh" content="0; url=/accounts/persons?a=1&amp;b=2">' in answer.text
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert list(browser.cookies) == [COOKIE], "the attempt is gone"
    cookie = next(text for text in answer.headers.get_list("set-cookie") if text.startswith(COOKIE))
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    shown = browser.get("/accounts/persons").text
    assert "oidc:ann" in shown
    assert "(steward)" in shown
    left = browser.post("/sign-out", data={"csrf": hidden(shown, "csrf")})
    assert left.status_code == 303
    assert len(browser.cookies) == 0
    _assert_nobody(browser)


def test_what_a_person_does_is_the_person_s(browser: Client, local: LocalIssuer) -> None:
    local.person = {"sub": "ann"}
    _sign_in(browser)
    assert submit(browser, "/accounts/empty", "/accounts/empty/state", state="closed").status_code == 303
    api = TestClient(browser.app, headers=bearer(STEWARD))  # type: ignore[attr-defined]
    entries = json_of(api.get("/v1/accounts/empty/journal"))["items"]
    assert entries[-1]["entry"]["actor"] == "oidc:ann"
    assert entries[-1]["entry"].get("key") is None
    own = {"Authorization": f"Bearer {local.token('steward', sub='ann')}"}
    assert json_of(api.get("/v1/principal", headers=own))["name"] == "oidc:ann", "one person, whichever way"


@pytest.mark.parametrize(
    ("role", "keys", "opens"), [("auditor", 403, 403), ("pipeline", 403, 403), ("steward", 200, 200)]
)
def test_the_token_s_role_is_the_session_s(
    browser: Client, local: LocalIssuer, role: str, keys: int, opens: int
) -> None:
    local.person = {"role": role}
    _sign_in(browser)
    assert browser.get("/keys").status_code == keys
    assert (f"({role})" in browser.get("/").text) is True
    problems = browser.get("/v1/keys")
    assert problems.status_code == 401, "the cookie opens nothing below /v1"


def test_the_token_s_accounts_are_the_session_s(configured: Callable[..., Client], local: LocalIssuer) -> None:
    browser = configured(oidc_accounts_claim="accounts")
    local.person = {"accounts": ["empty"]}
    _sign_in(browser)
    assert browser.get("/accounts/empty").status_code == 200
    for path in ("", "/releases", "/journal", "/export"):
        assert browser.get(f"/accounts/persons{path}").status_code == 403
    assert "/accounts/persons" not in browser.get("/").text


def test_accounts_fit_into_the_cookie_or_are_refused(configured: Callable[..., Client], local: LocalIssuer) -> None:
    browser = configured(oidc_accounts_claim="accounts")
    local.person = {"accounts": ["a" * 2700]}
    cookies = _sign_in(browser).headers.get_list("set-cookie")
    (session,) = (text.partition(";")[0] for text in cookies if text.startswith(COOKIE))
    assert 3600 < len(f"__Host-{session}") <= 4096
    browser.cookies.clear()
    local.person = {"accounts": [f"account-{number:04}" for number in range(300)]}
    _assert_failed(_sign_in(browser), 403, "more accounts than")


@pytest.mark.parametrize(("lifetime", "hours", "expected"), [(300, 8, 300), (36_000, 2, 7200), (10**12, 1, 3600)])
def test_a_session_lasts_as_long_as_the_token_at_most(
    configured: Callable[..., Client], local: LocalIssuer, lifetime: int, hours: int, expected: int
) -> None:
    browser = configured(session_hours=hours)
    local.person = {"exp": int(time.time()) + lifetime}
    answer = _sign_in(browser)
    session = unseal(_SECRET, browser.cookies[COOKIE])
    assert session is not None
    assert abs(session.expires - time.time() - expected) < 60
    (lasts,) = re.findall(rf"{COOKIE}=[^;]+;.*?Max-Age=(\d+)", ",".join(answer.headers.get_list("set-cookie")))
    assert abs(int(lasts) - expected) < 60


def test_a_session_ends_where_the_issuer_is_configured_otherwise(
    configured: Callable[..., Client], local: LocalIssuer
) -> None:
    browser = configured()
    _sign_in(browser)
    kept = browser.cookies[COOKIE]
    others: list[dict[str, Any]] = [
        {"oidc_roles": '{"steward": "auditor"}'},
        {"oidc_client_id": "another"},
        {"oidc_accounts_claim": "accounts"},
        {"oidc_issuer": None, "oidc_audience": None, "oidc_client_id": None},
        {},
    ]
    for changed in others:
        again = configured(**changed)
        again.cookies.set(COOKIE, kept)
        assert ("Your key" in again.get("/").text) is bool(changed), changed


def test_a_client_with_a_secret_proves_it(configured: Callable[..., Client], local: LocalIssuer) -> None:
    local.client_secret = "a secret: with + and ü".encode().decode("ascii", "ignore")
    assert _sign_in(configured(oidc_client_secret=local.client_secret)).status_code == 200
    for other in ("another", None):
        _assert_failed(_sign_in(configured(oidc_client_secret=other)), 503, "the error invalid_client")


def test_scopes_are_those_of_the_settings(configured: Callable[..., Client]) -> None:
    address = _depart(configured(oidc_scope="openid profile roles"))
    assert parse_qs(urlsplit(address).query)["scope"] == ["openid profile roles"]


def test_an_authorization_endpoint_may_have_parameters(browser: Client, local: LocalIssuer) -> None:
    local.discovery["authorization_endpoint"] = f"{local.url}/authorize?tenant=a"
    assert _depart(browser).startswith(f"{local.url}/authorize?tenant=a&response_type=code&")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_each_algorithm_of_tokens_signs_in(browser: Client, local: LocalIssuer, algorithm: str) -> None:
    local.keys[:] = [published("one", algorithm)]
    local.header = {"algorithm": algorithm}
    assert _sign_in(browser).status_code == 200


def test_key_sign_in_goes_on_beside_it(browser: Client) -> None:
    sign_in(browser)
    assert "first-steward" in browser.get("/").text


# Where it leads


@pytest.mark.parametrize(
    "onward",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "evil",
        "javascript:alert(1)",
        "/a\nb",
        "/" + "a" * 1001,
    ],
)
def test_signing_in_leads_to_no_other_site(browser: Client, onward: str) -> None:
    assert 'content="0; url=/">' in _sign_in(browser, onward).text


def test_another_site_begins_nothing(browser: Client) -> None:
    for site in ("cross-site", "same-site"):
        answer = browser.get("/sign-in/oidc?next=%2Fkeys", headers={"Sec-Fetch-Site": site})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/?next=%2Fkeys")
        assert "Set-Cookie" not in answer.headers
    assert browser.get("/sign-in/oidc", headers={"Sec-Fetch-Site": "same-origin"}).headers["Location"] != "/?next=%2F"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_do_nothing(browser: Client, method: str) -> None:
    for path in ("/sign-in/oidc", "/sign-in/oidc/callback"):
        assert browser.request(method, path).status_code == 405


# Attacks


def test_an_answer_is_used_once(browser: Client, local: LocalIssuer) -> None:
    """A second use of the address, as by the button Back, finds no attempt; a copied cookie finds no code."""
    address = _depart(browser)
    copied = dict(browser.cookies)
    back = _at_issuer(address)
    assert browser.get(back).status_code == 200
    browser.cookies.clear()
    _assert_failed(browser.get(back), 400, "ended or did not begin here", _PUBLIC)
    browser.cookies.update(copied)
    _assert_failed(browser.get(back), 400, "A code is accepted once")
    assert len(local.forms) == 2


def test_an_old_state_is_none(browser: Client) -> None:
    old = _at_issuer(_depart(browser))
    _depart(browser)
    _assert_failed(browser.get(old), 400, "belongs to another sign-in")


def test_an_attempt_ends_after_ten_minutes(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    back = _at_issuer(_depart(browser))
    kept = dict(browser.cookies)
    later = time.time() + 601
    monkeypatch.setattr(clock, "seconds", lambda: later)
    browser.cookies.update(kept)
    _assert_failed(browser.get(back), 400, "within 10 minutes")


def test_a_link_with_the_attacker_s_answer_signs_nobody_in(browser: Client, local: LocalIssuer) -> None:
    """Login CSRF: the victim opens the attacker's way back, with no attempt of its own, and within one."""
    with _browser_of(browser.app) as attacker:  # type: ignore[attr-defined]
        prepared = _at_issuer(_depart(attacker))
    _assert_failed(browser.get(prepared), 400, "did not begin here")
    own = _at_issuer(_depart(browser))
    _assert_failed(browser.get(prepared), 400, "link that somebody else made")
    assert local.forms == [], "the code was not even redeemed"
    assert browser.get(own).status_code == 200, "the victim's own sign-in goes on"


def test_a_code_of_another_browser_is_not_redeemed(browser: Client, local: LocalIssuer) -> None:
    """Code injection: the attacker puts a stolen code into its own way back; the verifier does not fit."""
    stolen = dict(parse_qsl(urlsplit(_at_issuer(_depart(browser))).query))["code"]
    with _browser_of(browser.app) as attacker:  # type: ignore[attr-defined]
        own = _at_issuer(_depart(attacker))
        _assert_failed(attacker.get(_with(own, code=stolen)), 400, "no longer accepts the code")
        assert COOKIE not in attacker.cookies


def test_the_token_of_another_sign_in_is_refused(browser: Client, local: LocalIssuer) -> None:
    """An issuer that checks no verifier leaves it to the nonce."""
    for nonce in ("another", None, "", 7, ["a"], "\ud800"):
        local.person = {"nonce": nonce}
        _assert_failed(_sign_in(browser), 403, "issued for another sign-in")
    _assert_nobody(browser)


@pytest.mark.parametrize("issuer", ["https://another.example", "", None])
def test_an_answer_of_another_issuer_is_refused(browser: Client, local: LocalIssuer, issuer: str | None) -> None:
    """Mix-up: a code of another issuer, or one without its origin where the issuer always states it."""
    local.back = {"iss": issuer}
    _assert_failed(_sign_in(browser), 400, "does not come from Agency login")
    assert local.forms == [], "the code did not leave the service"


def test_an_issuer_that_does_not_state_itself_need_not(browser: Client, local: LocalIssuer) -> None:
    local.discovery["authorization_response_iss_parameter_supported"] = False
    local.back = {"iss": None}
    assert _sign_in(browser).status_code == 200
    local.back = {"iss": "https://another.example"}
    _assert_failed(_sign_in(browser), 400, "does not come from Agency login")


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        ({"aud": "another"}, "for another audience"),
        ({"aud": AUDIENCE}, "for another audience"),  # a token for the API signs nobody in
        ({"aud": ["another"]}, "for another audience"),
        ({"aud": [CLIENT, "another"]}, "for another client too"),
        ({"aud": [CLIENT, "another"], "azp": CLIENT}, "for another client too"),
        ({"aud": [CLIENT, AUDIENCE]}, "for another client too"),
        ({"azp": "another"}, "for another client too"),
        ({"azp": 7}, "for another client too"),
        ({"aud": None}, "claims exp, iss and aud"),
        ({"iss": "https://another.example"}, "by another issuer"),
        ({"iss": None}, "claims exp, iss and aud"),
        ({"exp": int(time.time()) - 3600}, "has expired"),
        ({"exp": None}, "claims exp, iss and aud"),
        ({"exp": float("inf")}, "not valid"),
        ({"exp": "1e12"}, "not valid"),
        ({"nbf": int(time.time()) + 36_000}, "not valid yet"),
        ({"key_id": "unknown"}, "that its issuer publishes"),
        ({"headers": {"typ": "at+jwt"}}, "an ID token"),
        ({"headers": {"typ": "logout+jwt"}}, "an ID token"),
        ({"key": 2}, "signature is invalid"),
        ({"algorithm": "PS256"}, "signed with one of"),
    ],
)
def test_a_bad_token_signs_nobody_in(browser: Client, local: LocalIssuer, person: dict[str, Any], reason: str) -> None:
    local.person = dict(person)
    if "key" in person:
        local.person["key"] = key_of("RS256", 2)
    _assert_failed(_sign_in(browser), 403, "The service did not accept the answer", reason)
    _assert_nobody(browser)


def test_a_token_that_ends_before_the_session_begins_is_refused(browser: Client, local: LocalIssuer) -> None:
    local.person = {"exp": int(time.time()) - 5}  # within the tolerance of clocks
    _assert_failed(_sign_in(browser), 403, "has expired")


@pytest.mark.parametrize("person", [{"aud": [CLIENT]}, {"azp": CLIENT}, {"aud": [CLIENT, AUDIENCE], "azp": CLIENT}])
def test_what_a_good_token_may_say(browser: Client, local: LocalIssuer, person: dict[str, Any]) -> None:
    local.person = person
    assert _sign_in(browser).status_code == 200


def _part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["none", "NONE", "HS256", "RS256"])
def test_a_token_without_the_issuer_s_signature_signs_nobody_in(
    browser: Client, local: LocalIssuer, algorithm: str
) -> None:
    """No signature, or one by HMAC with the public key as its secret."""
    address = _depart(browser)
    nonce = parse_qs(urlsplit(address).query)["nonce"][0]
    claims = local.claims("steward", aud=CLIENT, nonce=nonce)
    signed = f"{_part({'alg': algorithm, 'kid': 'one', 'typ': 'JWT'})}.{_part(claims)}"
    public = key_of("RS256").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    code = hmac.new(public, signed.encode(), hashlib.sha256).digest() if algorithm == "HS256" else b""
    local.tokens = {"id_token": f"{signed}.{_part(code)}"}
    _assert_failed(browser.get(_at_issuer(address)), 403, "refused its token")
    _assert_nobody(browser)


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        ({"role": None}, "a role of this service"),
        ({"role": "king"}, "a role of this service"),
        ({"role": ["pipeline", "approver"]}, "one of the roles pipeline and approver"),
        ({"sub": "x" * 196}, "at most 195 characters"),
        ({"sub": " ann"}, "printable text"),
    ],
)
def test_a_person_without_permission_is_told(
    browser: Client, local: LocalIssuer, person: dict[str, Any], reason: str
) -> None:
    local.person = person
    _assert_failed(_sign_in(browser), 403, "You have no access yet", reason)


def test_an_attempt_at_another_issuer_is_none(configured: Callable[..., Client], local: LocalIssuer) -> None:
    """Mix-up by a change of the configuration, for an issuer that does not state itself."""
    browser = configured()
    back = _at_issuer(_depart(browser))
    again = configured(oidc_client_id="another")
    again.cookies.update(dict(browser.cookies))
    _assert_failed(again.get(back), 400, "did not begin here")
    assert local.forms == []


@pytest.mark.parametrize("cookie", ["", "x", "A" * 5000, "=", "session"])
def test_a_made_up_attempt_is_none(browser: Client, cookie: str) -> None:
    back = _at_issuer(_depart(browser))
    browser.cookies.clear()
    if cookie == "session":
        sign_in(browser)  # a session's cookie in the place of an attempt's
        cookie = browser.cookies[COOKIE]
        browser.cookies.clear()
    browser.cookies.set(_ATTEMPT, cookie)
    _assert_failed(browser.get(back), 400, "did not begin here")


def test_over_https_nobody_else_gives_a_browser_its_attempt(browser: Client) -> None:
    """A cookie from a connection without TLS, or from a neighbouring host, cannot have a name with the prefix."""
    back = _at_issuer(_depart(browser))
    with _browser_of(browser.app, "https://testserver") as victim:  # type: ignore[attr-defined]
        victim.cookies.set(_ATTEMPT, browser.cookies[_ATTEMPT])
        _assert_failed(victim.get(back), 400, "did not begin here")


def test_an_attempt_is_no_session(browser: Client) -> None:
    _depart(browser)
    browser.cookies.set(COOKIE, browser.cookies[_ATTEMPT])
    _assert_nobody(browser)


def test_nobody_claims_an_identity_over_http(browser: Client) -> None:
    """The principal of a page's request is handed over in process; no header or bearer does it."""
    for token in ("oidc:ann", "\noidc:ann", "signed_in"):
        headers = [(b"Authorization", f"Bearer {token}".encode().replace(b"\n", b"")), (b"signed_in", b"ann")]
        assert browser.get("/v1/accounts", headers=headers).status_code == 401


# Errors of the issuer


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        ("access_denied", 403, "refused, or you cancelled"),
        ("login_required", 403, "refused, or you cancelled"),
        ("invalid_scope", 503, "the error invalid_scope"),
        ("unauthorized_client", 503, "the error unauthorized_client"),
        ("temporarily_unavailable", 503, "an error of its own"),
        ("server_error", 503, "an error of its own"),
        ("<script>", 503, "an error of its own"),
        ("", 503, "an error of its own"),
    ],
)
def test_errors_of_the_issuer_are_told(browser: Client, local: LocalIssuer, error: str, status: int, text: str) -> None:
    local.back = {"code": None, "error": error, "error_description": "call 555-0100 <b>now</b>"}
    answer = _sign_in(browser, "/accounts/persons")
    _assert_failed(answer, status, text, 'href="/?next=/accounts/persons"')
    assert "555" not in answer.text, "the issuer's own words are not repeated"
    assert "<script>" not in answer.text
    assert _ATTEMPT not in browser.cookies


@pytest.mark.parametrize("changes", [{"code": None}, {"code": ""}, {"code": "c" * 4097}, {"other": "x" * 5000}])
def test_a_malformed_answer_is_told(browser: Client, local: LocalIssuer, changes: dict[str, str | None]) -> None:
    _assert_failed(browser.get(_with(_at_issuer(_depart(browser)), **changes)), 400, "no code, or has a part twice")
    assert local.forms == []


def test_a_parameter_that_comes_twice_is_told(browser: Client, local: LocalIssuer) -> None:
    back = _at_issuer(_depart(browser))
    _assert_failed(browser.get(f"{back}&code=another"), 400, "no code, or has a part twice")


@pytest.mark.parametrize("state", [None, "", "another", "é"])
def test_an_answer_without_the_state_is_refused(browser: Client, local: LocalIssuer, state: str | None) -> None:
    _assert_failed(browser.get(_with(_at_issuer(_depart(browser)), state=state)), 400, "belongs to another sign-in")
    assert local.forms == []


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"token_status": 500}, 503, "an error of its own"),
        ({"token_status": 302, "token_headers": {"Location": "/keys"}}, 503, "a redirect (status 302)"),
        ({"token_status": 307, "token_headers": {"Location": "/token"}}, 503, "a redirect (status 307)"),
        ({"token_raw": b"<html>"}, 503, "expected JSON"),
        ({"token_raw": b"[]"}, 503, "expected a JSON object"),
        ({"token_raw": b"[" * 100_000}, 503, "expected JSON"),
        ({"token_raw": b" " * (2**20 + 1)}, 503, "too long"),
        ({"token_headers": {"Content_Encoding": "gzip"}}, 503, "is compressed"),
        ({"token_raw": b"{}"}, 503, "contains no ID token"),
        ({"tokens": {"id_token": 7}}, 503, "contains no ID token"),
        ({"tokens": {"id_token": "x" * 20_000}}, 403, "at most 16384 characters"),
        ({"tokens": {"id_token": "a.b.c"}}, 403, "expected a signed JWT"),
        ({"token_status": 400, "token_raw": b'{"error": "invalid_grant"}'}, 400, "A code is accepted once"),
        ({"token_status": 400, "token_raw": b'{"error": "invalid_client"}'}, 503, "the error invalid_client"),
        ({"token_status": 400, "token_raw": b'{"error": ["x"]}'}, 503, "an error of its own"),
    ],
)
def test_a_faulty_token_endpoint_is_told(
    browser: Client, local: LocalIssuer, change: dict[str, Any], status: int, text: str
) -> None:
    for name, value in change.items():
        setattr(local, name, value)
    _assert_failed(_sign_in(browser), status, text)
    assert local.asked.count("/token") == 1, "no redirect is followed"
    _assert_nobody(browser)


@pytest.mark.parametrize("limit", ["_LONGEST", "_TIMEOUT", "_PATIENCE"])
def test_a_slow_token_endpoint_is_not_waited_for(
    browser: Client, local: LocalIssuer, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    back = _at_issuer(_depart(browser))
    local.token_delay = 2.0
    monkeypatch.setattr(authorization_code if limit == "_PATIENCE" else issuer_requests, limit, 0.2)
    begun = time.monotonic()
    _assert_failed(browser.get(back), 503, "does not answer as expected")
    assert time.monotonic() - begun < 2


def test_a_token_endpoint_that_is_down_is_told(browser: Client, local: LocalIssuer) -> None:
    local.discovery["token_endpoint"] = "http://127.0.0.1:1/token"
    _assert_failed(_sign_in(browser), 503, "does not answer as expected", "Keys of this service still work")


@pytest.mark.parametrize(
    "change",
    [
        {"authorization_endpoint": None},
        {"authorization_endpoint": "http://192.0.2.1/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "https://login.example/#x"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"token_endpoint": 7},
        {"code_challenge_methods_supported": ["plain"]},
        {"code_challenge_methods_supported": 7},
    ],
)
def test_an_issuer_without_usable_endpoints_is_told_but_signs_tokens(
    browser: Client, local: LocalIssuer, change: dict[str, Any]
) -> None:
    local.discovery |= change
    _assert_failed(browser.get("/sign-in/oidc"), 503, "its discovery document has no endpoints")
    assert browser.get("/v1/accounts", headers=bearer(local.token())).status_code == 200


@pytest.mark.parametrize("change", [{"status": 500}, {"discovery": {"issuer": "https://another.example"}}])
def test_an_issuer_that_is_down_is_told(browser: Client, local: LocalIssuer, change: dict[str, Any]) -> None:
    for name, value in change.items():
        setattr(local, name, value)
    for _ in range(2):
        answer = browser.get("/sign-in/oidc?next=%2Fkeys")
        _assert_failed(answer, 503, "does not answer as expected", 'href="/?next=/keys"')
        assert answer.headers["Retry-After"]
    sign_in(browser)


def test_the_discovery_document_is_cached(browser: Client, local: LocalIssuer) -> None:
    for _ in range(5):
        _sign_in(browser)
    assert local.asked.count("/.well-known/openid-configuration") == 1
    assert local.asked.count("/keys") == 1


# Limits and traces


def test_failed_sign_ins_count_as_invalid_keys(configured: Callable[..., Client], local: LocalIssuer) -> None:
    browser = configured(failure_rate="3/hour")
    for _ in range(3):
        _assert_failed(browser.get("/sign-in/oidc/callback?code=a&state=b"), 400)
    answer = browser.get("/sign-in/oidc/callback?code=a&state=b")
    _assert_failed(answer, 429, "Too many sign-ins")
    assert answer.headers["Retry-After"]
    assert browser.post("/sign-in", data={"key": "wrong"}).status_code == 429, "one limit for both"
    assert _sign_in(browser).status_code == 200, "a valid person is not refused for an address"


def test_an_issuer_s_failures_are_not_the_person_s(configured: Callable[..., Client], local: LocalIssuer) -> None:
    browser = configured(failure_rate="1/hour")
    local.token_status = 500
    for _ in range(3):
        _assert_failed(_sign_in(browser), 503)


def test_persons_have_the_rate_of_keys(configured: Callable[..., Client], local: LocalIssuer) -> None:
    browser = configured(key_rate="2/hour")
    _sign_in(browser)
    assert [browser.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_the_log_has_the_reason_and_no_secret(
    configured: Callable[..., Client], local: LocalIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    local.client_secret = "the-client's-secret"
    browser = configured(oidc_client_secret=local.client_secret, log_level="debug")
    pages: list[str] = []
    with capture_logs() as lines, caplog.at_level("DEBUG", logger="service"):
        pages.append(_sign_in(browser).text)
        local.person = {"nonce": "another"}
        pages.append(_sign_in(browser).text)
        local.token_raw = b"<html>"
        pages.append(_sign_in(browser).text)
        pages.append(browser.get(_with(_at_issuer(_depart(browser)), state="s")).text)
    events = [(line["event"], line.get("reason")) for line in lines if line["log_level"] == "warning"]
    assert events == [
        ("a sign-in at the issuer failed", "token_refused"),
        ("a code cannot be redeemed at the issuer", "expected JSON"),
        ("a sign-in at the issuer failed", "unavailable"),
        ("a sign-in at the issuer failed", "another_attempt"),
    ]
    signed_in = next(line for line in lines if line["event"] == "request" and "callback" in line["path"])
    assert signed_in["principal"] == "oidc:ann"
    # The test plays the browser; its own requests are logged if another test has set up the logs. The service posts.
    logged = [text for text in caplog.messages if not text.startswith("HTTP Request: GET")]
    said = json.dumps(lines) + "".join(logged + pages)
    secrets = [local.client_secret, "eyJ", *local.codes]
    for form in local.forms:
        secrets += [form["code"], form["code_verifier"], challenge_of(form["code_verifier"])]
    assert len(secrets) > 9
    assert [secret for secret in secrets if secret in said] == []
