"""A plan as a tree for display."""

import html
import re

from service.pages.plan_tree import MOST_NODES, MOST_PRICED, Node, tree_of
from tests.api.calls import Client, json_of, pure, release

_TABLES = {"name": "tables", "unit": "person", "neighbouring": "add_remove"}


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node.parts))


def _unseen(node: Node) -> int:
    return node.unseen + sum(map(_unseen, node.parts))


def test_a_small_plan_is_shown_whole() -> None:
    inner = {"type": "repeat", "count": 3, "part": {"type": "gaussian", "rho": "123456789/1234567891", "name": "a"}}
    root = tree_of({"type": "choice", "parts": [inner, pure("0.5", tags=["t"])]})
    assert (_count(root), _unseen(root)) == (4, 0)
    assert root.title == "Choice: one of the parts; the largest loss counts"
    repeated, mechanism = root.parts
    assert repeated.title == "Repeated 3 times"
    assert (repeated.parts[0].name, repeated.parts[0].parameters) == ("a", [("rho", "≈ 0.1")])
    assert (mechanism.title, mechanism.tags, mechanism.parameters) == ("geometric", ["t"], [("epsilon", "0.5")])


def test_a_noise_table_is_listed_by_its_values() -> None:
    masses = [{"value": -1, "mass": "1/4"}, {"value": 0, "mass": "3/4"}]
    one = tree_of({"type": "noise_table", "masses": masses, "sensitivity": 1})
    assert (one.title, one.parameters) == ("noise table", [("masses", "-1: 1/4, 0: 3/4"), ("sensitivity", "1")])
    rows = tree_of({"type": "noise_table", "rows": [{"masses": masses[1:]}, {"masses": masses}]})
    assert rows.parameters == [("rows", "for 0 (0: 3/4); for 1 (-1: 1/4, 0: 3/4)")]
    long = [{"value": value, "mass": "1/512"} for value in range(512)]
    assert len(dict(tree_of({"type": "noise_table", "masses": long}).parameters)["masses"]) == 300


def test_a_threshold_is_said_in_words() -> None:
    root = tree_of(pure("0.5", threshold={"at_least": 19}))
    assert root.parameters == [("epsilon", "0.5"), ("suppressed below", "19")]


def test_a_large_plan_is_cut_and_says_by_how_much() -> None:
    wide = {"type": "sequence", "parts": [pure("0.1")] * 1000}
    root = tree_of({"type": "sequence", "parts": [wide, wide, pure("1")]})
    assert _count(root) == MOST_NODES
    assert _unseen(root) == 1000 - (MOST_NODES - 2) + 2


def test_many_and_long_texts_are_cut() -> None:
    """A plan may have 25,000 tags of 200 characters, and a page would write out each."""
    tags = [f"{number}" + "<" * 190 for number in range(64)]
    node = tree_of(pure("0.1", tags=tags, reference="x" * 4000) | {"partitions": ["p" * 200] * 13})
    assert node.tags == [f"{number}" + "<" * 58 + "…" for number in range(8)] + ["and 56 more"]
    assert dict(node.parameters)["reference"] == "x" * 299 + "…"
    assert node.partitions == "partitions " + ", ".join(["p" * 59 + "…"] * 12) + " and 1 more"
    assert tree_of(pure("0.1", tags=["t" * 60] * 8)).tags == ["t" * 60] * 8


def test_parts_with_long_curves_are_not_all_priced(steward: Client, api: Client) -> None:
    """A declared curve may have a thousand points, and a plan three hundred of them."""
    curve = [{"alpha": 2 + number, "epsilon": "1e-9"} for number in range(1000)]
    part = {"type": "declared", "reference": "a proof", "rdp": curve}
    made = release(api, {"type": "sequence", "parts": [part] * 105}, "households")
    text = _words(steward.get(f"/accounts/households/releases/{made['id']}").text)
    assert "The plan is large" in text


def test_each_part_says_what_it_costs_by_itself(steward: Client, api: Client) -> None:
    plan = {"type": "parallel", "max_degree": 2, "parts": [pure("0.01", name=f"p{n}") for n in range(3)]}
    made = release(api, {"type": "repeat", "count": 2, "part": plan}, "households")
    text = _words(steward.get(f"/accounts/households/releases/{made['id']}").text)
    assert "Repeated 2 times ε = 0.04, ρ =" in text
    assert "Parallel: each record is in at most 2 of the parts ε = 0.02, ρ =" in text
    assert text.count("epsilon 0.01 \N{EN DASH} ε = 0.01, ρ = 5e-5") == 3


