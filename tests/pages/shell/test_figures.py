"""Figures of pages: an upper bound is never shown smaller, and a lower bound never larger."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from service.pages.shell.figures import budget_text, down, growth, share_of, up, usage

_SIZES = st.floats(min_value=1e-300, max_value=1e300)


@given(_SIZES, st.integers(1, 12))
def test_rounding_has_its_direction(value: float, digits: int) -> None:
    exact, above, below = Fraction(value), Fraction(up(value, digits)), Fraction(down(value, digits))
    assert below <= Fraction(repr(value)) <= above
    assert above - below <= exact * Fraction(10, 10**digits) * Fraction(101, 100)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1"), (0.5, "0.5"), (1234567.0, "1235000"), (12345678.0, "1.235e7"),
        (0.00012341, "0.0001235"), (1e-10, "1e-10"), (Fraction(1, 3), "0.3334"), (2.0000000001, "2.001"),
        (None, "infinite"),
    ],
)  # fmt: skip
def test_up_as_people_read_it(value: float | None, shown: str) -> None:
    assert up(value) == shown


_ZCDP = {"definition": "zcdp", "rho": "1/3"}


@pytest.mark.parametrize(
    ("budget", "remaining", "exact", "percent", "used", "left"),
    [
        (_ZCDP, {"rho": 0.3333333333333333}, "0", "0", "0", "1/3"),
        (_ZCDP, {"rho": 0.3333333333333333}, None, "0.1", "1/30000000000000000", "0.3333333333333333"),
        ({"definition": "zcdp", "rho": "2.56"}, {"rho": 2.4599999999999996}, "0.1", "4", "0.1", "2.46"),
        ({"definition": "pure", "epsilon": "3"}, {"epsilon": 2.0}, None, "33.4", "1", "2"),
        ({"definition": "rdp", "alpha": "2", "epsilon": "4"}, {"epsilon": 0.0}, None, "100", "4", "0"),
        ({"definition": "rdp", "alpha": "2", "epsilon": "4"}, {"epsilon": 0.0}, "5", "100", "5", "0"),
        ({"definition": "pure", "epsilon": "0"}, {"epsilon": 0.0}, "0", "0", "0", "0"),
    ],
)
def test_what_is_gone_is_never_too_little(
    budget: Any, remaining: Any, exact: str | None, percent: str, used: str, left: str
) -> None:
    found = usage({"budget": budget, "remaining": remaining, "counted_exact": exact})
    assert (found.percent, found.used, found.left) == (percent, Fraction(used), Fraction(left))


@pytest.mark.parametrize(
    ("releases", "more", "used", "said"),
    [
        (1, 30, "1.58", ("30 more", False, True)),
        (1, 1, "2", ("one more", True, False)),
        (1, 0, "3", ("not one more", True, False)),
        (4, 12, "1", ("12 more", False, False)),
        (4, 13, "1", ("13 more", False, True)),
        (2, 10**6, "1", ("at least a million more", False, True)),
        (2, 10**6, "0", ("at least a million more", False, False)),
    ],
)
def test_what_still_fits_tells_how_a_figure_grows(releases: int, more: int, used: str, said: tuple[Any, ...]) -> None:
    head = {"seq": 9, "hash": "a"}
    account = {"budget": {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}, "head": head}
    account |= {"remaining": {"epsilon": 4 - float(used)}, "counted_exact": used}
    balance = {"equal_more": more, "releases": releases, "head": head}
    assert growth(account, balance) == said
    assert growth(account, balance | {"head": {"seq": 10, "hash": "b"}}) is None
    assert growth(account, balance | {"equal_more": None}) is None


def test_budgets_in_words() -> None:
    assert budget_text({"definition": "zcdp", "rho": "2.56"}) == "ρ = 2.56 (zero-concentrated)"
    declared = {"definition": "pure", "epsilon": "1", "delta": "1e-9"}
    assert budget_text(declared) == "ε = 1 (pure differential privacy, declared δ up to 1e-9)"
    assert budget_text({"definition": "rdp", "alpha": "32", "epsilon": "3"}) == "ε = 3 at order α = 32 (Rényi)"
    approximate = {"definition": "approximate", "epsilon": "4", "delta": "1e-6", "declared_delta": "1e-7"}
    assert budget_text(approximate) == "ε = 4 at δ = 1e-6 (approximate, declared δ up to 1e-7)"


def test_shares_are_of_what_adds_up() -> None:
    cost = {"pure": {"epsilon": 0.30000000000000004, "epsilon_exact": "0.3"}, "zcdp": {"rho": 0.2}}
    assert share_of({"definition": "pure", "epsilon": "1"}, cost) == "30"
    assert share_of({"definition": "zcdp", "rho": "0.3"}, cost) == "66.7"
    assert share_of({"definition": "approximate", "epsilon": "1", "delta": "1e-6"}, cost) is None
    assert share_of({"definition": "pure", "epsilon": "1"}, {"pure": None, "zcdp": None}) is None
