"""Pictures: SVG and PNG of each resource, with texts for screen readers."""

import io
import math
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from service.api.charts.balance_figures import spending_picture
from service.api.openapi import examples
from tests.api.calls import (
    Answer,
    Client,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_SVG, _PNG = "image/svg+xml", "image/png"
_NAMES = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def spending(embedded: Client) -> Client:
    """Return accounts with spending and reservations."""
    open_account(embedded)
    open_account(embedded, "app", {"definition": "approximate", "epsilon": "8", "delta": "1e-6"})
    for account in ("people", "app"):
        release(embedded, pure("0.3", tags=["t"]), account)
        release(embedded, concentrated("0.1"), account)
        release(embedded, pure("0.2"), account, reserve_for="P1D")
    json_of(embedded.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 2}}))
    return embedded


def _get(client: Client, address: str, kind: str) -> Answer:
    answer = client.get(f"/v1/accounts/{address}", headers={"Accept": kind})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == kind
    return answer


def _drawn(answer: Answer) -> tuple[str, str, str]:
    """Return title, description and all texts of an SVG picture."""
    root = ElementTree.fromstring(answer.content)
    assert (root.tag, root.get("role")) == (f"{_NAMES}svg", "img")
    title, description = (root.findtext(f"{_NAMES}{name}") for name in ("title", "desc"))
    assert title is not None
    assert description is not None
    return title, description, " ".join(root.itertext())


def _pixels(answer: Answer) -> Any:
    assert answer.content.startswith(b"\x89PNG\r\n\x1a\n")
    return imread(io.BytesIO(answer.content), format="png")


def test_the_burn_down_says_what_is_left(spending: Client) -> None:
    for account, figure in (("people", "rho"), ("app", "epsilon")):
        balance = json_of(spending.get(f"/v1/accounts/{account}/balance"))
        history = json_of(spending.get(f"/v1/accounts/{account}/history"))
        pictures = [_get(spending, f"{account}/{resource}", _SVG) for resource in ("balance", "history")]
        assert pictures[0].content == pictures[1].content
        title, description, texts = _drawn(pictures[0])
        assert title == f"Budget of {account} over time"
        for label in ("left", "spent", "spent and held", "budget", "time (UTC)", f"{figure} (nats)"):
            assert label in texts
        found = re.search(r": (\S+) of (\S+) (\w+) is spent or held, (\S+) is left", description)
        assert found is not None, description
        spent, cap, name, left = found.groups()
        assert (float(cap), name) == (float(balance["budget"][figure]), figure)
        # Four digits, rounded to the safe side.
        assert 0 <= float(spent) - history["points"][-1]["counted"] <= 1e-3
        assert 0 <= balance["remaining"][figure] - float(left) <= 1e-3


def test_one_points_at_the_figures_of_each_entry(spending: Client) -> None:
    """The regions stand side by side over the whole panel, and say what the history answers."""
    drawn = _get(spending, "people/history", _SVG)
    assert "style" not in drawn.text  # a page's content security policy applies none
    points = json_of(spending.get("/v1/accounts/people/history"))["points"]
    regions = [
        (one, one.findtext(f"{_NAMES}title") or "")
        for one in ElementTree.fromstring(drawn.content).iter(f"{_NAMES}rect")
        if one.get("pointer-events") == "all"
    ]
    assert len(regions) == len(points) == 5
    for (_, text), point in zip(regions, points, strict=True):
        assert text.startswith(f"entry {point['seq']}, {point['kind'].replace('_', ' ')}")
        said = dict(line.split(": ") for line in text.splitlines()[1:])
        assert float(said["spent"]) == pytest.approx(point["spent"], abs=1e-3)
        assert float(said["left"]) == pytest.approx(point["remaining"], abs=1e-3)
    assert ["a release" in text for _, text in regions] == [False, True, True, True, False]
    ends = [(float(one.get("x", "")), float(one.get("x", "")) + float(one.get("width", ""))) for one, _ in regions]
    assert all(one[1] == pytest.approx(other[0], abs=0.02) for one, other in pairwise(ends))
    assert ends[-1][1] - ends[0][0] > 250


