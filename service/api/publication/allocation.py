"""Allocation tables: the share of a release's loss that each query has.

The Census Bureau publishes such tables of its releases: the share of each level of geography in the whole, and the
share of each query in its level, as exact fractions. Here the decimals stand beside them.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from service.api.schemas.exact_numbers import number_up
from service.privacy.mechanisms import Mechanism
from service.privacy.planning.allocation import QueryNoise, cost_in_own_unit
from service.privacy.plans import Plan
from service.privacy.plans.walking import runs_of

COLUMNS = (
    "mechanism", "level", "query", "tags", "type", "runs", "unit", "loss", "share", "share_of_level", "loss_decimal",
    "share_decimal", "share_of_level_decimal",
)  # fmt: skip
_SEPARATOR = "/"


class _Query(NamedTuple):
    mechanism: Mechanism
    runs: int
    loss: Fraction | None  # of all runs; None: it has no exact one


def rows_of(plan: Plan) -> list[Sequence[Any]]:
    """Return the allocation table of a plan: a row for each mechanism.

    Losses are in the mechanism's own unit, epsilon or rho. Losses and shares are fractions, and then decimals that are
    rounded up. The shares are those of a plan that is a sequence of
    mechanisms with losses in one unit, which add up; other plans have none. A mechanism that is named ``level/query``
    has a share of its level too.
    """
    queries = list(_queries(plan))
    units = {_unit(query.mechanism) for query in queries}
    losses = [query.loss for query in queries]
    adds_up = len(units) == 1 and None not in losses and _is_sequence(plan)
    total = sum((loss for loss in losses if loss is not None), Fraction())
    of_level: dict[str, Fraction] = {}
    for query in queries:
        level = _names(query.mechanism)[0]
        of_level[level] = of_level.get(level, Fraction()) + (query.loss or 0)
    rows: list[Sequence[Any]] = []
    for query in queries:
        level, name = _names(query.mechanism)
        share = query.loss / total if adds_up and total and query.loss is not None else None
        of = of_level[level]
        in_level = query.loss / of if level and share is not None and of and query.loss is not None else None
        figures = (query.loss, share, in_level)
        rows.append(
            (
                *(query.mechanism.name or "", level, name, list(query.mechanism.tags), query.mechanism.TYPE),
                *(query.runs, _unit(query.mechanism)),
                *(None if one is None else str(one) for one in figures),
                *(None if one is None else number_up(one) for one in figures),
            )
        )
    return rows


def _queries(plan: Plan) -> Iterator[_Query]:
    for mechanism, runs in runs_of(plan):
        yield _Query(mechanism, runs, runs * cost_in_own_unit(mechanism) if isinstance(mechanism, QueryNoise) else None)


def _is_sequence(plan: Plan) -> bool:
    return isinstance(plan, Mechanism) or (plan.ADDS_UP and all(map(_is_sequence, plan.children)))


def _unit(mechanism: Mechanism) -> str:
    if not isinstance(mechanism, QueryNoise):
        return ""
    return "rho" if mechanism.pure_epsilon().nats is None else "epsilon"


def _names(mechanism: Mechanism) -> tuple[str, str]:
    level, separator, query = (mechanism.name or "").partition(_SEPARATOR)
    return (level, query) if separator else ("", level)
