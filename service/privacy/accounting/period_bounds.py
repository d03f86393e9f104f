"""An upper bound on all that was released about a unit that can be in any periods, up to a given number (P-13).

Each set of periods has its own composition, and the worst of all sets would take too long to find. Instead, each figure
is composed for each period, and its largest values are summed, one figure at a time.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby

from service.privacy.accounting.guarantee import USUAL_ORDERS
from service.privacy.accounting.leading_windows import leading
from service.privacy.accounting.pricing import QUANTA, price
from service.privacy.accounting.privacy_filter import ORDERS, Weights
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.mechanisms import Declaration, Declared
from service.privacy.periods import PeriodSet
from service.privacy.plans import Plan, Sequence
from service.privacy.plans.walking import Neighbouring, Priced

CURVE = Weights(tuple(order for order, _ in groupby(sorted((*USUAL_ORDERS, *ORDERS[::5])))))
"""The orders of the curve: between neighbours, order less 1 grows by half at most, which costs an epsilon some 2 %."""


def dominating(
    releases: Iterable[tuple[PeriodSet, Priced]], neighbouring: Neighbouring, number: int, period: int | None
) -> Plan:
    """Return a plan whose declared guarantee bounds the loss of every unit.

    Args:
        releases: plans with the periods that they read.
        neighbouring: the relation of the account.
        number: the largest number of periods of one unit.
        period: a period that the unit is in; None: it can be in any.
    """
    common, totals = Totals(), dict[int, Totals]()
    for periods, plan in releases:
        amount = price(plan, neighbouring, CURVE.orders)
        if periods.everything:
            common = add_price(common, amount)
        for place in periods.members:
            totals[place] = add_price(totals.get(place, Totals()), amount)
    found = leading(CURVE, totals, number)
    most = found.together if period is None else found.beside(CURVE, totals.get(period, Totals()))
    return _declared(add_totals(common, most))


def _declared(totals: Totals) -> Plan:
    if totals == Totals():
        return Sequence(parts=())
    figures = Declaration(
        epsilon=totals.epsilon.value,
        delta=min(totals.delta, Fraction(1)),
        rho=totals.rho.value,
        rdp=tuple(_curve(totals)),
    )
    return Declared(guarantee=figures, reference="the sum of the largest periods")


def _curve(totals: Totals) -> Iterator[tuple[Fraction, Fraction]]:
    nothing = (0,) * len(CURVE.orders)
    curve = zip(CURVE.orders, totals.quanta or nothing, totals.infinite or nothing, strict=True)
    for order, quanta, infinite in curve:
        if not infinite:
            yield order, totals.linear * order + Fraction(quanta, QUANTA)
