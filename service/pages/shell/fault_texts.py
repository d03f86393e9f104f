"""Faults that ``/v1`` finds, in words for people who know neither its notation nor its limits in bits."""

import re
from collections.abc import Iterable

from service.api.schemas.granularity import EXPECTED_COUNT
from service.pages.shell.typed_numbers import has_points_for_thousands, may_be_thousand
from service.privacy.numerics.numbers import EXPECTED_NUMBER
from service.privacy.partitions import EXPECTED_NAME, LONGEST

_NAME = f"expected 1 to {LONGEST} visible characters, without a blank at either end or two in a row"
_PLAIN = tuple(
    (re.compile(detail), text)
    for detail, text in (
        (r"(?<=a confidence above 0 and below 1)$", ", such as 0.9 or 90 %"),
        (r"\bline (?=\d)", "row "),  # as a spreadsheet numbers it
        (re.escape(EXPECTED_COUNT), "expected a whole number, and 1000 without a mark between its digits"),
        (
            re.escape(EXPECTED_NUMBER),
            "expected a number such as 0.5, 0,5 or 1/3, and thousands without a mark, such as 12000",
        ),
        (re.escape(EXPECTED_NAME), _NAME),
        (r"(?<=expected )an ISO 8601 duration of .*", "a time such as 24 hours, 7 days or 2 weeks"),
        (r"expected UTF-8$", "expected UTF-8: save it from the spreadsheet as “CSV UTF-8”"),
        (r"(?<=separated by commas)(?=,)", " or semicolons"),
        (r"printable text \(NFKC\)", "printable text"),
        (r", quoted by RFC 4180", ", with closed quotation marks"),
        (
            r"and not in SERVICE_WEBHOOK_NETWORKS",
            "and the operator has not allowed its network (SERVICE_WEBHOOK_NETWORKS)",
        ),
        (r"expected text with a length of at least 1", "expected a text"),
        (r"expected text with a length of at most (\d+)", r"expected at most \1 characters"),
    )
)


_OF_BLANK = re.compile(r"^expected (a (?:number|text)\b[^,]*).*")


def plain(detail: str, typed: str | None = None) -> str:
    """Return the detail of a fault in plain words.

    Args:
        typed: the text of the field; where it is empty, the detail says what is needed.
    """
    bare = (typed or "").strip()
    if bare != typed and (may_be_thousand(bare) or has_points_for_thousands(bare)):
        whole, *groups = bare.split(".")
        return f"{bare}: write {f'{whole} or ' if len(groups) == 1 else ''}{whole}{''.join(groups)}"
    if bare.endswith("%") and detail == EXPECTED_NUMBER:
        return "expected a number, and no percentage"
    for expected, text in _PLAIN:
        detail = expected.sub(text, detail)
    return _OF_BLANK.sub(r"needed: \1", detail).removesuffix(": a text") if typed == "" else detail


def joined(faults: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the faults of each field, or pointer, in one text, equal ones once."""
    found: dict[str, dict[str, None]] = {}
    for name, detail in faults:
        found.setdefault(name, {})[detail] = None
    return {name: "; ".join(details) for name, details in found.items()}
