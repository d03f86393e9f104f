"""The accuracy curve over HTTP: drawn values close to expected ones, and its picture."""

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.api.calls import Client, json_of, pointers_of

QUESTION = {"counts": [40] * 5000, "epsilons": ["0.1", 1]}


def test_what_is_drawn_is_about_what_is_expected(shared_client: Client) -> None:
    found = json_of(shared_client.post("/v1/accuracy/curve", json=QUESTION))
    assert found["protected"] is False
    for point, epsilon in zip(found["points"], (0.1, 1), strict=True):
        # 5,000 cells: the mean of |X| is known to about 2 per cent, and six standard errors are allowed.
        q = math.exp(-epsilon)
        lost = 2 * q / (1 - q * q) / 80
        assert 1 - point["expected"]["l1"] == pytest.approx(lost, rel=1e-9)
        assert 1 - point["l1"] == pytest.approx(lost, rel=0.12)
        assert 1 - point["expected"]["l2"] == pytest.approx(math.sqrt(2 * q) / (1 - q) / math.sqrt(2) / 40, rel=1e-9)
        assert 1 - point["l2"] == pytest.approx(1 - point["expected"]["l2"], rel=0.15)
        assert point["epsilon"] == epsilon


def test_a_drawn_value_is_cut_off_and_an_expected_one_is_not(shared_client: Client) -> None:
    (point,) = json_of(shared_client.post("/v1/accuracy/curve", json={"counts": [1], "epsilons": ["0.000001"]}))[
        "points"
    ]
    assert point["l1"] >= 0
    assert point["expected"]["l1"] < -1000


def test_the_picture_is_asked_for_by_its_media_type(shared_client: Client) -> None:
    answer = shared_client.post("/v1/accuracy/curve", json=QUESTION, headers={"Accept": "image/svg+xml"})
    assert answer.headers["content-type"] == "image/svg+xml"
    picture = ElementTree.fromstring(answer.text)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"L1", "L2", "drawn", "expected"} <= texts
    assert picture.find("{http://www.w3.org/2000/svg}desc") is not None
    both = shared_client.post(
        "/v1/accuracy/curve", json=QUESTION, headers={"Accept": "image/svg+xml;q=0.5, application/json"}
    )
    assert both.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"counts": []}, ["/counts"]),
        ({"counts": [0, 0]}, ["/counts"]),
        ({"counts": [-1]}, ["/counts/0"]),
        ({"counts": [1.5]}, ["/counts/0"]),
        ({"counts": [2**53 + 1]}, ["/counts/0"]),
        ({"counts": [1] * 2_500_001}, ["/counts"]),
        ({"epsilons": []}, ["/epsilons"]),
        ({"epsilons": [1] * 51}, ["/epsilons"]),
        ({"epsilons": [1, 0]}, ["/epsilons/1"]),
        ({"epsilons": ["1e-300"]}, ["/epsilons/0"]),
        ({"epsilons": ["1e-9"], "sensitivity": 2**53}, ["/epsilons/0"]),
        ({"mechanism": "gaussian"}, ["/mechanism"]),
        ({"seed": 1}, ["/seed"]),
    ],
)
def test_meaningless_questions_are_refused(shared_client: Client, fields: dict[str, Any], pointers: list[str]) -> None:
    answer = shared_client.post("/v1/accuracy/curve", json=QUESTION | fields)
    assert pointers_of(answer) == pointers
