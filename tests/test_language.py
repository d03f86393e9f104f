"""Docstrings can be read alone, and name the arguments that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_READ = ("service", "client", "tests", "benchmarks", "migrations")
_ARGS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.M)
_NAMED = re.compile(r"^    ((?:\w+, )*\w+):", re.M)
_CLIPPED = re.compile(r"(What|Which|How|Whether|Where|Who|Whoever|When|Why|Whatever|Whom|The same)\b")


@pytest.mark.parametrize("folder", _READ)
def test_a_docstrings_first_line_stands_alone(folder: str) -> None:
    clipped = [
        f"{path.relative_to(_ROOT)}:{line}: {first}"
        for path in sorted((_ROOT / folder).rglob("*.py"))
        for line, first in _first_lines(path)
        if _CLIPPED.match(first)
    ]
    assert clipped == []


def _first_lines(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


@pytest.mark.parametrize("folder", _READ)
def test_a_docstring_describes_only_arguments_that_there_are(folder: str) -> None:
    unknown = {
        f"{path.relative_to(_ROOT)}:{node.lineno}": sorted(described - arguments)
        for path in sorted((_ROOT / folder).rglob("*.py"))
        for node, described, arguments in _described(path)
        if described - arguments
    }
    assert unknown == {}


def _described(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str], set[str]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = _ARGS.search(ast.get_docstring(node) or "")
            described = {name for names in _NAMED.findall(found[1]) for name in names.split(", ")} if found else set()
            yield node, described, {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
