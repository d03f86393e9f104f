"""Tokens of an OpenID Connect issuer over HTTP: principals, roles, accounts, and refusals."""

import base64
import contextlib
import hashlib
import hmac
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.testclient import TestClient

from service.api.identity import issuer as issuers
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Answer,
    Client,
    application,
    bearer,
    client_of,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
)
from tests.api.local_issuer import AUDIENCE, LocalIssuer, key_of, local_issuer, published

_SECRET = Secret(bytes(range(32)))


@pytest.fixture(scope="module")
def local() -> Iterator[LocalIssuer]:
    with local_issuer() as found:
        found.keys += [published("two", "ES256"), published("three", "EdDSA")]
        yield found


def _app(database: Database, local: LocalIssuer, **settings: Any) -> TestClient:
    return client_of(application(database, _SECRET, oidc_issuer=local.url, oidc_audience=AUDIENCE, **settings))


@pytest.fixture(scope="module")
def ledger(local: LocalIssuer, _sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Return a steward's client, with an API key, of a service that also accepts tokens."""
    path = tmp_path_factory.mktemp("oidc") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    with _app(open_database(f"sqlite:///{path}"), local) as client:
        open_account(client)
        yield client


@pytest.fixture
def configured(_sqlite_template: Path, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Return a function that starts a separate service over an issuer, with settings."""
    with contextlib.ExitStack() as stack:

        def start(local: LocalIssuer, **settings: Any) -> Client:
            shutil.copyfile(_sqlite_template, tmp_path / "ledger.db")
            return stack.enter_context(_app(open_database(f"sqlite:///{tmp_path / 'ledger.db'}"), local, **settings))

        yield start


def _ask(client: Client, token: str) -> Answer:
    return client.get("/v1/accounts", headers=bearer(token))


# Good tokens


@pytest.mark.parametrize(("key_id", "algorithm"), [("one", "RS256"), ("two", "ES256"), ("three", "EdDSA")])
def test_a_good_token_lets_in(ledger: Client, local: LocalIssuer, key_id: str, algorithm: str) -> None:
    token = local.token(key_id=key_id, algorithm=algorithm)
    assert [account["name"] for account in json_of(_ask(ledger, token))["items"]] == ["people"]


@pytest.mark.parametrize(
    ("given", "reads", "registers", "manages"),
    [
        ("auditor", 200, 403, 403),
        ("pipeline", 200, 201, 403),
        ("steward", 200, 201, 200),
        (["auditor"], 200, 403, 403),
        (["offline_access", "pipeline", "auditor"], 200, 201, 403),
        (["approver", "auditor"], 200, 403, 403),
        (["approver", "pipeline"], 403, 403, 403),
        (["approver", "pipeline", "steward"], 200, 201, 200),
    ],
)
def test_the_role_claim_gives_the_role(
    ledger: Client, local: LocalIssuer, given: Any, reads: int, registers: int, manages: int
) -> None:
    headers = bearer(local.token(given))
    assert ledger.get("/v1/accounts/people", headers=headers).status_code == reads
    body = {"name": "r", "plan": concentrated("1e-9")}
    assert ledger.post("/v1/accounts/people/releases", json=body, headers=headers).status_code == registers
    assert ledger.get("/v1/keys", headers=headers).status_code == manages


def test_api_keys_go_on_working_beside_tokens(ledger: Client) -> None:
    json_of(ledger.get("/v1/accounts"))
    problem_of(_ask(ledger, "eyJ.no-token"), "unauthenticated")


@pytest.mark.parametrize(
    "fields",
    [
        {"aud": ["another", AUDIENCE]},
        {"nbf": int(time.time()) + 20},
        {"exp": int(time.time()) - 20},
        {"headers": {"typ": "at+jwt"}},
        {"headers": {"typ": None}},
        {"iat": None},
    ],
)
def test_what_a_good_token_may_say(ledger: Client, local: LocalIssuer, fields: dict[str, Any]) -> None:
    """Two clocks may differ by half a minute either way."""
    if "exp" in fields or "nbf" in fields:
        fields = {name: int(time.time()) + (20 if name == "nbf" else -20) for name in fields}
    json_of(_ask(ledger, local.token(**fields)))


# Bad tokens

_NOW = int(time.time())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"iss": "https://another.example"}, "by another issuer"),
        ({"iss": None}, "claims exp, iss and aud"),
        ({"aud": "another"}, "for another audience"),
        ({"aud": ["another"]}, "for another audience"),
        ({"aud": []}, "claims exp, iss and aud"),
        ({"aud": None}, "claims exp, iss and aud"),
        ({"aud": AUDIENCE.upper()}, "for another audience"),
        ({"exp": _NOW - 3600}, "has expired"),
        ({"exp": None}, "claims exp, iss and aud"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": str(_NOW + 3600)}, "not valid"),
        ({"exp": [1]}, "not valid"),
        ({"exp": float("inf")}, "not valid"),
        ({"nbf": _NOW + 36_000}, "not valid yet"),
        ({"nbf": {}}, "not valid"),
        ({"iat": _NOW + 36_000}, "not valid yet"),
        ({"sub": 7}, "not valid"),
        ({"key_id": "unknown"}, "that its issuer publishes"),
        ({"key_id": "two"}, "that its issuer publishes"),  # of another algorithm
        ({"key_id": None}, "names its key"),
        ({"key_id": ""}, "that its issuer publishes"),
        ({"algorithm": "RS512"}, "signed with one of"),
        ({"algorithm": "PS256"}, "signed with one of"),
        ({"key": 2}, "signature is invalid"),
        ({"headers": {"typ": "logout+jwt"}}, "an access token"),
        ({"headers": {"typ": 7}}, "an access token"),
        ({"headers": {"crit": ["exp"], "exp": 1}}, "a signed JWT"),
    ],
)
def test_a_bad_token_lets_nobody_in(ledger: Client, local: LocalIssuer, fields: dict[str, Any], reason: str) -> None:
    key = key_of("RS256", fields.pop("key", 0))
    token = local.token("steward", key=key, **fields)
    answer = _ask(ledger, token)
    assert reason in problem_of(answer, "unauthenticated")["detail"]
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "another.example" not in answer.text


def _part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


_DEEP = b'{"a":' + b"[" * 9_000


def _unsigned(local: LocalIssuer, algorithm: str) -> str:
    return f"{_part({'alg': algorithm, 'kid': 'one'})}.{_part(local.claims('steward'))}."


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "RS256", ""])
def test_an_unsigned_token_lets_nobody_in(ledger: Client, local: LocalIssuer, algorithm: str) -> None:
    problem_of(_ask(ledger, _unsigned(local, algorithm)), "unauthenticated")


@pytest.mark.parametrize("form", ["PEM", "DER", "JWK"])
def test_the_public_key_is_no_secret_to_sign_with(ledger: Client, local: LocalIssuer, form: str) -> None:
    public = key_of("RS256").public_key()
    secret = {
        "PEM": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "DER": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "JWK": json.dumps(local.keys[0]).encode(),
    }[form]
    signed = f"{_part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{_part(local.claims('steward'))}"
    code = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    detail = problem_of(_ask(ledger, f"{signed}.{_part(code)}"), "unauthenticated")["detail"]
    assert detail == "expected a token signed with one of RS256, ES256, EdDSA"


def test_a_key_that_the_token_brings_itself_is_not_looked_at(ledger: Client, local: LocalIssuer) -> None:
    own = {"jwk": published("one", "RS256", 2), "jku": f"{local.url}/mine", "x5u": f"{local.url}/mine"}
    token = local.token("steward", key=key_of("RS256", 2), headers=own)
    problem_of(_ask(ledger, token), "unauthenticated")
    assert "/mine" not in local.asked


@pytest.mark.parametrize(
    "token",
    [
        "eyJ..",
        "eyJhbGciOiJSUzI1NiJ9.e30.AA==",
        "eyJhbGciOiJSUzI1NiJ9.***.AA",
        f"eyJ{'A' * 15_000}.e30.AA",
        _part(_DEEP) + ".e30.AA",
        f"{_part({'alg': ['RS256'], 'kid': 'one'})}.e30.AA",
        f"{_part({'alg': 'RS256', 'kid': ['one']})}.e30.AA",
        f"{_part({'alg': 'RS256', 'kid': 'one', 'b64': False})}.e30.AA",
        f"{_part({'alg': 'RS256', 'kid': 'one'})}.{_part(b'[' * 9_000)}.AA",
        f"{_part({'alg': 'RS256', 'kid': 'one'})}.e30.\u00e9",
    ],
)
def test_what_only_looks_like_a_token(ledger: Client, token: str) -> None:
    answer = ledger.get("/v1/accounts", headers=[(b"Authorization", f"Bearer {token}".encode("latin-1"))])
    problem_of(answer, "unauthenticated")


def test_a_changed_token_lets_nobody_in(ledger: Client, local: LocalIssuer) -> None:
    header, _, signature = local.token("auditor").split(".")
    problem_of(_ask(ledger, f"{header}.{_part(local.claims('steward'))}.{signature}"), "unauthenticated")


@pytest.mark.parametrize(
    "given", [None, "king", "", "STEWARD", 1, True, {"steward": True}, [], ["king"], [["steward"]], ["steward", 1]]
)
def test_a_token_without_a_role_may_nothing(ledger: Client, local: LocalIssuer, given: Any) -> None:
    assert "role claim" in problem_of(_ask(ledger, local.token(given)), "forbidden")["detail"]


@pytest.mark.parametrize(
    "name", [None, "", " ann", "a  nn", "e\u0301ve", "a\u200bnn", "a\nnn", "\ud800", "\0", "x" * 196]
)
def test_a_token_without_a_usable_name_may_nothing(ledger: Client, local: LocalIssuer, name: str | None) -> None:
    token = local.token("steward", sub=name)
    assert "principal claim" in problem_of(_ask(ledger, token), "forbidden")["detail"]


# Configured claims


def test_claims_are_read_where_they_are_configured_to_be(local: LocalIssuer, configured: Callable[..., Client]) -> None:
    settings: dict[str, Any] = {
        "oidc_role_claim": "/realm~1access/roles",
        "oidc_roles": '{"dp-office": "steward", "everybody": "auditor"}',
        "oidc_accounts_claim": "https://agency.example/accounts",
        "oidc_principal_claim": "/person/id",
    }
    person: dict[str, Any] = {"person": {"id": "Jos\u00e9"}}
    client = configured(local, **settings)

    def status(accounts: Any, *roles: str) -> int:
        claims = person | {"realm/access": {"roles": list(roles)}, "https://agency.example/accounts": accounts}
        headers = bearer(local.token(None, **claims))
        return client.get("/v1/accounts/people", headers=headers).status_code

    claims = person | {"realm/access": {"roles": ["everybody", "dp-office"]}}
    claims |= {"https://agency.example/accounts": "*"}
    steward = bearer(local.token(None, **claims))
    body = {"name": "people", "unit": "p", "neighbouring": "add_remove"}
    budget = {"budget": {"definition": "zcdp", "rho": 1}}
    json_of(client.post("/v1/accounts", json=body | budget, headers=steward), 201)
    (entry,) = json_of(client.get("/v1/accounts/people/journal"))["items"]
    assert entry["entry"]["actor"] == "oidc:Jos\u00e9"
    assert status(["people", "others"], "everybody") == 200
    assert status("people", "everybody") == 200
    listed = local.token(None, **claims | {"https://agency.example/accounts": ["people", "no\0name", "n\ud800r this"]})
    assert [found["name"] for found in json_of(_ask(client, listed))["items"]] == ["people"]
    for none in (["others"], [], "others", None, 7, [7], {"people": True}):
        assert status(none, "everybody") == 403
    assert status("*", "steward") == 403, "only what is configured gives a role"


# Two persons


@pytest.fixture
def both(database: Database, local: LocalIssuer) -> Iterator[Client]:
    """Return a fresh ``ledger`` on each kind of database."""
    with _app(database, local) as client:
        yield client


def test_two_persons_with_tokens_are_two_principals(both: Client, local: LocalIssuer) -> None:
    ann, bob = (bearer(local.token("steward", sub=name)) for name in ("ann", "bob"))
    another_ann = make_key(both, "steward", name="ann")
    open_account(both, approval_above="0.01")

    def propose(headers: dict[str, str]) -> str:
        body = {"name": "large", "plan": concentrated("0.1")}
        made = json_of(both.post("/v1/accounts/people/releases", json=body, headers=headers), 201)
        assert made["state"] == "proposed"
        return f"/v1/accounts/people/releases/{made['id']}/approve"

    approve = propose(ann)
    for own in (ann, bearer(local.token("steward", sub="ann", jti="another token"))):
        assert "another principal" in problem_of(both.post(approve, headers=own), "forbidden")["detail"]
    problem_of(both.post(approve, headers=bearer(local.token("pipeline", sub="bob"))), "forbidden")
    assert json_of(both.post(approve, headers=bob))["state"] == "committed"
    assert json_of(both.post(propose(ann), headers=another_ann))["state"] == "committed"
    actors = [entry["entry"]["actor"] for entry in json_of(both.get("/v1/accounts/people/journal"))["items"]]
    assert actors == ["first-steward", "oidc:ann", "oidc:bob", "oidc:ann", "ann"]


def test_requests_are_repeated_by_who_made_them_and_keys_name_their_maker(both: Client, local: LocalIssuer) -> None:
    body = {"name": "n", "role": "auditor"}
    ann, bob = (bearer(local.token("steward", sub=name)) | {"Idempotency-Key": "k"} for name in ("ann", "bob"))
    made = both.post("/v1/keys", json=body, headers=ann)
    assert json_of(made, 201)["created_by"] == "oidc:ann"
    renewed = bearer(local.token("steward", sub="ann", jti="y")) | {"Idempotency-Key": "k"}
    assert both.post("/v1/keys", json=body, headers=renewed).text == made.text
    assert json_of(both.post("/v1/keys", json=body, headers=bob), 201)["id"] != made.json()["id"]
    assert pointers_of(
        both.post("/v1/keys", json=body | {"name": "oidc:bob"}, headers=bearer(local.token("steward")))
    ) == ["/name"]


# The issuer starts, stops and changes its keys


def test_keys_are_rotated_and_withdrawn_under_a_running_service(
    configured: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "_PAUSE", 0.0)
    monkeypatch.setattr(issuers, "_FRESH", 0.0)
    with local_issuer() as local:
        client = configured(local)
        old, new = local.token(), local.token(key_id="next", key=key_of("RS256", 2))
        json_of(_ask(client, old))
        problem_of(_ask(client, new), "unauthenticated")
        local.keys[:] = [published("next", "RS256", 2)]
        json_of(_ask(client, new))
        problem_of(_ask(client, old), "unauthenticated")


def test_while_the_issuer_is_down_known_keys_and_api_keys_go_on(
    configured: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_issuer() as local:
        client = configured(local)
        assert local.asked == [], "nobody is asked before there is a token"
        json_of(_ask(client, local.token()))
    monkeypatch.setattr(issuers, "_PAUSE", 0.0)
    client.app.state.tokens.issuer._next = 0.0  # type: ignore[attr-defined]
    for _ in range(2):
        json_of(_ask(client, local.token()))
        json_of(client.get("/v1/accounts"))
        refused = _ask(client, local.token(key_id="unknown"))
        problem_of(refused, "unavailable")
        assert int(refused.headers["Retry-After"]) >= 1


def test_an_issuer_that_was_never_up_is_waited_for(configured: Callable[..., Client]) -> None:
    with local_issuer() as gone:
        pass
    client = configured(gone)
    for _ in range(2):
        refused = _ask(client, gone.token())
        problem_of(refused, "unavailable")
        assert 1 <= int(refused.headers["Retry-After"]) <= 10
        assert gone.url not in refused.text
    json_of(client.get("/v1/accounts"))


def test_without_an_issuer_a_token_is_an_unknown_key(embedded: Client) -> None:
    with local_issuer() as local:
        detail = problem_of(_ask(embedded, local.token("steward")), "unauthenticated")["detail"]
        assert detail == "the key is unknown, expired or revoked"
        assert local.asked == []
