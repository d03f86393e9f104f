"""Static files of the pages."""

from tests.api.calls import Client


def test_the_icon_is_where_browsers_look_for_it(shared_client: Client) -> None:
    """Each page links to it; beside a file or a part of a page browsers use its oldest address."""
    icon = shared_client.get("/favicon.ico")
    assert (icon.status_code, icon.headers["Content-Type"]) == (200, "image/svg+xml")
    assert icon.content == shared_client.get("/static/icon.svg").content
    assert 'rel="icon" href="/static/icon.svg"' in shared_client.get("/").text
