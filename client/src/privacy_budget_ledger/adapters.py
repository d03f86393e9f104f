"""Plans from the descriptions of other libraries: dp-accounting's events, OpenDP's measurements, Tumult's budgets.

These libraries state parameters as floats. A float is read in the direction of more privacy loss: a loss is at least
its binary value and its decimal text, and a noise parameter at most both. So the charge is never below that of what was
run. None of the libraries is imported here; their objects are known by the names of their classes.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal, get_args

from privacy_budget_ledger.exact import loss_of, noise_of
from privacy_budget_ledger.plans import (
    Declared,
    Gaussian,
    Geometric,
    Laplace,
    Plan,
    RandomizedResponse,
    Repeat,
    Sequence,
)

Neighbouring = Literal["add_remove", "replace_one"]
_LOGARITHM = Context(prec=30, rounding=ROUND_CEILING)


class NotExpressible(ValueError):
    """An event, measurement or budget that has no sound plan here; the message names it."""


def from_dp_event(event: Any, neighbouring: Neighbouring) -> Plan:
    """Return the plan of an event of dp-accounting.

    Gaussian, Laplace and discrete Laplace noise, randomised response (under ``replace_one``), zCDP with xi = 0, and
    their compositions have plans. All other events, such as sampled ones, are refused.

    Noise is priced as one cell that moves by the bound C on a record's contribution, and by 2 C under ``replace_one``:
    there one contribution leaves and another comes. For Gaussian noise the loss depends on the L2 norm of the
    move alone. For Laplace noise no move of L1 norm C loses more than one of C in one cell: on cells that move by
    a >= b, the loss of the second is at most b times the noise parameter, and so delta(epsilon) is at most that of the
    first at epsilon less this, which is at most that of one cell that moves by a + b.

    Args:
        event: a ``DpEvent``.
        neighbouring: the relation of the account in which the plan is registered.

    Raises:
        NotExpressible: the event, or one in it, has no such plan.
        ValueError: the relation is another one.
    """
    if neighbouring not in get_args(Neighbouring):  # else a misspelt replace_one would count as add_remove
        raise ValueError("expected add_remove or replace_one as the relation of the account")
    plan = _plan_of_event(event, neighbouring)
    if plan is None:
        raise NotExpressible(f"expected an event with a privacy loss, got {type(event).__name__}")
    return plan


def _plan_of_event(event: Any, neighbouring: Neighbouring) -> Plan | None:
    """Return the plan of an event; None if it does nothing."""
    kind, move = type(event).__name__, 2 if neighbouring == "replace_one" else 1
    match kind:
        case "NoOpDpEvent":
            return None
        case "ComposedDpEvent":
            parts = [_plan_of_event(one, neighbouring) for one in event.events]
            stated = tuple(part for part in parts if part is not None)
            return Sequence(parts=stated) if stated else None
        case "SelfComposedDpEvent":
            part = _plan_of_event(event.event, neighbouring)
            count = _whole(event.count, 0, kind)
            return Repeat(count=count, part=part) if part is not None and count else None
        case "GaussianDpEvent":
            variance = _positive(noise_of, event.noise_multiplier, kind) ** 2
            return Gaussian(sigma_squared=variance, sensitivity=move, cells=1)
        case "LaplaceDpEvent":
            return Laplace(scale=_positive(noise_of, event.noise_multiplier, kind), sensitivity=move, cells=1)
        case "DiscreteLaplaceDpEvent":
            sensitivity = _whole(event.sensitivity, 1, kind) * move
            loss = _positive(loss_of, event.noise_parameter, kind) * sensitivity
            return Geometric(epsilon=loss, sensitivity=sensitivity, cells=1)
        case "RandomizedResponseDpEvent" if neighbouring == "replace_one":
            values = _whole(event.num_buckets, 2, kind)
            return _randomized_response(_positive(noise_of, event.noise_parameter, kind), values)
        case "ZCDpEvent" if not event.xi:
            return Declared(rho=_positive(loss_of, event.rho, kind), reference="dp-accounting: ZCDpEvent")
        case _:
            raise NotExpressible(f"expected an event that has a plan under {neighbouring}, got {kind}")


def _positive(read: Callable[[Any], Fraction], parameter: Any, kind: str) -> Fraction:
    try:
        value = read(parameter)
    except (TypeError, ValueError):
        value = Fraction(0)
    if not value:
        raise NotExpressible(f"expected a {kind} with a finite parameter above 0")
    return value


def _whole(number: Any, least: int, kind: str) -> int:
    if not isinstance(number, Integral) or number < least:
        raise NotExpressible(f"expected a {kind} with a whole number from {least} where it counts")
    return int(number)


def _randomized_response(p: Fraction, values: int) -> RandomizedResponse:
    """Return the response that keeps the value with probability 1 - p, and else is uniform over all values.

    Its odds of the true value to each other one are 1 + k (1 - p)/p; the logarithm is rounded up.
    """
    odds = 1 + values * (1 - p) / p
    if p > 1 or odds == 1:
        raise NotExpressible("expected a RandomizedResponseDpEvent with a noise parameter below 1")
    # Decimal's logarithm is off by at most half a unit in its last place, whatever the rounding.
    logarithm = _LOGARITHM.divide(odds.numerator, odds.denominator).ln(_LOGARITHM)
    return RandomizedResponse(epsilon=logarithm.next_plus(_LOGARITHM), values=values)


def from_opendp(measurement: Any, d_in: Any) -> Declared:
    """Return the guarantee of a measurement of OpenDP at an input distance, by its privacy map.

    Pure, zero-concentrated and fixed approximate privacy have plans. A smoothed or Rényi measure is refused: fix its
    delta first (``make_fix_delta``).

    Args:
        measurement: a ``Measurement``.
        d_in: the largest distance, in its input metric, of two datasets that the account calls neighbouring.

    Raises:
        NotExpressible: the measure has no such guarantee, or the loss is not finite.
    """
    measure, loss = str(measurement.output_measure), measurement.map(d_in)
    reference = " ".join(f"OpenDP: {measure} of {measurement.input_metric} at {d_in}".split())[:200]
    try:
        match measure:
            case "MaxDivergence":
                return Declared(epsilon=loss_of(loss), reference=reference)
            case "ZeroConcentratedDivergence":
                return Declared(rho=loss_of(loss), reference=reference)
            case "Approximate(MaxDivergence)":
                return Declared(epsilon=loss_of(loss[0]), delta=loss_of(loss[1]), reference=reference)
            case "Approximate(ZeroConcentratedDivergence)":
                return Declared(rho=loss_of(loss[0]), delta=loss_of(loss[1]), reference=reference)
    except ValueError:
        raise NotExpressible(f"expected a finite loss of {measure}") from None
    raise NotExpressible(f"expected MaxDivergence, ZeroConcentratedDivergence or Approximate of one, got {measure}")


def from_tumult(budget: Any) -> Declared:
    """Return the guarantee that a privacy budget of Tumult Analytics limits: what a session with it may lose.

    Raises:
        NotExpressible: the budget is infinite, or of another type.
    """
    kind = type(budget).__name__
    reference = f"Tumult Analytics: {kind}"
    try:
        match kind:
            case "PureDPBudget" if not budget.is_infinite:
                return Declared(epsilon=_exact(budget.value), reference=reference)
            case "ApproxDPBudget" if not budget.is_infinite:
                epsilon, delta = map(_exact, budget.value)
                return Declared(epsilon=epsilon, delta=delta, reference=reference)
            case "RhoZCDPBudget" if not budget.is_infinite:
                return Declared(rho=_exact(budget.value), reference=reference)
    except ValueError:  # it is beyond the doubles
        raise NotExpressible(f"expected a finite {kind}") from None
    raise NotExpressible(f"expected a finite PureDPBudget, ApproxDPBudget or RhoZCDPBudget, got {kind}")


def _exact(number: Any) -> Fraction:
    """Return an ``ExactNumber`` of Tumult: as it is where it is rational, else rounded up."""
    if number.expr.is_Rational:
        return Fraction(int(number.expr.p), int(number.expr.q))
    return loss_of(float(number.to_float(round_up=True)))
