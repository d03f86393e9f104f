"""No regular expression of the service takes work that grows faster than a text, as backtracking can.

The steps of a backtracking matcher are counted, on texts that repeat each part of a pattern and then spoil the match.
Nothing is timed. Patterns of pydantic's models are matched by an engine without backtracking.
"""

import importlib
import pkgutil
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from re import _constants as op, _parser  # the parsed form of patterns
from typing import Any

import pytest

import service

_SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in Path(service.__file__).parent.rglob("*.py"))
_ANYWHERE = "search|split|sub|subn|findall|finditer"
_SHORT, _LONG = 40, 80  # repetitions
_MOST = 20_000  # steps: of a linear pattern on a long text, fewer than a tenth
_FREE = 30  # repetitions from which a part may be as long as a client likes
_SPOILERS = ("", "\0", "!")
_OWN_TEXTS = {
    "service.api.charts.pictures._SHEET",  # a picture that matplotlib wrote, with one sheet of styles
    "service.pages.shell.markdown._BOUND",  # the guide
}
_USUAL = 'a0 .,;"\\/-\n<e'


class _TooMany(Exception):
    pass


class _Matcher:
    """A matcher that tries as Python's does, and counts the parts that it tries."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        self.flags = pattern.flags & (re.IGNORECASE | re.DOTALL | re.MULTILINE)
        self.items = list(_parser.parse(source, self.flags))
        self.source = source

    def steps(self, text: str, how: str) -> int:
        """Return how many parts of the pattern are tried: at the beginning, for the whole text, or anywhere."""
        self.text, self.count = text, 0
        ends: Callable[[int], bool] = (lambda at: at == len(text)) if how == "fullmatch" else (lambda _: True)
        start = 0
        while start <= len(text):
            last = [start]

            def found(at: int, last: list[int] = last) -> bool:
                last[0] = at
                return ends(at)

            matched = self._try(self.items, 0, start, found)
            if how != "anywhere":
                break
            start = max(start + 1, last[0]) if matched else start + 1
        return self.count

    def _try(self, items: Sequence[Any], number: int, at: int, then: Callable[[int], bool]) -> bool:
        self.count += 1
        if self.count > _MOST:
            raise _TooMany
        if number == len(items):
            return then(at)
        kind, given = items[number]

        def rest(place: int) -> bool:
            return self._try(items, number + 1, place, then)

        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return at < len(self.text) and self._is(kind, given, self.text[at]) and rest(at + 1)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(given, 0, at, rest, lazy=kind is op.MIN_REPEAT)
        if kind is op.BRANCH:
            return any(self._try(list(one), 0, at, rest) for one in given[1])
        if kind is op.SUBPATTERN:
            return self._try(list(given[3]), 0, at, rest)
        if kind is op.AT:
            return self._is_at(given, at) and rest(at)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, inner = given
            begin = at if direction > 0 else at - inner.getwidth()[1]
            holds = begin >= 0 and self._try(list(inner), 0, begin, lambda _: True)
            return holds is (kind is op.ASSERT) and rest(at)
        raise NotImplementedError(kind)

    def _repeat(self, given: Any, done: int, at: int, then: Callable[[int], bool], *, lazy: bool) -> bool:
        least, most, inner = given

        def more() -> bool:
            return done < most and self._try(
                list(inner), 0, at, lambda to: to > at and self._repeat(given, done + 1, to, then, lazy=lazy)
            )

        enough = done >= least
        return (enough and then(at)) or more() if lazy else more() or (enough and then(at))

    def _is_at(self, place: Any, at: int) -> bool:
        if place in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return at == 0
        if place in (op.AT_END, op.AT_END_STRING):
            return at == len(self.text)
        around = [bool(re.match(r"\w", one)) for one in (self.text[at - 1 : at], self.text[at : at + 1])]
        return (around[0] != around[1]) is (place is op.AT_BOUNDARY)

    def _is(self, kind: Any, given: Any, character: str) -> bool:
        if kind is op.ANY:
            return bool(self.flags & re.DOTALL) or character != "\n"
        same = {character, character.lower(), character.upper()} if self.flags & re.IGNORECASE else {character}
        if kind in (op.LITERAL, op.NOT_LITERAL):
            return (chr(given) in same) is (kind is op.LITERAL)
        negated = given[0][0] is op.NEGATE
        return any(_is_member(one, same) for one in given[negated:]) is not negated


def _is_member(member: Any, same: set[str]) -> bool:
    kind, given = member
    if kind is op.CATEGORY:
        name = str(given).removeprefix("CATEGORY_").removeprefix("UNI_")
        letter = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[name.removeprefix("NOT_")]
        return any(bool(re.match(letter, one)) is not name.startswith("NOT_") for one in same)
    low, high = given if kind is op.RANGE else (given, given)
    return any(len(one) == 1 and low <= ord(one) <= high for one in same)


def _characters(items: Any) -> Iterator[str]:
    """Yield the characters that a pattern names."""
    for kind, given in items:
        if kind in (op.LITERAL, op.NOT_LITERAL):
            yield chr(given)
        elif kind is op.RANGE:
            yield chr(given[0])
        elif kind is op.IN:
            yield from _characters(given)
        else:
            for inner in _inner(kind, given):
                yield from _characters(inner)


def _inner(kind: Any, given: Any) -> list[Any]:
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        return [list(given[2])]
    if kind is op.BRANCH:
        return [list(one) for one in given[1]]
    if kind is op.SUBPATTERN:
        return [list(given[3])]
    return [list(given[1])] if kind in (op.ASSERT, op.ASSERT_NOT) else []


def _example(matcher: _Matcher, items: Any, alphabet: Sequence[str]) -> str:
    """Return a text that the parts of a pattern match, as far as its own characters do."""
    text = ""
    for kind, given in items:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            text += next((one for one in alphabet if matcher._is(kind, given, one)), "")
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            text += _example(matcher, list(given[2]), alphabet) * max(1, min(given[0], 100))
        elif kind not in (op.ASSERT, op.ASSERT_NOT):
            text += next((_example(matcher, inner, alphabet) for inner in _inner(kind, given)), "")
    return text


def _pumped(matcher: _Matcher, items: Any, before: str, alphabet: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield beginnings of texts, each with a text that a part of the pattern repeats there as often as one likes."""
    for number, (kind, given) in enumerate(items):
        start = before + _example(matcher, items[:number], alphabet)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT) and given[1] >= _FREE:
            inner = list(given[2])
            found = {_example(matcher, inner, alphabet)}
            if len(inner) == 1:
                found |= {_example(matcher, inner, [one]) for one in alphabet}
            yield from ((begin, one) for one in sorted(found) if one for begin in {start, ""})
            yield from [("", start)] if start else []
        for below in _inner(kind, given):
            yield from _pumped(matcher, below, start, alphabet)


