"""Allotted accounts on the pages: the choice at opening, and the parts of the budget afterwards."""

import pytest

from tests.api.calls import Client, json_of, release
from tests.pages.forms import form_of


def test_a_share_is_opened_under_an_account_that_shows_it(steward: Client, api: Client) -> None:
    form = form_of(steward.get("/new-account?parent=nation"), "/new-account")
    assert form.fields["funding"] == ["shared"]
    typed = {"name": "region", "cap": "0.1", "funding": "allotted"}
    assert steward.post("/new-account", data=form.with_texts(typed)).status_code == 303
    assert json_of(api.get("/v1/accounts/region"))["funding"] == "allotted"
    release(api, {"type": "discrete_gaussian", "rho": "0.05"}, "region")
    above = steward.get("/accounts/nation").text
    assert "Where the budget is" in above
    assert "the whole budgets of 1 account under it" in above
    assert "spent or allotted" in above
    assert '<th role="columnheader" scope="col" class="number">Spent or allotted</th>' in above
    assert "Spent</a> or allotted" in steward.get("/accounts/nation/report").text
    own = steward.get("/accounts/region").text
    assert "which has allotted this budget to it" in own
    assert "nation is charged with the new budget." in own
    assert "nation gets back what is neither spent, held nor allotted." in own
    assert "Where the budget is" not in own
    journal = steward.get("/accounts/nation/journal?verify=1").text
    assert "The chain is valid." in journal
    assert "allotted" in journal


@pytest.mark.parametrize("parent", ["", "nation"])
def test_a_share_that_cannot_be_is_refused_on_the_form(steward: Client, parent: str) -> None:
    form = form_of(steward.get("/new-account"), "/new-account")
    typed = {"name": "region", "cap": "100", "funding": "allotted", "parent": parent}
    refused = steward.post("/new-account", data=form.with_texts(typed))
    assert refused.status_code == (409 if parent else 422)
    assert ("has" if parent else "expected shared, or a parent") in refused.text
    assert steward.get("/accounts/region").status_code == 404
