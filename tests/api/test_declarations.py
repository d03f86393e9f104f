"""Partitions that plans declare, over HTTP: the same records cannot be drawn again under another name."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI

from service.ledger.draws import partitions as ledger_partitions
from service.ledger.installation.signing import signer_of
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.verification.verify import verify
from tests.api.calls import (
    Answer,
    Client,
    application,
    charge,
    client_of,
    json_of,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.api.streams import counts as stream_of, draw as draw_stream

_WIDE = {"definition": "pure", "epsilon": 10**6}
_NAME = "36 Cáfe"
_SPELLINGS = [
    "36 Cáfe ", " 36 Cáfe", "36  Cáfe", "36\u00a0Cáfe", "36\u2003Cáfe", "36\u3000Cáfe",
    "\uff13\uff16 Cáfe", "36 \uff23áfe",
    unicodedata.normalize("NFD", _NAME), "36\u200b Cáfe", "\ufeff36 Cáfe", "36 C\u00adáfe", "36 Cáfe\u2060",
    "36 Cáfe\ufe0f", "36 Cáfe\U000e0100", "36 Cáfe\u034f", "36 Cáfe\u3164", "36 Cáfe\u2800", "36 C\u115fáfe",
    "\u202e36 Cáfe", "36 C\u200dáfe", "36 Cáfe\u180b",
]  # fmt: skip


def _draw(client: Client, of: Any, partition: str | None = None, key: str | None = None, **fields: Any) -> Answer:
    path = f"/v1/accounts/{of['account']}/releases/{of['id']}/draws"
    body = {"mechanism": "county", "counts": [1000], "partition": partition} | fields
    return client.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})


def _released(client: Client, partitions: Any = None, **fields: Any) -> Any:
    open_account(client, budget=_WIDE)
    return release(
        client, pure("0.5", name="county", **({} if partitions is None else {"partitions": partitions})), **fields
    )


def _drawn(client: Client, of: Any) -> Any:
    return json_of(client.get(f"/v1/accounts/{of['account']}/releases/{of['id']}"))["partitions"]


# Names


def test_one_partition_has_one_spelling(client: Client) -> None:
    """Before, each of these spellings was drawn separately, with fresh noise on the same counts."""
    of = _released(client)
    json_of(_draw(client, of, _NAME), 201)
    for spelling in _SPELLINGS:
        refused = _draw(client, of, spelling)
        assert pointers_of(refused) == ["/partition"], ascii(spelling)
        assert spelling not in refused.text
        assert refused.json()["errors"][0]["detail"].startswith("expected 1 to 200 visible characters")
    problem_of(_draw(client, of, _NAME), "already_drawn")
    assert _drawn(client, of) == [{"mechanism": "county", "declared": None, "drawn": 1}]


def test_a_stream_says_its_partition_in_the_same_spelling(embedded: Client) -> None:
    of = _released(embedded, ["36"])
    for partition in ("36 ", "37"):
        refused = draw_stream(embedded, of, stream_of([1]), None, mechanism="county", partition=partition)
        assert pointers_of(refused) == ["/query/partition"]
    assert draw_stream(embedded, of, stream_of([1]), None, mechanism="county", partition="36").status_code == 201


@pytest.mark.parametrize("name", ["Åland", "Ñuble", "1/2", "北京市", "O'Brien County", "36 New York"])
def test_names_that_people_use_are_drawn(embedded: Client, name: str) -> None:
    of = _released(embedded, [name])
    assert json_of(_draw(embedded, of, name), 201)["partition"] == name


def test_an_answer_of_an_earlier_version_is_given_again_whatever_the_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = _released(client)
    with monkeypatch.context() as earlier:
        earlier.setattr(ledger_partitions, "refusal", lambda *_, **__: None)
        first = _draw(client, of, "36 ", "an old key")
        json_of(first, 201)
    again = _draw(client, of, "36 ", "an old key")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotent-Replay"] == "true"
    assert pointers_of(_draw(client, of, "36 ", "a new key")) == ["/partition"]
    (stored,) = json_of(client.get(f"/v1/accounts/people/releases/{of['id']}/draws"))["items"]
    assert stored == first.json()


# Averaging


@pytest.mark.parametrize(("declared", "drawn"), [(["36", "01"], 2), (17, 17)])
def test_noise_is_not_averaged_away_by_inventing_partitions(embedded: Client, declared: Any, drawn: int) -> None:
    of = _released(embedded, declared)
    answers = [_draw(embedded, of, name) for name in ("36", "01", *(f"invented {number}" for number in range(200)))]
    assert sum(answer.status_code == 201 for answer in answers) == drawn
    for answer in answers:
        if answer.status_code != 201 and isinstance(declared, list):
            assert pointers_of(answer) == ["/partition"]
            assert "expected one of the partitions that the plan declares" in answer.text
        elif answer.status_code != 201:
            assert "17 of 17 declared partitions are drawn" in problem_of(answer, "conflict")["detail"]
    assert _drawn(embedded, of) == [{"mechanism": "county", "declared": drawn, "drawn": drawn}]
    problem_of(_draw(embedded, of, "36"), "already_drawn")


def test_the_whole_input_is_drawn_in_spite_of_a_declaration_and_excludes_partitions(client: Client) -> None:
    of = _released(client, 1)
    assert json_of(_draw(client, of), 201)["declared_partitions"] == 1
    problem_of(_draw(client, of, "36"), "already_drawn")
    assert _drawn(client, of) == []
    other = release(client, pure("0.5", name="county", partitions=["36"]))
    json_of(_draw(client, other, "36"), 201)
    problem_of(_draw(client, other), "already_drawn")


def test_a_number_holds_in_each_repetition_and_for_each_mechanism(client: Client) -> None:
    open_account(client, budget=_WIDE)
    parts = [pure("0.1", name="county"), pure("0.1", name="other", partitions=1)]
    choice = {"type": "choice", "parts": parts}
    of = release(client, {"type": "repeat", "count": 2, "partitions": 2, "part": choice})
    for repetition in (0, 1):
        for partition in ("a", "b"):
            json_of(_draw(client, of, partition, repetition=repetition), 201)
        problem_of(_draw(client, of, "c", repetition=repetition), "conflict")
    json_of(_draw(client, of, "c", mechanism="other"), 201)
    problem_of(_draw(client, of, "d", mechanism="other"), "conflict")
    assert _drawn(client, of) == [
        {"mechanism": "county", "declared": 2, "drawn": 2},
        {"mechanism": "other", "declared": 1, "drawn": 1},
    ]


def test_many_at_once_do_not_draw_more_than_is_declared(served: Client, database: Database) -> None:
    of = _released(served, 10, reserve_for="PT1H")
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: _draw(served, of, f"p{number}"), range(48)))
    assert sorted(answer.status_code for answer in answers) == [201] * 10 + [409] * 38
    assert _drawn(served, of) == [{"mechanism": "county", "declared": 10, "drawn": 10}]
    with database.read() as connection:
        assert verify(connection, "people").valid


# Declarations


def test_a_release_declares_for_all_mechanisms_that_do_not(client: Client) -> None:
    open_account(client, budget=_WIDE)
    parts = [
        pure("0.1", name="county"),
        pure("0.1", name="own", partitions=["x"]),
        {"type": "laplace", "epsilon": "0.1"},
    ]
    of = release(client, {"type": "sequence", "parts": parts}, partitions=["01", "02"])
    assert of["plan"]["partitions"] == ["01", "02"]
    assert pointers_of(_draw(client, of, "x")) == ["/partition"]
    json_of(_draw(client, of, "01"), 201)
    json_of(_draw(client, of, "x", mechanism="own"), 201)
    alone = release(client, pure("0.1", name="county"), partitions=3)
    assert (alone["plan"]["partitions"], json_of(_draw(client, alone, "any"), 201)["declared_partitions"]) == (3, 3)
    own = release(client, pure("0.1", name="county", partitions=2), partitions=3)
    assert own["plan"]["partitions"] == 2


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"partitions": []}, ["/partitions"]),
        ({"partitions": ["a", "b", "a"]}, ["/partitions/2"]),
        ({"partitions": ["a", "\uff13\uff16"]}, ["/partitions/1"]),
        ({"partitions": 0}, ["/partitions"]),
        ({"partitions": 10**10}, ["/partitions"]),
        ({"partitions": True}, ["/partitions"]),
        ({"partitions": "36"}, ["/partitions"]),
        ({"partitions": {"36": 1}}, ["/partitions"]),
        ({"partitions": 2.5}, ["/partitions"]),
        ({"partitions": [[1]]}, ["/partitions"]),
        ({"plan": pure(1, partitions=["a "])}, ["/plan/partitions/0"]),
        ({"plan": pure(1, partitions=[1])}, ["/plan/partitions"]),
        ({"plan": {"type": "laplace", "epsilon": 1, "partitions": 2}}, ["/plan/partitions"]),
        ({"plan": {"type": "laplace", "epsilon": 1}, "partitions": 2}, ["/partitions"]),
        ({"plan": {"type": "declared", "epsilon": 1, "reference": "r", "partitions": 2}}, ["/plan/partitions"]),
        ({"plan": {"type": "repeat", "count": 2, "part": pure(1, partitions=[])}}, ["/plan/part/partitions"]),
    ],
)
def test_what_declares_nothing_is_refused_where_it_stands(
    shared_client: Client, fields: Any, pointers: list[str]
) -> None:
    if json_of(shared_client.get("/v1/accounts"))["items"] == []:
        open_account(shared_client, budget=_WIDE)
    assert pointers_of(charge(shared_client, **({"plan": pure(1)} | fields))) == pointers


def test_a_hundred_thousand_partitions_are_listed_and_no_more(embedded: Client) -> None:
    names = [f"{number:06}" for number in range(100_000)]
    of = _released(embedded, names)
    assert json_of(_draw(embedded, of, "099999"), 201)["declared_partitions"] == 100_000
    assert pointers_of(_draw(embedded, of, "100000")) == ["/partition"]
    parts = [pure(1, partitions=names[:60_000]), pure(1, partitions=names[:60_000])]
    refused = charge(embedded, {"type": "sequence", "parts": parts})
    assert pointers_of(refused) == ["/plan"]
    assert "at most 100000 partitions" in refused.text


# Answers


def test_answers_balances_and_receipts_say_what_was_drawn_and_declared(client: Client, secret: Secret) -> None:
    open_account(client, "agency", budget=_WIDE)
    open_account(client, budget=_WIDE, parent="agency")
    parts = [pure("0.1", name="county", partitions=52), pure("0.1", name="undeclared")]
    of = release(client, {"type": "sequence", "parts": parts})
    assert of["partitions"] == []
    drawn = json_of(_draw(client, of, "01"), 201)
    assert drawn["declared_partitions"] == 52
    assert "partitions" not in drawn["mechanism"]
    assert json_of(_draw(client, of, "02"), 201)["declared_partitions"] == 52
    assert json_of(_draw(client, of, "01", mechanism="undeclared"), 201)["declared_partitions"] is None
    expected = [
        {"mechanism": "county", "declared": 52, "drawn": 2},
        {"mechanism": "undeclared", "declared": None, "drawn": 1},
    ]
    path = f"/v1/accounts/people/releases/{of['id']}"
    assert json_of(client.get(path))["partitions"] == expected
    assert json_of(client.get("/v1/accounts/people/releases"))["items"][0]["partitions"] == expected
    assert json_of(client.post(f"{path}/commit", json={}))["partitions"] == expected
    receipt = json_of(client.get(f"{path}/receipt"))
    assert receipt["partitions"] == expected
    assert receipt["public_key"] == signer_of(secret).public_key
    outlines = json_of(client.get(f"{path}/draws?noisy=false"))["items"]
    assert [outline["declared_partitions"] for outline in outlines] == [52, 52, None]
    for account in ("people", "agency"):
        balance = json_of(client.get(f"/v1/accounts/{account}/balance"))
        assert balance["partitions"] == {"drawn": 3, "undeclared": 1}
        assert json_of(client.get(f"/v1/accounts/{account}/balance?as_of=1"))["partitions"] is None
        assert json_of(client.get(f"/v1/accounts/{account}/verify"))["valid"]


def test_an_installation_can_ask_for_declarations(database: Database, secret: Secret) -> None:
    app: FastAPI = application(database, secret, require_partitions=True)
    with client_of(app) as client:
        of = _released(client)
        refused = problem_of(_draw(client, of, "36"), "conflict")
        assert "register a release whose plan declares its partitions" in refused["detail"]
        json_of(_draw(client, of), 201)
        declared = release(client, pure("0.5", name="county"), partitions=["36"])
        json_of(_draw(client, declared, "36"), 201)


# Tabulations


def _level(total: Any = None, steps: Any = None) -> dict[str, Any]:
    def noise(name: str, partitions: Any) -> dict[str, Any]:
        return {"type": "geometric", "scale": "1e-4", "name": f"Nation/{name}", "partitions": partitions}

    sequence = {"type": "sequence", "parts": [noise("step 1", steps), noise("step 2", steps)]}
    return {"type": "repeat", "count": 9, "part": {"type": "choice", "parts": [noise("total", total), sequence]}}


def _tabulate(client: Client, of: Any, *groups: str, marked: bool = True, key: str | None = None) -> Answer:
    ages = [[1, 2], [3, 4]]
    listed = [
        {"group": name} | ({"total_only": True, "total": 5} if marked else {"sex_by_age": ages}) for name in groups
    ]
    path = f"/v1/accounts/people/releases/{of['id']}/tabulations"
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(path, json={"level": "Nation", "groups": listed}, headers=headers)


def test_a_replay_says_what_was_drawn_and_described_when_it_was_first_answered(client: Client) -> None:
    """The replay is rendered from the ledger, which has changed since."""
    open_account(client, budget=_WIDE)
    county = pure("0.5", name="county", tags=["T\u00e9xt"])
    of = release(client, {"type": "sequence", "parts": [_level(), county, pure(1, name="Z")]}, tags=["\U0001f600"])
    at, answers = f"/v1/accounts/people/releases/{of['id']}", list[tuple[str, str, Any, str]]()

    def ask(method: str, path: str, body: Any = None) -> Any:
        key = {"Idempotency-Key": str(len(answers))}
        answers.append((method, path, body, client.request(method, path, json=body, headers=key).text))
        return json_of(client.request(method, path, json=body, headers=key))

    def drawn() -> dict[str, int]:
        return {one["mechanism"]: one["drawn"] for one in ask("POST", f"{at}/commit")["partitions"]}

    assert drawn() == {}
    json_of(_draw(client, of, "z", mechanism="Z"), 201)
    json_of(_draw(client, of, "a"), 201)
    assert ask("PATCH", at, {"metadata": {"notes": "one"}})["metadata"] == {"notes": "one"}
    for repetition in (0, 1, 1):
        json_of(_draw(client, of, f"b{len(answers)}", mechanism="Nation/total", repetition=repetition), 201)
        drawn()
    json_of(_tabulate(client, of, "x", "y"), 201)
    assert drawn() == {"Nation/total": 3, "Z": 1, "county": 1}
    json_of(_tabulate(client, of, "v", "w", marked=False), 201)
    json_of(_draw(client, of), 409)
    json_of(client.patch("/v1/accounts/people", json={"budget": _WIDE | {"epsilon": 10**7}}))
    ask("PATCH", at, {"metadata": {"notes": None, "sources": "a place", "registry_authors": ["Ann"]}})
    assert drawn() == {"Nation/step 1": 2, "Nation/step 2": 2, "Nation/total": 3, "Z": 1, "county": 1}
    for number, (method, path, body, text) in enumerate(answers):
        again = client.request(method, path, json=body, headers={"Idempotency-Key": str(number)})
        assert (again.status_code, again.headers["Idempotent-Replay"], again.text) == (200, "true", text)
    shown = json_of(client.get(at))
    only_read = {"head", "registered_by", "approved_by", "plan_tags"}
    assert {name: value for name, value in json_of(client.post(f"{at}/commit")).items() if name != "head"} == {
        name: value for name, value in shown.items() if name not in only_read
    }


def test_groups_are_partitions_of_the_mechanisms_that_draw_them(client: Client) -> None:
    open_account(client, budget=_WIDE)
    of = release(client, _level(total=2, steps=["a", "b", "c"]))
    assert pointers_of(_tabulate(client, of, "a", "z", marked=False)) == ["/groups/1/group"]
    assert pointers_of(_tabulate(client, of, "a", "b\u200b", marked=False)) == ["/groups/1/group"]
    assert json_of(_tabulate(client, of, "a", "c", marked=False), 201)["declared_partitions"] == 3
    problem_of(_tabulate(client, of, "x", "y", "z"), "conflict")
    json_of(_tabulate(client, of, "x", "y"), 201)
    assert "2 of 2 declared partitions are drawn" in problem_of(_tabulate(client, of, "z"), "conflict")["detail"]
    problem_of(_tabulate(client, of, "x"), "already_drawn")
    json_of(_tabulate(client, of, "b", marked=False), 201)
    assert _drawn(client, of) == [
        {"mechanism": "Nation/step 1", "declared": 3, "drawn": 3},
        {"mechanism": "Nation/step 2", "declared": 3, "drawn": 3},
        {"mechanism": "Nation/total", "declared": 2, "drawn": 2},
    ]
    assert json_of(client.get("/v1/accounts/people/balance"))["partitions"] == {"drawn": 8, "undeclared": 0}
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


def test_a_tabulation_of_an_earlier_version_is_answered_again(
    embedded: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(embedded, budget=_WIDE)
    of = release(embedded, _level())
    with monkeypatch.context() as earlier:
        earlier.setattr(ledger_partitions, "refusal", lambda *_, **__: None)
        first = _tabulate(embedded, of, "a ", key="old")
    assert json_of(first, 201)["declared_partitions"] is None
    assert _tabulate(embedded, of, "a ", key="old").content == first.content
    assert pointers_of(_tabulate(embedded, of, "b ")) == ["/groups/0/group"]


def test_the_branches_of_a_choice_share_the_number_that_is_declared(client: Client) -> None:
    """The choice is charged for one branch, so other names for the same records must not reach the other branches."""
    open_account(client)
    once = {"type": "geometric", "epsilon": "0.1"}
    parts = [
        once | {"name": "a"},
        {
            "type": "sequence",
            "parts": [once | {"name": "b"}, {"type": "repeat", "count": 2, "part": once | {"name": "c"}}],
        },
    ]
    choice = {"type": "choice", "partitions": 3, "parts": parts}
    of = release(client, {"type": "repeat", "count": 2, "part": choice})

    def drawn(mechanism: str, partition: str, repetition: int = 0) -> int:
        asked = {"mechanism": mechanism, "partition": partition, "repetition": repetition, "counts": [7]}
        return client.post(f"/v1/accounts/people/releases/{of['id']}/draws", json=asked).status_code

    assert [drawn("a", "1"), drawn("b", "2"), drawn("c", "2", 0), drawn("c", "2", 1)] == [201] * 4
    assert [drawn("b", "3"), drawn("c", "3", 1)] == [201, 201], "a run of a branch is all its mechanisms"
    assert [drawn("a", "4"), drawn("b", "4"), drawn("c", "4", 0)] == [409, 409, 201]
    assert [drawn("c", "5", 0), drawn("a", "5")] == [409, 409], "four runs of the second branch would be one too many"
    assert [drawn("a", number, 1) for number in ("1", "2", "3", "4")] == [201, 201, 201, 409], "another turn"
    assert drawn("b", "5", 1) == 409
    asked = {"mechanism": "a", "partition": "9", "counts": [7]}
    refused = problem_of(client.post(f"/v1/accounts/people/releases/{of['id']}/draws", json=asked), "conflict")
    assert refused["detail"] == "3 of 3 declared partitions are drawn, of all branches of a choice together"
