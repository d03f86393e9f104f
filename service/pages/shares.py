"""The page of the shares of an account's spent loss: pictures, with the same figures as tables."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response
from markupsafe import Markup

from service.api.charts.share_figures import part_label
from service.pages.account import AccountStep
from service.pages.shell.api_client import SignedIn, Visit, address, get
from service.pages.shell.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_BY = {"account": "By account", "tag": "By tag", "mechanism": "By mechanism"}


@router.get("/shares")
async def show_shares(account: AccountStep, visit: SignedIn) -> Response:
    """Render how the account's spent loss divides."""
    account_body = await get(visit, address("accounts", account))
    divided = () if account_body.get("periods") else await asyncio.gather(*(_share(visit, account, by) for by in _BY))
    return page(visit.request, "shares.html", {"account": account_body, "divided": [one for one in divided if one]})


async def _share(visit: Visit, account: str, by: str) -> dict[str, Any] | None:
    """Return the shares with their picture; None where there is but one part, which tells nothing."""
    path = f"{address('accounts', account)}/shares"
    shares: dict[str, Any] = await get(visit, path, {"by": by, "with_picture": "true"})
    if len(shares["parts"]) + (shares["rest"] is not None) < 2 and by != "mechanism":
        return None
    picture = shares["picture"]
    parts = [*shares["parts"], *([shares["rest"]] if shares["rest"] else [])]
    return shares | {
        "title": _BY[by],
        "drawn": Markup(picture[picture.index("<svg ") :]),  # noqa: S704 - texts in it are escaped where it is drawn
        "rows": [(part_label(by, part), part) for part in parts],
    }
