"""The order of loss laws, by which the worst of several is found."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.laws.loss_laws import GaussianLoss, LadderLoss, LaplaceLoss
from service.privacy.tight.worst_case import LawSum, WorstLaw, _undominated

_ONE, _TWO = Fraction(1), Fraction(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ladder(LadderLoss):
    further: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laplace(LaplaceLoss):
    further: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gaussian(GaussianLoss):
    further: int = 0


_LAWS = [
    pytest.param(_Ladder(_ONE), {"e": _TWO}, id="ladder"),
    pytest.param(_Laplace(scale=_TWO), {"scale": _ONE}, id="laplace"),
    pytest.param(_Gaussian(sigma_squared=_TWO), {"sigma_squared": _ONE}, id="gaussian"),
]
_RANKED = {"e", "scale", "sensitivity", "sigma_squared"}


def _kept(*laws: Any) -> set[LawSum]:
    return set(_undominated({LawSum(((law, 1),)): 1 for law in laws}, 1))


@pytest.mark.parametrize(("law", "more"), _LAWS)
def test_a_law_that_only_loses_more_dominates(law: Any, more: dict[str, Fraction]) -> None:
    worse = replace(law, **more)
    assert _kept(law, worse) == _kept(worse, law) == {LawSum(((worse, 1),))}


@pytest.mark.parametrize(("law", "more"), _LAWS)
def test_a_law_that_differs_in_another_field_does_not_dominate(law: Any, more: dict[str, Fraction]) -> None:
    others = {field.name for field in fields(law)} - _RANKED
    assert "further" in others
    for name in others:
        worse = replace(law, **more, **{name: getattr(law, name) + 1})
        assert _kept(law, worse) == {LawSum(((law, 1),)), LawSum(((worse, 1),))}


def test_a_sum_stays_unless_enough_others_dominate_it() -> None:
    large, small = (LawSum(((LadderLoss(Fraction(e)), 1),)) for e in (2, 1))
    assert _undominated({large: 1, small: 3}, 3) == {large: 1, small: 2}
    assert _undominated({large: 5, small: 3}, 3) == {large: 3}
    twice = LawSum(((LadderLoss(_TWO), 1), (GaussianLoss(sigma_squared=_ONE), 1)))
    assert _undominated({large: 2, twice: 1}, 2) == {large: 2, twice: 1}
    assert _undominated({large: 2, twice: 2}, 2) == {twice: 2}


def test_choices_that_can_be_made_alike_dominate_the_branch_that_is_repeated() -> None:
    branches = [LawSum(((law, 1),)) for law in (LadderLoss(_ONE), LaplaceLoss(scale=_TWO))]
    chosen = LawSum(((WorstLaw(frozenset(branches)), 2),))
    repeated = LawSum(((LaplaceLoss(scale=_TWO), 2),))
    assert _undominated({chosen: 1, repeated: 1}, 1) == {chosen: 1}
    thrice = LawSum(((LaplaceLoss(scale=_TWO), 3),))
    assert _undominated({chosen: 1, thrice: 1}, 1) == {chosen: 1, thrice: 1}
