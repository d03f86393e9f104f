"""Figures of pages: an upper bound is never shown smaller, and a lower bound never larger."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from service.pages.shell.figures import budget_text, down, more_releases, share_of, up, usage

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


def _account(budget: Any, remaining: Any, exact: str | None, used: float | None, used_exact: str | None) -> Any:
    """Return the members of an account's answer that its usage is read from."""
    cap = "rho" if budget["definition"] == "zcdp" else "epsilon"
    gauge = {"used": used, "used_exact": used_exact, "cap": cap, "releases": 0, "equal_more": None}
    return {"budget": budget, "remaining": remaining, "counted_exact": exact, "gauge": gauge}


@pytest.mark.parametrize(
    ("budget", "remaining", "exact", "gauge", "percent", "used", "left"),
    [
        (_ZCDP, {"rho": 0.3333333333333333}, "0", (0.0, "0"), "0", "0", "1/3"),
        (_ZCDP, {"rho": 0.3333333333333333}, None, (1e-300, None), "0.1", "1/30000000000000000", "0.3333333333333333"),
        ({"definition": "zcdp", "rho": "2.56"}, {"rho": 2.4599999999999996}, "0.1", (0.0390625, "5/128"),
         "4", "0.1", "2.46"),
        ({"definition": "pure", "epsilon": "3"}, {"epsilon": 2.0}, None, (0.33333333333333337, None), "33.4", "1", "2"),
        ({"definition": "rdp", "alpha": "2", "epsilon": "4"}, {"epsilon": 0.0}, None, (1.0, "1"), "100", "4", "0"),
        ({"definition": "rdp", "alpha": "2", "epsilon": "4"}, {"epsilon": 0.0}, "5", (1.25, "1.25"), "100", "5", "0"),
        ({"definition": "pure", "epsilon": "1"}, {"epsilon": 0.0}, None, (None, None), "100", "1", "0"),
        ({"definition": "pure", "epsilon": "0"}, {"epsilon": 0.0}, "0", (0.0, "0"), "0", "0", "0"),
        ({"definition": "zcdp", "rho": "1"}, {"rho": 0.9}, "0.1", (0.1, "0.1"), "10", "0.1", "0.9"),
        ({"definition": "zcdp", "rho": "1"}, {"rho": 0.9}, "0.1", (0.1, None), "10", "0.1", "0.9"),
    ],
)  # fmt: skip
def test_what_is_gone_is_never_too_little(
    budget: Any,
    remaining: Any,
    exact: str | None,
    gauge: tuple[float | None, str | None],
    percent: str,
    used: str,
    left: str,
) -> None:
    found = usage(_account(budget, remaining, exact, *gauge))
    assert (found.percent, found.used, found.left) == (percent, Fraction(used), Fraction(left))
    assert (found.by_delta, found.more) == (False, None)


@pytest.mark.parametrize(
    ("releases", "more", "said"),
    [
        (1, 30, "30 more releases like the one so far fit"),
        (4, 12, "12 more releases like the mean one fit"),
        (4, 1, "1 more release like the mean one fits"),
        (4, 0, "no more release like the mean one fits"),
        (2, 123456, "123,456 more releases like the mean one fit"),
        (2, 10**6, "at least 1,000,000 more releases like the mean one fit"),
    ],
)
def test_the_releases_that_still_fit_in_words(releases: int, more: int, said: str) -> None:
    account = _account({"definition": "pure", "epsilon": "1"}, {"epsilon": 1.0}, "0", 0.0, "0")
    account["gauge"] |= {"releases": releases, "equal_more": more}
    assert usage(account).more == said
    assert more_releases(39, "this one") == "39 more releases like this one fit"


def test_declared_deltas_that_fill_their_cap_first_are_shown() -> None:
    budget = {"definition": "approximate", "epsilon": "4", "delta": "1e-6", "declared_delta": "1e-8"}
    account = _account(budget, {"epsilon": 3.0}, "1", 0.30000000000000004, "0.3")
    account["gauge"]["cap"] = "declared_delta"
    assert (usage(account).percent, usage(account).by_delta) == ("30", True)


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
    curve = {"rdp": [{"alpha": 1.25, "epsilon": 0.1}, {"alpha": 8, "epsilon": 0.2}, {"alpha": 16, "epsilon": None}]}
    shares = {alpha: share_of({"definition": "rdp", "alpha": alpha, "epsilon": "0.3"}, curve) for alpha in ("8", "5/4")}
    assert shares == {"8": "66.7", "5/4": "33.4"}
    for unknown in ("16", "7", "1.25000001"):
        assert share_of({"definition": "rdp", "alpha": unknown, "epsilon": "0.3"}, curve) is None
