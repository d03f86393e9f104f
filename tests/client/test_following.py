"""Journals that a client follows, over connections that break."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import httpx
import pytest

from privacy_budget_ledger import Account, AsyncClient, Client, Entry, LedgerError, errors, plans
from privacy_budget_ledger.following import Following
from tests.api.calls import STEWARD
from tests.client.conftest import AT_ONCE, answered, faulty, refused
from tests.processes import Served


def _register(ledger: Client, account: Account, number: int) -> None:
    for _ in range(number):
        ledger.register(account.name, name="a", plan=plans.Geometric(epsilon="0.01"))


def test_a_journal_is_followed_from_its_first_entry_on(ledger: Client, account: Account) -> None:
    _register(ledger, account, 2)
    entries = ledger.follow(account.name)
    received = list(islice(entries, 3))
    _register(ledger, account, 1)
    received.append(next(entries))
    listed = ledger.request("GET", f"/v1/accounts/{account.name}/journal")["items"]
    assert [one.document for one in received] == listed
    assert [(one.seq, one.kind) for one in received] == [
        (1, "account_opened"), (2, "committed"), (3, "committed"), (4, "committed"),
    ]  # fmt: skip
    assert [one.previous for one in received[1:]] == [one.hash for one in received[:-1]]
    assert next(ledger.follow(account.name, after=3)) == received[3]


def test_a_stream_that_breaks_off_is_resumed(served: Served, ledger: Client, account: Account) -> None:
    _register(ledger, account, 2)

    def breaks(request: httpx.Request, send: object) -> httpx.Response:
        answer = send(request)  # type: ignore[operator]
        answer.stream = _Cut(answer.stream)
        return answer  # type: ignore[no-any-return]

    client, connection = faulty(served, refused, breaks, answered(503), answered(429, Retry_After="0"))
    with client:
        assert [one.seq for one in islice(client.follow(account.name), 3)] == [1, 2, 3]
    asked = [dict(request.url.params) for request in connection.seen]
    assert asked[0] == asked[1] == {"after": "0"}
    assert asked[-1] != {"after": "3"}
    assert len(asked) == 5


class _Cut(httpx.SyncByteStream):
    """A stream that breaks off in the middle of its second event."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        kept = b""
        for part in self._stream:
            kept += part
            if kept.count(b"data: ") > 1:
                yield kept[: kept.rindex(b"data: ") + 20]
                raise httpx.ReadError("connection reset by peer")

    def close(self) -> None:
        self._stream.close()


def test_what_the_service_refuses_is_an_error(served: Served, ledger: Client, account: Account) -> None:
    with pytest.raises(errors.NotFound):
        next(ledger.follow("nobody's"))
    with pytest.raises(errors.LedgerRolledBack, match="does not contain the entry that the request goes on after"):
        next(ledger.follow(account.name, after=10**6))
    with pytest.raises(ValueError, match="number of an entry"):
        next(ledger.follow(account.name, after=-1))
    with Client(served.address, "another-key", retries=AT_ONCE) as stranger, pytest.raises(errors.Unauthenticated):
        next(stranger.follow(account.name))
    client, _ = faulty(served, refused, refused, attempts=2)
    with client, pytest.raises(errors.ConnectionFailed, match=r"no answer to GET /v1/accounts/.*/journal"):
        next(client.follow(account.name))


@pytest.mark.parametrize(
    "event", ["data: 1", "data: {", "data: null", 'data: {"entry": {"seq": 1}}', "data: NaN", "data: []"]
)
def test_what_is_no_entry_is_refused(event: str) -> None:
    with pytest.raises(errors.UnexpectedAnswer, match="expected an entry of a journal"):
        list(Following("a", 0, AT_ONCE).read(f"{event}\n\n"))


def test_a_gap_is_refused() -> None:
    item = {"entry": {"seq": 3, "kind": "committed"}, "hash": "b", "previous": "a"}
    with pytest.raises(LedgerError, match="expected entry 2 of the journal, got entry 3"):
        list(Following("a", 1, AT_ONCE).read(f"id: 3\ndata: {json.dumps(item)}\n\n"))


def test_texts_may_be_cut_anywhere() -> None:
    item = {"entry": {"seq": 1, "kind": "committed", "content": "\u2028\u0085é"}, "hash": "b", "previous": "a"}
    text = f": x\n\nretry: 3000\n\nid: 1\ndata: {json.dumps(item, ensure_ascii=False)}\n\n"
    following = Following("a", 0, AT_ONCE)
    assert [one.document for part in text for one in following.read(part)] == [item]


def test_the_client_for_asyncio_follows_too(served: Served, ledger: Client, account: Account) -> None:
    async def work() -> list[Entry]:
        async with AsyncClient(served.address, STEWARD, retries=AT_ONCE) as client:
            entries: AsyncIterator[Entry] = client.follow(account.name)
            received = [await anext(entries)]
            await client.register(account.name, name="a", plan=plans.Geometric(epsilon="0.01"))
            received.append(await anext(entries))
            with pytest.raises(errors.NotFound):
                await anext(client.follow("nobody's"))
            return received

    assert asyncio.run(work()) == list(islice(ledger.follow(account.name), 2))
