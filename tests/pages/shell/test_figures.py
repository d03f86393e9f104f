"""Budgets, charges and beliefs in words: a loss is never shown smaller, and what is left never larger."""

from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
from hypothesis import given, strategies as st
from markupsafe import Markup

from service.pages.shell.figures import (
    belief_after,
    budget_text,
    charge_text,
    charged_percent,
    delta_text,
    fitting,
    loss_in,
    one_in,
    plainest,
    usage,
)

_ZCDP = {"definition": "zcdp", "rho": "1/3"}


def _account(budget: Any, remaining: Any, exact: str | None, used: float | None, used_exact: str | None) -> Any:
    """Return the members of an account's answer that its usage is read from."""
    cap = "rho" if budget["definition"] == "zcdp" else "epsilon"
    gauge = {"used": used, "used_exact": used_exact, "cap": cap, "releases": 0, "equal_more": None}
    return {"budget": budget, "remaining": remaining, "counted_exact": exact, "gauge": gauge}


@pytest.mark.parametrize(
    ("budget", "remaining", "exact", "gauge", "percent", "used", "left"),
    [
        (_ZCDP, {"rho": 0.3333333333333333}, "0", (0.0, "0"), "0", "0", "0.3333"),
        (_ZCDP, {"rho": 0.3333333333333333}, None, (1e-300, None), "1e-298", "3.334e-17", "0.3333"),
        ({"definition": "zcdp", "rho": "2.56"}, {"rho": 2.4599999999999996}, "0.1", (0.0390625, "5/128"),
         "3.91", "0.1", "2.46"),
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
    assert (found.percent, found.used, found.left) == (percent, used, left)
    assert (found.by_delta, found.more) == (False, None)


@pytest.mark.parametrize(
    ("releases", "more", "said"),
    [
        (1, 30, "30 more releases like the first one fit"),
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


def test_a_planned_release_is_counted_among_those_that_fit() -> None:
    assert [fitting(number) for number in (0, 1, 39, 10**6)] == [
        "not once",
        "once",
        "39 times in all",
        "at least 1,000,000 times in all",
    ]


def test_declared_deltas_that_fill_their_cap_first_are_shown() -> None:
    budget = {"definition": "approximate", "epsilon": "4", "delta": "1e-6", "declared_delta": "1e-8"}
    account = _account(budget, {"epsilon": 3.0}, "1", 0.30000000000000004, "0.3")
    account["gauge"]["cap"] = "declared_delta"
    assert (usage(account).percent, usage(account).by_delta) == ("30", True)


def _said(text: Markup) -> str:
    return text.striptags()


def test_budgets_in_words() -> None:
    assert _said(budget_text({"definition": "zcdp", "rho": "2.56"})) == "ρ = 2.56 (zero-concentrated)"
    declared = {"definition": "pure", "epsilon": "1", "delta": "1e-9"}
    assert _said(budget_text(declared)) == "ε = 1 (pure differential privacy, declared δ up to 1e-9)"
    assert _said(budget_text({"definition": "rdp", "alpha": "32", "epsilon": "3"})) == "ε = 3 at order α = 32 (Rényi)"
    approximate = {"definition": "approximate", "epsilon": "4", "delta": "0.000001", "declared_delta": "1e-7"}
    assert _said(budget_text(approximate)) == "ε = 4 at δ = 1e-6 (approximate, declared δ up to 1e-7)"
    assert 'href="/guide/glossary#approximate"' in budget_text(approximate)


def test_losses_in_the_definition_of_a_budget() -> None:
    """The share is exact where the loss is, never below it, and unknown where no answer states the loss."""
    cost = {"pure": {"epsilon": 0.30000000000000004, "epsilon_exact": "0.3"}, "zcdp": {"rho": 0.2}}
    for budget, said, percent in (
        ({"definition": "pure", "epsilon": "1"}, "ε = 0.3", "30"),
        ({"definition": "zcdp", "rho": "0.3"}, "ρ = 0.2", "66.7"),
        ({"definition": "zcdp", "rho": "0.1"}, "ρ = 0.2", "100"),
    ):
        loss = loss_in(budget, cost)
        assert loss is not None
        assert (_said(charge_text(loss)), charged_percent(loss)) == (said, percent)
    infinite = loss_in({"definition": "pure", "epsilon": "1"}, {"pure": None, "zcdp": None})
    assert infinite is not None
    assert (_said(charge_text(infinite)), charged_percent(infinite)) == ("ε is infinite", None)
    curve = {"rdp": [{"alpha": 1.25, "epsilon": 0.1}, {"alpha": 8, "epsilon": 0.2}, {"alpha": 16, "epsilon": None}]}
    curve["rdp"].append({"alpha": 1.1, "epsilon": 0.1})  # whose double is above 11/10
    orders = {
        alpha: loss_in({"definition": "rdp", "alpha": alpha, "epsilon": "0.3"}, curve | cost) for alpha in _ORDERS
    }
    shares = {alpha: charged_percent(loss) for alpha, loss in orders.items() if loss is not None}
    assert shares == {"8": "66.7", "5/4": "33.4", "1.1": "33.4", "16": None}
    eighth = orders["8"]
    assert eighth is not None
    assert _said(charge_text(eighth)) == "ε = 0.2 at α = 8"


_ORDERS = ("8", "5/4", "1.1", "16", "7", "1.25000001")


def test_the_loss_under_epsilon_and_delta_is_the_one_that_holds_under_adaptive_choice() -> None:
    adaptive = {"delta": 1e-06, "epsilon": 1.5, "via": "rdp", "adaptive": True}
    fixed = {"delta": 1e-06, "epsilon": 1.25, "via": "tight", "adaptive": False}
    budget = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
    for best, said in (
        ([{"delta": 1e-06, "adaptive": adaptive, "fixed": fixed}], "ε = 1.5 at δ = 1e-6"),
        ([{"delta": 1e-06, "adaptive": None, "fixed": fixed}], "ε = 1.25 at δ = 1e-6"),
        ([{"delta": 1e-06, "adaptive": None, "fixed": None}], "ε is infinite at δ = 1e-6"),
    ):
        loss = loss_in(budget, {"best": best})
        assert loss is not None
        assert (_said(charge_text(loss)), charged_percent(loss)) == (said, None)


@pytest.mark.parametrize("stated", [1e-06, "1e-6", "0.000001", "1/1000000"])
def test_a_delta_reads_the_same_however_it_is_stated(stated: float | str) -> None:
    assert (delta_text(stated), one_in(stated)) == ("1e-6", "1,000,000")


def test_a_chance_is_never_said_to_be_smaller_than_it_is() -> None:
    assert (one_in(3e-10), one_in("0.3"), one_in(1e-10)) == ("3,330,000,000", "3", "10,000,000,000")


@given(st.floats(min_value=0, max_value=40), st.sampled_from(["50", "1", "0.1", "99"]))
def test_a_belief_is_bounded_outward(epsilon: float, prior: str) -> None:
    """Against Bayes' rule with 60 digits."""
    with mpmath.workdps(60):
        factor, before = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(prior) / 100
        most = 100 * before * factor / (1 - before + before * factor)
        least = 100 * before / (before + (1 - before) * factor)
        found = belief_after(epsilon, prior)
        assert mpmath.mpf(found.least) <= least * (1 + mpmath.mpf(10) ** -50)
        assert mpmath.mpf(found.most) >= most * (1 - mpmath.mpf(10) ** -50)
        assert mpmath.mpf(found.most) - most <= 1
        assert least - mpmath.mpf(found.least) <= 1


@pytest.mark.parametrize(
    ("epsilon", "prior", "least", "most"),
    [
        (0, "50", "50", "50"), ("1", "50", "26.8", "73.2"), (2.159, "1", "0.116", "8.05"), (8, "50", "0.0335", "99.97"),
        ("10.6", "50", "0.00249", "99.998"), ("17", "50", "0", "100"), (1e300, "1", "0", "100"),
    ],
)  # fmt: skip
def test_beliefs_as_people_read_them(epsilon: float | str, prior: str, least: str, most: str) -> None:
    assert belief_after(epsilon, prior) == (least, most)


@pytest.mark.parametrize(
    ("pure", "said"),
    [
        (0.5, {"epsilon": 0.5, "delta": 0}),
        (0.505, {"epsilon": 0.505, "delta": 0}),
        (0.5051, {"epsilon": 0.5, "delta": 1e-10}),
        (None, {"epsilon": 0.5, "delta": 1e-10}),
    ],
)
def test_a_loss_is_stated_without_a_delta_where_that_is_nearly_as_small(pure: float | None, said: Any) -> None:
    assert plainest({"epsilon": 0.5, "delta": 1e-10}, pure) == said


def test_a_pure_loss_is_stated_where_no_epsilon_holds_at_the_delta() -> None:
    assert plainest(None, 2.0) == plainest({"epsilon": None, "delta": 1e-10}, 2.0) == {"epsilon": 2.0, "delta": 0}
    assert plainest(None, None) is None
