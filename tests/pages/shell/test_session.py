"""The session's cookie: its content, its protection, and its end."""

import base64
import time
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.ledger.storage.secret import Secret
from service.pages.shell.session import (
    COOKIE,
    LONGEST_KEY,
    Session,
    csrf_token,
    new_session,
    seal,
    unseal,
)
from tests.api.calls import STEWARD, Client, json_of, make_key, problem_of
from tests.pages.forms import form_of
from tests.pages.visits import hidden, sign_in

_PART = b"--x\r\nContent-Disposition: form-data; name=%s\r\n\r\n+2AA-\r\n--x--\r\n"
_SESSION = Session("the-key", "somebody", "auditor", int(time.time()) + 3600)


def test_a_session_is_what_was_sealed(secret: Secret) -> None:
    assert unseal(secret, seal(secret, _SESSION)) == _SESSION
    assert seal(secret, _SESSION) != seal(secret, _SESSION)


def test_a_sealed_session_says_nothing(secret: Secret) -> None:
    sealed = seal(secret, _SESSION)
    given = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    assert not any(word in given for word in (b"the-key", b"somebody", b"auditor"))
    assert "the-key" not in repr(_SESSION)


def test_nothing_else_is_a_session(secret: Secret) -> None:
    sealed = seal(secret, _SESSION)
    raw = bytearray(base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4)))
    for place in range(len(raw)):
        raw[place] ^= 1
        assert unseal(secret, base64.urlsafe_b64encode(raw).decode()) is None
        raw[place] ^= 1
    for other in ("", "x", "é", "=", sealed[:-4], sealed + "AAAA", sealed[:10], "A" * 5000):
        assert unseal(secret, other) is None
    assert unseal(Secret(bytes(32)), sealed) is None


def test_a_session_ends(secret: Secret) -> None:
    assert unseal(secret, seal(secret, replace(_SESSION, expires=int(time.time())))) is None
    assert unseal(secret, seal(secret, replace(_SESSION, expires=int(time.time()) - 1))) is None


def test_the_cookie_is_kept_from_scripts_and_other_sites(visitor: Client) -> None:
    cookie = sign_in(visitor).headers["Set-Cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"httponly", "path=/", "samesite=strict", f"max-age={8 * 3600}"}
    assert STEWARD not in cookie
    assert '"' not in cookie


def test_over_https_the_cookie_stays_there(app: FastAPI) -> None:
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        cookie = sign_in(client).headers["Set-Cookie"]
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"secure", "path=/"} <= attributes  # with the prefix of its name, and without a domain
        assert cookie.startswith("__Host-")
        assert not any(attribute.startswith("domain") for attribute in attributes)
        assert "Sign out" in client.get("/").text


def test_over_https_nobody_else_gives_a_browser_its_session(app: FastAPI, secret: Secret) -> None:
    """A cookie from a connection without TLS, or from a neighbouring host, cannot have a name with the prefix."""
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        client.cookies.set(COOKIE, seal(secret, replace(_SESSION, key=STEWARD, expires=int(time.time()) + 60)))
        assert "Sign out" not in client.get("/").text


def test_the_longest_key_fits_into_a_cookie(secret: Secret) -> None:
    longest = new_session("k" * LONGEST_KEY, "n" * 200, "pipeline", 168)
    assert len(f"__Host-{COOKIE}={seal(secret, longest)}") <= 4096


@pytest.mark.parametrize("key", ["", "x", STEWARD + "x", "k" * (LONGEST_KEY + 1), "a\nb", "schlüssel", "\0"])
def test_what_is_not_a_key_signs_nobody_in(visitor: Client, key: str) -> None:
    answer = visitor.post("/sign-in", data={"key": key})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "Set-Cookie" not in answer.headers
    assert not key or len(key) < 9 or key not in answer.text


@pytest.mark.parametrize(
    "onward",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "evil",
        "javascript:alert(1)",
        "/a\nb",
        "http:/x",
        "//[",
    ],
)
def test_signing_in_leads_to_no_other_site(visitor: Client, onward: str) -> None:
    assert hidden(visitor.get("/", params={"next": onward}).text, "next") == "/"
    assert sign_in(visitor, next=onward).headers["Location"] == "/"


