"""Draws, histograms and tabulations that take long to write: refused before anything is drawn or locked."""

import json
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.api.http.dependencies import Change
from service.api.schemas import population_groups
from service.ledger.storage import writing_time
from service.ledger.storage.database import Database
from tests.api import streams
from tests.api.calls import Answer, Client, open_account, problem_of, pure, release

_ARROW = {"Content-Type": streams.MEDIA_TYPE}
_NOISE = {"type": "geometric", "scale": "2", "cells": 1}
_LEVEL = {
    "type": "choice",
    "parts": [
        _NOISE | {"name": "L/total"},
        {"type": "sequence", "parts": [_NOISE | {"name": "L/step 1"}, _NOISE | {"name": "L/step 2"}]},
    ],
}
_TABLE = {"group": ["a", "b"], "total_only": [True, True], "total": pa.array([987, 654], pa.int64())}


def _ask(client: Client, what: str, of: str) -> Answer:
    at, given = "/v1/accounts/people", [987, 654]
    named, groups = {"name": "x", "mechanism": pure("0.1")}, [{"group": "a", "total_only": True, "total": 987}]
    query = {"name": "x", "mechanism": json.dumps(pure("0.1"))}
    match what:
        case "draw":
            return client.post(f"{at}/draws", json=named | {"counts": given})
        case "draw of a release":
            return client.post(f"{at}/releases/{of}/draws", json={"mechanism": "L/total", "counts": given})
        case "histogram":
            cells = {"dimensions": [{"name": "d", "values": ["a", "b"]}], "counts": given}
            return client.post(f"{at}/histograms", json=named | cells)
        case "tabulation":
            return client.post(f"{at}/releases/{of}/tabulations", json={"level": "L", "groups": groups})
        case "stream":
            return client.post(f"{at}/draws", params=query, content=streams.counts(given), headers=_ARROW)
        case "stream of a release":
            of_level = {"mechanism": "L/total"}
            body = streams.counts(given)
            return client.post(f"{at}/releases/{of}/draws", params=of_level, content=body, headers=_ARROW)
        case _:
            body = streams.stream(_TABLE)
            return client.post(f"{at}/releases/{of}/tabulations?level=L", content=body, headers=_ARROW)


@pytest.mark.parametrize(
    ("what", "pointer"),
    [
        ("draw", "/counts"),
        ("draw of a release", "/counts"),
        ("histogram", "/counts"),
        ("tabulation", "/groups"),
        ("stream", "/count"),
        ("stream of a release", "/count"),
        ("stream of groups", "/group"),
    ],
)
def test_refused_before_anything_is_drawn_or_locked(
    embedded: Client, monkeypatch: pytest.MonkeyPatch, what: str, pointer: str
) -> None:
    open_account(embedded, budget={"definition": "pure", "epsilon": 100})
    of = release(embedded, _LEVEL)["id"]
    with monkeypatch.context() as patch:
        patch.setattr(writing_time, "_MOST_MICROSECONDS", 0.001)
        patch.setattr(Database, "write", None)
        patch.setattr(Change, "keystream", None)
        refused: Any = problem_of(_ask(embedded, what, of), "validation")
    (fault,) = refused["errors"]
    assert fault["pointer"] == pointer
    assert "seconds of writing, got an estimated" in fault["detail"]
    assert "number of noisy counts" in fault["detail"]
    assert not {"987", "654"} & set(fault["detail"].replace(",", " ").split())
    assert _ask(embedded, what, of).status_code == 201


@pytest.mark.parametrize(("what", "pointer"), [("tabulation", "/groups"), ("stream of groups", "/group")])
@pytest.mark.parametrize(
    ("bound", "most", "expected"),
    [
        ("MOST_GROUPS", 0, "at most 0 groups, got"),
        ("MOST_NAME_BYTES", 0, "groups whose names take at most 0 bytes in UTF-8, got"),
    ],
)
def test_many_groups_and_long_names_are_refused_before_anything_is_drawn_or_locked(
    embedded: Client, monkeypatch: pytest.MonkeyPatch, what: str, pointer: str, bound: str, most: int, expected: str
) -> None:
    open_account(embedded, budget={"definition": "pure", "epsilon": 100})
    of = release(embedded, _LEVEL)["id"]
    with monkeypatch.context() as patch:
        patch.setattr(population_groups, bound, most)
        patch.setattr(Database, "write", None)
        patch.setattr(Change, "keystream", None)
        refused: Any = problem_of(_ask(embedded, what, of), "validation")
    (fault,) = refused["errors"]
    assert fault["pointer"] == pointer
    assert fault["detail"] == f"expected {expected} {2 if what == 'stream of groups' else 1}"
    assert _ask(embedded, what, of).status_code == 201
