"""Signing in at an issuer of another site, as a browser sees it: cookies, policies, the way back."""

import json
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.local_issuer import AUDIENCE, CLIENT, LocalIssuer, local_issuer
from tests.browser.ledger import fill
from tests.browser.steps import assert_accessible, assert_fits, screenshot
from tests.processes import Served, service

_SECRET = "the-client's-secret"


@pytest.fixture(scope="module")
def issuer() -> Iterator[LocalIssuer]:
    """An issuer at another site than the service, for a browser: at localhost, and not at 127.0.0.1."""
    with local_issuer("localhost") as running:
        running.client_secret = _SECRET
        yield running


@pytest.fixture(scope="module")
def served(issuer: LocalIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
    settings |= {"oidc_client_secret": _SECRET, "oidc_name": "Agency login", "public_url": "{address}"}
    home = tmp_path_factory.mktemp("served")
    with service(home, helper_processes="2", log_level="debug", **settings) as running:
        fill(running.client)
        yield running


@pytest.fixture
def other_hosts(issuer: LocalIssuer) -> frozenset[str]:
    return frozenset({urlsplit(issuer.url).netloc})


@pytest.fixture(autouse=True)
def _calm(issuer: LocalIssuer) -> Iterator[None]:
    """Leave the issuer as it was."""
    yield
    issuer.asks, issuer.token_status, issuer.back, issuer.person = False, None, {}, {}


@pytest.mark.parametrize("asks", [True, False])
def test_from_the_button_to_the_page_and_out(page: Page, issuer: LocalIssuer, asks: bool) -> None:
    issuer.asks = asks
    page.goto("/accounts/persons")
    page.get_by_role("link", name="Sign in with Agency login").click()
    if asks:
        expect(page).to_have_title("Agency login")
        page.get_by_role("link", name="Continue as ann").click()
    page.get_by_role("heading", name="persons").wait_for()
    assert urlsplit(page.url).path == "/accounts/persons"
    expect(page.get_by_text("oidc:ann (steward)")).to_be_visible()
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("ledger_session", True, "Strict")
    page.goto("/accounts/empty")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []


def test_pictures_are_the_person_s(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Sign in with Agency login").click()
    page.get_by_role("link", name="households").click()
    page.get_by_role("heading", name="households").wait_for()
    page.get_by_text("The loss in every notion").click()
    picture = page.get_by_role("img").last
    picture.scroll_into_view_if_needed()
    expect(picture).to_have_js_property("complete", value=True, timeout=20_000)
    assert picture.evaluate("image => image.naturalWidth") > 0, "it is relayed as the person"


def test_the_button_without_javascript(new_context: Callable[..., BrowserContext], issuer: LocalIssuer) -> None:
    issuer.asks = True
    page = new_context(java_script_enabled=False).new_page()
    page.goto("/")
    page.get_by_role("link", name="Sign in with Agency login").click()
    page.get_by_role("link", name="Continue as ann").click()
    page.get_by_role("heading", name="Accounts", exact=True).wait_for()


@pytest.mark.parametrize("path", ["/sign-in/oidc/callback?code=a&state=b", "/sign-in/oidc?next=%2Fkeys"])
def test_a_link_of_another_site_signs_nobody_in(page: Page, issuer: LocalIssuer, served: Served, path: str) -> None:
    """Login CSRF: another site leads the browser to an answer of its own, or to the beginning of a sign-in."""
    page.goto(f"{issuer.url}/keys")
    page.evaluate("address => { window.location = address }", served.address + path)
    page.wait_for_url(f"{served.address}/**")
    back = "Back to sign-in" if "callback" in path else "Sign in with Agency login"
    expect(page.get_by_role("link", name=back)).to_be_visible()
    assert page.context.cookies() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_pages_at_each_size(
    new_context: Callable[..., BrowserContext], issuer: LocalIssuer, width: int, scheme: str
) -> None:
    context = new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto("/?next=%2Fkeys")
    assert_accessible(page)
    assert_fits(page)
    screenshot(page, f"issuer-sign-in-{scheme}-{width}")
    issuer.back = {"error": "access_denied", "code": None}
    page.get_by_role("link", name="Sign in with Agency login").click()
    expect(page.get_by_role("heading", name="Agency login did not sign you in")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    screenshot(page, f"issuer-denied-{scheme}-{width}")
    issuer.back, issuer.token_status = {}, 500
    page.get_by_role("link", name="Back to sign-in").click()
    page.get_by_role("link", name="Sign in with Agency login").click()
    expect(page.get_by_role("heading", name="does not answer as expected")).to_be_visible()
    assert_fits(page)
    screenshot(page, f"issuer-down-{scheme}-{width}")
    issuer.token_status = None
    page.get_by_role("link", name="Back to sign-in").click()
    page.get_by_role("link", name="Sign in with Agency login").click()
    page.get_by_role("heading", name="Keys", exact=True).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_that_leads_on(
    new_context: Callable[..., BrowserContext], served: Served, width: int, scheme: str
) -> None:
    page = new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
    page.route(f"{served.address}/plan", lambda route: route.fulfill(status=204))  # so that it stays
    page.goto("/?next=%2Fplan")
    page.get_by_role("link", name="Sign in with Agency login").click()
    expect(page.get_by_text("You are signed in as oidc:ann.")).to_be_visible()
    assert_fits(page)
    screenshot(page, f"issuer-signed-in-{scheme}-{width}")


def test_the_log_says_who_came(page: Page, issuer: LocalIssuer, served: Served) -> None:
    issuer.person = {"sub": "zoe"}
    page.goto("/")
    page.get_by_role("link", name="Sign in with Agency login").click()
    expect(page.get_by_text("oidc:zoe (steward)")).to_be_visible()
    lines = [json.loads(line) for line in served.said if line.startswith("{")]
    ended = [line for line in lines if line.get("path") == "/sign-in/oidc/callback" and line["event"] == "request"]
    assert (ended[-1]["principal"], ended[-1]["status"]) == ("oidc:zoe", 200)
    said = "".join(served.said)
    secrets = [_SECRET, "eyJ", *(form[name] for form in issuer.forms for name in ("code", "code_verifier"))]
    assert [secret for secret in secrets if secret in said] == []
