"""Pages that are open without a key: documentation that needs no other host, and explanations of problems."""

import re

from tests.api.calls import Client


def test_the_documentation_names_no_other_host(shared_client: Client) -> None:
    page = shared_client.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) >= 4
    for address in named:
        assert address.startswith("/")
        assert not address.startswith("//")
        assert shared_client.get(address).status_code == 200
    assert "://" not in page.text
    assert "<script>" not in page.text  # the policy would refuse it
    assert "://" not in shared_client.get("/static/docs.js").text


def test_the_icon_is_where_browsers_look_for_it(shared_client: Client) -> None:
    """Each page links to it; beside a file or a part of a page browsers use its oldest address."""
    icon = shared_client.get("/favicon.ico")
    assert (icon.status_code, icon.headers["Content-Type"]) == (200, "image/svg+xml")
    assert icon.content == shared_client.get("/static/icon.svg").content
    assert 'rel="icon" href="/static/icon.svg"' in shared_client.get("/").text
