"""The strip of an account's periods: what the worst window of each has spent, held and left, page by page."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from service.errors import InvalidInput
from service.pages.shell.api_client import Refused, Visit, address, get
from service.pages.shell.figures import part_of
from service.pages.shell.period_texts import window_text
from service.privacy.periods import Calendar, read_period, write_period
from service.rounding import exact

SHOWN = 60  # periods of a strip, whose bars can still be told apart on a small screen
_LOW = Fraction(1, 4)  # of the cap: up to this part, the rest is drawn and described as little
_HEIGHT = 100
_LONGEST = 12  # characters of the number of a wave
_WIDE, _NARROW, _MANY = 24, 16, 24  # the widths of a bar in pixels, and the number of bars from which they are narrow


class Bar(NamedTuple):
    """A period of the strip.

    Attributes:
        item: the period as ``/v1`` answers it.
        window: its worst window, in words.
        figures: what is spent, what is counted with what is held (None: infinite), and what is left.
        spent: the height of what is spent, of 100; at least 1 if anything is spent.
        held: the height of what is held, on top of it.
        above_spent: the height of what is not spent.
        top: the height of what is left, above both.
        level: how much is left: enough, little or nothing.
    """

    item: Mapping[str, Any]
    window: str
    figures: tuple[Fraction | None, Fraction | None, Fraction]
    spent: str
    held: str
    above_spent: str
    top: str
    level: str


class Strip(NamedTuple):
    """Periods to draw, with links to earlier and later ones.

    Attributes:
        bars: in the order of the periods.
        bar_width: in pixels, if the screen is wide enough.
        figure: the name of the figure that the budget caps.
        common: the releases to all periods, as ``/v1`` answers them.
        read: the first and the last period that releases read; None: there are none.
        earlier: the first period of the page before; None: there is none.
        later: the first period of the next page; None: there is none.
        typed: what was typed into the field of the first period.
        fault: what is wrong with it.
    """

    bars: list[Bar]
    bar_width: int
    figure: str
    common: Mapping[str, Any]
    read: Mapping[str, Any] | None
    earlier: str | None
    later: str | None
    typed: str
    fault: str | None

    @property
    def labels(self) -> list[str]:
        """The periods named under the strip: the first, the last, and if there are many, the middle one."""
        periods = [str(bar.item["period"]) for bar in self.bars]
        places = {0, len(periods) // 2, len(periods) - 1} if len(periods) > _MANY // 2 else {0, len(periods) - 1}
        return [periods[place] for place in sorted(places) if periods]


async def read_strip(visit: Visit, account: Mapping[str, Any]) -> Strip:
    """Return the strip from the period that the query names; by default, the last periods that releases read."""
    path = f"{address('accounts', account['name'])}/periods"
    calendar = Calendar(account["periods"]["calendar"])
    typed = visit.request.query_params.get("from", "").strip()
    whole = await get(visit, path, {"limit": 1})
    read, fault = whole["read"], None
    first, last = (0, -1) if read is None else (_number(calendar, read["from"]), _number(calendar, read["to"]))
    begins = max(first, last - SHOWN + 1)
    items = []
    try:
        if typed:
            begins = _number(calendar, typed)
            items = await _items(visit, path, calendar, begins, begins + SHOWN - 1)
    except (InvalidInput, Refused) as wrong:
        fault = _fault(wrong)
        begins = max(first, last - SHOWN + 1)
    if (fault or not typed) and read is not None:
        items = await _items(visit, path, calendar, begins, last)
    return Strip(
        bars=[_bar(account["budget"], item) for item in items],
        bar_width=_WIDE if len(items) <= _MANY else _NARROW,
        figure=_figure(account["budget"]),
        common=whole["common"],
        read=read,
        earlier=str(write_period(calendar, max(first, begins - SHOWN))) if read and begins > first else None,
        later=str(write_period(calendar, max(first, begins + SHOWN))) if read and begins + SHOWN <= last else None,
        typed=typed,
        fault=fault,
    )


def _number(calendar: Calendar, stated: str | int) -> int:
    """Return the number of a period that an answer states or a user typed.

    Raises:
        InvalidInput: it is not a period of the calendar.
    """
    wave = calendar is Calendar.INDEX and isinstance(stated, str) and stated.removeprefix("-").isdecimal()
    return read_period(calendar, int(stated[:_LONGEST]) if wave and isinstance(stated, str) else stated, "/query/from")


def _fault(wrong: InvalidInput | Refused) -> str:
    """Return the reason why the first period was refused.

    Raises:
        Refused: the problem has another cause.
    """
    if isinstance(wrong, InvalidInput):
        return wrong.faults[0].detail
    if not wrong.faults:
        raise wrong
    return next(iter(wrong.faults.values()))


async def _items(visit: Visit, path: str, calendar: Calendar, first: int, last: int) -> list[Any]:
    query = {"from": str(write_period(calendar, first)), "to": str(write_period(calendar, last)), "limit": str(SHOWN)}
    items: list[Any] = []
    while True:
        found = await get(visit, path, query)
        items += found["items"]
        if found["next_cursor"] is None:
            return items
        query |= {"cursor": found["next_cursor"]}


def _figure(budget: Mapping[str, Any]) -> str:
    return "rho" if budget["definition"] == "zcdp" else "epsilon"


def _bar(budget: Mapping[str, Any], item: Mapping[str, Any]) -> Bar:
    name = _figure(budget)
    cap = Fraction(budget[name])
    lost, used = part_of(item["spent"], item["spent_exact"]), part_of(item["counted"], item["counted_exact"])
    left = exact(item["remaining"][name])
    if used is not None and item["counted_exact"] is not None:
        left = max(cap - used, Fraction(0))
    spent, counted = _height(lost, cap), _height(used, cap)
    level = "nothing" if not left else "little" if left <= _LOW * cap else "enough"
    return Bar(
        item,
        window_text(item["window"]),
        (lost, used, left),
        spent=f"{spent:g}",
        held=f"{max(0, counted - spent):g}",
        above_spent=f"{_HEIGHT - spent:g}",
        top=f"{_HEIGHT - max(spent, counted):g}",
        level=level,
    )


def _height(figure: Fraction | None, cap: Fraction) -> float:
    """Return the height of a figure, at least 1 if it is above 0, and the full height if it is infinite."""
    if figure is None or (figure and not cap):
        return _HEIGHT
    return min(_HEIGHT, max(1.0, round(float(_HEIGHT * figure / cap), 2))) if figure else 0
