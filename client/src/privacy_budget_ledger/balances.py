"""The balance of an account, whose text has the few figures that matter."""

from collections.abc import Mapping
from typing import Any


class Balance(dict[str, Any]):
    """The spent, held and remaining loss of an account, as the interface answers; ``print`` shows the main figures."""

    def __str__(self) -> str:
        """Return the budget and its parts, a line each."""
        shown = {
            "budget": _figures(self["budget"]),
            "left": _figures(self["remaining"]),
            "spent": _loss(self["spent"]),
            "held": _loss(self["reserved"]),
            "releases": f"{self['releases']:,}",
        }
        lines = (f"  {name:9} {text}" for name, text in shown.items())
        return "\n".join([f"balance of {self['account']}, at entry {self['head']['seq']}", *lines])


def _figures(members: Mapping[str, Any]) -> str:
    own = (name for name in members if name != "definition" and not name.endswith("_exact"))
    return ", ".join(f"{name} {members[name]}" for name in own)


def _loss(loss: Mapping[str, Any]) -> str:
    """Return a loss in the notions that are finite, and as epsilon at the first delta."""
    parts = [_figures(loss[kind]) for kind in ("pure", "zcdp") if loss[kind]]
    best = loss["best"][0] if loss["best"] else {}
    at_delta = best.get("adaptive") or best.get("fixed")
    if at_delta:
        parts.append(f"epsilon {at_delta['epsilon']} at delta {at_delta['delta']}")
    return "; ".join(parts) or "infinite"
