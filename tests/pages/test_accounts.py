"""The first page of an empty ledger, and the notice of an installation."""

from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.api.calls import Client, application, client_of, make_key, open_account
from tests.pages.visits import sign_in

_SANDBOX = "<code>python -m service sandbox</code>"


def test_an_empty_ledger_leads_stewards_to_the_sandbox(embedded: Client) -> None:
    embedded.follow_redirects = False
    sign_in(embedded)
    assert _SANDBOX in embedded.get("/").text
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
    with client_of(application(database, secret)) as client:
        assert "notice" not in client.get("/").text
