"""Docstrings can be read alone, in the folders that were gone over."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import service

_SERVICE = Path(service.__file__).parent
_ROOT = _SERVICE.parent
_READ = (
    *("service/privacy/**", "service/noise/**", "service/postprocess/**", "service/empirical/**", "service/demo/**"),
    *(
        "service/api/**",
        "service/pages/**",
        "service/cli",
        "service",
        "service/ledger/**",
        "tests/api/**",
        "tests/pages/**",
    ),
)
_CLIPPED = re.compile(r"(What|Which|How|Whether|Where|Who|Whoever|When|Why|Whatever|Whom|The same)\b")


@pytest.mark.parametrize("folder", _READ)
def test_a_docstrings_first_line_stands_alone(folder: str) -> None:
    clipped = [
        f"{path.relative_to(_ROOT)}:{line}: {first}"
        for path in sorted(_ROOT.glob(f"{folder}/*.py"))
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
