"""The page of the shares of what an account has spent."""

import pytest

from tests.api.calls import Client, json_of, open_account, pure, release


def test_the_shares_are_pictures_and_tables_of_the_same_figures(steward: Client, pictures: None) -> None:
    text = steward.get("/accounts/nation/shares").text
    assert text.count("<svg ") - text.count('<svg class="bar"') == 3
    for by, part in (("account", "its own releases"), ("tag", "pl94 + total"), ("mechanism", "Gaussian")):
        assert f'<h2 id="{by}">' in text
        assert f'role="rowheader" scope="row" class="words">{part}' in text
        assert f'href="/accounts/nation/shares.csv?by={by}"' in text
        table = steward.get(f"/accounts/nation/shares.csv?by={by}")
        assert table.headers["content-disposition"] == "attachment; filename*=UTF-8''nation-shares.csv"
        assert table.text.startswith("by,part,names,")
    assert "the shares add up" in text


def test_parts_that_do_not_add_up_are_said_to_be_parts_by_themselves(steward: Client, api: Client) -> None:
    release(api, pure("0.25", tags=["a"]), "households")
    text = steward.get("/accounts/households/shares").text
    assert "these losses do not add up" in text
    assert ">Share<" not in text
    assert '<h2 id="account">' not in text  # there are no accounts under it


@pytest.mark.parametrize("periods", [None, {"calendar": "month", "participation": {"offsets": [0, 1]}}])
def test_accounts_without_shares_say_why(steward: Client, api: Client, periods: object) -> None:
    open_account(api, "other", **({"periods": periods} if periods else {}))
    text = steward.get("/accounts/other/shares").text
    assert ("Nothing is spent." if periods is None else "This account has periods") in text
    assert "<figure>" not in text


def test_names_in_pictures_are_text(steward: Client, api: Client, pictures: None) -> None:
    release(api, pure("0.01", tags=["<script>alert(1)</script>"]), "persons")
    assert "<script>alert" not in steward.get("/accounts/persons/shares").text
    assert json_of(api.get("/v1/accounts/persons/shares?by=tag"))["parts"]


def test_a_dollar_sign_in_a_name_begins_no_formula(steward: Client, api: Client, pictures: None) -> None:
    for tag in ("$$", "$\\mathrm{census}$", "US$ and $"):
        release(api, pure("0.01", tags=[tag]), "persons")
    answer = api.get("/v1/accounts/persons/shares?by=tag", headers={"Accept": "image/svg+xml"})
    assert answer.status_code == 200
    for tag in ("$$", "$\\mathrm{census}$", "US$ and $"):
        assert f">{tag}</text>" in answer.text
    assert steward.get("/accounts/persons/shares").status_code == 200
    assert api.get("/v1/accounts/persons/shares?by=tag", headers={"Accept": "image/png"}).status_code == 200
