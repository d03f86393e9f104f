"""Repeated requests: the first success is answered again, to the byte, and nothing happens twice."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import Conflict
from service.ledger.draws.retention import remove_noisy
from service.ledger.draws.stored_draws import read_answered
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.verification.verify_installation import verify_installation
from service.privacy.mechanisms import RandomizedResponse
from tests.api.calls import (
    Answer,
    Client,
    bearer,
    charge,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
)
from tests.ledger.writing import as_owner, run, unprotected

_ACCOUNT = {"name": "new", "unit": "p", "neighbouring": "add_remove", "budget": {"definition": "zcdp", "rho": 1}}
_RELEASE = {"name": "a release", "plan": concentrated("0.25")}
_DRAW = {"name": "a draw", "mechanism": pure("0.1", name="m"), "counts": [5, 6, 7]}

_CAPS: tuple[Any, Any] = ({"budget": {"definition": "zcdp", "rho": 2}}, {"budget": {"definition": "zcdp", "rho": 3}})

_CHANGES: list[tuple[str, str, Any, Any]] = [
    ("POST", "/v1/accounts", _ACCOUNT, _ACCOUNT | {"unit": "q"}),
    ("PATCH", "/v1/accounts/people", {"state": "closed"}, {"state": "open"}),
    ("PATCH", "/v1/accounts/people", *_CAPS),
    ("POST", "/v1/accounts/people/releases", _RELEASE, _RELEASE | {"name": "another"}),
    ("POST", "/v1/accounts/people/releases/batch", {"releases": [_RELEASE] * 2}, {"releases": [_RELEASE]}),
    ("POST", "/v1/accounts/people/draws", _DRAW, _DRAW | {"counts": [5, 6, 8]}),
    ("POST", "/v1/keys", {"name": "n", "role": "auditor"}, {"name": "n", "role": "pipeline"}),
]


def _send(client: Client, method: str, path: str, body: Any, key: str = "k", **headers: str) -> Answer:
    return client.request(method, path, json=body, headers={"Idempotency-Key": key, **headers})


def _state(database: Database) -> dict[str, list[Any]]:
    """Return all rows of the database."""
    tables = ("accounts", "releases", "spending", "journal", "draws", "branches_taken", "api_keys", "stored_answers")
    with database.read() as connection:
        return {table: sorted(map(repr, connection.execute(text(f"SELECT * FROM {table}")))) for table in tables}


@pytest.mark.parametrize(("method", "path", "body", "other"), _CHANGES, ids=lambda value: str(value)[:40])
def test_every_change_is_replayed(
    client: Client, database: Database, method: str, path: str, body: Any, other: Any
) -> None:
    open_account(client)
    first = _send(client, method, path, body)
    assert first.status_code in {200, 201}
    assert "Idempotent-Replay" not in first.headers
    after = _state(database)
    again = _send(client, method, path, body)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    problem_of(_send(client, method, path, other), "idempotency_conflict")
    assert _state(database) == after


@pytest.mark.parametrize("charged", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *((method, path, body) for method, path, body, _ in _CHANGES[:5]),
        ("POST", "/v1/accounts/people/releases/{held}/commit", {}),
        (
            "POST",
            "/v1/accounts/people/releases/{held}/void",
            {"reason": "mistake", "attestation": "nothing was published"},
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_answer_whose_entry_is_not_in_the_journal_is_not_replayed(
    client: Client,
    database: Database,
    secret: Secret,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
    charged: bool,
) -> None:
    """Somebody who writes the database kept the answer, with its seal, of a transaction that did not commit."""
    open_account(client)
    held = json_of(client.post("/v1/accounts/people/releases", json=_RELEASE | {"reserve_for": "P1D"}), 201)
    path, kept = path.format(held=held["id"]), dict[str, Any]()

    def store_and_fail(connection: Connection, *arguments: Any) -> None:
        store(connection, *arguments)
        kept.update(connection.execute(text("SELECT * FROM stored_answers")).mappings().one())
        raise Conflict("the transaction fails")

    store = idempotency.store
    with monkeypatch.context() as patched:
        patched.setattr(idempotency, "store", store_and_fail)
        problem_of(_send(client, method, path, body), "conflict")
    if charged:  # another entry has its number
        if path == "/v1/accounts":
            json_of(client.post(path, json=body | {"description": "another"}), 201)
        else:
            json_of(client.post("/v1/accounts/people/releases", json=_RELEASE), 201)
    columns, values = ", ".join(kept), ", ".join(f":{name}" for name in kept)
    run(database, f"INSERT INTO stored_answers ({columns}) VALUES ({values})", **kept)
    with database.read() as connection:
        (fault,) = verify_installation(connection, secret)
    assert fault == "stored_answers: 1 of 'first-steward' of entries, draws or keys that are not in the ledger"
    problem_of(_send(client, method, path, body), "conflict")


def test_verify_finds_an_answer_whose_api_key_is_gone(client: Client, database: Database, secret: Secret) -> None:
    made = json_of(_send(client, *_CHANGES[-1][:3]), 201)
    with as_owner(database.url) as owner:
        owner.execute(text("DELETE FROM api_keys WHERE id = :id"), {"id": made["id"]})
    with database.read() as connection:
        faults = list(verify_installation(connection, secret))
    assert "stored_answers: 1 of 'first-steward' of entries, draws or keys that are not in the ledger" in faults


def test_the_key_belongs_to_method_and_path_too(client: Client) -> None:
    for name in ("people", "others"):
        open_account(client, name)
    json_of(_send(client, "POST", "/v1/accounts/people/releases", _RELEASE), 201)
    for path in ("/v1/accounts/others/releases", "/v1/accounts/people/releases?dry_run=false"):
        problem_of(_send(client, "POST", path, _RELEASE), "idempotency_conflict")
    assert json_of(client.get("/v1/accounts/others/balance"))["releases"] == 0


def test_a_rehearsal_is_not_an_answer_to_keep(client: Client) -> None:
    open_account(client)
    path = "/v1/accounts/people/releases"
    json_of(_send(client, "POST", f"{path}?dry_run=true", _RELEASE))
    assert json_of(_send(client, "POST", path, _RELEASE), 201)["id"] is not None


def test_a_replay_belongs_to_the_principal_and_not_to_the_key(client: Client) -> None:
    open_account(client)
    old = make_key(client, "pipeline", "tabulator")
    first = _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **old)
    rotated = make_key(client, "pipeline", "tabulator")
    again = _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **rotated)
    assert (again.content, again.headers["Idempotent-Replay"]) == (first.content, "true")
    somebody = make_key(client, "pipeline", "somebody else")
    other = _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **somebody)
    assert json_of(other, 201)["id"] != first.json()["id"]


def test_a_replay_needs_the_role_and_the_account(client: Client) -> None:
    open_account(client)
    _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **make_key(client, "pipeline", "tabulator"))
    demoted = make_key(client, "auditor", "tabulator")
    problem_of(_send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **demoted), "forbidden")
    elsewhere = make_key(client, "pipeline", "tabulator", accounts=["others"])
    problem_of(_send(client, "POST", "/v1/accounts/people/releases", _RELEASE, **elsewhere), "forbidden")


def test_a_refusal_is_not_kept(client: Client) -> None:
    open_account(client)
    path = "/v1/accounts/people/releases"
    too_much = {"name": "x", "plan": concentrated(2)}
    problem_of(_send(client, "POST", path, too_much), "budget_exceeded")
    json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 2}}))
    answer = _send(client, "POST", path, too_much)
    assert json_of(answer, 201)["remaining"]["rho"] == 0
    assert "Idempotent-Replay" not in answer.headers
    pointers_of(_send(client, "POST", path, {"name": "x"}, key="l"))
    assert json_of(_send(client, "POST", path, {"name": "x", "plan": pure("1e-9")}, key="l"), 409)


def test_a_success_is_replayed_although_it_would_be_refused_now(client: Client) -> None:
    open_account(client)
    path, body = "/v1/accounts/people/releases", {"name": "x", "plan": concentrated(1)}
    first = _send(client, "POST", path, body)
    json_of(client.patch("/v1/accounts/people", json={"state": "closed"}))
    assert _send(client, "POST", path, body).content == first.content
    account = _send(client, "POST", "/v1/accounts", _ACCOUNT, key="a")
    assert _send(client, "POST", "/v1/accounts", _ACCOUNT, key="a").content == account.content
    problem_of(client.post("/v1/accounts", json=_ACCOUNT), "conflict")


def test_a_token_is_told_again_though_it_is_not_stored(client: Client, database: Database) -> None:
    body = {"name": "n", "role": "auditor"}
    first = json_of(_send(client, "POST", "/v1/keys", body), 201)
    assert json_of(client.get("/v1/accounts", headers=bearer(first["key"])))["items"] == []
    assert _send(client, "POST", "/v1/keys", body).json() == first
    assert first["key"] not in str(_state(database))
    assert client.delete(f"/v1/keys/{first['id']}").status_code == 204
    assert _send(client, "POST", "/v1/keys", body).json()["key"] == first["key"]


def test_a_draw_is_replayed_from_what_is_stored(client: Client, database: Database) -> None:
    open_account(client)
    first = _send(client, "POST", "/v1/accounts/people/draws", _DRAW)
    path = f"/v1/accounts/people/releases/{first.json()['release']}/draws"
    with database.read() as connection:
        assert connection.execute(text("SELECT body FROM stored_answers")).scalars().all() == [None]
    assert _send(client, "POST", "/v1/accounts/people/draws", _DRAW).content == first.content
    again = {"mechanism": "m", "counts": [5, 6, 7]}
    assert problem_of(client.post(path, json=again), "already_drawn")["draw"] == first.json()["draw"]


def test_a_draw_that_is_gone_is_not_replayed(client: Client, database: Database) -> None:
    open_account(client)
    gone = idempotency.Answer(201, draw_id="gone")
    with database.read() as connection, pytest.raises(Conflict):
        read_answered(connection, "people", gone, RandomizedResponse(epsilon=Fraction(1)))


def test_a_draw_is_not_replayed_if_the_head_does_not_follow_from_its_entry(client: Client, database: Database) -> None:
    open_account(client)
    json_of(_send(client, "POST", "/v1/accounts/people/draws", _DRAW), 201)
    drawn_at = head_of(client)["seq"]
    json_of(charge(client, pure("0.1")), 201)
    change = "UPDATE journal SET body = replace(body, 'committed', 'refused') WHERE seq > :seq"
    unprotected(database, "journal", change, seq=drawn_at)
    problem_of(_send(client, "POST", "/v1/accounts/people/draws", _DRAW), "conflict")


def test_a_draw_whose_counts_are_no_longer_kept(client: Client, database: Database) -> None:
    open_account(client)
    first = json_of(_send(client, "POST", "/v1/accounts/people/draws", _DRAW), 201)
    at = f"/v1/accounts/people/draws/{first['draw']}"
    assert remove_noisy(database, "9999", clock.now()) == 1
    for headers in ({}, {"Accept": "application/vnd.apache.arrow.stream"}):
        assert problem_of(client.get(at, headers=headers), "gone")["draw"] == first["draw"]
    assert (
        problem_of(_send(client, "POST", "/v1/accounts/people/draws", _DRAW), "already_drawn")["draw"] == first["draw"]
    )
    for query in ("", "?noisy=false"):
        (listed,) = json_of(client.get(f"/v1/accounts/people/releases/{first['release']}/draws{query}"))["items"]
        assert "noisy" not in listed
        assert (listed["draw"], listed["size"]) == (first["draw"], len(first["noisy"]))
        assert listed["noisy_removed_at"].endswith("Z")
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]
    assert json_of(client.get("/v1/accounts/people/balance"))["releases"] == 1


_TEXT = "\U0001f600" * 180
_LARGE = {"type": "declared", "epsilon": 0, "reference": _TEXT, "tags": [f"{k}{_TEXT}" for k in range(64)]}


@pytest.mark.parametrize("parts", [1, 40])
def test_what_is_said_again_of_a_large_release_is_stored_as_a_reference(
    client: Client, database: Database, parts: int
) -> None:
    open_account(client)
    plan = {"type": "sequence", "parts": [_LARGE] * parts}  # two million characters are sent in pieces
    body = {"name": "x", "plan": plan, "reserve_for": "P1D", "tags": [f"{k}{_TEXT}" for k in range(64)]}
    released = json_of(client.post("/v1/accounts/people/releases", json=body), 201)
    at, notes = f"/v1/accounts/people/releases/{released['id']}", {"metadata": {"notes": "\U0001f600" * 10_000}}
    asked: list[tuple[str, str, Any]] = [("POST", f"{at}/commit", None)] * 3 + [("PATCH", at, notes)] * 3
    first = [_send(client, *one, key=str(k)) for k, one in enumerate(asked)]
    with database.read() as connection:
        stored = connection.execute(text("SELECT max(length(body)), count(*) FROM stored_answers")).one()
    assert stored[0] < 4096
    assert stored[1] == len(asked)
    for k, (one, answer) in enumerate(zip(asked, first, strict=True)):
        assert json_of(answer)["plan"] == released["plan"]
        assert answer.json()["tags"] == released["tags"]
        again = _send(client, *one, key=str(k))
        assert (again.content, again.headers["Idempotent-Replay"]) == (answer.content, "true")
        assert again.headers["Content-Type"] == "application/json"


def test_an_answer_that_an_older_version_stored_whole_is_replayed_as_it_is(
    client: Client, database: Database, secret: Secret
) -> None:
    open_account(client)
    released = json_of(client.post("/v1/accounts/people/releases", json=_RELEASE), 201)
    path = f"/v1/accounts/people/releases/{released['id']}/commit"
    json_of(_send(client, "POST", path, None))
    old = f'{{"id": "{released["id"]}", "as": "it was \\u00e9"}}'
    statement = text("UPDATE stored_answers SET body = :old, seal = NULL")
    database.write(lambda connection: connection.execute(statement, {"old": old}), is_committed=lambda *_: False)
    database.write(
        lambda connection: idempotency.seal_old(connection, secret, ("", ""), 9), is_committed=lambda *_: False
    )
    again = _send(client, "POST", path, None)
    assert (again.status_code, again.text, again.headers["Idempotent-Replay"]) == (200, old, "true")


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "é"])
def test_keys_that_are_no_keys(embedded: Client, key: str) -> None:
    open_account(embedded)
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    answer = embedded.post("/v1/accounts/people/releases", json=_RELEASE, headers=headers)
    assert pointers_of(answer) == ["/header/Idempotency-Key"]
    assert json_of(embedded.get("/v1/accounts/people/balance"))["releases"] == 0


def test_two_keys_are_none(embedded: Client) -> None:
    open_account(embedded)
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    answer = embedded.post("/v1/accounts/people/releases", json=_RELEASE, headers=headers)
    assert pointers_of(answer) == ["/header/Idempotency-Key"]


def test_the_longest_key_and_every_printable_character(client: Client) -> None:
    open_account(client)
    for key in ("x" * 255, "!\"#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~ ."):
        first = _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, key=key)
        assert json_of(first, 201) == _send(client, "POST", "/v1/accounts/people/releases", _RELEASE, key=key).json()


def test_without_a_key_the_same_request_charges_twice(client: Client) -> None:
    open_account(client)
    assert [charge(client, concentrated("0.5")).status_code for _ in range(3)] == [201, 201, 409]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/accounts/people/releases", {"name": "x", "plan": concentrated(1)}),  # takes the whole budget
        ("/v1/accounts/people/draws", {"name": "x", "mechanism": pure("1.5"), "counts": [1, 2, 3]}),
        ("/v1/accounts", _ACCOUNT),
        ("/v1/keys", {"name": "n", "role": "auditor"}),
    ],
)
def test_of_requests_at_one_moment_one_runs_and_the_others_replay(served: Client, path: str, body: Any) -> None:
    open_account(served)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: _send(served, "POST", path, body), range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sorted(answer.headers.get("Idempotent-Replay", "false") for answer in answers) == ["false"] + ["true"] * 7


def test_the_head_of_a_long_answer_is_found_without_parsing_it(
    client: Client, database: Database, secret: Secret
) -> None:
    """As the parsed answer has it, whatever the names of the releases read like."""
    open_account(client)
    like = '"head": {"seq": 1, "hash": "' + "0" * 64 + '"}'
    batch = {"releases": [{"name": f"{number} {like}", "plan": concentrated("1e-9")} for number in range(40)]}
    single = {"name": like, "plan": concentrated("1e-9", name=like)}
    plan = {"type": "sequence", "parts": [concentrated("1e-9", name=f"{like} {number}") for number in range(700)]}
    requests = (("/batch", batch), ("", single), ("", single | {"plan": plan}))
    for number, (path, body) in enumerate(requests):
        key = {"Idempotency-Key": str(number)}
        first, again = (client.post(f"/v1/accounts/people/releases{path}", json=body, headers=key) for _ in range(2))
        assert (first.status_code, again.status_code, again.text) == (201, 201, first.text)
        assert again.headers["Idempotent-Replay"] == "true"
    with database.read() as connection:
        answers = [answer for _, answer in idempotency.stored_answers(connection, secret) if answer is not None]
    assert any(len(answer.body or "") > 1 << 16 for answer in answers)
    for answer in answers:
        head = answer.stated_head
        assert head is not None
        assert {"seq": head.seq, "hash": head.hash} == answer.stated["head"]


def test_a_long_answer_without_a_head_is_repeated(client: Client) -> None:
    accounts = [f"{number:04d}{'x' * 80}" for number in range(990)]
    body = {"name": "w", "url": "https://example.com/hook", "events": ["release.refused"], "accounts": accounts}
    first, again = (client.post("/v1/webhooks", json=body, headers={"Idempotency-Key": "long"}) for _ in range(2))
    assert (first.status_code, again.status_code, again.text) == (201, 201, first.text)
    assert len(again.text) > 1 << 16
    assert again.headers["Idempotent-Replay"] == "true"
