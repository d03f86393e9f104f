"""The accountant of version 1, which priced all releases until 0.12.0: for the figures that those versions stated."""

import sys
from pathlib import Path

import pytest

from service.ledger.verification import chain_check
from service.privacy.accounting import pricing, zcdp
from service.privacy.mechanisms import RandomizedResponse
from service.privacy.mechanisms.base import rounded_rho
from service.privacy.mechanisms.randomized_response import pure_rho_curve
from service.privacy.numerics.keyed import KeptResults
from service.privacy.numerics.loss import Loss

_LAST = (0, 12, 0)


def price_as(version: Path, patch: pytest.MonkeyPatch) -> None:
    """Have this process price as the accountant of a version of the service."""
    if tuple(map(int, version.name.split("."))) <= _LAST:
        price_as_version_1(patch)


def price_as_version_1(patch: pytest.MonkeyPatch) -> None:
    """Have this process price as version 1: the rho of randomised response is that of two values."""
    present = pricing.ACCOUNTANT
    for module in [module for name, module in sys.modules.items() if name.startswith("service.")]:
        if vars(module).get("ACCOUNTANT") == present:
            patch.setattr(module, "ACCOUNTANT", "1")
    patch.setattr(RandomizedResponse, "rho_curve", lambda self: pure_rho_curve(self.epsilon))
    patch.setattr(RandomizedResponse, "rho", _rho_of_two)
    patch.setattr(pricing, "_memoised", pricing._memoised.__wrapped__)
    patch.setattr(zcdp, "mechanism_rho", zcdp.mechanism_rho.__wrapped__)
    patch.setattr(chain_check, "_long_prices", KeptResults(1))


def _rho_of_two(self: RandomizedResponse) -> Loss:
    return rounded_rho(pure_rho_curve(self.epsilon), self.epsilon)
