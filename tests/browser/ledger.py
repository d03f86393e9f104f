"""The ledger that the pages show in the tests: a few accounts with releases in every state."""

from tests.api.calls import Client, concentrated, json_of, open_account, pure, release

REDISTRICTING = {
    "type": "sequence",
    "parts": [
        {"type": "discrete_gaussian", "name": "state/total", "sigma_squared": "9.375", "tags": ["total"]},
        {
            "type": "parallel",
            "max_degree": 2,
            "parts": [
                {"type": "geometric", "name": "county/total", "epsilon": "0.05", "tags": ["total"]},
                {"type": "geometric", "name": "county/age", "epsilon": "0.02", "cells": 2, "tags": ["age"]},
            ],
        },
        {"type": "repeat", "count": 3, "part": concentrated("0.001", name="tract", tags=["age"])},
    ],
}


def fill(client: Client) -> None:
    """Open the accounts and register the releases."""
    open_account(client, "nation", {"definition": "zcdp", "rho": "2"}, description="All persons in the country.")
    open_account(client, "persons", {"definition": "zcdp", "rho": "0.5"}, parent="nation", approval_above="0.2")
    open_account(client, "households", {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}, unit="household")
    open_account(client, "empty", {"definition": "pure", "epsilon": "1"})
    release(client, REDISTRICTING, "persons", name="redistricting", tags=["pl94"])
    release(client, concentrated("0.01"), "persons", name="held", reserve_for="P30D")
    release(client, concentrated("0.3"), "nation", name="large")
    release(client, pure("0.5"), "households", name="households")
    json_of(client.post("/v1/accounts/persons/draws", json=DRAW), 201)


DRAW = {
    "name": "county totals",
    "mechanism": pure("0.01", name="totals", tags=["total"]),
    "counts": [54571, 182265, 27457, 22915],
}
