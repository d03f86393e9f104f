"""The purpose of a release that a form registers: it becomes the intended use of the release's description."""

from service.pages.shell.api_client import Visit, act, address

_LONGEST = 10_000


def fault_of_purpose(text: str) -> dict[str, str]:
    """Return the fault of the field ``purpose``, for which no release is registered; empty if it has none."""
    if len(text) <= _LONGEST and text.replace("\n", "").replace("\r", "").isprintable():
        return {}
    return {"purpose": f"expected a text of at most {_LONGEST:,} characters without control characters"}


async def record_purpose(visit: Visit, account: str, release: str, purpose: str, once: str) -> None:
    """Record the purpose of a registered release, which was checked before; nothing if it is blank.

    Args:
        once: the Idempotency-Key of the registration.
    """
    if purpose:
        body = {"metadata": {"intended_use": purpose}}
        await act(visit, "PATCH", address("accounts", account, "releases", release), body, once=f"{once}-purpose")
