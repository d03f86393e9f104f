"""Authentication: nothing below /v1 is read without a key, and each key has the rights of its role and accounts."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.api.identity.auth import SIGNED_IN, SIGNED_IN_UNTIL, Authentication
from service.api.openapi import examples
from service.errors import Unauthenticated
from service.ledger.access.authentication import Principal
from service.ledger.access.key_records import ROLES
from tests.api.calls import (
    STEWARD,
    Answer,
    Client,
    bearer,
    concentrated,
    contract,
    json_of,
    make_key,
    open_account,
    operators_key,
    problem_of,
    pure,
    release,
)

_PATHS = contract()["paths"]
_OPERATIONS = sorted(
    (method.upper(), path) for path, methods in _PATHS.items() if path.startswith("/v1") for method in methods
)
_LIMITED_BY_BODY = (("POST", "/v1/accounts"), ("POST", "/v1/scenarios"), ("POST", "/v1/webhooks"))
_OPEN = ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/problems/validation", "/static/docs.js"]


@pytest.fixture
def keyless(shared_client: Client) -> Iterator[Client]:
    kept = shared_client.headers.pop("Authorization")
    yield shared_client
    shared_client.headers["Authorization"] = kept


def _refused(answer: Answer) -> None:
    problem_of(answer, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), _OPERATIONS)
def test_every_operation_needs_a_key_before_anything_else(keyless: Client, method: str, path: str) -> None:
    """401 comes before all other faults: unknown names, a body that is malformed, of an unknown type, or too large."""
    address = path.format(
        account="nobody",
        release="none",
        draw="none",
        key="none",
        job="none",
        scenario="none",
        webhook="none",
        delivery="none",
    )
    _refused(keyless.request(method, address))
    _refused(keyless.request(method, f"{address}?unknown=1"))
    for content in (b"{", b"\xff", b"[" * 10**5, b"x" * (64 * 2**20 + 1)):
        for media_type in ("application/json", "text/csv"):
            _refused(keyless.request(method, address, content=content, headers={"Content-Type": media_type}))


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/nothing", "/v1/accounts/", "/v1/accounts/a/b/c", "/v1%2Faccounts"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW"])
def test_what_is_not_there_needs_a_key_too(keyless: Client, method: str, path: str) -> None:
    answer = keyless.request(method, path)
    assert answer.status_code == 401
    if method != "HEAD":
        _refused(answer)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {STEWARD}",
        STEWARD,
        f"Bearer {STEWARD[:-1]}",
        f"Bearer {STEWARD}x",
        f"Bearer {STEWARD.upper()}",
        f"Bearer {STEWARD}, Bearer {STEWARD}",
        f"Bearer Bearer {STEWARD}",
    ],
)
def test_what_is_not_a_key(keyless: Client, given: str) -> None:
    _refused(keyless.get("/v1/accounts", headers={"Authorization": given}))


def test_a_key_of_other_bytes_than_ascii(keyless: Client) -> None:
    _refused(keyless.get("/v1/accounts", headers={b"Authorization": b"Bearer \xff\xfe"}))


def test_two_keys_are_none(keyless: Client) -> None:
    twice = [("Authorization", f"Bearer {STEWARD}"), ("Authorization", "Bearer other")]
    _refused(keyless.get("/v1/accounts", headers=twice))
    _refused(keyless.get("/v1/accounts", headers=twice[:1] * 2))


def test_a_refusal_says_what_was_sent(keyless: Client) -> None:
    def detail(*values: str) -> str:
        headers = [("Authorization", value) for value in values]
        return str(problem_of(keyless.get("/v1/accounts", headers=headers), "unauthenticated")["detail"])

    expected = "expected exactly one header Authorization: Bearer <key>, got"
    assert detail() == f"{expected} none"
    assert detail("Basic wrong") == f"{expected} one of another form"
    assert detail("Bearer") == f"{expected} one of another form"
    assert detail(f"Bearer {STEWARD}", "Bearer wrong") == f"{expected} 2 such headers"
    assert detail("Bearer wrong") == "the key is unknown, expired or revoked"


def test_the_scheme_is_read_as_http_has_it(keyless: Client) -> None:
    for scheme in ("Bearer", "bearer", "BEARER", "Bearer "):
        json_of(keyless.get("/v1/accounts", headers={"Authorization": f"{scheme} {STEWARD}"}))


@pytest.mark.parametrize("path", _OPEN)
def test_what_is_open_to_everybody(keyless: Client, path: str) -> None:
    assert keyless.get(path).status_code == 200
    assert keyless.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 200


def test_nothing_else_is_open(keyless: Client) -> None:
    for path in (
        "/v1x",
        "/admin",
        "/redoc",
        "/static",
        "/static/../app.py",
        "/static/%2e%2e/%2e%2e/app.py",
    ):
        problem_of(keyless.get(path), "not_found")


# Roles

_PLAN = concentrated("1e-9")
_DRAW = {"name": "d", "mechanism": pure("1e-9"), "counts": [1]}
_HISTOGRAM = _DRAW | {"dimensions": [{"name": "a", "values": ["x"]}]}
_STEPS = {"type": "sequence", "parts": [pure("1e-9", name="level/1"), pure("1e-9", name="level/2")]}
_LEVEL = {"type": "choice", "parts": [pure("1e-9", name="level/total"), _STEPS]}
_NEW = {"name": "new", "unit": "p", "neighbouring": "add_remove", "budget": {"definition": "zcdp", "rho": 1}}
_ANYBODY, _PIPELINE = "auditor pipeline approver steward", "pipeline steward"
_APPROVER, _STEWARD = "approver steward", "steward"

_SCENARIO = examples.SCENARIO | {"account": "people"}

# For each operation: the roles, and a body with which it succeeds.
ALLOWED: dict[tuple[str, str], tuple[str, Any]] = {
    ("GET", "/v1/accounts"): (_ANYBODY, None),
    ("POST", "/v1/accounts"): (_STEWARD, _NEW),
    ("GET", "/v1/accounts/{account}"): (_ANYBODY, None),
    ("PATCH", "/v1/accounts/{account}"): (_APPROVER, {"state": "open"}),
    ("POST", "/v1/accounts/{account}/reject"): (_APPROVER, {"reason": "r"}),
    ("GET", "/v1/accounts/{account}/balance"): (_ANYBODY, None),
    ("POST", "/v1/accounts/{account}/capacity"): (_ANYBODY, {"plan": _PLAN}),
    ("GET", "/v1/accounts/{account}/periods"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/registry-entry"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/history"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/shares"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/report"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/head"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/journal"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/verify"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/export"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases/{release}/receipt"): (_ANYBODY, None),
    ("GET", "/v1/installation"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases"): (_ANYBODY, None),
    ("POST", "/v1/accounts/{account}/releases"): (_PIPELINE, {"name": "r", "plan": _PLAN}),
    ("POST", "/v1/accounts/{account}/releases/batch"): (_PIPELINE, {"releases": [{"name": "r", "plan": _PLAN}]}),
    ("GET", "/v1/accounts/{account}/releases/{release}"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases/{release}/events"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases/{release}/accuracy"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/accuracy"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases/{release}/package"): (_ANYBODY, None),
    ("GET", "/v1/proposals"): (_ANYBODY, None),
    ("GET", "/v1/releases"): (_ANYBODY, None),
    ("PATCH", "/v1/accounts/{account}/releases/{release}"): (_PIPELINE, {"metadata": {"notes": None}}),
    ("GET", "/v1/accounts/{account}/releases/{release}/registry-entry"): (_ANYBODY, None),
    ("GET", "/v1/accounts/{account}/releases/{release}/draws"): (_ANYBODY, None),
    ("POST", "/v1/accounts/{account}/releases/{release}/draws"): (_PIPELINE, {"mechanism": "/", "counts": [1]}),
    ("POST", "/v1/accounts/{account}/releases/{release}/commit"): (_PIPELINE, None),
    ("POST", "/v1/accounts/{account}/releases/{release}/void"): (_APPROVER, {"reason": "r"}),
    ("POST", "/v1/accounts/{account}/releases/{release}/approve"): (_APPROVER, None),
    ("POST", "/v1/accounts/{account}/releases/{release}/tabulations"): (_PIPELINE, {"level": "level", "groups": []}),
    ("POST", "/v1/accounts/{account}/releases/{release}/selections"): (_PIPELINE, {"mechanism": "/", "scores": [1]}),
    ("POST", "/v1/accounts/{account}/histograms"): (_PIPELINE, _HISTOGRAM),
    ("POST", "/v1/accounts/{account}/draws"): (_PIPELINE, _DRAW),
    ("GET", "/v1/accounts/{account}/draws/{draw}"): (_ANYBODY, None),
    ("POST", "/v1/compositions"): (_ANYBODY, {"plan": _PLAN}),
    ("POST", "/v1/conversions"): (_ANYBODY, {"rho": 1, "delta": "1e-6"}),
    ("POST", "/v1/calibrations/moe"): (_ANYBODY, {"mechanism": "geometric", "moe": 6}),
    ("POST", "/v1/calibrations/noise"): (_ANYBODY, {"mechanism": "gaussian", "epsilon": 1, "delta": "1e-6"}),
    ("POST", "/v1/calibrations/threshold"): (_ANYBODY, examples.THRESHOLD),
    ("POST", "/v1/calibrations/allocation"): (_ANYBODY, examples.ALLOCATION),
    ("POST", "/v1/calibrations/comparison"): (_ANYBODY, {**examples.COMPARISON, "cells": [1]}),
    ("POST", "/v1/accuracy"): (_ANYBODY, examples.ACCURACY),
    ("POST", "/v1/accuracy/curve"): (_ANYBODY, examples.CURVE),
    ("POST", "/v1/plans/safetab"): (_ANYBODY, examples.SAFETAB),
    ("POST", "/v1/postprocessing/project"): (_ANYBODY, examples.TABLE),
    ("POST", "/v1/postprocessing/rake"): (_ANYBODY, examples.TABLE),
    ("POST", "/v1/empirical/loss"): (_STEWARD, {**examples.LOSS, "bootstrap": 0}),
    ("POST", "/v1/empirical/lower-bound"): (_STEWARD, examples.LOWER_BOUND),
    ("POST", "/v1/empirical/experiments"): (_STEWARD, examples.EXPERIMENT),
    ("GET", "/v1/jobs"): (_STEWARD, None),
    ("GET", "/v1/jobs/{job}"): (_STEWARD, None),
    ("DELETE", "/v1/jobs/{job}"): (_STEWARD, None),
    ("POST", "/v1/scenarios"): (_ANYBODY, _SCENARIO),
    ("GET", "/v1/scenarios"): (_ANYBODY, None),
    ("GET", "/v1/scenarios/{scenario}"): (_ANYBODY, None),
    ("PUT", "/v1/scenarios/{scenario}"): (_ANYBODY, _SCENARIO),
    ("DELETE", "/v1/scenarios/{scenario}"): (_ANYBODY, None),
    ("GET", "/v1/principal"): (_ANYBODY, None),
    ("GET", "/v1/keys"): (_STEWARD, None),
    ("POST", "/v1/keys"): (_STEWARD, {"name": "n", "role": "auditor"}),
    ("DELETE", "/v1/keys/{key}"): (_STEWARD, None),
    ("POST", "/v1/keys/{key}/rotate"): (_STEWARD, {}),
    ("GET", "/v1/webhooks"): (_STEWARD, None),
    ("POST", "/v1/webhooks"): (_STEWARD, examples.WEBHOOK),
    ("GET", "/v1/webhooks/{webhook}"): (_STEWARD, None),
    ("PATCH", "/v1/webhooks/{webhook}"): (_STEWARD, {}),
    ("DELETE", "/v1/webhooks/{webhook}"): (_STEWARD, None),
    ("POST", "/v1/webhooks/{webhook}/rotate"): (_STEWARD, None),
    ("POST", "/v1/webhooks/{webhook}/test"): (_STEWARD, None),
    ("GET", "/v1/webhooks/{webhook}/deliveries"): (_STEWARD, None),
    ("POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/retry"): (_STEWARD, None),
}


def test_every_operation_is_in_the_table(shared_client: TestClient) -> None:
    """The table has the operations of the contract and those that the contract leaves out."""
    application: Any = shared_client.app
    found = [route for route in iter_route_contexts(application.routes) if str(route.path).startswith("/v1")]
    answered = {(method, str(route.path)) for route in found for method in route.methods or ()}
    assert sorted(ALLOWED) == _OPERATIONS == sorted(answered)


@pytest.fixture(scope="module")
def roles(shared_client: Client) -> dict[str, dict[str, str]]:
    return {role: operators_key(shared_client, role, "somebody") for role in ROLES}


@pytest.fixture(scope="module")
def names(shared_client: Client) -> dict[str, str]:
    open_account(shared_client, approval_above="0.001", description="persons")
    json_of(shared_client.patch("/v1/accounts/people", json=examples.RELEASE_CHANGE))
    of = release(shared_client, pure("1e-9"))
    void = release(shared_client, pure("0.1"))  # a proposal, which an approver may void
    approve = release(shared_client, pure("0.1"))
    draw = json_of(shared_client.post("/v1/accounts/people/draws", json=_DRAW), 201)["draw"]
    key, rotated = (
        json_of(shared_client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201)["id"] for _ in "kr"
    )
    return {
        "account": "people",
        "release": of["id"],
        "draw": draw,
        "key": key,
        "rotate": rotated,
        "void": void["id"],
        "approve": approve["id"],
        "tabulations": release(shared_client, _LEVEL)["id"],
        "selections": release(shared_client, {"type": "exponential", "epsilon": "1e-9"})["id"],
    }


@pytest.fixture
def placed(shared_client: Client, names: dict[str, str], path: str) -> dict[str, str]:
    """Return a table with a new job, scenario or webhook for each operation on one, since these can be deleted."""
    if "{scenario}" in path:
        maker = operators_key(shared_client, "auditor", "somebody")
        body = _SCENARIO | {"name": str(uuid.uuid4())}
        return names | {"scenario": json_of(shared_client.post("/v1/scenarios", json=body, headers=maker), 201)["id"]}
    if "{webhook}" in path:
        return names | _failed_delivery(shared_client)
    if "{job}" not in path:
        return names
    return names | {
        "job": json_of(shared_client.post("/v1/empirical/experiments", json=examples.EXPERIMENT), 202)["id"]
    }


def _failed_delivery(client: Client) -> dict[str, str]:
    """Return a new webhook with a message that failed; earlier ones go, as one principal makes at most 20."""
    for one in json_of(client.get("/v1/webhooks"))["items"]:
        assert client.delete(f"/v1/webhooks/{one['id']}").status_code == 204
    made = json_of(client.post("/v1/webhooks", json=examples.WEBHOOK), 201)["id"]
    sent = json_of(client.post(f"/v1/webhooks/{made}/test"), 202)["id"]
    state = cast("TestClient", client).app.state  # type: ignore[attr-defined]
    failed = text("UPDATE deliveries SET state = 'failed', due_at = NULL WHERE id = :id")
    state.database.write(lambda c: c.execute(failed, {"id": sent}), is_committed=lambda *_: False)
    return {"webhook": made, "delivery": sent}


def _at(path: str, names: dict[str, str]) -> str:
    """Return the address, with a release or a key in the state that the operation needs."""
    operation = path.rpartition("/")[-1]
    return path.format_map(names | {kind: names.get(operation, names[kind]) for kind in ("release", "key")})


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("method", "path"), _OPERATIONS)
def test_each_role_may_what_the_contract_says(
    shared_client: Client, roles: dict[str, dict[str, str]], placed: dict[str, str], method: str, path: str, role: str
) -> None:
    allowed, body = ALLOWED[method, path]
    answer = shared_client.request(
        method, _at(path, placed), json=_for(shared_client, role, path, body), headers=roles[role]
    )
    if role in allowed.split():
        _require_granted(answer, path)
    else:
        assert role in problem_of(answer, "forbidden")["detail"]


def _require_granted(answer: httpx2.Response, path: str) -> None:
    if path.endswith("/periods"):  # the account has none, which only those learn who may read it
        assert "periods" in problem_of(answer, "not_found")["detail"]
    else:
        assert answer.is_success, answer.text


def _for(client: Client, who: str, path: str, body: Any) -> Any:
    """Return the body with a new partition, group or proposal, for operations that succeed once."""
    if path.endswith("/reject"):
        change = {"budget": {"definition": "zcdp", "rho": "1000"}}
        waits = json_of(client.patch("/v1/accounts/people", json=change), 202)["proposed_change"]
        return body | {"proposal": waits["seq"]}
    if body and "/scenarios" in path:
        return body | {"name": str(uuid.uuid4())}
    if path.endswith("/tabulations"):
        return body | {"groups": [{"group": who, "total_only": True, "total": 1}]}
    return body | {"partition": who} if path.endswith(("{release}/draws", "/selections")) and body else body


@pytest.mark.parametrize(("method", "path"), [operation for operation in _OPERATIONS if "{account}" in operation[1]])
def test_a_limited_key_reaches_its_accounts_only(
    shared_client: Client, names: dict[str, str], method: str, path: str
) -> None:
    """Other accounts are refused if they exist and if they do not: a limited key learns nothing of them."""
    body = _for(shared_client, "limited", path, ALLOWED[method, path][1])
    elsewhere = make_key(shared_client, "steward", accounts=["elsewhere", "people-2"])
    for account in ("people", "nobody"):
        address = path.format_map(names | {"account": account})
        problem_of(shared_client.request(method, address, json=body, headers=elsewhere), "forbidden")
    here = operators_key(shared_client, "steward", "somebody", ["people"])
    answer = shared_client.request(method, _at(path, names), json=body, headers=here)
    _require_granted(answer, path)


def _needs_no_limit(path: str) -> bool:
    """Return True where a key that is limited to other accounts is refused."""
    return any(part in path for part in ("{account}", "{job}", "{scenario}", "{webhook}", "/v1/keys"))


@pytest.mark.parametrize(("method", "path"), _OPERATIONS)
def test_keys_that_are_revoked_or_limited_elsewhere(
    shared_client: Client, placed: dict[str, str], method: str, path: str
) -> None:
    """The body would be accepted, so only the key can be the reason."""
    body, address = ALLOWED[method, path][1], _at(path, placed)
    made = json_of(shared_client.post("/v1/keys", json={"name": "n", "role": "steward"}), 201)
    json_of(shared_client.get("/v1/accounts", headers=bearer(made["key"])))
    assert shared_client.delete(f"/v1/keys/{made['id']}").status_code == 204
    _refused(shared_client.request(method, address, json=body, headers=bearer(made["key"])))
    elsewhere = make_key(shared_client, "steward", accounts=["elsewhere"])
    answer = shared_client.request(
        method, address, json=_for(shared_client, "elsewhere", path, body), headers=elsewhere
    )
    if _needs_no_limit(path) or (method, path) in _LIMITED_BY_BODY:
        problem_of(answer, "forbidden")
    else:
        assert answer.is_success, answer.text


def test_a_limited_steward_opens_only_what_the_key_names(shared_client: Client) -> None:
    limited = make_key(shared_client, "steward", accounts=["theirs"])
    problem_of(shared_client.post("/v1/accounts", json=_NEW | {"name": "ours"}, headers=limited), "forbidden")
    json_of(shared_client.post("/v1/accounts", json=_NEW | {"name": "theirs"}, headers=limited), 201)


def test_a_limited_steward_opens_nothing_under_accounts_of_others(shared_client: Client, names: dict[str, str]) -> None:
    limited = make_key(shared_client, "steward", accounts=["under", "people-3"])
    problem_of(
        shared_client.post("/v1/accounts", json=_NEW | {"name": "under", "parent": "people"}, headers=limited),
        "forbidden",
    )


def test_a_limited_steward_manages_no_keys(shared_client: Client, names: dict[str, str]) -> None:
    """Otherwise it could create an unlimited key, or revoke the key of the steward that limited it."""
    limited = make_key(shared_client, "steward", accounts=["people"])
    for body in ({"name": "n", "role": "steward"}, {"name": "n", "role": "auditor", "accounts": ["people"]}):
        problem_of(shared_client.post("/v1/keys", json=body, headers=limited), "forbidden")
    problem_of(shared_client.get("/v1/keys", headers=limited), "forbidden")
    problem_of(shared_client.delete(f"/v1/keys/{names['key']}", headers=limited), "forbidden")
    own = json_of(shared_client.get("/v1/keys?limit=1000"))["items"][-1]
    assert own["accounts"] == ["people"]
    for key in (names["key"], own["id"]):
        problem_of(shared_client.post(f"/v1/keys/{key}/rotate", json={}, headers=limited), "forbidden")


def test_a_person_whom_an_issuer_vouched_for_is_admitted_again_while_the_session_lasts() -> None:
    ann = Principal(None, "ann", "auditor", None)

    def again(until: float) -> Principal:
        scope = {"state": {SIGNED_IN: ann, SIGNED_IN_UNTIL: until}}
        return asyncio.run(Authentication._again(SimpleNamespace(), scope, ""))  # type: ignore[arg-type]

    assert again(time.time() + 60) == ann
    with pytest.raises(Unauthenticated, match="the session has ended"):
        again(time.time() - 1)
