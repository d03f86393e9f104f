"""JSON as RFC 8259 defines it."""

import pytest

from service.api.http.json_text import parse
from service.errors import Fault, InvalidInput

_TWICE, _NOT_FINITE = (
    "expected each name once in an object",
    "expected a finite number; JSON has no NaN and no infinities",
)
_DEEPER = "; the place is deeper than the pointer"


def _faults(body: str) -> tuple[Fault, ...]:
    with pytest.raises(InvalidInput) as refused:
        parse(body.encode())
    return refused.value.faults


def test_each_fault_has_its_place() -> None:
    body = '{"a/b": [1, {"c~": 1, "c~": 2}], "d": [NaN, -Infinity]}'
    assert _faults(body) == (
        Fault("/a~1b/1/c~0", _TWICE),
        Fault("/d/0", _NOT_FINITE),
        Fault("/d/1", _NOT_FINITE),
    )


def test_the_pointers_of_deep_faults_are_bounded() -> None:
    """Nine hundred long names, of which a pointer writes each character as two, are above ten faults."""
    name, deep = "~" * 200, ",".join(['{"a":1,"a":1}', "NaN"] * 5)
    found = _faults(f'{{"{name}":' * 900 + f"[{deep}]" + "}" * 900)
    above = ("/" + "~0" * 200) * 4
    assert found == tuple(Fault(above, detail + _DEEPER) for detail in [_TWICE, _NOT_FINITE] * 5)


def test_a_pointer_of_the_greatest_length_is_whole() -> None:
    for depth, whole in ((499, True), (500, False)):  # of four characters each, and five at the end
        (fault,) = _faults('{"bbb":' * depth + '{"aaaa":NaN}' + "}" * depth)
        assert fault.pointer == "/bbb" * depth + ("/aaaa" if whole else "")
        assert fault.detail.endswith(_DEEPER) is not whole
