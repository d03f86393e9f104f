"""Names of partitions: one way to write each, and what plans may declare of them."""

import sys
import unicodedata
from typing import Any

import pytest

from service.errors import InvalidInput
from service.privacy.accounting.pricing import price
from service.privacy.mechanisms import Discrete, Mechanism
from service.privacy.partitions import MOST_NAMES, MOST_PARTITIONS, Partitions, distinct, first_unclear
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.walking import Neighbouring, condense, mechanisms_of

SPELLINGS = [
    "36 ", " 36", "  36", "3 6 ", "\u00a036", "36\u2003", "36\u3000", "\uff13\uff16", "\uff136", "³⁶",
    "36\u200b", "\u200b36",
    "3\u200d6", "36\u2060", "\ufeff36", "3\u00ad6", "36\ufe0f", "36\U000e0100", "3\u034f6", "\u115f36", "\u316436",
    "36\u2800", "\u202e36", "36\u17b4", "36\u180b", "36\U000e0031", "\ud800", "36\u2028", "3\u0000", "36\t", "3  6",
    "Cafe\u0301", "\u212bland", "\u00bd", "\ufb01", "x" * 201, "",
]  # fmt: skip
CLEAR = [
    "36", "036", "Åland", "Ñ", "1/2", "Zürich Süd", "O'Brien", "北京市", "الرياض", "Ελλάδα", "Đà Nẵng", "ก", "New York",
    "36061/Celtic alone", "x" * 200, "ca", "CA",
]  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_name_with_something_unseen_or_in_another_form_is_not_clear(name: str) -> None:
    assert first_unclear([name]) == 0
    assert first_unclear([*CLEAR, name, "36"]) == len(CLEAR)


def test_names_that_people_use_are_clear() -> None:
    assert first_unclear(CLEAR) is None
    for name in CLEAR:
        assert first_unclear([name]) is None


@pytest.mark.parametrize("name", ["e\u0301", "36\u200b", "\uac00\u11a8"])  # decomposed, unseen, decomposed
def test_an_unclear_name_is_found_wherever_it_is_among_thousands(name: str) -> None:
    clear = [f"{letters} {number}" for number in range(900) for letters in ("q\u0301", "\U0001f600", "\uac01")]
    assert first_unclear(clear) is None
    for place in (0, 249, 250, 499, 500, len(clear)):
        assert first_unclear([*clear[:place], name, *clear[place:], name]) == place


def test_distinct_names_are_collected_a_few_at_a_time() -> None:
    taken: list[int] = []

    class Names(list[str]):
        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            taken.append(len(found))
            return found

    names = Names([f"{number % 700}" for number in range(1400)])
    assert distinct(names) == set(map(str, range(700)))
    assert sum(taken) == len(names)
    assert max(taken) == 250


def test_no_printable_character_without_a_glyph_is_taken() -> None:
    """Default_Ignorable_Code_Point of Unicode 15, but for what has no name or is of a class that is not printable."""
    ranges = (
        (0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0), (0xAD, 0xAD), (0x61C, 0x61C), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F),
        (0xFEFF, 0xFEFF), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )  # fmt: skip
    for low, high in ranges:
        for code in range(low, high + 1):
            assert first_unclear([f"36{chr(code)}"]) == 0, hex(code)
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or chr(code).isspace():
            assert first_unclear([f"36{chr(code)}"]) == 0, hex(code)


def _plan(partitions: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "geometric", "epsilon": "0.1", "partitions": partitions, **fields}


def _declared(plan: dict[str, Any]) -> list[Partitions | None]:
    return [mechanism.partitions for mechanism in mechanisms_of(read_plan(plan))]


def test_a_list_and_a_number_declare_partitions() -> None:
    assert _declared(_plan(["01", "02"])) == [Partitions(2, frozenset({"01", "02"}))]
    assert _declared(_plan(3143)) == [Partitions(3143)]
    assert _declared(_plan(MOST_PARTITIONS)) == [Partitions(MOST_PARTITIONS)]
    assert _declared(_plan(None)) == [None]


def test_the_nearest_node_above_declares_for_what_is_drawn() -> None:
    parts = [_plan(None, name="a"), _plan(2, name="b"), {"type": "laplace", "epsilon": "1"}]
    inner = {"type": "repeat", "count": 2, "partitions": 5, "part": _plan(None, name="c")}
    plan = {"type": "sequence", "partitions": ["x"], "parts": [*parts, inner]}
    assert _declared(plan) == [Partitions(1, frozenset("x")), Partitions(2), None, Partitions(5)]


@pytest.mark.parametrize(
    ("partitions", "below"),
    [
        ([], ""), (0, ""), (-1, ""), (MOST_PARTITIONS + 1, ""), (10**400, ""), (True, ""), ("01", ""), ({"01": 1}, ""),
        (["01", 2], ""),
        ([None], ""), (["01", "02", "01"], "/2"), (["01", "02 "], "/1"), (["\uff13\uff16"], "/0"), ([""], "/0"),
        ([str(number) for number in range(MOST_NAMES + 1)], ""),
    ],
)  # fmt: skip
def test_an_empty_declaration_is_refused_at_its_pointer(partitions: Any, below: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_plan({"type": "sequence", "parts": [_plan(1, name="a"), _plan(partitions, name="b")]}, "/plan")
    ((pointer, detail),) = refused.value.faults
    assert pointer == f"/plan/parts/1/partitions{below}"
    assert "02 " not in detail


@pytest.mark.parametrize(
    "mechanism",
    [
        {"type": "laplace", "epsilon": "1"},
        {"type": "gaussian", "rho": "1"},
        {"type": "osgt", "sigma_squared": "4", "m": "1"},
        {"type": "randomized_response", "epsilon": "1"},
        {"type": "declared", "epsilon": "1", "reference": "r"},
    ],
)
def test_mechanisms_that_are_never_drawn_declare_no_partitions(mechanism: dict[str, Any]) -> None:
    for plan in (mechanism | {"partitions": 3}, {"type": "repeat", "count": 2, "partitions": 3, "part": mechanism}):
        with pytest.raises(InvalidInput) as refused:
            read_plan(plan)
        assert [fault.pointer for fault in refused.value.faults] == ["/partitions"]


def test_no_price_depends_on_partitions() -> None:
    bare = {"type": "choice", "parts": [_plan(None, name="a"), {"type": "discrete_gaussian", "rho": "1"}]}
    declaring = {"type": "choice", "partitions": 7, "parts": [_plan(["x"], name="a"), bare["parts"][1]]}
    one, other = read_plan(bare), read_plan(declaring)
    assert one == other
    assert condense(one) == condense(other)
    assert hash(condense(one)) == hash(condense(other))
    assert price(one, Neighbouring.ADD_REMOVE, ()) == price(other, Neighbouring.ADD_REMOVE, ())
    assert write_plan(one) == write_plan(other)


def test_a_condensed_plan_keeps_no_partitions() -> None:
    leaf = condense(read_plan(_plan([str(number) for number in range(100)]))).mechanism
    assert isinstance(leaf, Mechanism)
    assert isinstance(leaf, Discrete)
    assert leaf.partitions is None