def test_what_an_account_allotted_is_not_called_spent(embedded: Client) -> None:
    open_account(embedded, "agency")
    open_account(embedded, "share", {"definition": "zcdp", "rho": "0.25"}, parent="agency", funding="allotted")
    description, texts = _drawn(_get(embedded, "agency/history", _SVG))[1:]
    assert "0.25 of 1.0 rho is spent or allotted or held" in description
    assert "spent or allotted: 0.25" in texts
    assert "has_allotted" not in json_of(embedded.get("/v1/accounts/agency/history"))


def test_a_single_entry_is_a_line(embedded: Client) -> None:
    """Not a point in the middle of years: the axis has the hour after it."""
    open_account(embedded)
    texts = _drawn(_get(embedded, "people/history", _SVG))[2]
    assert "2024" not in texts
    assert "spent and held" not in texts  # nothing is, so its line would lie on the other
    assert re.search(r"\d\d:\d\d", texts)


def test_entries_within_a_second_have_whole_times(spending: Client) -> None:
    assert re.search(r"\d\d:\d\d:\d\d(\.\d+)?", _drawn(_get(spending, "people/history", _SVG))[2])


@pytest.mark.parametrize("seconds", [0.5, 3, 50, 119, 3600, 7000, 90_000, 172_000, 5e6, 7e6, 1.2e7, 6e7, 2e8, 3e9])
def test_every_range_of_time_has_dates(seconds: float) -> None:
    """Of some ranges matplotlib warns, where it finds no distance for so few dates; a warning fails a test."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    figures = {"cap": 1.0, "spent": 0.0, "counted": 0.0, "remaining": 1.0, "kind": "committed"}
    points = [figures | {"seq": n, "at": (begin + timedelta(seconds=n * seconds)).isoformat()} for n in (0, 1)]
    history = {"account": "a", "budget": {"definition": "zcdp"}, "points": points}
    assert "time (UTC)" in bytes(spending_picture(history, _SVG).body).decode()


def test_a_picture_of_the_past_ends_there(spending: Client) -> None:
    then = _get(spending, "people/balance?as_of=2", _SVG)
    assert "After entry 2," in _drawn(then)[1]
    assert "After entry 5," in _drawn(_get(spending, "people/balance", _SVG))[1]


def test_an_account_that_was_just_opened_has_a_picture_of_each_kind(embedded: Client) -> None:
    open_account(embedded)
    for picture, kind in (("spending", _SVG), ("profile", _SVG), ("rdp", _SVG), ("spending", _PNG)):
        assert len(_get(embedded, f"people/balance?picture={picture}", kind).content) > 5000


def test_an_analysis_that_says_nothing_has_no_line(embedded: Client) -> None:
    open_account(embedded)
    release(embedded, concentrated("0.5"))
    _, _, texts = _drawn(_get(embedded, "people/balance?picture=profile", _SVG))
    assert "zCDP" in texts
    assert "pure" not in texts


def test_a_profile_and_a_renyi_curve_show_the_figures_of_the_balance(spending: Client) -> None:
    at = "&".join(f"delta={delta}" for delta in ("1e-9", "1e-6", "1e-3"))
    balance = json_of(spending.get(f"/v1/accounts/people/balance?{at}"))["spent"]
    title, description, texts = _drawn(_get(spending, f"people/balance?picture=profile&{at}", _SVG))
    assert "the spending of people" in title
    assert {"epsilon", "delta", "zCDP", "RDP", "tight"} <= set(texts.replace(",", "").split())
    said = re.findall(r"epsilon (\S+) at delta ([0-9.e-]+[0-9])", description)
    assert [float(delta) for _, delta in said] == [1e-9, 1e-6, 1e-3]
    for (epsilon, delta), best in zip(said, balance["best"], strict=True):
        assert float(delta) == best["delta"]
        assert 0 <= float(epsilon) - best["fixed"]["epsilon"] <= 1e-2
    title, description, _ = _drawn(_get(spending, "people/balance?picture=rdp", _SVG))
    orders = {row["alpha"]: row["epsilon"] for row in balance["rdp"]}
    for epsilon, order in re.findall(r"(\S+) at order (\d+(?:\.\d+)?)", description):
        assert 0 <= float(epsilon) - orders[float(order)] <= 1e-2


def test_a_tag_restricts_a_profile(spending: Client) -> None:
    whole, part = (_drawn(_get(spending, f"people/balance?picture=rdp{tag}", _SVG))[1] for tag in ("", "&tag=t"))
    first, second = (float(re.findall(r"(\S+) at order", text)[0]) for text in (whole, part))
    assert second < first


def test_compositions_have_the_same_pictures(shared_client: Client) -> None:
    for picture, label in (("profile", "delta"), ("rdp", "order")):
        address = f"/v1/compositions?picture={picture}"
        answer = shared_client.post(address, json=examples.COMPOSITION, headers={"Accept": _SVG})
        assert answer.headers["content-type"] == _SVG
        assert label in _drawn(answer)[2]
    cost = json_of(shared_client.post("/v1/compositions?picture=rdp", json=examples.COMPOSITION))
    said = _drawn(shared_client.post("/v1/compositions", json=examples.COMPOSITION, headers={"Accept": _SVG}))[1]
    assert f"at delta {cost['best'][0]['delta']}" in said
    alone = shared_client.post(
        "/v1/compositions", json=examples.COMPOSITION | {"deltas": ["1e-6"]}, headers={"Accept": _SVG}
    )
    assert "at delta 1e-12" in _drawn(alone)[1]  # one delta alone makes no curve
    wrong = shared_client.post("/v1/compositions?picture=bar", json=examples.COMPOSITION, headers={"Accept": _SVG})
    assert pointers_of(wrong) == ["/query/picture"]


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("/v1/compositions", examples.COMPOSITION),
        ("/v1/accuracy/curve", examples.CURVE),
        ("/v1/calibrations/comparison", examples.COMPARISON),
        ("/v1/empirical/loss", examples.LOSS),
        ("/v1/empirical/lower-bound", examples.LOWER_BOUND),
    ],
)
def test_every_picture_comes_as_png_too(shared_client: Client, address: str, body: dict[str, Any]) -> None:
    answer = shared_client.post(address, json=body, headers={"Accept": f"{_PNG}, application/json;q=0.9"})
    assert answer.headers["content-type"] == _PNG
    pixels = _pixels(answer)
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 800
    # The ground is light and opaque, so that it is readable on any page, and not empty.
    assert np.all(pixels[..., 3] == 1) if pixels.shape[-1] == 4 else True
    assert np.all(pixels[0, 0, :3] == 1)
    assert 0.01 < np.mean(pixels[..., :3].min(axis=-1) < 0.9) < 0.5
    assert b"Description" in answer.content


def test_the_same_figures_are_the_same_bytes(spending: Client) -> None:
    for kind, picture in ((_SVG, "spending"), (_PNG, "spending"), (_SVG, "rdp")):
        first, second = (_get(spending, f"people/balance?picture={picture}", kind).content for _ in range(2))
        assert first == second


def test_json_stays_what_is_answered_unless_a_picture_is_named(spending: Client) -> None:
    for accept in ("", "*/*", "application/json, image/png;q=0.5", "image/png;q=0, */*"):
        answer = spending.get("/v1/accounts/people/balance?picture=rdp", headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert math.isfinite(answer.json()["spent"]["zcdp"]["rho"])
    best = spending.get("/v1/accounts/people/history", headers={"Accept": "image/svg+xml;q=0.4, image/png;q=0.5"})
    assert best.headers["content-type"] == _PNG


def test_who_may_not_ask_gets_no_picture(spending: Client) -> None:
    limited = make_key(spending, "auditor", accounts=["app"]) | {"Accept": _PNG}
    for resource in ("balance", "history"):
        problem_of(spending.get(f"/v1/accounts/people/{resource}", headers=limited), "forbidden")
        assert spending.get(f"/v1/accounts/app/{resource}", headers=limited).headers["content-type"] == _PNG
    wrong = spending.get("/v1/accounts/people/balance?picture=pie", headers={"Accept": _PNG})
    assert pointers_of(wrong) == ["/query/picture"]


def test_powers_of_ten_are_plain_characters(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.5"))
    answer = client.get("/v1/accounts/people/balance?picture=profile", headers={"Accept": _SVG})
    assert re.search(r">10⁻\d?[⁰¹²³⁴⁵⁶⁷⁸⁹]+</text>", answer.text)
    assert "math" not in answer.text
    open_account(client, "capped", caps=[{"tag": "$\\frac$", "budget": {"definition": "zcdp", "rho": 1}}])
    drawn = client.get("/v1/accounts/capped/history", params={"tag": "$\\frac$"}, headers={"Accept": _SVG})
    assert "$\\frac$" in drawn.text
