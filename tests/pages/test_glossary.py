"""The glossary has an entry for each term that leads to it, and the board's table has the figures of the pages."""

import re

from service.pages.guide import chapters, document
from service.pages.shell.figures import belief_after
from service.pages.shell.layout import WEB
from tests.api.calls import Client, json_of, open_account, pure, release

_TERMS = re.compile(r'term\((?:"[^"]*"|[^",]+), "([a-z-]+)"\)')


def _anchors() -> set[str]:
    return {section.anchor for section in document("guide/glossary").sections}


def test_every_term_of_the_pages_has_an_entry() -> None:
    used = {anchor for path in (WEB / "templates").glob("*.html") for anchor in _TERMS.findall(path.read_text("utf-8"))}
    assert len(used) > 20
    assert used | {"pure", "zcdp", "rdp", "approximate"} <= _anchors()


def test_entries_are_named_once_and_both_pages_are_in_the_guide() -> None:
    anchors = [section.anchor for section in document("guide/glossary").sections]
    assert len(anchors) == len(set(anchors))
    assert "/guide/glossary" in chapters()
    assert "/guide/board" in chapters()


def test_the_boards_table_has_the_figures_of_the_pages() -> None:
    text = (WEB / "guide" / "board.md").read_text("utf-8")
    rows = re.findall(r"^\| ε = ([0-9.]+) \| ([0-9.]+) % \| ([0-9.]+) % \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for epsilon, half, hundredth in rows:
        assert (belief_after(epsilon, "50").most, belief_after(epsilon, "1").most) == (half, hundredth)


def test_an_account_says_what_its_whole_budget_allows(api: Client, steward: Client) -> None:
    """The epsilon of a budget is its own, or the least that it implies at the account's delta."""
    for name, budget, said in (
        ("p", {"definition": "pure", "epsilon": "1"}, "26.8&nbsp;% and <strong>73.2&nbsp;%"),
        ("d", {"definition": "pure", "epsilon": "1", "delta": "1e-9"}, "at most 1 in 1,000,000,000, tells everything"),
        ("a", {"definition": "approximate", "epsilon": "2", "delta": "1e-6"}, "at most 1 in 1,000,000, tells"),
        ("z", {"definition": "zcdp", "rho": "0.5", "delta": "1e-9"}, "at most 1 in 909,000,000, tells everything"),
        ("r", {"definition": "rdp", "alpha": "7/3", "epsilon": "0.1"}, "at most 1 in 10,000,000,000, tells"),
    ):
        open_account(api, f"of-{name}", budget)
        assert said in steward.get(f"/accounts/of-{name}").text


def test_a_release_says_what_it_is_charged_first(api: Client, steward: Client) -> None:
    done = release(api, pure("0.25"), "households", name="first")
    page = steward.get(f"/accounts/households/releases/{done['id']}").text
    first, _, other = page.partition("<summary>All analyses</summary>")
    assert '<span class="whole">ε = 0.25</span> <span class="whole">at δ = 1e-6</span></p>' in first
    assert "of the budget" in first
    assert "tight" not in first
    assert "tight" in other
    charge = json_of(api.get(f"/v1/accounts/households/releases/{done['id']}?with_charge=true"))["charge"]
    assert f"{charge['share'] * 100:.1f}"[:3] in first.partition("of the budget")[0][-40:]


def test_words_for_a_loss_without_an_epsilon_and_for_a_replaced_record(api: Client, steward: Client) -> None:
    budget = {"definition": "zcdp", "rho": "1", "delta": "1e-9"}
    open_account(api, "replaced", budget, neighbouring="replace_one")
    declared = {"type": "declared", "rho": "0.1", "delta": "5e-10", "reference": "a proof"}
    done = release(api, declared, "replaced", name="declared")
    page = steward.get(f"/accounts/replaced/releases/{done['id']}").text
    assert "no ε bounds the loss at this δ, so this release can move" in page
    assert "the record of a certain person is one thing rather than another" in steward.get("/accounts/replaced").text
    infinite = release(api, declared, "replaced", name="voided", reserve_for="P1D")
    json_of(
        api.post(
            f"/v1/accounts/replaced/releases/{infinite['id']}/void",
            json={"reason": "withdrawn", "attestation": "nothing was published"},
        )
    )
    assert (
        "It is no longer charged: the release is voided."
        in steward.get(f"/accounts/replaced/releases/{infinite['id']}").text
    )
