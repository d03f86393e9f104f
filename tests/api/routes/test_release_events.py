"""Events of a release: who did what with it, when and with which words."""

from itertools import chain

import pytest

from tests.api.calls import (
    Client,
    json_of,
    make_key,
    open_account,
    operators_key,
    pages_of,
    pointers_of,
    problem_of,
    pure,
    release,
)


def _events(client: Client, of: str, **query: str | int) -> list[tuple[str, str | None, str | None, str | None]]:
    answer = json_of(client.get(f"/v1/accounts/people/releases/{of}/events", params=query))
    return [(item["kind"], item["principal"], item["state"], item["reason"]) for item in answer["items"]]


def test_an_approved_release_says_who_did_what_and_why(client: Client) -> None:
    open_account(client, approval_above="0.001")
    plan = {"type": "geometric", "name": "a", "epsilon": "0.5"}
    body = {"name": "weekly table", "plan": plan, "reserve_for": "P1D"}
    pipeline, second = make_key(client, "pipeline", "weekly"), operators_key(client, "steward", "second")
    proposed = json_of(client.post("/v1/accounts/people/releases", json=body, headers=pipeline), 201)["id"]
    at = f"/v1/accounts/people/releases/{proposed}"
    approved = client.post(f"{at}/approve", json={"reason": "the board agreed on 3 May"}, headers=second)
    assert json_of(approved)["state"] == "reserved"
    json_of(client.post(f"{at}/draws", json={"mechanism": "a", "counts": [1, 2]}, headers=pipeline), 201)
    json_of(client.patch(at, json={"metadata": {"intended_use": "a test"}}))
    assert _events(client, proposed) == [
        ("proposed", "weekly", "proposed", None),
        ("approved", "second", "reserved", "the board agreed on 3 May"),
        ("committed", "weekly", "committed", None),
        ("drawn", "weekly", None, None),
        ("described", "first-steward", None, None),
    ]


def test_a_voided_release_says_the_reason(client: Client) -> None:
    open_account(client)
    held = release(client, pure("0.5"), reserve_for="P1D")["id"]
    release(client, pure("0.1"))
    body = {"reason": "withdrawn", "attestation": "nothing was published"}
    json_of(client.post(f"/v1/accounts/people/releases/{held}/void", json=body))
    assert _events(client, held)[1:] == [("voided", "first-steward", "voided", "withdrawn")]


def test_pages_of_events_have_no_gaps_and_no_repetitions(embedded: Client) -> None:
    open_account(embedded)
    plan = {"type": "geometric", "name": "a", "epsilon": "0.5", "partitions": 7}
    drawn = release(embedded, plan)["id"]
    at = f"/v1/accounts/people/releases/{drawn}"
    for number in range(7):
        body = {"mechanism": "a", "counts": [1], "partition": str(number)}
        json_of(embedded.post(f"{at}/draws", json=body), 201)
        release(embedded, pure("0.01"))
    whole = json_of(embedded.get(f"{at}/events"))["items"]
    assert [item["kind"] for item in whole] == ["committed", *["drawn"] * 7]
    for limit in (1, 3, 7, 8):
        pages = list(pages_of(embedded, f"{at}/events", limit=limit))
        assert max(map(len, pages)) <= limit
        assert list(chain.from_iterable(pages)) == whole


def test_an_approval_may_have_a_body_or_none(client: Client) -> None:
    open_account(client, approval_above="0.001")
    second = operators_key(client, "steward", "second")
    bodies: tuple[dict[str, str | None] | None, ...] = (None, {}, {"reason": None}, {"reason": "é" * 4000})
    for number, body in enumerate(bodies):
        proposed = release(client, pure("0.2"), name=f"r{number}")["id"]
        answer = client.post(f"/v1/accounts/people/releases/{proposed}/approve", headers=second, json=body)
        assert json_of(answer)["state"] == "committed"
        assert _events(client, proposed)[-1][3] == (body or {}).get("reason")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": ""}, "/reason"),
        ({"reason": 7}, "/reason"),
        ({"reason": "x" * 4001}, "/reason"),
        ({"reason": "a\0b"}, "/reason"),
        ({"why": "because"}, "/why"),
        ([], ""),
    ],
)
def test_a_wrong_reason_is_refused_and_nothing_is_approved(embedded: Client, body: object, pointer: str) -> None:
    open_account(embedded, approval_above="0.001")
    second = operators_key(embedded, "steward", "second")
    proposed = release(embedded, pure("0.2"))["id"]
    answer = embedded.post(f"/v1/accounts/people/releases/{proposed}/approve", headers=second, json=body)
    assert pointers_of(answer) == [pointer]
    assert [kind for kind, *_ in _events(embedded, proposed)] == ["proposed"]


