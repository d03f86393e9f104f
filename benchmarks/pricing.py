"""The price of the 2020 redistricting release with nothing memoised, beside dp-accounting's RDP accountant."""

import importlib
import math
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from statistics import median
from typing import Any

from service.demo.release import plan_of, read_allocation
from service.privacy.accounting.guarantee import USUAL_DELTA, USUAL_ORDERS, guarantee
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import ORDERS
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring

_ROUNDS = 25
_TARGET = 50  # milliseconds


def run() -> None:
    """Print how long the release takes to price, and the same as a multiple of the peer's time."""
    document = plan_of(read_allocation())
    plan = read_plan(document)
    variances = [Fraction(part["sigma_squared"]) for part in document["parts"]]
    print(f"Pricing P.L. 94-171: {len(variances)} discrete Gaussians, nothing memoised (target: under {_TARGET} ms)")
    every = memos()
    peer = _peer(variances) if find_spec("dp_accounting") else None
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(_ROUNDS):
        for memo in every:
            memo.cache_clear()
        ours.append(_milliseconds(lambda: _price(plan)))
        if peer is not None:
            theirs.append(_milliseconds(peer))
    print(f"  {f'service, every notion and {len(ORDERS)} RDP orders':<52}{median(ours):7.2f} ms")
    if peer is None:
        print("  no peer: dp-accounting is not installed (pip install dp-accounting)")
        return
    print(f"  {'dp-accounting, its RdpAccountant at its own orders':<52}{median(theirs):7.2f} ms")
    ratio = median(our / their for our, their in zip(ours, theirs, strict=True))
    print(f"  {'service / dp-accounting':<52}{ratio:7.2f}")


def _price(plan: Plan) -> None:
    """Compute what a client is told, by every notion and analysis, and what an (epsilon, delta) account adds up."""
    guarantee(plan, Neighbouring.REPLACE_ONE, deltas=(USUAL_DELTA,), orders=USUAL_ORDERS)
    price(plan, Neighbouring.REPLACE_ONE, ORDERS)


def memos() -> list[Any]:
    """Every memo of the service: emptied, so that each round prices as the first one does."""
    modules = [module for name, module in sys.modules.items() if name.startswith("service.")]
    found = {id(value): value for module in modules for value in vars(module).values() if hasattr(value, "cache_clear")}
    return list(found.values())


def _peer(variances: list[Fraction]) -> Callable[[], object]:
    """Compute the losses as Gaussian events: a record moves two cells by one each, so the L2 sensitivity is sqrt(2)."""
    events = importlib.import_module("dp_accounting")  # it may not be installed
    rdp = importlib.import_module("dp_accounting.rdp")
    gaussians = [events.GaussianDpEvent(math.sqrt(variance / 2)) for variance in variances]

    def compose() -> object:
        accountant = rdp.RdpAccountant(neighboring_relation=events.NeighboringRelation.REPLACE_ONE)
        for gaussian in gaussians:
            accountant.compose(gaussian)
        return accountant.get_epsilon(float(USUAL_DELTA))

    return compose


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)
