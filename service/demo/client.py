"""The service as its callers meet it: JSON over HTTP, and a problem document for everything refused."""

import secrets
from typing import Any

import httpx

from service.errors import ServiceError

_SECONDS = 60.0  # for one answer; the slowest, a draw of all counties, takes a fraction of one
_ATTEMPTS = 5


class DemoStopped(ServiceError):
    """The service refused something or did not answer; ``code`` is the problem's, where it sent one."""

    def __init__(self, detail: str, code: str | None = None) -> None:
        super().__init__(detail)
        self.code = code


def connect(url: str, key: str, *, trust_environment: bool) -> httpx.Client:
    """A client for one service; ``trust_environment``: through a proxy where the environment names one.

    Raises:
        DemoStopped: the address or the key is not one; the message does not repeat the key.
    """
    if not (key.isascii() and key.isprintable()):
        raise DemoStopped("expected a key of printable ASCII characters")
    try:
        return httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=_SECONDS, trust_env=trust_environment
        )
    except httpx.InvalidURL as error:
        raise DemoStopped(f"expected an address such as http://127.0.0.1:8000: {error}") from error


def ask(
    client: httpx.Client,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    query: dict[str, str] | None = None,
) -> dict[str, Any]:
    """One request and its answer.

    Raises:
        DemoStopped: with the detail of the problem document, or because no service answered.
    """
    try:
        response = client.request(method, path, json=body, params=query)
    except httpx.HTTPError as error:
        raise DemoStopped(f"no service answers at {client.base_url}: {error}") from error
    answer = _document(response)
    if response.is_success and answer is not None:
        return answer
    if answer is None or "detail" not in answer:
        raise DemoStopped(f"{client.base_url} answers {response.status_code}, and not as this service does")
    code = str(answer.get("type", "")).removeprefix("/problems/")
    faults = "".join(f"\n  {fault['pointer']}: {fault['detail']}" for fault in answer.get("errors", ()))
    raise DemoStopped(f"{method} {path}: {answer['detail']}{faults}", code)


def _document(response: httpx.Response) -> dict[str, Any] | None:
    """The answer's JSON object; None where it is not one, as from a server that is not this service."""
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def open_fresh_account(client: httpx.Client, account: dict[str, Any]) -> dict[str, Any]:
    """Open an account, under its name with a short suffix where the name is taken.

    Raises:
        DemoStopped: it cannot be opened.
    """
    name = account["name"]
    for _ in range(_ATTEMPTS):
        try:
            return ask(client, "POST", "/v1/accounts", account | {"name": name})
        except DemoStopped as stopped:
            if stopped.code != "conflict":
                raise
            name = f"{account['name']}-{secrets.token_hex(2)}"
    raise DemoStopped(f"the account {account['name']} and {_ATTEMPTS - 1} names like it are taken")