def work_of(pattern: re.Pattern[Any], how: str) -> tuple[str, int, int]:
    """Return the repeated text with the steepest growth, and the steps for a short and a long text."""
    matcher = _Matcher(pattern)
    alphabet = list(dict.fromkeys([*_characters(matcher.items), *_USUAL]))
    steepest = ("", 0, 0)
    for begin, repeated in set(_pumped(matcher, matcher.items, "", alphabet)):
        for spoiler in _SPOILERS:
            short, long = (matcher.steps(begin + repeated * times + spoiler, how) for times in (_SHORT, _LONG))
            steepest = max(steepest, (repeated, short, long), key=lambda found: found[2] - 2 * found[1])
    return steepest


def _patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the compiled patterns of all modules, with the way in which each is used."""
    for module in pkgutil.walk_packages(service.__path__, "service."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for pattern in _in(value):
                at_once = isinstance(value, re.Pattern) and not re.search(rf"\b{name}\.({_ANYWHERE})\(", _SOURCES)
                how = "fullmatch" if f"{name}.fullmatch(" in _SOURCES else "match"
                yield f"{module.name}.{name}", pattern, how if at_once else "anywhere"
    for function, text in re.findall(r"\bre\.(\w+)\(\s*(r?b?\"[^\"\n]+\")", _SOURCES):
        if function not in ("compile", "escape"):
            how = function if function in ("fullmatch", "match") else "anywhere"
            yield f"re.{function}({text})", re.compile(_value(text)), how


def _value(text: str) -> str:
    value: str = literal_eval(text)
    return value


def _in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _in(one)


@pytest.fixture(autouse=True)
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


def _is_linear(pattern: re.Pattern[Any], how: str) -> bool:
    try:
        _, short, long = work_of(pattern, how)
    except _TooMany:
        return False
    return long <= 2.5 * short + 50


def test_the_work_of_every_pattern_grows_with_the_text() -> None:
    found = list(_patterns())
    assert len(found) > 50
    assert {place for place, pattern, how in found if not _is_linear(pattern, how)} == _OWN_TEXTS


@pytest.mark.parametrize(
    ("pattern", "how", "linear"),
    [
        (r"\s+to\s+|\s*\.\.\.?\s*", "anywhere", False),
        (r"\sto\s|\.\.\.?", "anywhere", True),
        (r"(a+)+b", "fullmatch", False),
        (r"[0-9]+[0-9]*x", "match", False),
        (r"[0-9]+x", "match", True),
        (r"[0-9]+x", "anywhere", False),
        (r"(?:a|b)*c", "fullmatch", True),
        (r"x(?:a|a)*c", "fullmatch", False),
        (r"\w+\s*\w+!", "match", False),
        (r"<defs>.*?</defs>", "anywhere", False),
    ],
)
def test_backtracking_is_found(pattern: str, how: str, linear: bool) -> None:
    assert _is_linear(re.compile(pattern, re.DOTALL), how) is linear


def test_models_match_without_backtracking() -> None:
    assert "regex_engine" not in _SOURCES
