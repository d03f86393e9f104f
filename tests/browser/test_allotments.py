"""The pages of accounts that have allotted, as somebody with a browser opens and reads them."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.api.calls import concentrated, open_account, release
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot, sign_in
from tests.processes import Served

_WIDE: dict[str, Any] = {"viewport": {"width": 1400, "height": 900}}
_NARROW: dict[str, Any] = {"viewport": {"width": 400, "height": 800}}


@pytest.mark.parametrize(("width", "options"), [("1400", _WIDE), ("400", _NARROW)])
def test_a_share_is_opened_by_the_form_and_shown(
    new_context: Callable[..., BrowserContext], served: Served, width: str, options: dict[str, Any]
) -> None:
    programme, share = f"programme-{width}", f"health-{width}"
    zcdp = {"definition": "zcdp", "rho": "1"}
    open_account(served.client, programme, zcdp, description="Tables of one year.")
    release(served.client, concentrated("0.05"), programme, name="totals")
    release(served.client, concentrated("0.1"), programme, name="held", reserve_for="P30D")
    page = new_context(**options).new_page()
    sign_in(page)
    page.goto(f"/new-account?parent={programme}")
    page.get_by_label("Name").fill(share)
    page.get_by_label("Taken from its budget").select_option("allotted")
    page.get_by_label("Budget", exact=True).fill("0.4")
    screenshot(page, f"new-account-allotted-{width}")
    page.get_by_role("button", name="Open the account").click()
    expect(page.get_by_text("The account was opened.")).to_be_visible()
    release(served.client, concentrated("0.25"), share, name="tables")
    for name in (programme, share, ""):
        page.goto(f"/accounts/{name}" if name else f"/?parent={programme}")
        assert_accessible(page)
        assert_fits(page)
        assert_tables_fit(page)
        screenshot(page, f"{name.removesuffix(f'-{width}') or 'below'}-{width}")
    page.goto(f"/accounts/{programme}")
    parts = page.get_by_role("region", name="Where the budget is")
    for text in ("0.05", "0.1", "0.4", "0.45"):
        expect(parts).to_contain_text(text)