def test_a_loss_beside_a_delta_is_not_stated_without_it(steward: Client, api: Client) -> None:
    budget = {"definition": "approximate", "epsilon": "20", "delta": "0.3", "declared_delta": "0.25"}
    json_of(api.post("/v1/accounts", json=_TABLES | {"budget": budget}), 201)
    masses = [{"value": value, "mass": mass} for value, mass in ((-1, "1/8"), (0, "3/4"), (1, "1/8"))]
    made = release(api, {"type": "noise_table", "masses": masses}, "tables", delta="0.2")
    text = _words(steward.get(f"/accounts/tables/releases/{made['id']}").text)
    assert re.search(r"ε = 1.792, ρ = [0-9.]+ beside δ = 0.125", text)
    assert "with a chance of at most 1 in 5, tells everything" in text


def test_only_so_many_unlike_parts_are_priced(steward: Client, api: Client) -> None:
    parts = [pure(f"{n + 1}e-9", name=f"part {n}") for n in range(MOST_PRICED)]
    made = release(api, {"type": "sequence", "parts": parts}, "households")
    text = _words(steward.get(f"/accounts/households/releases/{made['id']}").text)
    assert f"at most {MOST_PRICED} distinct parts are priced" in text
    assert len(re.findall(r"part \d+ geometric epsilon \S+ \S ε = ", text)) == MOST_PRICED - 1  # and the whole


def test_large_parts_are_not_priced_again_and_again(steward: Client, api: Client) -> None:
    """Otherwise each part around the leaves would be priced with all of them."""
    plan = {"type": "sequence", "parts": [pure("1e-12")] * 2000}
    for _ in range(9):
        plan = {"type": "sequence", "parts": [plan]}
    made = release(api, plan, "households")
    text = _words(steward.get(f"/accounts/households/releases/{made['id']}").text)
    assert "no part that is itself large" in text
    assert text.count("Sequence: losses add up ε") == 4  # of two thousand nodes each
    assert text.count("geometric epsilon 1e-12 \N{EN DASH} ε") > 300


def test_names_are_text_and_never_markup(steward: Client, api: Client) -> None:
    nasty = "<script>alert(1)</script>'\"&"
    made = release(api, pure("1e-9", name=nasty, tags=[nasty]), "households", name=nasty, tags=[nasty])
    drawn = {"mechanism": nasty, "counts": [1], "partition": nasty}
    json_of(api.post(f"/v1/accounts/households/releases/{made['id']}/draws", json=drawn), 201)
    for path in (f"releases/{made['id']}", "releases", "tags", "journal", ""):
        page = steward.get(f"/accounts/households/{path}".rstrip("/")).text
        assert "<script>" not in page
    page = steward.get(f"/accounts/households/releases/{made['id']}").text
    assert html.unescape(page).count(nasty) >= 5  # as heading, title, mechanism, tag, draw


def test_a_reference_is_no_number(steward: Client, api: Client) -> None:
    for reference in ("1234567890/0", "1234567890/12345"):
        plan = {"type": "declared", "rho": "0.001", "reference": reference}
        assert dict(tree_of(plan).parameters)["reference"] == reference
        made = release(api, {"type": "declared", "epsilon": "0.001", "reference": reference}, "households")
        assert reference in steward.get(f"/accounts/households/releases/{made['id']}").text
    assert dict(tree_of(pure("1234567890/0")).parameters) == {"epsilon": "1234567890/0"}


def _words(page: str) -> str:
    """Return the text of a page, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).replace("\xa0", " ").split()).replace(" ,", ",")


def test_mechanisms_side_by_side_are_a_table(api: Client, steward: Client) -> None:
    listed = json_of(api.get("/v1/accounts/persons/releases"))["items"]
    (found,) = (one["id"] for one in listed if one["name"] == "redistricting")
    shown = steward.get(f"/accounts/persons/releases/{found}").text
    assert shown.count('aria-label="Mechanisms"') == 1  # of the parallel part; other parts have parts of their own
    row = " ".join(re.sub(r"<[^>]*>", " ", shown[shown.index("county/age") :]).split())
    assert row.startswith("county/age geometric cells &nbsp;2 , epsilon &nbsp;0.02 age ε = 0.04, ρ = 0.0004 ±150")
