"""Forms of pages, sent as a browser would send them."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from fastapi.testclient import TestClient

from tests.api.calls import STEWARD, Answer
from tests.pages.visits import sign_in


def signed_in(client: TestClient, key: str = STEWARD) -> TestClient:
    """Return a client that is signed in to the same application by its cookie alone; a crash becomes an answer."""
    made = TestClient(
        client.app, headers={"Accept": "text/html"}, follow_redirects=False, raise_server_exceptions=False
    )
    sign_in(made, key)
    return made


class Form(HTMLParser):
    """The fields of the form with an action, as a browser would send them.

    Attributes:
        fields: all texts of a name, in the order of the page.
        buttons: the values of the submit buttons named ``do``.
    """

    def __init__(self, html: str, action: str) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.buttons: list[str] = []
        self._action, self._inside, self._select, self._area = action, False, "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the fields that are sent."""
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given["action"].partition("#")[0] == self._action
        elif self._inside and tag == "input" and "name" in given and given.get("type") != "file":
            if given.get("type") in ("radio", "checkbox") and "checked" not in given:
                return
            self.fields.setdefault(given["name"], []).append(given.get("value", ""))
        elif self._inside and tag == "button" and given.get("name") == "do":
            self.buttons.append(given["value"])
        elif self._inside and tag == "select":
            self._select = given["name"]
        elif self._inside and tag == "textarea":
            self._area = given["name"]
            self.fields[self._area] = [""]
        elif self._select and tag == "option" and (self._select not in self.fields or "selected" in given):
            self.fields[self._select] = [given.get("value", "")]

    def handle_data(self, data: str) -> None:
        """Add the text of a text area; a line break at its start does not belong to it."""
        if self._area:
            self.fields[self._area] = [(self.fields[self._area][0] + data).removeprefix("\n").replace("\n", "\r\n")]

    def handle_endtag(self, tag: str) -> None:
        """Close the present element."""
        if tag == "form":
            self._inside = False
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._area = ""

    def with_texts(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sent fields with some texts replaced; a list is that of a column."""
        return {**self.fields, **texts}


def form_of(answer: Answer, action: str) -> Form:
    """Return a form that a page must have."""
    assert answer.headers["content-type"].startswith("text/html"), answer.text
    return Form(answer.text, action)
