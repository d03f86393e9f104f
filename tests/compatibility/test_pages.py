"""The pages of accounts and of some of their releases, with entries of every kind, of actors with and without keys."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from service.ledger.releases import expiry_keeper
from tests.api.calls import STEWARD
from tests.compatibility.files import VERSIONS
from tests.compatibility.installation import Installation
from tests.ledger.ledgers import Clock


@pytest.mark.parametrize(
    ("accounts", "releases", "least"), [(3, 40, 120), pytest.param(1, 8, 200, marks=pytest.mark.statistics)]
)
def test_pages_of_a_ledger_with_everything_in_it_are_shown(
    accounts: int, releases: int, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All accounts with their journals; the further pages of every third account, and every fortieth release."""
    file, time = VERSIONS[-1] / "sqlite.export.jsonl", Clock(monkeypatch)
    with file.open(encoding="utf-8") as opened:
        time.moment = datetime.fromisoformat(json.loads(opened.readline())["at"])
    installation = Installation(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}")
    installation.run("import", str(file))
    monkeypatch.setattr(expiry_keeper, "_LOOKS", 10**9)  # overdue reservations stay
    shown = 0
    with installation.client() as client:
        names = [account["name"] for account in client.get("/v1/accounts?limit=1000").json()["items"]]
        assert client.post("/sign-in", data={"key": STEWARD}).status_code == 200
        for place, name in enumerate(names):
            account = f"/accounts/{name}"
            pages = ["", "/journal"]
            if place % accounts == 0:
                pages += ["/releases", "/tags", "/description"]
            found = client.get(f"/v1{account}/releases?limit=1000").json()["items"]
            pages += [f"/releases/{one['id']}" for one in found[place % releases :: releases] if not _is_tabulated(one)]
            for page in pages:
                answer = client.get(account + page)
                assert answer.status_code == 200, (account + page, answer.text[:500])
            shown += len(pages)
    assert shown > least


def _is_tabulated(release: dict[str, Any]) -> bool:
    """The fixtures' tabulations were made below the interface, with layouts that lack most of their terms."""
    return any(drawn["mechanism"] == "x/2" for drawn in release["partitions"])
