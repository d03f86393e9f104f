"""Places outside the checkout that a text names: a clone with nothing beside it has none of them."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

_HOMES = "builds|home|media|mnt|private|root|Users|Volumes|work|workspace"
_MACHINE = re.compile(rf"(?<![\w.~$)}}/-])(?:/(?:{_HOMES})/|~[/]|[A-Z]:\\\w)[\w./-]*")
_BESIDE = re.compile(r"\bshared/(?:data|design|hooks|reference|seeds)\b[\w./-]*")  # where tests once read from
_UP = r"\.\.(?![\w.])(?:/[\w.*-]+)*"
_CLIMBING = re.compile(
    rf"(?<![\w./%-])(?P<path>(?:[\w.-]+/)+{_UP}|{_UP.removesuffix('*')}+)"  # of a link, with names before it or after
    rf"|(?<=[)}}\"'])/(?P<after>{_UP})"  # $(dirname "$0")/..
    rf"|\bcd +(?P<cd>{_UP})"
)
_GIVEN = {
    "tests/pages/shell/test_markdown.py",
    "tests/pages/planner/test_routes.py",
}  # links and names that the service is given


def outside(root: Path, name: str, text: str) -> list[str]:
    """Return the places outside the checkout that a file mentions; ``name`` is relative to the checkout's root."""
    places = [found[0] for pattern in (_MACHINE, _BESIDE) for found in pattern.finditer(text)]
    if name not in _GIVEN:
        found = (one["path"] or one["after"] or one["cd"] for one in _CLIMBING.finditer(text))
        places += [path for path in found if not _is_inside(root, root / name, path)]
    if name.endswith(".py") and re.search(r"__file__|ROOT", text):
        places += _climbs(name, text)
    return places


def _is_inside(root: Path, file: Path, path: str) -> bool:
    """Tell whether a path with .. in it leads from the file's directory to something in the checkout."""
    reached = Path(os.path.normpath(file.parent / path))
    return reached.is_relative_to(root) and reached.exists()


def _climbs(name: str, text: str) -> Iterator[str]:
    """Expressions such as ``Path(__file__).parents[3]`` that are above the root."""
    tree, below = ast.parse(text), {"__file__": len(Path(name).parts), "ROOT": 0, "_ROOT": 0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            level = _level(node.value, below)
            if level is not None:
                below[target.id] = level
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (_level(node, below) or 0) < 0:
            yield ast.unparse(node)


def _level(node: ast.expr, below: dict[str, int]) -> int | None:
    """Return the number of directories between the root and a path, where that can be read off."""
    match node:
        case ast.Name(id=name):
            return below.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[path]):
            return _level(path, below)
        case ast.Call(func=ast.Attribute(value=path, attr="resolve" | "absolute")):
            return _level(path, below)
        case ast.Call(func=ast.Attribute(value=path, attr="joinpath"), args=pieces):
            return _lower(_level(path, below), pieces)
        case ast.Attribute(value=path, attr="parent"):
            return _minus(_level(path, below), 1)
        case ast.Subscript(value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int(steps))):
            return _minus(_level(path, below), steps + 1)
        case ast.BinOp(left=path, op=ast.Div(), right=piece):
            return _lower(_level(path, below), [piece])
        case _:
            return None


def _minus(level: int | None, steps: int) -> int | None:
    return None if level is None else level - steps


def _lower(level: int | None, pieces: list[ast.expr]) -> int | None:
    """The level after these pieces of a path; what leaves the checkout does not come back."""
    for piece in pieces:
        if level is None or not isinstance(piece, ast.Constant) or not isinstance(piece.value, str):
            return None
        for step in filter(None, piece.value.split("/")):
            level += -1 if step == ".." else 1
            if level < 0:
                return level
    return level
