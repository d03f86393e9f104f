"""Layouts of tabulations: their bytes, and their way between processes."""

import json
import pickle
import random
import re
from typing import Any

import pytest

from service.ledger.draws import tabulation_layout
from service.ledger.draws.tabulation_layout import Layout, inflated, read_layout, seal_layout

_NAMES = [f"G\u00f6\u00dfe \U0001f600 {number}" for number in range(2 * tabulation_layout._AT_ONCE + 1)]
_REFUSED = re.compile("expected a layout|Expecting|Extra data|Unterminated")  # also the parser's own messages
_LAYOUT = Layout("County", {"thresholds": [1, 2, 3]}, _NAMES, "01" * tabulation_layout._AT_ONCE + "4")


def test_a_layout_is_stored_as_compact_json() -> None:
    sealed = seal_layout(_LAYOUT)
    document = {"level": "County", "terms": _LAYOUT.terms, "groups": _NAMES, "details": _LAYOUT.details}
    written = inflated(sealed.packed)
    assert written == json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    assert tabulation_layout.digest_of(written) == sealed.digest
    assert read_layout(written) == _LAYOUT


def test_a_layout_is_pickled_with_its_names_in_parts() -> None:
    assert pickle.loads(pickle.dumps(_LAYOUT)) == _LAYOUT
    _, (_, _, parts, _) = _LAYOUT.__reduce__()
    sizes = [len(pickle.loads(part)) for part in parts]
    assert sizes == [tabulation_layout._AT_ONCE, tabulation_layout._AT_ONCE, 1]


def _written(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _document(groups: list[Any], **other: Any) -> dict[str, Any]:
    terms = {"margins": {"total_only": 0.1}}
    return {"level": "x", "terms": terms, "groups": groups, "details": "1" * len(groups)} | other


def test_names_are_read_in_parts_as_the_whole_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation_layout, "_PART", 0)  # each name ends a part
    draws = random.Random(7)
    pieces = ["a", ",", '"', "\\", '","', "]", "[", '"],"details":"', ',"groups":["', "\u00e9", "\U0001f600"]
    for _ in range(2000):
        names = ["".join(draws.choices(pieces, k=draws.randint(0, 4))) for _ in range(draws.randint(0, 9))]
        written = _written(_document(names))
        assert tabulation_layout._read_in_parts(written) == (_document(names) if names else None)
        assert read_layout(written) == Layout(**_document(names))


def test_a_layout_that_is_not_written_by_the_service_is_read_as_a_whole() -> None:
    whole = _document(["a", "b"])
    nested = {"margins": {"groups": ["c"], "details": "1"}}
    for written in (
        json.dumps(whole).encode(),  # with blanks
        _written(dict(reversed(whole.items()))),
        _written(_document(["a"], terms=nested | {"x": ["b"], "groups": ["d"]})),
        _written(whole)[:-1] + b',"groups":["c","d"]}',  # the last one counts
        _written(whole)[:-1] + b',"details":"22"}',
        b'{"groups":["c","d"],' + _written(whole)[1:],
        _written(_document([["a"], "b"])).replace(b'["a"]', b'"\\u0061"'),
        _written(_document(["a", "b"], level=',"groups":["')),
    ):
        assert read_layout(written) == Layout(**json.loads(written))
    for refused in (_written(_document(["a", 1])), _written(whole)[:-1], _written(whole) + b"x", b"[]", b"", b'"'):
        with pytest.raises(ValueError, match=_REFUSED):
            read_layout(refused)
