"""Attempts, pauses and idempotency keys, on connections that fail."""

import httpx
import pytest

from privacy_budget_ledger import Account, Client, Retries, errors, plans
from privacy_budget_ledger.exchange import Answer, Call, Exchange, Pause
from tests.client.conftest import Fault, answer_lost, answered, faulty, refused
from tests.processes import Served

_SMALL = plans.DiscreteGaussian(rho="0.01")
_PROBLEM = {"Content_Type": "application/problem+json"}


def _busy(status: int) -> Fault:
    code = {429: "too_many_requests", 503: "unavailable"}[status]
    return answered(status, b'{"type": "/problems/%s", "title": "Busy"}' % code.encode(), **_PROBLEM)


@pytest.mark.parametrize("fault", [refused, answer_lost, _busy(429), _busy(503), answered(503)])
def test_a_request_is_sent_again_with_its_key_and_charged_once(
    fault: Fault, served: Served, ledger: Client, account: Account
) -> None:
    client, connection = faulty(served, fault, fault)
    with client:
        release = client.register(account.name, name="table", plan=_SMALL)
    assert len(connection.seen) == 3
    assert len({request.headers["Idempotency-Key"] for request in connection.seen}) == 1
    listed = ledger.request("GET", f"/v1/accounts/{account.name}/releases")["items"]
    assert [one["id"] for one in listed] == [release.id]


def test_each_call_has_a_key_of_its_own_unless_it_states_one(served: Served, ledger: Client, account: Account) -> None:
    client, connection = faulty(served)
    with client:
        ids = [client.register(account.name, name="table", plan=_SMALL).id for _ in range(2)]
        ids += [client.register(account.name, name="t", plan=_SMALL, idempotency_key="mine").id for _ in range(2)]
        client.account(account.name)
    keys = [request.headers.get("Idempotency-Key") for request in connection.seen]
    assert keys[0] != keys[1]
    assert keys[2:] == ["mine", "mine", None]
    assert len(set(ids)) == 3
    assert ids[2] == ids[3]


def test_after_all_attempts_the_error_has_the_key_with_which_to_continue(
    served: Served, ledger: Client, account: Account
) -> None:
    client, connection = faulty(served, *[answer_lost] * 3, attempts=3)
    with client, pytest.raises(errors.ConnectionFailed, match=r"no answer to POST .*ReadError") as caught:
        client.register(account.name, name="table", plan=_SMALL)
    assert len(connection.seen) == 3
    key = caught.value.idempotency_key
    ledger.register(account.name, name="table", plan=_SMALL, idempotency_key=key)
    assert len(ledger.request("GET", f"/v1/accounts/{account.name}/releases")["items"]) == 1


def test_a_busy_service_is_a_typed_error_in_the_end(served: Served) -> None:
    client, connection = faulty(served, *[_busy(503)] * 2, attempts=2)
    with client, pytest.raises(errors.Unavailable):
        client.account("town")
    assert len(connection.seen) == 2


@pytest.mark.parametrize("status", [302, 400, 403, 409, 500, 502, 504])
def test_other_answers_end_the_attempts(status: int, served: Served) -> None:
    client, connection = faulty(served, answered(status, b"<html>12345</html>", Content_Type="text/html"))
    with client, pytest.raises(errors.UnexpectedAnswer, match=f"got status {status} and text/html") as caught:
        client.request("POST", "/v1/compositions", json={})
    assert len(connection.seen) == 1
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff"])
def test_a_malformed_problem_is_an_unexpected_answer(body: bytes, served: Served) -> None:
    client, _ = faulty(served, answered(400, body, **_PROBLEM))
    with client, pytest.raises(errors.UnexpectedAnswer):
        client.account("town")


def test_a_malformed_answer_is_an_unexpected_answer(served: Served) -> None:
    client, _ = faulty(served, answered(200, b"{", Content_Type="application/json"))
    with client, pytest.raises(errors.UnexpectedAnswer, match="malformed JSON"):
        client.account("town")


def test_a_mistake_in_the_address_is_not_tried_again(served: Served) -> None:
    with Client("gopher://127.0.0.1", "key") as client, pytest.raises(errors.ConnectionFailed, match="Unsupported"):
        client.account("town")


def test_pauses_double_within_their_jitter() -> None:
    slow, fast = Retries(jitter=lambda: 0.0), Retries(jitter=lambda: 1.0)
    assert [slow.pause(attempt, None) for attempt in range(1, 7)] == [0.5, 1, 2, 4, 8, None]
    assert [fast.pause(attempt, None) for attempt in range(1, 7)] == [0.25, 0.5, 1, 2, 4, None]
    assert Retries(attempts=20, jitter=lambda: 0.0).pause(15, None) == 60
    assert all(0.25 <= (Retries().pause(1, None) or 0) <= 0.5 for _ in range(50))


def test_a_pause_is_as_long_as_the_service_asks_for() -> None:
    retries = Retries(jitter=lambda: 0.0)
    assert retries.pause(1, 7.0) == 7
    assert retries.pause(4, 1.0) == 4
    assert retries.pause(1, 61.0) is None  # longer than the longest: give up at once


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("0", 0.0), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("٣", None)]
)
def test_retry_after_is_read_where_it_is_a_number(text: str, seconds: float | None) -> None:
    headers = httpx.Headers([(b"retry-after", text.encode())])
    assert Answer(503, headers, b"").retry_after == seconds


def test_the_operation_asks_for_the_pause_that_the_service_names() -> None:
    steps = Exchange(None, Retries()).json("GET", "/v1/principal")
    call = next(steps)
    assert isinstance(call, Call)
    assert steps.send(Answer(429, httpx.Headers({"Retry-After": "9"}), b"")) == Pause(9.0)
    assert steps.send(None) == call


def test_a_call_and_an_answer_do_not_show_their_bodies() -> None:
    assert "12345" not in repr(Call("POST", "/v1/x", content=b"12345"))
    assert "12345" not in repr(Answer(200, httpx.Headers(), b"12345"))
