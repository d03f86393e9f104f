"""The confidences that pages offer for margins of error."""

from service.pages.shell.api_client import Visit

CONFIDENCES = {"0.9": "90 %", "0.95": "95 %", "0.99": "99 %", "0.999": "99.9 %"}


def confidence_of(visit: Visit) -> str:
    """Return the confidence that the page offers and the address names, or else the usual one."""
    asked = visit.request.query_params.get("confidence", "")
    return asked if asked in CONFIDENCES else "0.95"
