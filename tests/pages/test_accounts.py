"""The first page of an empty ledger, and the notice of an installation."""

import html
import re

from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.pages.accounts import tree_of
from tests.api.calls import STEWARD, Client, application, client_of, make_key, open_account
from tests.pages.visits import sign_in

_SANDBOX = " -m service sandbox</code>"


def test_an_empty_ledger_leads_stewards_to_the_sandbox(embedded: Client) -> None:
    embedded.follow_redirects = False
    sign_in(embedded)
    shown = embedded.get("/").text
    assert _SANDBOX in shown
    assert '<script src="/static/page.js" defer>' in shown
    open_account(embedded)
    assert _SANDBOX not in embedded.get("/").text
    assert _SANDBOX not in embedded.get("/?parent=people").text


def test_others_are_not_led_to_the_sandbox(embedded: Client) -> None:
    key = make_key(embedded, "auditor", accounts=["people"])["Authorization"].removeprefix("Bearer ")
    embedded.follow_redirects = False
    sign_in(embedded, key)
    assert "to which your key has access" in embedded.get("/").text
    assert _SANDBOX not in embedded.get("/").text


def test_every_page_has_the_notice_of_the_installation(database: Database, secret: Secret) -> None:
    with client_of(application(database, secret, notice="For <trials> only")) as client:
        for path in ("/", "/guide/concepts", "/no-such-page"):
            text = client.get(path, headers={"Accept": "text/html"}).text
            assert '<aside class="notice" aria-label="Notice">For &lt;trials&gt; only</aside>' in text, path
        client.post("/sign-in", data={"key": STEWARD})
        for path in ("/", "/plan"):
            assert "For &lt;trials&gt; only</aside>" in client.get(path).text, path
    with client_of(application(database, secret)) as client:
        assert "notice" not in client.get("/").text


def _tree(client: Client, query: str = "") -> list[tuple[str, int, bool]]:
    """Return the accounts of the first page with their depth, and whether each was found."""
    rows = re.findall(r'class="depth depth-(\d)( context)?"><a href="/accounts/([^"]+)"', client.get(f"/?{query}").text)
    return [(name, int(depth), not context) for depth, context, name in rows]


def test_the_accounts_are_a_tree(steward: Client) -> None:
    assert _tree(steward) == [("empty", 0, True), ("households", 0, True), ("nation", 0, True), ("persons", 1, True)]
    assert _tree(steward, "name=HOUSE") == [("households", 0, True)]


def test_the_accounts_above_what_was_found_stay_visible(steward: Client) -> None:
    assert _tree(steward, "name=pers") == [("nation", 0, False), ("persons", 1, True)]
    text = steward.get("/?name=pers").text
    assert text.count("(above an account that was found)") == 1
    assert 'value="pers"' in text


def test_the_tree_is_sorted_with_each_branch_where_its_first_account_is(steward: Client) -> None:
    by_share = [("nation", 0, True), ("persons", 1, True), ("households", 0, True), ("empty", 0, True)]
    assert _tree(steward, "sort=used") == by_share
    assert next(name for name, *_ in _tree(steward, "sort=changed")) == "nation"
    text = steward.get("/?sort=used&state=open").text
    assert text.count("aria-sort") == 1
    assert 'aria-sort="descending"><a href="/?state=open&amp;sort=used">Spent or held</a>' in text
    assert 'href="/accounts.csv?state=open&amp;sort=used&amp;with_gauge=true"' in text


def test_a_search_of_which_v1_refuses_a_value_says_so(steward: Client) -> None:
    answer = steward.get("/?sort=size&state=open")
    assert answer.status_code == 422
    assert 'id="sort-fault"' in answer.text
    assert steward.get("/?name=nothing").text.count("No account matches.") == 1


def test_the_pages_of_a_sorted_list_lead_on(steward: Client, api: Client) -> None:
    for number in range(60):
        open_account(api, f"many-{number:02}", {"definition": "zcdp", "rho": "1"}, parent="nation")
    first = steward.get("/?sort=left&name=many").text
    assert first.count('class="depth depth-1"') == 50
    onward = html.unescape(re.search(r'rel="next" href="([^"]+)"', first)[1])  # type: ignore[index]
    assert _tree(steward, onward.removeprefix("/?"))[:2] == [("nation", 0, False), ("many-50", 1, True)]


def test_limited_keys_are_led_to_no_account_above(api: Client, visitor: Client) -> None:
    sign_in(visitor, make_key(api, "auditor", accounts=["persons"])["Authorization"].removeprefix("Bearer "))
    assert _tree(visitor) == [("persons", 0, True)]
    text = visitor.get("/").text
    assert "under nation" in text
    assert "/accounts/nation" not in text


def test_a_tree_has_each_account_once_though_rows_are_wrong() -> None:
    def account(name: str, parent: str | None) -> dict[str, str | None]:
        return {"name": name, "parent": parent}

    rows = tree_of([account("c", "b"), account("a", None), account("d", "gone")], [account("b", "a")])
    assert [(row.account["name"], row.depth, row.found) for row in rows] == [
        ("a", 0, True), ("b", 1, False), ("c", 2, True), ("d", 0, True),
    ]  # fmt: skip
