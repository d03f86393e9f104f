"""Budgets of accounts, one class for each definition of privacy loss; losses are in nats."""

from dataclasses import dataclass
from typing import Any, ClassVar

from privacy_budget_ledger.exact import Exact
from privacy_budget_ledger.plans import Document


class Budget(Document):
    """A budget of an account."""

    DEFINITION: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """Return the JSON document, without the fields that are not stated."""
        return {"definition": self.DEFINITION, **super().document()}


@dataclass(frozen=True, kw_only=True)
class PureBudget(Budget):
    """Pure differential privacy; ``delta`` limits the sum of declared deltas."""

    DEFINITION = "pure"
    epsilon: Exact
    delta: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class ZcdpBudget(Budget):
    """Zero-concentrated differential privacy; ``delta`` limits the sum of declared deltas."""

    DEFINITION = "zcdp"
    rho: Exact
    delta: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class RdpBudget(Budget):
    """Rényi differential privacy at one order; ``delta`` limits the sum of declared deltas."""

    DEFINITION = "rdp"
    alpha: Exact
    epsilon: Exact
    delta: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class ApproximateBudget(Budget):
    """Approximate differential privacy; ``declared_delta`` limits the sum of declared deltas."""

    DEFINITION = "approximate"
    epsilon: Exact
    delta: Exact
    declared_delta: Exact | None = None