def test_signing_in_leads_where_one_wanted_to_go(visitor: Client) -> None:
    answer = visitor.get("/accounts/persons/journal?to=3")
    assert answer.status_code == 303
    asked = visitor.get(answer.headers["Location"])
    assert "has ended" not in asked.text
    onward = sign_in(visitor, next=hidden(asked.text, "next")).headers["Location"]
    assert onward == "/accounts/persons/journal?to=3"


def test_a_revoked_key_ends_the_session_at_once(api: Client, visitor: Client) -> None:
    made = json_of(api.post("/v1/keys", json={"name": "brief", "role": "auditor"}), 201)
    sign_in(visitor, made["key"])
    assert visitor.get("/accounts/persons").status_code == 200
    api.delete(f"/v1/keys/{made['id']}")
    answer = visitor.get("/accounts/persons")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/?ended=1&next=%2Faccounts%2Fpersons")
    assert f'{COOKIE}=""' in answer.headers["Set-Cookie"]
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert "has ended" in visitor.get(answer.headers["Location"]).text


def test_an_expired_cookie_leads_to_sign_in(app: FastAPI, visitor: Client, secret: Secret) -> None:
    visitor.cookies.set(COOKIE, seal(secret, replace(_SESSION, key=STEWARD, expires=int(time.time()) - 1)))
    assert visitor.get("/keys").headers["Location"] == "/?ended=1&next=%2Fkeys"
    assert "Your key" in visitor.get("/").text


def test_a_program_without_a_session_is_told_in_its_own_words(visitor: Client) -> None:
    problem_of(visitor.get("/accounts/persons", headers={"Accept": "*/*"}), "unauthenticated")


def test_the_cookie_opens_nothing_below_v1(steward: Client) -> None:
    problem_of(steward.get("/v1/accounts"), "unauthenticated")


def test_signing_out(steward: Client) -> None:
    page = steward.get("/").text
    assert steward.get("/sign-out").status_code == 405
    answer = steward.post("/sign-out", data={"csrf": hidden(page, "csrf")})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert len(steward.cookies) == 0


# Forms of other sites


def test_tokens_are_each_principal_s_own(secret: Secret) -> None:
    mine, again, other = (new_session("k", name, "auditor", 1) for name in ("n", "n", "o"))
    assert csrf_token(secret, mine) == csrf_token(secret, again) != csrf_token(secret, other)
    assert csrf_token(secret, mine) != csrf_token(Secret(bytes(32)), mine)


@pytest.mark.parametrize("ended", ["expired", "gone", "revoked"])
def test_a_form_that_outlived_its_session_is_sent_in_the_next(
    visitor: Client, api: Client, secret: Secret, ended: str
) -> None:
    made = json_of(api.post("/v1/keys", json={"name": "n", "role": "steward"}), 201)
    sign_in(visitor, made["key"])
    form = form_of(visitor.get("/accounts/persons"), "/accounts/persons/approval").with_texts(
        {"approval_above": "0.125"}
    )
    kept = dict(visitor.cookies)
    visitor.cookies.clear()
    if ended == "expired":
        past = Session(made["key"], "n", "steward", int(time.time()) - 1)
        visitor.cookies.set(COOKIE, seal(secret, past))
    if ended == "revoked":
        api.delete(f"/v1/keys/{made['id']}")
        visitor.cookies.update(kept)
    answer = visitor.post("/accounts/persons/approval", data=form)
    assert (answer.status_code, "The form was not processed" in answer.text) == (401, True)
    assert "0.125" not in answer.text.partition("<main")[2]
    assert json_of(api.get("/v1/accounts/persons"))["approval_above"] == "0.2"
    if ended == "revoked":
        sign_in(visitor)  # another key has another session's form
        assert visitor.post("/accounts/persons/approval", data=form).status_code == 403
        return
    sign_in(visitor, made["key"])
    assert visitor.post("/accounts/persons/approval", data=form).status_code == 303
    assert json_of(api.get("/v1/accounts/persons"))["approval_above"] == "0.125"


