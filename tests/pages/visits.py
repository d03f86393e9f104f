"""Common steps of the tests of pages, without a browser."""

import base64
import html
import re
from typing import Any

from tests.api.calls import STEWARD, Answer, Client


def sign_in(client: Client, key: str = STEWARD, **fields: str) -> Answer:
    """Sign in, which must succeed."""
    answer = client.post("/sign-in", data={"key": key} | fields)
    assert answer.status_code == 303, answer.text
    return answer


def hidden(text: str, name: str) -> str:
    """Return the value of a hidden field of a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found, f"the page has no field {name}"
    return html.unescape(found[1])


def saved(text: str) -> bytes:
    """Return the file that the page after a draw has within."""
    found = re.search(r'href="data:[^"]+;base64,([^"]*)" download="noisy-', html.unescape(text))
    assert found, "the page has no noisy counts"
    return base64.b64decode(found[1])


def submit(client: Client, page: str, action: str, **fields: Any) -> Answer:
    """Send a form of a page as a browser would."""
    shown = client.get(page)
    assert f'action="{action}"' in shown.text, f"{page} has no form for {action}"
    kept = {name: hidden(shown.text, name) for name in ("csrf", "once")}
    return client.post(action, data=kept | fields)
