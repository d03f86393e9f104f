"""The confidences that pages offer for margins of error."""

from typing import Any, NamedTuple

from service.pages.shell.api_client import Visit

_OFFERED = {"0.9": "90 %", "0.95": "95 %", "0.99": "99 %", "0.999": "99.9 %"}
_USUAL = "0.95"


class Confidence(NamedTuple):
    """The confidence of a page's margins of error.

    Attributes:
        asked: one that pages offer, as ``/v1`` takes it.
        faults: by field: the address names another one.
    """

    asked: str
    faults: dict[str, str]

    @property
    def shown(self) -> dict[str, Any]:
        """The variables of the page's template."""
        return {"asked": self.asked, "percent": _OFFERED[self.asked], "confidences": list(_OFFERED.items())}


def confidence_of(visit: Visit) -> Confidence:
    """Return the confidence that a page's address names, or else the usual one."""
    stated = stated_confidence(visit)
    if stated in _OFFERED:
        return Confidence(stated, {})
    return Confidence(_USUAL, {"confidence": f"expected one of {', '.join(_OFFERED.values())}"})


def stated_confidence(visit: Visit) -> str:
    """Return the confidence that an address names, for ``/v1`` to accept or refuse, or else the usual one."""
    return visit.request.query_params.get("confidence", "") or _USUAL