def test_signing_out_after_the_session_is_no_loss(visitor: Client) -> None:
    answer = visitor.post("/sign-out", data={"csrf": "x"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


@pytest.mark.parametrize("csrf", ["", "x", "é", "A" * 43])
def test_a_form_without_its_token_changes_nothing(steward: Client, api: Client, csrf: str) -> None:
    answer = steward.post("/accounts/persons/state", data={"csrf": csrf, "state": "closed"})
    assert answer.status_code == 403
    assert "open the page again" in answer.text
    assert json_of(api.get("/v1/accounts/persons"))["state"] == "open"


def test_the_token_of_another_principal_is_none(steward: Client, api: Client, app: FastAPI) -> None:
    key = make_key(api, "steward", "other")["Authorization"].removeprefix("Bearer ")
    with TestClient(app, follow_redirects=False) as other:
        sign_in(other, key)
        token = hidden(other.get("/").text, "csrf")
    assert steward.post("/accounts/persons/state", data={"csrf": token, "state": "closed"}).status_code == 403


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://[", 403),
        ("Origin", "http://testserver:81", 403),
        ("Origin", "http://testserver", 303),
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Sec-Fetch-Site", "same-site", 403),
        ("Sec-Fetch-Site", "same-origin", 303),
        ("Sec-Fetch-Site", "none", 303),
    ],
)
def test_where_a_form_comes_from(steward: Client, name: str, value: str, status: int) -> None:
    token = hidden(steward.get("/").text, "csrf")
    answer = steward.post("/sign-out", data={"csrf": token}, headers={name: value})
    assert answer.status_code == status
    assert steward.post("/sign-in", data={"key": STEWARD}, headers={name: value}).status_code == status


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", "", 415),
        (b"--x\r\nbroken", "multipart/form-data", 422),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--x--\r\n", "multipart/form-data; boundary=x", 422),
        (b"&".join(b"f%d=1" % n for n in range(1001)), "application/x-www-form-urlencoded", 422),
        (_PART % b"csrf", "multipart/form-data; boundary=x; charset=utf-7", 415),
        (_PART % b"csrf", "multipart/form-data; boundary=x; charset=undefined", 415),
    ],
)
def test_what_is_not_a_form(steward: Client, content: bytes, media_type: str, status: int) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    answer = steward.post("/sign-out", content=content, headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")


def test_a_limited_key_sees_what_it_reaches(api: Client, visitor: Client) -> None:
    key = make_key(api, "auditor", "limited", accounts=["empty"])["Authorization"].removeprefix("Bearer ")
    sign_in(visitor, key)
    assert "/accounts/empty" in visitor.get("/").text
    assert "/accounts/persons" not in visitor.get("/").text
    for path in ("", "/releases", "/tags", "/journal", "/export", "/pictures/profile.svg", "/releases/x"):
        answer = visitor.get(f"/accounts/persons{path}")
        assert (answer.status_code, "limited to other accounts" in answer.text) == (403, True), path
    assert "limited</span>" not in visitor.get("/keys").text
    assert visitor.get("/keys").status_code == 403


def test_cookies_with_quotation_marks_are_dropped(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """To unquote one of 16 KB took the event loop 0.3 seconds."""
    read: list[str] = []

    def note(text: str) -> str:
        read.append(text)
        return text

    monkeypatch.setattr("starlette.requests.http_cookies._unquote", note)
    session = sign_in(visitor).headers["Set-Cookie"].partition(";")[0]
    visitor.cookies.clear()
    quoted = 'a="' + "\\" * 15_000 + '"'
    assert "Sign out" in visitor.get("/", headers={"Cookie": f"b=1; {quoted}; {session}"}).text
    assert visitor.get("/readyz", headers={"Cookie": quoted}).status_code == 200
    assert "1" in read
    assert not any('"' in text for text in read)