def test_a_body_of_another_type_is_refused(embedded: Client) -> None:
    open_account(embedded, approval_above="0.001")
    proposed = release(embedded, pure("0.2"))["id"]
    second = operators_key(embedded, "steward", "second") | {"Content-Type": "text/plain"}
    answer = embedded.post(f"/v1/accounts/people/releases/{proposed}/approve", headers=second, content=b"agreed")
    problem_of(answer, "unsupported_media_type")


@pytest.mark.parametrize(
    "change",
    [
        {"budget": {"definition": "zcdp", "rho": "200"}},
        {"state": "closed"},
        {"approval_above": "0.5"},
        {"caps": [{"tag": "sex", "budget": {"definition": "zcdp", "rho": "1"}}]},
    ],
)
def test_a_change_of_an_account_has_its_reason_in_the_journal(client: Client, change: dict[str, object]) -> None:
    open_account(client)
    json_of(client.patch("/v1/accounts/people", json=change | {"reason": "the law of 2027"}))
    entries = json_of(client.get("/v1/accounts/people/journal"))["items"]
    assert entries[-1]["entry"]["content"]["reason"] == "the law of 2027"
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


def test_a_proposed_change_shows_its_reason_and_another_reason_approves_it(client: Client) -> None:
    open_account(client, approval_above="0.001")
    change = {"budget": {"definition": "zcdp", "rho": "200"}}
    waiting = json_of(client.patch("/v1/accounts/people", json=change | {"reason": "a new survey"}), 202)
    assert waiting["proposed_change"]["reason"] == "a new survey"
    assert json_of(client.get("/v1/accounts/people"))["proposed_change"]["reason"] == "a new survey"
    second = operators_key(client, "steward", "second")
    json_of(client.patch("/v1/accounts/people", json=change | {"reason": "agreed"}, headers=second))
    contents = [item["entry"]["content"] for item in json_of(client.get("/v1/accounts/people/journal"))["items"]]
    assert [content.get("reason") for content in contents] == [None, "a new survey", "agreed"]
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


def test_metadata_take_no_reason(embedded: Client) -> None:
    open_account(embedded)
    body = {"metadata": {"intended_use": "a test"}, "reason": "because"}
    assert pointers_of(embedded.patch("/v1/accounts/people", json=body)) == [""]


def test_events_are_for_keys_that_reach_the_account(embedded: Client) -> None:
    open_account(embedded)
    one = release(embedded, pure("0.1"))["id"]
    open_account(embedded, "other")
    elsewhere = make_key(embedded, "auditor", "else", accounts=["other"])
    problem_of(embedded.get(f"/v1/accounts/people/releases/{one}/events", headers=elsewhere), "forbidden")
    problem_of(embedded.get(f"/v1/accounts/other/releases/{one}/events"), "not_found")


def test_the_event_of_a_draw_says_what_was_drawn(client: Client) -> None:
    open_account(client)
    parts = [{"type": "geometric", "name": name, "epsilon": "0.1", "partitions": ["36", "37"]} for name in "ab"]
    drawn = release(client, {"type": "sequence", "parts": parts})["id"]
    at = f"/v1/accounts/people/releases/{drawn}"
    json_of(client.post(f"{at}/draws", json={"mechanism": "b", "partition": "36", "counts": [1] * 1200}), 201)
    alone = release(client, pure("0.1"))["id"]
    json_of(client.post(f"/v1/accounts/people/releases/{alone}/draws", json={"mechanism": "/", "counts": [1]}), 201)
    events = [json_of(client.get(f"/v1/accounts/people/releases/{of}/events"))["items"] for of in (drawn, alone)]
    assert [[one["detail"] for one in some] for some in events] == [
        [None, "b, partition 36, 1,200 counts"],
        [None, "1 count"],
    ]
