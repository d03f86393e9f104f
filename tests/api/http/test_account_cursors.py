"""Cursors of lists over all accounts: they tell a limited key nothing of other accounts."""

import base64
import re
from itertools import chain

import pytest

from service.ledger.releases import release_search
from tests.api.calls import Client, json_of, make_key, open_account, pages_of, pointers_of, pure, release

_LISTS = ("/v1/releases", "/v1/proposals")


@pytest.mark.parametrize("path", _LISTS)
def test_a_cursor_has_no_number_of_an_account(client: Client, path: str) -> None:
    for number in range(30):
        open_account(client, f"hidden-{number}")
    open_account(client, approval_above="0")
    ours = make_key(client, "auditor", "ours", accounts=["people"])
    for _ in range(3):
        release(client, pure("0.2"))
    cursor = json_of(client.get(path, params={"limit": 1}, headers=ours))["next_cursor"]
    assert re.fullmatch(rb"people/[2-9]", base64.urlsafe_b64decode(cursor + "=="))
    assert sum(map(len, pages_of(client, path, limit=1))) == 3


@pytest.mark.parametrize("path", _LISTS)
def test_a_cursor_tells_a_limited_key_of_no_account_that_exists(client: Client, path: str) -> None:
    for name in ("people", "hidden"):
        open_account(client, name)
    ours = make_key(client, "auditor", "ours", accounts=["people"])
    for name in ("hidden", "none"):
        cursor = base64.urlsafe_b64encode(f"{name}/1".encode()).decode().rstrip("=")
        answer = client.get(path, params={"cursor": cursor}, headers=ours)
        assert pointers_of(answer) == ["/query/cursor"]


def test_a_page_that_ends_with_an_account_goes_on_with_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        open_account(client, name)
        json_of(client.post(f"/v1/accounts/{name}/releases", json={"name": name, "plan": pure("0.1")}), 201)
    monkeypatch.setattr(release_search, "MOST_SEARCHED", 100)
    ours = make_key(client, "auditor", "ours", accounts=["first", "second"])
    pages, cursor = list[list[str]](), None
    while not pages or cursor is not None:
        page = json_of(client.get("/v1/releases", params={} if cursor is None else {"cursor": cursor}, headers=ours))
        pages.append([one["account"] for one in page["items"]])
        cursor = page["next_cursor"]
    assert list(chain.from_iterable(pages)) == ["first", "second"]
    assert len(pages) > 1
