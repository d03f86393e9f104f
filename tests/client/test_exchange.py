"""Attempts, pauses and idempotency keys, on connections that fail."""

import email.utils
import time
from collections.abc import Callable
from typing import Any

import httpx
import polars as pl
import pytest

from privacy_budget_ledger import Account, Client, Retries, errors, plans
from privacy_budget_ledger.exchange import Answer, Call, Exchange, Pause
from tests.client.conftest import Fault, answer_lost, answered, faulty, refused
from tests.processes import Served

_SMALL = plans.DiscreteGaussian(rho="0.01")
_PROBLEM = {"Content_Type": "application/problem+json"}


def _busy(status: int) -> Fault:
    code = {429: "too_many_requests"}.get(status, "unavailable")
    return answered(status, b'{"type": "/problems/%s", "title": "Busy"}' % code.encode(), **_PROBLEM)


@pytest.mark.parametrize("fault", [refused, answer_lost, *map(_busy, (429, 502, 503, 504)), answered(503)])
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


@pytest.mark.parametrize("status", [302, 400, 403, 409, 500])
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


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html>sign in</html>", "text/html"), (b"{}", "application/json"), (b"[]", "application/json"), (b"\xff", "")],
)
def test_a_proxys_success_is_an_unexpected_answer_with_the_key(body: bytes, kind: str, served: Served) -> None:
    client, _ = faulty(served, *[answered(200, body, Content_Type=kind)] * 3)
    calls: list[Callable[[], Any]] = [
        lambda: client.register("town", name="table", plan=_SMALL, idempotency_key="mine"),
        lambda: client.draw("town", pl.DataFrame({"count": [1]}), name="t", mechanism=_SMALL, idempotency_key="mine"),
        lambda: client.calibrate("geometric", moe=6),
    ]
    with client:
        for call in calls:
            with pytest.raises(errors.UnexpectedAnswer) as caught:
                call()
            assert caught.value.idempotency_key == "mine" or call is calls[-1]
            assert caught.value.__context__ is None


def test_keys_that_no_header_holds_are_refused_and_not_shown(served: Served) -> None:
    for key in ("pbl_secret\n", "", "pbl secret", "pbl_sécret"):
        with pytest.raises(ValueError, match="expected a key of printable ASCII characters") as caught:
            Client(served.address, key)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="without a user and a password") as caught:
        Client("https://user:secret@ledger.example", "pbl_key")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "é", "a\nb", "x" * 256])
def test_an_idempotency_key_that_the_service_refuses_is_not_replaced(key: str, ledger: Client) -> None:
    """A fresh key in the place of an empty one would charge a repeated call again."""
    frame = pl.DataFrame({"county": ["a"], "count": [1]})
    with pytest.raises(ValueError, match="expected an idempotency key of 1 to 255"):
        ledger.register("town", name="table", plan=_SMALL, idempotency_key=key)
    with pytest.raises(ValueError, match="expected an idempotency key of 1 to 255"):
        ledger.draw_partitions("town", "id", frame, mechanism="m", by="county", idempotency_key=key)


@pytest.mark.parametrize("path", ["https://elsewhere.example/v1/principal", "//elsewhere.example/v1", "v1/principal"])
def test_the_key_is_sent_to_no_other_address(path: str, served: Served) -> None:
    client, connection = faulty(served)
    with client, pytest.raises(ValueError, match="expected a path such as /v1/principal"):
        client.request("GET", path)
    assert not connection.seen


def test_an_error_of_the_protocol_does_not_quote_headers(served: Served) -> None:
    with Client(served.address, "pbl_key") as client:
        client._http.headers["Authorization"] = "Bearer secret\n"
        with pytest.raises(errors.ConnectionFailed, match=r"LocalProtocolError$") as caught:
            client.account("town")
    assert "secret" not in str(caught.value)


def test_a_mistake_in_the_address_is_not_tried_again(served: Served) -> None:
    with Client("http://127.0.0.1", "key") as client:
        client._http.base_url = httpx.URL("gopher://127.0.0.1")
        with pytest.raises(errors.ConnectionFailed, match="Unsupported"):
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
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2020 07:28:00 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("Wed, 99 Oct 2020 07:28:00 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_as_seconds_from_now(text: str, seconds: float | None) -> None:
    headers = httpx.Headers([(b"retry-after", text.encode())])
    assert Answer(503, headers, b"").retry_after == seconds


def test_retry_after_may_be_a_date() -> None:
    headers = httpx.Headers({"Retry-After": email.utils.formatdate(time.time() + 30, usegmt=True)})
    assert 25 < (Answer(503, headers, b"").retry_after or 0) <= 30


def test_the_operation_asks_for_the_pause_that_the_service_names() -> None:
    steps = Exchange(None, Retries()).json(lambda answer: answer, "GET", "/v1/principal")
    call = next(steps)
    assert isinstance(call, Call)
    assert steps.send(Answer(429, httpx.Headers({"Retry-After": "9"}), b"")) == Pause(9.0)
    assert steps.send(None) == call


def test_a_call_and_an_answer_do_not_show_their_bodies() -> None:
    assert "12345" not in repr(Call("POST", "/v1/x", content=b"12345"))
    assert "12345" not in repr(Answer(200, httpx.Headers(), b"12345"))
