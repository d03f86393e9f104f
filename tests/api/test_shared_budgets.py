"""Parent accounts: a key that does not reach them learns nothing of their remaining budget."""

import json
import re
from typing import Any

import pytest

from tests.api.calls import Answer, Client, charge, json_of, make_key, open_account, problem_of, pure
from tests.api.streams import MEDIA_TYPE, counts

_NOT_SHOWN = {"account": None, "definition": None, "cap": None, "requested": None, "remaining": None}
# the remaining budget above, and its definition
_SECRETS = ("0.6875", "0.68", "11/16", "agency", "programme", "rdp", "pure")


@pytest.fixture
def limited(client: Client) -> dict[str, str]:
    """Return the headers of a key for the last account of three; 0.6875 is left of the first one's epsilon."""
    open_account(client, "agency", {"definition": "pure", "epsilon": 1})
    open_account(client, "programme", {"definition": "rdp", "alpha": 7, "epsilon": 50}, parent="agency")
    open_account(client, "product", {"definition": "zcdp", "rho": 2}, parent="programme")
    json_of(charge(client, pure("0.3125"), "agency"), 201)
    return make_key(client, "steward", "limited", accounts=["product"])


def _says_nothing(answer: Answer) -> Any:
    problem = problem_of(answer, "budget_exceeded")
    assert problem["failures"] == [_NOT_SHOWN]
    assert problem.items() >= _NOT_SHOWN.items()
    assert problem["noise_multiplier_that_fits"] is None
    assert problem["detail"] == "an account above this one lacks room for the release"
    assert not [secret for secret in _SECRETS if secret in answer.text]
    return problem


def test_no_way_to_charge_tells_what_is_left_above(client: Client, limited: dict[str, str]) -> None:
    path = "/v1/accounts/product"
    body = {"name": "a release", "plan": pure(1)}
    for answer in (
        client.post(f"{path}/releases", json=body, headers=limited),
        client.post(f"{path}/releases?dry_run=true", json=body, headers=limited),
        client.post(f"{path}/releases", json=body | {"reserve_for": "P1D"}, headers=limited),
        client.post(f"{path}/releases/batch", json={"releases": [body | {"plan": pure("0.5")}] * 2}, headers=limited),
        client.post(f"{path}/draws", json={"name": "n", "mechanism": pure(1), "counts": [1]}, headers=limited),
    ):
        _says_nothing(answer)
    asked = {"name": "n", "mechanism": json.dumps(pure(1))}
    as_stream = limited | {"Content-Type": MEDIA_TYPE}
    _says_nothing(client.post(f"{path}/draws", params=asked, content=counts([1]), headers=as_stream))


def test_the_journal_of_an_account_says_nothing_of_those_above(client: Client, limited: dict[str, str]) -> None:
    _says_nothing(client.post("/v1/accounts/product/releases", json={"name": "n", "plan": pure(1)}, headers=limited))
    problem_of(charge(client, pure(1), "product"), "budget_exceeded")  # by a key that may read all of them
    for asked in ("journal", "balance", "history", "head", "releases", "verify", "", "balance?as_of=2"):
        read = client.get(f"/v1/accounts/product/{asked}".rstrip("/"), headers=limited)
        said = json.dumps(json_of(read)).replace('"parent": "programme"', "")  # the answer may name the parent
        said = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "", said)  # a fraction of a second can be any number
        assert not [secret for secret in ("0.6875", "11/16", "agency", "0.3125") if secret in said], asked
    entries = [item["entry"] for item in json_of(client.get("/v1/accounts/product/journal", headers=limited))["items"]]
    refusals = [entry["content"] for entry in entries if entry["kind"] == "refused"]
    assert len(refusals) == 2
    for content in refusals:
        assert {name: content[name] for name in _NOT_SHOWN} == _NOT_SHOWN


def test_what_is_left_of_its_own_account_a_key_is_told(client: Client, limited: dict[str, str]) -> None:
    body = {"name": "a release", "plan": pure(3)}
    refused = problem_of(client.post("/v1/accounts/product/releases", json=body, headers=limited), "budget_exceeded")
    own, above = refused["failures"]
    assert (own["account"], own["cap"], own["remaining"]) == ("product", "rho", 2)
    assert above == _NOT_SHOWN
    assert refused["account"] == "product"
    assert refused["noise_multiplier_that_fits"] is None  # it would be that of the account above
    alone = client.patch("/v1/accounts/product", json={"budget": {"definition": "zcdp", "rho": "0.1"}}, headers=limited)
    json_of(alone)
    fits = {"name": "a release", "plan": pure("0.6")}
    refused = problem_of(client.post("/v1/accounts/product/releases", json=fits, headers=limited), "budget_exceeded")
    assert [failure["account"] for failure in refused["failures"]] == ["product"]
    assert refused["noise_multiplier_that_fits"] > 1


def test_a_key_that_reaches_all_of_them_is_told_all(client: Client, limited: dict[str, str]) -> None:
    assert limited
    refused = problem_of(charge(client, pure(1), "product"), "budget_exceeded")
    assert [(one["account"], one["requested"], one["remaining"]) for one in refused["failures"]] == [
        ("agency", 1, 0.6875)
    ]
    assert refused["noise_multiplier_that_fits"] == pytest.approx(1 / 0.6875, rel=1e-5)
    reaches = make_key(client, "pipeline", "two", accounts=["product", "programme"])
    _says_nothing(client.post("/v1/accounts/product/releases", json={"name": "n", "plan": pure(1)}, headers=reaches))
    both = make_key(client, "pipeline", "both", accounts=["product", "agency"])
    answer = client.post("/v1/accounts/product/releases", json={"name": "n", "plan": pure(1)}, headers=both)
    assert problem_of(answer, "budget_exceeded")["account"] == "agency"


def test_a_closed_account_above_is_not_named(client: Client, limited: dict[str, str]) -> None:
    json_of(client.patch("/v1/accounts/agency", json={"state": "closed"}))
    body = {"name": "n", "plan": pure("0.1")}
    refused = client.post("/v1/accounts/product/releases", json=body, headers=limited)
    problem = problem_of(refused, "account_closed")
    assert (problem["account"], problem["detail"]) == (None, "an account above this one is closed")
    assert problem_of(charge(client, pure("0.1"), "product"), "account_closed")["account"] == "agency"
