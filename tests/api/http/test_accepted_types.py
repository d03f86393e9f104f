"""The header Accept: the preferred media type, and refusals where none is accepted."""

import pytest

from service.api.http.accepted_types import form_of, prefers, require_acceptable
from service.errors import NotAcceptable
from tests.api.calls import Client, json_of, open_account, problem_of, pure, release

_CSV = ("application/json", "text/csv")


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("a/*", True),
        ("a/*, application/json", False),
        ("a/*, */*;q=0.1", False),
        ("a/b", True),
        ("A/B ; q=0.5", True),
        ("a/b;q=0", False),
        ("a/b;q=x", False),
        ("", False),
        (",;q=1,", False),
    ],
)
def test_what_accept_prefers(accept: str, preferred: bool) -> None:
    assert prefers(accept, "a/b") is preferred


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "a/own"),
        ("*/*", "a/own"),
        ("a/*", "a/own"),
        ("application/json, text/plain, */*", "a/own"),
        ("application/json", "application/json"),
        ("application/*", "application/json"),
        ("a/own;q=0.5, application/json", "application/json"),
        ("a/own, application/json", "a/own"),
        ("a/other", "a/other"),
        ("a/other;q=0.5, a/own", "a/own"),
        ("a/other;q=0.5, application/json", "application/json"),
        ("a/other, */*", "a/other"),
    ],
)
def test_the_form_of_an_answer_to_a_body_of_such_a_form(accept: str, form: str) -> None:
    assert form_of(accept, "a/own", ("a/other",)) == form


@pytest.mark.parametrize(
    "accept",
    ["", "  ", "*/*", "text/*", "text/csv", "TEXT/CSV;q=0.1", "image/png, */*;q=0.1", "application/json;q=1.0",
     "text/csv;q=0, application/json", "*/*;q=0, application/*", "text/csv;header=present"],
)  # fmt: skip
def test_what_is_acceptable(accept: str) -> None:
    require_acceptable(accept, _CSV)


@pytest.mark.parametrize(
    "accept",
    ["image/png", "text/html", "*/*;q=0", "application/json;q=0", "application/json;q=0, text/csv;q=0.0, */*", "json",
     "*", ",", "text/csvx", "application/json;q=2"],
)  # fmt: skip
def test_what_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json or text/csv"):
        require_acceptable(accept, _CSV)


def test_a_request_that_accepts_no_answer_does_nothing(client: Client) -> None:
    open_account(client)
    headers = {"Accept": "text/csv"}
    body = {"name": "r", "plan": pure("0.1")}
    refused = client.post("/v1/accounts/people/releases", json=body, headers=headers)
    assert "application/json" in problem_of(refused, "not_acceptable")["detail"]
    assert json_of(client.get("/v1/accounts/people/releases"))["items"] == []
    problem_of(client.get("/v1/accounts", headers={"Accept": "application/xml"}), "not_acceptable")
    problem_of(client.get("/v1/accounts/people/balance", headers={"Accept": "image/webp"}), "not_acceptable")
    assert client.get("/v1/accounts/people/balance", headers={"Accept": "image/*"}).status_code == 200


def test_an_operation_without_an_answer_accepts_every_header(client: Client) -> None:
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201)
    assert client.delete(f"/v1/keys/{made['id']}", headers={"Accept": "text/csv"}).status_code == 204


def test_a_key_is_looked_at_before_the_header(client: Client) -> None:
    headers = {"Accept": "text/csv", "Authorization": "Bearer wrong"}
    problem_of(client.get("/v1/accounts", headers=headers), "unauthenticated")


def test_a_refusal_is_json_whatever_is_accepted(client: Client) -> None:
    open_account(client)
    held = release(client, pure("0.1"))
    answer = client.get(f"/v1/accounts/people/releases/{held['id']}x/accuracy", headers={"Accept": "text/csv"})
    problem_of(answer, "not_found")


def test_of_a_long_header_only_the_first_ranges_count() -> None:
    assert prefers("text/csv," + "a/b," * 200, "text/csv")
    assert not prefers("a/b," * 60 + "text/csv", "text/csv")
    assert not prefers(f"a/{'b' * 1000},text/csv", "text/csv")
