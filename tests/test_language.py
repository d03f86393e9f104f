"""Docstrings can be read alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_READ = ("service", "tests", "benchmarks", "migrations")
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
